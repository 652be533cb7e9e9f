package trace

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"

	"borg/proto/borgpb"
)

// Tables is a cell in two tables of one's own.
//
// Machines have the columns machine, cpu (cores), mem (bytes, or with a suffix such
// as Gi), perhaps disk, and any others, which are attributes. Tasks have job
// ("user/name" or a name), cpu, mem, and perhaps disk, priority (0 to 450), kind
// (service, batch), machine (where it runs; empty: it waits) and count; submit, the second
// at which it arrives (empty: it is there), and run, how many seconds it runs then.
type Tables struct {
	machines []Machine
	known    map[string]bool
	names    *names
	tasks    map[tableJob][]tableTask
	cell     *Cell
	// timed: the tasks say when they come or how long they run.
	timed bool
	// bad is why the first row of the machines that was left out cannot be used.
	bad  *Error
	kept ledger
}

type tableJob struct {
	user, name string
	priority   int32
	batch      bool
	// submitNs is when it arrives; zero: it is there.
	submitNs int64
}

type tableTask struct {
	r       [3]int64
	machine string
	// runNs is how long it runs; zero: for ever.
	runNs int64
}

// LoadTables reads the table of machines and the one of tasks.
func LoadTables(machines, tasks string) (*Cell, error) {
	t := NewTables()
	if err := readFile(machines, t.ReadMachines); err != nil {
		return nil, err
	}
	if err := readFile(tasks, t.ReadTasks); err != nil {
		return nil, err
	}
	return t.Cell()
}

// NewTables makes an empty cell.
func NewTables() *Tables {
	return &Tables{known: make(map[string]bool), names: newNames(), tasks: make(map[tableJob][]tableTask), cell: &Cell{}}
}

// taskColumns are the columns of tasks, for people.
const taskColumns = "job, cpu, mem, disk, priority, kind, machine, count, submit, run"

// maxTableS is how late a task arrives and how long it runs, at most.
const maxTableS = 1_000_000_000

// defaultPriority is that of tasks which say none: production.
const defaultPriority = 200

// lenient notes rows that cannot be used and goes on with the next.
func (t *Tables) lenient(r *rows) *rows {
	r.skip = func(e *Error) bool {
		words := "rows left out, as they have another number of values than the head"
		if e.Name != "" {
			words = "rows left out, as what they have in the column " + e.Name + " cannot be"
		}
		t.cell.note(words)
		if e.Name != "" && len(t.machines) == 0 && t.bad == nil {
			t.bad = e
		}
		return true
	}
	return r
}

// ReadMachines reads the table of machines.
func (t *Tables) ReadMachines(file string, in io.Reader) error {
	t.kept.from(in)
	r := newHeadedRows(file, in)
	name, cpu, mem := r.column("machine", "machine_id", "name"), r.column("cpu"), r.column("mem", "memory")
	disk := r.optional("disk")
	if r.err != nil {
		return r.err
	}
	for t.lenient(r).next() {
		m := Machine{Spec: &borgpb.MachineSpec{
			Addr: "127.0.0.1:7101", PortFirst: borgpb.TaskPortFirst, PortLast: borgpb.TaskPortLast, Attributes: make(map[string]string),
		}}
		m.Spec.Capacity = &borgpb.Resources{CpuMilli: r.amount(cpu, 1000, false), MemBytes: r.amount(mem, 1, false)}
		if disk >= 0 {
			m.Spec.Capacity.DiskBytes = r.amount(disk, 1, false)
		}
		if theirs := r.text(name); theirs == "" || t.known[theirs] {
			r.fail(name, "%s is no name, or there is a machine of that name", brief(theirs))
		}
		r.keep(&t.kept, 2*keptItemBytes)
		if r.err != nil {
			continue
		}
		t.known[t.kept.text(r.text(name))] = true
		m.Name = t.names.name(t.kept.text(r.text(name)))
		more := make(map[string]string)
		for i, column := range r.columns {
			if i != name && i != cpu && i != mem && i != disk && r.fields[i] != "" {
				more[column] = t.kept.text(r.fields[i])
				r.keep(&t.kept, keptTextBytes)
			}
		}
		t.cell.attributes(m.Spec.Attributes, more, nil)
		t.machines = append(t.machines, m)
	}
	return r.err
}

// amount reads a quantity; empty is none.
func (r *rows) amount(column int, scale int64, up bool) int64 {
	if r.fields[column] == "" {
		return 0
	}
	n, err := quantity(r.fields[column], scale, up)
	if err != nil {
		r.fail(column, "%v", err)
	}
	return n
}

