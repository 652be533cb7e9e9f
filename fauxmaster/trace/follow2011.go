package trace

import (
	"cmp"
	"math"
	"slices"
	"strconv"

	"google.golang.org/protobuf/proto"

	"borg/proto/borgpb"
)

// The window of Google's trace begins at 600 s; what is stamped 0 was there by then.
const window2011Us = 600e6

// An end and the next submission of a task no further apart than this are the same
// task, which is tried again.
const againUs = 1e6

// Bounds of what one job of ours takes of what became of its tasks, and of what
// differs between them; beyond, it becomes several.
const (
	maxHistoryBytes = 40 << 10
	maxFailures2011 = 1_000_000
)

// following is what became of the tasks of a trace after its moment.
type following struct {
	// From fromUs to untilUs of the trace.
	fromUs, untilUs int64
	// chains is what is known of each task, the last one of it; all of them in order.
	last map[task2011ID]*chain2011
	all  []*chain2011
	// machines are the events of machines after the moment.
	machines []machineEvent2011
}

// chain2011 is a task from its submission until it is submitted no more.
type chain2011 struct {
	id task2011ID
	t  *task2011
	// here: it was there at the moment, which is its sinceUs then.
	here    bool
	sinceUs int64
	History
	// The state since atUs: it waits, runs, or is over.
	running, over bool
	atUs          int64
}

type machineEvent2011 struct {
	atUs, id int64
	what     int64
	platform string
	// rack is told by the trace of 2019 alone.
	rack string
	// Negative: not said.
	cpu, mem float64
}

// Follow also takes what happens until untilUs of the trace: tasks tell what becomes
// of them, and Cell has arrivals. It is called before anything is read.
func (g *Google2011) Follow(untilUs int64) {
	g.follow = &following{fromUs: max(g.timeUs, window2011Us), untilUs: untilUs, last: make(map[task2011ID]*chain2011)}
}

// begin takes over the tasks of the moment.
func (f *following) begin(tasks map[task2011ID]*task2011) {
	for id, t := range tasks {
		c := &chain2011{id: id, t: t, here: true, sinceUs: f.fromUs, atUs: f.fromUs, running: t.machine != 0}
		if c.running {
			c.Runs = append(c.Runs, Run{})
		}
		f.last[id] = c
		f.all = append(f.all, c)
	}
}

// event takes in one event after the moment.
func (f *following) event(nowUs int64, id task2011ID, what int64, said *task2011) {
	c := f.last[id]
	if what == submit2011 {
		switch {
		case c == nil, c.over && (c.final() == Finished || nowUs-c.atUs > againUs):
			t := *said
			c = &chain2011{id: id, t: &t, sinceUs: nowUs, atUs: nowUs}
			f.last[id] = c
			f.all = append(f.all, c)
		case c.over:
			c.over = false
		}
	}
	if c == nil {
		// It is heard of without having been submitted.
		return
	}
	if !c.here {
		// What was there at the moment is as it was then.
		c.t.hear(said)
		c.t.different = c.t.different || said.different
		c.t.obey(what, said)
	}
	switch what {
	case schedule2011:
		if !c.over && !c.running {
			c.Runs = append(c.Runs, Run{WaitNs: (nowUs - c.atUs) * 1000})
			c.running, c.atUs = true, nowUs
		}
	case evict2011, fail2011, finish2011, kill2011, lost2011:
		if !c.over {
			c.end(nowUs, ends2011[what])
			c.over = true
		}
	}
}

var ends2011 = map[int64]End{evict2011: Evicted, lost2011: Evicted, fail2011: Failed, finish2011: Finished, kill2011: Killed}

// end ends the run, or the wait.
func (c *chain2011) end(nowUs int64, how End) {
	ns := (nowUs - c.atUs) * 1000
	if c.running {
		r := &c.Runs[len(c.Runs)-1]
		r.RunNs, r.End = ns, how
	} else {
		c.Runs = append(c.Runs, Run{WaitNs: ns, RunNs: NeverRan, End: how})
	}
	c.running, c.atUs = false, nowUs
}

// killSecond is when it was killed for good, which makes its job one of its own:
// jobs are killed as a whole; -1: it was not.
func (c *chain2011) killSecond() int64 {
	if c.over && c.final() == Killed {
		return c.atUs / 1e6
	}
	return -1
}

// close ends what goes on when the recording ends.
func (f *following) close() {
	for _, c := range f.all {
		if !c.over {
			c.end(max(f.untilUs, c.atUs), Ongoing)
		}
	}
	slices.SortFunc(f.all, func(a, b *chain2011) int {
		return cmp.Or(cmp.Compare(a.id.job, b.id.job), cmp.Compare(a.id.index, b.id.index), cmp.Compare(a.sinceUs, b.sinceUs))
	})
}

// apart tells whether two tasks of a job of the trace cannot be tasks of one job of
// ours. They are of one priority.
func (c *chain2011) apart(o *chain2011) bool { return c.compare(o) != 0 }

