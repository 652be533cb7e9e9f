package sim

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"syscall"

	"go.etcd.io/raft/v3/raftpb"
	"google.golang.org/protobuf/proto"

	"borg/borgmaster"
	"borg/borgmaster/cell"
	"borg/borgmaster/replica"
	"borg/checkpoint"
	"borg/identity"
	"borg/proto/borgpb"
)

const (
	cellName = "sim"
	cellID   = "sim-0001"
	tickNs   = 20 * millisecond
)

// replicaNode is one replica: a disk that stays, and a process that comes and
// goes. It does what package replica's goroutines do around its Core.
type replicaNode struct {
	w     *World
	id    uint64
	rand  *rand.Rand
	disk  *disk
	ident *borgpb.ReplicaIdentity
	clock clock
	// Latest format of the cell that its build knows; steppedBack: it knew more.
	build       uint32
	steppedBack bool

	// life counts the processes; what an earlier one had under way is dropped.
	life   uint64
	up     bool
	paused bool
	// When it started, and how often it ended soon after; true time.
	startedNs int64
	restarts  int
	// How often a write fails; each sync takes a while until then.
	errorPermille int
	slowUntilNs   int64
	// A sync takes long.
	hung bool
	// What came while it was paused, in order.
	held []func()
	// Its host has no power: whoever calls hears nothing.
	powerless bool
	// Its disk is lost, or its directory not made yet: it does not start. gone: it was
	// taken out of the cell, and knows it.
	diskless, gone bool
	// Since when it is down or stopped; 0: it works. When it went on after a stop.
	awaySinceNs, resumedNs int64
	// A sync takes until then; no checkpoint is taken until then.
	hangsUntilNs, refusesUntilNs int64
	// When the append that is under way began; checkpoints in a row that it was sent
	// and that did not let it catch up.
	appendSinceNs int64
	inRow         int
	// Followers that are sent a checkpoint, and when each was sent one lately.
	holds  replica.Holds
	sentNs map[uint64][]int64
	// Calls to it that are not known to have ended.
	calls []*call

	store *checkpoint.Store
	core  *replica.Core
	cell  *cell.Cell
	// Was leading, in that term, since (its own clock).
	leading     bool
	term        uint64
	electedNs   int64
	baseTerm    uint64
	baseCellNs  int64
	batches     replica.Batches[*waiter]
	appending   int
	appendQueue []appendItem
	appendBusy  bool
	applyQueue  []*replica.Apply
	applyBusy   bool

	master *masterSide

	// Reads that raft is asked for, and those that wait for an index.
	lastRead uint64
	asked    map[uint64]func()
	waiting  []waitingRead
}

// waitingRead is answered when the cell has come to index.
type waitingRead struct {
	index uint64
	done  func()
}

// appendItem is an append and the received checkpoint that it installs.
type appendItem struct {
	append   *replica.Append
	received *checkpoint.Incoming
}

// waiter waits for what becomes of an op.
type waiter struct {
	done func(*borgpb.Result, error)
	// Nobody waits any more from then on; true time.
	deadlineNs int64
}

// newReplicaNode makes a member of the new cell, or one that is to join and whose
// directory is made later.
func newReplicaNode(w *World, id uint64, joins bool) *replicaNode {
	r := &replicaNode{w: w, id: id, disk: newDisk(), rand: stream(w.cfg.Seed, fmt.Sprint("replica ", id)), build: cell.BuildFormat}
	r.clock = w.swarm.drawClock(r.rand)
	r.ident = &borgpb.ReplicaIdentity{CellName: cellName, CellId: cellID, Epoch: 1, Replica: id, Incarnation: id, Join: joins}
	if r.diskless, r.awaySinceNs = joins, w.now; joins {
		return r
	}
	for x := uint64(1); x <= replicas; x++ {
		r.ident.Members = append(r.ident.Members, &borgpb.Member{Id: x, Addr: addrOf(x)})
	}
	r.makeDirectory()
	return r
}

func addrOf(id uint64) string { return fmt.Sprintf("replica-%d:7000", id) }

// startAfter starts a replica that has crashed a while later, unless somebody else has
// done so.
func (r *replicaNode) startAfter(ns int64) {
	life := r.life
	r.w.after(ns, func() {
		if !r.up && r.life == life {
			r.start()
		}
	})
}

