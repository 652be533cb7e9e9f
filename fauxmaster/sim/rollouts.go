package sim

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"borg/borgmaster/cell"
	"borg/history"
	"borg/proto/borgpb"
)

// S31: updates keep to their batch and their cap, rollbacks too; none but canaries try
// what was not promoted; and an update whose tasks fail too often, or that gets no
// further for too long, ends. What an update does is counted here from the events,
// by the policy that its spec had when it was asked for.

// rollout is what an update of a job has done.
type rollout struct {
	uid    string
	policy *borgpb.UpdatePolicy
	// It takes another one back.
	rollback bool
	// What it may do is not known, because a newer one took its place in the entry in which
	// it began: it is not judged, but whom it took down is down for those that follow.
	unknown bool
	// Tasks that it took down and that were not seen starting since.
	down map[uint32]bool
	// Tasks that it disturbed and that may not be up for good yet; and those of the
	// update before it, which it may deal with however many they are: they are down
	// already.
	shaky, inherited map[uint32]bool
	// How often it disturbed a task, and how often one of those in down failed.
	disturbed, failures uint32
	// Cell time at which it may last have got further, and how many tasks it had dealt
	// with, left and yet to deal with then.
	movedNs int64
	counts  [5]uint32
	pace    pace
}

// rollingName tells jobs that are updated again and again. Their versions change by
// themselves too, so no history of them is judged.
func rollingName(name string) bool { return strings.HasPrefix(name, "r") }

// recorded tells whether the history of a mutation is judged.
func recorded(r history.Record) history.Record {
	if _, name, _ := strings.Cut(r.Key, "/"); rollingName(name) || standingName(name) {
		return history.Record{}
	}
	return r
}

// giantCPU fits on no machine.
const giantCPU = 100_000_000

// rolloutOp makes, updates, and has a say in jobs that are there for that.
func (c *client) rolloutOp() *borgpb.Op {
	r := c.rand
	user, name := c.user(), fmt.Sprintf("r%d", r.IntN(2))
	j := c.w.truth.cell.Job(cell.JobKey{User: user, Name: name})
	if j == nil || j.State() == borgpb.State_STATE_DEAD {
		return c.submit(name, c.rollingSpec(3+uint32(r.IntN(5)), 0))
	}
	u := c.w.truth.cell.UpdateProto(j)
	verb := borgpb.UpdateVerb(1 + r.IntN(7))
	switch u.GetStatus().GetState() {
	case borgpb.UpdateState_UPDATE_STATE_CANARY:
		if verb = borgpb.UpdateVerb_UPDATE_VERB_PROMOTE; r.IntN(3) == 0 {
			verb = borgpb.UpdateVerb_UPDATE_VERB_ROLLBACK
		}
	case borgpb.UpdateState_UPDATE_STATE_PAUSED:
		if verb = borgpb.UpdateVerb_UPDATE_VERB_RESUME; r.IntN(3) == 0 {
			verb = borgpb.UpdateVerb_UPDATE_VERB_ROLLBACK
		}
	case borgpb.UpdateState_UPDATE_STATE_DONE, borgpb.UpdateState_UPDATE_STATE_FAILED:
		if verb = borgpb.UpdateVerb_UPDATE_VERB_ROLLBACK; r.IntN(2) == 0 {
			verb = 0
		}
	default:
		// It goes its way, mostly; that of the first job nearly always, so that some
		// come to their deadlines.
		if r.IntN(5) > 0 || name == "r0" {
			verb = 0
		}
	}
	if name == "r0" && u.GetStatus().GetState() == borgpb.UpdateState_UPDATE_STATE_ROLLING && r.IntN(60) > 0 {
		return &borgpb.Op{Op: &borgpb.Op_ResizeJob{ResizeJob: &borgpb.ResizeJob{User: user, Name: name, Tasks: j.Size()}}}
	}
	control := &borgpb.Op{Op: &borgpb.Op_ControlUpdate{ControlUpdate: &borgpb.ControlUpdate{User: user, Name: name, Verb: verb}}}
	switch n := r.IntN(20); {
	case verb != 0:
		return control
	case n == 0:
		return &borgpb.Op{Op: &borgpb.Op_KillJob{KillJob: &borgpb.KillJob{User: user, Name: name}}}
	case n == 1:
		return &borgpb.Op{Op: &borgpb.Op_ResizeJob{ResizeJob: &borgpb.ResizeJob{User: user, Name: name, Tasks: uint32(2 + r.IntN(6))}}}
	case u.GetStatus().GetState() == borgpb.UpdateState_UPDATE_STATE_ROLLING && n > 4:
		return &borgpb.Op{Op: &borgpb.Op_ResizeJob{ResizeJob: &borgpb.ResizeJob{User: user, Name: name, Tasks: j.Size()}}}
	}
	spec := c.rollingSpec(j.Size(), c.made)
	c.w.mark("update with a policy")
	return &borgpb.Op{Op: &borgpb.Op_UpdateJob{UpdateJob: &borgpb.UpdateJob{User: user, Name: name, Spec: encode(spec)}}}
}

