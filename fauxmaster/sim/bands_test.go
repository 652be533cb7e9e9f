package sim

import (
	"fmt"
	"testing"

	"borg/borgmaster/cell"
	"borg/proto/borgpb"
)

// TestWaits has an alloc wait for a copy that stops, and a task of another patience run in
// the alloc. The copy keeps the time that the alloc set leaves it.
func TestWaits(t *testing.T) {
	x := newPairing(t, cell.BuildFormat, borgpb.JobKind_JOB_KIND_SERVICE)
	x.w.swarm.bands = true
	res := &borgpb.Resources{CpuMilli: 900, MemBytes: 1 << 20, DiskBytes: 1 << 20}
	task := func(cpuMilli int64) *borgpb.TaskSpec {
		return &borgpb.TaskSpec{Args: []string{"/bin/task"}, GraceNs: 3600 * second, Resources: &borgpb.Resources{CpuMilli: cpuMilli, MemBytes: 1 << 10, DiskBytes: 1 << 10}}
	}
	submit := func(name string, spec *borgpb.JobSpec) *cell.Job {
		spec.Kind, spec.Tasks = borgpb.JobKind_JOB_KIND_SERVICE, 1
		x.apply(&borgpb.Op{Op: &borgpb.Op_SubmitJob{SubmitJob: &borgpb.SubmitJob{User: "u", Name: name, Spec: encode(spec)}}})
		return x.tr.cell.Job(cell.JobKey{User: "u", Name: name})
	}
	assign := func(a *borgpb.Assignment) {
		x.apply(&borgpb.Op{Op: &borgpb.Op_Assign{Assign: &borgpb.Assign{Assignments: []*borgpb.Assignment{a}}}})
	}
	low := submit("low", &borgpb.JobSpec{Priority: 50, Task: task(900)})
	assign(&borgpb.Assignment{Uid: low.UID().String(), Machine: "m1"})
	x.apply(&borgpb.Op{Op: &borgpb.Op_KillJob{KillJob: &borgpb.KillJob{User: "u", Name: "low"}}})
	x.apply(&borgpb.Op{Op: &borgpb.Op_SubmitAllocSet{SubmitAllocSet: &borgpb.SubmitAllocSet{User: "u", Name: "set", Spec: encode(&borgpb.AllocSetSpec{Allocs: 1, Priority: 200, Resources: res, PreemptWaitNs: 5 * second})}}})
	set := x.tr.cell.AllocSet(cell.JobKey{User: "u", Name: "set"})
	assign(&borgpb.Assignment{Uid: set.UID().String(), Machine: "m1", Victims: []*borgpb.Victim{{JobUid: low.UID().String(), Attempt: 1}}})
	in := submit("in", &borgpb.JobSpec{Priority: 200, AllocSet: "u/set", PreemptWaitNs: second, Task: task(100)})
	assign(&borgpb.Assignment{Uid: in.UID().String(), Machine: "m1", Alloc: "u/set/0"})

	m, p, a := x.tr.cell.Machine("m1"), in.Task(0).Current(), set.Alloc(0)
	if n := len(p.After()); n != 1 || len(taskWaits(p, in).after) != 0 || len(allocWaits(a).after) != 1 {
		t.Errorf("the task waits for %d copies, %v of them by itself, its alloc for %v; want 1, none and 1", n, taskWaits(p, in).after, allocWaits(a).after)
	}
	x.tr.hurries(taskWaits(p, in), m)
	x.tr.hurries(allocWaits(a), m)
	x.says("what is so", "")
	impatient := allocWaits(a)
	impatient.waitNs = second
	x.tr.hurries(impatient, m)
	x.says("that the set waits a second", fmt.Sprintf("S20: u/low/0 stops and may take %d ms, and u/set/0, which waits for its room, waits 1000 ms", 5000))
}
