package plan

import (
	"cmp"
	"fmt"
	"path"
	"slices"
	"strings"

	"borg/borgmaster/cell"
	"borg/proto/borgpb"
	"borg/scheduler"
)

// Change is what is tried: ops, and from then on perhaps another scheduler.
type Change struct {
	Ops []*borgpb.Op
	// Search is the configuration of the scheduler after the ops; nil: as before.
	Search *scheduler.Config
}

// Fate is what became of a task.
type Fate string

// Fates. A task that runs on as it did has none.
const (
	// Moved runs elsewhere; Restarted runs on the same machine, as another copy.
	Moved     Fate = "moved"
	Restarted Fate = "restarted"
	// Displaced ran and waits now; Lost ran and is dead.
	Displaced Fate = "pending"
	Lost      Fate = "dead"
	// Ended is a daemon whose machine drains, is down or is gone: it needs no other place.
	Ended Fate = "ended with its machine"
	// Placed waits without the change.
	Placed Fate = "placed"
	// NewPlaced and NewPending are tasks that the change submits, or daemons on machines that
	// it adds, also where one takes the number of an earlier daemon.
	NewPlaced  Fate = "new, placed"
	NewPending Fate = "new, pending"
)

// TaskChange is a task to which something happens.
type TaskChange struct {
	Task     string `json:"task"`
	Priority int32  `json:"priority"`
	Fate     Fate   `json:"fate"`
	// From and To are machines; empty: none.
	From string `json:"from,omitempty"`
	To   string `json:"to,omitempty"`
	// Why it lost its place, in the cell's words.
	Why string `json:"why,omitempty"`
	// Evictions counts how often it lost a place on the way.
	Evictions int `json:"evictions,omitempty"`
}

// JobChange is a job that has fewer running tasks.
type JobChange struct {
	Job      string `json:"job"`
	Priority int32  `json:"priority"`
	Tasks    int    `json:"tasks"`
	Before   int    `json:"runningBefore"`
	After    int    `json:"runningAfter"`
}

// State sums up a cell.
type State struct {
	Machines int `json:"machinesUp"`
	Running  int `json:"running"`
	// Pending tasks wait for a place; those of daemons only if their machine takes tasks.
	Pending     int            `json:"pending"`
	ProdPending int            `json:"prodPending"`
	Capacity    cell.Resources `json:"-"`
	Free        cell.Resources `json:"-"`
}

// Effect is what would happen.
type Effect struct {
	// Rested is what the cell does by itself before the change.
	Rested Rested `json:"rested"`
	// Before is the cell at rest, After what it comes to with the change.
	Before State `json:"before"`
	After  State `json:"after"`
	// Tasks in order of their names: what becomes of them after Before.
	Tasks []TaskChange `json:"tasks"`
	// Counts of Tasks by fate.
	Counts map[Fate]int `json:"counts"`
	// Evictions of tasks, some of them more than once. Moves are those of the
	// rescheduler, which are no evictions.
	Evictions int `json:"evictions"`
	Moves     int `json:"moves"`
	// Jobs that have fewer running tasks than without the change.
	Jobs []JobChange `json:"jobsThatLose"`
	// Held are the tasks that stay on machines that drain, and the volumes that are kept there.
	Held []HeldBack `json:"heldBack,omitempty"`
}

// place is where a task is.
type place struct {
	state   borgpb.State
	machine string
	attempt uint64
}

type taskKey struct {
	job   cell.UID
	index uint32
}

func placesOf(c *cell.Cell) map[taskKey]place {
	all := make(map[taskKey]place)
	for j := range c.Jobs() {
		for i, t := range j.Tasks() {
			at := place{state: t.State(), attempt: t.Attempt()}
			if p := t.Current(); p != nil {
				at.machine = p.Machine().Name()
			}
			all[taskKey{j.UID(), i}] = at
		}
	}
	return all
}

// fateOf compares two moments of a task that was there at the first.
func fateOf(was, is place) Fate {
	const running, pending, dead = borgpb.State_STATE_RUNNING, borgpb.State_STATE_PENDING, borgpb.State_STATE_DEAD
	switch {
	case was.state == running && is.state == running && was.machine != is.machine:
		return Moved
	case was.state == running && is.state == running && was.attempt != is.attempt:
		return Restarted
	case was.state == running && is.state == pending:
		return Displaced
	case was.state != dead && is.state == dead:
		return Lost
	case was.state == pending && is.state == running:
		return Placed
	case was.state == dead && is.state == running:
		return NewPlaced
	case was.state == dead && is.state == pending:
		return NewPending
	}
	return ""
}

