package diff_test

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"google.golang.org/protobuf/proto"

	"borg/borgmaster/cell"
	"borg/fauxmaster/diff"
	"borg/fauxmaster/plan"
	"borg/proto/borgpb"
	"borg/scheduler"
)

func newModel(t *testing.T) *plan.Model {
	t.Helper()
	m, err := plan.New(cell.New("c", 1), scheduler.Config{Seed: 1})
	if err != nil {
		t.Fatal(err)
	}
	must(t, m, &borgpb.Op{Op: &borgpb.Op_RaiseFormat{RaiseFormat: &borgpb.RaiseFormat{Format: cell.BuildFormat}}})
	return m
}

// must does ops and lets the cell come to rest.
func must(t *testing.T, m *plan.Model, ops ...*borgpb.Op) {
	t.Helper()
	if err := m.Must(ops...); err != nil {
		t.Fatal(err)
	}
	if err := m.Rest(); err != nil {
		t.Fatal(err)
	}
}

// now is the cell as it is, kept.
func now(t *testing.T, m *plan.Model) *cell.Cell {
	t.Helper()
	c, err := cell.Load(m.Cell().Records())
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func addMachine(name string, cpuMilli int64) *borgpb.Op {
	return &borgpb.Op{Op: &borgpb.Op_AddMachine{AddMachine: &borgpb.AddMachine{Name: name, Spec: &borgpb.MachineSpec{
		Addr: "10.0.0.1:7101", Capacity: &borgpb.Resources{CpuMilli: cpuMilli, MemBytes: 64 << 30},
	}}}}
}

func spec(tasks uint32, cpuMilli int64) *borgpb.JobSpec {
	return &borgpb.JobSpec{Kind: borgpb.JobKind_JOB_KIND_SERVICE, Tasks: tasks, Priority: 200, Task: &borgpb.TaskSpec{
		Args: []string{"/bin/x"}, Resources: &borgpb.Resources{CpuMilli: cpuMilli, MemBytes: 1 << 30},
	}}
}

func marshal(t *testing.T, s *borgpb.JobSpec) []byte {
	t.Helper()
	data, err := proto.Marshal(s)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func kill(name string) *borgpb.Op {
	return &borgpb.Op{Principal: &borgpb.Principal{User: "ann", Role: borgpb.Role_ROLE_USER}, Op: &borgpb.Op_KillJob{KillJob: &borgpb.KillJob{User: "ann", Name: name}}}
}

func object(all []diff.Object, name string) diff.Object {
	for _, o := range all {
		if o.Name == name {
			return o
		}
	}
	return diff.Object{}
}

func field(o diff.Object, path string) string {
	for _, f := range o.Fields {
		if f.Path == path {
			return f.Before + " > " + f.After
		}
	}
	return ""
}

// TestDiff does one of everything to a cell and wants to be told of it.
func TestDiff(t *testing.T) {
	m := newModel(t)
	must(t, m, addMachine("m1", 8000), addMachine("m2", 8000), addMachine("m3", 1000))
	must(t, m, plan.Submit("ann", "stays", spec(2, 1000), nil), plan.Submit("ann", "ends", spec(2, 500), nil), plan.Submit("ann", "again", spec(1, 500), nil),
		plan.Submit("ann", "larger", spec(1, 500), nil))
	a := now(t, m)
	if d := diff.Of(a, now(t, m)); !d.Empty() {
		t.Errorf("two of the same: %+v", d)
	}
	on := a.Job(cell.JobKey{User: "ann", Name: "stays"}).Task(0).Current().Machine()
	other := map[string]string{"m1": "m2", "m2": "m1"}[on.Name()]
	larger := spec(1, 1500)
	must(t, m, kill("ends"), kill("again"))
	must(t, m, plan.Submit("ann", "again", spec(1, 500), nil), plan.Submit("ann", "new", spec(3, 100), nil), addMachine("m4", 2000),
		&borgpb.Op{Op: &borgpb.Op_DrainMachine{DrainMachine: &borgpb.DrainMachine{Name: on.Name(), Drain: true}}},
		&borgpb.Op{Op: &borgpb.Op_RemoveMachine{RemoveMachine: &borgpb.RemoveMachine{Name: "m3", Force: true}}},
		&borgpb.Op{Op: &borgpb.Op_SetMachine{SetMachine: &borgpb.SetMachine{Name: other, SetAttributes: map[string]string{"gen": "8"}}}},
		&borgpb.Op{Principal: &borgpb.Principal{User: "ann", Role: borgpb.Role_ROLE_USER}, Op: &borgpb.Op_UpdateJob{UpdateJob: &borgpb.UpdateJob{User: "ann", Name: "larger", Spec: marshal(t, larger)}}},
		&borgpb.Op{Op: &borgpb.Op_Grant{Grant: &borgpb.Grant{User: "bob", Capability: string(cell.RelaxIsolation)}}})
	d := diff.Of(a, now(t, m))
	for _, want := range []struct {
		all  []diff.Object
		name string
		kind diff.Kind
		path string
		text string
	}{
		{d.Jobs, "ann/new", diff.Added, "", ""},
		{d.Jobs, "ann/again", diff.Replaced, "", ""},
		{d.Jobs, "ann/ends", diff.Changed, "state", "running > dead"},
		{d.Jobs, "ann/larger", diff.Changed, "task.resources.cpu_milli", "500 > 1500"},
		{d.Jobs, "ann/stays", "", "", ""},
		{d.Machines, "m4", diff.Added, "", ""},
		{d.Machines, "m3", diff.Removed, "", ""},
		{d.Machines, on.Name(), diff.Changed, "state", "up > up, draining"},
		{d.Machines, other, diff.Changed, "attributes.gen", " > 8"},
		{d.Users, "bob", diff.Added, "capabilities", " > relax-isolation"},
	} {
		o := object(want.all, want.name)
		if o.Kind != want.kind || want.path != "" && field(o, want.path) != want.text {
			t.Errorf("%s: %+v, want %s, %s %q", want.name, o, want.kind, want.path, want.text)
		}
	}
	moved := false
	for _, k := range d.Tasks {
		if k.Task == "ann/stays/0" {
			moved = k.Fate == diff.Moved && k.From == on.Name() && k.To != on.Name() && k.Why == "drain" && k.Attempts == 1
		}
	}
	if !moved {
		t.Errorf("ann/stays/0 was drained off %s; tasks: %+v", on.Name(), d.Tasks)
	}
	if n := countOf(d, diff.Ended); n != 2 {
		t.Errorf("%d tasks ended, want the two of ann/ends: %+v", n, d.Counts)
	}
	if back := diff.Of(now(t, m), a); object(back.Jobs, "ann/new").Kind != diff.Removed || object(back.Machines, "m3").Kind != diff.Added {
		t.Errorf("backwards: %+v", back.Jobs)
	}
}

func countOf(d *diff.Diff, f diff.Fate) (n int) {
	for _, c := range d.Counts {
		if c.Fate == f {
			n += c.Count
		}
	}
	return n
}

// TestAddsUp drives random cells on and wants the tasks that it is told of to
// explain the sums.
func TestAddsUp(t *testing.T) {
	for seed := range uint64(30) {
		t.Run(fmt.Sprintf("seed=%d", seed), func(t *testing.T) {
			r := rand.New(rand.NewPCG(seed, 7))
			m := newModel(t)
			for i := range 6 {
				must(t, m, addMachine(fmt.Sprintf("m%d", i), int64(2+r.IntN(6))*1000))
			}
			jobs := 0
			change := func() {
				switch name := fmt.Sprintf("m%d", r.IntN(6)); {
				case r.IntN(3) > 0 || jobs == 0:
					must(t, m, plan.Submit("ann", fmt.Sprintf("j%d", jobs), spec(uint32(1+r.IntN(4)), int64(1+r.IntN(20))*200), nil))
					jobs++
				case r.IntN(3) == 0:
					key := cell.JobKey{User: "ann", Name: fmt.Sprintf("j%d", r.IntN(jobs))}
					if j := m.Cell().Job(key); j != nil && j.State() != borgpb.State_STATE_DEAD {
						must(t, m, kill(key.Name))
					}
				case m.Cell().Machine(name).Up():
					must(t, m, &borgpb.Op{Op: &borgpb.Op_MachineDown{MachineDown: &borgpb.MachineDown{Name: name, Term: max(m.Cell().Term(), 1)}}})
				}
			}
			for range 15 {
				change()
			}
			a := now(t, m)
			for range 10 {
				change()
			}
			b := now(t, m)
			d := diff.Of(a, b)
			// Of those that ran, some stopped to.
			stopped := 0
			for _, k := range d.Tasks {
				if k.From != "" && k.To == "" {
					stopped++
				}
			}
			if got := d.A.Running + countOf(d, diff.Started) - stopped; got != d.B.Running {
				t.Errorf("%d ran, %d started, %d stopped, and %d run", d.A.Running, countOf(d, diff.Started), stopped, d.B.Running)
			}
			for _, k := range d.Tasks {
				id, err := cell.ParseTaskID(k.Task)
				if err != nil {
					t.Fatal(err)
				}
				if k.To == "" {
					continue
				}
				if p := b.Job(id.Job).Task(id.Index).Current(); p == nil || p.Machine().Name() != k.To {
					t.Errorf("%+v, and it is not there", k)
				}
			}
		})
	}
}
