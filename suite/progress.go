package main

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"time"
)

// event is what go test -json prints of one step (go doc test2json).
type event struct {
	Action      string
	Package     string
	Test        string
	Elapsed     float64 // seconds
	Output      string
	ImportPath  string // of a build
	FailedBuild string
}

// key names a test of a package, or with an empty test the package itself.
type key struct{ pkg, test string }

func (k key) String() string {
	if k.test == "" {
		return k.pkg
	}
	return k.pkg + " " + k.test
}

// parent returns the test that k is a subtest of, or the package.
func (k key) parent() key {
	if i := strings.LastIndexByte(k.test, '/'); i >= 0 {
		return key{k.pkg, k.test[:i]}
	}
	return key{k.pkg, ""}
}

// active is a test, or a package, that was started and has not ended.
type active struct {
	// Start of the test, for people.
	began time.Time
	// When it or one of its subtests last started, continued or ended.
	since time.Time
	// Whether it waits for its turn among the parallel tests.
	paused bool
	// Subtests that have not ended. Invariant: a parent's count is that of the
	// entries of progress.active whose parent it is.
	children int
	// What it printed, kept until it has passed.
	output []string
}

// progress turns events into lines for people. It has no clock.
type progress struct {
	total int
	each  bool
	began time.Time

	active map[key]*active
	// Packages that ended; tests by their end, subtests not counted.
	done, passed, failed, skipped int
	// Tests that ended in each package that has not ended.
	tests map[string]int
	// How many tests were skipped for each reason.
	reasons map[string]int
	// Tests and packages that failed.
	failures []key
	// Output of builds that may yet fail.
	builds map[string][]string
	// When a line was last printed.
	spoke time.Time
}

func newProgress(total int, each bool, now time.Time) *progress {
	return &progress{total: total, each: each, began: now, spoke: now,
		active: map[key]*active{}, tests: map[string]int{}, reasons: map[string]int{}, builds: map[string][]string{}}
}

// event takes the next event and returns the lines to print for it.
func (p *progress) event(now time.Time, e event) (lines []string) {
	k := key{e.Package, e.Test}
	switch e.Action {
	case "start", "run":
		p.begin(now, k)
	case "pause", "cont":
		if a := p.active[k]; a != nil {
			a.paused, a.since = e.Action == "pause", now
		}
	case "output":
		if a := p.active[k]; a != nil {
			a.output = append(a.output, strings.TrimSuffix(e.Output, "\n"))
		}
	case "build-output":
		p.builds[e.ImportPath] = append(p.builds[e.ImportPath], strings.TrimSuffix(e.Output, "\n"))
	case "build-fail":
		lines = append(lines, p.builds[e.ImportPath]...)
	case "pass", "fail", "skip":
		lines = p.end(now, k, e)
	}
	if len(lines) > 0 {
		p.spoke = now
	}
	return lines
}

func (p *progress) begin(now time.Time, k key) {
	p.active[k] = &active{began: now, since: now}
	if k.test == "" {
		return
	}
	if a := p.active[k.parent()]; a != nil {
		a.children++
	}
}

// end takes the end of a test or a package.
func (p *progress) end(now time.Time, k key, e event) (lines []string) {
	a := p.active[k]
	if a == nil {
		a = &active{}
	} else if up := p.active[k.parent()]; k.test != "" && up != nil {
		up.children--
		up.since = now
	}
	delete(p.active, k)
	if e.Action == "fail" {
		p.failures = append(p.failures, k)
		lines = append(lines, a.output...)
	}
	if k.test == "" {
		lines = append(p.interrupted(now, k.pkg), lines...)
		cached := slices.ContainsFunc(a.output, func(line string) bool { return strings.HasSuffix(line, "\t(cached)") })
		return append(lines, p.endPackage(now, k.pkg, e, cached))
	}
	if strings.Contains(k.test, "/") {
		return lines
	}
	p.tests[k.pkg]++
	switch e.Action {
	case "pass":
		p.passed++
	case "fail":
		p.failed++
	case "skip":
		p.skipped++
		p.reasons[reason(a.output)]++
	}
	if p.each && e.Action != "skip" {
		lines = append(lines, fmt.Sprintf("%s %s %7.1f s  %s", p.head(now), word(e.Action), e.Elapsed, k))
	}
	return lines
}

