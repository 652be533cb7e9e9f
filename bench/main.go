// Bench runs the benchmarks of an area of the project, prints their figures as
// a table and merges them by name into a JSON file.
//
// A figure is what a Go benchmark reports with a dotted unit, such as
// b.ReportMetric(v, "cell.apply.ops_per_s"); the last part of the name says
// its unit.
package main

import (
	"bufio"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sort"
	"strconv"
	"strings"
	"text/tabwriter"

	"borg/bench/calibration"
	"borg/bench/figures"
)

// area is whose benchmarks belong together.
type area struct {
	packages []string
	// only are the benchmarks of them that count, as a pattern of go test; empty:
	// all do.
	only string
	// skip are those of them that belong to another area; empty: none.
	skip string
	// tag is that of a build with which they are measured once more; empty: none.
	tag string
	// alsoCells: fail-over is measured too. Not part of all.
	alsoCells bool
	// alone: it takes the machine for minutes, and is not part of all.
	alone bool
}

var areas = map[string]area{
	"cell":       {packages: []string{"./borgmaster/cell", "./borgmaster/replica"}, skip: "^BenchmarkCheckpoint"},
	"sched":      {packages: []string{"./scheduler"}, skip: "^BenchmarkFaux"},
	"checkpoint": {packages: []string{"./checkpoint", "./borgmaster/replica"}, only: "^Benchmark(Write|Read|Append|Checkpoint.*)$"},
	"linkshard":  {packages: []string{"./borgmaster/linkshard"}},
	// Those of the scheduler that need BORG_TRACES, the folder of the real traces.
	// Without it they are skipped, also where all of the scheduler's run.
	"traces": {packages: []string{"./scheduler"}, only: "^BenchmarkTrace"},
	// Questions to a cell that is written down; they need BORG_TRACES too. The
	// compaction takes minutes.
	"faux": {packages: []string{"./cmd/fauxmaster", "./scheduler"}, only: "^BenchmarkFaux"},
	// What five masters bear: ten thousand pretended machines, many clients, a million tasks; those
	// that follow, up to throughput and million, are parts of it or more of the same. About nine minutes.
	"master": {packages: []string{"./cmd/borgcell"}, only: "^Benchmark(Master|Throughput|Million)$", alone: true},
	// A cell of five masters and ten thousand pretended machines; about five minutes.
	"fill": {packages: []string{"./cmd/borgcell"}, only: "^BenchmarkMaster$", alone: true},
	// The same cell without a follower, without the way from one to the machines, without
	// half of the machines, and without all; about twenty minutes.
	"outage": {packages: []string{"./cmd/borgcell"}, only: "^BenchmarkOutage$", alone: true},
	// The same cell that loses followers and elected masters, by turns; four minutes.
	"coverage": {packages: []string{"./cmd/borgcell"}, only: "^BenchmarkCoverage$", alone: true},
	// Five masters and two thousand pretended machines that share 2, 1 and 0.5 cores; needs root,
	// about six minutes.
	"scarce": {packages: []string{"./cmd/borgcell"}, only: "^BenchmarkScarce$", alone: true},
	// What five masters do in a second: submits of many clients, assignments; about two
	// minutes.
	"throughput": {packages: []string{"./cmd/borgcell"}, only: "^BenchmarkThroughput$", alone: true},
	// A replica with a million tasks: its memory, its restart; three minutes.
	"million": {packages: []string{"./cmd/borgcell"}, only: "^BenchmarkMillion$", alone: true},
	// Five masters, a user who floods them, tasks that crash, slow clients, many who list, and what others
	// notice; two minutes.
	"flood": {packages: []string{"./cmd/borgcell"}, only: "^Benchmark(Read)?Flood$", alone: true},
	// Three masters that a user, a task and a thousand connections attack from half a core, and what
	// others notice; needs root. BORG_BENCH_MINUTES is the time of each, 20 s without it.
	"hostile": {packages: []string{"./cmd/borgcell"}, only: "^BenchmarkHostile$", alone: true},
	// Reads at all replicas of a cell of 150,000 tasks beside writes, the list of all of
	// them, and what watches cost a change; three minutes.
	"reads": {packages: []string{"./cmd/borgcell", "./borgmaster/watch"}, only: "^Benchmark(Reads|Watch.*)$", alone: true},
	// What a borglet gives real tasks of the processor, and what it costs itself; needs root,
	// little more than a minute.
	"borglet": {packages: []string{"./cmd/borglet"}, only: "^BenchmarkBorglet$", alone: true},
	// What TLS costs: a build with the tag plaintext has none.
	"tls": {packages: []string{"./proto/door", "./borgmaster/replica"}, only: "Handshakes|Connections|Calls|Slow|Writes", tag: "plaintext"},
	// One good client beside a thousand slow connections; a minute.
	"slow": {packages: []string{"./proto/door"}, only: "BesideSlow"},
	// Whole cells whose elected master is killed, with TLS and without, and what TLS
	// costs besides; about seven minutes.
	"failover": {packages: []string{"./proto/door", "./borgmaster/replica"}, only: "Handshakes|Writes", tag: "plaintext", alsoCells: true},
}

