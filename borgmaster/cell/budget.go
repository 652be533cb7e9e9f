package cell

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"borg/mutant"
	"borg/proto/borgpb"
)

// FormatBudgets is the first format with disruption budgets of jobs, which drains obey.
const FormatBudgets = 5

// Hold is why a task must not be disturbed now.
type Hold struct {
	// Job whose budget holds the task; empty if no budget does.
	Job JobKey
	// The task that is protected.
	Task TaskID
	// What the task waits for, in words.
	Reason string
	// Cell time at which the window of the budget ends; zero if it waits for other tasks to
	// run again.
	UntilNs int64
	// Volume that holds the task, "<user>/<name>/<index>/<volume>"; empty if none does.
	Volume string
}

// checkBudget checks the ranges of a budget. One that never allowed a disruption would delay
// each drain to its deadline.
func checkBudget(b *borgpb.DisruptionBudget) *borgpb.Refusal {
	const field = "spec.disruption_budget"
	switch {
	case b == nil:
		return nil
	case b.MaxDown == 0 && b.MaxPerTask == 0:
		return invalid(field, "it bounds nothing: want max_down, or max_per_task and window_ns, or both")
	case b.MaxDown > maxTasksPerJob:
		return invalid(field+".max_down", "%d is over %d", b.MaxDown, maxTasksPerJob)
	case b.MaxPerTask > maxDisruptionsKept:
		return invalid(field+".max_per_task", "%d is over %d", b.MaxPerTask, maxDisruptionsKept)
	case b.WindowNs < 0 || b.WindowNs > maxBudgetWindowNs:
		return outOfSpan(field+".window_ns", b.WindowNs, 0, maxBudgetWindowNs)
	case (b.MaxPerTask == 0) != (b.WindowNs == 0):
		return invalid(field+".window_ns", "max_per_task and window_ns go together: so many disruptions of one task in so long")
	}
	return nil
}

// budget returns the budget in the latest spec; nil if it has none.
func (j *Job) budget() *borgpb.DisruptionBudget { return j.latest().Proto.DisruptionBudget }

// Down returns the number of tasks that should run and do not: those that are pending,
// stopping, starting or restarting. Tasks that have ended for good are not down, nor those
// that max_running keeps waiting.
func (j *Job) Down() uint32 {
	want := j.pending + j.running
	if most := j.latest().Proto.MaxRunning; most > 0 {
		want = min(want, most)
	}
	up := j.started
	if mutant.Planted(mutant.PlacedCountsAsUp) {
		up = j.running
	}
	return want - min(want, up)
}

// Disruptable returns how many more running tasks the budget allows to go down now; all
// running tasks if there is no max_down.
func (j *Job) Disruptable() uint32 {
	b := j.budget()
	if b.GetMaxDown() == 0 {
		return j.started
	}
	return min(b.MaxDown-min(b.MaxDown, j.Down()), j.started)
}

// HoldOf returns why copies must not be disturbed, all of them together and now; nil if they
// may. max_down counts only the copies that run: one that is down already does not add to the
// tasks down. A copy in quarantine, or of a job that saves, is held whatever the budgets.
func (c *Cell) HoldOf(going []*Copy) *Hold {
	// Running copies that would go, by job.
	up := make(map[*Job]uint32, 1)
	for _, p := range going {
		if p.state == attemptQuarantined {
			return p.holdKept()
		}
		if p.job.saving != nil {
			return p.job.holdSave()
		}
		if p.state == attemptRunning {
			up[p.job]++
		}
	}
	var latest *Hold
	for _, p := range going {
		if h := p.holdVolumes(); h != nil {
			return h
		}
		b := p.job.budget()
		if b == nil {
			continue
		}
		if h := p.holdDown(up[p.job]); h != nil {
			return h
		}
		if h := c.heldByWindow(p, b); h != nil && (latest == nil || h.UntilNs > latest.UntilNs) {
			latest = h
		}
	}
	return latest
}

// Going are running copies that go together, counted by job.
type Going map[*Job]uint32

// Add counts a copy if it runs.
func (g Going) Add(p *Copy) {
	if p.state == attemptRunning {
		g[p.job]++
	}
}

// Remove takes an added copy out again.
func (g Going) Remove(p *Copy) {
	if p.state == attemptRunning {
		g[p.job]--
	}
}

// HoldNext returns why a copy must not be disturbed together with those that go already, none
// of which is held; nil if it may. It gives the answer of HoldOf, and its cost does not grow
// with those that go.
func (c *Cell) HoldNext(g Going, p *Copy) *Hold {
	if p.state == attemptQuarantined {
		return p.holdKept()
	}
	if p.job.saving != nil {
		return p.job.holdSave()
	}
	down := p.holdDown(g[p.job] + 1)
	if down != nil && g[p.job] > 0 {
		return down
	}
	if h := p.holdVolumes(); h != nil {
		return h
	}
	if b := p.job.budget(); b != nil && down == nil {
		return c.heldByWindow(p, b)
	}
	return down
}

