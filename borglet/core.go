package borglet

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"borg/mutant"
	"borg/proto/borgpb"
	"borg/proto/borgrpc"
	"borg/tell/hostpath"
)

const (
	// maxCopies bounds what one borglet keeps: beyond it, new copies are not
	// taken, and the master goes on seeing them as not started.
	maxCopies = 4096
	// maxStartTries bounds how often a batch task is tried again that the
	// machine could not start. A service is tried for ever.
	maxStartTries = 5
	// retryNs is the wait before an effect that could not be done, and a kill
	// that has not yet told, are tried again.
	retryNs = int64(5 * time.Second)
	// startNs bounds how long a start may take, from the moment that its shim
	// was started, before it is given up.
	startNs = int64(2 * time.Minute)
)

// CoreConfig is what a Core is made with.
type CoreConfig struct {
	Backoff Backoff
	// Boot names this boot of the machine.
	Boot string
	// HoldNs is how long, after recovery, nothing new is started before a
	// master has been heard: it may have stopped meanwhile what was to start.
	HoldNs int64
	// HostPaths are what masters and users are not told of.
	HostPaths *hostpath.Dirs
}

// Core is the pure middle of a borglet. It is not safe for concurrent use.
type Core struct {
	cfg    CoreConfig
	copies map[ID]*task
	// ids is the keys of copies in the order of reports.
	ids []ID
	// leaving holds forgotten copies of which something could not be removed, and
	// when that is tried again.
	leaving map[ID]int64
	// holdNs is when starts begin although no master was heard; zero: now.
	holdNs int64

	now Now
	out []Effect
	// For State.
	hashBuf []byte
}

// phase is how far the present run of a copy has come.
type phase uint8

const (
	// waiting: for victims to go, or for the hold after recovery.
	waiting phase = iota
	starting
	running
	backoff
	ended
)

// task is what is known of one copy.
type task struct {
	Record
	phase phase
	pid   int64
	// dueNs is when the timer of the phase fires: restart in backoff, SIGKILL
	// while stopping or when a start takes too long. Zero: never.
	dueNs int64
	// overNs is when the run has taken longer than it may; zero: it may take any time.
	overNs int64
	// termNs is when SIGTERM is due that follows on a notice; zero: none is.
	termNs int64
	// warned: the present run was told of a SIGTERM to come. terminated: it was sent.
	warned, terminated bool
	// updateNs is when limits are tried again; zero: they are as wanted, or
	// will be. updateNote says why they are not.
	updateNs   int64
	updateNote string
	// kept: it has ended, and its record on the disk says so. saveNs is when
	// writing it is tried again.
	kept   bool
	saveNs int64
	// told is what was last reported of it, which stands until kept, and toldSays what it
	// says.
	told     *borgpb.TaskReport
	toldSays says
	// destroyNs is when the remains of an ended copy are tried again.
	destroyNs int64
	// note is said to people beside Text: what is wrong at the moment.
	note string
	// reservedMemBytes is what masters say that it will use; zero: nothing yet, its
	// limit counts.
	reservedMemBytes int64
	// addr is its own address; empty: it has its machine's, or none yet. It stays over
	// restarts.
	addr string
	// squeezed is why the present run was killed for want of memory or disk; empty: it
	// was not.
	squeezed string
	// forDisk: it was killed for disk.
	forDisk bool
	// fault is set if the run was killed for what it did to others; squeezed says what.
	fault borgpb.ExitReason
	// oomKills is how many processes of the present run the kernel killed, as it is told;
	// oomText says more.
	oomKills uint32
	oomText  string
	// health is how its checks stand.
	health health
	// readiness is how its check of readiness stands.
	readiness readiness
}

// NewCore returns a Core that knows of nothing.
func NewCore(cfg CoreConfig) *Core {
	return &Core{cfg: cfg, copies: map[ID]*task{}, leaving: map[ID]int64{}}
}

