package pretend

import (
	"cmp"
	"fmt"
	"hash/crc32"
	"maps"
	"math/rand/v2"
	"slices"

	"borg/borglet"
	"borg/proto/borgrpc"
)

// Times are nanoseconds.
const (
	microsecond = int64(1e3)
	millisecond = int64(1e6)
	second      = int64(1e9)
)

// Env is what a machine lives in.
type Env interface {
	// Now is the machine's clocks.
	Now() borglet.Now
	// TrueNs is how long the machine's clock takes for ns.
	TrueNs(ns int64) int64
	// After does something later, in true time.
	After(ns int64, do func())
	// Say tells whoever traces what happens.
	Say(format string, args ...any)
}

// Witness hears what happens on a machine, at the moment.
type Witness interface {
	// Starts: the process of a run begins to run.
	Starts(r borglet.Record)
	// Stops: a run is about to be told to stop, or killed.
	Stops(id borglet.ID)
	// Reaches: it has come to one of the points. The witness may kill the
	// borglet there, a little later.
	Reaches(point string)
	// Mark: something rare has happened.
	Mark(what string)
	// Changed: what a poll would be answered may have changed by itself.
	Changed()
	// Deletes: a volume is about to be deleted.
	Deletes(id borglet.VolumeID)
}

// Points at which a borglet is vulnerable.
const (
	FenceNotKept = "a borglet has a newer fence and has not saved it"
	BetweenSteps = "a borglet is between two steps for a copy"
	SaidNotKept  = "a borglet has been told of an end and has not saved it"
)

// Marks of what only mishaps bring.
const (
	HalfMade  = "shim killed while it makes a container"
	GroupBusy = "cgroup not let go at once"
)

// Config is what a Machine is made with.
type Config struct {
	Name    string
	Env     Env
	Witness Witness
	// Chance of this machine alone.
	Rand    *rand.Rand
	Backoff func() borglet.Backoff
	// Of so many in a thousand runs the process does not end by SIGTERM.
	DeafPermille int
	// Lasts says how long the process of a run runs before it ends by itself, and
	// with which code; 0: for ever.
	Lasts func(d *borgrpc.Desired) (ns int64, code int32)
	// StartNs draws how long it takes from the start of a shim until its process
	// runs; nil: 5 to 80 ms.
	StartNs func(*rand.Rand) int64
	// StopNs draws how long a process takes to end after SIGTERM; nil: 1 to 200 ms.
	StopNs func(*rand.Rand) int64
	// Mishaps is chance of its own for what goes wrong at the start and at the end of a
	// run; nil: nothing does.
	Mishaps *rand.Rand
	// Uses says what a copy uses whose process has run for so long; nil: nothing is
	// said of that.
	Uses func(id borglet.ID, d *borgrpc.Desired, ageNs int64) *borgrpc.Usage
	// Nil: it is never short of memory.
	Memory *Memory
}

// Machine is one machine: a disk that stays, a kernel that lives while the
// power is on, and a borglet that comes and goes.
type Machine struct {
	cfg  Config
	up   bool
	boot int
	// The borglet's process is there; life counts them.
	agent bool
	life  uint64

	disk   disk
	kernel kernel

	core   *borglet.Core
	master borglet.Master
	// What is to be done for each copy, in order; the first is under way.
	work map[borglet.ID][]borglet.Effect
	// Due time of the timer that is set; 0: none.
	timerNs int64
	// Addresses of networks whose copies were given with them, by the key of the network.
	addrs map[string]string
	// What its borglet was told that copies will use of memory, where it may be short of it.
	reservedBytes map[borglet.ID]int64
}

// disk is the borglet's directory. Every file in it is replaced whole and
// synced; a record is two of them.
type disk struct {
	fence  borglet.Fence
	specs  map[borglet.ID]*borgrpc.Desired
	intent map[borglet.ID]borglet.Record
	// Volumes, which no end of a task and no boot takes away.
	volumes borglet.Volumes
}