func (r *replicaNode) makeDirectory() {
	if err := replica.Init(r.storeConfig(), r.ident); err != nil {
		panic(err)
	}
	r.diskless = false
}

func (r *replicaNode) storeConfig() checkpoint.Config {
	return checkpoint.Config{
		Dir: "/replica", FS: r.disk, CacheBytes: r.w.swarm.cacheBytes, TailEntries: r.w.swarm.tailEntries,
		Repeatable: r.disk.steady,
	}
}

func (r *replicaNode) monoNs() int64 { return r.clock.monoNs(r.w.now) }

// after does something a while later by the process's own clock, if it still
// lives then; while it is paused it waits.
func (r *replicaNode) after(ns int64, do func()) {
	life := r.life
	r.w.after(r.clock.trueNs(ns), func() { r.enter(life, do) })
}

// enter does something in the process of that life.
func (r *replicaNode) enter(life uint64, do func()) {
	switch {
	case !r.up || r.life != life:
	case r.paused:
		if len(r.held) < 100_000 {
			r.held = append(r.held, do)
		}
	default:
		do()
	}
}

// arrive is enter for what came over the network to whoever lives there now.
func (r *replicaNode) arrive(do func()) { r.enter(r.life, do) }

// start starts a process on the disk as it is.
func (r *replicaNode) start() {
	if r.diskless || r.gone {
		return
	}
	r.w.say("replica %d starts", r.id)
	r.life++
	life := r.life
	if r.drawFailure(); r.disk.failure().err != nil {
		// The database would not return from opening: it writes what it finds in
		// its log, and tries again for as long as that fails.
		r.exit("cannot open its disk", r.disk.failure().err)
		return
	}
	store, err := checkpoint.Open(r.storeConfig(), r.ident)
	if err != nil {
		r.exit("cannot open its disk", err)
		return
	}
	c, err := replica.LoadCell(store)
	if err != nil {
		_ = store.Close()
		r.exit("cannot load its cell", err)
		return
	}
	if err := c.AsBuild(r.build); err != nil {
		_ = store.Close()
		r.tooOld(err)
		return
	}
	core, err := replica.NewCore(replica.CoreConfig{
		ID: r.id, Nonce: r.id<<32 | life, Storage: store, Header: store.Header(),
		ElectionTicks: 10, HeartbeatTicks: 1, StallTicks: 25, UncommittedBytes: r.w.swarm.uncommittedBytes, Logger: raftLog{},
	})
	if err != nil {
		r.w.fail("replica %d cannot start raft: %v", r.id, err)
		return
	}
	r.store, r.cell, r.core, r.startedNs = store, c, core, r.w.now
	last, _ := store.LastIndex()
	r.w.say("replica %d has its cell at index %d, its log up to %d, term %d, commit %d", r.id, c.Index(), last, store.HardState().GetTerm(), store.HardState().GetCommit())
	r.up, r.paused, r.held, r.powerless, r.hung = true, false, nil, false, false
	r.awaySinceNs, r.appendSinceNs, r.inRow, r.holds, r.sentNs = 0, 0, 0, replica.Holds{}, map[uint64][]int64{}
	r.w.breakCalls(r)
	r.leading, r.term, r.electedNs, r.baseTerm, r.baseCellNs = false, 0, 0, 0, 0
	r.batches, r.appending = replica.Batches[*waiter]{}, 0
	r.appendQueue, r.appendBusy, r.applyQueue, r.applyBusy = nil, false, nil, false
	r.asked, r.waiting = map[uint64]func(){}, nil
	r.master = newMasterSide(r)
	r.tick()
	r.flushSoon()
	r.w.failover.look()
}

