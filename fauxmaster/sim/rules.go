package sim

import (
	"fmt"
	"strings"

	"google.golang.org/protobuf/proto"

	"borg/borglet"
	"borg/borgmaster"
	"borg/borgmaster/cell"
	"borg/proto/borgpb"
	"borg/proto/borgrpc"
)

// called is a machine that was called down.
type called struct {
	machine string
	term    uint64
	ns      int64
}

// rules is what the rules below remember of what was decided and what was
// tried.
type rules struct {
	// The machines that elected replicas called down, in order.
	downs []called
	// Until when an operator believes that any number of machines is lost.
	lostUntilNs int64
	// When each replica last failed to reach each machine, since when it has failed,
	// and when any last reached it.
	unreachedNs map[string]map[uint64]int64
	missed      map[string]map[uint64]missing
	reachedNs   map[string]int64
	// When an elected master last took a report of each replica, and since when it
	// does with no long pause.
	reportedNs, contactNs map[uint64]int64
	// What each copy may use as the log has it, and when its last process
	// started.
	holds     map[borglet.ID]cell.Resources
	startedNs map[borglet.ID]int64
	// When crashes of each job were logged lately.
	crashes map[string][]int64
	// When machines died together with the elected master.
	diedNs map[string]int64
	// When machines came back together with all others.
	backNs map[string]int64
}

// missing is a time in which a replica did not reach a machine; endedNs is 0 while it
// lasts.
type missing struct{ sinceNs, endedNs int64 }

func newRules() rules {
	return rules{
		unreachedNs: map[string]map[uint64]int64{}, reachedNs: map[string]int64{},
		missed: map[string]map[uint64]missing{}, reportedNs: map[uint64]int64{}, contactNs: map[uint64]int64{},
		holds: map[borglet.ID]cell.Resources{}, startedNs: map[borglet.ID]int64{}, crashes: map[string][]int64{}, diedNs: map[string]int64{},
		backNs: map[string]int64{},
	}
}

// The times of the duties (borgmaster/duty), less what clocks may be off by.
const (
	missedForNs  = 1600 * millisecond
	contactForNs = 4500 * millisecond
	decidedNs    = second
	noContactNs  = 8 * second
	downsNs      = 45 * second
	witnessNs    = 60 * second
	awayNs       = 12 * second
	restartGapNs = 150 * millisecond
)

// unreached notes that a replica tried a machine in vain.
func (t *truth) unreached(replica uint64, machine string) {
	if t.unreachedNs[machine] == nil {
		t.unreachedNs[machine], t.missed[machine] = map[uint64]int64{}, map[uint64]missing{}
	}
	t.unreachedNs[machine][replica] = t.w.now
	if last, ok := t.missed[machine][replica]; !ok || last.endedNs != 0 {
		t.missed[machine][replica] = missing{sinceNs: t.w.now}
	}
}

// reported notes that the elected master took a report of a replica.
func (t *truth) reported(replica uint64) {
	if t.w.now-t.reportedNs[replica] > noContactNs {
		t.contactNs[replica] = t.w.now
	}
	t.reportedNs[replica] = t.w.now
}

// missedFor is for how long a replica that has been in contact with an elected master
// for a while has missed a machine: that which has for the longest. What has just ended
// still counts, as a verdict takes its time.
func (t *truth) missedFor(machine string) (ns int64) {
	for replica, m := range t.missed[machine] {
		recent := m.endedNs == 0 || t.w.now-m.endedNs < decidedNs+t.w.swarm.dutyLateNs
		if recent && t.w.now-t.contactNs[replica] >= contactForNs {
			ns = max(ns, t.w.now-m.sinceNs)
		}
	}
	return ns
}

