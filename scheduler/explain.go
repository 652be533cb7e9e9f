package scheduler

import (
	"fmt"
	"strings"

	"borg/borgmaster/cell"
	"borg/proto/borgpb"
)

// Why says why a task waits, or where it is.
type Why struct {
	// Task is nil for an alloc.
	Task *borgpb.Task
	// Summary is one sentence.
	Summary string
	// Machines of the cell. The counts of the reasons add up to it. Only for a
	// task that waits.
	Machines int
	// Reasons are in the order of the tests; a machine counts for the first
	// that it failed, or for "fits".
	Reasons []Reason
	// Changes are the smallest single ones that would make room, each tried.
	Changes []Change
	// Placement says what its place was chosen for; nil for what waits, and
	// where nobody knows.
	Placement *Placement
	// Fight is how it lost its last place to others; nil for all else, and where
	// nobody remembers.
	Fight *Fight
}

// Reason is a test and the machines that failed it first.
type Reason struct {
	// Test is the cell's word for it.
	Test     string
	Machines int
	// Detail is for people.
	Detail string
	// Nearest is the machine that came nearest, where that means anything.
	Nearest string
}

// Change of the request that would make room.
type Change struct {
	// Change is for people: "memory 14.0 GiB -> 12.5 GiB".
	Change string
	// Machines it would fit then.
	Machines int
	// request is the changed one.
	request request
}

// Explain says why a task waits, and what would help, or where it runs or how
// it ended. Key may name an alloc set as well; then index is that of an alloc,
// and there is no Task in the answer. The error says that there is no such
// task or alloc.
func (s *Scheduler) Explain(c *cell.Cell, key cell.JobKey, index uint32) (*Why, error) {
	s.open(c)
	l, err := s.lineOf(c, key, index)
	if err != nil {
		return nil, err
	}
	w := &Why{}
	if l.job != nil {
		w.Task = c.TaskProto(l.job, index, false)
		if t := l.job.Task(index); t.State() != borgpb.State_STATE_PENDING {
			w.Summary = placedSummary(w.Task)
			if p := t.Current(); p != nil {
				w.Placement = s.placement(c, l, index, p.Attempt(), p.Machine(), p.Alloc())
			}
			return w, nil
		}
	} else if a := l.set.Alloc(index); a.State() != borgpb.State_STATE_PENDING {
		w.Summary = placedAllocSummary(a)
		if m := a.Machine(); m != nil {
			w.Placement = s.placement(c, l, index, a.Attempt(), m, nil)
		}
		return w, nil
	}
	e := newExplanation(s, c, l, index)
	e.examine()
	w.Machines = len(s.sites.walk)
	w.Reasons = e.reasons()
	if e.counts[cell.FitOK] == 0 && len(e.silent) == 0 {
		w.Changes = e.changes()
	}
	w.Summary = e.summary() + e.staysWords() + e.movesWords()
	if l.job != nil {
		t := l.job.Task(index)
		if who, ok := cell.TakenBy(t.Reason()); ok {
			w.Fight = s.decisions.against(cell.CopyID{Job: l.uid, Index: index, Attempt: t.Attempt()}).words(c)
			if w.Fight == nil {
				// What it was told then is all that is known.
				who += strings.TrimPrefix(t.Reason(), cell.RoomFor(who))
			}
			w.Summary += "; it " + cell.GaveWayTo + who
		}
	}
	return w, nil
}

// lineOf finds what key and index name.
func (s *Scheduler) lineOf(c *cell.Cell, key cell.JobKey, index uint32) (*line, error) {
	var n uint32
	var l *line
	kind, one := "job", "task"
	j, set := c.Job(key), c.AllocSet(key)
	switch {
	case j != nil:
		l = &line{uid: j.UID(), key: key, priority: j.Priority(), version: j.Version(), job: j}
		n = j.NumTasks()
	case set != nil:
		kind, one = "alloc set", "alloc"
		l = &line{uid: set.UID(), key: key, priority: set.Priority(), version: 1, set: set}
		n = set.NumAllocs()
	default:
		return nil, fmt.Errorf("there is no job or alloc set %s; `borgcfg status` lists the jobs", key)
	}
	l.measure()
	if queued := s.queue.byUID[l.uid]; queued != nil {
		l.promised = queued.promised
	}
	if index >= n {
		return nil, fmt.Errorf("%s %s has %s, with indices from 0 to %d; there is no %s %d", kind, key, plural(int(n), one), n-1, one, index)
	}
	return l, nil
}

