package sim

import (
	"hash/fnv"

	"borg/borglet"
	"borg/borgmaster"
	"borg/borgmaster/cell"
	"borg/proto/borgpb"

	"google.golang.org/protobuf/proto"
)

const (
	leaderWithinNs = 3 * second
	settleWithinNs = 120 * second
	watchNs        = 100 * millisecond
	// The whole cell is checked after every so many entries.
	checkEvery = 25
)

// truth is what was committed, as the first replica to apply it saw it: a sixth
// cell that never fails, and what must hold.
type truth struct {
	w     *World
	cell  *cell.Cell
	index uint64
	// By index.
	entries map[uint64]committed
	// Who was elected in each term.
	leaders map[uint64]uint64
	// Mutations that were done, by request id, and how often.
	done  map[string]doneAt
	acked map[string]bool
	// The highest index that was acknowledged, and reads that were answered.
	ackedIndex uint64
	reads      int
	// Machine to which each attempt was assigned.
	assigned map[borglet.ID]string
	// Index from which on refusals are remembered, with format 2; 0: not yet.
	keepsRefusals uint64
	// Batch attempts whose process has run.
	ran     map[borglet.ID]bool
	started int
	// How often each task of a batch job has failed.
	failed map[[2]any]int
	// Whether a job names what is its asker's alone, with format 4.
	linksOwned bool
	// The cell looks who was granted what a job asks for.
	powersAsked bool
	// Who made each request, and the users whose certificates were revoked.
	asked   map[string]asking
	revoked map[string]revocation
	// Files as the log has made them, the latest version, and jobs that were dead at
	// some time, or a task of theirs.
	files       map[string]fileState
	fileVersion uint64
	died        map[cell.JobKey]bool
	// What was done to the tasks of jobs with budgets.
	disturbed map[cell.UID]*disturbances
	// Machines that were to be empty and had only tasks of daemon jobs left after the last entry.
	daemonsAlone map[string]bool
	// What the last update of each job did that is updated again and again.
	rolling map[cell.JobKey]*rollout
	// Machines that may have been forced to be empty by the entry at hand.
	forced map[string]bool
	// What copies were told to use, at most and at last, and what the log has them
	// reserve. Thousandths of a core.
	usedMost, usedLast map[borglet.ID]int64
	// And of memory, at most. Bytes.
	usedMostMem map[borglet.ID]int64
	// Terms in which an elected master does not know which reservations were logged.
	blindTerms map[uint64]bool
	// Those that their borglets end for want of memory.
	squeezedOut map[borglet.ID]bool
	// When each copy that runs was last given another spec.
	updatedNs map[borglet.ID]int64
	reserved  map[borglet.ID]reserved
	// What the ops make of labels.
	labelled labelModel
	// What the ops make of quotas.
	quota quotaModel
	// What the ops make of bands.
	banded bandModel
	// What the ops make of cron and daemon jobs.
	kind kindsModel
	// What the ops put in quarantine, in the epoch of that number.
	kept      kept
	keptEpoch uint64
	// Where copies crashed.
	paired crashModel
	// What the events say of allocs with savers, and the keys of their sets.
	saving  saversModel
	setKeys map[cell.UID]cell.JobKey
	// How often tasks of each job gave way.
	churned churnModel
	// What the events say of volumes.
	volume volumesModel
	// How jobs ended that others start after.
	follow followModel
	// Who may read what, in the order of indices.
	readings []reading
	rules
}

type committed struct {
	term   uint64
	data   uint64
	digest cell.Digest
	// When somebody applied it first.
	atNs int64
}

type doneAt struct {
	index   uint64
	times   int
	version uint64
	// Wall time of the cell when it was done.
	wallNs int64
}

func newTruth(w *World) *truth {
	return &truth{
		w: w, cell: cell.New(cellID, 1), entries: map[uint64]committed{}, leaders: map[uint64]uint64{},
		done: map[string]doneAt{}, acked: map[string]bool{}, assigned: map[borglet.ID]string{}, ran: map[borglet.ID]bool{}, failed: map[[2]any]int{}, rules: newRules(),
		asked: map[string]asking{}, revoked: map[string]revocation{}, files: map[string]fileState{}, died: map[cell.JobKey]bool{},
		disturbed: map[cell.UID]*disturbances{}, rolling: map[cell.JobKey]*rollout{}, forced: map[string]bool{},
		labelled: labelModel{of: map[labelledObject]map[string]string{}},
		usedMost: map[borglet.ID]int64{}, usedLast: map[borglet.ID]int64{}, reserved: map[borglet.ID]reserved{}, updatedNs: map[borglet.ID]int64{},
		usedMostMem: map[borglet.ID]int64{}, blindTerms: map[uint64]bool{}, squeezedOut: map[borglet.ID]bool{},
	}
}

