package plan

import (
	"fmt"
	"slices"

	"google.golang.org/protobuf/proto"

	"borg/borgmaster/cell"
	"borg/proto/borgpb"
	"borg/scheduler"
)

// Wanted is a job that is to be fitted in beside what is there.
type Wanted struct {
	User, Name string
	Spec       *borgpb.JobSpec
}

// FitQuestion asks how many more fit.
type FitQuestion struct {
	// Jobs are fitted in together. Of one job the answer counts tasks; of several,
	// sets with as many tasks of each as its spec has.
	Jobs []Wanted
	// NoPreemption: nobody gives way for them.
	NoPreemption bool
	// CountPer is an attribute by whose values the places are counted; empty:
	// none. "machine" is the name.
	CountPer string
	// Scales says for how many copies the largest task is looked for.
	Scales []int
}

// FitAnswer is how many fit.
type FitAnswer struct {
	// Unit is what Count counts: "tasks", or "sets" of several jobs.
	Unit string `json:"unit"`
	// Count fit, and Count+1 do not: both were tried.
	Count int `json:"count"`
	// AtLeast: a job cannot have more tasks, so Count is all that could be tried.
	AtLeast bool `json:"atLeast,omitempty"`
	// Evicted tasks give way when Count are placed; Displaced of them find no
	// other place. Moved tasks are moved by the rescheduler.
	Evicted   int `json:"evicted"`
	Displaced int `json:"displaced"`
	Moved     int `json:"moved"`
	// Rested is what became of the cell before the question.
	Rested Rested `json:"before"`
	// Per counts the places by CountPer.
	Per []Count `json:"per,omitempty"`
	// Why the next one does not fit.
	Why string `json:"why,omitempty"`
	// Largest is the largest task of that shape which fits so many times.
	Largest []Scaled `json:"largest,omitempty"`
}

// Count is a number of things that share a name.
type Count struct {
	Name  string `json:"name"`
	Count int    `json:"count"`
}

// Scaled is a task that is larger or smaller than the one asked about.
type Scaled struct {
	Copies int `json:"copies"`
	// Permille of what the task asks for.
	Permille int64 `json:"permille"`
	CPUMilli int64 `json:"cpuMilli"`
	MemBytes int64 `json:"memBytes"`
}

// maxTasks is how many tasks one job can have.
const maxTasks = 100_000

// Fit says how many more of some jobs fit into a cell. What waits there already
// is placed first, as far as it can be.
func Fit(c *cell.Cell, cfg scheduler.Config, q FitQuestion) (*FitAnswer, error) {
	if len(q.Jobs) == 0 {
		return nil, fmt.Errorf("there is no job to fit in")
	}
	base, err := ModelOf(c, cfg)
	if err != nil {
		return nil, err
	}
	rested, err := base.rest()
	if err != nil {
		return nil, err
	}
	if err := base.admitAll(q.Jobs); err != nil {
		return nil, err
	}
	f := &fitting{base: base, q: q, tried: make(map[int]*tried)}
	a := &FitAnswer{Unit: "tasks", Rested: rested}
	if len(q.Jobs) > 1 || q.Jobs[0].Spec.Gang {
		a.Unit = "sets"
	}
	if err := f.search(a); err != nil {
		return nil, err
	}
	at, err := f.try(a.Count)
	if err != nil {
		return nil, err
	}
	a.Evicted, a.Displaced, a.Moved, a.Per = at.evicted, at.displaced, at.moved, at.per
	if !a.AtLeast {
		next, err := f.try(a.Count + 1)
		if err != nil {
			return nil, err
		}
		a.Why = next.why
	}
	if len(q.Scales) > 0 && len(q.Jobs) == 1 {
		a.Largest = f.largest()
	}
	return a, nil
}

// admitAll puts quotas and capabilities aside for the owners of some jobs: the question is
// what there is room for, not who may have it.
func (m *Model) admitAll(jobs []Wanted) error {
	var ops []*borgpb.Op
	if m.cell.QuotasEnforced() {
		off := false
		ops = append(ops, &borgpb.Op{Op: &borgpb.Op_SetQuotaPolicy{SetQuotaPolicy: &borgpb.SetQuotaPolicy{Enforce: &off}}})
	}
	asked := make(map[string]bool)
	for _, j := range jobs {
		if m.cell.NumAdmins() > 0 && !m.cell.Has(j.User, cell.Admin) && !asked[j.User] {
			asked[j.User] = true
			ops = append(ops, &borgpb.Op{Op: &borgpb.Op_Grant{Grant: &borgpb.Grant{User: j.User, Capability: string(cell.Admin)}}})
		}
	}
	if len(ops) == 0 {
		return nil
	}
	return m.Must(ops...)
}