// placedAllocSummary says where an alloc is that does not wait.
func placedAllocSummary(a *cell.Alloc) string {
	if m := a.Machine(); m != nil {
		return fmt.Sprintf("it has a place: attempt %d on machine %s", a.Attempt(), m.Name())
	}
	return "it is dead and waits for nothing"
}

// placedSummary says where a task is that does not wait.
func placedSummary(t *borgpb.Task) string {
	st := t.GetStatus()
	if st.GetState() == borgpb.State_STATE_DEAD {
		text := "it is dead and waits for nothing"
		if st.GetReason() != "" {
			text += ": " + st.GetReason()
		}
		return text
	}
	text := fmt.Sprintf("it has a place: attempt %d on machine %s", st.GetAttempt(), st.GetMachine())
	if st.GetAlloc() != "" {
		text += " in alloc " + st.GetAlloc()
	}
	if a := st.GetAttemptState(); a != borgpb.AttemptState_ATTEMPT_STATE_UNSPECIFIED {
		text += ", " + strings.ToLower(strings.TrimPrefix(a.String(), "ATTEMPT_STATE_"))
		if st.GetReason() != "" && a != borgpb.AttemptState_ATTEMPT_STATE_RUNNING {
			text += ": " + st.GetReason()
		}
	}
	return text
}

// explanation is the search for the reasons of one task.
type explanation struct {
	search
	want  *want
	index uint32
	// spots is one place for each machine, by name of the machine: the one that
	// came furthest, when it has several allocs.
	spots []spot
	fits  []cell.Fit
	// counts is the number of machines by the first test that they failed.
	counts [cell.NumFits]int
	// silent are the machines that passed all tests and are silent: they are not in counts.
	silent []string
}

func newExplanation(s *Scheduler, c *cell.Cell, l *line, index uint32) *explanation {
	e := &explanation{search: search{s: s, c: c}, want: s.newWant(c, l, index), index: index}
	e.prepare(e.want, index)
	e.surround(e.want)
	return e
}

// examine makes the cell's test on every machine.
func (e *explanation) examine() {
	for m := range e.c.Machines() {
		at := spot{site: e.s.sites.byName[m.Name()]}
		fit := cell.FitOK
		if !e.want.inSet {
			fit = e.fit(e.want, at)
		} else {
			at, fit = e.bestAlloc(m, at)
		}
		e.spots = append(e.spots, at)
		if fit == cell.FitOK && at.site.silent {
			e.silent = append(e.silent, at.site.name)
			// The outcome of no test.
			e.fits = append(e.fits, cell.NumFits)
			continue
		}
		e.fits = append(e.fits, fit)
		e.counts[fit]++
	}
}

// bestAlloc returns the alloc of the set on m that came furthest in the tests.
func (e *explanation) bestAlloc(m *cell.Machine, none spot) (best spot, fit cell.Fit) {
	best, fit = none, e.fit(e.want, none)
	for a := range m.Allocs() {
		if a.Set() != e.want.set || a.Machine() != m || e.want.byIndex && a.Index() != e.index {
			continue
		}
		at := spot{site: none.site, alloc: a}
		got := e.fit(e.want, at)
		if got == cell.FitOK {
			return at, got
		}
		if got > fit || best.alloc == nil {
			best, fit = at, got
		}
	}
	return best, fit
}