// New returns a machine that is switched off and holds nothing.
func New(cfg Config) *Machine {
	if cfg.StartNs == nil {
		cfg.StartNs = func(r *rand.Rand) int64 { return between(r, 5*millisecond, 80*millisecond) }
	}
	if cfg.StopNs == nil {
		cfg.StopNs = func(r *rand.Rand) int64 { return between(r, millisecond, 200*millisecond) }
	}
	m := &Machine{cfg: cfg}
	m.disk.specs, m.disk.intent = map[borglet.ID]*borgrpc.Desired{}, map[borglet.ID]borglet.Record{}
	m.disk.volumes = borglet.Volumes{}
	m.kernel = kernel{
		m: m, procs: map[borglet.ID]*process{}, exits: map[borglet.ID]exitFile{}, groups: map[borglet.ID]*group{},
	}
	return m
}

// Up: the power is on.
func (m *Machine) Up() bool { return m.up }

// Agent: its borglet's process is there.
func (m *Machine) Agent() bool { return m.agent }

// Boot counts how often it was switched on.
func (m *Machine) Boot() int { return m.boot }

// Start switches the power on.
func (m *Machine) Start() {
	m.up = true
	m.boot++
	m.cfg.Env.Say("machine %s is on, boot %d", m.cfg.Name, m.boot)
	m.StartAgent()
}

// Lose switches it off: all its processes are gone.
func (m *Machine) Lose() {
	if !m.up {
		return
	}
	m.cfg.Env.Say("machine %s is off", m.cfg.Name)
	m.StopAgent()
	m.up = false
	clear(m.kernel.procs)
	clear(m.kernel.groups)
	m.kernel.running = 0
}

// after does something if the same borglet still lives then.
func (m *Machine) after(ns int64, do func()) {
	life := m.life
	m.cfg.Env.After(m.cfg.Env.TrueNs(ns), func() {
		if m.agent && m.life == life {
			do()
		}
	})
}

