//go:build mutants

package main

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"borg/mutant"
)

// TestMutantSeed plants the first bug of the cell in one short run, and then
// none.
func TestMutantSeed(t *testing.T) {
	m, ok := mutant.Find(mutant.FinishedPends)
	if !ok {
		t.Fatal("it is not in the list")
	}
	planted := &trial{mutant: m, aim: m.Aim}
	said, err := planted.runSeed(1, nil)
	if err != nil || killer(said) != "crash" {
		t.Errorf("%s: %q, %v", m.Name, said, err)
	}
	if said, err = (&trial{aim: m.Aim}).runSeed(1, nil); err != nil || said != "" {
		t.Errorf("nothing planted: %q, %v", said, err)
	}
}

func TestMutantTable(t *testing.T) {
	killed := &trial{mutant: mutant.All[0], seeds: 300, tried: 2, seed: 2, found: "at 1.0 s: S8: copy 1 runs\nmore"}
	crashed := &trial{mutant: mutant.All[1], seeds: 300, tried: 1, seed: 1, found: "at 1.0 s: panic: no edge\nstack"}
	refused := &trial{mutant: mutant.All[2], seeds: 300, tried: 1, seed: 1, found: "at 1.0 s: replica 1 cannot load its cell: odd"}
	alive := &trial{mutant: mutant.All[3], seeds: 300, tried: 300}
	cut := &trial{mutant: mutant.All[4], seeds: 300, tried: 3}
	var out bytes.Buffer
	if survived := printTrials(&out, []*trial{killed, crashed, refused, alive, cut}, time.Second); survived != 1 {
		t.Errorf("%d survived, want 1", survived)
	}
	for _, want := range []string{" S8 ", " crash ", " refusal ", " SURVIVED ", " not ended ", "3 of 5 mutants killed, 1 of them"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("the table does not say %q:\n%s", want, out.String())
		}
	}
	if strings.Contains(out.String(), "more") || strings.Contains(out.String(), "stack") {
		t.Errorf("the table says more than the first line:\n%s", out.String())
	}
}
