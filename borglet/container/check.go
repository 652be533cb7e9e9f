package container

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"borg/borglet"
	"borg/proto/borgpb"
)

// check refuses what may not or cannot be started here, before anything is.
func (r *Runtime) check(l *borglet.Launch) error {
	own := r.Capabilities().OwnFiles
	if l.Network != "" && !own {
		return errors.New("network own: this machine runs tasks as plain processes, in its own network; add the constraint network=own to the job")
	}
	for i := range l.Packages {
		if err := checkPackage(l, i, own); err != nil {
			return inWay(borgpb.ExitReason_EXIT_REASON_IMAGE, err)
		}
	}
	return inWay(borgpb.ExitReason_EXIT_REASON_MOUNT, r.checkMounts(l, own))
}

// checkMounts is check for the root file system and what is mounted in it.
func (r *Runtime) checkMounts(l *borglet.Launch, own bool) error {
	if l.Rootfs != "" {
		if !own {
			return fmt.Errorf("rootfs %s: this machine runs tasks as plain processes, without a file system of their own; add the constraint runtime=container to the job", l.Rootfs)
		}
		if err := r.visible("rootfs", l.Rootfs); err != nil {
			return err
		}
		if info, err := os.Stat(l.Rootfs); err != nil || !info.IsDir() {
			return fmt.Errorf("rootfs %s: there is no such directory on machine %s", l.Rootfs, r.cfg.Name)
		}
	}
	for i, m := range l.Mounts {
		if !own {
			// A plain process is told where its volume is.
			if m.Volume != "" || filepath.Clean(m.Source) == filepath.Clean(m.Path) {
				continue
			}
			return fmt.Errorf("mount of %s at %s: this machine runs tasks as plain processes, without a file system of their own; add the constraint runtime=container to the job", m.Source, m.Path)
		}
		if err := r.checkMount(m); err != nil {
			return err
		}
		if p := inPackage(l, m.Path); p != nil {
			return fmt.Errorf("mount of %s at %s: %s is package %s, in which nothing is made; choose a path outside of it", m.Source, m.Path, p.Path, p.Name)
		}
		if err := checkMountPoint(l, i); err != nil {
			return err
		}
	}
	return nil
}

func (r *Runtime) checkMount(m borglet.LaunchMount) error {
	if !filepath.IsAbs(m.Path) || filepath.Clean(m.Path) == "/" {
		return fmt.Errorf("mount of %s at %q: the path in the task must be absolute and below /", m.Source, m.Path)
	}
	if ours := reserved(m.Path); ours != "" {
		return fmt.Errorf("mount of %s at %s: nothing may be mounted in %s", m.Source, m.Path, ours)
	}
	if m.Volume != "" {
		if at := filepath.Clean(m.Path); at == "/task" || at == borglet.AllocPath {
			return fmt.Errorf("volume %s at %s: what is there belongs to the task; choose a path such as /data", m.Volume, m.Path)
		}
		return nil
	}
	if err := r.visible("mount of", m.Source); err != nil {
		return err
	}
	if _, err := os.Stat(m.Source); err != nil {
		return fmt.Errorf("mount of %s: there is no such file or directory on machine %s", m.Source, r.cfg.Name)
	}
	if !m.Writable {
		return nil
	}
	real, err := filepath.EvalSymlinks(m.Source)
	if err != nil {
		return fmt.Errorf("mount of %s: %w", m.Source, err)
	}
	for _, dir := range r.cfg.Writable {
		if within(real, dir) {
			return nil
		}
	}
	return fmt.Errorf("mount of %s, writable: machine %s allows that below %s only; mount it read-only, or start its borglet with --writable-mounts %s",
		m.Source, r.cfg.Name, orNothing(r.cfg.Writable), m.Source)
}

// reserved returns the directory of ours that a path is in; empty: in none.
func reserved(path string) string {
	for _, ours := range []string{"/proc", "/sys", "/dev", "/.borg", borglet.PapersPath} {
		if within(path, ours) {
			return ours
		}
	}
	return ""
}