// interrupted fails the tests of a package that ended before them, as when one
// of them ends the process.
func (p *progress) interrupted(now time.Time, pkg string) (lines []string) {
	left := slices.DeleteFunc(slices.Collect(maps.Keys(p.active)), func(k key) bool { return k.pkg != pkg })
	// Subtests sort after their parents.
	slices.SortFunc(left, func(a, b key) int { return strings.Compare(b.test, a.test) })
	for _, k := range left {
		began := p.active[k].began
		lines = append(lines, p.end(now, k, event{Action: "fail", Elapsed: now.Sub(began).Seconds()})...)
	}
	return lines
}

// endPackage returns the line of a package. One without tests is not counted.
func (p *progress) endPackage(now time.Time, pkg string, e event, cached bool) string {
	if e.Action != "skip" || p.tests[pkg] > 0 {
		p.done++
	}
	tests := p.tests[pkg]
	delete(p.tests, pkg)
	what := fmt.Sprintf("%d tests", tests)
	switch {
	case e.FailedBuild != "":
		what = "does not build"
	case e.Action == "fail" && tests == 0:
		what = "ended before its first test"
	case tests == 1:
		what = "1 test"
	}
	if cached {
		what += ", cached"
	}
	return fmt.Sprintf("%s %s %7.1f s  %s (%s)", p.head(now), word(e.Action), e.Elapsed, pkg, what)
}

func word(action string) string {
	return map[string]string{"pass": "ok  ", "fail": "FAIL", "skip": "none"}[action]
}

// head is how far the run is, and how long it took until now.
func (p *progress) head(now time.Time) string {
	return fmt.Sprintf("[%2d of %d] %s", p.done, p.total, clock(now.Sub(p.began)))
}

// clock writes a duration as minutes and seconds.
func clock(d time.Duration) string {
	return fmt.Sprintf("%d:%02d", int(d.Minutes()), int(d.Seconds())%60)
}

// quietFor is after how long without a line tick says what runs.
const quietFor = 20 * time.Second

// tick returns a line on what runs if none was printed for a while.
func (p *progress) tick(now time.Time) []string {
	if now.Sub(p.spoke) < quietFor {
		return nil
	}
	p.spoke = now
	names := p.running()
	if len(names) == 0 {
		return []string{p.head(now) + " builds"}
	}
	const most = 4
	var says []string
	for _, k := range names[:min(most, len(names))] {
		says = append(says, fmt.Sprintf("%s for %d s", k, int(now.Sub(p.active[k].began).Seconds())))
	}
	if more := len(names) - most; more > 0 {
		says = append(says, fmt.Sprintf("%d more", more))
	}
	return []string{p.head(now) + " runs " + strings.Join(says, ", ")}
}

// running returns what runs at the moment, the longest first: tests without
// subtests that run, and packages between two tests.
func (p *progress) running() []key {
	names := slices.DeleteFunc(slices.Collect(maps.Keys(p.active)), func(k key) bool {
		return p.active[k].paused || p.active[k].children > 0
	})
	slices.SortFunc(names, func(a, b key) int {
		if d := p.active[a].began.Compare(p.active[b].began); d != 0 {
			return d
		}
		return strings.Compare(a.String(), b.String())
	})
	return names
}

// overdue returns what has run for longer than the limit without a sign of
// progress, the longest first.
func (p *progress) overdue(now time.Time, limit time.Duration) []key {
	return slices.DeleteFunc(p.running(), func(k key) bool { return now.Sub(p.active[k].since) < limit })
}

// summary returns the last lines of the run.
func (p *progress) summary(now time.Time) (lines []string) {
	if len(p.reasons) > 0 {
		lines = append(lines, "", "skipped:")
		for _, why := range slices.Sorted(maps.Keys(p.reasons)) {
			lines = append(lines, fmt.Sprintf("  %3d  %s", p.reasons[why], why))
		}
	}
	if len(p.failures) > 0 {
		lines = append(lines, "", "failed:")
		for _, k := range p.failures {
			lines = append(lines, "  "+k.String())
		}
	}
	packages := "packages"
	if p.done == 1 {
		packages = "package"
	}
	return append(lines, "", fmt.Sprintf("%d %s in %s", p.done, packages, clock(now.Sub(p.began))),
		fmt.Sprintf("%d passed, %d failed, %d skipped", p.passed, p.failed, p.skipped))
}

var logged = regexp.MustCompile(`^\s+\w+\.go:\d+: (.*)`)

// reason returns what a test said last before it was skipped.
func reason(output []string) string {
	for _, line := range slices.Backward(output) {
		if m := logged.FindStringSubmatch(line); m != nil {
			return m[1]
		}
	}
	return "no reason was given"
}
