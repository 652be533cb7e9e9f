package sim

import (
	"fmt"
	"slices"

	"google.golang.org/protobuf/proto"

	"borg/borgmaster/cell"
	"borg/proto/borgpb"
)

// S42, since format 11: a service whose process crashed five times in a row leaves its
// machine, if another one takes it; if it crashes there too, it stays until the first crash
// is forgotten. What is forgotten when doubles with each crash in a row. Since format 12 nobody
// leaves while more than half of the tasks of his job that have a place wait to be started
// again, on three machines or more.
const (
	crashesInARow = 5
	asJobMachines = 3
	mostDoubled   = 6
	rowOverNs     = 24 * 3600 * second
	mostLive      = 16
)

// crashRow is what is to be remembered of a task's crashes.
type crashRow struct {
	machine string
	version uint64
	copies  int
	ns      int64
	// A service that was moved for it has crashed elsewhere too.
	everywhere bool
	// Something else in an entry may have come between: it is not known what is remembered.
	unsure bool
}

func (r *crashRow) untilNs() int64 {
	if r.copies < 2 {
		return r.ns
	}
	return r.ns + crashedAwayNs<<(r.copies-2)
}

// counts tells whether a row counts at a time, for a spec.
func (r *crashRow) counts(version uint64, ns int64) bool {
	return r != nil && r.version == version && ns < r.untilNs()
}

func (m *crashModel) unsure(task *cell.Task) bool { return m.rows[task] != nil && m.rows[task].unsure }

// add goes on with the row of a task, or begins another.
func (m *crashModel) add(task *cell.Task, machine string, version uint64, ns int64, least int) {
	next := &crashRow{machine: machine, version: version, copies: least, ns: ns}
	switch was := m.rows[task]; {
	case was == nil:
		// Copies crashed before the format was raised.
		for i, x := range slices.Backward(m.of[task]) {
			if !x.crashed || x.machine != machine || x.version != version || len(m.of[task])-i > crashesRemembered {
				break
			}
			next.copies = max(next.copies, len(m.of[task])-i)
		}
	case was.unsure:
		next.unsure = true
	case was.version == version && ns-was.ns < rowOverNs && (was.machine == machine || was.everywhere):
		next.copies = max(least, min(was.copies+1, mostDoubled))
	}
	m.rows[task] = next
}

// awayFrom is the machine that a task is kept away from as it crashed there, and with which
// spec; empty: none.
func (t *truth) awayFrom(task *cell.Task) (machine string, version uint64) {
	row := t.paired.rows[task]
	switch {
	case row == nil:
		return awayFrom(t.paired.of[task], t.cell.WallNs())
	case row.unsure || row.everywhere || !row.counts(row.version, t.cell.TimeNs()):
		return "", 0
	}
	return row.machine, row.version
}

// copyFailed adds the crash of a copy that has ended, if it is the newest of its task. A saver
// has one place.
func (t *truth) copyFailed(task *cell.Task, ev *cell.Event) {
	tries := t.paired.of[task]
	if t.cell.Format() < cell.FormatCrashingServices || len(tries) == 0 {
		return
	}
	for p := range task.Past() {
		if p.Attempt() == ev.Attempt && p.Saves() != "" {
			return
		}
	}
	if last := tries[len(tries)-1]; last.attempt == ev.Attempt && last.crashed {
		t.addCrash(task, last.machine, last.version, 1)
	}
}

func (t *truth) addCrash(task *cell.Task, machine string, version uint64, least int) {
	t.paired.add(task, machine, version, t.cell.TimeNs(), least)
	if row := t.paired.rows[task]; row.copies > 2 && !row.unsure {
		t.w.mark("crashed there again")
	}
}

// countRow holds what the cell remembers of a task's crashes against the model.
func (t *truth) countRow(j *cell.Job, task *cell.Task) {
	row := t.paired.rows[task]
	if row == nil || row.unsure {
		return
	}
	if until := t.cell.CrashedUntilNs(j, task.ID().Index); until != row.untilNs() {
		t.w.fail("S42: the crashes of %v are remembered until %d, and should be until %d: %+v", task.ID(), until, row.untilNs(), *row)
	}
}

// takesOf tells whether a machine takes a task, room apart: since format 11 one that runs in
// allocs is only taken where one of its set is.
func (t *truth) takesOf(j *cell.Job, spec *borgpb.TaskSpec, m *cell.Machine) bool {
	if !t.takes(spec, m) || t.banOf(spec, m) != nil {
		return false
	}
	key, inSet := j.AllocSet()
	if !inSet || t.cell.Format() < cell.FormatCrashingServices {
		return true
	}
	for a := range m.Allocs() {
		if a.Machine() == m && a.Set().Key() == key {
			return true
		}
	}
	return false
}

