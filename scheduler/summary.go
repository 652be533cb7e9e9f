package scheduler

import (
	"fmt"
	"strings"

	"borg/borgmaster/cell"
)

// summary is the sentence for a task that waits: what stands in its way first.
func (e *explanation) summary() string {
	id := ID{e.want.line.uid, e.index}
	if p := e.s.promiseOf(id); p != nil {
		return fmt.Sprintf("it is being placed on machine %s", p.site.machine.Name())
	}
	if words := e.c.HoldWords(); words != "" {
		return "it waits: " + words
	}
	if why := e.notEligible(); why != "" {
		return "it waits: " + why
	}
	if words := e.c.VolumeBudgetWords(e.want.line.job, e.want.line.set, e.index); words != "" {
		return "it waits: " + words
	}
	fit := e.counts[cell.FitOK]
	switch {
	case len(e.spots) == 0:
		return "it waits: the cell has no machines; add one with `borgcfg machine add ADDR`"
	case fit == 0:
		return fmt.Sprintf("it waits: 0 of %d machines fit: %s", len(e.spots), e.refusedBy())
	case e.s.refusals[id].why != "":
		// The search does not know all limits, such as how many copies a machine may hold.
		r := e.s.refusals[id]
		return fmt.Sprintf("it waits: the cell refused its placement %s in a row: %s; it is tried again, and %s would do",
			plural(r.count, "time"), r.why, plural(fit, "machine"))
	case e.s.heldBack(e.c, id):
		return fmt.Sprintf("it waits a little: the cell refused its placement %s in a row; %s would do now",
			plural(e.s.refusals[id].count, "time"), plural(fit, "machine"))
	case e.want.line.gang && e.tooWide() != "":
		return fmt.Sprintf("it waits: all of %s is placed or nothing, and %s", e.want.line.key, e.tooWide())
	case e.want.line.gang:
		return fmt.Sprintf("it waits: all %d %s of %s are placed together or not at all, and there is no room for all of them; one alone would fit on %s",
			e.want.line.tasks, e.ofWhat(), e.want.line.key, plural(fit, "machine"))
	}
	if l := e.want.line; l.job != nil && !e.s.places(l.job) || l.set != nil && !e.s.placesAllocs(l.set) {
		return fmt.Sprintf("it waits for another scheduler than this one, which places %q; %s would do", e.s.cfg.Workload, plural(fit, "machine"))
	}
	return fmt.Sprintf("it waits for the next pass; %s would do", plural(fit, "machine"))
}

// ofWhat is what the line has many of.
func (e *explanation) ofWhat() string {
	if e.want.line.job == nil {
		return "allocs"
	}
	return "tasks"
}

// tooWide says by which limit a gang can never be placed on the machines of the cell;
// empty: by none.
func (e *explanation) tooWide() string {
	l := e.want.limits
	if l == nil {
		return ""
	}
	for i, most := range l.Most {
		kind, places := cell.DomainKind(i), make(map[string]bool)
		for _, at := range e.spots {
			if most > 0 {
				places[l.DomainWords(kind, at.site.machine)] = true
			}
		}
		if fit := int64(most) * int64(len(places)); most > 0 && fit < e.want.line.tasks {
			return fmt.Sprintf("%s = %d lets %d of its %d run together in this cell, which has %s; raise the limit, ask for fewer, or add machines",
				l.Field(kind), most, fit, e.want.line.tasks, plural(len(places), l.Word(kind)))
		}
	}
	return ""
}

// refusedBy is "3 cpu (2 of them memory too), 1 constraint, 1 down".
func (e *explanation) refusedBy() string {
	var parts []string
	for fit := cell.FitOK + 1; fit < cell.NumFits; fit++ {
		if n := e.counts[fit]; n > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", n, fit)+e.besides(fit))
		}
	}
	if n := len(e.silent); n > 0 {
		parts = append(parts, silentWords(n))
	}
	return strings.Join(parts, ", ")
}

// notEligible says why the cell does not offer a pending task to schedulers;
// empty: it does.
func (e *explanation) notEligible() string {
	j := e.want.line.job
	if j == nil {
		if e.s.cfg.Name != "" {
			return "allocs are for the default scheduler"
		}
		return ""
	}
	spec := j.Spec()
	if name := spec.GetScheduler(); name != e.s.cfg.Name {
		return fmt.Sprintf("it is for scheduler %q", name)
	}
	if words := e.c.RetryWords(j, e.index); words != "" {
		return words
	}
	for p, index := range e.c.Pending() {
		if p == j && index == e.index {
			return ""
		}
	}
	if words := e.c.AfterWords(j); words != "" {
		return "it " + words + " (start_after)"
	}
	if e.c.Queued(j) {
		demand, free := j.Demand(), e.c.FreeFor(j)
		text := fmt.Sprintf("all of it together needs %s, and %s are free where it may run (batch_queue)", amounts(demand, demand), amounts(free, demand))
		if before := e.c.EnabledDemand(); !before.IsZero() {
			text += fmt.Sprintf("; jobs that left the queue before it still wait for %s", amounts(before, demand))
		}
		return text
	}
	if most := spec.GetMaxRunning(); most > 0 {
		_, running, _ := j.Counts()
		return fmt.Sprintf("%d of its job run and at most %d may at once (max_running)", running, most)
	}
	return "the cell holds it back"
}

// amounts says how much there is of what is asked for.
func amounts(have, asked cell.Resources) string {
	var parts []string
	for _, d := range dimensions(&asked) {
		parts = append(parts, d.text(d.of(&have))+" "+d.name)
	}
	if len(parts) == 0 {
		return "nothing"
	}
	return strings.Join(parts, " and ")
}
