package sim

import (
	"fmt"
	"strconv"

	"borg/borglet"
	"borg/proto/borgpb"
)

// kernel runs the processes of one machine. They know nothing of borglets: one
// that dies leaves them running, and how they ended waits in a file.
type kernel struct {
	m     *machine
	procs map[borglet.ID]*proc
	exits map[borglet.ID]exitFile
	pids  int64
}

// proc is one run of a copy.
type proc struct {
	id        borglet.ID
	run       uint32
	pid       int64
	startedNs int64
	running   bool
	// Does not end by SIGTERM.
	deaf bool
}

type exitFile struct {
	run  uint32
	exit *borgpb.Exit
}

// behaviour is what the args of a simulated task say: it ends with code after
// so long; 0: never.
func behaviour(args []string) (lastsNs int64, code int32) {
	if len(args) < 3 {
		return 0, 0
	}
	ms, _ := strconv.ParseInt(args[1], 10, 64)
	c, _ := strconv.ParseInt(args[2], 10, 32)
	return ms * millisecond, int32(c)
}

// start begins a run: there is a shim at once and a process soon.
func (k *kernel) start(r borglet.Record) error {
	if k.procs[r.ID] != nil {
		return fmt.Errorf("copy %s runs already", r.ID)
	}
	k.pids++
	p := &proc{id: r.ID, run: r.Run, pid: k.pids, deaf: chance(k.m.rand, 100)}
	k.procs[r.ID] = p
	lasts, code := behaviour(r.Desired.GetSpec().GetArgs())
	k.m.w.after(between(k.m.rand, 5*millisecond, 80*millisecond), func() {
		if k.procs[p.id] != p {
			return
		}
		p.running, p.startedNs = true, k.m.clock.wallNs(k.m.w.now)
		k.m.w.say("%s: copy %s runs as pid %d, run %d", k.m.name, p.id, p.pid, p.run)
		k.m.w.truth.starts(k.m, r)
		k.tell(borglet.Observed{ID: p.id, Run: p.run, Kind: borglet.Running, Pid: p.pid, StartedWallNs: p.startedNs})
		if lasts > 0 {
			k.m.w.after(lasts, func() { k.end(p, &borgpb.Exit{Code: code}) })
		}
	})
	return nil
}

// end ends a process.
func (k *kernel) end(p *proc, exit *borgpb.Exit) {
	if k.procs[p.id] != p {
		return
	}
	delete(k.procs, p.id)
	exit.EndedWallNs = k.m.clock.wallNs(k.m.w.now)
	k.exits[p.id] = exitFile{p.run, exit}
	k.m.w.say("%s: copy %s ends, code %d signal %d", k.m.name, p.id, exit.Code, exit.Signal)
	k.tell(borglet.Observed{ID: p.id, Run: p.run, Kind: borglet.Exited, Exit: exit})
}

// tell tells the borglet what is observed, if there is one.
func (k *kernel) tell(o borglet.Observed) {
	if k.m.agent {
		k.m.after(between(k.m.rand, 10*microsecond, millisecond), func() { k.m.step(o) })
	}
}

func (k *kernel) terminate(id borglet.ID) error {
	p := k.procs[id]
	if p == nil {
		return fmt.Errorf("copy %s does not run", id)
	}
	if !p.deaf {
		k.m.w.after(between(k.m.rand, millisecond, 200*millisecond), func() { k.end(p, &borgpb.Exit{Signal: 15}) })
	}
	return nil
}

func (k *kernel) kill(id borglet.ID) error {
	p := k.procs[id]
	if p == nil {
		return fmt.Errorf("copy %s does not run", id)
	}
	k.m.w.after(between(k.m.rand, 100*microsecond, 5*millisecond), func() { k.end(p, &borgpb.Exit{Signal: 9}) })
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
	delete(k.exits, id)
	return nil
}