// elected: S1, one leader in a term.
func (t *truth) elected(id, term uint64) {
	if other, ok := t.leaders[term]; ok && other != id {
		t.w.fail("S1: replicas %d and %d were both elected in term %d", other, id, term)
	}
	t.leaders[term] = id
	t.w.result.Elections++
}

func hashOf(data []byte) uint64 {
	h := fnv.New64a()
	h.Write(data)
	return h.Sum64()
}

// applied: S2 and S3, all replicas apply the same and come to the same.
func (t *truth) applied(id uint64, e borgmaster.CommittedEntry, c *cell.Cell) {
	seen, ok := t.entries[e.Index]
	if !ok {
		t.first(e)
		seen = t.entries[e.Index]
	}
	if seen.term != e.Term || seen.data != hashOf(e.Data) {
		t.w.fail("S2: replica %d applies another entry at index %d, of term %d; term %d was applied before", id, e.Index, e.Term, seen.term)
		return
	}
	if d := c.Digest(); d != seen.digest {
		t.w.fail("S3: replica %d has digest %x at index %d, and should have %x", id, d, e.Index, seen.digest)
	}
}

// loaded: a checkpoint stands for what was applied at its index.
func (t *truth) loaded(id uint64, c *cell.Cell) {
	if seen, ok := t.entries[c.Index()]; !ok || seen.digest != c.Digest() {
		t.w.fail("S14: replica %d has a checkpoint of index %d with digest %x, and should have %x", id, c.Index(), c.Digest(), seen.digest)
	}
}

// first takes in an entry that nobody has applied before.
func (t *truth) first(e borgmaster.CommittedEntry) {
	admins := t.admins()
	// What the entry does may be done before it raises the format. Without an admin
	// the cell leaves it to its masters.
	t.linksOwned = t.cell.Format() >= 4 && t.cell.NumAdmins() > 0
	t.powersAsked = t.cell.Format() >= cell.FormatPermissions && t.cell.NumAdmins() > 0
	moves := t.movingBy(e.Data)
	crashing := t.crashingBy(e.Data)
	results, events := t.cell.Apply(e.Index, e.Term, e.Data)
	t.cell.Flush(nil)
	t.index = e.Index
	t.entries[e.Index] = committed{e.Term, hashOf(e.Data), t.cell.Digest(), t.w.now}
	if t.w.past != nil {
		t.w.past.Look(t.cell)
	}
	t.w.say("entry %d of term %d is applied: %d ops, %d events", e.Index, e.Term, len(results), len(events))
	t.countDone(e, results, append(admins, t.admins()...))
	for i := range events {
		t.event(&events[i])
		if e := &events[i]; e.Kind == borgpb.EventKind_EVENT_KIND_EVICT && e.Cause == borgpb.StopCause_STOP_CAUSE_MOVE {
			t.moved(e, events[i+1:])
		}
	}
	t.bands(e, results)
	t.suits(e, events)
	t.movedFar(e.Term, moves)
	t.budgets(e, events)
	t.labels(e, results)
	t.quotas(e, results)
	t.kinds(e, results, events)
	t.quarantines(e, events)
	t.pairs(e, crashing, events)
	t.saves(e, events)
	t.churns(events)
	t.volumes(e, events)
	t.startsAfter(events)
	t.noteReading()
	t.rollouts(events)
	if e.Index%checkEvery == 0 {
		if err := t.cell.Check(); err != nil {
			t.w.fail("the cell at index %d: %v", e.Index, err)
		}
	}
	if chance(t.w.rand, 5) {
		again, err := copyCell(t.cell)
		if err != nil || again.Digest() != t.cell.Digest() {
			t.w.fail("S14: the records of index %d load as another cell: %v", e.Index, err)
		}
		t.w.mark("records loaded again")
	}
}

