//go:build linux && cgo

package container

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/opencontainers/cgroups"
	_ "github.com/opencontainers/cgroups/devices" // device rules of cgroups
	"github.com/opencontainers/cgroups/manager"
	"github.com/opencontainers/runc/libcontainer"
	"github.com/sirupsen/logrus"

	"borg/borglet"
	"borg/borglet/beneath"
	"borg/proto/borgpb"
)

// beginContainer creates a container. Its program starts when release of the result is called.
func beginContainer(dir string, o *order, stdout, stderr *os.File) (*begun, error) {
	logrus.SetLevel(logrus.WarnLevel)
	l := &o.Launch
	root := filepath.Join(dir, rootfsDir)
	binds, err := buildRoot(dir, root, o)
	if err != nil {
		return nil, err
	}
	if l.Alloc != "" {
		if err := makeAlloc(o.CgroupParent, l); err != nil {
			return nil, err
		}
	}
	if err := ownNetwork(dir, o); err != nil {
		return nil, err
	}
	if root, err = ownRoot(root, o, binds, stdout, stderr); err != nil {
		return nil, err
	}
	files, args, err := initFiles()
	if err != nil {
		return nil, err
	}
	for _, f := range files {
		binds = append(binds, bind{source: f.source, path: f.path})
	}
	if err := limitSelf(); err != nil {
		return nil, fmt.Errorf("start container: %w", err)
	}
	if o.FirstID != 0 {
		users, err := userNamespace(o.FirstID)
		if err != nil {
			return nil, err
		}
		// The container has joined it when it has started.
		defer users.Close()
		o.users = fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), users.Fd())
	}
	config := containerConfig(o, root, binds)
	if l.Image() != nil {
		if err := checkPlaces(root, config.Mounts); err != nil {
			return nil, err
		}
	}
	status, err := beneath.Open(dir, statusFile, os.O_WRONLY|os.O_CREATE|os.O_TRUNC|os.O_APPEND, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open the status file: %w", err)
	}
	defer status.Close()
	// Found before the start: libcontainer sends threads of this process into
	// the container's mount name space, and what /proc/self says of mounts is
	// what its first thread sees.
	group := cgroupPaths(cgroupPath(o.CgroupParent, l))
	c, err := libcontainer.Create(o.StateDir, l.ID.String(), config)
	if err != nil {
		return nil, fmt.Errorf("create container: %w", err)
	}
	p := &libcontainer.Process{
		// The init goes to the task's working directory: libcontainer would make
		// one that is missing.
		Args: slices.Concat(args, []string{l.Cwd}, l.Args), Env: append(l.Env, initVariable+"=1"), Cwd: "/",
		Stdout: stdout, Stderr: stderr, ExtraFiles: []*os.File{status}, Init: true,
	}
	if err := c.Start(p); err != nil {
		return nil, startError(l, err)
	}
	if err := limitTCP(group, l.Limits); err != nil {
		return nil, err
	}
	return watchContainer(dir, c, p, group)
}

// buildRoot makes a copy's root file system with its packages, and the binds that it has
// in it.
func buildRoot(dir, root string, o *order) ([]bind, error) {
	l := &o.Launch
	binds, err := buildRootfs(root, l)
	if err != nil {
		return nil, err
	}
	if o.FirstID != 0 {
		if err := giveTree(root, o.FirstID); err != nil {
			return nil, fmt.Errorf("make root file system: %w", err)
		}
	}
	packages, err := mountPackages(dir, root, o)
	if err != nil {
		return nil, err
	}
	binds = append(binds, packages...)
	if l.Image() != nil {
		names, err := buildNames(dir, root, l.Hostname)
		if err != nil {
			return nil, err
		}
		binds = append(binds, names...)
	}
	binds = append(binds, bind{source: filepath.Join(dir, taskDir), path: "/task", writable: true, owned: true})
	if l.Alloc != "" {
		binds = append(binds, bind{source: l.AllocDir, path: borglet.AllocPath, writable: true, owned: true})
		if err := makeAlloc(o.CgroupParent, l); err != nil {
			return nil, err
		}
	}
	if l.Papers != "" {
		binds = append(binds, bind{source: l.Papers, path: borglet.PapersPath, owned: true})
	}
	for _, m := range l.Mounts {
		binds = append(binds, bind{source: m.Source, path: m.Path, writable: m.Writable, owned: true})
	}
	return binds, nil
}

