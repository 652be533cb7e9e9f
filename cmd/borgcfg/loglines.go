package main

import (
	"bytes"
	"unicode/utf8"
)

// maxLineBytes bounds what is shown as one line of a log.
const maxLineBytes = 64 << 10

// lineBuffer makes whole lines of pieces of a stream.
type lineBuffer struct{ part []byte }

// take returns the lines that data complete. A line that becomes too long is
// broken.
func (b *lineBuffer) take(data []byte) []byte {
	b.part = append(b.part, data...)
	end := bytes.LastIndexByte(b.part, '\n') + 1
	if end == 0 && len(b.part) < maxLineBytes {
		return nil
	}
	if end == 0 {
		return b.flush()
	}
	lines := b.part[:end:end]
	b.part = bytes.Clone(b.part[end:])
	return lines
}

// flush returns what is left as a line.
func (b *lineBuffer) flush() []byte {
	if len(b.part) == 0 {
		return nil
	}
	lines := append(b.part, '\n')
	b.part = nil
	return lines
}

// openRune is how many bytes at the end of a piece begin a character that is not
// complete.
func openRune(piece []byte) int {
	for n := 1; n < utf8.UTFMax && n <= len(piece); n++ {
		if from := piece[len(piece)-n:]; utf8.RuneStart(from[0]) {
			if utf8.FullRune(from) {
				return 0
			}
			return n
		}
	}
	return 0
}