// crashService makes up a service that crashes: on one machine and runs on its neighbour,
// on one machine of all, or wherever it is, with few tasks or with many.
func (c *client) crashService(at int) *borgpb.Op {
	spec := &borgpb.JobSpec{
		Kind: borgpb.JobKind_JOB_KIND_SERVICE, Tasks: 6, Priority: 110,
		Task: &borgpb.TaskSpec{
			Resources: &borgpb.Resources{CpuMilli: 5, MemBytes: 1 << 20, DiskBytes: 1 << 10}, GraceNs: 200 * millisecond,
			Args: []string{"/bin/task", "20", "1"},
		},
	}
	switch at {
	case 2:
		// Of its two machines one or the other is emptied now and then.
		spec.Task.Args = append(spec.Task.Args, "m00")
		spec.Task.Constraints = []*borgpb.Constraint{{Key: shelfAttribute, Relation: borgpb.Relation_RELATION_EQUAL, Value: "0"}}
	case 3:
		spec.Priority, spec.Task.Args = 200, append(spec.Task.Args, "m02")
	case 4:
		spec.Tasks = 2
	}
	return c.submit(fmt.Sprintf("crashing%d", at), spec)
}

// crashing is a copy of a service of which an entry reports that it crashed often.
type crashing struct {
	id      cell.CopyID
	task    *cell.Task
	job     *cell.Job
	machine *cell.Machine
	version uint64
	// What else the entry does may come before.
	unsure bool
	// Before the entry: what keeps it where it is, and a machine that has room for it.
	ties  ties
	roomy string
	// Most of its job waits to be started again.
	asJob certainty
}

// certainty is what can be said of a moment within an entry, before the entry is applied.
type certainty int

const (
	surelyNot certainty = iota
	perhaps
	surely
)

// crashingBy finds them, before the entry is applied.
func (t *truth) crashingBy(data []byte) (all []crashing) {
	entry := new(borgpb.Entry)
	if proto.Unmarshal(data, entry) != nil || t.cell.Format() < cell.FormatCrashingServices {
		return nil
	}
	unsure, timed := false, false
	said := map[*cell.Task]bool{}
	for _, data := range entry.Ops {
		op := new(borgpb.Op)
		if proto.Unmarshal(data, op) != nil {
			unsure = true
			continue
		}
		switch op.Op.(type) {
		case *borgpb.Op_Time:
			timed = true
		case *borgpb.Op_Reports, *borgpb.Op_Digest:
		default:
			unsure = true
		}
		for _, mr := range op.GetReports().GetMachines() {
			m := t.cell.Machine(mr.Machine)
			for _, r := range mr.Tasks {
				if task := t.taskOf(m, r); task != nil {
					said[task] = true
				}
				if m == nil || r.Failures < crashesInARow || borgpb.AttemptState(r.State) != borgpb.AttemptState_ATTEMPT_STATE_BACKOFF || t.cell.Effect(m, r) != cell.ReportNews {
					continue
				}
				uid, _ := cell.ParseUID(r.JobUid)
				id := cell.CopyID{Job: uid, Index: r.Index, Attempt: r.Attempt}
				p := m.Copy(id)
				if p == nil || !p.Current() || p.Kind() != borgpb.JobKind_JOB_KIND_SERVICE {
					continue
				}
				j := t.cell.JobByUID(uid)
				x := crashing{id: id, task: j.Task(r.Index), job: j, machine: m, version: p.Version(), unsure: unsure}
				x.ties, x.roomy = t.tiesOf(j, x.task, p.ID(), p.Version()), t.roomFor(j, p)
				x.ties.always = j.Spec().GetGang() || j.AllocByIndex() || len(p.TaskSpec().GetVolumes()) > 0
				all = append(all, x)
			}
		}
	}
	for i := range all {
		all[i].asJob = t.asJob(&all[i], said, timed)
	}
	return all
}

// taskOf is the task whose current copy a report is about; nil: it is about none.
func (t *truth) taskOf(m *cell.Machine, r *borgpb.TaskReport) *cell.Task {
	uid, err := cell.ParseUID(r.JobUid)
	if m == nil || err != nil {
		return nil
	}
	if p := m.Copy(cell.CopyID{Job: uid, Index: r.Index, Attempt: r.Attempt}); p != nil && p.Current() {
		return t.cell.JobByUID(uid).Task(r.Index)
	}
	return nil
}

// asJob tells whether more than half of the tasks of x's job that have a place wait to be
// started again, on several machines, once x does. Each other one of which the entry says
// something may wait then, or run, or have left; and any, if it moves the time on.
func (t *truth) asJob(x *crashing, said map[*cell.Task]bool, timed bool) certainty {
	switch {
	case t.cell.Format() < cell.FormatCrashingJobs:
		return surelyNot
	case timed:
		return perhaps
	}
	placed, least, most := 0, 0, 0
	leastOn, mostOn := map[*cell.Machine]bool{}, map[*cell.Machine]bool{}
	for i := range x.job.NumTasks() {
		task := x.job.Task(i)
		p := task.Current()
		if p == nil {
			continue
		}
		placed++
		waits := p.State() == borgpb.AttemptState_ATTEMPT_STATE_BACKOFF
		if task == x.task || waits && !said[task] {
			least++
			leastOn[p.Machine()] = true
		}
		if waits || said[task] {
			most++
			mostOn[p.Machine()] = true
		}
	}
	switch {
	case 2*least > placed && len(leastOn) >= asJobMachines:
		return surely
	case 2*most <= placed || len(mostOn) < asJobMachines:
		return surelyNot
	}
	return perhaps
}

