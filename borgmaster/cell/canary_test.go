package cell

import (
	"testing"

	"borg/proto/borgpb"
)

// goesOnAsLoaded holds that a cell is what Load makes of its records, and that both go on alike.
func (d *driver) goesOnAsLoaded() {
	d.t.Helper()
	if err := d.c.Check(); err != nil {
		d.t.Error(err)
	}
	for field, said := range differences(d.c, reload(d.t, d.c)) {
		d.t.Errorf("%s: %s", field, said)
	}
	loaded := *d.testLog
	loaded.c = reload(d.t, d.c)
	other := driver{&loaded}
	for range 10 {
		d.step(100)
		other.step(100)
		if a, b := d.c.Digest(), other.c.Digest(); a != b {
			d.t.Fatalf("at index %d the cell has digest %x, and %x if it is loaded before", d.c.Index(), a, b)
		}
	}
}

// canaries begins an update of a job of so many running tasks to new arguments.
func canaries(t *testing.T, spec *borgpb.JobSpec, policy *borgpb.UpdatePolicy) *driver {
	d := &driver{newTestLog(t)}
	d.do(&borgpb.Op{Op: &borgpb.Op_RaiseFormat{RaiseFormat: &borgpb.RaiseFormat{Format: BuildFormat}}})
	for _, name := range []string{"m0", "m1", "m2", "m3"} {
		d.do(addMachine(name, 10_000, 1<<34))
	}
	d.do(submitJob(t, "j", spec))
	for d.step(100) {
	}
	spec.Task.Args, spec.Update = []string{"new"}, policy
	d.do(updateJob(t, "j", spec))
	return d
}

// TestCanariesInReverse: canaries that are chosen from the last task on take the new version in
// the same order on a replica that was started meanwhile.
func TestCanariesInReverse(t *testing.T) {
	d := canaries(t, service(5, 200, 100, 1<<20), &borgpb.UpdatePolicy{
		BatchSize: 1, Canaries: 3, CanaryWatchNs: second, Order: borgpb.UpdateOrder_UPDATE_ORDER_REVERSE,
	})
	d.goesOnAsLoaded()
}

// TestCanaryCutOff: a canary that a resize cut off is none when its index comes back, and holds
// no place among the canaries when another one loses its machine.
func TestCanaryCutOff(t *testing.T) {
	d := canaries(t, service(4, 200, 100, 1<<20), &borgpb.UpdatePolicy{
		BatchSize: 1, Canaries: 2, CanaryWatchNs: second, Order: borgpb.UpdateOrder_UPDATE_ORDER_REVERSE,
	})
	d.do(resizeJob("j", 3))
	d.do(resizeJob("j", 4))
	j := d.c.Job(mustKey("u/j"))
	d.goesOnAsLoaded()
	d.do(&borgpb.Op{Op: &borgpb.Op_DrainMachine{DrainMachine: &borgpb.DrainMachine{Name: "m0", Drain: true}}})
	d.goesOnAsLoaded()
	if n := j.update.liveCanaries(); n != len(j.update.chosen) {
		t.Errorf("%d canaries run the new version, want %v", n, j.update.chosen)
	}
}

// TestCanaryLosesItsSeat: an update of a daemon job ends the tasks of machines that do not match
// any more, canaries of the update before among them. It chooses its own from the others.
func TestCanaryLosesItsSeat(t *testing.T) {
	spec := service(0, 200, 100, 1<<20)
	spec.Kind = borgpb.JobKind_JOB_KIND_DAEMON
	policy := &borgpb.UpdatePolicy{BatchSize: 1, Canaries: 2, CanaryWatchNs: second}
	d := canaries(t, spec, policy)
	j := d.c.Job(mustKey("u/j"))
	first := j.Seat(j.update.chosen[0])
	spec.Task.Args = []string{"newer"}
	spec.Task.Constraints = []*borgpb.Constraint{{Key: NameAttribute, Relation: borgpb.Relation_RELATION_NOT_EQUAL, Value: first.name}}
	d.do(updateJob(t, "j", spec))
	d.goesOnAsLoaded()
	if n := j.update.liveCanaries(); n != 2 {
		t.Errorf("%d canaries run the new version, want 2", n)
	}
}