func main() {
	out := flag.String("out", "bin/bench.json", "file to merge the figures into")
	tags := flag.String("tags", "", "those of the build that is measured")
	benchtime := flag.String("benchtime", "3s", "how long each benchmark runs")
	revision := flag.String("against", "", "also build this revision, measure both by turns, and print the ratios; the figures are not kept")
	pairs := flag.Int("pairs", 3, "how often both are measured, with -against")
	flag.Parse()
	if err := run(flag.Arg(0), *out, *benchtime, *tags, *revision, *pairs); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func run(area, out, benchtime, tags, revision string, pairs int) error {
	of, err := areaOf(area)
	if err != nil {
		return err
	}
	bench := []string{"test", "-run", "^$", "-bench", of.only, "-benchtime", benchtime, "-count", "1", "-p", "1", "-timeout", "3h"}
	if tags != "" {
		bench = append(bench, "-tags", tags)
	}
	if of.skip != "" {
		bench = append(bench, "-skip", of.skip)
	}
	scale, err := calibrate(filepath.Dir(out))
	if err != nil {
		return err
	}
	if revision != "" {
		return against(revision, tags, pairs, append(bench, of.packages...))
	}
	found, err := measure(tree{}, append(bench, of.packages...))
	if err != nil {
		return err
	}
	if of.tag != "" {
		more, err := measure(tree{}, append(append(bench, "-tags", of.tag), of.packages...))
		if err != nil {
			return err
		}
		found = append(found, more...)
	}
	if of.alsoCells {
		more, err := measureFailOver(filepath.Dir(out))
		if err != nil {
			return err
		}
		found = append(found, more...)
	}
	found = append(scale, found...)
	fmt.Printf("\n%s, %s, commit %s\n", found[0].Machine, found[0].Date, found[0].Commit)
	print(found, false)
	if area == "" || area == "all" {
		if err := printKept(out, found); err != nil {
			return err
		}
	}
	return figures.Merge(out, found)
}

// printKept prints the figures of a file that were not measured now: those of areas that are
// measured alone, of the simulator's runs, of chaos.
func printKept(file string, now []figures.Figure) error {
	kept, err := figures.Read(file)
	kept = slices.DeleteFunc(kept, func(old figures.Figure) bool {
		return slices.ContainsFunc(now, func(f figures.Figure) bool { return f.Name == old.Name })
	})
	if err != nil || len(kept) == 0 {
		return err
	}
	fmt.Printf("\nmeasured before, as %s has it\n", file)
	print(kept, true)
	return nil
}

// calibrate measures the machine itself, on the disk of dir, and prints it before
// anything else is measured.
func calibrate(dir string) ([]figures.Figure, error) {
	r, err := calibration.Measure(dir)
	if err != nil {
		return nil, err
	}
	scale := []figures.Figure{
		figures.New("calibration.hash_mib_per_s", r.HashMiBPerS), figures.New("calibration.gathers_per_s", r.GathersPerS),
		figures.New("calibration.sync_ms", r.SyncMs), figures.New("calibration.call_us", r.CallUs),
	}
	fmt.Printf("this machine now: %.0f MiB/s hashed, %.1f million random reads a second, %.2f ms a synced write, %.1f us a call over loopback\n",
		r.HashMiBPerS, r.GathersPerS/1e6, r.SyncMs, r.CallUs)
	return scale, nil
}

// measure runs benchmarks of a tree and returns the figures that they report. The
// zero tree is the present one.
func measure(of tree, args []string) ([]figures.Figure, error) {
	fmt.Println("$ go", strings.Join(args, " "))
	cmd := exec.Command("go", args...)
	cmd.Dir = of.dir
	if of.bin != "" {
		cmd.Env = append(os.Environ(), "BORG_BIN="+of.bin)
	}
	cmd.Stderr = os.Stderr
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	found, err := parse(io.TeeReader(stdout, os.Stderr))
	if err != nil {
		return nil, err
	}
	if err := cmd.Wait(); err != nil {
		return nil, fmt.Errorf("benchmarks: %w", err)
	}
	if len(found) == 0 {
		return nil, errors.New("no benchmark reported a figure with a dotted name (those of real traces are skipped unless BORG_TRACES names their folder)")
	}
	return found, nil
}

func areaOf(name string) (area, error) {
	if name != "" && name != "all" {
		a, ok := areas[name]
		if !ok {
			names := []string{"all"}
			for name := range areas {
				names = append(names, name)
			}
			sort.Strings(names)
			return area{}, fmt.Errorf("unknown area %q; areas: %s", name, strings.Join(names, ", "))
		}
		if a.only == "" {
			a.only = "."
		}
		return a, nil
	}
	all := area{only: "."}
	for _, a := range areas {
		if a.alone {
			continue
		}
		all.packages = append(all.packages, a.packages...)
	}
	slices.Sort(all.packages)
	all.packages = slices.Compact(all.packages)
	return all, nil
}

// parse reads the output of go test -bench: a line is a name, a count, and
// pairs of value and unit.
func parse(r io.Reader) ([]figures.Figure, error) {
	var found []figures.Figure
	for s := bufio.NewScanner(r); s.Scan(); {
		fields := strings.Fields(s.Text())
		if len(fields) < 4 || !strings.HasPrefix(fields[0], "Benchmark") {
			continue
		}
		for i := 2; i+1 < len(fields); i += 2 {
			name := fields[i+1]
			if !strings.Contains(name, ".") {
				continue
			}
			value, err := strconv.ParseFloat(fields[i], 64)
			if err != nil {
				return nil, fmt.Errorf("read %q: %w", s.Text(), err)
			}
			found = append(found, figures.New(name, value))
		}
	}
	return found, nil
}

// print prints figures as a table; dated: each with its day and commit.
func print(found []figures.Figure, dated bool) {
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
	row := func(f figures.Figure, value string) {
		fmt.Fprintf(w, "%s\t%s\t%s", f.Name, value, f.Unit)
		if dated {
			fmt.Fprintf(w, "\t%s\t%s", f.Date, f.Commit)
		}
		fmt.Fprintln(w)
	}
	row(figures.Figure{Name: "FIGURE", Unit: "UNIT", Date: "DATE", Commit: "COMMIT"}, "VALUE")
	for _, f := range found {
		row(f, strconv.FormatFloat(f.Value, 'f', -1, 64))
	}
	w.Flush()
}
