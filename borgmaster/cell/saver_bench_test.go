package cell

import (
	"fmt"
	"testing"

	"borg/proto/borgpb"
)

// BenchmarkSavers applies entries in which nothing happens, to a cell with as many savers
// as there may be.
func BenchmarkSavers(b *testing.B) {
	l := newTestLog(b)
	l.c.format = BuildFormat
	do := func(op *borgpb.Op) { applyAll(b, l.c, [][]byte{l.entry(op)}) }
	machine := func(i int) string { return fmt.Sprintf("m%05d", i%benchMachines) }
	for i := range benchMachines {
		do(addMachine(machine(i), 1<<20, 1<<40))
	}
	do(&borgpb.Op{Op: &borgpb.Op_SubmitAllocSet{SubmitAllocSet: &borgpb.SubmitAllocSet{User: "ann", Name: "place", Spec: marshal(b, &borgpb.AllocSetSpec{
		Allocs: maxSavers, Priority: 200, Resources: &borgpb.Resources{CpuMilli: 1000, MemBytes: 1 << 30},
		Saver: &borgpb.Saver{Task: &borgpb.TaskSpec{Args: []string{"save"}, Resources: &borgpb.Resources{CpuMilli: 100, MemBytes: 1 << 20}}},
	})}}})
	set := l.c.AllocSet(JobKey{"ann", "place"})
	spec := service(20*maxSavers, 200, 10, 1<<20)
	spec.AllocSet = "ann/place"
	do(submitJob(b, "web", spec))
	job := l.c.Job(JobKey{"u", "web"})
	for i := range maxSavers {
		do(&borgpb.Op{Op: &borgpb.Op_Assign{Assign: &borgpb.Assign{Assignments: []*borgpb.Assignment{{Uid: set.uid.String(), Index: uint32(i), Machine: machine(i)}}}}})
		a := new(borgpb.Assign)
		for k := range 20 {
			a.Assignments = append(a.Assignments, &borgpb.Assignment{Uid: job.uid.String(), Index: uint32(20*i + k), Alloc: set.Alloc(uint32(i)).Name(), Version: 1})
		}
		do(&borgpb.Op{Op: &borgpb.Op_Assign{Assign: a}})
	}
	nothing := func(name string) {
		b.Run(name, func(b *testing.B) {
			if name != "none" && len(l.c.savers) != maxSavers {
				b.Fatalf("%d savers", len(l.c.savers))
			}
			for range b.N {
				do(&borgpb.Op{Op: &borgpb.Op_Time{Time: &borgpb.SetTime{}}})
			}
		})
	}
	nothing("none")
	do(&borgpb.Op{Op: &borgpb.Op_KillAllocSet{KillAllocSet: &borgpb.KillAllocSet{User: "ann", Name: "place"}}})
	// What ran in the allocs has not stopped.
	nothing("wait")
	for m := range l.c.Machines() {
		r := &borgpb.MachineReport{Machine: m.name}
		for _, p := range m.copies {
			r.Tasks = append(r.Tasks, &borgpb.TaskReport{JobUid: p.job.uid.String(), Index: p.index, Attempt: p.attempt, State: int32(borgpb.AttemptState_ATTEMPT_STATE_STOPPED)})
		}
		do(&borgpb.Op{Op: &borgpb.Op_Reports{Reports: &borgpb.Reports{Machines: []*borgpb.MachineReport{r}}}})
	}
	do(&borgpb.Op{Op: &borgpb.Op_Time{Time: &borgpb.SetTime{}}})
	nothing("run")
}
