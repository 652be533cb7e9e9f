//go:build linux && cgo

package container

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"borg/borglet"
	"borg/proto/borgpb"
)

// bind is a directory or file of the machine that appears in a container.
type bind struct {
	source   string
	path     string
	writable bool
	// owned: what is root's there is the task's own, as if it were in the task's
	// user name space. Without one it is in any case.
	owned bool
}

// buildRootfs makes a copy's root file system: a directory of its own with
// mount points and links, and the binds that fill it. Nothing is ever made in
// the directories that it is made of.
func buildRootfs(root string, l *borglet.Launch) ([]bind, error) {
	if err := os.RemoveAll(root); err != nil {
		return nil, fmt.Errorf("clear root file system: %w", err)
	}
	if err := os.MkdirAll(root, 0o755); err != nil {
		return nil, fmt.Errorf("make root file system: %w", err)
	}
	if l.Image() != nil {
		// What is missing for mounts is made in the run's own version of the image.
		return nil, nil
	}
	for _, name := range ownTop {
		if name == "alloc" && l.Alloc == "" {
			continue
		}
		if err := os.Mkdir(filepath.Join(root, name), 0o755); err != nil {
			return nil, fmt.Errorf("make root file system: %w", err)
		}
	}
	if l.Rootfs != "" {
		return mirror(root, l.Rootfs, nil)
	}
	binds, err := mirror(root, "/", baseTop)
	if err != nil {
		return nil, err
	}
	etc, err := buildEtc(root, l.Hostname)
	return append(binds, etc...), err
}

// mirror makes the top-level names of from appear in root: links as links, all
// else read-only. With only given, no other names.
func mirror(root, from string, only []string) ([]bind, error) {
	entries, err := os.ReadDir(from)
	if err != nil {
		return nil, inWay(borgpb.ExitReason_EXIT_REASON_MOUNT, fmt.Errorf("read rootfs: %w", err))
	}
	var binds []bind
	for _, e := range entries {
		name := e.Name()
		if slices.Contains(ownTop, name) || (only != nil && !slices.Contains(only, name)) {
			continue
		}
		source, path := filepath.Join(from, name), filepath.Join(root, name)
		switch {
		case e.Type()&fs.ModeSymlink != 0:
			target, err := os.Readlink(source)
			if err == nil {
				err = os.Symlink(target, path)
			}
			if err != nil {
				return nil, fmt.Errorf("make root file system: %w", err)
			}
		case e.IsDir():
			if err := os.Mkdir(path, 0o755); err != nil {
				return nil, fmt.Errorf("make root file system: %w", err)
			}
			binds = append(binds, bind{source: source, path: "/" + name})
		case e.Type().IsRegular():
			if err := os.WriteFile(path, nil, 0o644); err != nil {
				return nil, fmt.Errorf("make root file system: %w", err)
			}
			binds = append(binds, bind{source: source, path: "/" + name})
		}
	}
	return binds, nil
}

// buildEtc makes a minimal /etc.
func buildEtc(root, hostname string) ([]bind, error) {
	etc := filepath.Join(root, "etc")
	if err := os.Mkdir(etc, 0o755); err != nil {
		return nil, fmt.Errorf("make /etc: %w", err)
	}
	files := map[string]string{
		"passwd":        "root:x:0:0:root:/task:/bin/sh\nnobody:x:65534:65534:nobody:/:/usr/sbin/nologin\n",
		"group":         "root:x:0:\nnogroup:x:65534:\n",
		"nsswitch.conf": "passwd: files\ngroup: files\nhosts: files dns\n",
	}
	maps.Copy(files, nameFiles(hostname))
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(etc, name), []byte(text), 0o644); err != nil {
			return nil, fmt.Errorf("make /etc: %w", err)
		}
	}
	var binds []bind
	for _, name := range etcShared {
		source, path := filepath.Join("/etc", name), filepath.Join(etc, name)
		info, err := os.Lstat(source)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("make /etc: %w", err)
		}
		switch {
		case info.Mode()&fs.ModeSymlink != 0:
			target, err := os.Readlink(source)
			if err == nil {
				err = os.Symlink(target, path)
			}
			if err != nil {
				return nil, fmt.Errorf("make /etc: %w", err)
			}
		case info.IsDir():
			if err := os.Mkdir(path, 0o755); err != nil {
				return nil, fmt.Errorf("make /etc: %w", err)
			}
			// ssl/private and its like are readable by the machine's root, who is
			// not the task's: without capabilities it still owns what root owns.
			binds = append(binds, shareDir(source, "/etc/"+name, path)...)
		case info.Mode().IsRegular():
			text, err := os.ReadFile(source)
			if err == nil {
				err = os.WriteFile(path, text, 0o644)
			}
			if err != nil {
				return nil, fmt.Errorf("make /etc: %w", err)
			}
		}
	}
	return binds, nil
}