// ownRoot makes what the shim has prepared usable by root of the copy's user name space, and
// returns the path of the root file system.
func ownRoot(root string, o *order, binds []bind, outputs ...*os.File) (string, error) {
	if o.FirstID == 0 {
		return root, nil
	}
	if err := giveOutput(o.FirstID, outputs); err != nil {
		return "", err
	}
	if err := checkOwned(o.FirstID, binds); err != nil {
		return "", err
	}
	if !o.Cover {
		return root, nil
	}
	return coverRoot(root)
}

// giveOutput lets a copy write to its output, also when a program opens it again by the name
// /dev/stdout. It stays root's: its owner could take a lease on it, and with that keep the
// borglet from opening it.
func giveOutput(firstID uint32, outputs []*os.File) error {
	for _, f := range outputs {
		err := f.Chown(0, int(firstID))
		if err == nil {
			err = f.Chmod(0o660)
		}
		if err != nil {
			return fmt.Errorf("give the task its output: %w", err)
		}
	}
	return nil
}

// checkOwned finds the binds of file systems that cannot have other owners, such as
// overlays and those of other machines: they show as they are.
func checkOwned(firstID uint32, binds []bind) error {
	users, err := userNamespace(firstID)
	if err != nil {
		return err
	}
	defer users.Close()
	for i := range binds {
		binds[i].owned = binds[i].owned && canMap(binds[i].source, users)
	}
	return nil
}

// startError returns the error of a container that did not start, with an exit reason if the
// task's spec is at fault and not the machine.
func startError(l *borglet.Launch, err error) error {
	text := err.Error()
	if strings.Contains(text, "OOM-killed") {
		return inWay(borgpb.ExitReason_EXIT_REASON_LIMIT_TOO_SMALL, fmt.Errorf("memory limit of %d bytes: too little to start in", l.Limits.MemBytes))
	}
	for _, m := range l.Mounts {
		if strings.Contains(text, fmt.Sprintf("mounting %q", m.Source)) {
			return inWay(borgpb.ExitReason_EXIT_REASON_MOUNT, fmt.Errorf("mount of %s at %s: %w", m.Source, m.Path, err))
		}
	}
	return fmt.Errorf("start container: %w", err)
}

// watchContainer returns a created container, with the functions that start and await it.
func watchContainer(dir string, c *libcontainer.Container, p *libcontainer.Process, group paths) (*begun, error) {
	pid, err := p.Pid()
	if err != nil {
		return nil, fmt.Errorf("start container: %w", err)
	}
	id, err := identify(pid)
	if err != nil {
		return nil, fmt.Errorf("start container: its first process is gone: %w", err)
	}
	wait := func() borglet.ExitFile {
		state, waitErr := p.Wait()
		return endedContainer(dir, group, state, waitErr)
	}
	return &begun{proc: id, release: c.Exec, wait: wait}, nil
}

// makeAlloc makes the cgroup that the tasks of an alloc share.
func makeAlloc(parent string, l *borglet.Launch) error {
	r := limits(l.AllocLimits)
	r.SkipDevices = true
	m, err := manager.New(&cgroups.Cgroup{Path: allocPath(parent, l.Alloc), Resources: r})
	if err == nil {
		err = m.Apply(-1)
	}
	if err == nil {
		err = m.Set(r)
	}
	if err == nil {
		err = limitTCP(cgroupPaths(allocPath(parent, l.Alloc)), l.AllocLimits)
	}
	if err != nil {
		return fmt.Errorf("make the cgroup of alloc %s: %w", l.Alloc, err)
	}
	return nil
}