// holdDown returns a hold if a running copy would be one of more running tasks of its job to
// go than the budget allows, otherwise nil.
func (p *Copy) holdDown(up uint32) *Hold {
	b := p.job.budget()
	if b.GetMaxDown() == 0 || p.state != attemptRunning || up <= p.job.Disruptable() {
		return nil
	}
	return &Hold{Job: p.job.key, Task: p.TaskID(), Reason: downWords(p.job, b, up)}
}

// downWords explains why up more tasks of a job must not go down.
func downWords(j *Job, b *borgpb.DisruptionBudget, up uint32) string {
	if up > b.MaxDown {
		return fmt.Sprintf("%d tasks of %v would go down together, and its budget allows %d", up, j.key, b.MaxDown)
	}
	return fmt.Sprintf("%d of %d tasks of %v are down, and its budget allows %d", j.Down(), j.pending+j.running, j.key, b.MaxDown)
}

// heldByWindow returns a hold if the task was disturbed as often within the window as its
// budget allows, otherwise nil.
func (c *Cell) heldByWindow(p *Copy, b *borgpb.DisruptionBudget) *Hold {
	t := p.row()
	if b.MaxPerTask == 0 || t == nil {
		return nil
	}
	times := t.disrupted()
	if len(times) < int(b.MaxPerTask) {
		return nil
	}
	until := times[len(times)-int(b.MaxPerTask)] + b.WindowNs
	if until <= c.clock.cellNs {
		return nil
	}
	return &Hold{Job: p.job.key, Task: p.TaskID(), UntilNs: until,
		Reason: fmt.Sprintf("%v was disturbed %s in %s, as often as its budget allows", p.TaskID(), timesWords(int(b.MaxPerTask)), spanWords(b.WindowNs))}
}

func timesWords(n int) string {
	if n == 1 {
		return "once"
	}
	return fmt.Sprintf("%d times", n)
}

// spanWords writes a span of time in the largest unit of which it is a whole number. From a
// minute on it rounds up to whole seconds; the sign is left out.
func spanWords(ns int64) string {
	if ns = max(ns, -ns); ns >= 60*second {
		ns = (ns + second - 1) / second * second
	}
	for _, u := range []struct {
		ns   int64
		name string
	}{{24 * 3600 * second, "d"}, {3600 * second, "h"}, {60 * second, "min"}, {second, "s"}} {
		if ns >= u.ns && ns%u.ns == 0 {
			return fmt.Sprintf("%d %s", ns/u.ns, u.name)
		}
	}
	return fmt.Sprintf("%d.%03d s", ns/second, ns%second/1_000_000)
}

// outOfSpan refuses a span that is not in least to most, with its unit. Words before it say which one of
// several it is.
func outOfSpan(field string, ns, least, most int64, before ...string) *borgpb.Refusal {
	from, text := "0 s", "a time below zero"
	if least > 0 {
		from = spanWords(least)
	}
	if ns >= 0 {
		text = spanWords(min(ns, math.MaxInt64-second))
	}
	return invalid(field, "%s%s is not in %s to %s", strings.Join(before, ""), text, from, spanWords(most))
}

// stepWords writes how far a clock is ahead of or, below zero, behind something.
func stepWords(ns int64) string {
	if ns < 0 {
		return spanWords(ns) + " behind"
	}
	return spanWords(ns) + " ahead of"
}

// disturb records a disruption that the cell causes. It is called before the task is stopped.
func (c *Cell) disturb(t *Task) {
	b := t.job.budget()
	if b.GetMaxPerTask() == 0 || mutant.Planted(mutant.WindowForgotten) {
		return
	}
	var times []int64
	for _, at := range t.disrupted() {
		if at+b.WindowNs > c.clock.cellNs {
			times = append(times, at)
		}
	}
	times = append(times, c.clock.cellNs)
	t.rare().disrupted = times[max(0, len(times)-maxDisruptionsKept):]
	c.dirty(t)
}

// MayMove returns why a copy must not be moved together with those that a plan moves already;
// nil if it may.
func (c *Cell) MayMove(x *Moves, p *Copy) *Hold {
	if mutant.Planted(mutant.BudgetNotAsked) {
		return nil
	}
	return c.HoldOf(append(slices.Clone(x.leaving), p))
}

// disrupted encodes the times at which a task was disturbed, if there are any.
func (e *encoder) disrupted(times []int64) {
	if len(times) == 0 {
		return
	}
	e.byte(tagDisrupted)
	e.uint(uint64(len(times)))
	for _, at := range times {
		e.int(at)
	}
}

func (l *loader) disrupted(d *decoder, t *Task) error {
	if l.c.format < FormatBudgets || !d.tagged(tagDisrupted) {
		return nil
	}
	var times []int64
	for range d.count() {
		times = append(times, d.int())
	}
	if len(times) == 0 || len(times) > maxDisruptionsKept || !slices.IsSorted(times) || times[0] < 0 || times[len(times)-1] > l.c.clock.cellNs {
		return errOdd
	}
	t.rare().disrupted = times
	return nil
}
