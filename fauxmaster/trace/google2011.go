package trace

import (
	"io"
	"maps"
	"math"
	"slices"
	"strconv"

	"borg/proto/borgpb"
)

// Google2011 replays Google's trace of 2011 (clusterdata-2011-2) up to one
// moment. First come the machines with their attributes and the constraints of
// tasks, in any order, then the parts of task_events in order of time.
type Google2011 struct {
	timeUs   int64
	machines map[int64]*machine2011
	// constraints of a task are those of its last batch.
	constraints map[task2011ID]*constraints2011
	tasks       map[task2011ID]*task2011
	// beyond: the replay has come to the moment. What follows only says what
	// tasks ask for that had not said so by then: unknown counts them.
	beyond  bool
	unknown int
	lastUs  int64
	// firstUs is when the first machine was there; negative: none was.
	firstUs int64
	// What could not be taken as it was.
	bad, badRows, missing, learned int
	// skipBad: rows that cannot be read are left out.
	skipBad bool
	// follow is what happens after the moment; nil: nobody asks.
	follow *following
	// named counts the jobs of ours that were made of one of the trace.
	named map[int64]int
	// largest is the machine of which amounts are shares.
	largest Largest
	// begin makes a job of ours of tasks of one of the trace, as yet without them;
	// machineNamed names machines.
	begin        func(first row2011) Job
	machineNamed func(id int64) string
	// allocOf names the alloc that a task is in; empty: nobody says.
	allocOf func(t *task2011) string
	kept    ledger
}

// More bad rows of a file than so many, and than one in a hundred, are no faults:
// it is another file.
const fewBadRows = 20

// SkipBadRows leaves rows out that cannot be read, and notes how many.
func (g *Google2011) SkipBadRows() { g.skipBad = true }

// lenient lets a table have bad rows.
func (g *Google2011) lenient(r *rows) *rows {
	if !g.skipBad {
		return r
	}
	g.badRows = 0
	r.skip = func(e *Error) bool {
		if g.badRows++; g.badRows > fewBadRows && g.badRows > e.Line/100 {
			return false
		}
		g.bad++
		return true
	}
	return r
}

type machine2011 struct {
	platform, rack string
	cpu, mem       float64
	// here: it is in the cell.
	here       bool
	attributes map[string]string
}

type task2011ID struct {
	job   int64
	index int32
}

type task2011 struct {
	user  string
	class int8
	// priority is ours.
	priority int16
	// different: no two tasks of the job on one machine.
	different bool
	// machine is zero while it waits.
	machine int64
	// cpu and mem are negative as long as nothing was said.
	cpu, mem float64
	// constraints that came with the task itself, as in the trace of 2019.
	constraints []*borgpb.Constraint
	// alloc and allocIndex are the alloc that it is in; zero: none.
	alloc      int64
	allocIndex int32
}

type constraints2011 struct {
	timeUs int64
	list   []*borgpb.Constraint
}

const (
	maxID2011    = math.MaxInt64
	maxIndex2011 = 99_999
	// What was asked for and offered is at most a machine; some more is let pass.
	maxShare2011 = 16
	// A cell takes no longer names and no more of them.
	maxKeyBytes, maxValueBytes        = 63, 255
	maxAttributes, maxConstraints2011 = 60, 32
	maxRequests2011                   = 1000
)

// Events, as numbered in task_events.
const (
	submit2011 = iota
	schedule2011
	evict2011
	fail2011
	finish2011
	kill2011
	lost2011
	updatePending2011
	updateRunning2011
)

// NewGoogle2011 makes an empty replay up to timeUs, in the trace's own time:
// zero is what was there when the trace began.
func NewGoogle2011(timeUs int64) *Google2011 {
	g := &Google2011{
		timeUs: timeUs, machines: make(map[int64]*machine2011),
		constraints: make(map[task2011ID]*constraints2011), tasks: make(map[task2011ID]*task2011), named: make(map[int64]int),
		largest: defaultLargest, machineNamed: machineName,
	}
	users := make(map[string]string)
	g.begin = func(first row2011) Job {
		user := users[first.t.user]
		if user == "" {
			user = hashedUser(len(users))
			users[first.t.user] = user
		}
		return Job{User: user, Name: g.jobName(first.id.job), Spec: jobSpec2011(first.t)}
	}
	return g
}

// hashedUser is the name of a user after n others of whom there is only a hash.
func hashedUser(n int) string { return "user-" + strconv.Itoa(n+1) }

// complete: what is further on in task_events says nothing of the moment.
func (g *Google2011) complete() bool {
	return g.beyond && g.unknown == 0 && (g.follow == nil || g.lastUs > g.follow.untilUs)
}

