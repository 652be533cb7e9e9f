//go:build linux && cgo

package container

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/opencontainers/cgroups"
	_ "github.com/opencontainers/cgroups/devices" // device rules of cgroups
	"github.com/opencontainers/cgroups/manager"
	"github.com/opencontainers/runc/libcontainer"
	"github.com/sirupsen/logrus"
	"golang.org/x/sys/unix"

	"borg/borglet"
	"borg/borglet/beneath"
	"borg/mutant"
	"borg/proto/borgpb"
)

// beginContainer makes a container whose program waits to be let go.
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

// ownRoot makes what the shim has prepared usable by the root of the copy's user
// name space, and returns where its root file system is seen.
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

// startError tells what lies in the task from what lies in the machine.
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
	if err != nil {
		return fmt.Errorf("make the cgroup of alloc %s: %w", l.Alloc, err)
	}
	return nil
}

// containerBackend is the borglet's side of containers. It signals processes
// by their handles and reads cgroups as files; libcontainer is asked only to
// change limits and to take away.
type containerBackend struct {
	cfg Config
	// ids are nil where copies have no user ids of their own.
	ids *idRanges
	// claims are of the ids that are this borglet's on the machine; nil without ids.
	claims *idClaims
	// wall is nil where ports cannot be closed.
	wall   *wall
	meters *meters
	// killed remembers what was found, so that the kernel's log is read only for news. Only
	// kills uses it, one call at a time.
	killed map[borglet.ID]oomKills
	// cpus is nil where no copy can have processors alone.
	cpus    *processors
	weights *allocWeights
	// unbound: it was told that the processes of tasks cannot be bounded.
	unbound atomic.Bool
}

func newContainerBackend(cfg Config) (backend, error) {
	if os.Geteuid() != 0 {
		return nil, errors.New("containers need root; start the borglet as root, or say --runtime process")
	}
	if err := cgroupsUsable(); err != nil {
		return nil, err
	}
	if err := os.MkdirAll(stateDir(cfg), 0o700); err != nil {
		return nil, fmt.Errorf("make run-time directory: %w", err)
	}
	logrus.SetLevel(logrus.WarnLevel)
	if err := letAllGo(cgroupParent(cfg.Name)); err != nil {
		return nil, err
	}
	b := &containerBackend{cfg: cfg, meters: newMeters()}
	b.weights = newAllocWeights(func(alloc string) paths { return cgroupPaths(allocPath(cgroupParent(cfg.Name), alloc)) })
	var err error
	if b.cpus, err = ownCores(cgroupParent(cfg.Name), cfg.ExclusiveCores); err != nil {
		cfg.Log.Warn("no task can have cores of its own", "machine", cfg.Name, "err", err)
	}
	ids := cfg.TaskIDs
	if ids == [2]uint32{} {
		ids = DefaultTaskIDs
	}
	dirs := append([]string{filepath.Dir(borglet.PapersDir(cfg.RunDir))}, cfg.Private...)
	if err := ownUsers(ids[0], dirs); err != nil {
		cfg.Log.Warn("tasks have no user ids of their own: root in them is the machine's root without capabilities", "machine", cfg.Name, "err", err)
		return b, nil
	}
	if shared, err := sharedCounts(ids[0]); err != nil || shared {
		cfg.Log.Warn("what the kernel counts by user, such as instances of inotify, tasks share with root: let everybody execute the borglet's program (chmod o+x)", "machine", cfg.Name, "err", err)
	}
	claims, err := newIDClaims(idClaimsDir, stateDir(cfg))
	if err != nil {
		return nil, err
	}
	own, err := claims.own()
	if err != nil {
		return nil, err
	}
	b.ids, b.claims = newIDRanges(ids, claims.claim), claims
	if err := b.ids.begin(own); err != nil {
		return nil, err
	}
	w, err := newWall(cfg.Name, b.ids.users())
	if err != nil {
		cfg.Log.Warn("ports that tasks use without having been granted them are told and not blocked", "machine", cfg.Name, "err", err)
		return b, nil
	}
	b.wall = w
	return b, nil
}

// prepare gives the copy what is its alone on the machine.
func (b *containerBackend) prepare(o *order) (err error) {
	if err := b.placeOn(o); err != nil {
		return err
	}
	b.bound()
	b.weights.join(&o.Launch)
	if b.ids == nil || o.Launch.MachineIDs {
		return nil
	}
	if o.FirstID, err = b.ids.take(o.Launch.ID); err != nil {
		return err
	}
	o.Cover = !reachable(o.Launch.Dir)
	// In a network of its own all ports are the copy's.
	if b.wall == nil || o.Launch.Network != "" {
		return nil
	}
	b.wall.cover(b.ids.users())
	return b.wall.grant(o.Launch.ID, o.FirstID, o.Launch.Ports)
}

