package selector

import (
	"testing"
	"unicode"
)

func TestIsKey(t *testing.T) {
	for k, want := range map[string]bool{
		"app": true, "borg.dev/share": true, "a_b-c": true, "größe": true, "層": true, "*": true,
		"": false, "a b": false, "a\tb": false, "a\x00": false, "a=b": false, "!a": false, "a,b": false, "(a": false, "<a>": false,
		"a-": false, "-": false, "a\u200bb": false, "a\u00a0b": false, "a\u202eb": false, "\ufeffa": false, "a\ue000": false, "a\xff": false,
	} {
		if IsKey(k) != want {
			t.Errorf("IsKey(%q) = %v, want %v", k, !want, want)
		}
	}
}

// TestUnseen holds the list against the tables of this build: they may only know more.
func TestUnseen(t *testing.T) {
	for r := rune(0); r <= unicode.MaxRune; r++ {
		if is, seen := unicode.Is(unseen, r), unicode.In(r, unicode.L, unicode.M, unicode.N, unicode.P, unicode.S); is && seen {
			t.Errorf("%U is in the list, and people see it", r)
		}
		if unicode.Version == "15.0.0" && unicode.In(r, unicode.Cc, unicode.Cf, unicode.Co, unicode.Z) && !unicode.Is(unseen, r) {
			t.Errorf("%U is a blank, or people do not see it, and is not in the list", r)
		}
	}
}
