package plan_test

import (
	"bytes"
	"testing"

	"borg/borgmaster/cell"
	"borg/fauxmaster/plan"
	"borg/proto/borgpb"
)

// TestSample draws half of a cell: what is in it is as it was, it is sound, and the
// seed alone decides.
func TestSample(t *testing.T) {
	eachSeed(t, func(t *testing.T, d *drawn) {
		n := d.cell.NumMachines() / 2
		before := recordsOf(d.cell)
		c, s, err := plan.Sample(d.cell, n, 3)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(before, recordsOf(d.cell)) {
			t.Error("sampling changed the cell")
		}
		if err := c.Check(); err != nil {
			t.Error(err)
		}
		if c.NumMachines() != n || len(s.Made.Refused) > 0 || len(s.Made.Misplaced) > 0 {
			t.Errorf("%d machines, want %d; refused %v, misplaced %v", c.NumMachines(), n, s.Made.Refused, s.Made.Misplaced)
		}
		for _, k := range s.Strata {
			// A part that is not whole is rounded up or down.
			if exact := k.Of * n; k.Machines*d.cell.NumMachines() < exact-d.cell.NumMachines()+1 || k.Machines*d.cell.NumMachines() > exact+d.cell.NumMachines()-1 {
				t.Errorf("%d of %d machines of %s, with %d of %d in all", k.Machines, k.Of, k.Shape, n, d.cell.NumMachines())
			}
		}
		for m := range c.Machines() {
			was := d.cell.Machine(m.Name())
			for _, prod := range []bool{true, false} {
				if got, want := m.Held(prod), was.Held(prod); !got.Equal(want) {
					t.Errorf("%s holds %v, in the cell %v (production: %v)", m.Name(), got, want, prod)
				}
			}
		}
		again, _, err := plan.Sample(d.cell, n, 3)
		if err != nil || again.Digest() != c.Digest() {
			t.Errorf("the same draw makes another cell (%v)", err)
		}
	})
}

// TestSampleWhole takes all of a cell.
func TestSampleWhole(t *testing.T) {
	l := newLive(t, cell.New("c", 1))
	l.must(addMachine("m", 10_000, 40<<30, nil))
	l.must(submit("runs", job(3, 200, 1000, 1<<30)), submit("waits", job(2, 200, 20_000, 1<<30)))
	l.settle()
	_, s, err := plan.Sample(l.cell, 1, 1)
	if err != nil || s.Made.Running != 3 || s.Made.Pending != 2 || s.Jobs != 2 || s.RunningPercent != 100 || s.PendingPercent != 100 {
		t.Errorf("%+v, %v; want all of it", s, err)
	}
	if _, _, err := plan.Sample(l.cell, 2, 1); err == nil {
		t.Error("two machines of one: want an error")
	}
}

// TestSampleOfKinds: daemons are in a sample with their machines, tasks keep the ports that they
// were granted, and what is left out counts as not taken.
func TestSampleOfKinds(t *testing.T) {
	l := newLive(t, cell.New("c", 1))
	l.must(&borgpb.Op{Op: &borgpb.Op_RaiseFormat{RaiseFormat: &borgpb.RaiseFormat{Format: cell.BuildFormat}}})
	for _, name := range []string{"a", "b"} {
		l.must(&borgpb.Op{Op: &borgpb.Op_AddMachine{AddMachine: &borgpb.AddMachine{Name: name, Spec: &borgpb.MachineSpec{
			Addr: "127.0.0.1:1", Capacity: &borgpb.Resources{CpuMilli: 10_000, MemBytes: 40 << 30}, PortFirst: 20000, PortLast: 20099,
		}}}})
	}
	agent, web := job(0, 200, 1000, 1<<30), job(3, 200, 1000, 1<<30)
	agent.Kind, web.Task.Ports = borgpb.JobKind_JOB_KIND_DAEMON, []string{"http"}
	in := job(1, 200, 1000, 1<<30)
	in.AllocSet = "ann/set"
	set := &borgpb.AllocSetSpec{Allocs: 1, Priority: 200, Resources: &borgpb.Resources{CpuMilli: 2000, MemBytes: 2 << 30}}
	l.must(submit("agent", agent), submit("web", web), plan.Submit("ann", "set", nil, set))
	l.settle()
	l.must(submit("in", in))
	l.settle()
	c, s, err := plan.Sample(l.cell, 2, 1)
	if err != nil {
		t.Fatal(err)
	}
	if len(s.Made.Refused) > 0 || len(s.Made.Misplaced) > 0 {
		t.Errorf("refused %v, misplaced %v", s.Made.Refused, s.Made.Misplaced)
	}
	// Of two daemons, three tasks with ports and one in an alloc, that one is left out.
	if s.RunningPercent < 83 || s.RunningPercent > 84 || s.Jobs != 2 || s.OfJobs != 3 {
		t.Errorf("%.1f %% of what runs, %d of %d jobs; want five of six tasks, two of three jobs", s.RunningPercent, s.Jobs, s.OfJobs)
	}
	for _, m := range []string{"a", "b"} {
		if got, want := c.Machine(m).Held(true), l.cell.Machine(m).Held(true); !got.Equal(want) {
			t.Errorf("%s holds %v, in the cell %v", m, got, want)
		}
	}
}
