//go:build linux && cgo

package container

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/opencontainers/runc/libcontainer/configs"

	"borg/proto/borgpb"
)

// maxImageLinks bounds the links that one path of an image leads through, as the kernel
// does.
const maxImageLinks = 40

// strictTop are the names of an image that must be directories, or not be there: what is
// mounted on them is the task's view of the kernel, or is named to it by these paths.
var strictTop = []string{"proc", "sys", "dev", "task", "alloc", ".borg"}

// checkPlaces refuses an image in which something cannot be mounted, as the image has
// something else in its place. That lies in the task: it is so on every machine. The
// image is as the task would see it, below root; nobody else changes it meanwhile.
func checkPlaces(root string, mounts []*configs.Mount) error {
	for i, m := range mounts {
		path := filepath.Clean(m.Destination)
		if i > 0 && slices.ContainsFunc(mounts[:i], func(earlier *configs.Mount) bool { return within(path, filepath.Clean(earlier.Destination)) }) {
			// It is in what is mounted before, or in place of it.
			continue
		}
		directory := true
		if m.Device == "bind" {
			info, err := os.Stat(m.Source)
			if err != nil {
				// The mount itself says so.
				continue
			}
			directory = info.IsDir()
		}
		if err := checkPlace(root, path, directory); err != nil {
			return inWay(borgpb.ExitReason_EXIT_REASON_IMAGE, fmt.Errorf("the image has no place for %s, where something is mounted for the task: %w", path, err))
		}
	}
	return nil
}

// checkPlace looks at one path of an image.
func checkPlace(root, path string, directory bool) error {
	top, _, _ := strings.Cut(strings.TrimPrefix(path, "/"), "/")
	if slices.Contains(strictTop, top) {
		info, err := os.Lstat(filepath.Join(root, top))
		if err == nil && !info.IsDir() {
			return fmt.Errorf("its /%s is %s; make it a directory, or leave it out", top, kindWords(filepath.Join(root, top), info))
		}
	}
	at, info, err := resolveIn(root, path)
	switch {
	case err != nil:
		return err
	case at == "/":
		return errors.New("it leads to the root itself")
	case at != path && slices.ContainsFunc(strictTop, func(name string) bool { return within(at, "/"+name) }):
		return fmt.Errorf("it leads to %s, by a symbolic link, and that is no part of the image", at)
	case info == nil && at != path:
		return fmt.Errorf("it leads to %s, by a symbolic link, and that is not in the image", at)
	case info != nil && info.IsDir() != directory:
		want := "a directory"
		if !directory {
			want = "a file"
		}
		return fmt.Errorf("%s is %s; make it %s, or leave it out", at, kindWords(filepath.Join(root, at), info), want)
	}
	return nil
}

// resolveIn follows a path below root as a process would whose root that is: no link leads
// out. info is nil when there is nothing; at is where it would be.
func resolveIn(root, path string) (at string, info fs.FileInfo, err error) {
	at = "/"
	left := strings.Split(strings.Trim(path, "/"), "/")
	for links := 0; len(left) > 0; {
		name := left[0]
		left = left[1:]
		switch name {
		case "", ".":
			continue
		case "..":
			at = filepath.Dir(at)
			continue
		}
		here := filepath.Join(at, name)
		info, err = os.Lstat(filepath.Join(root, here))
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return filepath.Join(append([]string{here}, left...)...), nil, nil
		case err != nil:
			return "", nil, err
		case info.Mode()&fs.ModeSymlink != 0:
			to, err := os.Readlink(filepath.Join(root, here))
			if err != nil {
				return "", nil, err
			}
			if links++; links > maxImageLinks {
				return "", nil, fmt.Errorf("it leads through more than %d symbolic links", maxImageLinks)
			}
			if filepath.IsAbs(to) {
				at = "/"
			}
			left = append(strings.Split(to, "/"), left...)
			continue
		case !info.IsDir() && slices.ContainsFunc(left, func(name string) bool { return name != "" && name != "." }):
			return "", nil, fmt.Errorf("it leads through %s, which is %s", here, kindWords(filepath.Join(root, here), info))
		}
		at = here
	}
	info, err = os.Lstat(filepath.Join(root, at))
	return at, info, err
}

// kindWords says what something in an image is.
func kindWords(path string, info fs.FileInfo) string {
	switch mode := info.Mode(); {
	case mode&fs.ModeSymlink != 0:
		to, _ := os.Readlink(path)
		return fmt.Sprintf("a symbolic link to %.200q", to)
	case mode.IsDir():
		return "a directory"
	case mode.IsRegular():
		return "a file"
	case mode&fs.ModeNamedPipe != 0:
		return "a pipe"
	case mode&fs.ModeSocket != 0:
		return "a socket"
	}
	return "a device"
}
