//go:build linux && cgo

package container

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/opencontainers/runc/libcontainer"

	"borg/borglet"
	"borg/mutant"
)

// destroy removes whatever is left of a container, and releases what prepare reserved for it.
func (b *containerBackend) destroy(id borglet.ID) error {
	if err := b.remove(id); err != nil {
		return err
	}
	if err := b.weights.leave(id); err != nil {
		return err
	}
	if b.ids != nil {
		b.ids.free(id)
	}
	if b.cpus != nil {
		if err := b.cpus.free(id); err != nil {
			return err
		}
	}
	if b.wall != nil {
		return b.wall.free(id)
	}
	return nil
}

// remove removes a container's processes, cgroup and mount points, and libcontainer's state of
// it.
func (b *containerBackend) remove(id borglet.ID) error {
	dir := filepath.Join(stateDir(b.cfg), id.String())
	if _, err := os.Lstat(dir); errors.Is(err, os.ErrNotExist) {
		return nil
	}
	c, err := b.load(id)
	switch {
	case err == nil:
		alloc := filepath.Dir(c.Config().Cgroups.Path)
		if err := c.Destroy(); err != nil {
			return fmt.Errorf("remove container: %w", err)
		}
		if alloc != cgroupParent(b.cfg.Name) {
			removeCgroup(alloc)
		}
	case errors.Is(err, libcontainer.ErrNotExist):
		if mutant.Planted(mutant.HalfMadeKept) {
			return nil
		}
		// The shim was killed before libcontainer wrote the state. The cgroup may exist.
		for _, path := range placesOf(cgroupParent(b.cfg.Name), id) {
			if err := emptyCgroup(path); err != nil {
				return fmt.Errorf("remove container: %w", err)
			}
			if alloc := filepath.Dir(path); alloc != cgroupParent(b.cfg.Name) {
				removeCgroup(alloc)
			}
		}
	default:
		return fmt.Errorf("find container: %w", err)
	}
	if err := os.RemoveAll(dir); err != nil {
		return fmt.Errorf("remove container: %w", err)
	}
	return nil
}

// close removes the borglet's cgroups if nothing is in them.
func (b *containerBackend) close() {
	b.meters.close()
	if b.wall != nil {
		if err := b.wall.leave(); err != nil {
			b.cfg.Log.Warn("the packet filter's table is left", "machine", b.cfg.Name, "err", err)
		}
	}
	if b.claims != nil && b.ids.empty() {
		if err := b.claims.release(); err != nil {
			b.cfg.Log.Warn("user ids of tasks stay claimed", "machine", b.cfg.Name, "err", err)
		}
	}
	removeCgroup(cgroupParent(b.cfg.Name))
	removeCgroup(filepath.Dir(cgroupParent(b.cfg.Name)))
}
