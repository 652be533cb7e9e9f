package plan_test

import (
	"fmt"
	"slices"
	"testing"

	"borg/fauxmaster/plan"
	"borg/proto/borgpb"
)

// addBudgets submits what makes moves hard: jobs whose tasks may be down one at a time,
// jobs that are spread over machines and racks, and daemons.
func (d *drawn) addBudgets() {
	for i := range 4 {
		spec := d.job(4000)
		switch i {
		case 0:
			spec.DisruptionBudget = &borgpb.DisruptionBudget{MaxDown: 1}
		case 1:
			spec.MaxPerMachine = 1
		case 2:
			spec.MaxPerRack, spec.DisruptionBudget = 2, &borgpb.DisruptionBudget{MaxDown: 2}
		case 3:
			spec.Kind, spec.Tasks, spec.Priority, spec.MaxPerMachine, spec.MaxPerRack = borgpb.JobKind_JOB_KIND_DAEMON, 0, 200, 0, 0
			spec.Task.Resources.CpuMilli = 100
		}
		d.must(submit(fmt.Sprintf("hard%d", i), spec))
		d.settle()
	}
}

// worse names the figures that are worse than before.
func worse(before, after plan.Tidiness) (names []string) {
	say := func(yes bool, name string) {
		if yes {
			names = append(names, name)
		}
	}
	say(after.Empty < before.Empty, "empty machines")
	say(after.StrandedCPUPercent+after.StrandedMemPercent > before.StrandedCPUPercent+before.StrandedMemPercent, "stranded")
	say(after.UnevenPercent >= before.UnevenPercent, "uneven")
	for i, l := range after.Largest {
		say(l.Permille < before.Largest[i].Permille, fmt.Sprintf("largest that fits %d times", l.Copies))
	}
	return names
}

// TestDefragGains asks for each aim alone and for both, of random cells: moves that empty
// machines leave each of them empty to the end of the plan, and moves for fragments make no
// figure worse and one better.
func TestDefragGains(t *testing.T) {
	fragments := 0
	eachSeed(t, func(t *testing.T, d *drawn) {
		d.addBudgets()
		ask := func(aims ...string) *plan.Defragged {
			a, err := plan.Defrag(d.cell, search, 40, aims)
			if err != nil {
				t.Fatal(err)
			}
			for _, m := range a.Moves {
				if m.Aim == plan.AimMachines && !slices.Contains(a.Freed, m.From) {
					t.Errorf("%v: %+v, and %s is not freed", aims, m, m.From)
				}
			}
			return a
		}
		none := plan.Tidiness{}
		machines := ask(plan.AimMachines)
		if n := machines.After.Empty - machines.Before.Empty; len(machines.Moves) > 0 && (n < 1 || n != len(machines.Freed)) {
			t.Errorf("%d moves free %v, and %d more machines are empty", len(machines.Moves), machines.Freed, n)
		}
		for before, a := range map[*plan.Tidiness]*plan.Defragged{&none: ask(plan.AimFragments), &machines.After: ask(plan.AimMachines, plan.AimFragments)} {
			if before == &none {
				before = &a.Before
			}
			n := 0
			for _, m := range a.Moves {
				if m.Aim == plan.AimFragments {
					n++
				}
			}
			if names := worse(*before, a.After); n > 0 && len(names) > 0 {
				t.Errorf("%d moves for fragments make worse: %v; %+v, then %+v", n, names, *before, a.After)
			}
			fragments += n
		}
	})
	if fragments < 50 {
		t.Errorf("%d moves for fragments in all the cells: the test has become too easy", fragments)
	}
}
