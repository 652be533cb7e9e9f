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
