package scheduler_test

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"borg/borgmaster/cell"
	"borg/proto/borgpb"
	"borg/scheduler"
)

// crowded adds up what neighbours beyond a fair share cost the services of a cell:
// for each domain with e tasks too many of a job, the price 1 + 2 + ... + e times.
func crowded(c *cell.Cell) (sum int64) {
	for _, d := range []struct {
		key    string
		points int64
	}{{"", 1024}, {"rack", 256}, {"power", 128}} {
		domain := func(m *cell.Machine) (string, bool) {
			if d.key == "" {
				return m.Name(), true
			}
			return m.Attribute(d.key)
		}
		all := make(map[string]bool)
		for m := range c.Machines() {
			if name, ok := domain(m); ok {
				all[name] = true
			}
		}
		for j := range c.Jobs() {
			if j.NumTasks() < 2 || j.Kind() != borgpb.JobKind_JOB_KIND_SERVICE || len(all) == 0 {
				continue
			}
			fair := (int64(j.NumTasks()) + int64(len(all)) - 1) / int64(len(all))
			at := make(map[string]int64)
			for _, task := range j.Tasks() {
				if p := task.Current(); p != nil {
					if name, ok := domain(p.Machine()); ok {
						at[name]++
					}
				}
			}
			for _, n := range at {
				e := max(0, n-fair)
				sum += d.points * e * (e + 1) / 2
			}
		}
	}
	return sum
}

// fragmented adds up the squares of how differently much of CPU and memory is free.
func fragmented(c *cell.Cell) (sum int64) {
	for m := range c.Machines() {
		whole, held := m.Capacity(), m.Held(true)
		used := func(held, whole int64) int64 { return min(max(held, 0), whole) * 1024 / whole }
		d := used(held.CPUMilli, whole.CPUMilli) - used(held.MemBytes, whole.MemBytes)
		sum += d * d
	}
	return sum
}

// TestGains makes plans that gain something in random cells, one kind at a time, and
// measures what each gained. They move a few, no two of a job, only services of which
// all tasks run, and come to an end.
func TestGains(t *testing.T) {
	first, last := moveSeeds(t, 300)
	plans, moves := make(map[string]int), make(map[string]int)
	for _, kind := range []struct {
		name    string
		reason  scheduler.Reschedule
		measure func(*cell.Cell) int64
		least   int64
	}{
		{"spread", scheduler.RescheduleSpread, crowded, 1},
		// (1024/8)², less what rounding takes.
		{"defragment", scheduler.RescheduleDefragment, fragmented, 1 << 13},
		// Together one may cost what the other gains, but they must not take turns.
		{"both", scheduler.RescheduleSpread | scheduler.RescheduleDefragment, nil, 0},
	} {
		for seed := first; seed <= last; seed++ {
			w := tightCell(t, rand.New(rand.NewPCG(seed, 2)), kind.reason)
			problem := "plans go on and on"
			moved := make(map[cell.TaskID]int64)
			for range 100 {
				w.startAll()
				before := int64(0)
				if kind.measure != nil {
					before = kind.measure(w.cell)
				}
				o := w.s.Plan(w.copy)
				if o == nil {
					problem = ""
					break
				}
				plans[kind.name]++
				moves[kind.name] += len(o.Moves)
				if problem = lawful(w.cell, o); problem == "" {
					problem = w.withinBudgets(o, moved)
				}
				if problem == "" {
					problem = carryOut(w, o)
				}
				if kind.measure != nil && problem == "" {
					if after := kind.measure(w.cell); after > before-int64(len(o.Moves))*kind.least {
						problem = fmt.Sprintf("%v: the measure was %d and is %d", o, before, after)
					}
				}
				if problem != "" {
					break
				}
				problem = "plans go on and on"
			}
			if n := w.s.Stats().Unproved; n > 0 && problem == "" {
				problem = "the cell refuses a plan that was made"
			}
			if problem != "" {
				t.Fatalf("%s: %s\n\trepeat with: BORG_MOVE_SEED=%d go test ./scheduler -run %s", kind.name, problem, seed, t.Name())
			}
		}
	}
	t.Logf("plans %v, moves %v", plans, moves)
}

func (w *world) startAll() {
	for j := range w.cell.Jobs() {
		w.start(j.Key())
	}
	w.catchUp()
}

// withinBudgets says which task a plan moves too soon after it was moved before, and
// notes when each is moved. As all of their jobs run, and one of each moves, no more
// are down than any budget allows.
func (w *world) withinBudgets(o *borgpb.MoveTasks, moved map[cell.TaskID]int64) string {
	for _, a := range o.Moves {
		uid, _ := cell.ParseUID(a.Uid)
		j := w.cell.JobByUID(uid)
		id := cell.TaskID{Job: j.Key(), Index: a.Index}
		at, again := moved[id]
		if b := j.Spec().GetDisruptionBudget(); again && b != nil && w.timeNs+1e6-at < b.WindowNs {
			return fmt.Sprintf("%v: %v was moved %d ms ago, its budget is once in %d s", o, id, (w.timeNs-at)/1e6, b.WindowNs/1e9)
		}
		moved[id] = w.timeNs + 1e6
	}
	return ""
}

// lawful says what is wrong with whom a plan moves.
func lawful(c *cell.Cell, o *borgpb.MoveTasks) string {
	if len(o.Moves) > 4 || o.Placement != nil {
		return fmt.Sprintf("%v: too many moves", o)
	}
	seen := make(map[string]bool)
	for _, a := range o.Moves {
		uid, _ := cell.ParseUID(a.Uid)
		j := c.JobByUID(uid)
		if seen[a.Uid] || len(a.Victims) > 0 || j.Kind() != borgpb.JobKind_JOB_KIND_SERVICE {
			return fmt.Sprintf("%v: %v should stay", o, a)
		}
		seen[a.Uid] = true
		for _, task := range j.Tasks() {
			if p := task.Current(); p == nil || p.State() != borgpb.AttemptState_ATTEMPT_STATE_RUNNING {
				return fmt.Sprintf("%v: not all of %v run", o, j.Key())
			}
		}
	}
	return ""
}
