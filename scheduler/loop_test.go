package scheduler_test

import (
	"fmt"
	"testing"

	"borg/borgmaster/cell"
	"borg/proto/borgpb"
	"borg/scheduler"
)

// TestNoLoop fills a cell band by band, each asking for two thirds of it, the lowest
// first. Each wave comes to rest; nobody is displaced by his own band or a lower
// one, and who gives way gives way once in a wave.
func TestNoLoop(t *testing.T) {
	const machines = 40
	c := cell.New("test", 1)
	s, err := scheduler.New(scheduler.Config{Seed: 1})
	if err != nil {
		t.Fatal(err)
	}
	w := &world{cell: c, copy: c, s: s, wallNs: 1_800_000_000_000_000_000, timeNs: 1e9}
	for i := range machines {
		w.take(t, &spent{}, addMachine(fmt.Sprintf("m%02d", i), machineSpec(int64(8+8*(i%3))*1000, 64<<30, fmt.Sprintf("rack=r%d", i/4))))
	}
	for wave, priority := range []int32{25, 110, 200, 240, 400} {
		for i := range 28 {
			spec := service(uint32(4+i%5), priority, int64(1+i%4)*1000, 1<<30)
			if priority < 120 {
				spec.Kind = borgpb.JobKind_JOB_KIND_BATCH
			}
			w.take(t, &spent{}, submitJob("ann", fmt.Sprintf("w%d-%d", wave, i), spec))
		}
		evicted := w.rest(t, priority)
		for id, n := range evicted {
			if n > 1 {
				t.Errorf("wave of priority %d: %v gave way %d times", priority, id, n)
			}
		}
		t.Logf("wave of priority %d: %d gave way", priority, len(evicted))
		if err := c.Check(); err != nil {
			t.Fatal(err)
		}
	}
}

// rest makes passes, and ends the copies that are to stop, until nothing more
// happens. It returns how often each task gave way to one of that priority.
func (w *world) rest(t *testing.T, priority int32) map[cell.TaskID]int {
	evicted := make(map[cell.TaskID]int)
	for range 200 {
		moved := false
		if b := w.s.Pass(w.cell); b.ID != 0 {
			moved = true
			r, events := w.apply(assign(b.Assign))
			for _, e := range events {
				if e.Kind != borgpb.EventKind_EVENT_KIND_EVICT || e.ObjectKind != borgpb.ObjectKind_OBJECT_KIND_TASK {
					continue
				}
				evicted[cell.TaskID{Job: e.Key, Index: e.Task}]++
				if p := w.cell.Job(e.Key).Priority(); !cell.MayPreempt(priority, p) {
					t.Errorf("%s of priority %d gave way to priority %d", e.Object(), p, priority)
				}
			}
			w.s.Observe(w.cell, events)
			if refused := w.s.Settle(w.cell, b.ID, r); refused.Count > 0 {
				t.Fatalf("refused: %v", refused.First)
			}
		}
		for m := range w.cell.Machines() {
			for _, p := range copiesOf(m) {
				if p.State() == borgpb.AttemptState_ATTEMPT_STATE_STOPPING {
					moved = true
					w.take(t, &spent{}, reported(w.cell.JobByUID(p.JobUID()), p.Index(), m.Name(), p.Attempt(), borgpb.AttemptState_ATTEMPT_STATE_STOPPED))
				}
			}
		}
		if !moved {
			return evicted
		}
	}
	t.Fatalf("the wave of priority %d does not come to rest", priority)
	return nil
}

// copiesOf is a list that stays as it is while copies end.
func copiesOf(m *cell.Machine) (all []*cell.Copy) {
	for p := range m.Copies() {
		all = append(all, p)
	}
	return all
}