// reasons lists the tests that refused machines, with what is worth knowing.
func (e *explanation) reasons() []Reason {
	var rs []Reason
	for fit := cell.FitSeat; fit < cell.NumFits; fit++ {
		if e.counts[fit] > 0 {
			rs = append(rs, e.reason(fit))
		}
	}
	if n := len(e.silent); n > 0 {
		rs = append(rs, Reason{Test: "silent", Machines: n, Detail: listText(e.silent, 3)})
	}
	if n := e.counts[cell.FitOK]; n > 0 {
		rs = append(rs, Reason{Test: cell.FitOK.String(), Machines: n, Detail: listText(e.names(cell.FitOK), 3)})
	}
	return rs
}

func (e *explanation) reason(fit cell.Fit) Reason {
	r := Reason{Test: fit.String(), Machines: e.counts[fit]}
	req := e.want.request()
	switch fit {
	case cell.FitSeat:
		r.Detail = "its own machine is " + e.placement.Seat()
	case cell.FitVolume:
		r.Detail = e.c.VolumeWords(e.want.line.job, e.want.line.set, e.index)
	case cell.FitDown, cell.FitDraining, cell.FitRestored:
		r.Detail = listText(e.names(fit), 3)
	case cell.FitConstraint:
		r.Detail = e.tally(fit, func(at spot) string {
			for _, k := range req.constraints {
				if !cell.Holds(k, at.site.machine) {
					return cell.ConstraintWords(k)
				}
			}
			return "a constraint"
		})
	case cell.FitTaint:
		r.Detail = e.tally(fit, func(at spot) string {
			if t := cell.Untolerated(req.tolerations, at.site.machine); t != nil {
				return t.Words()
			}
			return "a taint"
		})
	case cell.FitCrashed:
		names := e.names(fit)
		for i, name := range names {
			names[i] = e.c.AwayWords(e.placement.Job, e.index, name)
		}
		r.Detail = listText(names, 3)
	case cell.FitBanned:
		r.Detail = e.tally(fit, func(at spot) string { return e.banWords(at, &req) })
	case cell.FitAlloc:
		r.Detail = e.allocDetail()
	case cell.FitPlaces:
		r.Detail = e.tally(fit, func(at spot) string { return e.c.PlacesWords(at.site.machine, e.want.line.priority) })
	case cell.FitDomainLimit:
		r.Detail = e.limitsDetail(&req.limits)
	default:
		e.resourceReason(&r, fit, &req)
	}
	return r
}

// resourceReason tells what is asked and where the most is left of it.
func (e *explanation) resourceReason(r *Reason, fit cell.Fit, req *request) {
	for _, d := range dimensions(&req.res) {
		if d.fit != fit {
			continue
		}
		short := func(at spot) bool { return e.freeOf(e.want, at, &d) < d.asked }
		any := false
		for i, f := range e.fits {
			any = any || f == fit && short(e.spots[i])
		}
		if !any {
			continue
		}
		r.Detail, r.Nearest = e.nearest(fit, "needs "+d.text(d.asked)+" "+d.name,
			func(at spot) int64 { return e.freeOf(e.want, at, &d) },
			d.text)
		switch held := e.stopping(r.Nearest, d); {
		case e.tooLarge(d):
			r.Detail += "; no machine of the cell is that large"
		case held > 0:
			r.Detail += "; copies that are stopping there hold " + d.text(held)
		}
		if n := e.evictable(r.Nearest, d); n > 0 {
			r.Detail += "; who could be made to give way there holds " + d.text(n)
		}
		r.Detail += e.heldPorts(fit, r.Nearest)
		r.Detail += e.alsoShort(fit, d.name, req)
		return
	}
}

// heldPorts names ports that other programs hold on the nearest machine.
func (e *explanation) heldPorts(fit cell.Fit, machine string) string {
	m := e.c.Machine(machine)
	if fit != cell.FitPorts || m == nil {
		return ""
	}
	words := e.c.HeldPortsWords(m)
	if words != "" {
		words = "; " + words
	}
	return words
}

// stopping is how much of d the copies hold that are being stopped on the
// machine of that name, in the room that was asked for. It will be free soon.
func (e *explanation) stopping(machine string, d dimension) (held int64) {
	for _, at := range e.spots {
		if at.site.machine.Name() != machine {
			continue
		}
		for p := range at.site.machine.Copies() {
			if p.State() == borgpb.AttemptState_ATTEMPT_STATE_STOPPING && p.Alloc() == at.alloc {
				res := p.Held(e.want.prod)
				held += d.of(&res)
			}
		}
	}
	return held
}