// ReadMachineEvents reads machine_events.
func (g *Google2011) ReadMachineEvents(file string, in io.Reader) error {
	const timeUs, id, event, platform, cpu, mem = 0, 1, 2, 3, 4, 5
	g.kept.from(in)
	r := g.lenient(newRows(file, in, "time", "machine ID", "event type", "platform ID", "CPUs", "Memory"))
	for r.next() {
		now := r.integer(timeUs, 0, math.MaxInt64)
		if now > g.timeUs && (g.follow == nil || now > g.follow.untilUs) {
			break
		}
		name := r.text(platform)
		if len(name) > maxValueBytes {
			r.fail(platform, "%s has %d bytes, want at most %d", brief(name), len(name), maxValueBytes)
		}
		machine, what := r.integer(id, 1, maxID2011), r.integer(event, 0, 2)
		cpuShare, hasCPU := r.maybeShare(cpu, 1)
		memShare, hasMem := r.maybeShare(mem, 1)
		if r.err != nil {
			continue
		}
		r.keep(&g.kept, keptItemBytes)
		e := machineEvent2011{atUs: now, id: machine, what: what, platform: g.kept.text(name), cpu: -1, mem: -1}
		if hasCPU {
			e.cpu = cpuShare
		}
		if hasMem {
			e.mem = memShare
		}
		g.machineEvent(&e)
	}
	return r.err
}

// machineEvent takes in what happened to a machine.
func (g *Google2011) machineEvent(e *machineEvent2011) {
	if e.atUs > g.timeUs {
		g.follow.machines = append(g.follow.machines, *e)
		return
	}
	m := g.machine(e.id)
	m.hear(e)
	if e.what == 0 {
		g.firstUs = earliest(g.firstUs, e.atUs)
	}
	// ADD, REMOVE, UPDATE.
	switch e.what {
	case 0:
		m.here = true
	case 1:
		m.here = false
	}
}

// hear takes in what is said of a machine. Blank on a few rows: what was said last
// stays.
func (m *machine2011) hear(e *machineEvent2011) {
	if e.platform != "" {
		m.platform = e.platform
	}
	if e.rack != "" {
		m.rack = e.rack
	}
	if e.cpu >= 0 {
		m.cpu = e.cpu
	}
	if e.mem >= 0 {
		m.mem = e.mem
	}
}

func (g *Google2011) machine(id int64) *machine2011 {
	m := g.machines[id]
	if m == nil {
		m = &machine2011{}
		g.machines[id] = m
	}
	return m
}

// ReadMachineAttributes reads machine_attributes. Names and most values are
// hashes: only whether two are the same has a meaning.
func (g *Google2011) ReadMachineAttributes(file string, in io.Reader) error {
	const timeUs, id, name, value, deleted = 0, 1, 2, 3, 4
	g.kept.from(in)
	r := g.lenient(newRows(file, in, "time", "machine ID", "attribute name", "attribute value", "attribute deleted"))
	for r.next() {
		if r.integer(timeUs, 0, math.MaxInt64) > g.timeUs {
			break
		}
		machine, gone := r.integer(id, 1, maxID2011), r.integer(deleted, 0, 1)
		key, is := g.attribute(r, name, value)
		r.keep(&g.kept, keptItemBytes)
		if r.err != nil {
			continue
		}
		m := g.machine(machine)
		if gone == 1 {
			delete(m.attributes, key)
			continue
		}
		if m.attributes == nil {
			m.attributes = make(map[string]string)
		}
		if _, has := m.attributes[key]; !has && len(m.attributes) == maxAttributes {
			r.failLine("machine %d has more than %d attributes", machine, maxAttributes)
			continue
		}
		m.attributes[key] = is
	}
	return r.err
}

// attribute reads a name and its value.
func (g *Google2011) attribute(r *rows, name, value int) (key, is string) {
	key, is = r.text(name), r.text(value)
	if len(key) == 0 || len(key) > maxKeyBytes {
		r.fail(name, "%s has %d bytes, want 1 to %d", brief(key), len(key), maxKeyBytes)
	}
	if len(is) > maxValueBytes {
		r.fail(value, "%s has %d bytes, want at most %d", brief(is), len(is), maxValueBytes)
	}
	return g.kept.text(key), g.kept.text(is)
}

