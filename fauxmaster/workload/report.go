package workload

import (
	"fmt"
	"math"
	"strings"
	"time"

	"borg/borgmaster/cell"
	"borg/fauxmaster/trace"
	"borg/proto/borgpb"
	"borg/tell"
)

// Bands counts tasks by band: free, batch, mid, production, monitoring.
type Bands [trace.NumTiers]int

// Sum is all of them.
func (b Bands) Sum() (n int) {
	for _, k := range b {
		n += k
	}
	return n
}

// Sample is the cell at one moment, and what has happened since the one before.
type Sample struct {
	AtNs    int64 `json:"atNs"`
	Pending Bands `json:"pending"`
	Running Bands `json:"running"`
	// Since the sample before.
	Evicted   Bands `json:"evicted"`
	Submitted int   `json:"submitted"`
	Finished  int   `json:"finished"`
	Failed    int   `json:"failed"`
	Placed    int   `json:"placed"`
	// Shares of what the machines have that are up: limits of what has a place there, allocs
	// and volumes as a whole, and what it reserves, which is never more.
	LimitCPU    float64 `json:"limitCpu"`
	LimitMem    float64 `json:"limitMem"`
	ReservedCPU float64 `json:"reservedCpu"`
	ReservedMem float64 `json:"reservedMem"`
	// Machines that are up.
	Machines int `json:"machines"`
}

// Curve is what was recorded, at the same moments.
type Curve struct {
	AtNs    int64 `json:"atNs"`
	Pending Bands `json:"pending"`
	Running Bands `json:"running"`
	Evicted Bands `json:"evicted"`
}

// Gap is the mean absolute difference between what was simulated and what was
// recorded, in tasks; beside it the mean of what was recorded.
type Gap struct {
	Pending     float64 `json:"pending"`
	Running     float64 `json:"running"`
	Evicted     float64 `json:"evicted"`
	MeanPending float64 `json:"meanPending"`
	MeanRunning float64 `json:"meanRunning"`
	MeanEvicted float64 `json:"meanEvicted"`
	// Samples that were compared.
	Samples int `json:"samples"`
	// At the last of them, and over all of them.
	EndPending         int `json:"endPending"`
	RecordedEndPending int `json:"recordedEndPending"`
	AllEvicted         int `json:"allEvicted"`
	RecordedAllEvicted int `json:"recordedAllEvicted"`
}

// LeavesOut says what the model does not have of a cell, for people.
var LeavesOut = []string{
	"evictions for what a machine ran out of, and for upgrades and maintenance that no entry tells",
	"the time that a task takes to start and to stop, and packages that are fetched",
	"crashes that come from the machine a task is on, and machines that are slow",
	"use that changes over a task's life",
	"moves of the rescheduler",
	"constraints and conflicts that the recording does not tell",
}

// Report is what came of a workload.
type Report struct {
	Policy     string `json:"policy"`
	FromWallNs int64  `json:"fromWallNs"`
	// UntilNs is how far it came; Interrupted: not as far as it should.
	UntilNs     int64    `json:"untilNs"`
	Interrupted bool     `json:"interrupted,omitempty"`
	EveryNs     int64    `json:"everyNs"`
	Samples     []Sample `json:"samples"`
	// Recorded is nil when the workload does not say what became of anything.
	Recorded []Curve `json:"recorded,omitempty"`
	Gap      *Gap    `json:"gap,omitempty"`
	// LeavesOut is what the model does not have.
	LeavesOut []string `json:"leavesOut"`
	// Submitted counts the tasks that arrived, Placed the places that were given,
	// Conflicts those that the cell refused, and ConflictKinds those by kind and test.
	Submitted     int            `json:"submitted"`
	Placed        int            `json:"placed"`
	Conflicts     int            `json:"conflicts"`
	ConflictKinds map[string]int `json:"conflictKinds,omitempty"`
	Finished      int            `json:"finished"`
	Failed        int            `json:"failed"`
	// Evicted by band.
	Evicted Bands `json:"evicted"`
	// LeftOut tasks never had a machine where they were recorded; Unplaced counts those
	// that were not left out.
	LeftOut  int `json:"leftOut"`
	Unplaced int `json:"unplaced"`
	// Refused ops that came from outside, by what they are and the cell's words.
	Refused map[string]int `json:"refused,omitempty"`
	// Entries of the log, passes of the scheduler, and what they took outside.
	Entries     int     `json:"entries"`
	Passes      int     `json:"passes"`
	PassSeconds float64 `json:"passSeconds"`
	LongestPass float64 `json:"longestPassSeconds"`
	Seconds     float64 `json:"seconds"`
}