// evictable is how much of d lower bands hold on the machine of that name: not
// enough together with what is free, or they would have given way.
func (e *explanation) evictable(machine string, d dimension) (n int64) {
	for _, at := range e.spots {
		if at.site.name != machine {
			continue
		}
		var who []unit
		if at.alloc != nil {
			who = e.unitsIn(e.want, at)
		} else if !e.want.inSet {
			who = e.units(e.want, at.site)
		}
		for _, u := range who {
			if u.tasks > 0 {
				n += d.of(&u.res)
			}
		}
	}
	return n
}

// tooLarge tells whether a request is more than any place has when it is empty.
func (e *explanation) tooLarge(d dimension) bool {
	for _, at := range e.spots {
		capacity := at.site.machine.Capacity()
		if at.alloc != nil {
			capacity = at.alloc.Capacity()
		}
		if d.of(&capacity) >= d.asked {
			return false
		}
	}
	return true
}

// nearest writes what is needed and who has the most of it.
func (e *explanation) nearest(fit cell.Fit, needs string, have func(spot) int64, text func(int64) string) (detail, nearest string) {
	var most int64
	for i, f := range e.fits {
		if f != fit {
			continue
		}
		if n := have(e.spots[i]); nearest == "" || n > most {
			most, nearest = n, e.spots[i].site.machine.Name()
		}
	}
	return fmt.Sprintf("%s, best machine %s has %s free", needs, nearest, text(max(most, 0))), nearest
}

// names lists the machines with that outcome, in order of name.
func (e *explanation) names(fit cell.Fit) []string {
	var names []string
	for i, f := range e.fits {
		if f == fit {
			names = append(names, e.spots[i].site.machine.Name())
		}
	}
	return names
}

// tally counts the machines with that outcome by a word for each.
func (e *explanation) tally(fit cell.Fit, word func(spot) string) string {
	var order []string
	counts := make(map[string]int)
	for i, f := range e.fits {
		if f != fit {
			continue
		}
		w := word(e.spots[i])
		if counts[w] == 0 {
			order = append(order, w)
		}
		counts[w]++
	}
	for i, w := range order {
		order[i] = fmt.Sprintf("%s (%s)", w, plural(counts[w], "machine"))
	}
	return listText(order, 4)
}

func (e *explanation) allocDetail() string {
	key, _ := e.want.line.job.AllocSet()
	switch {
	case e.want.byIndex:
		return e.c.AllocWords(e.want.line.job, e.index)
	case e.want.set == nil:
		return fmt.Sprintf("there is no alloc set %s", key)
	case e.want.set.State() == borgpb.State_STATE_DEAD:
		return fmt.Sprintf("alloc set %s is dead", key)
	}
	return fmt.Sprintf("no alloc of %s is there", key)
}

// banWords says which ban keeps it from a machine.
func (e *explanation) banWords(at spot, req *request) string {
	if b := e.c.Banned(req.packages, at.site.machine); b != nil {
		return b.Words()
	}
	return "a package is banned"
}

// limitsDetail lists the limits per failure domain, and the domains that are full.
func (e *explanation) limitsDetail(l *cell.Limits) string {
	var parts []string
	outer := false
	for kind, n := range l.Most {
		if n > 0 {
			parts = append(parts, fmt.Sprintf("%d per %s", n, l.Word(cell.DomainKind(kind))))
			outer = outer || cell.DomainKind(kind) != cell.DomainMachine
		}
	}
	text := "at most " + strings.Join(parts, ", ") + " of this job"
	if !outer {
		return text
	}
	return text + "; full: " + e.tally(cell.FitDomainLimit, func(at spot) string {
		for kind, n := range l.Most {
			if kind := cell.DomainKind(kind); n > 0 && e.inDomain(at.site.slot, kind) >= int64(n) {
				return l.DomainWords(kind, at.site.machine)
			}
		}
		return "a failure domain"
	})
}
