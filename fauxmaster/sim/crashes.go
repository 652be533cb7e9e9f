package sim

import (
	"slices"

	"borg/borgmaster"
	"borg/borgmaster/cell"
	"borg/proto/borgpb"
)

// S42: a task whose last copies crashed on one machine, two or more of them, is not
// placed there again for an hour, twice as long after a third, as long as another machine
// takes it; and one that did not is kept away from none.
const (
	crashedAwayNs = 3600 * second
	// So many copies that have ended are remembered of a task.
	crashesRemembered = 3
	// The format from which on it lasts so long.
	awayFormat = 5
)

// tried is one copy of a task that was given a machine.
type tried struct {
	attempt uint64
	machine string
	crashed bool
	// Of one that crashed: its spec, and the wall clock of the cell.
	version uint64
	wallNs  int64
}

// crashModel is what became of the copies of tasks, by what borglets reported and the
// cell told of it.
type crashModel struct {
	// Oldest first. An index that was cut off and has come back is another task.
	of map[*cell.Task][]tried
	// By which a task is kept away since format 11, instead.
	rows map[*cell.Task]*crashRow
	// A cell that was restored remembers what is not in it.
	epoch    uint64
	restored bool
}

// pairs follows one entry and holds its placements against the model, and what the cell
// made of those who crash again and again.
func (t *truth) pairs(e borgmaster.CommittedEntry, crashing []crashing, events []cell.Event) {
	if epoch := t.cell.Epoch(); t.paired.epoch != epoch {
		t.paired = crashModel{of: map[*cell.Task][]tried{}, rows: map[*cell.Task]*crashRow{}, epoch: epoch, restored: t.paired.epoch != 0}
	}
	t.leftForCrashes(crashing, events)
	var failed map[cell.CopyID]bool
	for i := range events {
		ev := &events[i]
		j := t.cell.JobByUID(ev.UID)
		if ev.ObjectKind != borgpb.ObjectKind_OBJECT_KIND_TASK || j == nil || j.Task(ev.Task) == nil {
			continue
		}
		task := j.Task(ev.Task)
		switch ev.Kind {
		case borgpb.EventKind_EVENT_KIND_SCHEDULE:
			if m := t.cell.Machine(ev.Machine); m != nil && t.cell.Format() >= awayFormat && placesOnly(e.Data) {
				if p := m.Copy(cell.CopyID{Job: ev.UID, Index: ev.Task, Attempt: ev.Attempt}); p != nil && p.Current() {
					t.placedAway(p, j, m)
				}
			}
			t.paired.of[task] = append(t.paired.of[task], tried{attempt: ev.Attempt, machine: ev.Machine})
		case borgpb.EventKind_EVENT_KIND_FAIL, borgpb.EventKind_EVENT_KIND_STOPPED:
			if failed == nil {
				failed = reportedFailed(e.Data)
			}
			if failed[cell.CopyID{Job: ev.UID, Index: ev.Task, Attempt: ev.Attempt}] {
				t.paired.crash(task, ev.Attempt, t.cell.WallNs())
				t.copyFailed(task, ev)
			}
		}
	}
	for i := range events {
		if j := t.cell.JobByUID(events[i].UID); j != nil && j.Task(events[i].Task) != nil && events[i].Attempt != 0 && !t.paired.restored {
			t.countRow(j, j.Task(events[i].Task))
		}
	}
	if e.Index%checkEvery == 0 && !t.paired.restored {
		t.keptAway()
	}
}

// reportedFailed are the copies of which an entry reports that they failed.
func reportedFailed(data []byte) map[cell.CopyID]bool {
	failed := map[cell.CopyID]bool{}
	for _, op := range opsOf(data) {
		for _, m := range op.GetReports().GetMachines() {
			for _, r := range m.Tasks {
				uid, err := cell.ParseUID(r.JobUid)
				if err == nil && borgpb.AttemptState(r.State) == borgpb.AttemptState_ATTEMPT_STATE_FAILED {
					failed[cell.CopyID{Job: uid, Index: r.Index, Attempt: r.Attempt}] = true
				}
			}
		}
	}
	return failed
}

// crash notes that a copy has crashed. One that is forgotten already ended long after
// those that followed it.
func (m *crashModel) crash(task *cell.Task, attempt uint64, wallNs int64) {
	tries := m.of[task]
	i := slices.IndexFunc(tries, func(x tried) bool { return x.attempt == attempt })
	for p := range task.Past() {
		if p.Attempt() == attempt && i >= 0 {
			tries[i].crashed, tries[i].version, tries[i].wallNs = true, p.Version(), wallNs
		}
	}
}

// awayFrom is the machine that a task is kept away from as its last copies crashed there,
// and the spec that they had; empty: none.
func awayFrom(tries []tried, wallNs int64) (machine string, version uint64) {
	if len(tries) == 0 {
		return "", 0
	}
	last, n := tries[len(tries)-1], 0
	for _, x := range slices.Backward(tries) {
		if n == crashesRemembered || !x.crashed || x.machine != last.machine || x.version != last.version {
			break
		}
		n++
	}
	if ago := wallNs - last.wallNs; n < 2 || ago < 0 || ago >= crashedAwayNs<<(n-2) {
		return "", 0
	}
	return last.machine, last.version
}

// placedAway: a task that was placed is not where it crashed, if another machine takes it,
// room apart.
func (t *truth) placedAway(p *cell.Copy, j *cell.Job, m *cell.Machine) {
	task, spec := j.Task(p.Index()), p.TaskSpec()
	away, version := t.awayFrom(task)
	switch {
	case away == "" || version != p.Version() || p.Saves() != "":
		return
	case j.Kind() == borgpb.JobKind_JOB_KIND_DAEMON || j.AllocByIndex() || len(spec.GetVolumes()) > 0:
		return // Of the first two each task has one place alone, and so may one of the third.
	case inQuarantine(task) != "" && t.cell.Format() < cell.FormatCrashingServices:
		return // It is kept away from there instead.
	}
	for o := range t.cell.Machines() {
		if o.Name() == away || o.Name() == inQuarantine(task) || !t.takesOf(j, spec, o) {
			continue
		}
		if m.Name() == away {
			t.w.fail("S42: %v is placed on %s, where its last two copies crashed, and %s takes it too", p.TaskID(), m.Name(), o.Name())
		}
		if was := t.cell.Machine(away); was != nil && t.takes(spec, was) {
			t.w.mark("kept away from where it crashed")
		}
		return
	}
}

// inQuarantine is where the newest copy of a task in quarantine is; empty: none is.
func inQuarantine(task *cell.Task) string {
	for p := range task.Past() {
		if p.Quarantined() {
			return p.Machine().Name()
		}
	}
	return ""
}

// keptAway: of those that wait none is kept away from a machine where it did not crash,
// nor for longer or shorter than its crashes tell.
func (t *truth) keptAway() {
	for j := range t.cell.Jobs() {
		for index := range t.cell.PendingOf(j) {
			task := j.Task(index)
			on := t.cell.CrashedOn(j, index).Crashed
			if on != "" {
				if away, _ := t.awayFrom(task); on != away && t.cell.Format() >= awayFormat && !t.paired.unsure(task) {
					t.w.fail("S42: %v is kept away from %s, and its last copies did not crash there", task.ID(), on)
				}
			}
			t.countRow(j, task)
		}
	}
}