// stateOf sums up a cell. What is free is so by reservations.
func stateOf(c *cell.Cell) (s State) {
	for m := range c.Machines() {
		if m.Up() {
			s.Machines++
			s.Capacity = s.Capacity.Add(m.Capacity())
			s.Free = s.Free.Add(m.Capacity().Sub(m.Held(false)))
		}
	}
	for j := range c.Jobs() {
		pending, running, _ := j.Counts()
		pending -= unseated(j)
		s.Running += int(running)
		s.Pending += int(pending)
		if j.Priority() >= productionPriority {
			s.ProdPending += int(pending)
		}
	}
	return s
}

// WhatIf says what would happen if a change were made to a cell once it is at rest:
// what waits in it is placed first. An op that the cell refuses is a Refused.
func WhatIf(c *cell.Cell, cfg scheduler.Config, ch Change) (*Effect, error) {
	m, err := ModelOf(c, cfg)
	if err != nil {
		return nil, err
	}
	e := &Effect{Counts: make(map[Fate]int)}
	if e.Rested, err = m.rest(); err != nil {
		return nil, err
	}
	e.Before = stateOf(m.cell)
	was, ran, moved := placesOf(m.cell), runningOf(m.cell), m.moved
	lost := m.hearLosses()
	if err := m.Must(ch.Ops...); err != nil {
		return nil, err
	}
	if ch.Search != nil {
		if m.s, err = scheduler.New(*ch.Search); err != nil {
			return nil, err
		}
		m.cfg = *ch.Search
	}
	if err := m.Rest(); err != nil {
		return nil, err
	}
	e.After, e.Moves = stateOf(m.cell), m.moved-moved
	e.compare(was, m.cell, lost)
	m.explain(e)
	e.Held = heldBack(m.cell)
	e.Evictions -= e.Moves
	e.Jobs = losers(ran, m.cell)
	return e, nil
}

// losses are how often tasks lost their place, and why the first time.
type losses struct {
	count map[taskKey]int
	why   map[taskKey]string
}

func (m *Model) hearLosses() *losses {
	l := &losses{make(map[taskKey]int), make(map[taskKey]string)}
	m.hears = func(events []cell.Event) {
		for i := range events {
			e := &events[i]
			if e.ObjectKind != borgpb.ObjectKind_OBJECT_KIND_TASK || e.From != borgpb.State_STATE_RUNNING || e.To == borgpb.State_STATE_RUNNING {
				continue
			}
			k := taskKey{e.UID, e.Task}
			if l.count[k]++; l.count[k] == 1 {
				l.why[k] = e.Reason
			}
		}
	}
	return l
}

func (e *Effect) compare(was map[taskKey]place, after *cell.Cell, lost *losses) {
	for j := range after.Jobs() {
		for i, t := range j.Tasks() {
			k := taskKey{j.UID(), i}
			is := place{state: t.State(), attempt: t.Attempt()}
			if p := t.Current(); p != nil {
				is.machine = p.Machine().Name()
			}
			before, known := was[k]
			fate := fateOf(before, is)
			switch {
			case known && (fate == Displaced || fate == Lost) && j.Kind() == borgpb.JobKind_JOB_KIND_DAEMON && !seated(j, i):
				fate = Ended
				// Its last loss is that of the machine.
				e.Evictions--
			case known:
			case is.state == borgpb.State_STATE_RUNNING:
				fate = NewPlaced
			default:
				fate = NewPending
			}
			e.Evictions += lost.count[k]
			if fate == "" {
				continue
			}
			change := TaskChange{Task: t.ID().String(), Priority: j.Priority(), Fate: fate, From: before.machine, To: is.machine, Evictions: lost.count[k]}
			if fate != Ended {
				change.Why = lost.why[k]
			}
			e.Counts[fate]++
			e.Tasks = append(e.Tasks, change)
		}
	}
}

// ran is how many tasks of a job had a place.
type ran struct {
	uid cell.UID
	key cell.JobKey
	// priority and tasks are those of then.
	priority int32
	tasks    uint32
	count    uint32
}

