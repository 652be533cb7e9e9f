package process

import (
	"context"
	"fmt"
	"slices"

	dto "github.com/prometheus/client_model/go"

	"github.com/prometheus/client_golang/prometheus"

	"borg/pages"
	"borg/scheduler"
)

// statusPage is the scheduler's own page.
func (p *process) statusPage(ctx context.Context) (*pages.Page, error) {
	l, err := p.askLook(ctx)
	if err != nil {
		return nil, err
	}
	title := "scheduler of " + p.cfg.Master
	if p.cfg.Search.Workload != (scheduler.Workload{}) {
		title += ", for " + p.cfg.Search.Workload.String()
	}
	page := &pages.Page{Program: program, Title: title, Build: p.cfg.Build, Links: []pages.Link{{Name: "master", Href: "../"}}}
	if p.cfg.Notice != nil {
		page.Notice = p.cfg.Notice()
	}
	p.judge(&page.Verdict, l)
	page.Numbers = []pages.Fact{
		{Name: "tasks waiting", Value: pages.Number(l.waits.Units)},
		{Name: "placed", Value: pages.Number(l.stats.Placed)},
		{Name: "batches in flight", Value: pages.Number(l.inFlight)},
		{Name: "machines", Value: pages.Number(l.machines)},
		{Name: "copy's log index", Value: pages.Number(l.index)},
	}
	page.Sections = append(page.Sections, p.passSection(l), queueSection(l), p.followSection(l), searchSection(l))
	if refused := p.refusedSection(); len(refused.Rows) > 0 {
		page.Sections = append(page.Sections, refused)
	}
	return page, nil
}

func (p *process) judge(v *pages.Verdict, l look) {
	switch {
	case !l.following:
		v.Found(pages.Bad, "see the log of its master, which starts it", "No master is followed: nothing is placed.")
	case l.resting:
		v.Found(pages.Warn, "see the master's log", "The master did not answer the last batch; the next is sent after a pause.")
	}
	if l.waits.Refused > 0 {
		v.Found(pages.Warn, "below: refused assignments", "Held back because the cell refused it again and again: %s.", pages.Some(l.waits.Refused, "task"))
	}
	if l.waits.Units == 0 {
		v.Otherwise("Healthy: nothing waits for a place.")
		return
	}
	v.Otherwise("Healthy: waiting for a place: %s of %s.", pages.Some(l.waits.Units, "task"), pages.Some(l.waits.Lines, "job"))
}

func (p *process) passSection(l look) pages.Section {
	more := pages.Yes(l.last.more)
	return pages.Section{Title: "Passes", Words: "Those that had something to do.", Facts: []pages.Fact{
		{Name: "time of a pass", Value: pages.Distribution(p.meter.passes)},
		{Name: "last pass", Value: pages.At(l.last.at)},
		{Name: "last pass took", Value: pages.Span(l.last.took)},
		{Name: "cut short by a bound", Value: more},
		{Name: "from batch to answer", Value: pages.Distribution(p.meter.batches)},
		{Name: "batches in flight", Value: pages.Value{Text: fmt.Sprintf("%d of at most %d", l.inFlight, batchesInFlight), Raw: l.inFlight}},
		{Name: "placements promised", Value: pages.Number(l.promises)},
		{Name: "moves are under way", Value: pages.Yes(l.planning)},
	}}
}

func queueSection(l look) pages.Section {
	return pages.Section{Title: "Queue", Facts: []pages.Fact{
		{Name: "tasks and allocs that wait", Value: pages.Number(l.waits.Units)},
		{Name: "jobs and alloc sets of them", Value: pages.Number(l.waits.Lines)},
		{Name: "jobs held in the batch queue", Value: pages.Number(l.waits.Held)},
		{Name: "jobs that wait for others", Value: pages.Number(l.waits.Followers)},
		{Name: "tasks held back after refusals", Value: pages.Number(l.waits.Refused).If(l.waits.Refused > 0, pages.Warn)},
		{Name: "questions that wait", Value: pages.Value{Text: fmt.Sprintf("%d of at most %d", l.asks, maxAsks), Raw: l.asks}},
	}}
}

func (p *process) followSection(l look) pages.Section {
	return pages.Section{Title: "Copy of the cell", Facts: []pages.Fact{
		{Name: "follows", Value: pages.Text(p.cfg.Master)},
		{Name: "since", Value: pages.At(l.since)},
		{Name: "log index", Value: pages.Number(l.index)},
		{Name: "machines", Value: pages.Number(l.machines)},
		{Name: "build", Value: pages.Text(p.cfg.Build)},
		{Name: "own certificate expires", Value: pages.At(p.cfg.Identity.Current().Expires())},
	}}
}

func searchSection(l look) pages.Section {
	s := l.stats
	return pages.Section{Title: "Search", Words: "Since this process was started.", Facts: []pages.Fact{
		{Name: "placed", Value: pages.Number(s.Placed)},
		{Name: "places looked at", Value: pages.Number(s.Looked)},
		{Name: "score cache hits", Value: percent(s.CacheHits, s.CacheHits+s.CacheMisses)},
		{Name: "victims", Value: pages.Number(s.Preempted)},
		{Name: "moved", Value: pages.Number(s.Moved)},
		{Name: "transactions", Value: pages.Number(s.Transactions)},
		{Name: "conflicts", Value: percent(s.Conflicts, s.Transactions)},
	}}
}

func percent(part, of int) pages.Value {
	v := pages.Number(part)
	if of > 0 {
		v.Text += fmt.Sprintf(", %.1f %%", 100*float64(part)/float64(of))
	}
	return v
}

// refusedSection tells what the cell refused, by reason.
func (p *process) refusedSection() pages.Section {
	s := pages.Section{Title: "Refused assignments", Head: []string{"reason", "assignments"}}
	counts := make(chan prometheus.Metric, 64)
	go func() {
		defer close(counts)
		p.meter.refused.Collect(counts)
	}()
	for m := range counts {
		var d dto.Metric
		if m.Write(&d) == nil && d.GetCounter().GetValue() > 0 {
			s.Rows = append(s.Rows, []pages.Value{pages.Text(d.GetLabel()[0].GetValue()), pages.Number(int64(d.GetCounter().GetValue()))})
		}
	}
	slices.SortFunc(s.Rows, func(a, b []pages.Value) int { return int(b[1].Raw.(int64) - a[1].Raw.(int64)) })
	return s
}
