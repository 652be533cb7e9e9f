package sim

import "github.com/cockroachdb/pebble/v2/vfs"

// A deaf disk takes writes, and nothing else that it is told lasts: what the
// database does at the moment of a crash must not be found after it.

func (d *disk) OpenDir(name string) (vfs.File, error) { return d.wrap(d.MemFS.OpenDir(name)) }

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
