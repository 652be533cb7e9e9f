package cell

import (
	"fmt"
	"testing"

	"borg/proto/borgpb"
)

// driver does for a cell what a scheduler and honest borglets do.
type driver struct{ *testLog }

// step places what waits, stops what must stop, starts what was placed, a few
// at a time, and tells whether there was anything to do.
func (d *driver) step(most int) bool {
	assign := new(borgpb.Assign)
	for j, i := range d.c.Pending() {
		for m := range d.c.Machines() {
			p := &Placement{Job: j, Index: i, Machine: m, AnyPorts: true}
			if d.c.Fit(p, nil) == FitOK && len(assign.Assignments) < most {
				assign.Assignments = append(assign.Assignments, &borgpb.Assignment{
					Uid: j.uid.String(), Index: i, LastAttempt: j.rows[i].attempt, Machine: m.name,
				})
				break
			}
		}
	}
	reports := new(borgpb.Reports)
	for m := range d.c.Machines() {
		mr := &borgpb.MachineReport{Machine: m.name}
		for p := range m.Copies() {
			st := borgpb.AttemptState_ATTEMPT_STATE_RUNNING
			if p.state == attemptStopping {
				st = borgpb.AttemptState_ATTEMPT_STATE_STOPPED
			}
			r := &borgpb.TaskReport{JobUid: p.job.uid.String(), Index: p.index, Attempt: p.attempt, State: int32(st), Pid: 1}
			if d.c.Effect(m, r) == ReportNews && len(mr.Tasks) < most {
				mr.Tasks = append(mr.Tasks, r)
			}
		}
		if len(mr.Tasks) > 0 {
			reports.Machines = append(reports.Machines, mr)
		}
	}
	d.apply(&borgpb.Op{Op: &borgpb.Op_Assign{Assign: assign}}, &borgpb.Op{Op: &borgpb.Op_Reports{Reports: reports}})
	return len(assign.Assignments)+len(reports.Machines) > 0
}

// TestUpdatesEnd rolls random updates through jobs of random size and wants
// each to end, never more tasks down than its batch, and every task that was
// not skipped to run the new spec.
func TestUpdatesEnd(t *testing.T) {
	r := newRand(21)
	for round := range 60 {
		d := &driver{newTestLog(t)}
		for i := range 3 {
			d.do(addMachine(fmt.Sprintf("m%d", i), 10_000, 1<<34))
		}
		spec := service(uint32(1+r.IntN(20)), 200, 300, 1<<20)
		spec.Task.Args = []string{"a"}
		d.do(submitJob(t, "j", spec))
		for d.step(100) {
		}
		j := d.c.Job(JobKey{"u", "j"})
		batch, most := 1+r.IntN(5), r.IntN(6)
		spec.Update = &borgpb.UpdatePolicy{BatchSize: uint32(batch), MaxDisruptions: uint32(most)}
		class := r.IntN(3)
		switch class {
		case 0:
			spec.Priority = 250
		case 1:
			spec.Task.Args = []string{"b"}
		case 2:
			spec.Task.Resources.CpuMilli = 450
		}
		d.do(&borgpb.Op{Op: &borgpb.Op_UpdateJob{UpdateJob: &borgpb.UpdateJob{User: "u", Name: "j", Spec: marshal(t, spec)}}})
		for n := 0; ; n++ {
			if err := d.c.Check(); err != nil {
				t.Fatal(err)
			}
			if down := int(j.NumTasks() - j.started); down > batch {
				t.Fatalf("round %d: %d tasks are down, the batch is %d", round, down, batch)
			}
			if r.IntN(10) == 0 {
				d.c = reload(t, d.c)
				j = d.c.Job(JobKey{"u", "j"})
			}
			if !d.step(1 + r.IntN(3)) {
				break
			}
			if n > 1000 {
				t.Fatalf("round %d: the update does not end: %v", round, d.c.UpdateProto(j))
			}
		}
		u := d.c.UpdateProto(j)
		if u.Status.State != borgpb.UpdateState_UPDATE_STATE_DONE || u.Status.Remaining != 0 {
			t.Fatalf("round %d: all is quiet and the update is %v", round, u)
		}
		disturbed := int(u.Status.Restarted + u.Status.Rescheduled)
		if (most > 0 && disturbed > most) || (class != 1 && disturbed > 0) {
			t.Errorf("round %d, class %d: %d disturbed, at most %d", round, class, disturbed, most)
		}
		old := 0
		for _, task := range j.Tasks() {
			if task.Current().Version() != j.Version() {
				old++
			}
		}
		if old != int(u.Status.Skipped) || old+disturbed+int(u.Status.InPlace) != int(j.NumTasks()) {
			t.Errorf("round %d: %d tasks have the old spec, the update says %v", round, old, u.Status)
		}
	}
}