func runningOf(c *cell.Cell) (all []ran) {
	for j := range c.Jobs() {
		_, n, _ := j.Counts()
		all = append(all, ran{j.UID(), j.Key(), j.Priority(), j.NumTasks(), n})
	}
	return all
}

// losers finds the jobs that run with less than before. A daemon job does so only if machines
// that take tasks are without one.
func losers(before []ran, after *cell.Cell) (jobs []JobChange) {
	for _, b := range before {
		n := uint32(0)
		if o := after.JobByUID(b.uid); o != nil {
			var pending uint32
			pending, n, _ = o.Counts()
			if o.Kind() == borgpb.JobKind_JOB_KIND_DAEMON && pending == unseated(o) {
				continue
			}
		}
		if n < b.count {
			jobs = append(jobs, JobChange{b.key.String(), b.priority, int(b.tasks), int(b.count), int(n)})
		}
	}
	slices.SortStableFunc(jobs, func(a, b JobChange) int {
		return cmp.Or(cmp.Compare(b.Priority, a.Priority), cmp.Compare(b.Before-b.After, a.Before-a.After))
	})
	return jobs
}

// Selector names machines by an attribute: "rack=r1", "rack=r*"; the attribute
// "machine" is the name.
type Selector struct{ Key, Pattern string }

// ParseSelector reads KEY=PATTERN.
func ParseSelector(text string) (Selector, error) {
	key, pattern, ok := strings.Cut(text, "=")
	if !ok || key == "" || pattern == "" {
		return Selector{}, fmt.Errorf("%q does not select machines: want ATTRIBUTE=VALUE, as in rack=r1 or machine=m1*", text)
	}
	if _, err := path.Match(pattern, ""); err != nil {
		return Selector{}, fmt.Errorf("%q is no pattern: %w", pattern, err)
	}
	return Selector{key, pattern}, nil
}

// value is the machine's of the attribute; ok is false where there is none.
func (s Selector) value(m *cell.Machine) (v string, ok bool) {
	if s.Key == "machine" {
		return m.Name(), true
	}
	return m.Attribute(s.Key)
}

// Select lists machines in order of their names.
func (s Selector) Select(c *cell.Cell) (all []*cell.Machine) {
	for m := range c.Machines() {
		if v, ok := s.value(m); ok {
			if match, _ := path.Match(s.Pattern, v); match {
				all = append(all, m)
			}
		}
	}
	return all
}

// RemoveMachines takes machines out of the cell, with all that runs there and all that
// is in volumes there, also those that come there while the cell comes to rest.
func RemoveMachines(c *cell.Cell, ms []*cell.Machine) (ops []*borgpb.Op) {
	for _, m := range ms {
		ops = append(ops, &borgpb.Op{Op: &borgpb.Op_RemoveMachine{RemoveMachine: &borgpb.RemoveMachine{Name: m.Name(), Force: true, GiveUpVolumes: c.Format() >= cell.FormatVolumes}}})
	}
	return ops
}

// DrainMachines empties machines, as disruption budgets allow.
func DrainMachines(ms []*cell.Machine) (ops []*borgpb.Op) {
	for _, m := range ms {
		if !m.Draining() {
			ops = append(ops, &borgpb.Op{Op: &borgpb.Op_DrainMachine{DrainMachine: &borgpb.DrainMachine{Name: m.Name(), Drain: true}}})
		}
	}
	return ops
}

// SetAttribute changes what is said of machines.
func SetAttribute(ms []*cell.Machine, key, value string) (ops []*borgpb.Op) {
	for _, m := range ms {
		ops = append(ops, &borgpb.Op{Op: &borgpb.Op_SetMachine{SetMachine: &borgpb.SetMachine{Name: m.Name(), SetAttributes: map[string]string{key: value}}}})
	}
	return ops
}

// AddMachines adds n machines of one shape under names that are free.
func AddMachines(c *cell.Cell, n int, spec *borgpb.MachineSpec) (ops []*borgpb.Op) {
	for i := 1; len(ops) < n; i++ {
		name := fmt.Sprintf("new-%d", i)
		if c.Machine(name) == nil {
			ops = append(ops, &borgpb.Op{Op: &borgpb.Op_AddMachine{AddMachine: &borgpb.AddMachine{Name: name, Spec: spec}}})
		}
	}
	return ops
}

