package main

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"borg/mutation/plant"
)

// TestEquivalentAreThere holds the list of equivalent mutants to the source: each
// entry names a mutant that exists.
func TestEquivalentAreThere(t *testing.T) {
	reasons, err := readEquivalent("testdata/equivalent.txt")
	if err != nil {
		t.Fatal(err)
	}
	if len(reasons) == 0 {
		return
	}
	t.Chdir("..")
	tree, err := load(t.Context(), "")
	if err != nil {
		t.Fatal(err)
	}
	paths, err := tree.ours(t.Context(), []string{"./..."}, "")
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range paths {
		dir := tree.short(path) + "/"
		if !slices.ContainsFunc(keys(reasons), func(id string) bool { return strings.HasPrefix(id, dir) }) {
			continue
		}
		p, err := tree.check(path)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range plant.Find(p) {
			delete(reasons, m.ID())
		}
	}
	for id := range reasons {
		t.Errorf("testdata/equivalent.txt: no such mutant: %s", id)
	}
}

func keys(m map[string]string) []string {
	var all []string
	for k := range m {
		all = append(all, k)
	}
	return all
}

// TestOrderOfTests tries a mutant's own package first and the simulator last,
// and no test that does not pass it.
func TestOrderOfTests(t *testing.T) {
	seen := func(numbers ...int) []byte {
		b := make([]byte, 4)
		for _, n := range numbers {
			b[n] = 1
		}
		return b
	}
	tests := []*test{
		{pkg: simulator, name: "1", took: time.Second, seen: seen(1, 2, 3)},
		{pkg: "m/slow", name: "TestA", took: time.Minute, seen: seen(2)},
		{pkg: "m/quick", name: "TestB", took: time.Second, seen: seen(2)},
		{pkg: "m/own", name: "TestC", took: time.Hour, seen: seen(1, 2)},
		{pkg: "m/own", name: "TestD", took: time.Hour, seen: seen(3)},
	}
	var got []string
	for _, group := range groupsFor(tests, "m/own", 2) {
		for _, t := range group {
			got = append(got, t.name)
		}
	}
	if want := []string{"TestC", "TestB", "TestA", "1"}; !slices.Equal(got, want) {
		t.Errorf("order of tests: %v, want %v", got, want)
	}
}

// TestResultsGoOn reads back what an interrupted run wrote, without its last,
// broken line.
func TestResultsGoOn(t *testing.T) {
	name := t.TempDir() + "/state"
	rs, err := openResults(name)
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range []*result{{ID: "a", Killer: "x"}, {ID: "b"}, {ID: "c", Error: "no binary"}} {
		if err := rs.add(r); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := rs.file.WriteString(`{"id":"d","kil`); err != nil {
		t.Fatal(err)
	}
	rs.close()
	again, err := openResults(name)
	if err != nil {
		t.Fatal(err)
	}
	for id, want := range map[string]bool{"a": true, "b": true, "c": false, "d": false} {
		if got := again.has(id); got != want {
			t.Errorf("has(%s) = %v, want %v", id, got, want)
		}
	}
	// A result after the broken line is kept, and so is a long one.
	for _, id := range []string{"d", "e"} {
		if err := again.add(&result{ID: id, Killer: strings.Repeat("x", 100_000)}); err != nil {
			t.Fatal(err)
		}
	}
	again.close()
	third, err := openResults(name)
	if err != nil {
		t.Fatal(err)
	}
	defer third.close()
	if !third.has("d") || !third.has("e") {
		t.Errorf("after a broken line: has(d) = %v, has(e) = %v", third.has("d"), third.has("e"))
	}
}

// TestSampleIsRepeatable draws the same mutants by the same seed.
func TestSampleIsRepeatable(t *testing.T) {
	t.Chdir("..")
	draw := func(seed uint64) []string {
		r := &run{sample: 5, seed: seed, patterns: []string{"./spelling"}}
		_, drawn, err := r.draw(context.Background())
		if err != nil {
			t.Fatal(err)
		}
		var ids []string
		for _, m := range drawn {
			ids = append(ids, m.ID())
		}
		return ids
	}
	one, again, other := draw(1), draw(1), draw(2)
	if len(one) != 5 || !slices.Equal(one, again) {
		t.Errorf("seed 1 draws %v, then %v", one, again)
	}
	if slices.Equal(one, other) {
		t.Errorf("seeds 1 and 2 draw the same: %v", one)
	}
}
