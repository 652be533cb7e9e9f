//go:build linux && cgo

package container

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"borg/borglet"
	"borg/borglet/beneath"
	"borg/borglet/diskquota"
)

// Directories in a copy's directory for its packages.
const (
	// lowerDir has a link to each layer, so that many of them have room in the one
	// page that a mount's options may take.
	lowerDir = "lower"
	// treesDir has the mount points of packages that have several layers.
	treesDir = "trees"
	// upperDir and workDir are what a run writes to its root, and the kernel's own
	// beside it.
	upperDir = borglet.UpperSubdir
	workDir  = "work"
	// namesDir has the files of /etc that cover an image's.
	namesDir = "names"
)

// mountPackages makes the packages of a run: its root, if one of them is that, and
// binds for all others. The mounts are in the shim's own mount name space, so that
// they go with it and its containers, whoever is killed.
func mountPackages(dir, root string, o *order) (binds []bind, err error) {
	l := &o.Launch
	var users *os.File
	if o.FirstID != 0 && len(l.Packages) > 0 {
		if users, err = userNamespace(o.FirstID); err != nil {
			return nil, err
		}
		defer users.Close()
	}
	for _, name := range []string{lowerDir, treesDir, upperDir, workDir} {
		// A run begins with what is in the image: what an earlier one wrote goes.
		if err := beneath.RemoveAll(filepath.Join(dir, name)); err != nil {
			return nil, fmt.Errorf("clear the packages of the last run: %w", err)
		}
	}
	for i := range l.Packages {
		p := &l.Packages[i]
		if p.Path == "/" {
			if err := mountImage(dir, root, i, p, o.FirstID, users); err != nil {
				return nil, fmt.Errorf("mount package %s as root: %w", p.Name, err)
			}
			continue
		}
		source := p.Layers[0]
		if len(p.Layers) > 1 {
			source = filepath.Join(dir, treesDir, strconv.Itoa(i))
			err := os.MkdirAll(source, 0o755)
			if err == nil {
				err = overlay(dir, source, i, p.Layers, "", unix.MS_RDONLY, users)
			}
			if err != nil {
				return nil, fmt.Errorf("mount package %s: %w", p.Name, err)
			}
		}
		// Of an overlay the layers have their owners already.
		binds = append(binds, bind{source: source, path: p.Path, owned: len(p.Layers) == 1})
	}
	return binds, nil
}

// mountImage mounts an image with a directory above it that takes what the run
// writes.
func mountImage(dir, root string, i int, p *borglet.LaunchPackage, firstID uint32, users *os.File) error {
	for _, name := range []string{upperDir, workDir} {
		if err := os.Mkdir(filepath.Join(dir, name), 0o755); err != nil {
			return err
		}
	}
	// What is written to the root counts with what is in /task.
	if err := diskquota.Share(filepath.Join(dir, taskDir), filepath.Join(dir, upperDir), filepath.Join(dir, workDir)); err != nil {
		return err
	}
	if err := os.Lchown(filepath.Join(dir, upperDir), int(firstID), int(firstID)); err != nil {
		return err
	}
	return overlay(dir, root, i, p.Layers, ",upperdir=../../"+upperDir+",workdir=../../"+workDir, 0, users)
}

// overlay mounts layers, the lowest first, at a path. The layers are named by
// links, or mounted with the owners that a user name space sees, beside which the
// process goes for that moment: of a shim nothing else looks at its working directory.
func overlay(dir, at string, i int, layers []string, upper string, flags uintptr, users *os.File) error {
	links := filepath.Join(dir, lowerDir, strconv.Itoa(i))
	if err := os.MkdirAll(links, 0o700); err != nil {
		return err
	}
	names := make([]string, len(layers))
	for n, layer := range layers {
		names[len(layers)-1-n] = strconv.Itoa(n)
		here := filepath.Join(links, strconv.Itoa(n))
		if users == nil {
			if err := os.Symlink(layer, here); err != nil {
				return err
			}
			continue
		}
		if err := os.Mkdir(here, 0o700); err != nil {
			return err
		}
		if err := mountMapped(layer, here, users); err != nil {
			return err
		}
	}
	if err := os.Chdir(links); err != nil {
		return err
	}
	options := "lowerdir=" + strings.Join(names, ":") + upper
	err := unix.Mount("overlay", at, "overlay", flags|unix.MS_NOSUID|unix.MS_NODEV, options)
	return errors.Join(err, os.Chdir("/"))
}
