package main

import (
	"context"
	"fmt"
	"maps"
	"os"
	"slices"
	"sync"
	"time"

	"borg/mutation/plant"
)

// run is one measurement: what was asked for, and what came of it.
type run struct {
	// How many mutants are tried, and by what they are drawn.
	sample int
	seed   uint64
	// Directory of builds, file of results, file of figures.
	dir, state, bench string
	tags              string
	// Mutants tried at one time.
	workers int
	// Time of other packages' tests for one mutant, as measured without it.
	others time.Duration
	// Seeds of the simulator for what is left.
	seeds    int
	patterns []string

	// places is how many mutants there are to draw from.
	places int
}

// measure tries the sample and prints the scores.
func (r *run) measure(ctx context.Context) error {
	began := time.Now()
	t, drawn, err := r.draw(ctx)
	if err != nil {
		return err
	}
	fmt.Printf("%d of %d places, drawn by seed %d\n", len(drawn), r.places, r.seed)
	results, err := openResults(r.state)
	if err != nil {
		return err
	}
	defer results.close()
	left := slices.DeleteFunc(slices.Clone(drawn), func(m *plant.Mutant) bool { return results.has(m.ID()) })
	if len(left) > 0 {
		if err := r.try(ctx, t, left, results); err != nil {
			return err
		}
	}
	if err := report(os.Stdout, t, drawn, results); err != nil {
		return err
	}
	fmt.Printf("took %v\n", time.Since(began).Round(time.Second))
	if r.bench == "" {
		return nil
	}
	return writeFigures(r.bench, t, drawn, results)
}

// try builds the mutants, finds out which tests pass them, and runs each.
func (r *run) try(ctx context.Context, t *tree, mutants []*plant.Mutant, results *results) error {
	b := &build{tree: t, mutants: mutants, dir: r.dir, tags: r.tags}
	fmt.Println("build every test twice: to see what tests pass, and to try")
	if err := b.compile(ctx); err != nil {
		return err
	}
	defer b.remove()
	tests, err := r.record(ctx, b)
	if err != nil {
		return err
	}
	next := make(chan int)
	var wg sync.WaitGroup
	var mu sync.Mutex // guards done, failure and the output
	var done int
	var failure error
	for range r.workers {
		wg.Go(func() {
			for n := range next {
				res := r.one(ctx, b, tests, n)
				mu.Lock()
				if ctx.Err() == nil {
					if err := results.add(res); err != nil {
						failure = err
					}
					done++
					fmt.Printf("%d/%d %s\n", done, len(mutants), res)
				}
				mu.Unlock()
			}
		})
	}
	for n := 1; n <= len(mutants) && ctx.Err() == nil; n++ {
		select {
		case next <- n:
		case <-ctx.Done():
		}
	}
	close(next)
	wg.Wait()
	if failure != nil {
		return failure
	}
	return context.Cause(ctx)
}

// one runs the n-th mutant under the tests that reach it.
func (r *run) one(ctx context.Context, b *build, tests []*test, n int) *result {
	m := b.mutants[n-1]
	res := &result{ID: m.ID(), Place: m.String(), Package: b.tree.short(m.Package), Operator: string(m.Operator)}
	began := time.Now()
	defer func() { res.Seconds = time.Since(began).Seconds() }()
	spent := time.Duration(0)
	for _, group := range groupsFor(tests, m.Package, n) {
		res.Reached = true
		if group[0].pkg != m.Package {
			if spent >= r.others {
				continue
			}
			for _, t := range group {
				spent += t.took
			}
		}
		killer, err := b.kills(ctx, group, n)
		if err != nil {
			res.Error = err.Error()
			return res
		}
		if killer != "" {
			res.Killer = killer
			return res
		}
	}
	return res
}

// groupsFor returns the tests that reach the n-th mutant, those of one package
// together: its own package's first, then other packages' by time, the simulator's last.
func groupsFor(tests []*test, own string, n int) [][]*test {
	of := map[string][]*test{}
	for _, t := range tests {
		if t.seen[n] != 0 {
			of[t.pkg] = append(of[t.pkg], t)
		}
	}
	took := func(group []*test) (sum time.Duration) {
		for _, t := range group {
			sum += t.took
		}
		return sum
	}
	rank := func(pkg string) int {
		switch pkg {
		case own:
			return 0
		case simulator:
			return 2
		}
		return 1
	}
	pkgs := slices.SortedFunc(maps.Keys(of), func(a, b string) int {
		if d := rank(a) - rank(b); d != 0 {
			return d
		}
		return int(took(of[a]) - took(of[b]))
	})
	var groups [][]*test
	for _, pkg := range pkgs {
		groups = append(groups, of[pkg])
	}
	return groups
}