// down: S17, a machine is called down by the master of that term, when it was missed
// for a while in which the replica was in contact, when two replicas did not reach it, of as
// many as there are, and not many at once.
func (t *truth) down(e borgmaster.CommittedEntry, o *borgpb.MachineDown) {
	if o.Term != e.Term {
		t.w.fail("S17: the master of term %d called %s down, which is done in term %d", o.Term, o.Name, e.Term)
	}
	if missed := t.missedFor(o.Name); missed < missedForNs {
		t.w.fail("S17: %s is called down when no replica in contact has missed it for more than %d ms", o.Name, missed/millisecond)
	}
	if at, ok := t.diedNs[o.Name]; ok && t.w.now-at < hostSoonNs {
		t.w.fail("S17: %s is called down, and died with the elected master %d ms ago", o.Name, (t.w.now-at)/millisecond)
	}
	if at, ok := t.backNs[o.Name]; ok && t.w.now-at < backForNs {
		t.w.fail("S17: %s is called down, and came back with many others %d ms ago", o.Name, (t.w.now-at)/millisecond)
	}
	// What the duties decided may be proposed late.
	late, witnesses := t.w.swarm.dutyLateNs, 0
	for _, at := range t.unreachedNs[o.Name] {
		if t.w.now-at < witnessNs+late {
			witnesses++
		}
	}
	// One replica alone has no second one to ask.
	if witnesses < 2 && !(t.w.wasAlone(decidedNs+late) && witnesses == 1) {
		t.w.fail("S17: %s is called down, and %d replicas failed to reach it", o.Name, witnesses)
	}
	// What masters before have called down is known of machines that are down still, by the
	// wall clock, which may have been set.
	perMinute, lately, inTerm := max(len(t.w.machines)/10, 1), 1, 1
	for _, d := range t.downs {
		if t.w.now-d.ns >= downsNs {
			continue
		}
		if m := t.cell.Machine(d.machine); m != nil && !m.Up() {
			lately++
		}
		if d.term == e.Term {
			inTerm++
		}
	}
	if (inTerm > perMinute || lately > 2*perMinute) && late == 0 {
		t.w.fail("S17: %d machines are called down within %d s, %d of them in term %d, the last is %s", max(lately, inTerm), downsNs/second, inTerm, e.Term, o.Name)
	}
	t.downs = append(t.downs, called{o.Name, e.Term, t.w.now})
	away, n := 0, 0
	for _, m := range t.w.machines {
		// One that was never reached may not have been added yet.
		if at, ok := t.reachedNs[m.name]; ok {
			if n++; t.w.now-at > awayNs {
				away++
			}
		}
	}
	if n >= 5 && away*100 > 60*n && t.w.now > t.lostUntilNs && late == 0 {
		t.w.fail("S17: %s is called down, nobody reaches %d of %d machines, and nobody declared them lost", o.Name, away, n)
	}
}

// reached notes that a replica reached a machine.
func (t *truth) reached(replica uint64, machine string) {
	t.reachedNs[machine] = t.w.now
	if last, ok := t.missed[machine][replica]; ok && last.endedNs == 0 {
		last.endedNs = t.w.now
		t.missed[machine][replica] = last
	}
}

// declared notes until when an operator believes that machines are lost, however many.
func (t *truth) declared(o *borgpb.DeclareLost) {
	t.lostUntilNs = t.w.now + o.ForNs + t.w.swarm.dutyLateNs + second
	if o.ForNs > 0 {
		t.w.mark("machines declared lost")
	}
}

// taskEdges is the paper's diagram (§2.3, figure 2) as the events of tasks tell
// it.
var taskEdges = map[borgpb.EventKind][][2]borgpb.State{
	borgpb.EventKind_EVENT_KIND_SCHEDULE: {{borgpb.State_STATE_PENDING, borgpb.State_STATE_RUNNING}},
	borgpb.EventKind_EVENT_KIND_RETURN:   {{borgpb.State_STATE_PENDING, borgpb.State_STATE_RUNNING}},
	borgpb.EventKind_EVENT_KIND_EVICT:    {{borgpb.State_STATE_RUNNING, borgpb.State_STATE_PENDING}},

	borgpb.EventKind_EVENT_KIND_QUARANTINE: {{borgpb.State_STATE_RUNNING, borgpb.State_STATE_PENDING}},
	borgpb.EventKind_EVENT_KIND_RELEASE:    {{borgpb.State_STATE_UNSPECIFIED, borgpb.State_STATE_UNSPECIFIED}},
	borgpb.EventKind_EVENT_KIND_FAIL: {
		{borgpb.State_STATE_RUNNING, borgpb.State_STATE_PENDING}, {borgpb.State_STATE_RUNNING, borgpb.State_STATE_DEAD},
	},
	borgpb.EventKind_EVENT_KIND_FINISH: {{borgpb.State_STATE_RUNNING, borgpb.State_STATE_DEAD}},
	borgpb.EventKind_EVENT_KIND_KILL: {
		{borgpb.State_STATE_RUNNING, borgpb.State_STATE_DEAD}, {borgpb.State_STATE_PENDING, borgpb.State_STATE_DEAD},
	},
	borgpb.EventKind_EVENT_KIND_LOST: {{borgpb.State_STATE_RUNNING, borgpb.State_STATE_DEAD}},
	borgpb.EventKind_EVENT_KIND_UPDATE_RUNNING: {
		{borgpb.State_STATE_RUNNING, borgpb.State_STATE_RUNNING}, {borgpb.State_STATE_RUNNING, borgpb.State_STATE_PENDING},
	},
	borgpb.EventKind_EVENT_KIND_START:   {{borgpb.State_STATE_RUNNING, borgpb.State_STATE_RUNNING}},
	borgpb.EventKind_EVENT_KIND_RESTART: {{borgpb.State_STATE_RUNNING, borgpb.State_STATE_RUNNING}},

	borgpb.EventKind_EVENT_KIND_NOT_STARTED: {{borgpb.State_STATE_RUNNING, borgpb.State_STATE_RUNNING}},
	borgpb.EventKind_EVENT_KIND_OOM_KILL:    {{borgpb.State_STATE_RUNNING, borgpb.State_STATE_RUNNING}},
	// A machine has come to match a daemon job.
	borgpb.EventKind_EVENT_KIND_SEAT:    {{borgpb.State_STATE_UNSPECIFIED, borgpb.State_STATE_PENDING}},
	borgpb.EventKind_EVENT_KIND_STOPPED: {{borgpb.State_STATE_UNSPECIFIED, borgpb.State_STATE_UNSPECIFIED}},
}

