package plan_test

import (
	"fmt"
	"math"
	"strings"
	"testing"

	"borg/borgmaster/cell"
	"borg/fauxmaster/plan"
	"borg/proto/borgpb"
)

// asUser submits for somebody else than ann.
func asUser(user, name string, spec *borgpb.JobSpec) *borgpb.Op {
	return plan.Submit(user, name, spec, nil)
}

// overheads makes a study with three trials.
func overheads(t *testing.T, c *cell.Cell, name string, q plan.Setup) (plan.Compacted, []plan.Overhead) {
	t.Helper()
	st, err := plan.NewStudy(c, search, name, q)
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	results := make([][]plan.Probe, len(st.Parts))
	for i, part := range st.Parts {
		for trial := range 3 {
			p, err := part.Trial(trial, func(int) (plan.Probe, bool) { return plan.Probe{}, false }, func(plan.Probe) error { return nil })
			if err != nil {
				t.Fatalf("%s: %v", part.Name, err)
			}
			results[i] = append(results[i], p)
		}
	}
	return st.Overheads(results)
}

// tenMachines have ten cores each, and much memory.
func tenMachines(t *testing.T) *live {
	l := newLive(t, cell.New("c", 1))
	l.must(&borgpb.Op{Op: &borgpb.Op_RaiseFormat{RaiseFormat: &borgpb.RaiseFormat{Format: cell.BuildFormat}}})
	for i := range 10 {
		l.must(addMachine(fmt.Sprintf("m%d", i), 10_000, 400<<30, nil))
	}
	return l
}

// TestStudies asks each of them of cells whose answer can be reckoned by hand.
func TestStudies(t *testing.T) {
	mixed := tenMachines(t)
	// 15 cores of production and 15 of batch: three machines together, two and two
	// apart.
	mixed.must(submit("prod", job(15, 200, 1000, 1<<30)), asUser("bob", "batch", job(15, 110, 1000, 8<<30)))
	mixed.settle()
	// Five jobs of five cores: three machines; dealt to two cells 15 and 10 cores,
	// two and one machines.
	even := tenMachines(t)
	for i := range 5 {
		even.must(submit(fmt.Sprintf("j%d", i), job(5, 200, 1000, 1<<30)))
	}
	even.settle()
	// Four tasks of 2.1 cores fill a machine, two when rounded up to 4 cores. The
	// one of 9 cores becomes one of 16, which fits nowhere.
	odd := tenMachines(t)
	odd.must(submit("odd", job(20, 200, 2100, 1<<30)), submit("big", job(1, 200, 9000, 1<<30)))
	odd.settle()

	for _, c := range []struct {
		cell     *cell.Cell
		study    string
		q        plan.Setup
		base     int
		machines []int
		percent  []float64
	}{
		{mixed.cell, "segregate", plan.Setup{}, 3, []int{4}, []float64{100. / 3}},
		{mixed.cell, "split-by-user", plan.Setup{UserMemBytes: 100 << 30}, 3, []int{4}, []float64{100. / 3}},
		{mixed.cell, "no-reclamation", plan.Setup{}, 3, []int{3}, []float64{0}},
		{even.cell, "subdivide", plan.Setup{Cells: []int{2, 5}, Seed: 1}, 3, []int{3, 5}, []float64{0, 200. / 3}},
		{odd.cell, "bucket", plan.Setup{}, 6, []int{10, 11}, []float64{200. / 3, 250. / 3}},
	} {
		base, all := overheads(t, c.cell, c.study, c.q)
		if base.Machines != c.base || len(all) != len(c.machines) {
			t.Errorf("%s: one cell needs %d, %d variants; want %d, %d", c.study, base.Machines, len(all), c.base, len(c.machines))
			continue
		}
		for i, o := range all {
			if o.Machines != c.machines[i] || math.Abs(o.Percent-c.percent[i]) > 1e-9 {
				t.Errorf("%s, %s: %d machines, %.2f %%; want %d, %.2f %%", c.study, o.Variant, o.Machines, o.Percent, c.machines[i], c.percent[i])
			}
		}
	}
	if _, err := plan.NewStudy(mixed.cell, search, "split-by-user", plan.Setup{UserMemBytes: 1 << 50}); err == nil || !strings.Contains(err.Error(), fmt.Sprint(120<<30)) {
		t.Errorf("%v, want to be told how much the largest user asks for", err)
	}
}

// TestReclamation has production that reserves half of what it asks for, so that
// batch runs in the rest; with other margins it is more or less.
func TestReclamation(t *testing.T) {
	l := tenMachines(t)
	l.must(submit("prod", job(40, 200, 2000, 1<<30)))
	l.settle()
	said := &borgpb.Reports{}
	for m := range l.cell.Machines() {
		r := &borgpb.MachineReport{Machine: m.Name()}
		for p := range m.Copies() {
			r.Reservations = append(r.Reservations, &borgpb.TaskReservation{JobUid: p.JobUID().String(), Index: p.Index(), Attempt: p.Attempt(), CpuMilli: 1000, MemBytes: 1 << 30})
		}
		said.Machines = append(said.Machines, r)
	}
	l.must(&borgpb.Op{Op: &borgpb.Op_Reports{Reports: said}})
	l.must(submit("batch", job(40, 110, 1000, 1<<30)))
	l.settle()
	base, all := overheads(t, l.cell, "no-reclamation", plan.Setup{})
	// 80 cores of production by limits: 8 machines, with 40 cores of batch in what
	// they do not use; without reclamation 12.
	if base.Machines != 8 || all[0].Machines != 12 || all[0].Percent != 50 || base.ReclaimedCPUPercent != 33 {
		t.Errorf("%+v, %+v; want 8 machines, a third of it reclaimed, and 50 %% more without", base, all)
	}
	_, all = overheads(t, l.cell, "estimator", plan.Setup{Made: "medium", Margins: []plan.Margin{{Name: "conservative", Permille: 1000}, {Name: "medium", Permille: 175}, {Name: "aggressive"}}})
	if len(all) != 3 || all[1].Percent != 0 || all[0].Machines <= all[1].Machines || all[2].Machines > all[1].Machines {
		t.Errorf("%+v, want more machines with the margin of 1, none more with the one that was", all)
	}
}
