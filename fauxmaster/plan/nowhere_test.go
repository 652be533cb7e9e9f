package plan_test

import (
	"fmt"
	"testing"

	"borg/borgmaster/cell"
	"borg/fauxmaster/plan"
	"borg/proto/borgpb"
)

// TestCompactLeavesOut compacts cells with a job that no machine could hold: it is left out
// and named, and the rest is packed.
func TestCompactLeavesOut(t *testing.T) {
	large := &borgpb.AllocSetSpec{Allocs: 2, Priority: 200, Resources: &borgpb.Resources{CpuMilli: 50_000, MemBytes: 1 << 30}}
	small := &borgpb.AllocSetSpec{Allocs: 2, Priority: 200, Resources: &borgpb.Resources{CpuMilli: 100, MemBytes: 1 << 30}}
	for name, c := range map[string]struct {
		change func(*borgpb.JobSpec)
		set    *borgpb.AllocSetSpec
		want   string
		tasks  int
	}{
		"large": {func(s *borgpb.JobSpec) { s.Task.Resources.CpuMilli = 100_000 }, nil, "[ann/never (1 of 1 tasks)]", 0},
		"constraint": {func(s *borgpb.JobSpec) {
			s.Task.Constraints = []*borgpb.Constraint{{Key: "disk", Relation: borgpb.Relation_RELATION_EQUAL, Value: "ssd"}}
		}, nil, "[ann/never (1 of 1 tasks)]", 0},
		"device": {func(s *borgpb.JobSpec) { s.Task.Resources.Devices = map[string]int64{"gpu": 1} }, nil, "[ann/never (1 of 1 tasks)]", 0},
		"some of its tasks": {func(s *borgpb.JobSpec) {
			s.Tasks, s.Overrides = 3, []*borgpb.TaskOverride{{First: 1, Last: 1, Spec: &borgpb.TaskSpec{Resources: &borgpb.Resources{CpuMilli: 100_000, MemBytes: 1 << 29}}}}
		}, nil, "[ann/never (1 of 3 tasks)]", 2},
		"gang": {func(s *borgpb.JobSpec) {
			s.Gang, s.Tasks, s.Overrides = true, 3, []*borgpb.TaskOverride{{First: 1, Last: 1, Spec: &borgpb.TaskSpec{Resources: &borgpb.Resources{CpuMilli: 100_000, MemBytes: 1 << 29}}}}
		}, nil, "[ann/never (3 of 3 tasks)]", 0},
		"large allocs": {func(s *borgpb.JobSpec) { s.AllocSet = "ann/set" }, large, "[ann/never (1 of 1 tasks) ann/set (an alloc set)]", 0},
		"small allocs": {func(s *borgpb.JobSpec) { s.AllocSet = "ann/set" }, small, "[ann/never (1 of 1 tasks)]", 0},
		"fits":         {func(*borgpb.JobSpec) {}, nil, "[]", 1},
	} {
		t.Run(name, func(t *testing.T) {
			l := newLive(t, cell.New("c", 1))
			l.must(&borgpb.Op{Op: &borgpb.Op_RaiseFormat{RaiseFormat: &borgpb.RaiseFormat{Format: cell.BuildFormat}}})
			for i := range 8 {
				l.must(addMachine(fmt.Sprintf("m%d", i), 16_000, 64<<30, nil))
			}
			l.must(submit("web", job(8, 200, 4000, 1<<30)))
			if c.set != nil {
				l.must(plan.Submit("ann", "set", nil, c.set))
			}
			spec := job(1, 200, 200, 1<<29)
			c.change(spec)
			l.must(submit("never", spec))
			l.settle()
			k, err := plan.NewCompaction(l.cell, search, plan.Of{})
			if err != nil {
				t.Fatal(err)
			}
			if got := fmt.Sprint(k.Nowhere); got != c.want || k.Tasks != 8+c.tasks || k.Clones != 1 {
				t.Errorf("%s are left out, %d tasks are packed onto %d times the cell; want %s, %d, 1", got, k.Tasks, k.Clones, c.want, 8+c.tasks)
			}
			best, err := k.Trial(0, func(int) (plan.Probe, bool) { return plan.Probe{}, false }, func(plan.Probe) error { return nil })
			if want := 2; err != nil || best.Machines < want || best.Machines > want+1 {
				t.Errorf("%+v, %v; want %d machines, or one more", best, err, want)
			}
		})
	}
}
