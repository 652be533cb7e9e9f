package borglet

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"borg/proto/borgpb"
)

const (
	// ownPaperBytes is the memory for what every task has beside its secrets and files:
	// its certificate and key, twice while they are renewed, and what it is told of itself
	// and of its end. Annotations alone may be 64 KiB, six times that in JSON.
	ownPaperBytes = 1 << 20
	// maxPapers bounds the files and directories of one copy's papers.
	maxPapers = 1024
)

// makeRoom gives the papers of a copy a file system of their own, in memory, of a fixed
// size. Files that were replaced or removed and that the task holds open count in it, so no
// task can make its papers take more than that. Without BoundPapers it does nothing.
//
// The limit of the task's cgroup is lower by what its secrets and files may take
// (limitsOf), and all that its papers take counts as memory that it uses.
func (p *papers) makeRoom(id ID, spec *borgpb.TaskSpec) error {
	if p == nil || !p.bounded {
		return nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	path := p.path(id)
	if err := os.MkdirAll(path, 0o700); err != nil {
		return fmt.Errorf("make a directory for papers: %w", err)
	}
	if is, err := p.isMounted(path); err != nil || is {
		// An earlier run of the copy has made it, or an earlier borglet.
		return err
	}
	options := fmt.Sprintf("mode=0700,size=%d,nr_inodes=%d", ownPaperBytes+spec.PaperBytes(), maxPapers)
	if err := unix.Mount("tmpfs", path, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, options); err != nil {
		return fmt.Errorf("make room for papers: %w", err)
	}
	return nil
}

// isMounted reports whether a copy's directory is a file system of its own.
func (p *papers) isMounted(path string) (bool, error) {
	var above, at unix.Stat_t
	if err := unix.Lstat(p.dir, &above); err != nil {
		return false, fmt.Errorf("look at directory %s: %w", p.dir, err)
	}
	err := unix.Lstat(path, &at)
	if errors.Is(err, unix.ENOENT) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("look at papers: %w", err)
	}
	return at.Dev != above.Dev, nil
}

// remove removes a copy's directory of papers. A file system of its own is emptied first:
// another mount name space may still have it mounted.
func (p *papers) remove(path string) error {
	is, err := p.isMounted(path)
	if err != nil {
		return err
	}
	if is {
		// The directory itself stays, as it is mounted on.
		_ = os.RemoveAll(path)
		if err := unix.Unmount(path, unix.MNT_DETACH); err != nil {
			return fmt.Errorf("remove the room for papers: %w", err)
		}
	}
	if err := os.RemoveAll(path); err != nil {
		return fmt.Errorf("remove papers: %w", err)
	}
	return nil
}

// taken returns the memory that the papers of a copy take, with files that were removed and
// are still open; zero if they have no file system of their own.
func (p *papers) taken(id ID) int64 {
	if p == nil || !p.bounded {
		return 0
	}
	var is unix.Statfs_t
	p.mu.Lock()
	defer p.mu.Unlock()
	if mounted, err := p.isMounted(p.path(id)); err != nil || !mounted {
		return 0
	}
	if err := unix.Statfs(p.path(id), &is); err != nil {
		return 0
	}
	return int64(is.Blocks-is.Bfree) * int64(is.Bsize)
}

// charge adds what the papers of copies take to the memory that they use, and to that of the
// allocs they are in, by AllocName.
func (p *papers) charge(stats map[ID]Stats, allocs map[string]Stats, inAlloc map[ID]string) {
	for id, s := range stats {
		bytes := p.taken(id)
		s.MemBytes += bytes
		stats[id] = s
		if of, ok := allocs[inAlloc[id]]; ok {
			of.MemBytes += bytes
			allocs[inAlloc[id]] = of
		}
	}
}

// fullPapers says of an error of writing papers why there was no room.
func fullPapers(err error) error {
	if errors.Is(err, unix.ENOSPC) {
		return fmt.Errorf("the task's papers have no room left: it holds replaced ones open (%w)", err)
	}
	return err
}
