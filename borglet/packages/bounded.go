package packages

import (
	"errors"
	"fmt"
	"io"
)

// errBomb: it becomes more than a layer of its size may.
var errBomb = errors.New("it becomes too much when it is unpacked")

// bounded reads no more than it may: in all, and for the headers of one entry, which the
// reader of archives holds in memory.
type bounded struct {
	r    io.Reader
	left int64
	// read is how much was read.
	read int64
	// headerLeft is what the headers of the next entry may take. Below zero: content is
	// read.
	headerLeft int64
}

// headers begins with the headers of the next entry, content with what the entry has.
func (b *bounded) headers() { b.headerLeft = maxHeaderBytes }
func (b *bounded) content() { b.headerLeft = -1 }

func (b *bounded) Read(p []byte) (int, error) {
	most := b.left
	if b.headerLeft >= 0 {
		most = min(most, b.headerLeft)
	}
	switch {
	case b.left <= 0:
		return 0, errBomb
	case most <= 0:
		return 0, fmt.Errorf("%w: the headers of an entry have more than %d bytes", errBomb, maxHeaderBytes)
	}
	n, err := b.r.Read(p[:min(int64(len(p)), most)])
	b.left -= int64(n)
	b.read += int64(n)
	if b.headerLeft >= 0 {
		b.headerLeft -= int64(n)
	}
	return n, err
}
