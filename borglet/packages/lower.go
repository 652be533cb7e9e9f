package packages

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path"
	"slices"
	"syscall"

	"golang.org/x/sys/unix"
)

// A layer takes from those below it the owners and modes of directories that it has no
// entries of. Such a layer is unpacked anew on top of other layers.

func (u *unpacker) openLower(trees []string) error {
	for _, tree := range slices.Backward(trees) {
		root, err := os.OpenRoot(tree)
		if err != nil {
			return fmt.Errorf("unpack: open a lower layer: %w", err)
		}
		u.lower = append(u.lower, root)
	}
	return nil
}

func (u *unpacker) closeLower() {
	for _, root := range u.lower {
		root.Close()
	}
}

// find returns the layer in which a path is seen from above, and what is there; no layer
// when there is nothing. It follows no links.
func (u *unpacker) find(name string) (*os.Root, fs.FileInfo, error) {
	for _, root := range u.lower {
		info, hidden, err := seenIn(root, name)
		if err != nil {
			return nil, nil, fmt.Errorf("look for %.200q in a lower layer: %w", name, err)
		}
		if info != nil {
			return root, info, nil
		}
		if hidden {
			break
		}
	}
	return nil, nil, nil
}

// seenIn looks for a path in one layer. hidden: the layer hides what is there below it.
func seenIn(root *os.Root, name string) (info fs.FileInfo, hidden bool, err error) {
	if dir := path.Dir(name); dir != "." {
		above, hides, err := seenIn(root, dir)
		switch {
		case err != nil || hides && above == nil:
			return nil, hides, err
		case above == nil:
			return nil, false, nil
		case !above.IsDir():
			return nil, true, nil
		}
		hidden = hides
	}
	info, err = root.Lstat(name)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, hidden, nil
	case err != nil:
		return nil, false, err
	case info.Mode()&fs.ModeCharDevice != 0:
		// The mark of what was taken away; no other device is ever made.
		return nil, true, nil
	}
	if info.IsDir() && !hidden {
		hidden, err = isOpaque(root, name)
	}
	return info, hidden, err
}

func isOpaque(root *os.Root, dir string) (bool, error) {
	d, err := root.Open(dir)
	if err != nil {
		return false, err
	}
	defer d.Close()
	var value [1]byte
	n, err := unix.Fgetxattr(int(d.Fd()), opaqueXattr, value[:])
	if errors.Is(err, unix.ENODATA) || errors.Is(err, unix.ENOTSUP) {
		return false, nil
	}
	return n == 1 && value[0] == 'y', err
}

// dressImplied gives directories without entries the look of those below.
func (u *unpacker) dressImplied() error {
	for _, name := range slices.Sorted(maps.Keys(u.kept)) {
		if !u.kept[name].implied {
			continue
		}
		u.needsLower = true
		root, info, err := u.find(name)
		if err != nil {
			return err
		}
		if root != nil && info.IsDir() {
			if err := u.dressAs(name, info); err != nil {
				return err
			}
		}
	}
	return nil
}

// dressAs gives what was made the owner, mode and time of what is seen below.
func (u *unpacker) dressAs(name string, like fs.FileInfo) error {
	if is, ok := like.Sys().(*syscall.Stat_t); ok && u.chown {
		if err := u.root.Lchown(name, int(is.Uid), int(is.Gid)); err != nil {
			return fmt.Errorf("unpack %.200q: %w", name, err)
		}
	}
	err := u.root.Chmod(name, like.Mode()&(fs.ModePerm|fs.ModeSticky))
	if err == nil {
		err = u.root.Chtimes(name, like.ModTime(), like.ModTime())
	}
	if err != nil {
		return fmt.Errorf("unpack %.200q: %w", name, err)
	}
	return nil
}
