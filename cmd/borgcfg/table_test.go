package main

import (
	"bytes"
	"strings"
	"testing"
)

// TestLongReasons: a reason is cut where a word ends, and whole with -o wide.
func TestLongReasons(t *testing.T) {
	long := strings.Repeat("word ", 80) + "end"
	for _, tt := range []struct{ format, reason, want string }{
		{"table", "short", "short"},
		{"table", strings.Repeat("ä", reasonWidth), strings.Repeat("ä", reasonWidth)},
		{"table", strings.Repeat("ä", reasonWidth+1), strings.Repeat("ä", reasonWidth-2) + " …"},
		{"table", long, strings.TrimSpace(strings.Repeat("word ", 15)) + " …"},
		{"wide", long, long},
	} {
		var out bytes.Buffer
		var tb table
		tb.head("TASK", "REASON", "CHANGED")
		tb.add(long, tt.reason, "x")
		if err := tb.write(output{format: tt.format, w: &out}, ""); err != nil {
			t.Fatal(err)
		}
		row := strings.Split(out.String(), "\n")[1]
		got := strings.TrimSpace(strings.TrimSuffix(strings.TrimPrefix(row, long), "x"))
		if got != tt.want {
			t.Errorf("%s %q: got %q, want %q", tt.format, tt.reason, got, tt.want)
		}
	}
}
