package main

import (
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"golang.org/x/term"

	"borg/bench/figures"
	"borg/cli"
	"borg/fauxmaster/sim"
)

// manySeeds is how many seeds in a row must have come to every mark that is
// required.
const manySeeds = 300

// wholeRunNs is the length from which on each of several runs must reach the
// least of every measure: a shorter one is no less true, and says less.
const wholeRunNs = int64(30 * time.Second)

// fingerprint tells a run from another one.
type fingerprint struct{ hash, events uint64 }

// tally sums up many seeds.
type tally struct {
	first uint64
	// Each seed must reach the least of each measure.
	whole bool

	seeds  int
	failed []uint64
	prints map[uint64]fingerprint
	// Runs that were made again, and those that came to something else.
	replays, differ int
	// Histories that nothing explains, and those without a verdict.
	illegal, unknown int
	measures         []measure
	failoverNs       []int64
	marks            map[string]int
	// By number: seeds first + manySeeds*number and those after it.
	stretches map[uint64]*stretch
	// What seeds did too little of, in words.
	idle               []string
	virtualNs          int64
	cpuNs, wallNs      int64
	began              time.Time
	events, logEntries uint64
}

// measure is a number of all seeds, and the least of any.
type measure struct {
	name string
	of   func(simulated) int
	// What a whole run must come to for its silence to mean anything.
	want       int
	sum, least int
}

// stretch is manySeeds seeds in a row.
type stretch struct {
	seeds int
	marks map[string]bool
}

const acknowledged = "mutations acknowledged"

func newTally(first uint64, whole bool) *tally {
	return &tally{
		first: first, whole: whole,
		prints: map[uint64]fingerprint{}, marks: map[string]int{}, stretches: map[uint64]*stretch{}, began: time.Now(),
		measures: []measure{
			{name: acknowledged, want: 500, of: func(s simulated) int { return s.Acknowledged }},
			{name: "reads answered", of: func(s simulated) int { return s.Reads }},
			{name: "jobs in histories", of: func(s simulated) int { return s.History.Keys }},
			{name: "operations in histories", of: func(s simulated) int { return s.History.Ops }},
			{name: "tasks started", want: 100, of: func(s simulated) int { return s.Started }},
			{name: "changes of the elected replica", want: 3, of: func(s simulated) int { return max(0, s.Elections-1) }},
			{name: "faults", of: func(s simulated) int { return len(s.Faults) }},
		},
	}
}

func (t *tally) take(s simulated) {
	t.seeds++
	t.prints[s.Seed] = fingerprint{s.Hash, s.Events}
	if s.Failed != "" {
		t.failed = append(t.failed, s.Seed)
	}
	for i := range t.measures {
		c := &t.measures[i]
		n := c.of(s)
		if t.seeds == 1 || n < c.least {
			c.least = n
		}
		if n < c.want && t.whole {
			t.idle = append(t.idle, fmt.Sprintf("seed %d: %d %s, want %d", s.Seed, n, c.name, c.want))
		}
		c.sum += n
	}
	t.illegal += s.History.Illegal
	t.unknown += s.History.Unknown
	t.failoverNs = append(t.failoverNs, s.FailoverNs...)
	here := t.stretches[(s.Seed-t.first)/manySeeds]
	if here == nil {
		here = &stretch{marks: map[string]bool{}}
		t.stretches[(s.Seed-t.first)/manySeeds] = here
	}
	here.seeds++
	for name, n := range s.Marks {
		t.marks[name] += n
		here.marks[name] = true
	}
	t.virtualNs += s.VirtualNs
	t.cpuNs += s.CPUNs
	t.wallNs += s.WallNs
	t.events += s.Events
	t.logEntries += s.Entries
}

// failoverMs is the time that so many in a thousand of the fail-overs took at
// most.
func (t *tally) failoverMs(permille int) float64 {
	slices.Sort(t.failoverNs)
	n := len(t.failoverNs)
	if n == 0 {
		return 0
	}
	return float64(t.failoverNs[min(n*permille/1000, n-1)]) / 1e6
}

func (t *tally) secondsPerSeed() float64 { return float64(t.cpuNs) / 1e9 / float64(max(t.seeds, 1)) }

