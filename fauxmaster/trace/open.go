package trace

import (
	"compress/gzip"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/klauspost/compress/zstd"
)

// File is an open file of a trace, decompressed as its name says: .gz, .zst, or
// as it is.
type File struct {
	io.Reader
	close []func() error
	// packed is what it takes as it comes.
	packed int64
}

const (
	// freeUnpackedBytes and maxUnpackedRatio bound what a compressed file becomes: so many
	// bytes, or so many times its own.
	freeUnpackedBytes = int64(1 << 30)
	maxUnpackedRatio  = int64(200)
	// maxWindowBytes bounds the memory that a file compressed by zstd asks for.
	maxWindowBytes = 128 << 20
)

// unpacking reads what a compressed file becomes, up to a bound.
type unpacking struct {
	path       string
	r          io.Reader
	left, most int64
}

func unpackingOf(path string, r io.Reader, packed int64) *unpacking {
	most := max(freeUnpackedBytes, min(packed, 1<<50)*maxUnpackedRatio)
	return &unpacking{path, r, most, most}
}

func (u *unpacking) Read(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	if u.left == 0 {
		// It may end there.
		if n, err := u.r.Read(make([]byte, 1)); n == 0 {
			return 0, err
		}
		return 0, fmt.Errorf("decompress %s: it becomes more than %d bytes, the most for a file of its size: decompress it yourself if that is right", u.path, u.most)
	}
	n, err := u.r.Read(p[:min(int64(len(p)), u.left)])
	u.left -= int64(n)
	return n, err
}

// Open opens a file of a trace.
func Open(path string) (*File, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("open a file of a trace: %w", err)
	}
	info, err := f.Stat()
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("open a file of a trace: %w", err)
	}
	o := &File{Reader: f, close: []func() error{f.Close}, packed: info.Size()}
	switch filepath.Ext(path) {
	case ".gz":
		z, err := gzip.NewReader(f)
		if err != nil {
			f.Close()
			return nil, fmt.Errorf("decompress %s: %w", path, err)
		}
		o.Reader = unpackingOf(path, z, o.packed)
	case ".zst":
		z, err := zstd.NewReader(f, zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true), zstd.WithDecoderMaxMemory(maxWindowBytes))
		if err != nil {
			f.Close()
			return nil, fmt.Errorf("decompress %s: %w", path, err)
		}
		o.Reader = unpackingOf(path, z, o.packed)
		o.close = append(o.close, func() error { z.Close(); return nil })
	}
	return o, nil
}

// Close closes the file.
func (f *File) Close() error {
	var first error
	for _, c := range slices.Backward(f.close) {
		if err := c(); first == nil {
			first = err
		}
	}
	return first
}

// readFile opens a file and hands it to read.
func readFile(path string, read func(file string, r io.Reader) error) error {
	f, err := Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	return read(path, f)
}

// parts are the files of a table, in order; nil when there is no such table.
func parts(dir, table string) ([]string, error) {
	entries, err := os.ReadDir(filepath.Join(dir, table))
	if os.IsNotExist(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read the parts of a table: %w", err)
	}
	var files []string
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), "part-") {
			files = append(files, filepath.Join(dir, table, e.Name()))
		}
	}
	return files, nil
}