// crash ends the process, and loses of what its disk had not synced what keep
// does not say.
func (r *replicaNode) crash(keep int, powerless bool) {
	if !r.up {
		return
	}
	r.w.say("replica %d crashes, %s", r.id, []string{"only what is synced stays", "what is not synced is torn", "all that was written stays"}[keep])
	var underWay *brokenAppend
	if r.appendBusy && r.appendQueue[0].append.Snapshot == nil && r.disk.failure().err == nil && chance(r.rand, 500) {
		a := r.appendQueue[0].append
		underWay = &brokenAppend{a.Entries, a.Hard}
		r.w.mark("crash during an append")
	}
	r.up, r.powerless, r.awaySinceNs = false, powerless, r.w.now
	r.master.stop()
	if !powerless {
		r.w.breakCalls(r)
	}
	r.w.failover.look()
	after, err := r.disk.crash(r.store, underWay, keep, rand.New(rand.NewPCG(r.w.cfg.Seed, r.life<<8|r.id)))
	if err != nil {
		r.w.fail("replica %d: %v", r.id, err)
		return
	}
	_ = r.store.Close()
	r.disk = after
}

// exit is the end of a process that cannot go on, as replica.Run does when the
// disk does not keep what is written. Its supervisor starts it again.
func (r *replicaNode) exit(what string, err error) {
	if f := r.disk.failure(); f == (failure{}) {
		r.w.fail("replica %d %s: %v", r.id, what, err)
		return
	}
	r.w.say("replica %d ends: it %s", r.id, what)
	r.w.mark("replica ended for its disk")
	if r.up {
		r.up, r.awaySinceNs = false, r.w.now
		r.master.stop()
		r.w.breakCalls(r)
		if r.w.now-r.startedNs > restartForgetNs {
			r.restarts = 0
		}
		_ = r.store.Close()
	}
	r.disk = r.disk.left()
	r.w.failover.look()
	r.startAfter(min(restartFirstNs<<min(r.restarts, 10), restartMaxNs))
	r.restarts++
}

// The supervisor's pauses, as in borgcell.
const (
	restartFirstNs  = 200 * millisecond
	restartMaxNs    = 10 * second
	restartForgetNs = 10 * second
)

// write does something that writes to the disk, and says whether the process
// lives on.
func (r *replicaNode) write(what string, do func() error) bool {
	if r.drawFailure(); !r.counts() {
		return false
	}
	err := do()
	if err == nil && r.disk.failure().err != nil {
		err = r.store.Append(nil, r.store.HardState(), true)
	}
	if err != nil {
		r.exit(what, err)
	}
	return err == nil
}

// drawFailure lets a disk that fails now and then fail now, or not.
func (r *replicaNode) drawFailure() {
	if r.errorPermille == 0 {
		return
	}
	f := failure{err: syscall.EIO, bytes: r.rand.Int64N(512), syncs: chance(r.rand, 500)}
	if !chance(r.rand, r.errorPermille) {
		f = failure{}
	} else if r.up {
		r.settleDisk()
	}
	r.disk.fail(f)
}

// settleDisk has written what the database was to write at a time of its own:
// the disk is about to fail, and what it still takes should not depend on that.
func (r *replicaNode) settleDisk() {
	if r.up && r.disk.failure().err == nil {
		if err := r.disk.writeAll(r.store, nil); err != nil {
			r.w.fail("replica %d: %v", r.id, err)
		}
	}
}

// step steps the core. What raft cannot read is its end.
func (r *replicaNode) step(events ...replica.Event) (out replica.Effects, ok bool) {
	defer func() {
		if !r.disk.failure().unreadable {
			return
		}
		if p := recover(); p != nil {
			r.exit("cannot read its log", fmt.Errorf("%v", p))
		}
	}()
	return r.core.Step(events...), true
}

func (r *replicaNode) pause() {
	if r.up && !r.paused {
		r.w.say("replica %d is stopped", r.id)
		r.paused, r.awaySinceNs = true, r.w.now
		r.w.failover.look()
	}
}

func (r *replicaNode) resume() {
	if !r.up || !r.paused {
		return
	}
	r.w.say("replica %d goes on", r.id)
	r.paused, r.awaySinceNs, r.resumedNs = false, 0, r.w.now
	r.w.failover.look()
	held, life := r.held, r.life
	r.held = nil
	for _, do := range held {
		r.enter(life, do)
	}
}

// tick lets ticks come. A ticker holds one tick at most for who is late.
func (r *replicaNode) tick() {
	life := r.life
	missed := false
	var next func()
	next = func() {
		if r.life != life || !r.up {
			return
		}
		if r.paused {
			if !missed {
				missed = true
				r.held = append(r.held, func() { missed = false; r.turn(replica.Tick{}) })
			}
		} else {
			r.turn(replica.Tick{})
		}
		r.w.after(r.clock.trueNs(tickNs), next)
	}
	// Replicas do not start in step.
	r.w.after(between(r.rand, 0, tickNs), next)
}

