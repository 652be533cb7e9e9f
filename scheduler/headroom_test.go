package scheduler_test

import (
	"fmt"
	"testing"

	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	"borg/borgmaster/cell"
	"borg/proto/borgpb"
	"borg/scheduler"
)

// anyPriority are priorities of every band, at their edges and within.
var anyPriority = []int32{0, 25, 50, 99, 100, 105, 110, 115, 119, 120, 200, 359, 360, 370, 400}

// contested draws a cell that is full of small tasks of many priorities, some of them in allocs.
func contested(rt *rapid.T, t *testing.T, cfg scheduler.Config) *world {
	w := randomWorld(rt, t, cfg)
	for i := range rapid.IntRange(1, 20).Draw(rt, "more machines") {
		w.must(t, addMachine(fmt.Sprintf("n%d", i), machineSpec(4000, 8<<30, fmt.Sprintf("rack=%d", i%3))))
	}
	for i := range 3 {
		priority := rapid.SampledFrom(anyPriority).Draw(rt, "priority of allocs")
		w.must(t, submitAllocSet("ann", fmt.Sprintf("set%d", i), &borgpb.AllocSetSpec{
			Allocs: 3, Priority: priority, Resources: &borgpb.Resources{CpuMilli: 2000, MemBytes: 4 << 30},
		}))
	}
	for i := range 12 {
		w.do(submitJob(rapid.SampledFrom([]string{"ann", "bob"}).Draw(rt, "who fills"), fmt.Sprintf("f%d", i), contestedJob(rt, 12)))
	}
	return w
}

// contestedJob draws a job, most of them simple ones that want CPU and memory, of who takes anybody's
// place, nobody's, or that of its own user only.
func contestedJob(rt *rapid.T, tasks uint32) *borgpb.JobSpec {
	priority := rapid.SampledFrom(anyPriority).Draw(rt, "priority")
	spec := service(tasks, priority, rapid.Int64Range(1, 8).Draw(rt, "half cpu")*500, rapid.Int64Range(1, 8).Draw(rt, "half gib")<<29)
	switch rapid.IntRange(0, 9).Draw(rt, "kind") {
	case 0, 1:
		spec = randomJob(rt)
		spec.Priority = priority
	case 2, 3:
		spec.AllocSet = fmt.Sprintf("ann/set%d", rapid.IntRange(0, 2).Draw(rt, "set"))
		spec.Task.Resources.CpuMilli, spec.Task.Resources.MemBytes = spec.Task.Resources.CpuMilli/2, 1<<29
	case 4:
		spec.MaxPerMachine = 1
	case 5:
		spec.MaxPerRack = 2
	}
	spec.Preempt = rapid.SampledFrom([]borgpb.Preempt{0, 0, 0, borgpb.Preempt_PREEMPT_NEVER, borgpb.Preempt_PREEMPT_OWN}).Draw(rt, "preempt")
	if spec.Preempt == borgpb.Preempt_PREEMPT_OWN && spec.Priority >= 120 {
		spec.Preempt = 0
	}
	return spec
}

