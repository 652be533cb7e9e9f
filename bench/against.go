package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"text/tabwriter"

	"borg/bench/figures"
)

// tree is a checkout whose benchmarks are run, with its programs.
type tree struct{ dir, bin string }

// against measures an area in this tree and in another revision by turns, and
// prints for each pair the ratio of the new figure to the old one. Machines
// differ and are noisy; the ratio of two runs that follow each other does not
// depend on the machine, and its spread over the pairs shows the noise.
func against(revision, tags string, pairs int, bench []string) error {
	old, remove, err := checkOut(revision, tags)
	if err != nil {
		return err
	}
	defer remove()
	here, err := os.Getwd()
	if err != nil {
		return err
	}
	trees := []tree{{here, os.Getenv("BORG_BIN")}, old}
	var rounds []map[string][2]float64
	for n := range pairs {
		round := map[string][2]float64{}
		for i := range trees {
			// The one that comes first changes.
			which := (i + n) % 2
			found, err := measure(trees[which], bench)
			if err != nil {
				return err
			}
			for _, f := range found {
				both := round[f.Name]
				both[which] = f.Value
				round[f.Name] = both
			}
		}
		rounds = append(rounds, round)
	}
	printRatios(revision, ratios(rounds))
	return nil
}

// checkOut makes a work tree of a revision in a directory of its own and builds
// its programs there.
func checkOut(revision, tags string) (t tree, remove func(), err error) {
	dir, err := os.MkdirTemp("", "borg-against-")
	if err != nil {
		return tree{}, nil, err
	}
	t = tree{dir: filepath.Join(dir, "tree"), bin: filepath.Join(dir, "tree", "bin")}
	remove = func() {
		_ = exec.Command("git", "worktree", "remove", "--force", t.dir).Run()
		_ = os.RemoveAll(dir)
	}
	// As make bench builds the present one.
	master := []string{"go", "build", "-C", t.dir, "-tags", tags, "-pgo=" + filepath.Join(t.dir, "cmd", "borgmaster", "masters.pgo"), "-o", t.bin, "./cmd/borgmaster"}
	for _, args := range [][]string{{"git", "worktree", "add", "--detach", t.dir, revision}, {"make", "-C", t.dir, "build"}, master} {
		fmt.Println("$", strings.Join(args, " "))
		cmd := exec.Command(args[0], args[1:]...)
		// A make above this one would hand its own variables down.
		cmd.Env = slices.DeleteFunc(os.Environ(), func(v string) bool { return strings.HasPrefix(v, "MAKE") || strings.HasPrefix(v, "MFLAGS=") })
		if out, err := cmd.CombinedOutput(); err != nil {
			remove()
			return tree{}, nil, fmt.Errorf("%s: %w\n%s", strings.Join(args, " "), err, out)
		}
	}
	return t, remove, nil
}

// ratio is a figure over the pairs, new to old.
type ratio struct {
	name string
	// One for each pair in which both trees measured it; not sorted.
	pairs []float64
}

// median returns the middle ratio.
func (r ratio) median() float64 {
	sorted := slices.Sorted(slices.Values(r.pairs))
	n := len(sorted)
	return (sorted[(n-1)/2] + sorted[n/2]) / 2
}

// ratios returns the ratio of every figure that both trees measured, by name.
func ratios(rounds []map[string][2]float64) (all []ratio) {
	byName := map[string]*ratio{}
	for _, round := range rounds {
		for name, both := range round {
			if both[0] == 0 || both[1] == 0 {
				continue
			}
			if byName[name] == nil {
				byName[name] = &ratio{name: name}
			}
			byName[name].pairs = append(byName[name].pairs, both[0]/both[1])
		}
	}
	for _, r := range byName {
		all = append(all, *r)
	}
	slices.SortFunc(all, func(a, b ratio) int { return strings.Compare(a.name, b.name) })
	return all
}

// printRatios prints a line for each figure: the ratio of each pair, and the median.
func printRatios(revision string, all []ratio) {
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintf(w, "\nFIGURE\tUNIT\tTHIS TREE / %s, PAIR BY PAIR\tMEDIAN\n", revision)
	for _, r := range all {
		var pairs []string
		for _, x := range r.pairs {
			pairs = append(pairs, fmt.Sprintf("%.3f", x))
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%.3f\n", r.name, figures.New(r.name, 0).Unit, strings.Join(pairs, " "), r.median())
	}
	w.Flush()
}