// StartAgent starts a borglet over what an earlier one left.
func (m *Machine) StartAgent() {
	if !m.up || m.agent {
		return
	}
	m.agent = true
	m.life++
	m.cfg.Env.Say("borglet %s starts", m.cfg.Name)
	m.core = borglet.NewCore(borglet.CoreConfig{
		Backoff: m.cfg.Backoff(), Boot: bootName(m.boot), HoldNs: 10 * second,
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
		f.Observed.Addr = m.addr(r)
		found = append(found, f)
	}
	if len(found) > 0 {
		m.cfg.Witness.Mark("borglet took over copies")
	}
	m.reservedBytes = map[borglet.ID]int64{}
	m.step(borglet.Recovered{Copies: found})
	m.lookAtMemory()
}

func bootName(boot int) string { return fmt.Sprintf("boot-%d", boot) }

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

// StopAgent kills the borglet at this moment; what it was writing may be there
// in part, and its tasks go on.
func (m *Machine) StopAgent() {
	if !m.agent {
		return
	}
	m.cfg.Env.Say("borglet %s is killed", m.cfg.Name)
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

func (m *Machine) step(ev borglet.Event) {
	if o, ok := ev.(borglet.Observed); ok {
		r := m.disk.intent[o.ID]
		r.ID, r.Desired = o.ID, m.disk.specs[o.ID]
		o.Addr = m.addr(r)
		ev = o
	}
	m.carryOut(m.core.Step(m.cfg.Env.Now(), ev))
	m.cfg.Witness.Changed()
}

func (m *Machine) carryOut(effects []borglet.Effect) {
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
	m.after(max(due-m.cfg.Env.Now().MonoNs, 0)+microsecond, func() {
		if m.timerNs == due {
			m.timerNs = 0
			m.step(borglet.Tick{})
		}
	})
}

// workOn does the first effect of a copy, which takes a while, and then the
// next.
func (m *Machine) workOn(id borglet.ID) {
	m.after(between(m.cfg.Rand, 50*microsecond, 3*millisecond), func() {
		e := m.work[id][0]
		ev := m.do(e)
		m.cfg.Witness.Reaches(BetweenSteps)
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
func (m *Machine) do(e borglet.Effect) borglet.Event {
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
		m.disk.volumes.Open(e.Record.Desired)
		if err = m.kernel.destroy(e.Record.ID); err == nil {
			err = m.kernel.start(e.Record)
		}
		if err == nil {
			return borglet.Observed{ID: e.Record.ID, Run: e.Record.Run, Kind: borglet.Starting}
		}
	case borglet.Update:
		return borglet.Updated{ID: e.Record.ID, Run: e.Record.Run}
	case borglet.Check:
		// What is pretended is well.
		return borglet.Checked{ID: e.Record.ID, Run: e.Record.Run, Ready: e.Ready}
	case borglet.Warn:
		// What is pretended goes on.
	case borglet.Terminate:
		failed.Op, failed.Run = borglet.OpTerminate, e.Run
		m.cfg.Witness.Stops(e.ID)
		err = m.kernel.terminate(e.ID)
	case borglet.Kill:
		failed.Op, failed.Run = borglet.OpKill, e.Run
		m.cfg.Witness.Stops(e.ID)
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

func (m *Machine) save(r borglet.Record) {
	if r.Desired != nil {
		m.disk.specs[r.ID] = r.Desired
	}
	m.disk.intent[r.ID] = r
}

// savePart is a save that was cut short: nothing of it, one of its files, or
// all.
func (m *Machine) savePart(r borglet.Record) {
	switch m.cfg.Rand.IntN(3) {
	case 1:
		if r.Desired != nil {
			m.disk.specs[r.ID] = r.Desired
		}
		m.cfg.Witness.Mark("borglet killed during a save")
	case 2:
		m.save(r)
	}
}

// savesEnd tells whether the end of a copy is about to be written down.
func (m *Machine) savesEnd() bool {
	for _, todo := range m.work {
		if s, ok := todo[0].(borglet.Save); ok && s.Record.Ended != 0 {
			return true
		}
	}
	return false
}

// Poll is a master's poll that has arrived; done gets the answer a little later,
// if the borglet lives so long.
func (m *Machine) Poll(req *borgrpc.PollRequest, done func(*borgrpc.PollResponse, error)) {
	if !m.agent {
		return
	}
	if req.GetFence().GetTerm() > m.disk.fence.Term {
		m.cfg.Witness.Reaches(FenceNotKept)
	}
	m.after(between(m.cfg.Rand, 50*microsecond, millisecond), func() {
		f := req.GetFence()
		m.cfg.Env.Say("replica %d polls %s, term %d index %d: %d wanted, %d to stop", req.GetReplica(), m.cfg.Name, f.GetTerm(), f.GetIndex(), len(req.GetDesired()), len(req.GetStops()))
		done(m.Answer(req))
	})
}

// Answer takes a poll's orders and answers it at once. The borglet must be there.
func (m *Machine) Answer(req *borgrpc.PollRequest) (*borgrpc.PollResponse, error) {
	resp, effects, err := m.master.Poll(m.core, m.cfg.Env.Now(), req, func(f borglet.Fence) error {
		m.disk.fence = f
		return nil
	})
	if err == nil && !resp.Fenced {
		m.toldReservations(req)
		m.disk.volumes.Obey(m.core, req, resp, func(id borglet.VolumeID) error {
			m.cfg.Witness.Deletes(id)
			return nil
		})
	}
	m.carryOut(effects)
	if m.savesEnd() {
		m.cfg.Witness.Reaches(SaidNotKept)
	}
	if m.cfg.Uses != nil && err == nil && !resp.Fenced && !req.GetNoUsage() {
		resp.Usage = m.usage()
		resp.AllocUsage = m.allocUsage(resp.Usage)
	}
	return resp, err
}

// HasVolume tells whether a volume is on its disk.
func (m *Machine) HasVolume(id borglet.VolumeID) bool {
	_, here := m.disk.volumes[id]
	return here
}

// VolumesHere are those on its disk, in their order.
func (m *Machine) VolumesHere() []borglet.VolumeID {
	return slices.SortedFunc(maps.Keys(m.disk.volumes), borglet.VolumeID.Compare)
}

// WorksIn tells whether a process that runs has a volume.
func (m *Machine) WorksIn(id borglet.VolumeID) bool {
	for copyID, p := range m.kernel.procs {
		if p.running && slices.ContainsFunc(borglet.VolumesOf(m.disk.specs[copyID]), func(v borglet.TaskVolume) bool { return v.ID == id }) {
			return true
		}
	}
	return false
}

// usage is what the copies use that run, in the order of reports.
func (m *Machine) usage() (all []*borgrpc.Usage) {
	wallNs := m.cfg.Env.Now().WallNs
	for _, id := range m.core.Running() {
		if p := m.kernel.procs[id]; p != nil && p.running {
			all = append(all, m.cfg.Uses(id, m.disk.specs[id], wallNs-p.startedNs))
		}
	}
	return all
}

// allocUsage is what all in each alloc uses: what the copies in it do, and no more.
func (m *Machine) allocUsage(all []*borgrpc.Usage) []*borgrpc.AllocUsage {
	in := map[string]*borgrpc.Usage{}
	for _, u := range all {
		id := borglet.ID{JobUID: u.Copy.GetJobUid(), Index: u.Copy.GetIndex(), Attempt: u.Copy.GetAttempt()}
		alloc := m.disk.specs[id].GetAlloc()
		if alloc == "" {
			continue
		}
		sum := in[alloc]
		if sum == nil {
			sum = &borgrpc.Usage{}
			in[alloc] = sum
		}
		sum.CpuMilliMean, sum.CpuMilliPeak = sum.CpuMilliMean+u.CpuMilliMean, sum.CpuMilliPeak+u.CpuMilliPeak
		sum.MemBytesMean, sum.MemBytesPeak = sum.MemBytesMean+u.MemBytesMean, sum.MemBytesPeak+u.MemBytesPeak
		sum.DiskBytes += u.DiskBytes
	}
	var list []*borgrpc.AllocUsage
	for _, alloc := range slices.Sorted(maps.Keys(in)) {
		list = append(list, &borgrpc.AllocUsage{Alloc: alloc, Usage: in[alloc]})
	}
	return list
}

// addr is the address of its own that a copy has: the one that it had when it was found,
// or one of a range for documents, by its machine and the key of its network.
func (m *Machine) addr(r borglet.Record) string {
	key := borglet.NetworkKey(r.ID, r.Desired)
	if key == "" || r.Ended != 0 || r.Run == 0 {
		return ""
	}
	if addr := m.addrs[key]; addr != "" {
		return addr
	}
	at, of := crc32.ChecksumIEEE([]byte(m.cfg.Name))&0xffff, crc32.ChecksumIEEE([]byte(key))
	return fmt.Sprintf("2001:db8:%x::%x:%x", at, of>>16, of&0xffff)
}

// Held is a copy that a machine has before it is first switched on.
type Held struct {
	Record borglet.Record
	// Of its process; 0: none runs.
	Pid int64
	// Its own address, or its alloc's; empty: it has its machine's.
	Addr string
}

// Hold gives a machine that was never on a copy, as an earlier borglet would have
// left it at this boot.
func (m *Machine) Hold(h Held) {
	h.Record.Boot = bootName(m.boot + 1)
	m.save(h.Record)
	if h.Addr != "" {
		if m.addrs == nil {
			m.addrs = map[string]string{}
		}
		m.addrs[borglet.NetworkKey(h.Record.ID, h.Record.Desired)] = h.Addr
	}
	if h.Pid != 0 {
		m.kernel.hold(h)
	}
}

// chance is true so often in a thousand.
func chance(r *rand.Rand, permille int) bool { return permille > 0 && r.IntN(1000) < permille }

// between draws a time.
func between(r *rand.Rand, low, high int64) int64 { return low + r.Int64N(high-low+1) }
