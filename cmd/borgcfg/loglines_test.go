package main

import (
	"slices"
	"strings"
	"testing"
)

// Of pieces cut anywhere come the same whole lines; the last one is ended, and one
// that is too long is broken.
func TestLineBuffer(t *testing.T) {
	const text = "one\n\ntwo \xff\nthe end"
	for size := 1; size <= len(text); size++ {
		var b lineBuffer
		var got []byte
		for piece := range slices.Chunk([]byte(text), size) {
			lines := b.take(piece)
			if len(lines) > 0 && lines[len(lines)-1] != '\n' {
				t.Fatalf("in pieces of %d: %q ends in half a line", size, lines)
			}
			got = append(got, lines...)
		}
		if got = append(got, b.flush()...); string(got) != text+"\n" {
			t.Errorf("in pieces of %d: %q", size, got)
		}
	}
	var b lineBuffer
	if got := b.take([]byte(strings.Repeat("x", maxLineBytes))); len(got) != maxLineBytes+1 || len(b.part) != 0 {
		t.Errorf("of a line without end: %d bytes, and %d are held", len(got), len(b.part))
	}
}

// A character that two pieces have parts of is shown as what it is.
func TestOpenRune(t *testing.T) {
	for piece, want := range map[string]int{
		"": 0, "a": 0, "ö": 0, "\xc3": 1, "a\xe2\x82": 2, "\xf0\x9f\x98": 3, "\xff": 0, "\x82": 0, "\x82\x82\x82\x82": 0, "\xc3a": 0, "€": 0,
	} {
		if got := openRune([]byte(piece)); got != want {
			t.Errorf("openRune(%q) = %d, want %d", piece, got, want)
		}
	}
}