// ReadTaskConstraints reads task_constraints. Some copies have the operator
// last; the first row tells.
func (g *Google2011) ReadTaskConstraints(file string, in io.Reader) error {
	const timeUs, job, index = 0, 1, 2
	operator, name, value := 3, 4, 5
	g.kept.from(in)
	r := g.lenient(newRows(file, in, "time", "job ID", "task index", "comparison operator", "attribute name", "attribute value"))
	for r.next() {
		if r.line == 1 && !isOperator(r.text(3)) && isOperator(r.text(5)) {
			operator, name, value = 5, 3, 4
			r.columns = []string{"time", "job ID", "task index", "attribute name", "attribute value", "comparison operator"}
		}
		now := r.integer(timeUs, 0, math.MaxInt64)
		if now > g.timeUs {
			break
		}
		id := g.id(r, job, index)
		key, is := g.attribute(r, name, value)
		k := &borgpb.Constraint{Key: key, Value: is}
		switch r.integer(operator, 0, 3) {
		case 0:
			k.Relation = borgpb.Relation_RELATION_EQUAL
			if is == "" {
				k.Relation = borgpb.Relation_RELATION_NOT_PRESENT
			}
		case 1:
			k.Relation = borgpb.Relation_RELATION_NOT_EQUAL
			if is == "" {
				k.Relation = borgpb.Relation_RELATION_PRESENT
			}
		case 2:
			k.Relation = borgpb.Relation_RELATION_LESS_THAN
			r.integer(value, math.MinInt64, math.MaxInt64)
		case 3:
			k.Relation = borgpb.Relation_RELATION_GREATER_THAN
			r.integer(value, math.MinInt64, math.MaxInt64)
		}
		r.keep(&g.kept, keptItemBytes)
		if r.err != nil {
			continue
		}
		// A later batch takes the place of an earlier one.
		batch := g.constraints[id]
		if batch == nil || batch.timeUs != now {
			batch = &constraints2011{timeUs: now}
			g.constraints[id] = batch
		}
		if len(batch.list) == maxConstraints2011 {
			r.failLine("task %d of job %d has more than %d constraints", id.index, id.job, maxConstraints2011)
			continue
		}
		batch.list = append(batch.list, k)
	}
	return r.err
}

func isOperator(text string) bool { return len(text) == 1 && text[0] >= '0' && text[0] <= '3' }

func (g *Google2011) id(r *rows, job, index int) task2011ID {
	return task2011ID{r.integer(job, 1, maxID2011), int32(r.integer(index, 0, maxIndex2011))}
}

// ReadTaskEvents reads one part of task_events. It ends early when the rest
// cannot matter.
func (g *Google2011) ReadTaskEvents(file string, in io.Reader) error {
	const timeUs, missing, job, index, machine, event, user, class, priority, cpu, mem, disk, different = 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12
	g.kept.from(in)
	r := g.lenient(newRows(file, in, "time", "missing info", "job ID", "task index", "machine ID", "event type", "user", "scheduling class",
		"priority", "CPU request", "memory request", "disk space request", "different machines restriction"))
	for !g.complete() && r.next() {
		now := r.integer(timeUs, 0, math.MaxInt64)
		if r.err == nil && now < g.lastUs {
			r.skip = nil
			r.fail(timeUs, "%d comes after %d: the parts have to be read in order of time", now, g.lastUs)
			break
		}
		id := g.id(r, job, index)
		what := r.integer(event, submit2011, updateRunning2011)
		at, _ := r.maybeInteger(machine, 0, maxID2011)
		_, isMissing := r.maybeInteger(missing, 0, 2)
		r.maybeShare(disk, maxShare2011)
		said := task2011{user: g.kept.text(r.text(user)), cpu: -1, mem: -1}
		v, _ := r.maybeInteger(class, 0, 3)
		said.class = int8(v)
		said.priority = r.priority2011(priority)
		v, _ = r.maybeInteger(different, 0, 1)
		said.different = v == 1
		if share, ok := r.maybeShare(cpu, maxShare2011); ok {
			said.cpu = share
		}
		if share, ok := r.maybeShare(mem, maxShare2011); ok {
			said.mem = share
		}
		if r.err != nil {
			continue
		}
		if isMissing && now <= g.readUntilUs() {
			g.missing++
		}
		before := len(g.tasks)
		g.take(now, id, what, at, &said)
		if len(g.tasks) > before || g.follow != nil && g.beyond {
			r.keep(&g.kept, 2*keptItemBytes)
		}
	}
	return r.err
}

// readUntilUs is up to where what happens counts.
func (g *Google2011) readUntilUs() int64 {
	if g.follow != nil {
		return g.follow.untilUs
	}
	return g.timeUs
}

