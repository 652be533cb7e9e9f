package main

import (
	"fmt"
	"maps"
	"os"
	"slices"
	"sync"
	"testing"
	"text/tabwriter"
	"time"

	"borg/bench/figures"
)

// measured are the figures of this run of the tests, by name. They are printed
// by the tests, and merged into the file that BORG_FIGURES names.
var measured struct {
	mu     sync.Mutex
	values map[string]float64 // guarded by mu
}

// figure notes a measured value. The last part of the name says its unit.
func figure(t *testing.T, name string, value float64) {
	t.Helper()
	measured.mu.Lock()
	defer measured.mu.Unlock()
	if measured.values == nil {
		measured.values = make(map[string]float64)
	}
	measured.values[name] = value
	t.Logf("figure %s %g", name, value)
}

// counted adds to a figure that all tests share. None of what must not happen
// is a figure too: zero.
func counted(t *testing.T, name string, n int) {
	t.Helper()
	measured.mu.Lock()
	sum := measured.values[name] + float64(n)
	measured.mu.Unlock()
	figure(t, name, sum)
}

// took notes how long something took in each of many runs: the median, and the
// time within which 99 of 100 were.
func took(t *testing.T, median, other string, quantile float64, all []time.Duration) {
	t.Helper()
	if len(all) == 0 {
		t.Fatalf("nothing was measured for %s", median)
	}
	sorted := slices.Sorted(slices.Values(all))
	ms := func(d time.Duration) float64 { return float64(d.Round(time.Millisecond) / time.Millisecond) }
	figure(t, median, ms(sorted[len(sorted)/2]))
	figure(t, other, ms(sorted[int(quantile*float64(len(sorted)-1)+0.5)]))
}

// writeFigures prints the figures of the run and merges them into the file that
// BORG_FIGURES names.
func writeFigures() error {
	measured.mu.Lock()
	defer measured.mu.Unlock()
	path := os.Getenv("BORG_FIGURES")
	if len(measured.values) == 0 || path == "" {
		return nil
	}
	var all []figures.Figure
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "FIGURE\tVALUE\tUNIT")
	for _, name := range slices.Sorted(maps.Keys(measured.values)) {
		f := figures.New(name, measured.values[name])
		fmt.Fprintf(w, "%s\t%g\t%s\n", f.Name, f.Value, f.Unit)
		all = append(all, f)
	}
	w.Flush()
	return figures.Merge(path, all)
}