// countDone: S4, a mutation is done once.
func (t *truth) countDone(e borgmaster.CommittedEntry, results []*borgpb.Result, admins []string) {
	entry := new(borgpb.Entry)
	if proto.Unmarshal(e.Data, entry) != nil {
		t.w.fail("entry %d cannot be read", e.Index)
	}
	var ops []*borgpb.Op
	defer func() { t.lanes(e, ops) }()
	for i, data := range entry.Ops {
		op := new(borgpb.Op)
		ops = append(ops, op)
		if proto.Unmarshal(data, op) == nil && op.GetMachineDown() != nil && results[i].GetRefusal() == nil {
			t.down(e, op.GetMachineDown())
		}
		if op.GetDeclareLost() != nil && results[i].GetRefusal() == nil {
			t.declared(op.GetDeclareLost())
		}
		t.forgotten(e, op, results[i])
		if op.RequestId == "" || results[i].GetRefusal() != nil || results[i].GetRepeated() {
			continue
		}
		t.owned(op, admins)
		d := t.done[op.RequestId]
		t.fileDone(op, results[i])
		d.times++
		d.index, d.version, d.wallNs = e.Index, results[i].GetVersion(), t.cell.WallNs()
		t.done[op.RequestId] = d
		if d.times > 1 {
			t.w.fail("S4: %s is done a second time at index %d", op.RequestId, e.Index)
		}
	}
}

// forgotten: S4, what a user asks for is too old to know only if the id was made more than 15
// minutes ago, and if it was done, that was as long ago too. Both go by the wall clock of the cell.
func (t *truth) forgotten(e borgmaster.CommittedEntry, op *borgpb.Op, res *borgpb.Result) {
	const memoryNs = 15 * 60 * second
	if res.GetRefusal().GetKind() != borgpb.RefusalKind_REFUSAL_KIND_TOO_OLD {
		return
	}
	now, d := t.cell.WallNs(), t.done[op.RequestId]
	if now-op.RequestWallNs <= memoryNs {
		t.w.fail("S4: %s is too old to know at index %d, and was made %d ms before", op.RequestId, e.Index, (now-op.RequestWallNs)/millisecond)
	}
	if d.times != 0 && now-d.wallNs <= memoryNs {
		t.w.fail("S4: %s is too old to know at index %d, and was done at index %d, %d ms before", op.RequestId, e.Index, d.index, (now-d.wallNs)/millisecond)
	}
}

// answered: S4, what is acknowledged is done, and what is refused was not. An answer that a
// request is too old to know says neither.
func (t *truth) answered(op *borgpb.Op, res *borgpb.Result) {
	d := t.done[op.RequestId]
	if res.GetRefusal() == nil {
		if d.times != 1 || d.index != res.GetIndex() {
			t.w.fail("S4: %s was acknowledged at index %d, and was done %d times, last at %d", op.RequestId, res.GetIndex(), d.times, d.index)
		}
		if d.version != res.GetVersion() {
			t.w.fail("S4: %s was acknowledged as version %d, and was done as version %d", op.RequestId, res.GetVersion(), d.version)
		}
		t.acked[op.RequestId] = true
		t.ackedIndex = max(t.ackedIndex, res.GetIndex())
	} else if d.times != 0 && res.GetRefusal().GetKind() == borgpb.RefusalKind_REFUSAL_KIND_TOO_OLD {
		t.w.mark("done, and too old to know")
	} else if d.times != 0 && d.index >= res.GetIndex() && (t.keepsRefusals == 0 || t.keepsRefusals >= res.GetIndex()) {
		// Format 1 does not remember refusals: a try that was long under way may
		// be done after another one was refused, also later in the same entry.
		t.w.mark("done after it was refused")
	} else if d.times != 0 {
		t.w.fail("S4: %s was refused (%s), and was done at index %d", op.RequestId, res.GetRefusal().GetMessage(), d.index)
	}
	t.w.failover.acknowledged()
	t.w.wrote()
}

// read: S5, a read shows what was acknowledged before it was asked for.
func (t *truth) read(r *replicaNode, acked uint64) {
	t.reads++
	if i := r.cell.Index(); i < acked {
		t.w.fail("S5: a read at replica %d shows index %d, and %d was acknowledged before it", r.id, i, acked)
	}
}

