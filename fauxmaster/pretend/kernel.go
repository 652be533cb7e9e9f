package pretend

import (
	"fmt"

	"borg/borglet"
	"borg/mutant"
	"borg/proto/borgpb"
)

// kernel runs the processes of one machine. They know nothing of borglets: one
// that dies leaves them running, and how they ended waits in a file.
type kernel struct {
	m     *Machine
	procs map[borglet.ID]*process
	exits map[borglet.ID]exitFile
	// groups are the cgroups that were made and not taken away.
	groups map[borglet.ID]*group
	pids   int64
	// How many of procs are running.
	running int
}

// process is one run of a copy.
type process struct {
	id        borglet.ID
	run       uint32
	pid       int64
	startedNs int64
	running   bool
	// Does not end by SIGTERM.
	deaf bool
}

// group is the cgroup of a copy, with what the runtime has written of its container.
type group struct {
	// Who made it was killed before that was written.
	halfMade bool
	// The kernel does not let it go yet.
	busy bool
}

type exitFile struct {
	run  uint32
	exit *borgpb.Exit
}

// Running lists the copies of which a process runs, in order.
func (m *Machine) Running() (ids []borglet.ID) {
	for _, id := range m.Begun() {
		if m.kernel.procs[id].running {
			ids = append(ids, id)
		}
	}
	return ids
}

// RunningCount is how many they are.
func (m *Machine) RunningCount() int { return m.kernel.running }

// Begun lists the copies of which a process runs or is about to, in order.
func (m *Machine) Begun() []borglet.ID { return sortedIDs(m.kernel.procs, map[borglet.ID]bool{}) }

// Pid is that of the process that runs of a copy; 0: none does.
func (m *Machine) Pid(id borglet.ID) int64 {
	if p := m.kernel.procs[id]; p != nil && p.running {
		return p.pid
	}
	return 0
}

// Left lists the copies whose cgroups are there without a process in them, in order.
func (m *Machine) Left() (ids []borglet.ID) {
	for _, id := range sortedIDs(m.kernel.groups, map[borglet.ID]bool{}) {
		if m.kernel.procs[id] == nil {
			ids = append(ids, id)
		}
	}
	return ids
}

// start begins a run: there is a shim and a cgroup at once, and a process soon.
func (k *kernel) start(r borglet.Record) error {
	if k.procs[r.ID] != nil {
		return fmt.Errorf("copy %s runs already", r.ID)
	}
	if k.groups[r.ID] != nil {
		return fmt.Errorf("there is a cgroup of copy %s already", r.ID)
	}
	k.pids++
	p := &process{id: r.ID, run: r.Run, pid: k.pids, deaf: chance(k.m.cfg.Rand, k.m.cfg.DeafPermille)}
	k.procs[r.ID], k.groups[r.ID] = p, &group{halfMade: k.mishap(halfMadePermille)}
	lasts, code := k.m.cfg.Lasts(r.Desired)
	k.m.cfg.Env.After(k.m.cfg.StartNs(k.m.cfg.Rand), func() {
		if k.procs[p.id] != p {
			return
		}
		if k.groups[p.id].halfMade {
			k.shimDies(p)
			return
		}
		p.running, p.startedNs = true, k.m.cfg.Env.Now().WallNs
		k.running++
		k.m.cfg.Env.Say("%s: copy %s runs as pid %d, run %d", k.m.cfg.Name, p.id, p.pid, p.run)
		k.m.cfg.Witness.Starts(r)
		k.tell(borglet.Observed{ID: p.id, Run: p.run, Kind: borglet.Running, Pid: p.pid, StartedWallNs: p.startedNs})
		if lasts > 0 {
			k.endAfter(p, lasts, code)
		}
	})
	return nil
}

// Of so many in a thousand runs, where there are mishaps, the shim is killed while it
// makes the container, and the cgroup is not let go for up to busyNs.
const (
	halfMadePermille, busyPermille = 30, 100
	busyNs                         = 20 * second
)

func (k *kernel) mishap(permille int) bool {
	return k.m.cfg.Mishaps != nil && chance(k.m.cfg.Mishaps, permille)
}

