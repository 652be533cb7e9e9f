package plan_test

import (
	"fmt"
	"strings"
	"testing"

	"borg/borgmaster/cell"
	"borg/fauxmaster/plan"
	"borg/proto/borgpb"
)

// TestAllThatIsShortIsTold asks of a cell in which one machine has too little CPU and memory,
// one too little CPU and one too little memory: fit and whatif name both, with counts.
func TestAllThatIsShortIsTold(t *testing.T) {
	l := newLive(t, cell.New("c", 1))
	l.must(&borgpb.Op{Op: &borgpb.Op_RaiseFormat{RaiseFormat: &borgpb.RaiseFormat{Format: cell.BuildFormat}}})
	for i, has := range [][2]int64{{1000, 1 << 30}, {1000, 64 << 30}, {8000, 1 << 30}} {
		l.must(addMachine(fmt.Sprintf("m%d", i), has[0], has[1], nil))
	}
	spec := job(1, 200, 2000, 8<<30)
	const want = "0 of 3 machines fit: 2 cpu (1 of them memory too), 1 memory"
	a, err := plan.Fit(l.cell, search, plan.FitQuestion{Jobs: []plan.Wanted{{User: "ann", Name: "web", Spec: spec}}})
	if err != nil || a.Count != 0 || !strings.Contains(a.Why, want) {
		t.Errorf("fit: %+v, %v; want %q", a, err, want)
	}
	e, err := plan.WhatIf(l.cell, search, plan.Change{Ops: []*borgpb.Op{submit("web", spec)}})
	if err != nil || len(e.Tasks) != 1 || !strings.Contains(e.Tasks[0].Why, want) {
		t.Errorf("whatif: %+v, %v; want %q", e, err, want)
	}
}

// TestDrainTellsWhatStays drains a machine on which a task with a volume runs beside others:
// each task is held back once, for its own reason, and nobody looks for a place for the one
// whose volume stays.
func TestDrainTellsWhatStays(t *testing.T) {
	l := newLive(t, cell.New("c", 1))
	l.must(&borgpb.Op{Op: &borgpb.Op_RaiseFormat{RaiseFormat: &borgpb.RaiseFormat{Format: cell.BuildFormat}}})
	add := func(name string) {
		op := addMachine(name, 10_000, 64<<30, nil)
		op.GetAddMachine().Spec.Capacity.DiskBytes = 1 << 40
		l.must(op)
	}
	add("m0")
	db := job(2, 200, 1000, 1<<30)
	db.Task.Volumes = []*borgpb.Volume{{Name: "data", Path: "/data", DiskBytes: 1 << 30}}
	web := job(2, 200, 1000, 1<<30)
	web.DisruptionBudget = &borgpb.DisruptionBudget{MaxDown: 1}
	l.must(submit("db", db), submit("web", web), submit("zeta", job(3, 200, 1000, 1<<30)))
	l.settle()
	add("m1")
	verdicts, _ := l.s.JudgeDrain(l.cell, []string{"m0"}, nil)
	v := verdicts[0]
	var held []string
	for _, h := range v.Holds {
		held = append(held, h.Task.String())
	}
	if fmt.Sprint(held) != "[ann/db/0 ann/db/1 ann/web/1]" || len(v.Homeless) > 0 || v.Tasks != 7 {
		t.Errorf("of 7 tasks %v are held back, without a place are %v; want the two of db and one of web", held, v.Homeless)
	}
	e, err := plan.WhatIf(l.cell, search, plan.Change{Ops: plan.DrainMachines([]*cell.Machine{l.cell.Machine("m0")})})
	if err != nil {
		t.Fatal(err)
	}
	// The second of web goes when the first one runs elsewhere.
	if e.Counts[plan.Moved] != 5 || len(e.Tasks) != 5 || len(e.Held) != 2 {
		t.Errorf("%+v; want five moved and two held back", e)
	}
	for i, h := range e.Held {
		if h.Machine != "m0" || h.Task != fmt.Sprintf("ann/db/%d", i) || h.Kept || !strings.Contains(h.Why, "--now") || !strings.Contains(h.Why, "undrained") {
			t.Errorf("held back is %+v", h)
		}
	}
	// At once: the tasks of db wait for their volumes, which are kept.
	now := &borgpb.Op{Op: &borgpb.Op_DrainMachine{DrainMachine: &borgpb.DrainMachine{Name: "m0", Drain: true, Now: true}}}
	if e, err = plan.WhatIf(l.cell, search, plan.Change{Ops: []*borgpb.Op{now}}); err != nil {
		t.Fatal(err)
	}
	if e.Counts[plan.Moved] != 5 || e.Counts[plan.Displaced] != 2 || len(e.Held) != 2 || !e.Held[0].Kept || e.Held[0].Volume != "ann/db/0/data" {
		t.Errorf("%+v; want two that wait for volumes that are kept", e)
	}
	for _, c := range e.Tasks {
		if c.Fate == plan.Displaced && !strings.Contains(c.Why, "2 machines fit: 2 volume") && !strings.Contains(c.Why, "1 volume, 1 draining") {
			t.Errorf("%s waits: %s", c.Task, c.Why)
		}
	}
}