// checkPackage refuses a package that cannot be seen where it is wanted.
func checkPackage(l *borglet.Launch, i int, own bool) error {
	p := &l.Packages[i]
	at := fmt.Sprintf("package %s at %s", p.Name, p.Path)
	switch {
	case !own:
		return fmt.Errorf("%s: this machine runs tasks as plain processes, without a file system of their own; add the constraint runtime=container to the job", at)
	case len(p.Layers) == 0:
		return fmt.Errorf("%s: this machine has no packages", at)
	case !filepath.IsAbs(p.Path):
		return fmt.Errorf("%s: the path in the task must be absolute", at)
	case p.Path == "/" && l.Rootfs != "":
		return fmt.Errorf("%s: the task has the root file system %s already; leave one of both out", at, l.Rootfs)
	case p.Path == "/task" || p.Path == borglet.AllocPath:
		return fmt.Errorf("%s: what is there belongs to the task; choose a path such as /opt/%s", at, p.Name)
	}
	if ours := reserved(p.Path); ours != "" {
		return fmt.Errorf("%s: nothing may be mounted in %s", at, ours)
	}
	for n := range l.Packages {
		other := &l.Packages[n]
		switch {
		case n == i || other.Path == "/":
		case other.Path == p.Path:
			return fmt.Errorf("%s: package %s is there too", at, other.Name)
		case within(p.Path, other.Path):
			return fmt.Errorf("%s: %s is package %s, in which nothing is made; choose a path outside of it", at, other.Path, other.Name)
		}
	}
	if p.Path == "/" {
		return nil
	}
	// A package is mounted as a directory of the machine would be.
	alone := *l
	alone.Mounts = []borglet.LaunchMount{{Source: p.Layers[0], Path: p.Path}}
	return checkMountPoint(&alone, 0)
}

// inPackage returns the package around a path, but for the task's root.
func inPackage(l *borglet.Launch, path string) *borglet.LaunchPackage {
	for i := range l.Packages {
		if p := &l.Packages[i]; p.Path != "/" && within(path, p.Path) {
			return p
		}
	}
	return nil
}

// visible refuses directories that would let a task reach the borglet, other
// tasks, or the kernel's own.
func (r *Runtime) visible(what, source string) error {
	if !filepath.IsAbs(source) {
		return fmt.Errorf("%s %q: the path on the machine must be absolute", what, source)
	}
	real, err := filepath.EvalSymlinks(source)
	if err != nil {
		// That it is not there is said by who asks next.
		real = filepath.Clean(source)
	}
	for _, dir := range append([]string{"/proc", "/sys", "/dev", "/run"}, r.cfg.Private...) {
		if within(real, dir) || within(dir, real) {
			return fmt.Errorf("%s %s: it holds %s, which no task may see", what, source, dir)
		}
	}
	return nil
}

func within(path, dir string) bool {
	path, dir = filepath.Clean(path), filepath.Clean(dir)
	return path == dir || dir == "/" || strings.HasPrefix(path, dir+"/")
}

func orNothing(dirs []string) string {
	if len(dirs) == 0 {
		return "(no directory)"
	}
	return strings.Join(dirs, ", ")
}

// notFound says why a program could not be started, for people. It reads the
// program's name from launch.json.
func notFound(dir string, reason error) string {
	o, err := readOrder(dir)
	if err != nil || len(o.Launch.Args) == 0 {
		return "start: " + reason.Error()
	}
	return fmt.Sprintf("start %q: %v; args[0] must be a program in the task's file system (%s, /task, mounts)", o.Launch.Args[0], reason, fileSystem(&o.Launch))
}

// noInterpreter says the same of what a program names as its interpreter or loader.
func noInterpreter(dir string, reason error) string {
	o, err := readOrder(dir)
	if err != nil || len(o.Launch.Args) == 0 {
		return "start: the interpreter of the program: " + reason.Error()
	}
	return fmt.Sprintf("start %q: it is there, and the interpreter or loader that it names is not: %v; put that into the task's file system (%s), or link the program statically",
		o.Launch.Args[0], reason, fileSystem(&o.Launch))
}

// noDirectory says the same of a working directory.
func noDirectory(dir string, reason error) string {
	o, err := readOrder(dir)
	if err != nil {
		return "working directory: " + reason.Error()
	}
	return fmt.Sprintf("working directory %s: %v; it must be in the task's file system (%s, /task, mounts)", o.Launch.Cwd, reason, fileSystem(&o.Launch))
}

func fileSystem(l *borglet.Launch) string {
	if p := l.Image(); p != nil {
		return "package " + p.Name
	}
	if l.Rootfs != "" {
		return "rootfs " + l.Rootfs
	}
	return "the machine's /usr"
}