// shimDies ends a run that has not begun: nobody will let it go any more.
func (k *kernel) shimDies(p *process) {
	delete(k.procs, p.id)
	k.m.cfg.Env.Say("%s: the shim of copy %s is killed while it makes the container", k.m.cfg.Name, p.id)
	k.m.cfg.Witness.Mark(HalfMade)
	k.tell(borglet.Observed{ID: p.id, Run: p.run, Kind: borglet.NotStarted, Text: "its shim died before the task was started"})
}

// hold has a process run that was begun before.
func (k *kernel) hold(h Held) {
	p := &process{id: h.Record.ID, run: h.Record.Run, pid: h.Pid, startedNs: h.Record.StartedWallNs, running: true}
	k.procs[p.id], k.groups[p.id] = p, &group{}
	k.running++
	k.pids = max(k.pids, p.pid)
	if lasts, code := k.m.cfg.Lasts(h.Record.Desired); lasts > 0 {
		k.endAfter(p, max(p.startedNs+lasts-k.m.cfg.Env.Now().WallNs, 0), code)
	}
}

func (k *kernel) endAfter(p *process, ns int64, code int32) {
	k.m.cfg.Env.After(ns, func() { k.end(p, &borgpb.Exit{Code: code}) })
}

// end ends a process.
func (k *kernel) end(p *process, exit *borgpb.Exit) {
	if k.procs[p.id] != p {
		return
	}
	delete(k.procs, p.id)
	if p.running {
		k.running--
	}
	if k.mishap(busyPermille) {
		g := k.groups[p.id]
		g.busy = true
		k.m.cfg.Env.After(between(k.m.cfg.Mishaps, 100*millisecond, busyNs), func() { g.busy = false })
	}
	exit.EndedWallNs = k.m.cfg.Env.Now().WallNs
	k.exits[p.id] = exitFile{p.run, exit}
	k.m.cfg.Env.Say("%s: copy %s ends, code %d signal %d", k.m.cfg.Name, p.id, exit.Code, exit.Signal)
	k.tell(borglet.Observed{ID: p.id, Run: p.run, Kind: borglet.Exited, Exit: exit})
}

// tell tells the borglet what is observed, if there is one.
func (k *kernel) tell(o borglet.Observed) {
	if k.m.agent {
		k.m.after(between(k.m.cfg.Rand, 10*microsecond, millisecond), func() { k.m.step(o) })
	}
}

func (k *kernel) terminate(id borglet.ID) error {
	p := k.procs[id]
	if p == nil {
		return fmt.Errorf("copy %s does not run", id)
	}
	if !p.deaf {
		k.m.cfg.Env.After(k.m.cfg.StopNs(k.m.cfg.Rand), func() { k.end(p, &borgpb.Exit{Signal: 15}) })
	}
	return nil
}

func (k *kernel) kill(id borglet.ID) error {
	p := k.procs[id]
	if p == nil {
		return fmt.Errorf("copy %s does not run", id)
	}
	k.m.cfg.Env.After(between(k.m.cfg.Rand, 100*microsecond, 5*millisecond), func() { k.end(p, &borgpb.Exit{Signal: 9}) })
	return nil
}

// recover says how a run is that an earlier borglet began.
func (k *kernel) recover(id borglet.ID, run uint32) borglet.Observed {
	if p := k.procs[id]; p != nil && p.run == run {
		if p.running {
			return borglet.Observed{ID: id, Run: run, Kind: borglet.Running, Pid: p.pid, StartedWallNs: p.startedNs}
		}
		return borglet.Observed{ID: id, Run: run, Kind: borglet.Starting}
	}
	if e, ok := k.exits[id]; ok && e.run == run {
		return borglet.Observed{ID: id, Run: run, Kind: borglet.Exited, Exit: e.exit}
	}
	return borglet.Observed{ID: id, Run: run, Kind: borglet.Absent}
}

// destroy takes away what an ended run left.
func (k *kernel) destroy(id borglet.ID) error {
	if k.procs[id] != nil {
		return fmt.Errorf("copy %s still runs", id)
	}
	if g := k.groups[id]; g != nil {
		if g.busy {
			k.m.cfg.Witness.Mark(GroupBusy)
			return fmt.Errorf("the cgroup of copy %s is busy", id)
		}
		if g.halfMade && mutant.Planted(mutant.HalfMadeKept) {
			return nil
		}
		delete(k.groups, id)
	}
	delete(k.exits, id)
	return nil
}
