package sim

import "github.com/cockroachdb/pebble/v2/vfs"

// A deaf disk takes writes, and nothing else that it is told lasts: what the
// database does at the moment of a crash must not be found after it.

func (d *disk) OpenDir(name string) (vfs.File, error) {
	f, err := d.MemFS.OpenDir(name)
	if err != nil {
		return nil, err
	}
	return &diskDir{f, d}, nil
}

func (d *disk) Rename(from, to string) error {
	if d.deaf.Load() {
		return nil
	}
	return d.MemFS.Rename(from, to)
}

func (d *disk) Remove(name string) error {
	if d.deaf.Load() {
		return nil
	}
	return d.MemFS.Remove(name)
}

type diskDir struct {
	vfs.File
	d *disk
}

func (f *diskDir) Sync() error {
	if f.d.deaf.Load() {
		return nil
	}
	return f.File.Sync()
}