// rollingSpec is a job that runs for ever, or a version of it that is no good: it ends at
// once again and again, or asks for more than there is.
func (c *client) rollingSpec(tasks uint32, version int) *borgpb.JobSpec {
	r := c.rand
	p := &borgpb.UpdatePolicy{
		BatchSize: uint32(1 + r.IntN(2)), MaxDisruptions: uint32(r.IntN(2) * (1 + r.IntN(4))),
		Order: borgpb.UpdateOrder(r.IntN(3)), WatchNs: r.Int64N(3) * 100 * millisecond, AutoRollback: r.IntN(2) == 0,
		NoNeighbours: r.IntN(3) == 0, CloseAfterNs: between(r, second, 4*second),
	}
	p.ProgressDeadlineNs = p.WatchNs + between(r, 500*millisecond, 2*second)
	if r.IntN(2) == 0 {
		p.MaxFailed = new(uint32(r.IntN(2)))
	}
	c.paced(p)
	if r.IntN(2) == 0 {
		p.Canaries, p.CanaryWatchNs = 1, r.Int64N(2)*300*millisecond
	}
	spec := &borgpb.JobSpec{
		Kind: borgpb.JobKind_JOB_KIND_SERVICE, Tasks: tasks, Priority: 200, Update: p,
		Task: &borgpb.TaskSpec{
			Resources: &borgpb.Resources{CpuMilli: 50, MemBytes: 16 << 20, DiskBytes: 1 << 20},
			Args:      []string{"/bin/task", "0", "0"}, GraceNs: 100 * millisecond, Env: map[string]string{"VERSION": fmt.Sprint(version)},
		},
	}
	if version == 0 {
		return spec
	}
	switch r.IntN(4) {
	case 0:
		spec.Task.Args = []string{"/bin/task", "30", "1"}
	case 1:
		spec.Task.Resources.CpuMilli = giantCPU
	}
	return spec
}

// rollouts looks at what one entry did by updates.
func (t *truth) rollouts(events []cell.Event) {
	if !t.w.swarm.updates || t.cell.Format() < cell.FormatUpdates {
		return
	}
	for i := range events {
		ev := &events[i]
		if !rollingName(ev.Key.Name) {
			continue
		}
		j := t.cell.JobByUID(ev.UID)
		if ev.ObjectKind == borgpb.ObjectKind_OBJECT_KIND_UPDATE {
			t.rolloutEvent(ev)
		} else if x := t.rolling[ev.Key]; ev.ObjectKind == borgpb.ObjectKind_OBJECT_KIND_TASK && j != nil && x != nil {
			t.rolloutTask(ev, j, x)
		}
	}
	for _, key := range slices.SortedFunc(maps.Keys(t.rolling), cell.JobKey.Compare) {
		t.rolloutStands(key, t.rolling[key])
	}
}

// rolloutEvent begins to count anew when an update begins.
func (t *truth) rolloutEvent(ev *cell.Event) {
	x := t.rolling[ev.Key]
	if x != nil && x.uid == ev.UID.String() {
		x.movedNs = t.cell.TimeNs()
		x.paceEvent(ev)
	}
	if ev.Kind != borgpb.EventKind_EVENT_KIND_UPDATE_START {
		return
	}
	delete(t.rolling, ev.Key)
	j := t.cell.Job(ev.Key)
	if j == nil || j.Update() == nil {
		return
	}
	n := &rollout{uid: ev.UID.String(), down: map[uint32]bool{}, shaky: map[uint32]bool{}, movedNs: t.cell.TimeNs(), pace: newPace()}
	n.pace.size = j.Size()
	if x != nil {
		n.inherited = x.shaky
		maps.Copy(n.inherited, x.inherited)
		n.pace.runs = x.pace.runs
	}
	if j.Update().UID() == ev.UID {
		n.policy, n.rollback = j.Spec().GetUpdate(), t.cell.UpdateProto(j).Spec.Rollback
	} else {
		// Another one took its place in the same entry.
		n.unknown = true
	}
	if n.rollback {
		t.w.mark("update rolled back")
		if x == nil {
			return
		}
		n.policy, n.unknown = x.policy, x.unknown
	}
	t.rolling[ev.Key] = n
}