// Step takes in one event and says what to do about it.
func (c *Core) Step(now Now, ev Event) []Effect {
	c.now, c.out = now, nil
	switch ev := ev.(type) {
	case Recovered:
		c.recover(ev)
	case Polled:
		c.poll(ev)
	case Observed:
		c.observe(ev)
	case Failed:
		c.fail(ev)
	case Updated:
		if t := c.copies[ev.ID]; t != nil && t.Run == ev.Run && t.updateNs == 0 {
			t.updateNote = ""
		}
	case Saved:
		if t := c.copies[ev.ID]; t != nil && t.phase == ended {
			t.kept, t.saveNs, t.told = true, 0, nil
		}
	case Squeezed:
		c.squeeze(ev)
	case Checked:
		c.checked(ev)
	case KernelKilled:
		c.kernelKilled(ev)
	case SocketsHeld:
		c.socketsHeld(ev)
	case AtFault:
		c.atFault(ev)
	case PortsHeld:
		c.portsHeld(ev)
	case Hoarded:
		c.hoarded(ev)
	case Filled:
		c.fill(ev)
	case Tick:
	default:
		panic(fmt.Sprintf("borglet: unknown event %T", ev))
	}
	c.fire()
	c.startWaiting()
	return c.out
}

// NextNs says when the next timer is due on the monotonic clock.
func (c *Core) NextNs() (ns int64, ok bool) {
	least := func(t int64) {
		if t != 0 && (!ok || t < ns) {
			ns, ok = t, true
		}
	}
	least(c.holdNs)
	for _, at := range c.leaving {
		least(at)
	}
	for _, t := range c.copies {
		least(t.dueNs)
		least(t.termNs)
		least(t.updateNs)
		least(t.destroyNs)
		least(t.saveNs)
		least(t.health.dueNs)
		least(t.readiness.dueNs)
		least(t.overNs)
	}
	return ns, ok
}

// desired is what is wanted of a copy that has not ended; nil: nothing.
func (c *Core) desired(id ID) *borgrpc.Desired {
	if t := c.copies[id]; t != nil && t.phase != ended {
		return t.Desired
	}
	return nil
}

func (c *Core) add(t *task) {
	at, _ := slices.BinarySearchFunc(c.ids, t.ID, compareIDs)
	c.ids = slices.Insert(c.ids, at, t.ID)
	c.copies[t.ID] = t
}

func (c *Core) emit(e Effect) { c.out = append(c.out, e) }

// poll does what a master says: stops first, so that nothing is started that
// it wants stopped, and what is to be forgotten last, so that nothing starts
// anew that has ended.
func (c *Core) poll(ev Polled) {
	c.holdNs = 0
	for _, s := range ev.Stops {
		if id, err := IDOf(s.GetCopy()); err == nil {
			c.stop(id, s)
		}
	}
	for _, d := range ev.Desired {
		if id, err := IDOf(d.GetCopy()); err == nil {
			c.want(id, d)
		}
	}
	if mutant.Planted(mutant.AbsenceStops) {
		for _, id := range c.ids {
			named := func(d *borgrpc.Desired) bool { other, _ := IDOf(d.GetCopy()); return other == id }
			if !slices.ContainsFunc(ev.Desired, named) {
				c.stop(id, &borgrpc.Stop{})
			}
		}
	}
	for _, copyID := range ev.Forget {
		if id, err := IDOf(copyID); err == nil {
			c.forget(id)
		}
	}
}

// want takes in a copy that should run. One that is not known and comes
// without a spec is left out of the answer, and the master sends it whole.
func (c *Core) want(id ID, d *borgrpc.Desired) {
	t := c.copies[id]
	if t != nil {
		t.reservedMemBytes = d.GetReservedMemBytes()
		if d.GetQuarantined() && !t.Quarantined && t.phase != ended {
			c.quarantine(t)
		}
	}
	c.relabel(t, d)
	if d.GetSpec() == nil || d.GetQuarantined() {
		return
	}
	switch {
	case t == nil && len(c.copies) < maxCopies:
		t = &task{Record: Record{ID: id, Desired: labelledAs(d, nil)}, reservedMemBytes: d.GetReservedMemBytes()}
		c.add(t)
		c.emit(Save{t.Record})
	case t == nil, t.phase == ended, t.Desired != nil && d.GetVersion() <= t.Desired.GetVersion():
		return
	default:
		t.Desired = labelledAs(d, t.Desired)
		if t.phase == running {
			c.update(t)
		} else {
			c.emit(Save{t.Record})
		}
	}
}

