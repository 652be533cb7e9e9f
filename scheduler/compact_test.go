package scheduler_test

import (
	"fmt"
	"testing"

	"borg/borgmaster/cell"
	"borg/proto/borgpb"
	"borg/scheduler"
)

// TestPackingSoft packs a job whose constraints nothing meets: softened it fits, and
// goes where they hold as long as there is room.
func TestPackingSoft(t *testing.T) {
	w := newWorld(t, scheduler.Config{})
	for i := range 4 {
		w.must(t, addMachine(fmt.Sprintf("m%d", i), machineSpec(2000, 8<<30, fmt.Sprintf("n=%d", i))))
	}
	spec := service(6, 200, 1000, 1<<30)
	spec.Task.Constraints = []*borgpb.Constraint{{Key: "n", Relation: borgpb.Relation_RELATION_EQUAL, Value: "0"}}
	spec.MaxPerMachine = 1
	w.must(t, submitJob("ann", "wide", spec))
	cfg := scheduler.Config{Seed: 1, Enough: 100}
	k := scheduler.Packing{Config: cfg, Workload: w.cell}
	if p, err := k.Pack(everyMachine); err != nil || p.Placed != 1 || p.Pending != 5 {
		t.Errorf("%+v, %v; want one placed, as one machine meets the constraint", p, err)
	}
	k.Soft = func(j *cell.Job) bool { return j.Key().Name == "wide" }
	if p, err := k.Pack(everyMachine); err != nil || p.Placed != 6 || p.Pending != 0 {
		t.Errorf("softened: %+v, %v; want all placed", p, err)
	}
	k.Left = func(_ *cell.Job, index uint32) bool { return index < 4 }
	if p, err := k.Pack(everyMachine); err != nil || p.Placed != 2 {
		t.Errorf("four left out: %+v, %v; want two placed", p, err)
	}
	other := newWorld(t, scheduler.Config{})
	other.must(t, addMachine("big", machineSpec(20_000, 80<<30)))
	k.Left, k.Machines = nil, other.cell
	if p, err := k.Pack(everyMachine); err != nil || p.Placed != 6 || p.Machines != 1 {
		t.Errorf("on another cell's machine: %+v, %v; want all placed", p, err)
	}
	if spec := w.cell.Job(cell.JobKey{User: "ann", Name: "wide"}).Need(0).Task; spec.Constraints[0].Soft {
		t.Error("packing changed the cell")
	}
}

// TestTrial wants the search to end at the edge, wherever that is.
func TestTrial(t *testing.T) {
	w := newWorld(t, scheduler.Config{})
	for i := range 37 {
		w.must(t, addMachine(fmt.Sprintf("m%d", i), machineSpec(1000, 1<<30)))
	}
	k := scheduler.Packing{Config: scheduler.Config{Seed: 1}, Workload: w.cell}
	for edge := 1; edge <= 38; edge++ {
		trial, probes := k.Trial(uint64(edge)), 0
		most := trial.Probes()
		for n, more := trial.Next(); more; n, more = trial.Next() {
			kept := 0
			for m := range w.cell.Machines() {
				if trial.Keep(n)(m) {
					kept++
				}
			}
			if kept != n {
				t.Fatalf("a probe of %d machines keeps %d", n, kept)
			}
			trial.Note(n >= edge)
			probes++
		}
		n, ok := trial.Machines()
		if ok != (edge <= 37) || ok && n != edge || probes > most {
			t.Errorf("edge at %d: %d, %v after %d of about %d probes", edge, n, ok, probes, most)
		}
	}
}