// Submit submits a job or, where it is nil, an alloc set.
func Submit(user, name string, job *borgpb.JobSpec, set *borgpb.AllocSetSpec) *borgpb.Op {
	if job != nil {
		return submit(cell.JobKey{User: user, Name: name}, job)
	}
	return &borgpb.Op{
		Principal: &borgpb.Principal{User: user, Role: borgpb.Role_ROLE_USER},
		Op:        &borgpb.Op_SubmitAllocSet{SubmitAllocSet: &borgpb.SubmitAllocSet{User: user, Name: name, Spec: marshal(set)}},
	}
}

// Failure is what the loss of one failure domain costs.
type Failure struct {
	Domain   string `json:"domain"`
	Machines int    `json:"machines"`
	// Displaced tasks ran there; Pending of all tasks of the cell wait afterwards
	// that did not before, ProdPending of production and monitoring.
	Displaced   int `json:"displaced"`
	Pending     int `json:"pending"`
	ProdPending int `json:"prodPending"`
	// JobsDown have no running task any more.
	JobsDown int `json:"jobsDown"`
	// Evictions beside those of the domain: who gave way. Moves are those of the
	// rescheduler.
	Evictions int         `json:"evictions"`
	Moves     int         `json:"moves"`
	Jobs      []JobChange `json:"jobsThatLose"`
}

// Fail tries the loss of every domain that the selectors name, one at a time: all
// machines with the same value go down at once. The worst come first: those after
// which most tasks of production wait. Each is told to seen, which may be nil,
// when it is done; an error of it ends the work.
func Fail(c *cell.Cell, cfg scheduler.Config, by []Selector, seen func(done, of int) error) ([]Failure, error) {
	base, err := ModelOf(c, cfg)
	if err != nil {
		return nil, err
	}
	if err := base.Rest(); err != nil {
		return nil, err
	}
	names, domains := domainsOf(base.cell, by)
	before := stateOf(base.cell)
	all := make([]Failure, 0, len(names))
	for i, name := range names {
		f, err := base.fail(name, domains[name], before)
		if err != nil {
			return nil, err
		}
		all = append(all, f)
		if seen != nil {
			if err := seen(i+1, len(names)); err != nil {
				return nil, err
			}
		}
	}
	slices.SortStableFunc(all, func(a, b Failure) int {
		return cmp.Or(cmp.Compare(b.ProdPending, a.ProdPending), cmp.Compare(b.Pending, a.Pending), cmp.Compare(b.Displaced, a.Displaced))
	})
	return all, nil
}

// domainsOf groups machines that are up by the values that were selected.
func domainsOf(c *cell.Cell, by []Selector) (names []string, domains map[string][]*cell.Machine) {
	domains = make(map[string][]*cell.Machine)
	for _, s := range by {
		for _, m := range s.Select(c) {
			v, _ := s.value(m)
			name := s.Key + "=" + v
			if _, seen := domains[name]; !seen {
				names, domains[name] = append(names, name), nil
			}
			if m.Up() && !slices.Contains(domains[name], m) {
				domains[name] = append(domains[name], m)
			}
		}
	}
	return names, domains
}

func (m *Model) fail(name string, machines []*cell.Machine, before State) (Failure, error) {
	f := Failure{Domain: name, Machines: len(machines)}
	own, err := m.Copy()
	if err != nil {
		return f, err
	}
	term := max(own.cell.Term(), 1)
	var ops []*borgpb.Op
	for _, at := range machines {
		for p := range at.Copies() {
			if p.Current() {
				f.Displaced++
			}
		}
		ops = append(ops, &borgpb.Op{Op: &borgpb.Op_MachineDown{MachineDown: &borgpb.MachineDown{Name: at.Name(), Term: term, Reason: name + " is lost"}}})
	}
	lost := own.hearLosses()
	if err := own.Must(ops...); err != nil {
		return f, err
	}
	if err := own.Rest(); err != nil {
		return f, err
	}
	after := stateOf(own.cell)
	f.Pending, f.ProdPending = after.Pending-before.Pending, after.ProdPending-before.ProdPending
	for _, n := range lost.count {
		f.Evictions += n
	}
	f.Moves = own.moved
	f.Evictions -= f.Displaced + f.Moves
	f.Jobs = losers(runningOf(m.cell), own.cell)
	for _, j := range f.Jobs {
		if j.After == 0 {
			f.JobsDown++
		}
	}
	return f, nil
}