// waiting are the tasks that want a place and have none.
func waiting(c *cell.Cell) map[taskRef]bool {
	all := make(map[taskRef]bool)
	for j, i := range c.Pending() {
		all[taskRef{j.UID(), i}] = true
	}
	return all
}

type taskRef struct {
	job   cell.UID
	index uint32
}

// Rested is what became of a cell that was left to itself until it came to rest.
type Rested struct {
	// Waited tasks had no place; Placed ones of them found one.
	Waited int `json:"waited"`
	Placed int `json:"placed"`
	// Displaced tasks had a place and have none now.
	Displaced int `json:"displaced"`
	// Waiting tasks have none now.
	Waiting int `json:"waiting"`
	// Moved tasks were moved by the rescheduler, some of them more than once.
	Moved int `json:"moved"`
}

// rest leaves the cell to itself, and says what became of its tasks.
func (m *Model) rest() (r Rested, err error) {
	before, moved := waiting(m.cell), m.moved
	if err := m.Rest(); err != nil {
		return r, err
	}
	after := waiting(m.cell)
	r = Rested{Waited: len(before), Placed: len(before), Waiting: len(after), Moved: m.moved - moved}
	for t := range after {
		if before[t] {
			r.Placed--
		} else {
			r.Displaced++
		}
	}
	return r, nil
}

// fitting is a question being answered.
type fitting struct {
	base  *Model
	q     FitQuestion
	tried map[int]*tried
}

// tried is what came of submitting so many.
type tried struct {
	// placed of the tasks; whole: all of them, and all that they displaced that
	// is not of lower priority.
	placed, tasks      int
	evicted, displaced int
	moved              int
	per                []Count
	why                string
}

func (t *tried) whole() bool { return t.placed == t.tasks }

// most is how many units can be submitted.
func (f *fitting) most() int {
	if f.single() {
		return maxTasks
	}
	n := maxTasks
	for _, w := range f.q.Jobs {
		n = min(n, maxTasks/max(int(w.Spec.Tasks), 1))
	}
	return max(n, 1)
}

// single: units are tasks of one job.
func (f *fitting) single() bool { return len(f.q.Jobs) == 1 && !f.q.Jobs[0].Spec.Gang }

// search finds a count that fits although the next one does not.
func (f *fitting) search(a *FitAnswer) error {
	low, high := 0, f.most()+1
	// One job tells at once how many of it find a place. How the first ones are
	// spread may depend on how many there are, so that is where to begin, not the
	// answer.
	if f.single() {
		n := min(f.bound(), f.most())
		t, err := f.try(n)
		if err != nil {
			return err
		}
		switch {
		case t.whole() && n == f.most():
			a.Count, a.AtLeast = n, true
			return nil
		case t.whole():
			low = n
		default:
			high = n
		}
		for _, n := range []int{t.placed, t.placed + 1} {
			if n <= low || n >= high {
				continue
			}
			if low, high, err = f.narrow(low, high, n); err != nil {
				return err
			}
		}
	}
	// Invariant: low fits, high does not.
	for step := 1; low+1 < high; step *= 2 {
		n := (low + high) / 2
		if high > f.most() {
			// Nothing is known of how many there may be.
			n = min(low+step, f.most())
		}
		if n == f.most() && low < n {
			t, err := f.try(n)
			if err != nil {
				return err
			}
			if t.whole() {
				a.Count, a.AtLeast = n, true
				return nil
			}
		}
		var err error
		if low, high, err = f.narrow(low, high, n); err != nil {
			return err
		}
	}
	a.Count = low
	return nil
}

func (f *fitting) narrow(low, high, n int) (int, int, error) {
	t, err := f.try(n)
	if err != nil {
		return 0, 0, err
	}
	if t.whole() {
		return n, high, nil
	}
	return low, n, nil
}

// bound is a number of tasks that surely do not all fit, or one more than fit by
// the plain sums: what each machine holds when it is empty.
func (f *fitting) bound() int {
	need := cell.FromProto(f.q.Jobs[0].Spec.Task.GetResources())
	n := int64(0)
	for m := range f.base.cell.Machines() {
		n += times(m.Capacity(), need)
	}
	return int(min(n+1, maxTasks))
}