// take takes in one event of a task; they come in order of time.
func (g *Google2011) take(now int64, id task2011ID, what, machine int64, said *task2011) {
	g.lastUs = now
	if now > g.timeUs && !g.beyond {
		g.stop()
	}
	if !g.beyond {
		g.replay(id, what, machine, said)
		return
	}
	g.learn(id, said)
	if g.follow != nil && now <= g.follow.untilUs {
		g.follow.event(now, id, what, said)
	}
}

// replay takes in one event.
func (g *Google2011) replay(id task2011ID, what, machine int64, said *task2011) {
	switch what {
	case evict2011, fail2011, finish2011, kill2011, lost2011:
		delete(g.tasks, id)
		return
	}
	t := g.tasks[id]
	if t == nil {
		t = &task2011{cpu: -1, mem: -1}
		g.tasks[id] = t
	}
	t.user, t.class, t.priority = said.user, said.class, said.priority
	t.different = t.different || said.different
	t.alloc = said.alloc
	t.hear(said)
	t.obey(what, said)
	switch what {
	case submit2011, updatePending2011:
		t.machine = 0
	case schedule2011, updateRunning2011:
		if machine != 0 {
			t.machine = machine
		}
		t.allocIndex = said.allocIndex
	}
}

// hear takes in what a task asks for; blank is not said.
func (t *task2011) hear(said *task2011) {
	if said.cpu >= 0 {
		t.cpu = said.cpu
	}
	if said.mem >= 0 {
		t.mem = said.mem
	}
}

// obey takes in the constraints that come with an event: a batch of them takes the
// place of the one before, and only who submits or updates may say that there are none.
func (t *task2011) obey(what int64, said *task2011) {
	if len(said.constraints) > 0 || what == submit2011 || what >= updatePending2011 {
		t.constraints = said.constraints
	}
}

func (t *task2011) known() bool { return t.cpu >= 0 && t.mem >= 0 }

// stop ends the replay at its moment.
func (g *Google2011) stop() {
	g.beyond = true
	for _, t := range g.tasks {
		if !t.known() {
			g.unknown++
		}
	}
	if g.follow != nil {
		g.follow.begin(g.tasks)
	}
}

// learn takes in what a task asked for that was there at the moment.
func (g *Google2011) learn(id task2011ID, said *task2011) {
	t := g.tasks[id]
	if t == nil || t.known() {
		return
	}
	t.hear(said)
	t.different = t.different || said.different
	if t.known() {
		g.unknown--
		g.learned++
	}
}

// Cell is the cell at the moment.
func (g *Google2011) Cell() (*Cell, error) {
	if !g.beyond {
		g.stop()
	}
	c := &Cell{}
	for _, n := range []struct {
		count int
		words string
	}{
		{g.bad, "rows left out, as they cannot be read"},
		{g.missing, "rows that Google made up, as it had missed something (missing info)"},
		{g.learned, "tasks whose request is of a later row"},
	} {
		if n.count > 0 {
			if c.Notes == nil {
				c.Notes = make(map[string]int)
			}
			c.Notes[n.words] = n.count
		}
	}
	for _, id := range slices.Sorted(maps.Keys(g.machines)) {
		m := g.machines[id]
		if !m.here {
			continue
		}
		c.Machines = append(c.Machines, g.machineOf(id, m))
	}
	all := g.rows(c)
	for len(all) > 0 {
		n := 1
		for n < len(all) && all[n].id.job == all[0].id.job {
			n++
		}
		g.jobs(c, all[:n])
		all = all[n:]
	}
	if g.follow != nil {
		g.followMachines(c)
		c.sortArrivals()
		c.LastNs = max(g.follow.untilUs-g.follow.fromUs, 0) * 1000
	}
	return c, nil
}

// machineOf is a machine as it is now.
func (g *Google2011) machineOf(id int64, m *machine2011) Machine {
	attributes := map[string]string{}
	maps.Copy(attributes, m.attributes)
	if m.platform != "" {
		attributes["platform"] = m.platform
	}
	if m.rack != "" {
		attributes["rack"] = m.rack
	}
	return Machine{Name: g.machineNamed(id), Spec: &borgpb.MachineSpec{
		Addr:      "127.0.0.1:7101",
		PortFirst: borgpb.TaskPortFirst, PortLast: borgpb.TaskPortLast,
		Capacity:   &borgpb.Resources{CpuMilli: offered(m.cpu, g.largest.CPUMilli), MemBytes: offered(m.mem, g.largest.MemBytes)},
		Attributes: attributes,
	}}
}

func machineName(id int64) string { return "m" + strconv.FormatInt(id, 10) }
