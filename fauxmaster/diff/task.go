package diff

import (
	"cmp"
	"slices"
	"strings"

	"borg/borgmaster/cell"
	"borg/proto/borgpb"
)

// Fate is what became of a task.
type Fate string

// Fates.
const (
	// Started runs and did not. Moved runs elsewhere; Restarted runs on the same
	// machine, as another copy.
	Started   Fate = "started"
	Moved     Fate = "moved"
	Restarted Fate = "restarted"
	// Evicted ran and waits. Lost is one whose machine was lost and that has not
	// come back.
	Evicted Fate = "evicted"
	Lost    Fate = "lost"
	// Finished ended well, Ended otherwise. Gone was there and is not: its job
	// was forgotten or became smaller.
	Finished Fate = "finished"
	Ended    Fate = "ended"
	Gone     Fate = "gone"
	// Queued is new and waits.
	Queued Fate = "queued"
	// Same waits on with another reason, or lives on as it did: not told.
	same Fate = ""
)

// Task is a task that something happened to.
type Task struct {
	Task string `json:"task"`
	Fate Fate   `json:"fate"`
	// From and To are machines; empty: none.
	From string `json:"from,omitempty"`
	To   string `json:"to,omitempty"`
	// Why it left its place, as a word of the cell's ("drain", "preemption",
	// "machine lost"); empty: it had none, or nobody remembers.
	Why string `json:"why,omitempty"`
	// Attempts is how many copies it has had since.
	Attempts uint64 `json:"attempts,omitempty"`
}

// place is what a task is at one moment. The zero value: it is not there.
type place struct {
	state   borgpb.State
	machine string
	attempt uint64
	well    bool
	lost    bool
}

func placeOf(j *cell.Job, index uint32) (at place) {
	if j == nil || index >= j.NumTasks() {
		return at
	}
	t := j.Task(index)
	at = place{state: t.State(), attempt: t.Attempt(), well: t.Finished()}
	if p := t.Current(); p != nil {
		at.machine = p.Machine().Name()
		at.lost = p.State() == borgpb.AttemptState_ATTEMPT_STATE_UNREACHABLE
	}
	return at
}

const (
	none    = borgpb.State_STATE_UNSPECIFIED
	pending = borgpb.State_STATE_PENDING
	running = borgpb.State_STATE_RUNNING
	dead    = borgpb.State_STATE_DEAD
)

// fate compares two moments of a task.
func fate(was, is place) Fate {
	switch {
	case is.state == none && was.state != none && was.state != dead:
		return Gone
	case was.state != running && is.state == running:
		return Started
	case is.state == running && was.machine != is.machine:
		return Moved
	case is.state == running && was.attempt != is.attempt:
		return Restarted
	case was.state == running && is.state == pending:
		return Evicted
	case was.state == none && is.state == pending:
		return Queued
	case was.state != dead && is.state == dead && is.well:
		return Finished
	case was.state != dead && is.state == dead:
		return Ended
	}
	return same
}

// tasks compares the tasks of one job; nil: it is not there. now is the later cell.
func (d *Diff) tasks(a, b *cell.Job, now *cell.Cell) {
	n := uint32(0)
	for _, j := range []*cell.Job{a, b} {
		if j != nil {
			n = max(n, j.NumTasks())
		}
	}
	for i := range n {
		was, is := placeOf(a, i), placeOf(b, i)
		if d.OtherCell {
			// Each counts attempts by itself.
			was.attempt, is.attempt = 0, 0
		}
		t := Task{Fate: fate(was, is), From: was.machine, To: is.machine}
		if t.Fate == same {
			continue
		}
		key := cell.JobKey{}
		if b != nil {
			key = b.Key()
		} else {
			key = a.Key()
		}
		t.Task = cell.TaskID{Job: key, Index: i}.String()
		if is.attempt > was.attempt {
			t.Attempts = is.attempt - was.attempt
		}
		if was.state == running && !d.OtherCell {
			t.Why = whyLeft(b, i, was, now)
		}
		if t.Why == machineLost && (t.Fate == Evicted || t.Fate == Ended) {
			t.Fate = Lost
		}
		d.Tasks = append(d.Tasks, t)
	}
}

const machineLost = "machine lost"

// whyLeft is why a copy that ran is no longer the one that runs.
func whyLeft(j *cell.Job, index uint32, was place, now *cell.Cell) string {
	if j == nil || index >= j.NumTasks() {
		return ""
	}
	for p := range j.Task(index).Past() {
		if p.Attempt() != was.attempt {
			continue
		}
		switch p.State() {
		case borgpb.AttemptState_ATTEMPT_STATE_UNREACHABLE, borgpb.AttemptState_ATTEMPT_STATE_LOST:
			return machineLost
		case borgpb.AttemptState_ATTEMPT_STATE_FAILED:
			return "failed"
		case borgpb.AttemptState_ATTEMPT_STATE_FINISHED:
			return "finished"
		}
		if c := p.Cause(); c != borgpb.StopCause_STOP_CAUSE_UNSPECIFIED {
			return strings.ToLower(strings.TrimPrefix(c.String(), "STOP_CAUSE_"))
		}
	}
	if m := now.Machine(was.machine); m == nil || !m.Up() {
		return machineLost
	}
	return ""
}

// count sums up the tasks.
func (d *Diff) count() {
	sums := make(map[Count]int)
	for _, t := range d.Tasks {
		sums[Count{Fate: t.Fate, Why: t.Why}]++
	}
	for c, n := range sums {
		c.Count = n
		d.Counts = append(d.Counts, c)
	}
	slices.SortFunc(d.Counts, func(a, b Count) int {
		return cmp.Or(cmp.Compare(b.Count, a.Count), cmp.Compare(a.Fate, b.Fate), cmp.Compare(a.Why, b.Why))
	})
}