// times is how often need goes into room by CPU, memory and disk.
func times(room, need cell.Resources) int64 {
	n := int64(maxTasks)
	for _, d := range [][2]int64{{room.CPUMilli, need.CPUMilli}, {room.MemBytes, need.MemBytes}, {room.DiskBytes, need.DiskBytes}} {
		if d[1] > 0 {
			n = min(n, max(d[0], 0)/d[1])
		}
	}
	return n
}

// try submits n units to a copy of the cell and lets it come to rest.
func (f *fitting) try(n int) (*tried, error) {
	if t := f.tried[n]; t != nil {
		return t, nil
	}
	t := &tried{}
	f.tried[n] = t
	if n == 0 {
		return t, nil
	}
	m, err := f.base.Copy()
	if err != nil {
		return nil, err
	}
	var keys []cell.JobKey
	m.hears = func(events []cell.Event) {
		for i := range events {
			if e := &events[i]; e.Kind == borgpb.EventKind_EVENT_KIND_EVICT && e.ObjectKind == borgpb.ObjectKind_OBJECT_KIND_TASK {
				t.evicted++
			}
		}
	}
	var ops []*borgpb.Op
	for _, w := range f.q.Jobs {
		ops = append(ops, f.submits(m.cell, w, n, &keys)...)
	}
	if err := m.Must(ops...); err != nil {
		return nil, err
	}
	r, err := m.rest()
	if err != nil {
		return nil, err
	}
	t.displaced, t.moved = r.Displaced, r.Moved
	// Who is moved has lost no place.
	t.evicted -= r.Moved
	per := make(map[string]int)
	for _, key := range keys {
		j := m.cell.Job(key)
		t.tasks += int(j.NumTasks())
		for i, task := range j.Tasks() {
			if p := task.Current(); p != nil {
				t.placed++
				per[nameIn(p.Machine(), f.q.CountPer)]++
			} else if t.why == "" {
				if why, err := m.s.Explain(m.cell, key, i); err == nil {
					t.why = why.Summary
				}
			}
		}
	}
	if f.q.CountPer != "" {
		for name, n := range per {
			t.per = append(t.per, Count{name, n})
		}
		slices.SortFunc(t.per, byCount)
	}
	return t, nil
}

// nameIn is the value of an attribute, or the name for "machine".
func nameIn(m *cell.Machine, attribute string) string {
	if attribute == "machine" {
		return m.Name()
	}
	if v, ok := m.Attribute(attribute); ok {
		return v
	}
	return "none"
}

// submits are the ops for n units of a job under names that are free.
func (f *fitting) submits(c *cell.Cell, w Wanted, n int, keys *[]cell.JobKey) (ops []*borgpb.Op) {
	spec := proto.CloneOf(w.Spec)
	if f.q.NoPreemption {
		spec.Preempt = borgpb.Preempt_PREEMPT_NEVER
	}
	copies := 1
	switch {
	case f.single():
		spec.Tasks = uint32(n)
	case spec.Gang:
		copies = n
	default:
		spec.Tasks *= uint32(n)
	}
	for range copies {
		key := freeKey(c, w, len(*keys))
		*keys = append(*keys, key)
		ops = append(ops, submit(key, spec))
	}
	return ops
}

// freeKey is a name that nothing in the cell has.
func freeKey(c *cell.Cell, w Wanted, n int) cell.JobKey {
	for ; ; n++ {
		name := fmt.Sprintf("fit-%d-%s", n, w.Name)
		key := cell.JobKey{User: w.User, Name: name[:min(len(name), 60)]}
		for key.Name[len(key.Name)-1] == '-' {
			key.Name = key.Name[:len(key.Name)-1]
		}
		if c.Job(key) == nil && c.AllocSet(key) == nil {
			return key
		}
	}
}

func submit(key cell.JobKey, spec *borgpb.JobSpec) *borgpb.Op {
	return &borgpb.Op{
		Principal: &borgpb.Principal{User: key.User, Role: borgpb.Role_ROLE_USER},
		Op:        &borgpb.Op_SubmitJob{SubmitJob: &borgpb.SubmitJob{User: key.User, Name: key.Name, Spec: marshal(spec)}},
	}
}
