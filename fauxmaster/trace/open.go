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
}

// Open opens a file of a trace.
func Open(path string) (*File, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("open a file of a trace: %w", err)
	}
	o := &File{Reader: f, close: []func() error{f.Close}}
	switch filepath.Ext(path) {
	case ".gz":
		z, err := gzip.NewReader(f)
		if err != nil {
			f.Close()
			return nil, fmt.Errorf("decompress %s: %w", path, err)
		}
		o.Reader = z
	case ".zst":
		z, err := zstd.NewReader(f, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxMemory(256<<20))
		if err != nil {
			f.Close()
			return nil, fmt.Errorf("decompress %s: %w", path, err)
		}
		o.Reader = z
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
