//go:build linux && cgo

package container

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync/atomic"

	"github.com/opencontainers/runc/libcontainer"
	"github.com/sirupsen/logrus"
	"golang.org/x/sys/unix"

	"borg/borglet"
)

// containerBackend is the borglet's side of containers. It signals processes by their handles
// and reads cgroups as files, and uses libcontainer only to change limits and to destroy.
type containerBackend struct {
	cfg Config
	// User ids of copies; nil if copies have no user ids of their own.
	ids *idRanges
	// The ranges of ids that this borglet has claimed on the machine; nil without ids.
	claims *idClaims
	// Blocks ports that were not granted; nil if the machine cannot.
	wall   *wall
	meters *meters
	// Kills found by the last call, so that the kernel's log is read only for new ones. Used
	// by kills alone, which is not called concurrently.
	killed map[borglet.ID]oomKills
	// Processors of copies that have some alone; nil if the machine cannot.
	cpus    *processors
	weights *allocWeights
	// Whether the log says already that the processes of tasks cannot be bounded, and that
	// sysctls cannot be raised.
	unbound, unraised atomic.Bool
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
	if err := thawAll(cgroupParent(cfg.Name)); err != nil {
		return nil, err
	}
	b := &containerBackend{cfg: cfg, meters: newMeters()}
	b.weights = newAllocWeights(func(alloc string) paths { return cgroupPaths(allocPath(cgroupParent(cfg.Name), alloc)) })
	var err error
	if b.cpus, err = ownCores(cgroupParent(cfg.Name), cfg.ExclusiveCores); err != nil {
		cfg.Log.Warn("no task can have cores of its own", "machine", cfg.Name, "err", err)
	}
	b.lowerSysctls()
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

// prepare reserves for a new copy what it does not share: processors, user ids and ports.
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

// placeOn sets the processors on which the copy starts.
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

// bound limits the number of processes of all tasks together, and raises sysctls that tasks could
// use up. A machine that cannot do so runs the tasks nevertheless, and logs it once.
func (b *containerBackend) bound() {
	if err := boundProcesses(); err != nil && !b.unbound.Swap(true) {
		b.cfg.Log.Warn("tasks can take all processes of the machine", "machine", b.cfg.Name, "err", err)
	}
	memory, err := memTotalBytes()
	if err == nil {
		err = raiseSysctls("/proc/sys", memory)
	}
	if err != nil && !b.unraised.Swap(true) {
		b.cfg.Log.Warn("tasks can take all open files, asynchronous I/O contexts, pseudo terminals or compiled filters of the machine", "machine", b.cfg.Name, "err", err)
	}
}

// lowerSysctls lowers what one task would use to keep processors busy with interrupts off. It does
// so at the borglet's start alone: what is set after that stays.
func (b *containerBackend) lowerSysctls() {
	switch lowered, err := lowerEpollWatches("/proc/sys"); {
	case err != nil:
		b.cfg.Log.Warn("a task can hold up processors with epoll watches", "machine", b.cfg.Name, "err", err)
	case lowered:
		b.cfg.Log.Info("fs.epoll.max_user_watches is lowered for every user of the machine; a value that is set later stays", "machine", b.cfg.Name, "value", epollWatches)
	}
}

func (b *containerBackend) started(o *order) error {
	// The cgroup, with its bound, may have been removed with the last task before this one.
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

// orphan returns the first process of a container that an earlier borglet started, and whether
// the task's program runs. In a container that was only created it never will. What the init
// reports counts, because libcontainer updates its own state a moment later.
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

// listening reports whether the init handles signals. The kernel drops a signal to the first
// process of a pid name space that has no handler for it.
func (b *containerBackend) listening(dir string) bool {
	_, ready, _ := readStatus(dir)
	return ready
}

func (b *containerBackend) kill(id borglet.ID, p proc) error {
	if p.Pid == 0 {
		return nil
	}
	// When the first process dies the kernel kills all others of its pid name space.
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

// update changes the limits of a running container. It skips devices: the config has no rules
// for them here, and applying it would deny even /dev/null.
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
	return limitTCP(cgroupPaths(group.Path), l.Limits)
}
