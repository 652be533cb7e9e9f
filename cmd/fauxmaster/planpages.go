package main

import (
	"fmt"
	"math"
	"strconv"

	"borg/fauxmaster"
	"borg/fauxmaster/plan"
)

// roomPoints are the machines of a cell by what is free on them.
func roomPoints(p *fauxmaster.Picture, prod bool) []point { return pointsOf(plan.Rooms(p.Cell, prod)) }

func pointsOf(rooms []plan.Room) (all []point) {
	share := func(free, of int64) float64 {
		return 100 * float64(min(max(free, 0), of)) / float64(max(of, 1))
	}
	for _, r := range rooms {
		all = append(all, point{
			share(r.Free.CPUMilli, r.Capacity.CPUMilli), share(r.Free.MemBytes, r.Capacity.MemBytes),
			fmt.Sprintf("%s: %s free of %s", r.Machine, resourcesWords(r.Free), resourcesWords(r.Capacity)),
		})
	}
	return all
}

func (p *page) rooms(of *fauxmaster.Picture) {
	p.chart("What is free on each machine",
		"A machine at an edge (shaded) has run out of one and strands what is left of the other. By reservations, as all but production are placed.",
		scatterChart("free CPU against free memory", roomPoints(of, false)))
}

func fitPage(of *fauxmaster.Picture, q plan.FitQuestion, a *plan.FitAnswer) *page {
	p := newPage(of, "How many more fit", fitSentence(q, a))
	p.number("more "+a.Unit, thousands(a.Count))
	if !q.NoPreemption {
		p.number("tasks give way", thousands(a.Evicted))
		p.number("find no other place", thousands(a.Displaced))
	}
	if a.Why != "" {
		p.table("The next one", "", []string{"why it does not fit"}, [][]string{{a.Why}})
	}
	var curve []point
	var rows [][]string
	for _, l := range a.Largest {
		curve = append(curve, point{float64(l.Copies), float64(l.CPUMilli) / 1000,
			fmt.Sprintf("%s times: %s cpu, %s", thousands(l.Copies), cpuWords(l.CPUMilli), bytesWords(l.MemBytes))})
		rows = append(rows, []string{thousands(l.Copies), cpuWords(l.CPUMilli), bytesWords(l.MemBytes), fmt.Sprintf("%.1f %%", float64(l.Permille)/10)})
	}
	if len(rows) > 0 {
		p.chart("The largest task of that shape that fits so many times", "Into what is free; nobody gives way.", curveChart("largest task by number of copies", "copies", "cores", curve, nil))
		p.table("In figures", "", []string{"copies", "cpu", "memory", "of what was asked"}, rows)
	}
	if len(a.Per) > 0 {
		names, counts := make([]string, len(a.Per)), make([]int, len(a.Per))
		for i, n := range a.Per {
			names[i], counts[i] = n.Name, n.Count
		}
		p.chart("Places by "+q.CountPer, "", barChart("places", names, counts, nil))
	}
	p.rooms(of)
	return p
}

func whatifPage(of *fauxmaster.Picture, e *plan.Effect) *page {
	p := newPage(of, "What would happen", whatifSentence(e))
	p.number("machines", fmt.Sprintf("%s → %s", thousands(e.Before.Machines), thousands(e.After.Machines)))
	p.number("tasks running", fmt.Sprintf("%s → %s", thousands(e.Before.Running), thousands(e.After.Running)))
	p.number("waiting", fmt.Sprintf("%s → %s", thousands(e.Before.Pending), thousands(e.After.Pending)))
	p.number("of production", fmt.Sprintf("%s → %s", thousands(e.Before.ProdPending), thousands(e.After.ProdPending)))
	if names, counts := fateCounts(e); len(names) > 0 {
		p.chart("Tasks by what becomes of them", "", barChart("tasks", names, counts, func(i int) bool {
			f := plan.Fate(names[i])
			return f == plan.Lost || f == plan.Displaced || f == plan.NewPending
		}))
	}
	p.jobs(e.Jobs)
	var rows [][]string
	for _, t := range worstFirst(e.Tasks) {
		rows = append(rows, []string{t.Task, strconv.Itoa(int(t.Priority)), string(t.Fate), t.From, t.To, t.Why})
	}
	p.table("Tasks", "", []string{"task", "priority", "becomes", "from", "to", "why"}, rows)
	p.rooms(of)
	return p
}

func (p *page) jobs(jobs []plan.JobChange) {
	var rows [][]string
	for _, j := range jobs {
		rows = append(rows, []string{j.Job, strconv.Itoa(int(j.Priority)), thousands(j.Tasks), thousands(j.Before), thousands(j.After)})
	}
	p.table("Jobs that run with less", "", []string{"job", "priority", "tasks", "running now", "then"}, rows)
}