// counts is what has happened since the sample before.
type counts struct {
	evicted                     Bands
	submitted, finished, failed int
	// placed is the report's at that sample.
	placed int
}

// sample takes one.
func (r *run) sample() {
	s := r.since()
	for j := range r.cell.Jobs() {
		pending, running, _ := j.Counts()
		tier := trace.TierOf(j.Priority())
		s.Pending[tier] += int(pending)
		s.Running[tier] += int(running)
	}
	var capacity, limits, reserved cell.Resources
	for m := range r.cell.Machines() {
		if !m.Up() {
			continue
		}
		s.Machines++
		capacity, limits, reserved = capacity.Add(m.Capacity()), limits.Add(m.Limits()), reserved.Add(m.Held(false))
	}
	s.LimitCPU, s.LimitMem = ratio(limits.CPUMilli, capacity.CPUMilli), ratio(limits.MemBytes, capacity.MemBytes)
	s.ReservedCPU, s.ReservedMem = ratio(reserved.CPUMilli, capacity.CPUMilli), ratio(reserved.MemBytes, capacity.MemBytes)
	r.report.Samples = append(r.report.Samples, s)
	r.report.count(s)
	r.tally = counts{placed: r.report.Placed}
}

// since is what has happened since the sample before, as the next one will say.
func (r *run) since() Sample {
	return Sample{
		AtNs: r.nowNs, Evicted: r.tally.evicted, Submitted: r.tally.submitted, Finished: r.tally.finished, Failed: r.tally.failed,
		Placed: r.report.Placed - r.tally.placed,
	}
}

func ratio(of, all int64) float64 {
	if all == 0 {
		return 0
	}
	return float64(of) / float64(all)
}

// count adds to the sums what has happened since the sample before.
func (r *Report) count(s Sample) {
	r.Submitted, r.Finished, r.Failed = r.Submitted+s.Submitted, r.Finished+s.Finished, r.Failed+s.Failed
	for tier, n := range s.Evicted {
		r.Evicted[tier] += n
	}
}

// passed counts a pass.
func (r *Report) passed(took time.Duration) {
	r.Passes++
	r.PassSeconds += took.Seconds()
	r.LongestPass = max(r.LongestPass, took.Seconds())
}

// refuse counts an op that came from outside and was refused.
func (r *Report) refuse(op *borgpb.Op, why *borgpb.Refusal) {
	if op.GetReports() != nil {
		return
	}
	words := why.GetMessage()
	if f := why.GetField(); f != "" {
		words = f + ": " + words
	}
	kind := op.ProtoReflect().WhichOneof(op.ProtoReflect().Descriptor().Oneofs().ByName("op"))
	r.Refused[fmt.Sprintf("%s (%s): %s", strings.ReplaceAll(string(kind.Name()), "_", " "), tell.Word(why.GetKind()), words)]++
}

// conflict counts the places of a batch that were refused, of so many.
func (r *Report) conflict(res *borgpb.Result, places int) {
	add := func(why *borgpb.Refusal, n int) {
		if why.GetKind() == borgpb.RefusalKind_REFUSAL_KIND_UNSPECIFIED {
			return
		}
		words := tell.Word(why.GetKind())
		if f := why.GetField(); f != "" {
			words += ": " + f
		}
		r.ConflictKinds[words] += n
	}
	add(res.GetRefusal(), places)
	for _, why := range res.GetItems() {
		add(why, 1)
	}
}

