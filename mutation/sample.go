package main

import (
	"bufio"
	"cmp"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"slices"
	"strings"

	"borg/mutation/plant"
)

// equivalentFile lists mutants that change nothing anyone could see: a line
// each, the mutant's ID, " -- ", the reason.
const equivalentFile = "mutation/testdata/equivalent.txt"

// readEquivalent returns the reason of each listed mutant by its ID.
func readEquivalent(name string) (map[string]string, error) {
	f, err := os.Open(name)
	if os.IsNotExist(err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	reasons := map[string]string{}
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		line := strings.TrimSpace(lines.Text())
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		id, why, ok := strings.Cut(line, " -- ")
		if !ok || why == "" {
			return nil, fmt.Errorf("%s: no reason after \" -- \": %s", name, line)
		}
		reasons[id] = why
	}
	return reasons, lines.Err()
}

// draw returns the sample: mutants that compile, of the packages that match,
// in the order of packages, files and lines.
func (r *run) draw(ctx context.Context) (*tree, []*plant.Mutant, error) {
	t, err := load(ctx, r.tags)
	if err != nil {
		return nil, nil, err
	}
	paths, err := t.ours(ctx, r.patterns, r.tags)
	if err != nil {
		return nil, nil, err
	}
	equivalent, err := readEquivalent(equivalentFile)
	if err != nil {
		return nil, nil, err
	}
	var all []*plant.Mutant
	for _, path := range paths {
		p, err := t.check(path)
		if err != nil {
			return nil, nil, fmt.Errorf("check %s: %w", path, err)
		}
		for _, m := range plant.Find(p) {
			if equivalent[m.ID()] == "" {
				all = append(all, m)
			}
		}
	}
	r.places = len(all)
	rng := rand.New(rand.NewPCG(r.seed, 0))
	rng.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	want := r.sample
	if want == 0 {
		want = len(all)
	}
	var drawn []*plant.Mutant
	for len(drawn) < want && len(all) > 0 {
		n := min(want-len(drawn), len(all))
		drawn = append(drawn, t.validOf(all[:n])...)
		all = all[n:]
	}
	order := map[*plant.Mutant]int{}
	for i, m := range drawn {
		order[m] = i
	}
	slices.SortFunc(drawn, func(a, b *plant.Mutant) int {
		return cmp.Or(strings.Compare(a.Package, b.Package), strings.Compare(a.File, b.File),
			cmp.Compare(a.Line, b.Line), cmp.Compare(a.Column, b.Column), cmp.Compare(order[a], order[b]))
	})
	return t, drawn, nil
}

// validOf returns those of the mutants, of several packages, that compile.
func (t *tree) validOf(mutants []*plant.Mutant) []*plant.Mutant {
	of := map[string][]*plant.Mutant{}
	var paths []string
	for _, m := range mutants {
		if of[m.Package] == nil {
			paths = append(paths, m.Package)
		}
		of[m.Package] = append(of[m.Package], m)
	}
	slices.Sort(paths)
	var ok []*plant.Mutant
	for _, path := range paths {
		ok = append(ok, t.valid(t.checked[path], of[path])...)
	}
	return ok
}

// list prints the sample.
func (r *run) list(ctx context.Context, w io.Writer) error {
	_, drawn, err := r.draw(ctx)
	if err != nil {
		return err
	}
	for _, m := range drawn {
		fmt.Fprintln(w, m)
	}
	fmt.Fprintf(w, "%d of %d places\n", len(drawn), r.places)
	return nil
}
