package linkshard

import (
	"fmt"
	"slices"
	"testing"
)

func names(n int) []string {
	var all []string
	for i := range n {
		all = append(all, fmt.Sprintf("m%d", i))
	}
	return all
}

func TestSharesAreEven(t *testing.T) {
	live := []uint64{1, 2, 3, 4, 5}
	counts := map[uint64]int{}
	for _, name := range names(10_000) {
		counts[Owner(name, live)]++
	}
	for _, replica := range live {
		if n := counts[replica]; n < 1800 || n > 2200 {
			t.Errorf("replica %d polls %d of 10,000 machines, want 20 %% ± 2 %%", replica, n)
		}
	}
	if len(counts) != len(live) {
		t.Errorf("owners are %v, want those of %v alone", counts, live)
	}
}

func TestOnlyTheLostShareMoves(t *testing.T) {
	before, after := []uint64{1, 2, 3, 4, 5}, []uint64{1, 2, 4, 5}
	heirs := map[uint64]int{}
	for _, name := range names(10_000) {
		was, is := Owner(name, before), Owner(name, after)
		switch {
		case was != 3 && is != was:
			t.Fatalf("machine %s moved from replica %d to %d when replica 3 went", name, was, is)
		case was == 3:
			heirs[is]++
			if second := Ranked(name, before)[1]; second != is {
				t.Fatalf("machine %s went to replica %d, Ranked says %d", name, is, second)
			}
		}
	}
	for _, replica := range after {
		if heirs[replica] < 400 {
			t.Errorf("replica %d took over %d machines, want about a quarter of 2,000", replica, heirs[replica])
		}
	}
}

func TestOwnerDoesNotDependOnOrder(t *testing.T) {
	for _, name := range names(100) {
		if a, b := Owner(name, []uint64{1, 2, 3}), Owner(name, []uint64{3, 1, 2}); a != b {
			t.Errorf("Owner(%s) = %d or %d, by the order of the replicas", name, a, b)
		}
	}
	if got := Owner("m1", nil); got != 0 {
		t.Errorf("Owner without live replicas = %d, want 0", got)
	}
}

// TestNext: who is next for a machine is who polls it when its owner is gone.
func TestNext(t *testing.T) {
	live := []uint64{1, 2, 3, 4, 5}
	for n := range 1000 {
		machine := fmt.Sprint("m", n)
		owner := Owner(machine, live)
		rest := slices.DeleteFunc(slices.Clone(live), func(id uint64) bool { return id == owner })
		if next := Next(machine, live); next != Owner(machine, rest) || next != Ranked(machine, live)[1] {
			t.Fatalf("%s is polled by %d, and next by %d; ranked %v", machine, owner, next, Ranked(machine, live))
		}
	}
	if next := Next("m", []uint64{3}); next != 0 {
		t.Errorf("alone, %d is next", next)
	}
	if next := Next("m", nil); next != 0 {
		t.Errorf("of nobody, %d is next", next)
	}
}
