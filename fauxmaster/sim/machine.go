package sim

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"

	"borg/borglet"
	"borg/proto/borgpb"
	"borg/proto/borgrpc"
)

// slotAttribute names the machine among its attributes, for jobs that are tied
// to one.
const slotAttribute = "slot"

// shelfAttribute is the same for two machines, for jobs that are limited by it.
const shelfAttribute = "shelf"

// machine is one machine: a disk that stays, a kernel that lives while the
// power is on, and a borglet that comes and goes.
type machine struct {
	w     *World
	i     int
	name  string
	rand  *rand.Rand
	clock clock
	up    bool
	boot  int
	// The borglet's process is there; life counts them.
	agent bool
	life  uint64

	disk   borgletDisk
	kernel kernel

	core   *borglet.Core
	master borglet.Master
	// What is to be done for each copy, in order; the first is under way.
	work map[borglet.ID][]borglet.Effect
	// Due time of the timer that is set; 0: none.
	timerNs int64
}

// borgletDisk is the borglet's directory. Every file in it is replaced whole
// and synced; a record is two of them.
type borgletDisk struct {
	fence  borglet.Fence
	specs  map[borglet.ID]*borgrpc.Desired
	intent map[borglet.ID]borglet.Record
}

func newMachine(w *World, i int) *machine {
	m := &machine{w: w, i: i, name: fmt.Sprintf("m%02d", i), rand: stream(w.cfg.Seed, fmt.Sprint("machine ", i))}
	m.clock = w.swarm.drawClock(m.rand)
	m.disk.specs, m.disk.intent = map[borglet.ID]*borgrpc.Desired{}, map[borglet.ID]borglet.Record{}
	m.kernel = kernel{m: m, procs: map[borglet.ID]*proc{}, exits: map[borglet.ID]exitFile{}}
	return m
}

func (w *World) machineNamed(name string) *machine {
	for _, m := range w.machines {
		if m.name == name {
			return m
		}
	}
	panic("there is no machine " + name)
}

func (m *machine) spec() *borgpb.MachineSpec {
	capacity := &borgpb.Resources{CpuMilli: m.w.swarm.machineMilli, MemBytes: 32 << 30, DiskBytes: 100 << 30, Ports: 100}
	if m.w.swarm.rich && m.i%2 == 0 {
		capacity.Devices = map[string]int64{deviceName: 2}
	}
	return &borgpb.MachineSpec{
		Addr:      m.name + ":7101",
		Capacity:  capacity,
		PortFirst: 20000, PortLast: 20099,
		Attributes: map[string]string{"arch": "amd64", slotAttribute: m.name, shelfAttribute: fmt.Sprint(m.i / 2)},
	}
}

// start switches the power on.
func (m *machine) start() {
	m.up = true
	m.boot++
	m.w.say("machine %s is on, boot %d", m.name, m.boot)
	m.startAgent()
}

// lose switches it off: all its processes are gone.
func (m *machine) lose() {
	if !m.up {
		return
	}
	m.w.say("machine %s is off", m.name)
	m.stopAgent()
	m.up = false
	clear(m.kernel.procs)
}

func (m *machine) now() borglet.Now {
	return borglet.Now{MonoNs: m.clock.monoNs(m.w.now), WallNs: m.clock.wallNs(m.w.now)}
}

// after does something if the same borglet still lives then.
func (m *machine) after(ns int64, do func()) {
	life := m.life
	m.w.after(m.clock.trueNs(ns), func() {
		if m.agent && m.life == life {
			do()
		}
	})
}

// startAgent starts a borglet over what an earlier one left.
func (m *machine) startAgent() {
	if !m.up || m.agent {
		return
	}
	m.agent = true
	m.life++
	m.w.say("borglet %s starts", m.name)
	m.core = borglet.NewCore(borglet.CoreConfig{
		Backoff: m.w.swarm.backoff(), Boot: fmt.Sprintf("boot-%d", m.boot), HoldNs: 10 * second,
	})
	m.master = borglet.Master{Fence: m.disk.fence, Dir: "/borglet"}
	m.work, m.timerNs = map[borglet.ID][]borglet.Effect{}, 0
	var found []borglet.Found
	for _, id := range sortedIDs(m.disk.specs, m.disk.intent) {
		r := m.disk.intent[id]
		r.ID, r.Desired = id, m.disk.specs[id]
		f := borglet.Found{Record: r}
		if r.Ended == 0 && r.Run != 0 && !r.RunEnded {
			f.Observed = m.kernel.recover(id, r.Run)
		}
		found = append(found, f)
	}
	if len(found) > 0 {
		m.w.mark("borglet took over copies")
	}
	m.step(borglet.Recovered{Copies: found})
}

func sortedIDs[A, B any](a map[borglet.ID]A, b map[borglet.ID]B) (ids []borglet.ID) {
	for id := range a {
		ids = append(ids, id)
	}
	for id := range b {
		if _, both := a[id]; !both {
			ids = append(ids, id)
		}
	}
	slices.SortFunc(ids, func(x, y borglet.ID) int {
		return cmp.Or(cmp.Compare(x.JobUID, y.JobUID), cmp.Compare(x.Index, y.Index), cmp.Compare(x.Attempt, y.Attempt))
	})
	return ids
}