// TestHeadroomChangesNothing lets two schedulers follow one copy of random cells, one with
// headrooms and one that looks at who could give way on every machine, with answers of the
// log on their way. They decide the same in every pass.
func TestHeadroomChangesNothing(t *testing.T) {
	placed, evicted, most := 0, 0, 0
	rapid.Check(t, func(rt *rapid.T) {
		cfg := scheduler.Config{
			Seed:   rapid.Uint64().Draw(rt, "seed"),
			Enough: rapid.SampledFrom([]int{1, 3, 8, 50, 1 << 20}).Draw(rt, "enough"),
			// A full batch would end one pass before jobs that the other knows to have no place.
			BatchCount: 1000,
			Churn:      rapid.SampledFrom([]int{0, 0, 1, 2}).Draw(rt, "churn"), ChurnWindowNs: 20e6,
		}
		w := contested(rt, t, cfg)
		cfg.NoHeadroom = true
		plain, err := scheduler.New(cfg)
		if err != nil {
			rt.Fatal(err)
		}
		type answer struct {
			id     uint64
			result *borgpb.Result
		}
		var late []answer
		settle := func(n int) {
			for _, a := range late[:n] {
				w.s.Settle(w.copy, a.id, a.result)
				plain.Settle(w.copy, a.id, a.result)
			}
			late = late[n:]
		}
		for step := range rapid.IntRange(1, 60).Draw(rt, "steps") {
			if rapid.IntRange(0, 2).Draw(rt, "catch up") > 0 {
				for _, e := range w.log {
					_, events := w.copy.Apply(e.index, 1, e.data)
					w.s.Observe(w.copy, events)
					plain.Observe(w.copy, events)
				}
				w.log = nil
			}
			got, want := w.s.Pass(w.copy), plain.Pass(w.copy)
			// Who looks at fewer machines sees fewer jobs that are spared, and waits for the end of
			// that less often.
			more := got.More == want.More || cfg.Churn > 0
			if got.ID != want.ID || !more || !proto.Equal(got.Assign, want.Assign) {
				rt.Fatalf("step %d: with headrooms %v, without %v", step, got, want)
			}
			if err := scheduler.CheckArrays(w.s, w.copy); err != nil {
				rt.Fatalf("step %d: %v", step, err)
			}
			if placed += len(got.Assign.GetAssignments()); got.ID != 0 {
				for _, a := range got.Assign.Assignments {
					evicted += len(a.Victims)
				}
				late = append(late, answer{got.ID, w.do(assign(got.Assign))})
			}
			settle(rapid.IntRange(0, len(late)).Draw(rt, "answers"))
			switch rapid.IntRange(0, 9).Draw(rt, "what") {
			case 0:
				w.do(collapse(rapid.SampledFrom([][]borgpb.Band{nil, {borgpb.Band_BAND_BATCH}, {borgpb.Band_BAND_FREE}, {borgpb.Band_BAND_MONITORING, borgpb.Band_BAND_MID}}).Draw(rt, "collapse")...))
			case 1, 2, 3, 4:
				user := rapid.SampledFrom([]string{"ann", "bob"}).Draw(rt, "user")
				w.do(submitJob(user, fmt.Sprintf("c%d", step), contestedJob(rt, 3)))
			default:
				randomChange(rt, w, step)
			}
		}
		most = max(most, scheduler.NumHeadrooms(w.s))
	})
	t.Logf("%d placed, %d gave way, %d headrooms at most", placed, evicted, most)
	if placed == 0 || evicted == 0 || most < 2 {
		t.Error("the test shows nothing")
	}
}

// TestTakesBelow holds the bound of the headrooms to what the cell lets anybody take.
func TestTakesBelow(t *testing.T) {
	for _, bands := range [][]borgpb.Band{nil, {borgpb.Band_BAND_FREE}, {borgpb.Band_BAND_BATCH, borgpb.Band_BAND_MONITORING}, {borgpb.Band_BAND_MID}} {
		w := newWorld(t, scheduler.Config{})
		w.must(t, collapse(bands...))
		for by := range int32(451) {
			for _, mode := range []borgpb.Preempt{0, borgpb.Preempt_PREEMPT_NEVER, borgpb.Preempt_PREEMPT_OWN} {
				p := &cell.Preemptor{User: "ann", Priority: by, Mode: mode}
				highest := int32(-1)
				for victim := range int32(451) {
					if w.cell.MayTake(p, "ann", victim) || w.cell.MayTake(p, "bob", victim) {
						highest = victim
					}
				}
				if got := w.cell.TakesBelow(p); got != highest+1 {
					t.Fatalf("collapsed %v: priority %d, %v takes below %d, want %d", bands, by, mode, got, highest+1)
				}
			}
		}
	}
}