func failPage(of *fauxmaster.Picture, all []plan.Failure) *page {
	w := all[0]
	p := newPage(of, "If a failure domain is lost", fmt.Sprintf("The worst is %s: %s of production would wait, %s in all.", w.Domain, numberOf(w.ProdPending, "task"), thousands(w.Pending)))
	var names []string
	var counts []int
	var rows [][]string
	prod := false
	for _, f := range all {
		prod = prod || f.ProdPending > 0
	}
	what := "tasks that would wait"
	for _, f := range all {
		n := f.Pending
		if prod {
			n, what = f.ProdPending, "tasks of production that would wait"
		}
		names, counts = append(names, f.Domain), append(counts, max(n, 0))
		rows = append(rows, []string{f.Domain, thousands(f.Machines), thousands(f.Displaced), thousands(f.Pending), thousands(f.ProdPending), thousands(f.JobsDown), thousands(f.Evictions), thousands(f.Moves)})
	}
	p.chart("The worst first", what, barChart(what, names, counts, func(int) bool { return prod }))
	p.table("All of them", "", []string{"domain", "machines", "tasks there", "pending", "of production", "jobs down", "others evicted", "moved"}, rows)
	p.jobs(w.Jobs)
	p.rooms(of)
	return p
}

func trialPoints(r *compactReport) (all []point) {
	for _, n := range r.All {
		all = append(all, point{X: float64(n)})
	}
	return all
}

func compactPage(of *fauxmaster.Picture, r *compactReport) *page {
	p := newPage(of, "How few machines would do",
		fmt.Sprintf("The workload fits onto %s, %.1f %% of the cell.", numberOf(r.Machines, "machine"), r.Percent))
	p.number("machines needed", thousands(r.Machines))
	p.number("machines of the cell", thousands(r.Original))
	p.number("of the cell", fmt.Sprintf("%.1f %%", r.Percent))
	p.number("tasks", thousands(r.Tasks))
	p.number("stranded CPU", fmt.Sprintf("%d %%", r.StrandedCPUPercent))
	p.number("stranded memory", fmt.Sprintf("%d %%", r.StrandedMemPercent))
	p.chart("Machines needed, over the trials", fmt.Sprintf(
		"Each trial takes machines away in another random order and packs the whole workload from nothing at every probe. The result is the 90th percentile. Policy %s; from %s to %s.",
		r.Policy, thousands(r.Least), thousands(r.Most)), cdfChart("machines needed", []series{{r.Policy, trialPoints(r)}}))
	var rows [][]string
	for _, s := range []struct {
		n    int
		word string
	}{{r.Dropped, "tasks tied to one machine, left out"}, {r.NowhereTasks, "tasks that no machine could hold, left out"}, {len(r.Softened), "jobs with more tasks than half of the machines: hard constraints taken as soft"}, {r.Away, "machines down, left out"}} {
		if s.n > 0 {
			rows = append(rows, []string{thousands(s.n), s.word})
		}
	}
	if r.Clones > 1 {
		rows = append(rows, []string{strconv.Itoa(r.Clones), "times the machines: the workload does not fit onto fewer"})
	}
	if b := r.Below; b != nil && b.Pending > 0 {
		p.table("What keeps it from fewer", "", []string{"machines", "tasks without a place", "the largest of them"}, [][]string{{thousands(b.Machines), thousands(b.Pending), b.Waits}})
	}
	p.table("What was done before", "", []string{"", ""}, rows)
	p.rooms(of)
	return p
}

func abPage(of *fauxmaster.Picture, a, b *abSide) *page {
	p := newPage(of, "Two policies on one cell", abSentence(a, b))
	var curves []series
	for _, s := range []*abSide{a, b} {
		if s.Compaction != nil {
			curves = append(curves, series{s.Policy, trialPoints(s.Compaction)})
		}
	}
	if len(curves) > 0 {
		p.chart("Machines needed, over the trials", "", cdfChart("machines needed by policy", curves))
	}
	var rows [][]string
	for _, r := range abRows(a, b) {
		rows = append(rows, r[:])
	}
	p.table("Side by side", "", []string{"", a.Policy, b.Policy}, rows)
	p.rooms(of)
	return p
}

func abSentence(a, b *abSide) string {
	if a.Compaction == nil || b.Compaction == nil {
		return fmt.Sprintf("%s leaves %s without a place, %s %s.", a.Policy, numberOf(a.Pending, "task"), b.Policy, thousands(b.Pending))
	}
	n, m := a.Compaction.Machines, b.Compaction.Machines
	switch {
	case n == m:
		return fmt.Sprintf("%s and %s need as many machines.", a.Policy, b.Policy)
	case n < m:
		return fmt.Sprintf("%s needs %.1f %% fewer machines than %s.", a.Policy, 100*(1-float64(n)/float64(m)), b.Policy)
	}
	return fmt.Sprintf("%s needs %.1f %% more machines than %s.", a.Policy, 100*math.Abs(float64(n)/float64(max(m, 1))-1), b.Policy)
}