// turn is one turn of the raft goroutine.
func (r *replicaNode) turn(events ...replica.Event) {
	if out, ok := r.step(events...); ok {
		if r.handOut(out, nil); r.up {
			r.proposeQueued()
		}
	}
}

func (r *replicaNode) proposeQueued() {
	for {
		data := r.batches.Next(replica.Moment{
			State: r.core.State(), Appending: r.appending, Uncommitted: r.core.Uncommitted(), BaseTerm: r.baseTerm, BaseCellNs: r.baseCellNs,
			SinceElectedNs: r.monoNs() - r.electedNs, WallNs: r.clock.wallNs(r.w.now),
		}, func(x *waiter) bool { return r.w.now >= x.deadlineNs })
		if data == nil {
			return
		}
		out, ok := r.step(replica.Propose{Data: data})
		if !ok {
			return
		}
		taken := out.Proposed[0].Err == nil
		if !taken {
			r.batches.Back()
		}
		if r.handOut(out, nil); !taken || !r.up {
			return
		}
	}
}

func (r *replicaNode) handOut(out replica.Effects, in *checkpoint.Incoming) {
	if out.Changed {
		r.stateChanged(out.State)
	}
	for _, done := range out.Reads {
		r.waiting = append(r.waiting, waitingRead{done.Index, r.asked[done.ID]})
		delete(r.asked, done.ID)
	}
	r.answerReads()
	for _, a := range out.Append {
		r.proposesMembers(a.Entries)
		item := appendItem{append: a}
		if a.Snapshot != nil {
			item.received = in
		}
		r.appending++
		r.appendQueue = append(r.appendQueue, item)
	}
	r.appendSoon()
	r.applyQueue = append(r.applyQueue, out.Apply...)
	r.applySoon()
	for _, m := range out.Send {
		if r.up {
			r.sendRaft(m)
		}
	}
}

func (r *replicaNode) stateChanged(s replica.CoreState) {
	r.w.truth.follows(r.id, s)
	wasLeading, wasTerm := r.leading, r.term
	r.leading, r.term = s.Leading, s.Term
	if wasLeading && (!s.Leading || s.Term != wasTerm) {
		r.w.say("replica %d is no longer elected in term %d", r.id, wasTerm)
		fail(r.batches.TakePending(), borgmaster.ErrUnknownOutcome)
		fail(r.batches.TakeQueued(), borgmaster.ErrNotElected)
	}
	if s.Leading && (!wasLeading || s.Term != wasTerm) {
		r.electedNs = r.monoNs()
		r.w.say("replica %d is elected in term %d", r.id, s.Term)
		r.w.truth.elected(r.id, s.Term)
		r.reaches(newlyElected)
	}
	r.w.failover.look()
	r.after(0, func() { r.master.stateChanged() })
}

func fail(waiters []*waiter, err error) {
	for _, x := range waiters {
		x.done(nil, err)
	}
}

// propose queues an op; done hears what became of it, once, unless it is left
// out because the deadline is past.
func (r *replicaNode) propose(op *borgpb.Op, deadlineNs int64, done func(*borgpb.Result, error)) {
	data, err := proto.MarshalOptions{Deterministic: true}.Marshal(op)
	if err != nil {
		panic(err)
	}
	if !r.core.State().Leading {
		done(nil, borgmaster.ErrNotElected)
		return
	}
	if !r.batches.Put(replica.LaneOf(op), data, &waiter{done, deadlineNs}) {
		done(nil, borgmaster.ErrOverloaded)
		return
	}
	r.after(0, func() { r.turn() })
}

// read calls done when the cell here shows all that was committed when it was
// called; perhaps never.
func (r *replicaNode) read(done func()) {
	r.lastRead++
	r.asked[r.lastRead] = done
	r.turn(replica.Read{ID: r.lastRead})
}

func (r *replicaNode) answerReads() {
	for i := 0; i < len(r.waiting); {
		if x := r.waiting[i]; x.index <= r.cell.Index() {
			r.waiting = append(r.waiting[:i:i], r.waiting[i+1:]...)
			x.done()
			continue
		}
		i++
	}
}

