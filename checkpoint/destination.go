package checkpoint

import (
	"context"
	"fmt"
	"io"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// Destination is a place that checkpoints are copied to.
type Destination interface {
	// Put copies a file of so many bytes. When it returns an error there is no file
	// of that name, or the one from before.
	Put(ctx context.Context, name string, bytes int64, r io.Reader) error
	// String names the place, without secrets.
	String() string
}

// Directory is a destination on a disk.
type Directory struct {
	// FS is where it lies; nil: the disk.
	FS vfs.FS
	// Path is made when it is not there.
	Path string
}

// String implements Destination.
func (d Directory) String() string { return d.Path }

// Put implements Destination: the file is written beside, synced, and renamed.
func (d Directory) Put(ctx context.Context, name string, bytes int64, r io.Reader) error {
	fs := orDisk(d.FS)
	if err := makeDir(fs, d.Path, 0o700); err != nil {
		return fmt.Errorf("make directory %s: %w", d.Path, err)
	}
	path := fs.PathJoin(d.Path, name)
	f, err := fs.Create(path+partialSuffix, vfs.WriteCategoryUnspecified)
	if err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	n, err := io.Copy(f, readerUntil{ctx, r})
	if err == nil && n != bytes {
		err = fmt.Errorf("it has %d bytes and should have %d", n, bytes)
	}
	if err == nil {
		err = f.Sync()
	}
	if err2 := f.Close(); err == nil {
		err = err2
	}
	if err == nil {
		err = fs.Rename(path+partialSuffix, path)
	}
	if err != nil {
		_ = fs.Remove(path + partialSuffix)
		return fmt.Errorf("write %s: %w", path, err)
	}
	return syncDir(fs, d.Path)
}

// readerUntil ends with a context.
type readerUntil struct {
	ctx context.Context
	r   io.Reader
}

func (r readerUntil) Read(b []byte) (int, error) {
	if err := r.ctx.Err(); err != nil {
		return 0, err
	}
	return r.r.Read(b)
}