// ReadTasks reads the table of tasks.
func (t *Tables) ReadTasks(file string, in io.Reader) error {
	t.kept.from(in)
	r := newHeadedRows(file, in)
	job, cpu, mem := r.column("job"), r.column("cpu"), r.column("mem", "memory")
	disk, priority, kind, machine, count := r.optional("disk"), r.optional("priority"), r.optional("kind"), r.optional("machine"), r.optional("count")
	submit, run := r.optional("submit"), r.optional("run")
	if r.err != nil {
		return r.err
	}
	for i, column := range r.columns {
		if !slices.Contains([]int{job, cpu, mem, disk, priority, kind, machine, count, submit, run}, i) {
			t.cell.note("column " + brief(column) + " of the tasks: it is not known, and nothing of it was taken; known are " + taskColumns)
		}
	}
	for t.lenient(r).next() {
		j := tableJob{user: "imported", name: t.kept.text(r.text(job)), priority: defaultPriority}
		if user, name, ok := strings.Cut(j.name, "/"); ok {
			j.user, j.name = user, name
		}
		if j.name == "" {
			r.fail(job, "it is empty")
		}
		task := tableTask{r: [3]int64{r.amount(cpu, 1000, true), r.amount(mem, 1, true)}}
		if disk >= 0 {
			task.r[2] = r.amount(disk, 1, true)
		}
		n := int64(1)
		if count >= 0 {
			if v, ok := r.maybeInteger(count, 1, maxIndex2011); ok {
				n = v
			}
		}
		if priority >= 0 {
			if v, ok := r.maybeInteger(priority, 0, 450); ok {
				j.priority = int32(v)
			}
		}
		if kind >= 0 {
			switch r.text(kind) {
			case "", "service":
			case "batch":
				j.batch = true
			default:
				r.fail(kind, "%s is neither service nor batch", brief(r.text(kind)))
			}
		}
		if submit >= 0 {
			v, _ := r.maybeInteger(submit, 0, maxTableS)
			j.submitNs = v * secondNs
		}
		if run >= 0 {
			if v, ok := r.maybeInteger(run, 1, maxTableS); ok {
				// A service never ends.
				task.runNs, j.batch = v*secondNs, true
			}
		}
		r.keep(&t.kept, n*keptItemBytes)
		if r.err != nil {
			continue
		}
		t.timed = t.timed || submit >= 0 || run >= 0
		if machine >= 0 && r.text(machine) != "" && j.submitNs == 0 {
			task.machine = t.names.name(t.kept.text(r.text(machine)))
		}
		for range n {
			t.tasks[j] = append(t.tasks[j], task)
		}
	}
	return r.err
}

// Cell makes the cell.
func (t *Tables) Cell() (*Cell, error) {
	if len(t.machines) == 0 && t.bad != nil {
		return nil, fmt.Errorf("no machine can be used: %w", t.bad)
	}
	if len(t.machines) == 0 {
		return nil, fmt.Errorf("the table of machines has no row that can be used")
	}
	t.cell.Machines = t.machines
	keys := make([]tableJob, 0, len(t.tasks))
	for j := range t.tasks {
		keys = append(keys, j)
	}
	slices.SortFunc(keys, func(a, b tableJob) int {
		c := cmp.Or(strings.Compare(a.user, b.user), strings.Compare(a.name, b.name), cmp.Compare(a.priority, b.priority))
		if c == 0 && a.batch != b.batch && b.batch {
			return -1
		}
		return cmp.Or(c, cmp.Compare(a.submitNs, b.submitNs))
	})
	users, used := newNames(), make(map[string]*names)
	for _, key := range keys {
		user := users.name(key.user)
		if used[user] == nil {
			used[user] = newNames()
		}
		all := t.tasks[key]
		slices.SortStableFunc(all, func(a, b tableTask) int { return slices.Compare(a.r[:], b.r[:]) })
		for len(all) > 0 {
			j := Job{User: user, Name: used[user].another(key.name), Spec: &borgpb.JobSpec{Kind: borgpb.JobKind_JOB_KIND_SERVICE, Priority: key.priority}}
			if key.batch {
				j.Spec.Kind = borgpb.JobKind_JOB_KIND_BATCH
			}
			j.Spec.Task = &borgpb.TaskSpec{Args: placeholder, Resources: all[0].resources()}
			n := 0
			for n < len(all) && n < t.mostTasks() {
				switch {
				case all[n].r == all[0].r:
				case all[n].r == all[n-1].r:
					j.Spec.Overrides[len(j.Spec.Overrides)-1].Last = uint32(n)
				case len(j.Spec.Overrides) < maxOverrides:
					j.Spec.Overrides = append(j.Spec.Overrides, &borgpb.TaskOverride{First: uint32(n), Last: uint32(n), Spec: &borgpb.TaskSpec{Resources: all[n].resources()}})
				}
				if len(j.Spec.Overrides) == maxOverrides && all[n].r != all[max(n-1, 0)].r && j.Spec.Overrides[maxOverrides-1].First != uint32(n) {
					break
				}
				j.Machines = append(j.Machines, all[n].machine)
				n++
			}
			j.Spec.Tasks = uint32(n)
			t.add(j, key.submitNs, all[:n])
			all = all[n:]
		}
	}
	t.cell.sortArrivals()
	return t.cell, nil
}

// mostTasks is how many tasks one job has at most: one that tells what becomes of each
// has room for fewer.
func (t *Tables) mostTasks() int {
	if t.timed {
		return maxHistoryBytes / 24
	}
	return maxIndex2011 + 1
}

// add takes a job that is there, or arrives.
func (t *Tables) add(j Job, submitNs int64, tasks []tableTask) {
	c := t.cell
	if !t.timed {
		c.Jobs = append(c.Jobs, j)
		return
	}
	histories := make([]History, len(tasks))
	for i, o := range tasks {
		r := Run{End: Ongoing}
		if o.runNs > 0 {
			r = Run{End: Finished, RunNs: o.runNs}
		}
		c.LastNs = max(c.LastNs, submitNs+o.runNs, 1)
		histories[i] = History{Runs: []Run{r}}
	}
	SetHistories(j.Spec, histories)
	if submitNs == 0 {
		c.Jobs = append(c.Jobs, j)
	} else {
		c.Arrivals = append(c.Arrivals, Arrival{AtNs: submitNs, Op: j.Op(), Histories: histories})
	}
}

func (t *tableTask) resources() *borgpb.Resources {
	return &borgpb.Resources{CpuMilli: t.r[0], MemBytes: t.r[1], DiskBytes: t.r[2]}
}