func (t *truth) event(e *cell.Event) {
	if e.ObjectKind == borgpb.ObjectKind_OBJECT_KIND_TASK {
		t.taskEvent(e)
	}
	if e.To == borgpb.State_STATE_DEAD {
		t.died[e.Key] = true
	}
	switch {
	case e.ObjectKind == borgpb.ObjectKind_OBJECT_KIND_TASK && e.Kind == borgpb.EventKind_EVENT_KIND_SCHEDULE:
		t.assigned[borglet.ID{JobUID: e.UID.String(), Index: e.Task, Attempt: e.Attempt}] = e.Machine
		if e.Alloc != "" {
			t.w.mark("task in an alloc")
		}
	case e.ObjectKind == borgpb.ObjectKind_OBJECT_KIND_ALLOC && e.Kind == borgpb.EventKind_EVENT_KIND_SCHEDULE:
		t.w.mark("alloc placed")
	case e.Kind == borgpb.EventKind_EVENT_KIND_FAIL:
		task := [2]any{e.UID, e.Task}
		if t.failed[task]++; t.failed[task] == 20 {
			t.w.mark("task failed often")
		}
	case e.Kind == borgpb.EventKind_EVENT_KIND_FORMAT:
		if t.keepsRefusals == 0 {
			// Format 2 is the first one to come.
			t.keepsRefusals = t.index
		}
		t.w.raised(t.cell.Format())
	case e.Kind == borgpb.EventKind_EVENT_KIND_ENABLE:
		t.w.mark("job left the batch queue")
	case e.Kind == borgpb.EventKind_EVENT_KIND_RETURN:
		t.w.mark("copy taken back")
	case e.Kind == borgpb.EventKind_EVENT_KIND_MACHINE_DOWN:
		t.w.mark("machine declared down")
		t.w.say("machine %s is declared down with %d tasks: %s", e.Machine, t.cell.Machine(e.Machine).NumCopies(), e.Reason)
	case e.Kind == borgpb.EventKind_EVENT_KIND_MACHINE_UP:
		t.w.say("machine %s is up again", e.Machine)
	}
	switch e.Cause {
	case borgpb.StopCause_STOP_CAUSE_DUPLICATE:
		t.w.mark("duplicate stopped")
	case borgpb.StopCause_STOP_CAUSE_PREEMPTION:
		t.w.mark("task preempted")
	case borgpb.StopCause_STOP_CAUSE_DRAIN:
		t.w.mark("task drained")
	case borgpb.StopCause_STOP_CAUSE_TAINT:
		t.w.mark("taint evicts")
	}
}

// copyOf is a copy as the cell has it on a machine; nil: it is over.
func (t *truth) copyOf(m *machine, id borglet.ID) *cell.Copy {
	x := t.cell.Machine(m.name)
	uid, err := cell.ParseUID(id.JobUID)
	if x == nil || err != nil {
		return nil
	}
	return x.Copy(cell.CopyID{Job: uid, Index: id.Index, Attempt: id.Attempt})
}

// starts: S9, nothing starts that was not assigned; S8, what has ended does
// not run again.
func (t *truth) starts(m *machine, r borglet.Record) {
	t.started++
	if where, ok := t.assigned[r.ID]; !ok || where != m.name {
		t.w.fail("S9: copy %s starts on %s, and was assigned to %q", r.ID, m.name, where)
	}
	if t.ran[r.ID] {
		t.w.fail("S8: the process of batch copy %s has run, and starts again on %s", r.ID, m.name)
	}
	if r.Desired.GetKind() == borgpb.JobKind_JOB_KIND_BATCH {
		t.ran[r.ID] = true
	}
	t.startsTwice(m, r)
	t.live(m, r.ID)
	t.fits(m, r.ID)
	t.notTooSoon(m, r.ID)
	t.opens(m, r)
}

// live: S7 and S8, a process that runs is a copy that the log has on that
// machine.
func (t *truth) live(m *machine, id borglet.ID) {
	if t.copyOf(m, id) == nil && !t.fromBefore(id) {
		t.w.fail("S8: copy %s runs on %s, and its end is in the log", id, m.name)
	}
}

// stops: S10, nothing is stopped without a cause in the log.
func (t *truth) stops(m *machine, id borglet.ID) {
	if t.squeezedOut[id] {
		delete(t.squeezedOut, id)
		return
	}
	p := t.copyOf(m, id)
	if p != nil && p.Cause() == borgpb.StopCause_STOP_CAUSE_UNSPECIFIED {
		t.w.fail("S10: copy %s on %s is stopped, and the log has no cause", id, m.name)
	}
	if p == nil {
		t.stopsUnknown(m, id)
	}
}
