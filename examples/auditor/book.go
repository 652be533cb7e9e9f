package main

import (
	"bytes"
	"slices"
	"strconv"
	"strings"

	"google.golang.org/protobuf/proto"

	"borg/proto/borgpb"
)

// plan is what a job of the workload is for, and so what it must come to.
type plan string

const (
	planService plan = "service" // runs until it is killed
	planBatch   plan = "batch"   // every task ends with 0 and has written a line
	planFailing plan = "failing" // every task ends with failingCode, each time
	planUnfit   plan = "unfit"   // fits no machine
)

// done is what an ask wants that is not to be refused.
const done = "done"

// book is what the cell has told, and the verdicts on it. It is pure: it knows
// of no clock, file or connection. Almost every rule in it goes by log index
// and not by when an answer came, so answers may be put down in any order.
type book struct {
	verdicts
	run        record
	asks       map[string]*ask
	lives      map[string]*life   // jobs that a submit made, by uid
	names      map[string][]*life // the same by "user/name", in the order of the log
	spare      map[string]bool    // names of which every submit must be refused
	unanswered map[string]int     // asks, by "user/name"; either outcome is possible
	// orders are the acknowledged drains of each machine, in the order of the
	// log.
	orders map[string][]order
	// floor is the highest log index that anybody was told. An entry with an
	// index that was told is committed, so what is asked for later and is to
	// be fresh cannot be older.
	floor uint64
	seen  seen
}

// ask is a mutation that a client wants.
type ask struct {
	record
	floor uint64  // of the book when it was first asked
	told  *record // what was told first
	news  int     // answers that were not repeated ones
}

// life is a job from its submit on; a submit in its place is another life.
type life struct {
	key, uid string
	plan     plan
	submit   uint64
	changes  []change       // acknowledged, in the order of the log; the submit first
	given    []byte         // bytes of the spec that was given last
	killed   uint64         // log index of the acknowledged kill; zero: none
	asked    map[string]int // mutations of it that were to be done, answered or not
	lowest   uint32         // number of tasks that it once had at least
}

// change is a version of a job's spec and the log index that made it.
type change struct {
	index, version uint64
	spec           *borgpb.JobSpec
}

// order is an acknowledged drain of a machine, or the end of one.
type order struct {
	index uint64
	drain bool
}

func newBook() *book {
	return &book{
		verdicts: newVerdicts(),
		asks:     make(map[string]*ask), lives: make(map[string]*life), names: make(map[string][]*life),
		spare: make(map[string]bool), unanswered: make(map[string]int), orders: make(map[string][]order),
		seen: newSeen(),
	}
}

func key(user, name string) string { return user + "/" + name }

// note puts a record of the journal down and judges what was told.
func (b *book) note(r record) {
	switch r.Kind {
	case recordRun:
		b.run = r
	case recordIndex:
		b.floor = max(b.floor, r.Index)
	case recordAsk:
		if b.asks[r.ID] != nil {
			return
		}
		b.asks[r.ID] = &ask{record: r, floor: b.floor}
		b.unanswered[key(r.User, r.Name)]++
		if r.Name == "" || r.What == "drain" || r.What == "undrain" {
			return
		}
		wanted, l := slices.Contains(r.Wants, done), b.last(key(r.User, r.Name))
		switch {
		case wanted && l != nil:
			l.asked[r.What]++
		case !wanted && l == nil && r.What == "submit":
			b.spare[key(r.User, r.Name)] = true
		}
	case recordTold:
		if a := b.asks[r.ID]; a != nil {
			if a.told == nil {
				b.unanswered[key(a.User, a.Name)]--
			}
			b.answer(a, r)
		}
	}
}

// answer judges what was told of a request.
func (b *book) answer(a *ask, r record) {
	defer func() { b.floor = max(b.floor, r.Index) }()
	if r.Other {
		b.check("once", r.Refusal == borgpb.RefusalKind_REFUSAL_KIND_INVALID.String(),
			"%s %s/%s was done, and another request under its id was not refused as invalid: %s %s, index %d", a.What, a.User, a.Name, r.Refusal, r.Message, r.Index)
		return
	}
	if r.Refusal != "" {
		switch {
		case a.told != nil && a.told.Refusal == "":
			b.check("once", false, "%s %s/%s: done at index %d, and a retry was refused at %d: %s", a.What, a.User, a.Name, a.told.Index, r.Index, r.Message)
		case slices.Contains(a.Wants, done):
			b.check("acknowledged", false, "%s %s/%s was refused at index %d: %s %s", a.What, a.User, a.Name, r.Index, r.Refusal, r.Message)
		default:
			b.check(a.Tests, slices.Contains(a.Wants, r.Refusal), "%s %s/%s: refused at index %d with %s (%s), want one of %v", a.What, a.User, a.Name, r.Index, r.Refusal, r.Message, a.Wants)
		}
		if a.told == nil {
			a.told = &r
		}
		return
	}
	if !r.Repeated {
		a.news++
		b.check("once", a.news == 1, "%s %s/%s was done %d times, last at index %d", a.What, a.User, a.Name, a.news, r.Index)
	}
	if a.told != nil {
		t := a.told
		b.check("once", t.Refusal == "" && t.Index == r.Index && t.UID == r.UID && t.Version == r.Version,
			"%s %s/%s: told index %d uid %s version %d %s, and for a retry index %d uid %s version %d",
			a.What, a.User, a.Name, t.Index, t.UID, t.Version, t.Refusal, r.Index, r.UID, r.Version)
		return
	}
	a.told = &r
	if len(a.Wants) > 0 && !slices.Contains(a.Wants, done) {
		b.check(a.Tests, false, "%s %s/%s was done at index %d, and had to be refused with one of %v", a.What, a.User, a.Name, r.Index, a.Wants)
		return
	}
	b.check("order", r.Index > a.floor, "%s %s/%s was done at index %d, and %d had been told before it was asked for", a.What, a.User, a.Name, r.Index, a.floor)
	if a.Tests != "" {
		b.check(a.Tests, true, "")
	}
	b.apply(a, r)
}