// appendSoon writes what is queued once the disk is free. All that is queued
// when it comes to it shares one sync, as in the append goroutine.
func (r *replicaNode) appendSoon() {
	if r.appendBusy || len(r.appendQueue) == 0 {
		return
	}
	r.appendBusy = true
	n := 1
	if r.appendQueue[0].append.Snapshot == nil {
		for n < len(r.appendQueue) && r.appendQueue[n].append.Snapshot == nil {
			n++
		}
	}
	delay := between(r.rand, 100*microsecond, 2*millisecond) + r.w.swarm.syncNs
	if !r.w.healed && chance(r.rand, r.w.swarm.stallPermille) {
		delay = between(r.rand, 20*millisecond, second)
		r.w.mark("disk stall")
		r.hung = true
		r.w.failover.look()
	}
	if r.w.now < r.slowUntilNs {
		delay += between(r.rand, 5*millisecond, 50*millisecond)
	}
	if r.hangsUntilNs > r.w.now && !r.w.healed {
		delay = max(delay, r.hangsUntilNs-r.w.now)
		r.hung = true
		r.w.failover.look()
	}
	r.appendSinceNs = r.w.now
	r.reaches(beforeAppend)
	r.after(delay, func() {
		if r.hung {
			r.hung = false
			r.w.failover.look()
		}
		r.appendNow(n)
	})
}

func (r *replicaNode) appendNow(n int) {
	items := r.appendQueue[:n]
	if s := items[0].append.Snapshot; s != nil && !r.install(items[0]) {
		return
	}
	var groups [][]*raftpb.Entry
	var hard *raftpb.HardState
	sync := false
	for _, it := range items {
		if len(it.append.Entries) > 0 {
			groups = append(groups, it.append.Entries)
		}
		if it.append.Hard != nil {
			hard = it.append.Hard
		}
		sync = sync || it.append.Sync
	}
	last, _ := r.store.LastIndex()
	term := r.store.HardState().GetTerm()
	if len(groups) > 0 || hard != nil {
		if !r.write("cannot write its log", func() error { return r.store.Append(groups, hard, sync) }) {
			return
		}
	}
	r.reaches(afterAppend)
	if len(groups) > 0 && groups[0][0].GetIndex() <= last {
		r.reaches(replacedEntries)
	}
	if hard.GetTerm() > term {
		r.reaches(newerTerm)
	}
	r.bounded()
	r.appendQueue = r.appendQueue[n:]
	r.appendBusy, r.appendSinceNs = false, 0
	r.appending -= n
	events := make([]replica.Event, n)
	for i, it := range items {
		events[i] = replica.Appended{Append: it.append}
	}
	r.turn(events...)
	r.appendSoon()
}

// applySoon applies what is queued, one after the other.
func (r *replicaNode) applySoon() {
	if r.applyBusy || len(r.applyQueue) == 0 {
		return
	}
	r.applyBusy = true
	r.after(r.master.shared(between(r.rand, 10*microsecond, 300*microsecond)+r.workNs(r.applyQueue[0]), r.master.reading+1), func() {
		r.applyBusy = false
		if len(r.applyQueue) == 0 {
			return
		}
		a := r.applyQueue[0]
		r.applyQueue = r.applyQueue[1:]
		r.apply(a)
		r.applySoon()
	})
}

// workNs is how long the ops of what is to be applied take.
func (r *replicaNode) workNs(a *replica.Apply) (ns int64) {
	if r.w.swarm.applyNs == 0 {
		return 0
	}
	for _, e := range a.Entries {
		entry := new(borgpb.Entry)
		if e.Entry.GetType() == raftpb.EntryNormal && proto.Unmarshal(e.Entry.GetData(), entry) == nil {
			ns += int64(len(entry.Ops)) * r.w.swarm.applyNs
		}
	}
	return ns
}

func (r *replicaNode) apply(a *replica.Apply) {
	for _, e := range a.Entries {
		if r.applyEntry(e); !r.up {
			return
		}
	}
	// As its own turn: apply may be called from within one.
	r.after(0, func() { r.turn(replica.Applied{Apply: a}) })
}

