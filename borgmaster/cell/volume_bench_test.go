package cell

import (
	"fmt"
	"testing"

	"borg/proto/borgpb"
)

// BenchmarkVolumes applies entries to a cell with as many volumes as there may be, on
// machines that are as full of them: somebody comes and goes who has none, a volume is
// deleted and found again, and the time of one is over.
func BenchmarkVolumes(b *testing.B) {
	const machines = maxVolumes / maxVolumesOnMachine
	l := newTestLog(b)
	l.c.format = BuildFormat
	do := func(ops ...*borgpb.Op) {
		applyAll(b, l.c, [][]byte{l.entry(ops...)})
	}
	report := func(r *borgpb.MachineReport) *borgpb.Op {
		return &borgpb.Op{Op: &borgpb.Op_Reports{Reports: &borgpb.Reports{Machines: []*borgpb.MachineReport{r}}}}
	}
	machine := func(i int) string { return fmt.Sprintf("m%05d", i) }
	name := func(i int) *borgpb.VolumeName {
		return &borgpb.VolumeName{User: "ann", Job: fmt.Sprintf("job-%d", i%997), Index: uint32(i / 997), Volume: "data"}
	}
	for i := range machines {
		do(addMachine(machine(i), 1<<20, 1<<50))
	}
	for first := 0; first < maxVolumes; first += benchBatch {
		// Of one batch they are on one machine, and are over at the same time.
		r := &borgpb.MachineReport{Machine: machine(first / maxVolumesOnMachine)}
		for i := first; i < first+benchBatch; i++ {
			r.VolumesFound = append(r.VolumesFound, &borgpb.FoundVolume{Name: name(i)})
		}
		l.cellNs += second
		do(report(r))
	}
	n := 0
	for range l.c.Volumes() {
		n++
	}
	if n != maxVolumes {
		b.Fatalf("%d volumes", n)
	}
	b.Run("comes", func(b *testing.B) {
		for range b.N {
			do(submitJob(b, "web", service(1, 200, 10, 1<<20)))
			uid := l.c.Job(JobKey{"u", "web"}).uid.String()
			do(&borgpb.Op{Op: &borgpb.Op_Assign{Assign: &borgpb.Assign{Assignments: []*borgpb.Assignment{{Uid: uid, Machine: machine(0), Version: 1}}}}})
			do(&borgpb.Op{Op: &borgpb.Op_KillJob{KillJob: &borgpb.KillJob{User: "u", Name: "web"}}},
				report(&borgpb.MachineReport{Machine: machine(0), Tasks: []*borgpb.TaskReport{{JobUid: uid, Attempt: 1, State: int32(borgpb.AttemptState_ATTEMPT_STATE_STOPPED)}}}))
		}
	})
	b.Run("deleted", func(b *testing.B) {
		for i := range b.N {
			v, on := name(i), machine(i/maxVolumesOnMachine%machines)
			do(&borgpb.Op{Op: &borgpb.Op_DeleteVolume{DeleteVolume: &borgpb.DeleteVolume{User: v.User, Name: v.Job, Index: v.Index, Volume: v.Volume}}},
				report(&borgpb.MachineReport{Machine: on, VolumesGone: []*borgpb.VolumeName{v}}))
			do(report(&borgpb.MachineReport{Machine: on, VolumesFound: []*borgpb.FoundVolume{{Name: v}}}))
		}
	})
	b.Run("over", func(b *testing.B) {
		for i := range b.N {
			l.cellNs += second
			if i == 0 {
				l.cellNs += volumeKeepNs - maxVolumes/benchBatch*second
			}
			do(&borgpb.Op{Op: &borgpb.Op_Time{Time: &borgpb.SetTime{}}})
		}
	})
}
