package plan_test

import (
	"bytes"
	"testing"

	"borg/borgmaster/cell"
	"borg/fauxmaster/plan"
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
