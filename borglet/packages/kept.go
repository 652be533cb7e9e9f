package packages

import (
	"archive/tar"
	"fmt"
	"io/fs"
	"strings"
	"syscall"
	"time"
)

// kept is what an unpacker remembers of a name until its layer ends. It holds nothing of
// the entry's header: a header may have a megabyte of records, and a layer a million of
// entries.
type kept struct {
	kind keptKind
	// implied: a directory without an entry of its own, of which not all below is hidden.
	// It looks like that of lower layers.
	implied bool
	// look is what a directory gets at the end. Zero: it has no entry of its own.
	look look
}

type keptKind uint8

const (
	// madeDir is a directory that was made. It stays one.
	madeDir keptKind = iota + 1
	// takenAway is a name that the layer takes away from lower ones.
	takenAway
)

// look is the owner, mode and time of an entry. What is put into a directory would spoil
// its mode and time, so that they are set at the end.
type look struct {
	uid, gid int
	mode     fs.FileMode
	modTime  time.Time
	set      bool
}

// lookOf clears the bits that would give a task another's rights: no task may have them.
func lookOf(h *tar.Header) look {
	mode := fs.FileMode(h.Mode).Perm()
	if h.Typeflag == tar.TypeDir && h.Mode&syscall.S_ISVTX != 0 {
		mode |= fs.ModeSticky
	}
	return look{h.Uid, h.Gid, mode, h.ModTime, true}
}

func (u *unpacker) isDir(name string) bool  { return u.kept[name].kind == madeDir }
func (u *unpacker) isGone(name string) bool { return u.kept[name].kind == takenAway }

// keep remembers a name. Names that are new are charged.
func (u *unpacker) keep(entry, name string, as kept) error {
	if _, known := u.kept[name]; !known {
		u.keptBytes += int64(len(name)) + keptNameBytes
		if u.keptBytes > u.bounds.kept {
			return refuse(entry, "the directories of the layer, and the names that it takes away, need more than %d bytes of memory; spread them over several layers", u.bounds.kept)
		}
		// A part of a longer string would keep all of it.
		name = strings.Clone(name)
	}
	u.kept[name] = as
	return nil
}

// forget ends what keep began for a name that is taken away.
func (u *unpacker) forget(name string) {
	if u.isGone(name) {
		delete(u.kept, name)
		u.keptBytes -= int64(len(name)) + keptNameBytes
	}
}

// dress gives a file its owner, mode and time.
func (u *unpacker) dress(l look, entry, name string) error {
	if u.chown {
		if err := u.root.Lchown(name, l.uid, l.gid); err != nil {
			return refuse(entry, "its owner is %d:%d: %w", l.uid, l.gid, err)
		}
	}
	if err := u.root.Chmod(name, l.mode); err != nil {
		return fmt.Errorf("unpack %.200q: %w", entry, err)
	}
	if err := u.root.Chtimes(name, l.modTime, l.modTime); err != nil {
		return fmt.Errorf("unpack %.200q: %w", entry, err)
	}
	return nil
}

// finish gives directories what files in them would have spoiled.
func (u *unpacker) finish() error {
	if err := u.dressImplied(); err != nil {
		return err
	}
	for name, k := range u.kept {
		if !k.look.set {
			continue
		}
		if err := u.dress(k.look, name, name); err != nil {
			return err
		}
	}
	return nil
}