func (t *tally) print(out io.Writer, asked uint64) {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	row := func(name string, values ...any) {
		fmt.Fprintf(w, "%s%s\t", name, strings.Repeat(" ", max(0, 32-len(name))))
		for _, v := range values {
			fmt.Fprintf(w, "%v\t", v)
		}
		fmt.Fprintln(w)
	}
	row("", "all", "least of a seed")
	row("seeds", fmt.Sprintf("%d of %d", t.seeds, asked))
	row("violations", len(t.failed))
	if t.replays > 0 {
		row("runs made again", t.replays)
		row("replay differences", t.differ)
	}
	for _, c := range t.measures {
		row(c.name, c.sum, c.least)
	}
	row("histories illegal", t.illegal)
	row("histories without a verdict", t.unknown)
	row("fail-overs", len(t.failoverNs))
	for _, p := range []struct {
		name     string
		permille int
	}{{"fail-over p50, ms", 500}, {"fail-over p99, ms", 990}, {"fail-over most, ms", 1000}} {
		row(p.name, fmt.Sprintf("%.0f", t.failoverMs(p.permille)))
	}
	row("virtual time, s", fmt.Sprintf("%.0f", float64(t.virtualNs)/1e9))
	row("events", t.events)
	row("log entries", t.logEntries)
	row("processor time of a seed, s", fmt.Sprintf("%.2f", t.secondsPerSeed()))
	row("wall time of a seed, s", fmt.Sprintf("%.2f", float64(t.wallNs)/1e9/float64(max(t.seeds, 1))))
	row("wall time of this run, s", fmt.Sprintf("%.1f", time.Since(t.began).Seconds()))
	w.Flush()
	for _, name := range slices.Sorted(maps.Keys(t.marks)) {
		fmt.Fprintf(out, "  %8d  %s\n", t.marks[name], name)
	}
	for _, name := range sim.RequiredMarks() {
		if t.marks[name] == 0 {
			fmt.Fprintf(out, "  %8s  %s\n", "never", name)
		}
	}
	for _, line := range slices.Concat(t.missing(), t.idle) {
		fmt.Fprintln(out, line)
	}
	fmt.Fprintf(out, "%d seeds, %d violations, %d replay differences\n", t.seeds, len(t.failed), t.differ)
}

// missing says, of each whole stretch of seeds, which rare states were required
// of it and never came.
func (t *tally) missing() []string {
	var lines []string
	for _, n := range slices.Sorted(maps.Keys(t.stretches)) {
		here := t.stretches[n]
		for _, name := range sim.RequiredMarks() {
			if here.seeds == manySeeds && !here.marks[name] {
				first := t.first + n*manySeeds
				lines = append(lines, fmt.Sprintf("seeds %d to %d never came to: %s", first, first+manySeeds-1, name))
			}
		}
	}
	return lines
}

// verdict is the error that the command ends with; nil: all is well.
func (t *tally) verdict() error {
	var wrong []string
	say := func(n int, what string) {
		if n > 0 {
			wrong = append(wrong, fmt.Sprintf("%d %s", n, what))
		}
	}
	say(len(t.failed), "seeds show a violation")
	say(t.differ, "runs do not repeat")
	say(t.unknown, "histories have no verdict")
	say(len(t.missing()), "rare states were required and never came")
	say(len(t.idle), "times a seed did too little for its silence to count")
	if wrong == nil {
		return nil
	}
	return cli.Errorf(cli.Failed, "of %d seeds: %s", t.seeds, strings.Join(wrong, ", "))
}

// bench merges the figures of the run into a file.
func (t *tally) bench(file string) error {
	found := []figures.Figure{
		figures.New("sim.violations", float64(len(t.failed))),
		figures.New("sim.seconds_per_seed", t.secondsPerSeed()),
	}
	for _, c := range t.measures {
		if c.name == acknowledged {
			found = append(found, figures.New("sim.acknowledged_per_seed_min", float64(c.least)))
		}
	}
	if t.replays > 0 {
		found = append(found, figures.New("sim.replay_differences", float64(t.differ)))
	}
	if len(t.failoverNs) > 0 {
		found = append(found, figures.New("sim.failover.p99_ms", t.failoverMs(990)))
	}
	return figures.Merge(file, found)
}

// progressLine is a line on a terminal that says how far something is; nothing
// is written elsewhere.
type progressLine struct {
	out      io.Writer
	terminal bool
	what     string
	done, of int
	began    time.Time
}

func newProgressLine(out io.Writer) *progressLine {
	f, ok := out.(*os.File)
	return &progressLine{out: out, terminal: ok && term.IsTerminal(int(f.Fd()))}
}

func (p *progressLine) begin(of int, what string) {
	p.done, p.of, p.what, p.began = 0, of, what, time.Now()
}

// step says that one more is done.
func (p *progressLine) step(note string) {
	p.done++
	took := time.Since(p.began)
	left := (took / time.Duration(p.done) * time.Duration(p.of-p.done)).Round(time.Second)
	p.say(fmt.Sprintf("%d of %d %s, %s, %v left", p.done, p.of, p.what, note, left))
}

func (p *progressLine) say(text string) {
	if p.terminal {
		fmt.Fprintf(p.out, "\r\033[K%s", text)
	}
}

// clear makes room for another line.
func (p *progressLine) clear() { p.say("") }
func (p *progressLine) end()   { p.clear() }