// taskEvent: S16, tasks move along the paper's edges only; S9, no copy is named
// twice.
func (t *truth) taskEvent(e *cell.Event) {
	legal := false
	for _, edge := range taskEdges[e.Kind] {
		legal = legal || edge == [2]borgpb.State{e.From, e.To}
	}
	id := borglet.ID{JobUID: e.UID.String(), Index: e.Task, Attempt: e.Attempt}
	if !legal {
		t.w.fail("S16: %v takes copy %s from %v to %v", e.Kind, id, e.From, e.To)
	}
	if _, named := t.assigned[id]; named && e.Kind == borgpb.EventKind_EVENT_KIND_SCHEDULE {
		t.w.fail("S9: two copies are named %s", id)
	}
	if x := t.cell.Machine(e.Machine); x != nil {
		if p := x.Copy(cell.CopyID{Job: e.UID, Index: e.Task, Attempt: e.Attempt}); p != nil && p.Current() {
			t.holds[id] = p.Resources()
		}
	}
}

// holding is the room of a copy as the log has it, or had it last when the copy
// was its task's current one: a process that is told to stop uses it still.
func (t *truth) holding(m *machine, id borglet.ID) cell.Resources {
	if p := t.copyOf(m, id); p != nil && p.Resources().CPUMilli > 0 {
		return p.Resources()
	}
	return t.holds[id]
}

// isProd tells whether a process is one of production, as far as is known.
func (t *truth) isProd(m *machine, id borglet.ID) bool {
	p := t.copyOf(m, id)
	return p != nil && p.Priority() >= prodPriority
}

// fits: S6, the processes that run on a machine fit it, by what the log last
// gave each of them.
func (t *truth) fits(m *machine, id borglet.ID) {
	var used cell.Resources
	for _, other := range m.Running() {
		// What does not use all it may leaves room for others than production.
		if t.w.swarm.reclaims && !t.isProd(m, other) {
			continue
		}
		// A saver starts where its directory is, whatever is free there.
		if p := t.copyOf(m, other); p != nil && p.Saves() != "" {
			continue
		}
		used = used.Add(t.holding(m, other))
	}
	if has := cell.FromProto(m.spec().Capacity); used.CPUMilli > has.CPUMilli || used.MemBytes > has.MemBytes {
		t.w.fail("S6: with copy %s what runs on %s may use %d milli-cores and %d bytes, and it has %d and %d%s",
			id, m.name, used.CPUMilli, used.MemBytes, has.CPUMilli, has.MemBytes, t.holders(m))
	}
}

// holders says who runs on a machine, and as what.
func (t *truth) holders(m *machine) string {
	var each strings.Builder
	for _, id := range m.Running() {
		fmt.Fprintf(&each, "; %s %d milli-cores", id, t.holding(m, id).CPUMilli)
		if p := t.copyOf(m, id); p != nil {
			fmt.Fprintf(&each, ", %s of priority %d, %v, waits %v claimed %v", p.TaskID(), p.Priority(), p.State(), p.Waits(), p.Claimed())
		}
	}
	return each.String()
}

// notTooSoon: S18, a copy that ended starts again after a pause.
func (t *truth) notTooSoon(m *machine, id borglet.ID) {
	if last, ok := t.startedNs[id]; ok && t.w.now-last < restartGapNs {
		t.w.fail("S18: copy %s starts on %s %d ms after it last started", id, m.name, (t.w.now-last)/millisecond)
	}
	t.startedNs[id] = t.w.now
}

// moved: S19, who is moved has a place to go to at the same index.
func (t *truth) moved(e *cell.Event, after []cell.Event) {
	t.w.mark("task moved")
	for i := range after {
		if o := &after[i]; o.Kind == borgpb.EventKind_EVENT_KIND_SCHEDULE && o.UID == e.UID && o.Task == e.Task && o.Machine != e.Machine {
			return
		}
	}
	t.w.fail("S19: %s is moved away from %s at index %d, and has no place", e.Object(), e.Machine, e.Index)
}

// askedAnew: of so many polls one is looked at.
const askedAnew = 8

// asks: S28, a machine that rests is asked by each poll what it would be asked if
// nothing were kept.
func (t *truth) asks(replica uint64, req, afresh *borgrpc.PollRequest) {
	plain := &borgrpc.PollRequest{
		Fence: req.Fence, Machine: req.Machine, Desired: req.Desired, Stops: req.Stops, Forget: req.Forget,
		KnownHash: req.KnownHash, Replica: req.Replica, Describe: req.Describe, Packages: req.Packages,
		AllocNetworks: req.AllocNetworks, KeepAllocs: req.KeepAllocs,
		KeepVolumes: req.KeepVolumes, DeleteVolumes: req.DeleteVolumes,
	}
	if !proto.Equal(plain, afresh) {
		t.w.fail("S28: replica %d polls %s by the orders of before: %v, and now they are %v", replica, req.Machine, plain, afresh)
	}
}