// remember is prepare for a run of an earlier borglet.
func (b *containerBackend) remember(o *order) {
	b.weights.join(&o.Launch)
	if b.cpus != nil && len(o.CPUs) > 0 {
		b.cpus.keep(o.Launch.ID, o.CPUs)
	}
	if b.ids != nil && o.FirstID != 0 {
		if err := b.ids.keep(o.Launch.ID, o.FirstID); err != nil {
			b.cfg.Log.Warn("user ids of a task are not its own", "machine", b.cfg.Name, "err", err)
		}
		if b.wall != nil && o.Launch.Network == "" {
			b.wall.cover(b.ids.users())
			b.wall.remember(o.Launch.ID, o.FirstID, o.Launch.Ports)
		}
	}
}

// placeOn says on which processors the copy begins.
func (b *containerBackend) placeOn(o *order) (err error) {
	switch {
	case b.cpus != nil:
		o.CPUs, o.Cpuset, o.cpusetChanges, err = b.cpus.take(o.Launch.ID, o.Launch.OwnCPUs)
		return err
	case len(o.Launch.OwnCPUs) > 0:
		return errors.New("no task can have cores of its own here any more")
	}
	return nil
}

func (b *containerBackend) settleShared() error {
	err := b.weights.settle()
	if b.cpus == nil {
		return err
	}
	return errors.Join(err, b.cpus.settle())
}

// bound bounds the processes of all tasks. A machine where that cannot be runs them
// nevertheless; the log says so once.
func (b *containerBackend) bound() {
	if err := boundProcesses(); err != nil && !b.unbound.Swap(true) {
		b.cfg.Log.Warn("tasks can take all processes of the machine", "machine", b.cfg.Name, "err", err)
	}
}

func (b *containerBackend) started(o *order) error {
	// The end of the last other task may have taken the cgroup with its bound away.
	b.bound()
	err := b.weights.weigh(o.Launch.ID)
	if b.cpus == nil {
		return err
	}
	return errors.Join(err, b.cpus.started(o.cpusetChanges))
}

func (b *containerBackend) block(found map[borglet.ID][]borglet.Listener) error {
	if b.wall == nil {
		return nil
	}
	return b.wall.close(found)
}

func (b *containerBackend) capabilities() borglet.Capabilities {
	caps := borglet.Capabilities{
		Runtime: kindContainer, Cgroup: cgroupVersion(), Seccomp: filterName(), Userns: "none", Ports: "told", Limits: true, OwnFiles: true,
	}
	if b.ids != nil {
		caps.Userns = "own"
	}
	if b.wall != nil {
		caps.Ports = "blocked"
	}
	if b.cpus != nil {
		caps.Cores = b.cpus.cores
	}
	return caps
}

func (b *containerBackend) load(id borglet.ID) (*libcontainer.Container, error) {
	return libcontainer.Load(stateDir(b.cfg), id.String())
}

// orphan finds a container's first process. One that is only created waits
// before the task's program; nobody will let it go any more. That the init has
// said it is ready counts for more than what libcontainer thinks: its mark of a
// container that waits is taken away a moment after it no longer does.
func (b *containerBackend) orphan(id borglet.ID, dir string) (proc, bool) {
	c, err := b.load(id)
	if err != nil {
		return proc{}, false
	}
	state, err := c.State()
	if err != nil {
		return proc{}, false
	}
	p := proc{Pid: state.InitProcessPid, StartTicks: state.InitProcessStartTime}
	if !p.alive() {
		return proc{}, false
	}
	status, err := c.Status()
	return p, b.listening(dir) || (err == nil && status != libcontainer.Created)
}

// listening: the init takes signals. Before it does, they would be lost: the
// kernel keeps them from a first process that has not asked for them.
func (b *containerBackend) listening(dir string) bool {
	_, ready, _ := readStatus(dir)
	return ready
}

func (b *containerBackend) kill(id borglet.ID, p proc) error {
	if p.Pid == 0 {
		return nil
	}
	// With the first process the kernel ends all of its pid name space.
	return p.signal(unix.SIGKILL)
}