// rolloutTask judges what happens to a task of a job that is updated.
func (t *truth) rolloutTask(ev *cell.Event, j *cell.Job, x *rollout) {
	switch {
	case ev.Cause == borgpb.StopCause_STOP_CAUSE_UPDATE && ev.To == borgpb.State_STATE_PENDING:
		if !strings.HasSuffix(ev.Reason, x.uid) {
			return
		}
		// Who did not run is dealt with however many are down: nothing is taken from it.
		again := x.shaky[ev.Task] || x.pace.runs != nil && !x.pace.runs[ev.Task]
		x.down[ev.Task] = true
		x.shaky[ev.Task] = true
		x.disturbed++
		if x.inherited[ev.Task] {
			delete(x.inherited, ev.Task)
		} else if x.unknown {
			return
		} else if n := len(x.down); !again && n > x.mayTakeDown(j) {
			t.w.fail("S31: with %s, %d tasks are down for update %s at index %d, which may take down %d at once", ev.Object(), n, x.uid, ev.Index, x.mayTakeDown(j))
		} else if !again {
			t.paceTask(ev, j, x)
		}
		if most := x.policy.GetMaxDisruptions(); most > 0 && x.disturbed > most {
			t.w.fail("S31: with %s, update %s has disturbed tasks %d times at index %d, and may %d times", ev.Object(), x.uid, x.disturbed, ev.Index, most)
		}
		t.w.mark("task disturbed by an update with a policy")
	case ev.Kind == borgpb.EventKind_EVENT_KIND_RESTART:
		x.pace.paceRestarts(ev.Task)
		task := j.Task(ev.Task)
		if x.down[ev.Task] && task != nil && task.Current() != nil && task.Current().Attempt() == ev.Attempt {
			x.failures++
		}
		x.movedNs = t.cell.TimeNs()
		// It may run already.
		delete(x.down, ev.Task)
		x.shaky[ev.Task] = true
	case ev.Kind == borgpb.EventKind_EVENT_KIND_START, ev.Kind == borgpb.EventKind_EVENT_KIND_RETURN, ev.To == borgpb.State_STATE_DEAD:
		delete(x.down, ev.Task)
		x.pace.paceRuns(ev.Task, ev.To != borgpb.State_STATE_DEAD)
		// Who is watched may fail without another event, and is down again.
		if x.policy.GetWatchNs() == 0 || ev.To == borgpb.State_STATE_DEAD {
			delete(x.shaky, ev.Task)
		}
		delete(x.inherited, ev.Task)
		x.movedNs = t.cell.TimeNs()
	case ev.Kind == borgpb.EventKind_EVENT_KIND_UPDATE_RUNNING:
		x.movedNs = t.cell.TimeNs()
	}
}

// rolloutStands judges how an update is left by an entry.
func (t *truth) rolloutStands(key cell.JobKey, x *rollout) {
	j := t.cell.Job(key)
	if j == nil || j.Update() == nil || j.Update().UID().String() != x.uid || !j.Update().Rolling() {
		clear(x.down)
		clear(x.shaky)
		x.pace.runs = nil
		return
	}
	t.paceStands(j, x)
	if x.unknown {
		return
	}
	u := t.cell.UpdateProto(j)
	// No event tells that those before were watched for long enough.
	s := u.Status
	if counts := [...]uint32{s.InPlace, s.Restarted, s.Rescheduled, s.Skipped, s.Remaining}; counts != x.counts {
		x.counts, x.movedNs = counts, t.cell.TimeNs()
	}
	_, held := t.cell.Held()
	switch st := u.Status; {
	case st.State == borgpb.UpdateState_UPDATE_STATE_PAUSED, st.State == borgpb.UpdateState_UPDATE_STATE_CANARY:
		x.movedNs = t.cell.TimeNs()
	case !x.rollback && !held && x.policy.MaxFailed != nil && x.failures > x.policy.GetMaxFailed():
		t.w.fail("S31: tasks of update %s have failed %d times at index %d, it bears %d, and it goes on", x.uid, x.failures, t.index, x.policy.GetMaxFailed())
	default:
		if held || strings.HasPrefix(st.WaitsFor, "its gate") {
			x.movedNs = t.cell.TimeNs()
		}
		if quiet := t.cell.TimeNs() - x.movedNs; x.policy.GetProgressDeadlineNs() > 0 && quiet > x.policy.GetProgressDeadlineNs()+x.policy.GetWatchNs()+second {
			t.w.fail("S31: update %s got no further for %d ms at index %d, and its deadline is %d ms", x.uid, quiet/millisecond, t.index, x.policy.GetProgressDeadlineNs()/millisecond)
		}
	}
	if x.rollback || !j.Mixed() {
		return
	}
	tried := uint32(0)
	for _, task := range j.Tasks() {
		if p := task.Current(); p != nil && p.Version() == u.Spec.ToVersion {
			tried++
		}
	}
	if tried > x.policy.GetCanaries() {
		t.w.fail("S31: %d tasks of %v run at index %d what %d canaries should try", tried, key, t.index, x.policy.GetCanaries())
	}
	if tried > 0 {
		t.w.mark("canary runs")
	}
}

// waitsForSomebody tells whether the update of a job goes no further by itself.
func (t *truth) waitsForSomebody(j *cell.Job) bool {
	st := t.cell.UpdateProto(j).GetStatus()
	return st.GetState() == borgpb.UpdateState_UPDATE_STATE_PAUSED || st.GetState() == borgpb.UpdateState_UPDATE_STATE_CANARY && st.GetPromoteLeftNs() == 0
}