// compare orders tasks so that those of one job lie side by side.
func (c *chain2011) compare(o *chain2011) int {
	if c == nil || o == nil {
		return 0
	}
	as := func(yes bool) int {
		if yes {
			return 1
		}
		return 0
	}
	return cmp.Or(cmp.Compare(c.sinceUs, o.sinceUs), cmp.Compare(as(o.here), as(c.here)), cmp.Compare(c.killSecond(), o.killSecond()),
		cmp.Compare(as(!c.Placed()), as(!o.Placed())))
}

// tell writes into a job what became of its tasks, and says when it comes and goes.
func (f *following) tell(c *Cell, j *Job, tasks []*chain2011) {
	histories := make([]History, len(tasks))
	here, killUs := tasks[0].here, int64(math.MaxInt64)
	ends := false
	for i, t := range tasks {
		histories[i] = t.History
		ends = ends || t.final() == Finished || t.final() == Failed
		if t.killSecond() >= 0 {
			killUs = min(killUs, t.atUs)
		}
	}
	if ends {
		// A service never ends.
		j.Spec.Kind = borgpb.JobKind_JOB_KIND_BATCH
	}
	if j.Spec.Kind == borgpb.JobKind_JOB_KIND_BATCH {
		j.Spec.MaxFailures = maxFailures2011
	}
	SetHistories(j.Spec, histories)
	if here {
		c.Jobs = append(c.Jobs, *j)
	} else {
		c.Arrivals = append(c.Arrivals, Arrival{AtNs: (tasks[0].sinceUs - f.fromUs) * 1000, Op: j.Op(), Histories: histories})
	}
	if killUs != math.MaxInt64 {
		c.Arrivals = append(c.Arrivals, Arrival{AtNs: (killUs - f.fromUs) * 1000, Op: killJob(j)})
	}
}

func killJob(j *Job) *borgpb.Op {
	return &borgpb.Op{
		Principal: &borgpb.Principal{User: j.User, Role: borgpb.Role_ROLE_USER},
		Op:        &borgpb.Op_KillJob{KillJob: &borgpb.KillJob{User: j.User, Name: j.Name}},
	}
}

// followMachines makes ops of what happens to machines after the moment.
func (g *Google2011) followMachines(c *Cell) {
	for _, e := range g.follow.machines {
		m := g.machine(e.id)
		m.hear(&e)
		op := &borgpb.Op{}
		switch {
		case e.what == 0 && !m.here:
			m.here = true
			op = addMachine(g.machineOf(e.id, m))
		case e.what == 1 && m.here:
			m.here = false
			op.Op = &borgpb.Op_RemoveMachine{RemoveMachine: &borgpb.RemoveMachine{Name: g.machineNamed(e.id), Force: true}}
		case e.what == 2 && m.here:
			spec := g.machineOf(e.id, m).Spec
			op.Op = &borgpb.Op_SetMachine{SetMachine: &borgpb.SetMachine{Name: g.machineNamed(e.id), Capacity: spec.Capacity}}
		default:
			c.note("events of machines that change nothing, as the machine is there, or is not")
			continue
		}
		c.Arrivals = append(c.Arrivals, Arrival{AtNs: (max(e.atUs, g.follow.fromUs) - g.follow.fromUs) * 1000, Op: op})
	}
}

// sortArrivals puts arrivals in order of time. Of one moment machines come first,
// then jobs, then what ends jobs.
func (c *Cell) sortArrivals() {
	rank := func(op *borgpb.Op) int {
		switch op.Op.(type) {
		case *borgpb.Op_SubmitJob:
			return 1
		case *borgpb.Op_KillJob, *borgpb.Op_KillAllocSet:
			return 2
		}
		return 0
	}
	slices.SortStableFunc(c.Arrivals, func(a, b Arrival) int {
		return cmp.Or(cmp.Compare(a.AtNs, b.AtNs), cmp.Compare(rank(a.Op), rank(b.Op)))
	})
}

// Use gives the tasks of a cell that tell what became of them a use each, drawn by
// who asks. It tells the name of the job, the priority and the index.
func (c *Cell) Use(draw func(user, name string, priority int32, index int) (cpuPermille, memPermille uint32)) {
	give := func(user, name string, spec *borgpb.JobSpec) []History {
		all, err := Histories(spec)
		if all == nil || err != nil {
			return nil
		}
		for i := range all {
			all[i].CPUPermille, all[i].MemPermille = draw(user, name, spec.Priority, i)
		}
		SetHistories(spec, all)
		return all
	}
	for i := range c.Jobs {
		j := &c.Jobs[i]
		give(j.User, j.Name, j.Spec)
	}
	for i := range c.Arrivals {
		a := &c.Arrivals[i]
		o := a.Op.GetSubmitJob()
		if o == nil {
			continue
		}
		spec := &borgpb.JobSpec{}
		if proto.Unmarshal(o.Spec, spec) != nil {
			continue
		}
		if all := give(o.User, o.Name, spec); all != nil {
			a.Histories = all
			a.Op = Job{User: o.User, Name: o.Name, Labels: o.Labels, Spec: spec}.Op()
		}
	}
}

// jobName names the jobs that become of one of the trace.
func (g *Google2011) jobName(job int64) string {
	n := g.named[job]
	g.named[job]++
	name := "job-" + strconv.FormatInt(job, 10)
	if n > 0 {
		name += "-" + strconv.Itoa(n+1)
	}
	return name
}