func (b *containerBackend) settle(id borglet.ID, _ proc) oomKills {
	path, ok := b.find(id)
	if !ok {
		return oomKills{}
	}
	return cgroupPaths(path).kills()
}

// find returns a copy's cgroup path.
func (b *containerBackend) find(id borglet.ID) (string, bool) {
	c, err := b.load(id)
	if err != nil {
		return "", false
	}
	return c.Config().Cgroups.Path, true
}

// update changes limits in place. Devices are left as they are: a change
// without their rules would take even /dev/null away.
func (b *containerBackend) update(l *borglet.Launch) error {
	c, err := b.load(l.ID)
	if err != nil {
		return fmt.Errorf("find container: %w", err)
	}
	config := c.Config()
	group := *config.Cgroups
	r := *group.Resources
	want := limits(l.Limits)
	if l.Limits.MemBytes == 0 {
		want.Memory, want.MemorySwap = -1, -1
	}
	r.CpuShares, r.CpuWeight, r.CpuPeriod, r.CpuQuota = want.CpuShares, want.CpuWeight, want.CpuPeriod, want.CpuQuota
	r.Memory, r.MemorySwap, r.MemoryReservation = want.Memory, want.MemorySwap, want.MemoryReservation
	if r.BlkioWeight != 0 {
		r.BlkioWeight = resources(l.Limits).BlkioWeight
	}
	r.MemoryCheckBeforeUpdate = true
	if r.CpusetCpus = ""; b.cpus != nil {
		r.CpusetCpus = b.cpus.setFor(l.ID)
	}
	r.SkipDevices = true
	group.Resources = &r
	config.Cgroups = &group
	if l.Alloc != "" {
		b.weights.join(l)
		if err := makeAlloc(cgroupParent(b.cfg.Name), l); err != nil {
			return err
		}
		if err := b.weights.weigh(l.ID); err != nil {
			return err
		}
	}
	if err := c.Set(config); err != nil {
		return fmt.Errorf("change limits: %w", err)
	}
	return nil
}

func (b *containerBackend) stats(runs map[borglet.ID]proc) map[borglet.ID]borglet.Stats {
	stats, err := b.meters.sample(runs)
	if err != nil {
		b.cfg.Log.Warn("usage cannot be measured", "machine", b.cfg.Name, "err", err)
	}
	return stats
}

func (b *containerBackend) allocStats(allocs []string) map[string]borglet.Stats {
	stats, err := b.meters.sampleAllocs(cgroupParent(b.cfg.Name), allocs)
	if err != nil {
		b.cfg.Log.Warn("the usage of allocs cannot be measured", "machine", b.cfg.Name, "err", err)
	}
	return stats
}

func (b *containerBackend) kills(runs map[borglet.ID]proc) map[borglet.ID]borglet.Kills {
	list, err := hierarchies()
	if err != nil {
		return nil
	}
	found := make(map[borglet.ID]oomKills)
	told := make(map[borglet.ID]borglet.Kills)
	for id, run := range runs {
		group, err := pathsOf(list, run.Pid)
		if err != nil {
			continue // it has just ended
		}
		n := group.oomKills()
		if n == 0 {
			continue
		}
		k := b.killed[id]
		if k.count == 0 || k.count > n {
			k = group.kills()
		}
		k.count = n
		found[id], told[id] = k, borglet.Kills{Count: n, Process: k.process, Bytes: k.bytes}
	}
	b.killed = found
	return told
}

func (b *containerBackend) cgroups(runs map[borglet.ID]proc) map[borglet.ID]paths {
	list, err := hierarchies()
	if err != nil {
		return nil
	}
	found := make(map[borglet.ID]paths, len(runs))
	for id, run := range runs {
		if group, err := pathsOf(list, run.Pid); err == nil { // otherwise it has just ended
			found[id] = group
		}
	}
	return found
}

func (b *containerBackend) members(runs map[borglet.ID]proc) (map[borglet.ID][]int, error) {
	list, err := hierarchies()
	if err != nil {
		return nil, err
	}
	found := make(map[borglet.ID][]int, len(runs))
	for id, run := range runs {
		if group, err := pathsOf(list, run.Pid); err == nil { // otherwise it has just ended
			found[id] = group.pids()
		}
	}
	return found, nil
}

// destroy takes a container away, whatever is left of it: its processes, its
// cgroup, libcontainer's state, and the mount points.
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
		// Its maker was killed before it wrote the state. The cgroup, if there
		// is one, is where it would have been.
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
