package cell

import (
	"testing"

	"borg/proto/borgpb"
)

// TestSurgeIsCharged: extra tasks are within quota or the update is refused; they are
// charged from its beginning to its end, also while they are not there; and a way back
// for which there is no quota for them any more goes without.
func TestSurgeIsCharged(t *testing.T) {
	d := &driver{newTestLog(t)}
	d.do(&borgpb.Op{Op: &borgpb.Op_RaiseFormat{RaiseFormat: &borgpb.RaiseFormat{Format: FormatSurges}}})
	d.do(addMachine("m0", 10_000, 1<<34))
	quota := func(cpuMilli int64) {
		d.do(&borgpb.Op{Op: &borgpb.Op_SetQuota{SetQuota: &borgpb.SetQuota{User: "u", Band: borgpb.Band_BAND_PRODUCTION,
			Limit: &borgpb.Resources{CpuMilli: cpuMilli, MemBytes: 1 << 30}}}})
	}
	quota(1000)
	d.do(&borgpb.Op{Op: &borgpb.Op_SetQuotaPolicy{SetQuotaPolicy: &borgpb.SetQuotaPolicy{Enforce: new(true)}}})
	spec := service(3, 200, 300, 1<<20)
	spec.Task.Args = []string{"old"}
	d.do(submitJob(t, "j", spec))
	for d.step(100) {
	}
	j := d.c.Job(JobKey{"u", "j"})
	charged := func(want int64, when string) {
		t.Helper()
		if got := d.c.ChargeOf("u", borgpb.Band_BAND_PRODUCTION).CPUMilli; got != want {
			t.Fatalf("%s: charged %d, want %d", when, got, want)
		}
	}
	spec.Task.Args, spec.Update = []string{"new"}, &borgpb.UpdatePolicy{Surge: 1}
	update := &borgpb.Op{Op: &borgpb.Op_UpdateJob{UpdateJob: &borgpb.UpdateJob{User: "u", Name: "j", Spec: marshal(t, spec)}}}
	if res, _ := d.apply(update); res[0].Refusal.GetKind() != borgpb.RefusalKind_REFUSAL_KIND_QUOTA {
		t.Fatalf("an extra task beyond the quota: %v", res[0])
	}
	charged(900, "after a refusal")
	quota(1300)
	d.do(update)
	charged(1200, "while it rolls")
	if j.NumTasks() != 4 || j.Size() != 3 || d.c.JobProto(j).Spec.Tasks != 3 {
		t.Fatalf("%d tasks, %d without extra ones", j.NumTasks(), j.Size())
	}
	for d.step(100) {
		if err := d.c.Check(); err != nil {
			t.Fatal(err)
		}
		if up := int(j.started); up < 3 {
			t.Fatalf("%d of 3 tasks run, with one extra and a batch of none", up)
		}
	}
	charged(900, "when it is done")
	if st := j.update.state; st != borgpb.UpdateState_UPDATE_STATE_DONE || j.NumTasks() != 3 {
		t.Fatalf("the update is %v with %d tasks", st, j.NumTasks())
	}
	quota(1000)
	d.do(&borgpb.Op{Op: &borgpb.Op_ControlUpdate{ControlUpdate: &borgpb.ControlUpdate{User: "u", Name: "j", Verb: borgpb.UpdateVerb_UPDATE_VERB_ROLLBACK}}})
	charged(900, "on the way back")
	for d.step(100) {
	}
	if st := j.update.state; st != borgpb.UpdateState_UPDATE_STATE_ROLLED_BACK {
		t.Fatalf("the rollback is %v", st)
	}
}