func (r *replicaNode) applyEntry(e replica.Committed) {
	ce := borgmaster.CommittedEntry{Index: e.Entry.GetIndex(), Term: e.Entry.GetTerm()}
	if e.Entry.GetType() == raftpb.EntryNormal {
		ce.Data = e.Entry.GetData()
	}
	results, events := r.cell.Apply(ce.Index, ce.Term, ce.Data)
	if err := r.cell.Diverged(); err != nil && r.build < cell.BuildFormat {
		r.tooOld(err)
		return
	} else if err != nil {
		r.w.fail("replica %d: %v", r.id, err)
	}
	r.w.truth.applied(r.id, ce, r.cell)
	if ce.Index+caughtUpLag >= r.w.truth.index {
		r.inRow = 0
	}
	if e.Members != nil {
		if r.w.membersChanged(ce.Index, e.Members); slices.Contains(e.Members.Removed, r.id) {
			r.leaves()
			return
		}
	}
	r.reaches(appliedNotKept)
	if ce.Term != r.baseTerm {
		r.baseTerm, r.baseCellNs = ce.Term, r.cell.TimeNs()
	}
	mine, isMine := r.batches.Mine(ce.Term, ce.Data)
	if op := replica.DigestOp(r.cell, ce.Index); op != nil && r.core.State().Settled {
		r.w.mark("digest logged")
		r.propose(op, r.w.now+dutyTimeoutNs, func(*borgpb.Result, error) {})
	}
	r.master.applied(ce, events)
	// Whoever reads finds the watches where the cell is.
	r.answerReads()
	if !isMine {
		return
	}
	if len(mine) != len(results) {
		r.w.fail("replica %d has %d results for %d ops at index %d", r.id, len(results), len(mine), ce.Index)
		return
	}
	for i, x := range mine {
		x.done(results[i], nil)
	}
}

// flushSoon writes changed records behind, and drops what of the log is no
// longer needed.
func (r *replicaNode) flushSoon() {
	r.after(r.w.swarm.flushNs, func() {
		r.flush()
		if r.up {
			r.flushSoon()
		}
	})
}

func (r *replicaNode) flush() {
	if !replica.NeedsFlush(r.store, r.cell) {
		return
	}
	f, h := replica.PrepareFlush(r.store, r.cell, r.core.Members())
	r.write("cannot write its records", func() error {
		if err := f.Commit(h); err != nil {
			return err
		}
		return r.store.Compact(^uint64(0), r.holds.From(^uint64(0), r.monoNs()))
	})
}

func (r *replicaNode) sendRaft(m *raftpb.Message) {
	to := r.w.nodes[m.GetTo()]
	if m.GetType() == raftpb.MsgSnap {
		r.sendSnapshot(to, m)
		return
	}
	m = proto.CloneOf(m)
	r.w.send(replicaEnd(r.id), replicaEnd(to.id), func() {
		to.arrive(func() {
			if !to.hears(identity.Name{Cell: cellName, Role: identity.Master, ID: fmt.Sprint(r.id)}, m) {
				return
			}
			if slices.Contains(to.core.Members().Removed, r.id) {
				r.w.send(replicaEnd(to.id), replicaEnd(r.id), func() { r.arrive(r.leaves) })
				return
			}
			r.w.say("raft %d>%d %v term %d index %d", m.GetFrom(), m.GetTo(), m.GetType(), m.GetTerm(), m.GetIndex())
			to.turn(replica.Receive{Message: m})
		})
	})
}

// raftLog hears raft's last words only.
type raftLog struct{}

func (raftLog) Debug(...any)              {}
func (raftLog) Debugf(string, ...any)     {}
func (raftLog) Info(...any)               {}
func (raftLog) Infof(string, ...any)      {}
func (raftLog) Warning(...any)            {}
func (raftLog) Warningf(string, ...any)   {}
func (raftLog) Error(...any)              {}
func (raftLog) Errorf(string, ...any)     {}
func (raftLog) Fatal(v ...any)            { panic("raft: " + fmt.Sprint(v...)) }
func (raftLog) Fatalf(f string, v ...any) { panic("raft: " + fmt.Sprintf(f, v...)) }
func (raftLog) Panic(v ...any)            { panic("raft: " + fmt.Sprint(v...)) }
func (raftLog) Panicf(f string, v ...any) { panic("raft: " + fmt.Sprintf(f, v...)) }
