package cli

import (
	"strings"
	"testing"
	"unicode"
)

func TestVisible(t *testing.T) {
	for _, tt := range []struct{ text, want string }{
		{"web of alice", "web of alice"},
		{"grün, 設定", "grün, 設定"},
		{"a\x1b[2Jb", `a\x1b[2Jb`},
		{"one\ntwo\r\tthree", `one\ntwo\r\tthree`},
		{"nul\x00", `nul\x00`},
		{"bad \xff\xfe", `bad \xff\xfe`},
		{"right \u202eto left", `right \u202eto left`},
		{"c1 \u009b31m", `c1 \u009b31m`},
	} {
		if got := Visible(tt.text); got != tt.want {
			t.Errorf("Visible(%q) = %q, want %q", tt.text, got, tt.want)
		}
	}
	if got, want := VisibleLines("one\n\ttwo\x1b[1m\r"), "one\n\ttwo\\x1b[1m\\r"; got != want {
		t.Errorf("VisibleLines = %q, want %q", got, want)
	}
}

func FuzzVisible(f *testing.F) {
	f.Add("a\x1b]0;title\x07b\u202e\xff")
	f.Fuzz(func(t *testing.T, text string) {
		for _, line := range []string{Visible(text), strings.NewReplacer("\n", "", "\t", "").Replace(VisibleLines(text))} {
			for _, r := range line {
				if !unicode.IsPrint(r) {
					t.Fatalf("%q is shown as %q, in which %U is not visible", text, line, r)
				}
			}
		}
	})
}