// close ends the report.
func (r *Report) close(w *Workload, nowNs int64, took time.Duration) {
	r.UntilNs, r.Seconds = nowNs, took.Seconds()
	if len(r.Recorded) == 0 {
		return
	}
	r.sumUp()
	// What was recorded ends before the simulation, or the other way round.
	last := nowNs
	if w.LastNs > 0 {
		last = min(last, w.LastNs)
	}
	n := 0
	for n < len(r.Recorded) && n < len(r.Samples) && r.Recorded[n].AtNs <= last {
		n++
	}
	r.Recorded = r.Recorded[:n]
	r.Gap = gap(r.Samples[:n], r.Recorded)
}

// gap compares; the first sample is the beginning, which is the same.
func gap(here []Sample, there []Curve) *Gap {
	if len(there) < 2 {
		return nil
	}
	g := &Gap{Samples: len(there) - 1}
	n := float64(g.Samples)
	g.EndPending, g.RecordedEndPending = here[len(there)-1].Pending.Sum(), there[len(there)-1].Pending.Sum()
	for i := 1; i < len(there); i++ {
		g.AllEvicted += here[i].Evicted.Sum()
		g.RecordedAllEvicted += there[i].Evicted.Sum()
		for _, o := range []struct {
			gap, mean   *float64
			here, there int
		}{
			{&g.Pending, &g.MeanPending, here[i].Pending.Sum(), there[i].Pending.Sum()},
			{&g.Running, &g.MeanRunning, here[i].Running.Sum(), there[i].Running.Sum()},
			{&g.Evicted, &g.MeanEvicted, here[i].Evicted.Sum(), there[i].Evicted.Sum()},
		} {
			*o.gap += math.Abs(float64(o.here-o.there)) / n
			*o.mean += float64(o.there) / n
		}
	}
	return g
}

// What was recorded is drawn as differences first: how many more wait, or run, from
// one sample to the next.

// recall takes in what became of the tasks of a job that was there, or arrived, from
// then on.
func (r *Report) recall(all []trace.History, fromNs int64, tier trace.Tier, cfg Config) {
	if all == nil {
		return
	}
	if unplaced(all) {
		if cfg.WithoutUnplaced {
			return
		}
		r.Unplaced += len(all)
	}
	if r.Recorded == nil {
		for at := int64(0); at <= cfg.UntilNs; at += cfg.EveryNs {
			r.Recorded = append(r.Recorded, Curve{AtNs: at})
		}
	}
	for i := range all {
		atNs := fromNs
		for _, run := range all[i].Runs {
			waitNs, runNs := run.WaitNs, run.RunNs
			if run.End == trace.Ongoing && runNs == trace.NeverRan {
				waitNs = math.MaxInt64/2 - atNs
			} else if run.End == trace.Ongoing {
				runNs = math.MaxInt64/2 - atNs
			}
			r.span(atNs, waitNs, tier, func(c *Curve) *Bands { return &c.Pending })
			atNs += waitNs
			if runNs == trace.NeverRan {
				continue
			}
			r.span(atNs, runNs, tier, func(c *Curve) *Bands { return &c.Running })
			atNs += runNs
			if k := r.after(atNs); run.End == trace.Evicted && k < len(r.Recorded) {
				r.Recorded[k].Evicted[tier]++
			}
		}
	}
}

// after is the first sample at or after a time.
func (r *Report) after(ns int64) int { return int((ns + r.EveryNs - 1) / r.EveryNs) }

// span counts one task more at the samples from a time on, for so long; what goes on
// at the end of the recording goes on.
func (r *Report) span(fromNs, ns int64, tier trace.Tier, of func(*Curve) *Bands) {
	if k := r.after(fromNs); k < len(r.Recorded) {
		of(&r.Recorded[k])[tier]++
	}
	if k := r.after(fromNs + ns); k < len(r.Recorded) {
		of(&r.Recorded[k])[tier]--
	}
}

// sumUp makes counts of differences.
func (r *Report) sumUp() {
	for k := 1; k < len(r.Recorded); k++ {
		for tier := range trace.NumTiers {
			r.Recorded[k].Pending[tier] += r.Recorded[k-1].Pending[tier]
			r.Recorded[k].Running[tier] += r.Recorded[k-1].Running[tier]
		}
	}
}