// stopAgent kills the borglet at this moment; what it was writing may be there
// in part, and its tasks go on.
func (m *machine) stopAgent() {
	if !m.agent {
		return
	}
	m.w.say("borglet %s is killed", m.name)
	for _, id := range sortedIDs(m.work, map[borglet.ID]bool{}) {
		switch e := m.work[id][0].(type) {
		case borglet.Save:
			m.savePart(e.Record)
		case borglet.Start:
			m.savePart(e.Record)
		}
	}
	m.agent = false
}

func (m *machine) step(ev borglet.Event) { m.carryOut(m.core.Step(m.now(), ev)) }

func (m *machine) carryOut(effects []borglet.Effect) {
	for _, e := range effects {
		id := e.Copy()
		m.work[id] = append(m.work[id], e)
		if len(m.work[id]) == 1 {
			m.workOn(id)
		}
	}
	due, ok := m.core.NextNs()
	if !ok || m.timerNs == due {
		return
	}
	m.timerNs = due
	m.after(max(due-m.now().MonoNs, 0)+microsecond, func() {
		if m.timerNs == due {
			m.timerNs = 0
			m.step(borglet.Tick{})
		}
	})
}

// workOn does the first effect of a copy, which takes a while, and then the
// next.
func (m *machine) workOn(id borglet.ID) {
	m.after(between(m.rand, 50*microsecond, 3*millisecond), func() {
		e := m.work[id][0]
		ev := m.do(e)
		m.reaches(betweenSteps)
		if rest := m.work[id][1:]; len(rest) > 0 {
			m.work[id] = rest
			m.workOn(id)
		} else {
			delete(m.work, id)
		}
		if ev != nil {
			m.step(ev)
		}
	})
}

// do is one effect, and what is to be told of it.
func (m *machine) do(e borglet.Effect) borglet.Event {
	failed := borglet.Failed{ID: e.Copy()}
	var err error
	switch e := e.(type) {
	case borglet.Save:
		m.save(e.Record)
		if e.Record.Ended != 0 {
			return borglet.Saved{ID: e.Record.ID}
		}
	case borglet.Start:
		failed.Op, failed.Run = borglet.OpStart, e.Record.Run
		m.save(e.Record)
		if err = m.kernel.destroy(e.Record.ID); err == nil {
			err = m.kernel.start(e.Record)
		}
		if err == nil {
			return borglet.Observed{ID: e.Record.ID, Run: e.Record.Run, Kind: borglet.Starting}
		}
	case borglet.Update:
		return borglet.Updated{ID: e.Record.ID, Run: e.Record.Run}
	case borglet.Terminate:
		failed.Op, failed.Run = borglet.OpTerminate, e.Run
		m.w.truth.stops(m, e.ID)
		err = m.kernel.terminate(e.ID)
	case borglet.Kill:
		failed.Op, failed.Run = borglet.OpKill, e.Run
		m.w.truth.stops(m, e.ID)
		err = m.kernel.kill(e.ID)
	case borglet.Destroy:
		failed.Op, failed.Run = borglet.OpDestroy, e.Run
		err = m.kernel.destroy(e.ID)
	case borglet.Remove:
		failed.Op = borglet.OpRemove
		if err = m.kernel.destroy(e.ID); err == nil {
			delete(m.disk.specs, e.ID)
			delete(m.disk.intent, e.ID)
		}
	}
	if err == nil {
		return nil
	}
	failed.Text = err.Error()
	return failed
}

func (m *machine) save(r borglet.Record) {
	if r.Desired != nil {
		m.disk.specs[r.ID] = r.Desired
	}
	m.disk.intent[r.ID] = r
}

// savePart is a save that was cut short: nothing of it, one of its files, or
// all.
func (m *machine) savePart(r borglet.Record) {
	switch m.rand.IntN(3) {
	case 1:
		if r.Desired != nil {
			m.disk.specs[r.ID] = r.Desired
		}
		m.w.mark("borglet killed during a save")
	case 2:
		m.save(r)
	}
}

// savesEnd tells whether the end of a copy is about to be written down.
func (m *machine) savesEnd() bool {
	for _, todo := range m.work {
		if s, ok := todo[0].(borglet.Save); ok && s.Record.Ended != 0 {
			return true
		}
	}
	return false
}

// poll is a master's poll that has arrived.
func (m *machine) poll(req *borgrpc.PollRequest, done func(*borgrpc.PollResponse, error)) {
	if !m.agent {
		return
	}
	if req.GetFence().GetTerm() > m.disk.fence.Term {
		m.reaches(fenceNotKept)
	}
	m.after(between(m.rand, 50*microsecond, millisecond), func() {
		f := req.GetFence()
		m.w.say("replica %d polls %s, term %d index %d: %d wanted, %d to stop", req.GetReplica(), m.name, f.GetTerm(), f.GetIndex(), len(req.GetDesired()), len(req.GetStops()))
		resp, effects, err := m.master.Poll(m.core, m.now(), req, func(f borglet.Fence) error {
			m.disk.fence = f
			return nil
		})
		m.carryOut(effects)
		if m.savesEnd() {
			m.reaches(saidNotKept)
		}
		if resp != nil {
			resp.Spec = m.spec()
		}
		done(resp, err)
	})
}