// quarantine leaves a copy alone from now on, until it is told to stop. What waits to
// be started again does not: it is looked at as it ended.
func (c *Core) quarantine(t *task) {
	t.Quarantined = true
	if t.health.ended == "" {
		t.health = health{}
	}
	if t.phase == backoff {
		t.dueNs, t.note = 0, quarantineNote
	}
	c.emit(Save{t.Record})
}

// quarantineNote is said of a copy in quarantine whose process has ended.
const quarantineNote = "in quarantine: it is not started again"

func (c *Core) update(t *task) {
	t.updateNs = 0
	t.RunVersion = t.Desired.GetVersion()
	if checkOf(t.Desired.GetSpec()) == nil && t.health.ended == "" {
		t.health = health{}
	}
	if readyCheckOf(t.Desired.GetSpec()) == nil {
		t.readiness = readiness{}
	}
	c.beginChecks(t)
	c.emit(Save{t.Record})
	c.emit(Update{t.Record})
}

// stop takes in a Stop. It is sent again until the copy is reported dead; a
// later one may only bring the end forward.
func (c *Core) stop(id ID, s *borgrpc.Stop) {
	t := c.copies[id]
	if t == nil {
		if len(c.copies) >= maxCopies {
			return
		}
		t = &task{Record: Record{ID: id}}
		c.add(t)
		c.end(t, borgpb.AttemptState_ATTEMPT_STATE_STOPPED, "never started here")
		return
	}
	if t.phase == ended {
		return
	}
	order := newStopOrder(s)
	first := t.Stop == nil
	if !first && order.endNs() >= t.Stop.endNs() {
		return
	}
	t.Stop, t.health, t.readiness, t.overNs = order, health{ended: t.health.ended, overran: t.health.overran}, readiness{}, 0
	if t.phase == waiting || t.phase == backoff || mutant.Planted(mutant.StopLeaksProcess) {
		c.end(t, borgpb.AttemptState_ATTEMPT_STATE_STOPPED, "")
		return
	}
	c.emit(Save{t.Record})
	due := c.now.MonoNs + order.endNs()
	if (first && t.health.ended == "") || due < t.dueNs {
		t.dueNs = due
	}
	c.setTerm(t, first)
	if !first && t.phase == running && (t.terminated || t.warned) {
		// It has read another deadline. A second signal would tell it nothing.
		c.emit(Warn{t.ID, t.Run, c.notice(t), false})
	}
	c.terminate(t)
}

// terminate sends SIGTERM to a run that is to stop, once, and not when it is
// killed at once anyway. While that is not due yet the run is told.
func (c *Core) terminate(t *task) {
	switch {
	case t.phase != running || t.terminated:
	case c.now.MonoNs < t.termNs:
		c.warn(t)
	case t.Stop.GraceNs > 0:
		t.terminated, t.termNs = true, 0
		c.emit(Terminate{t.ID, t.Run, c.notice(t)})
	}
}

// forget drops a copy whose end is in the log.
func (c *Core) forget(id ID) {
	t := c.copies[id]
	if t == nil || t.phase != ended {
		return
	}
	delete(c.copies, id)
	at, _ := slices.BinarySearchFunc(c.ids, id, compareIDs)
	c.ids = slices.Delete(c.ids, at, at+1)
	c.emit(Remove{id})
}

