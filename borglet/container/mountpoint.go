package container

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"borg/borglet"
)

// ownTop are the top-level names that a container gets from us, whatever its
// root file system has there.
var ownTop = []string{"proc", "dev", "sys", "tmp", "run", "task", "alloc", ".borg"}

// baseTop are the top-level names that a container without a rootfs shows of
// the machine, read-only.
var baseTop = []string{"usr", "bin", "sbin", "lib", "lib32", "lib64", "libx32"}

// etcShared are the names in /etc that programs of the machine need and that
// say nothing of it that is secret.
var etcShared = []string{
	"alternatives", "ca-certificates", "gai.conf", "ld.so.cache", "ld.so.conf", "ld.so.conf.d",
	"locale.alias", "localtime", "mime.types", "pki", "protocols", "services", "ssl", "terminfo", "timezone",
}

// checkMountPoint refuses a mount for which there is no place: nothing is ever
// made in a directory of the machine, not even to mount on.
func checkMountPoint(l *borglet.Launch, i int) error {
	m := l.Mounts[i]
	source, err := os.Stat(m.Source)
	if err != nil {
		return fmt.Errorf("mount of %s: %w", m.Source, err)
	}
	shown, from := shownBelow(l, i)
	if shown == "" {
		return nil
	}
	rest, err := filepath.Rel(shown, filepath.Clean(m.Path))
	if err != nil || rest == "." {
		return err
	}
	point, err := os.Stat(filepath.Join(from, rest))
	switch {
	case err != nil:
		return fmt.Errorf("mount of %s at %s: %s is %s, in which nothing is made, and it has no %s to mount on; choose a path outside of it, such as /opt/%s",
			m.Source, m.Path, shown, owner(l, shown, from), rest, filepath.Base(m.Path))
	case point.IsDir() != source.IsDir():
		return fmt.Errorf("mount of %s at %s: the one is a directory and the other is not", m.Source, m.Path)
	}
	return nil
}

// shownBelow returns the innermost directory around the i-th mount that comes
// from the machine: where the task sees it, and where it is. Empty: none, the
// mount point can be made.
func shownBelow(l *borglet.Launch, i int) (shown, from string) {
	path := filepath.Clean(l.Mounts[i].Path)
	for _, earlier := range l.Mounts[:i] {
		at := filepath.Clean(earlier.Path)
		if at != path && within(path, at) && len(at) > len(shown) {
			shown, from = at, earlier.Source
		}
	}
	if shown != "" {
		return shown, from
	}
	if l.Image() != nil {
		return "", ""
	}
	parts := strings.Split(strings.TrimPrefix(path, "/"), "/")
	top := parts[0]
	switch {
	case slices.Contains(ownTop, top):
		return "", ""
	case l.Rootfs == "" && slices.Contains(baseTop, top):
		return "/" + top, "/" + top
	case l.Rootfs == "" && top == "etc" && len(parts) > 1 && slices.Contains(etcShared, parts[1]):
		return "/etc/" + parts[1], "/etc/" + parts[1]
	case l.Rootfs == "":
		return "", ""
	}
	from = filepath.Join(l.Rootfs, top)
	// A link that is absolute means another place in the container than here.
	if info, err := os.Lstat(from); err != nil || info.Mode()&os.ModeSymlink != 0 {
		return "", ""
	}
	return "/" + top, from
}

// owner says whose a directory is that a task sees.
func owner(l *borglet.Launch, shown, from string) string {
	switch {
	case shown == from:
		return "the machine's own"
	case within(from, l.Rootfs) && l.Rootfs != "":
		return "a part of rootfs " + l.Rootfs
	}
	return "a mount of " + from
}