// ties are the reasons for which a copy is not moved, however often it crashes.
type ties struct {
	// Its spec says so, which no report changes.
	always bool
	// A report, or the time of its entry, can end each of these before the cell looks at a copy
	// that crashed: the hold after a restore, the update of its job, an older spec, and too many
	// copies of its task that have not stopped.
	held, rolling, older, crowded bool
}

func (a ties) any() bool { return a != ties{} }

// and returns the ties that are in both.
func (a ties) and(b ties) ties {
	return ties{a.always && b.always, a.held && b.held, a.rolling && b.rolling, a.older && b.older, a.crowded && b.crowded}
}

// tiesOf returns the ties of a copy that an entry can end.
func (t *truth) tiesOf(j *cell.Job, task *cell.Task, id cell.CopyID, version uint64) (a ties) {
	live := 1
	for o := range task.Past() {
		if o.Live() && o.Attempt() != id.Attempt {
			live++
		}
	}
	_, a.held = t.cell.Held()
	a.rolling = j.Update().Rolling()
	a.older = j.Update() != nil && version < t.cell.UpdateProto(j).GetSpec().GetToVersion()
	a.crowded = live >= mostLive
	return a
}

// roomFor is another machine on which a copy has room; empty: there is none, or it would
// have to be an alloc.
func (t *truth) roomFor(j *cell.Job, p *cell.Copy) string {
	if _, inSet := j.AllocSet(); inSet {
		return ""
	}
	for o := range t.cell.Machines() {
		if o != p.Machine() && o.Name() != inQuarantine(j.Task(p.Index())) && t.takesOf(j, p.TaskSpec(), o) &&
			t.cell.Fit(&cell.Placement{Job: j, Index: p.Index(), Machine: o, AnyPorts: true}, nil) == cell.FitOK {
			return o.Name()
		}
	}
	return ""
}

// leftForCrashes holds what an entry made of those that crash often against the model.
func (t *truth) leftForCrashes(all []crashing, events []cell.Event) {
	left := map[cell.CopyID]bool{}
	for i := range events {
		if ev := &events[i]; ev.Cause == borgpb.StopCause_STOP_CAUSE_CRASHED && ev.Kind == borgpb.EventKind_EVENT_KIND_EVICT && ev.Attempt != 0 {
			left[cell.CopyID{Job: ev.UID, Index: ev.Task, Attempt: ev.Attempt}] = true
			t.w.mark("service tried elsewhere")
		}
	}
	for _, x := range all {
		t.leftFor(&x, left[x.id])
		delete(left, x.id)
	}
	for id := range left {
		t.w.fail("S42: copy %v is moved as if it crashed again and again, and nobody said so", id)
	}
}

func (t *truth) leftFor(x *crashing, left bool) {
	row, now := t.paired.rows[x.task], t.cell.TimeNs()
	counts := row.counts(x.version, now)
	p := x.machine.Copy(x.id)
	after := t.tiesOf(x.job, x.task, x.id, x.version)
	after.always = x.ties.always
	switch {
	case x.unsure || t.paired.unsure(x.task):
		t.unsureOf(x.task)
		return
	case x.ties.and(after).any():
		if left {
			t.w.fail("S42: copy %v is moved as it crashed, which is not for that to decide", x.id)
		}
		return
	case x.ties != after && !left:
		// The cell looked at it before its ties changed, or after.
		t.unsureOf(x.task)
		return
	case x.asJob == surely && x.ties == after:
		t.w.mark("crashes as a job")
		if left {
			t.w.fail("S42: copy %v is moved from %s as it crashed, and most of its job waits to be started again", x.id, x.machine.Name())
		}
		return
	case counts && row.machine != x.machine.Name(), counts && row.everywhere:
		row.unsure = row.unsure || x.asJob == perhaps && !row.everywhere
		row.everywhere = true
		t.w.mark("crashes everywhere")
		if left {
			t.w.fail("S42: copy %v is moved from %s as it crashed, which its task did on %s too", x.id, x.machine.Name(), row.machine)
		}
		return
	}
	if left {
		t.addCrash(x.task, x.machine.Name(), x.version, 2)
		return
	}
	if o := t.cell.Machine(x.roomy); o != nil && p != nil && p.Current() && x.asJob == surelyNot && t.takesOf(x.job, p.TaskSpec(), o) {
		t.w.fail("S42: copy %v crashed %d times in a row on %s and stays there, and %s has room for it", x.id, crashesInARow, x.machine.Name(), o.Name())
	}
}

// unsureOf notes that the model does not know what the cell remembers of a task.
func (t *truth) unsureOf(task *cell.Task) {
	if t.paired.rows[task] == nil {
		t.paired.rows[task] = &crashRow{}
	}
	t.paired.rows[task].unsure = true
}