// apply puts down what a mutation that was done has changed.
func (b *book) apply(a *ask, r record) {
	switch a.What {
	case "drain", "undrain":
		b.orders[a.Name] = append(b.orders[a.Name], order{r.Index, a.What == "drain"})
		return
	case "submit":
		b.born(a, r)
		return
	}
	l := b.lives[r.UID]
	b.check("acknowledged", l != nil && l == b.last(key(a.User, a.Name)), "%s %s/%s was done at index %d to uid %s, which is not the job of that name that was submitted last", a.What, a.User, a.Name, r.Index, r.UID)
	if l == nil {
		return
	}
	now := l.changes[len(l.changes)-1]
	want := now.version
	switch a.What {
	case "kill":
		l.killed = r.Index
	case "resize":
		if a.Tasks != now.spec.GetTasks() {
			want++
			spec := proto.CloneOf(now.spec)
			spec.Tasks = a.Tasks
			l.change(r, spec)
		}
	case "update":
		spec := new(borgpb.JobSpec)
		if err := proto.Unmarshal(a.Spec, spec); err != nil {
			panic("the workload asked for a spec that is none: " + err.Error())
		}
		// A resize leaves the bytes as they were given. So the spec that it made
		// is other bytes, and a version; and what was given before is a resize.
		if !bytes.Equal(a.Spec, l.given) || spec.GetTasks() != now.spec.GetTasks() {
			want++
			l.change(r, spec)
		}
		l.given = a.Spec
	}
	b.check("version", r.Version == want, "%s %s/%s at index %d made version %d of version %d, want %d", a.What, a.User, a.Name, r.Index, r.Version, now.version, want)
}

func (l *life) change(r record, spec *borgpb.JobSpec) {
	l.changes = append(l.changes, change{r.Index, r.Version, spec})
	l.lowest = min(l.lowest, spec.GetTasks())
}

// born puts down a job that a submit made.
func (b *book) born(a *ask, r record) {
	old := b.lives[r.UID]
	b.check("uid", old == nil, "submits of %s/%s at index %d were told uid %s, which is that of %v", a.User, a.Name, r.Index, r.UID, old)
	madeAt, ok := madeAt(r.UID)
	b.check("uid", ok && madeAt == r.Index, "submit %s/%s at index %d was told uid %s, which does not say that index", a.User, a.Name, r.Index, r.UID)
	b.check("version", r.Version == 1, "submit %s/%s at index %d made version %d", a.User, a.Name, r.Index, r.Version)
	if old != nil {
		return
	}
	spec := new(borgpb.JobSpec)
	if err := proto.Unmarshal(a.Spec, spec); err != nil {
		panic("the workload submitted a spec that is none: " + err.Error())
	}
	k := key(a.User, a.Name)
	l := &life{key: k, uid: r.UID, plan: a.Plan, submit: r.Index, given: a.Spec, lowest: spec.GetTasks(), asked: make(map[string]int)}
	l.change(r, spec)
	b.lives[r.UID] = l
	b.names[k] = append(b.names[k], l)
	delete(b.spare, k)
}

// madeAt is the log index in a uid "<epoch>-<log index>-<n>".
func madeAt(uid string) (uint64, bool) {
	parts := strings.Split(uid, "-")
	if len(parts) != 3 {
		return 0, false
	}
	for _, p := range parts {
		if _, err := strconv.ParseUint(p, 10, 64); err != nil {
			return 0, false
		}
	}
	index, _ := strconv.ParseUint(parts[1], 10, 64)
	return index, true
}

// last is the newest acknowledged job of that name.
func (b *book) last(k string) *life {
	lives := b.names[k]
	if len(lives) == 0 {
		return nil
	}
	return lives[len(lives)-1]
}

// open tells whether an ask for this job or machine ("/name") has not been
// answered, so that either outcome is allowed.
func (b *book) open(k string) bool { return b.unanswered[k] > 0 }

// at is the newest acknowledged change at this log index.
func (l *life) at(index uint64) (c change) {
	for _, x := range l.changes {
		if x.index <= index {
			c = x
		}
	}
	return c
}

// version is the change that made this version, if it was acknowledged.
func (l *life) version(v uint64) (change, bool) {
	for _, x := range l.changes {
		if x.version == v {
			return x, true
		}
	}
	return change{}, false
}

// lowered tells whether the job ever became smaller than to have this task,
// so that the task may have been made anew.
func (l *life) lowered(index uint32) bool { return index >= l.lowest }