// buildNames makes the files of /etc that say where the task runs: those of an
// image were made elsewhere. The image's own version is covered.
func buildNames(dir, root, hostname string) ([]bind, error) {
	at := filepath.Join(dir, namesDir)
	if err := os.RemoveAll(at); err != nil {
		return nil, fmt.Errorf("make /etc: %w", err)
	}
	if err := os.Mkdir(at, 0o755); err != nil {
		return nil, fmt.Errorf("make /etc: %w", err)
	}
	var binds []bind
	for name, text := range nameFiles(hostname) {
		if err := os.WriteFile(filepath.Join(at, name), []byte(text), 0o644); err != nil {
			return nil, fmt.Errorf("make /etc: %w", err)
		}
		// An image may have a link in its place, to where nothing is.
		if info, err := os.Lstat(filepath.Join(root, "etc")); err == nil && !info.IsDir() {
			continue
		}
		if info, err := os.Lstat(filepath.Join(root, "etc", name)); err == nil && info.Mode()&fs.ModeSymlink != 0 {
			if err := os.Remove(filepath.Join(root, "etc", name)); err != nil {
				return nil, fmt.Errorf("make /etc: %w", err)
			}
		}
		binds = append(binds, bind{source: filepath.Join(at, name), path: "/etc/" + name})
	}
	slices.SortFunc(binds, func(a, b bind) int { return strings.Compare(a.path, b.path) })
	return binds, nil
}

// nameFiles are the host's name, and its resolver and known hosts, which are right
// for the task: it shares the machine's network.
func nameFiles(hostname string) map[string]string {
	files := map[string]string{
		"hostname": hostname + "\n",
		"hosts":    "127.0.0.1 localhost " + hostname + "\n::1 localhost ip6-localhost ip6-loopback\n",
	}
	if text, err := os.ReadFile("/etc/hosts"); err == nil {
		files["hosts"] = strings.TrimRight(string(text), "\n") + "\n127.0.0.1 " + hostname + "\n"
	}
	if text, err := os.ReadFile("/etc/resolv.conf"); err == nil {
		files["resolv.conf"] = string(text)
	}
	return files
}

// shareDir shares a directory of /etc, without its parts that others may not
// read.
func shareDir(source, inside, path string) []bind {
	entries, err := os.ReadDir(source)
	if err != nil {
		return nil
	}
	private := slices.ContainsFunc(entries, func(e fs.DirEntry) bool {
		info, err := e.Info()
		return err != nil || (info.Mode()&fs.ModeSymlink == 0 && info.Mode().Perm()&0o004 == 0)
	})
	if !private {
		return []bind{{source: source, path: inside}}
	}
	var binds []bind
	for _, e := range entries {
		info, err := e.Info()
		if err != nil || (!info.IsDir() && !info.Mode().IsRegular()) || info.Mode().Perm()&0o004 == 0 {
			continue
		}
		target := filepath.Join(path, e.Name())
		if info.IsDir() {
			err = os.Mkdir(target, 0o755)
		} else {
			err = os.WriteFile(target, nil, 0o644)
		}
		if err == nil {
			binds = append(binds, bind{source: filepath.Join(source, e.Name()), path: inside + "/" + e.Name()})
		}
	}
	return binds
}