// end is the last state of a copy.
func (c *Core) end(t *task, state borgpb.AttemptState, text string) {
	t.phase, t.Ended, t.Text, t.note, t.addr = ended, state, text, "", ""
	t.pid, t.dueNs, t.termNs, t.updateNs, t.updateNote, t.health, t.readiness = 0, 0, 0, 0, "", health{}, readiness{}
	t.oomKills, t.oomText = 0, ""
	c.emit(Save{t.Record})
	c.emit(Destroy{t.ID, t.Run, t.phase == ended})
}

// startWaiting starts what waits and need not wait any longer.
func (c *Core) startWaiting() {
	if c.holdNs != 0 {
		return
	}
	for _, id := range c.ids {
		t := c.copies[id]
		if t.phase != waiting || t.Desired.GetSpec() == nil || t.Quarantined {
			continue
		}
		if who := c.blocker(t); who != "" {
			t.note = "waits until " + who + " has gone"
			continue
		}
		c.begin(t)
	}
}

// blocker names a copy that must be gone before t starts. A copy that is not
// known here is gone.
func (c *Core) blocker(t *task) string {
	for _, a := range t.Desired.GetAfter() {
		id, err := IDOf(a)
		if err != nil {
			continue
		}
		if other := c.copies[id]; other != nil && other != t && other.phase != ended {
			return other.name()
		}
	}
	return ""
}

// begin orders a run.
func (c *Core) begin(t *task) {
	if t.Exit != nil {
		t.Restarts++
	}
	t.Run++
	t.RunEnded, t.RunVersion, t.Boot = false, t.Desired.GetVersion(), c.cfg.Boot
	t.phase, t.dueNs, t.warned, t.terminated, t.note, t.squeezed, t.forDisk, t.fault = starting, 0, false, false, "", "", false, 0
	t.pid, t.StartedWallNs, t.ShimLost, t.Text, t.Passed, t.health = 0, 0, false, "", false, health{}
	t.Ready, t.readiness = false, readiness{}
	t.oomKills, t.oomText = 0, ""
	c.emit(Start{t.Record})
}

// fire does what is due.
func (c *Core) fire() {
	now := c.now.MonoNs
	for _, id := range slices.SortedFunc(maps.Keys(c.leaving), compareIDs) {
		if now >= c.leaving[id] {
			delete(c.leaving, id)
			c.emit(Remove{id})
		}
	}
	if c.holdNs != 0 && now >= c.holdNs {
		c.holdNs = 0
	}
	for _, id := range c.ids {
		t := c.copies[id]
		if t.saveNs != 0 && now >= t.saveNs {
			t.saveNs = 0
			c.emit(Save{t.Record})
		}
		if t.destroyNs != 0 && now >= t.destroyNs {
			t.destroyNs = 0
			c.emit(Destroy{t.ID, t.Run, t.phase == ended})
		}
		if t.updateNs != 0 && now >= t.updateNs {
			c.update(t)
		}
		if t.health.dueNs != 0 && now >= t.health.dueNs {
			c.check(t)
		}
		if t.overNs != 0 && now >= t.overNs {
			c.runOver(t)
		}
		if t.termNs != 0 && now >= t.termNs {
			t.termNs = 0
			c.terminate(t)
		}
		if t.readiness.dueNs != 0 && now >= t.readiness.dueNs {
			c.checkReady(t)
		}
		if t.dueNs == 0 || now < t.dueNs {
			continue
		}
		t.dueNs = 0
		switch t.phase {
		case backoff:
			t.phase = waiting
		case starting, running:
			c.emit(Kill{t.ID, t.Run})
			t.dueNs = now + retryNs
		}
	}
}

// name is the task as people know it.
func (t *task) name() string {
	if t.Desired == nil {
		return t.ID.String()
	}
	return fmt.Sprintf("%s/%s/%d", t.Desired.GetUser(), t.Desired.GetJob(), t.ID.Index)
}

// batch tasks run to completion; all others are started again when they end.
func (t *task) batch() bool {
	kind := t.Desired.GetKind()
	return kind == borgpb.JobKind_JOB_KIND_BATCH || kind == borgpb.JobKind_JOB_KIND_CRON
}
