package trace

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"google.golang.org/protobuf/proto"

	"borg/proto/borgpb"
)

// Nomad is a cluster as Nomad's API tells it: nodes become machines, allocations
// tasks of jobs that are called after job and task group. A megahertz is a
// thousandth of a core of ours: Nomad counts CPU so, and nothing else would keep
// what fits the same.
type Nomad struct {
	nodes  []nomadNode
	allocs []nomadAlloc
	jobs   map[nomadJobID]*nomadJob
	cell   *Cell
	// asked are the attributes that some constraint names; nodes have more than a
	// machine may.
	asked map[string]bool
	kept  ledger
}

type nomadJobID struct{ namespace, id string }

type nomadNode struct {
	ID, Name, Datacenter, NodeClass, NodePool, Status, SchedulingEligibility string

	Drain             bool
	Attributes, Meta  map[string]string
	NodeResources     *nomadResources
	ReservedResources *nomadResources
	// Before Nomad 0.9.
	Resources, Reserved *nomadOld
}

type nomadResources struct {
	CPU     struct{ CPUShares int64 }
	Memory  struct{ MemoryMB int64 }
	Disk    struct{ DiskMB int64 }
	Devices []struct {
		Vendor, Type, Name string
		Instances          []json.RawMessage
	}
}

type nomadOld struct{ CPU, MemoryMB, DiskMB int64 }

type nomadAlloc struct {
	ID, Namespace, Name, NodeID, NodeName, JobID, TaskGroup, DesiredStatus, ClientStatus string

	Job                *nomadJob
	AllocatedResources *struct {
		Tasks map[string]struct {
			CPU     struct{ CPUShares int64 }
			Memory  struct{ MemoryMB int64 }
			Devices []struct {
				Vendor, Type, Name string
				DeviceIDs          []string
			}
		}
		Shared struct{ DiskMB int64 }
	}
	Resources *nomadOld
}

type nomadJob struct {
	ID, Namespace, Type string

	Stop        bool
	Status      string
	Priority    int64
	Datacenters []string
	Constraints []nomadConstraint
	Affinities  []json.RawMessage
	Spreads     []json.RawMessage
	TaskGroups  []nomadGroup
}

type nomadGroup struct {
	Name                string
	Count               *int64
	Constraints         []nomadConstraint
	Affinities, Spreads []json.RawMessage
	EphemeralDisk       *struct{ SizeMB int64 }
	Tasks               []struct {
		Constraints []nomadConstraint
		Resources   *nomadOld
	}
}

type nomadConstraint struct{ LTarget, RTarget, Operand string }

// LoadNomad reads what /v1/nodes?resources=true (or /v1/node/ID of each),
// /v1/allocations?resources=true and /v1/jobs (or /v1/job/ID of each) said, in any
// order.
func LoadNomad(files ...string) (*Cell, error) {
	n := NewNomad()
	for _, file := range files {
		if err := readFile(file, n.Read); err != nil {
			return nil, err
		}
	}
	return n.Cell()
}

// NewNomad makes an empty cluster.
func NewNomad() *Nomad {
	return &Nomad{jobs: make(map[nomadJobID]*nomadJob), cell: &Cell{}, asked: make(map[string]bool)}
}

// Read reads one file. What an object is follows from what it has.
func (n *Nomad) Read(file string, in io.Reader) error {
	n.kept.from(in)
	return eachItem(file, in, func(raw json.RawMessage) error {
		var has map[string]json.RawMessage
		if json.Unmarshal(raw, &has) != nil {
			return fmt.Errorf("%s is no object of Nomad", brief(string(raw)))
		}
		_, group := has["TaskGroup"]
		_, eligible := has["SchedulingEligibility"]
		_, resources := has["NodeResources"]
		_, groups := has["TaskGroups"]
		_, summary := has["JobSummary"]
		switch {
		case group:
			var a nomadAlloc
			if err := json.Unmarshal(raw, &a); err != nil {
				return fmt.Errorf("an allocation: %w", err)
			}
			if err := n.kept.item(&a); err != nil {
				return fmt.Errorf("allocation %s: %w", brief(a.ID), err)
			}
			n.allocs = append(n.allocs, a)
		case eligible || resources:
			var o nomadNode
			if err := json.Unmarshal(raw, &o); err != nil {
				return fmt.Errorf("a node: %w", err)
			}
			nomadNodeObject.count(n.cell, raw)
			if err := n.kept.item(&o); err != nil {
				return fmt.Errorf("node %s: %w", brief(o.Name), err)
			}
			n.nodes = append(n.nodes, o)
		case groups || summary:
			var j nomadJob
			if err := json.Unmarshal(raw, &j); err != nil {
				return fmt.Errorf("a job: %w", err)
			}
			nomadJobObject.count(n.cell, raw)
			if err := n.kept.item(&j); err != nil {
				return fmt.Errorf("job %s: %w", brief(j.ID), err)
			}
			n.job(&j)
		default:
			n.cell.note("objects that are no node, allocation or job")
		}
		return nil
	})
}

// job keeps the one that says most.
func (n *Nomad) job(j *nomadJob) {
	id := nomadJobID{cmp.Or(j.Namespace, "default"), j.ID}
	if have := n.jobs[id]; have == nil || len(have.TaskGroups) == 0 {
		n.jobs[id] = j
	}
}

// Cell makes the cell.
func (n *Nomad) Cell() (*Cell, error) {
	if len(n.nodes) == 0 {
		return nil, fmt.Errorf("there is no node in it: want the answers of Nomad's API to /v1/nodes?resources=true and /v1/allocations?resources=true")
	}
	for i := range n.allocs {
		if a := &n.allocs[i]; a.Job != nil {
			a.Job.ID, a.Job.Namespace = a.JobID, a.Namespace
			n.job(a.Job)
		}
	}
	for _, j := range n.jobs {
		for _, c := range j.all() {
			if key, ok := nomadAttribute(c.LTarget); ok {
				n.asked[key] = true
			}
		}
	}
	machines, ids := newNames(), make(map[string]string)
	slices.SortStableFunc(n.nodes, func(a, b nomadNode) int {
		return cmp.Or(strings.Compare(a.Name, b.Name), strings.Compare(a.ID, b.ID))
	})
	for i := range n.nodes {
		o := &n.nodes[i]
		// Two nodes may share a name.
		m := n.machine(o, machines.another(cmp.Or(o.Name, o.ID)))
		ids[o.ID] = m.Name
		n.cell.Machines = append(n.cell.Machines, m)
	}
	if err := n.groups(ids); err != nil {
		return nil, err
	}
	return n.cell, nil
}

// all are the constraints of a job, wherever they stand.
func (j *nomadJob) all() []nomadConstraint {
	all := slices.Clone(j.Constraints)
	for _, g := range j.TaskGroups {
		all = append(all, g.all()...)
	}
	return all
}

func (g *nomadGroup) all() []nomadConstraint {
	all := slices.Clone(g.Constraints)
	for _, t := range g.Tasks {
		all = append(all, t.Constraints...)
	}
	return all
}

const mebibyte = 1 << 20

func (n *Nomad) machine(o *nomadNode, name string) Machine {
	capacity := &borgpb.Resources{}
	switch {
	case o.NodeResources != nil:
		r := o.NodeResources
		capacity.CpuMilli, capacity.MemBytes, capacity.DiskBytes = r.CPU.CPUShares, r.Memory.MemoryMB*mebibyte, r.Disk.DiskMB*mebibyte
		for _, d := range r.Devices {
			if capacity.Devices == nil {
				capacity.Devices = make(map[string]int64)
			}
			capacity.Devices[label(d.Type)] += int64(len(d.Instances))
		}
		if s := o.ReservedResources; s != nil {
			capacity.CpuMilli -= s.CPU.CPUShares
			capacity.MemBytes -= s.Memory.MemoryMB * mebibyte
			capacity.DiskBytes -= s.Disk.DiskMB * mebibyte
		}
	case o.Resources != nil:
		capacity.CpuMilli, capacity.MemBytes, capacity.DiskBytes = o.Resources.CPU, o.Resources.MemoryMB*mebibyte, o.Resources.DiskMB*mebibyte
		if s := o.Reserved; s != nil {
			capacity.CpuMilli -= s.CPU
			capacity.MemBytes -= s.MemoryMB * mebibyte
			capacity.DiskBytes -= s.DiskMB * mebibyte
		}
	default:
		n.cell.note("nodes that do not say what they have: ask for /v1/nodes?resources=true")
	}
	capacity.CpuMilli, capacity.MemBytes, capacity.DiskBytes = max(capacity.CpuMilli, 0), max(capacity.MemBytes, 0), max(capacity.DiskBytes, 0)
	m := Machine{Name: name, Spec: &borgpb.MachineSpec{Addr: "127.0.0.1:7101", Capacity: capacity, Attributes: map[string]string{
		nodeAttribute: o.Name,
	}}, Down: o.Status != "" && o.Status != "ready", Draining: o.Drain}
	for key, v := range map[string]string{"datacenter": o.Datacenter, "class": o.NodeClass, "pool": o.NodePool, "rack": o.Meta["rack"]} {
		if v != "" && len(v) <= maxValueBytes {
			m.Spec.Attributes[key] = v
		}
	}
	more := make(map[string]string)
	for _, of := range []struct {
		prefix string
		all    map[string]string
	}{{"attr.", o.Attributes}, {"meta.", o.Meta}} {
		for key, v := range of.all {
			if n.asked[of.prefix+key] {
				more[of.prefix+key] = v
			}
		}
	}
	n.cell.attributes(m.Spec.Attributes, more, n.asked)
	if o.SchedulingEligibility == "ineligible" && !o.Drain {
		m.Spec.Taints = append(m.Spec.Taints, &borgpb.Taint{Key: "ineligible"})
	}
	return m
}

// nomadAttribute is what a target is called among our attributes.
func nomadAttribute(target string) (key string, ok bool) {
	inner, ok := strings.CutPrefix(target, "${")
	inner, closed := strings.CutSuffix(inner, "}")
	if !ok || !closed {
		return "", false
	}
	switch {
	case inner == "node.datacenter":
		return "datacenter", true
	case inner == "node.class":
		return "class", true
	case inner == "node.pool":
		return "pool", true
	case inner == "node.unique.name":
		return nodeAttribute, true
	case strings.HasPrefix(inner, "attr."), strings.HasPrefix(inner, "meta."):
		return inner, true
	}
	return "", false
}

// groups makes a job of each task group: its allocations, and what is missing of
// its count.
func (n *Nomad) groups(machines map[string]string) error {
	type groupID struct {
		job   nomadJobID
		group string
	}
	live := make(map[groupID][]*nomadAlloc)
	for i := range n.allocs {
		a := &n.allocs[i]
		switch {
		case a.ClientStatus == "complete" || a.ClientStatus == "failed" || a.ClientStatus == "lost":
			n.cell.note("allocations that have ended")
		case a.DesiredStatus == "stop" || a.DesiredStatus == "evict":
			n.cell.note("allocations that are being stopped")
		default:
			id := groupID{nomadJobID{cmp.Or(a.Namespace, "default"), a.JobID}, a.TaskGroup}
			live[id] = append(live[id], a)
		}
	}
	for id, j := range n.jobs {
		for i := range j.TaskGroups {
			if g := (groupID{id, j.TaskGroups[i].Name}); live[g] == nil && !j.Stop && j.Status != "dead" {
				live[g] = nil
			}
		}
	}
	var ids []groupID
	for id := range live {
		ids = append(ids, id)
	}
	slices.SortFunc(ids, func(a, b groupID) int {
		return cmp.Or(strings.Compare(a.job.namespace, b.job.namespace), strings.Compare(a.job.id, b.job.id), strings.Compare(a.group, b.group))
	})
	users, used := newNames(), make(map[string]*names)
	for _, id := range ids {
		user := users.name(id.job.namespace)
		if used[user] == nil {
			used[user] = newNames()
		}
		if err := n.group(user, used[user], id.job, id.group, live[id], machines); err != nil {
			return fmt.Errorf("group %s of job %s: %w", brief(id.group), brief(id.job.id), err)
		}
	}
	return nil
}

func (n *Nomad) group(user string, used *names, id nomadJobID, group string, live []*nomadAlloc, machines map[string]string) error {
	spec := &borgpb.JobSpec{Kind: borgpb.JobKind_JOB_KIND_SERVICE, Priority: 250, Task: &borgpb.TaskSpec{Args: placeholder}}
	var g *nomadGroup
	system := false
	if j := n.jobs[id]; j != nil {
		system = j.Type == "system" || j.Type == "sysbatch"
		if j.Type == "sysbatch" {
			n.cell.note("allocations of sysbatch jobs, which run once on each node: here they are tasks of a batch job")
		}
		n.like(spec, j)
		for i := range j.TaskGroups {
			if j.TaskGroups[i].Name == group {
				g = &j.TaskGroups[i]
			}
		}
		n.constrain(spec, j.Constraints)
		n.datacenters(spec, j.Datacenters)
		if len(j.Affinities)+len(j.Spreads) > 0 {
			n.cell.note("jobs with affinities or spreads")
		}
	} else {
		n.cell.note("allocations of jobs that are not there: priority 50 and no constraints")
	}
	if g != nil {
		n.constrain(spec, g.all())
		if len(g.Affinities)+len(g.Spreads) > 0 {
			n.cell.note("task groups with affinities or spreads")
		}
	}
	type task struct {
		r       *borgpb.Resources
		machine string
	}
	var tasks []task
	for _, a := range live {
		machine, ok := machines[a.NodeID]
		if !ok && a.NodeID != "" {
			machine = label(cmp.Or(a.NodeName, a.NodeID))
		}
		tasks = append(tasks, task{n.allocated(a, g), machine})
	}
	if g != nil && g.Count != nil && !system {
		missing := max(min(*g.Count, maxIndex2011)-int64(len(tasks)), 0)
		if err := n.kept.room(missing * keptItemBytes); err != nil {
			return err
		}
		n.kept.add(missing * keptItemBytes)
		for len(tasks) < int(min(*g.Count, maxIndex2011)) {
			tasks = append(tasks, task{n.wanted(g), ""})
		}
	}
	if len(tasks) == 0 {
		return nil
	}
	if j := n.jobs[id]; j != nil && j.Type == "system" {
		var daemons []kubeTask
		for _, t := range tasks {
			of := proto.CloneOf(spec.Task)
			of.Resources = t.r
			daemons = append(daemons, kubeTask{spec: of, machine: t.machine})
		}
		n.cell.Jobs = append(n.cell.Jobs, n.cell.daemon(user, used.another(id.id+"-"+group), spec, daemons))
		return nil
	}
	words := func(r *borgpb.Resources) string {
		return fmt.Sprint(r.CpuMilli, r.MemBytes, r.DiskBytes, r.Devices)
	}
	slices.SortStableFunc(tasks, func(a, b task) int { return strings.Compare(words(a.r), words(b.r)) })
	name := used.another(id.id + "-" + group)
	j := Job{User: user, Name: name, Spec: spec}
	spec.Task.Resources = tasks[0].r
	for i, t := range tasks {
		switch {
		case words(t.r) == words(tasks[0].r):
		case words(t.r) == words(tasks[i-1].r):
			spec.Overrides[len(spec.Overrides)-1].Last = uint32(i)
		case len(spec.Overrides) == maxOverrides:
			n.cell.note("allocations beyond 900 different sizes of one task group: taken as the last of these")
			spec.Overrides[len(spec.Overrides)-1].Last = uint32(i)
		default:
			spec.Overrides = append(spec.Overrides, &borgpb.TaskOverride{First: uint32(i), Last: uint32(i), Spec: &borgpb.TaskSpec{Resources: t.r}})
		}
		j.Machines = append(j.Machines, t.machine)
	}
	spec.Tasks = uint32(len(tasks))
	n.cell.Jobs = append(n.cell.Jobs, j)
	return nil
}

// like gives a job kind and priority: batch jobs are in the batch band, all others
// in production, in the order of their priorities from 1 to 100.
func (n *Nomad) like(spec *borgpb.JobSpec, j *nomadJob) {
	p := min(max(j.Priority, 0), 100)
	switch j.Type {
	case "batch", "sysbatch":
		spec.Kind, spec.Priority = borgpb.JobKind_JOB_KIND_BATCH, int32(100+p*15/100)
	default:
		spec.Priority = int32(200 + p)
	}
}

// datacenters: any of some is none of the others.
func (n *Nomad) datacenters(spec *borgpb.JobSpec, wanted []string) {
	if len(wanted) == 0 || slices.Contains(wanted, "*") {
		return
	}
	if slices.ContainsFunc(wanted, func(d string) bool { return strings.ContainsAny(d, "*?[") }) {
		n.cell.note("jobs with patterns of datacenters: any will do")
		return
	}
	var others []string
	for i := range n.nodes {
		if d := n.nodes[i].Datacenter; !slices.Contains(wanted, d) && !slices.Contains(others, d) {
			others = append(others, d)
		}
	}
	slices.Sort(others)
	for _, d := range others[:min(len(others), maxConstraints2011)] {
		spec.Task.Constraints = append(spec.Task.Constraints, &borgpb.Constraint{Key: "datacenter", Relation: borgpb.Relation_RELATION_NOT_EQUAL, Value: d})
	}
}

var nomadRelations = map[string]borgpb.Relation{
	"": borgpb.Relation_RELATION_EQUAL, "=": borgpb.Relation_RELATION_EQUAL, "==": borgpb.Relation_RELATION_EQUAL, "is": borgpb.Relation_RELATION_EQUAL,
	"!=": borgpb.Relation_RELATION_NOT_EQUAL, "not": borgpb.Relation_RELATION_NOT_EQUAL,
	"<": borgpb.Relation_RELATION_LESS_THAN, "<=": borgpb.Relation_RELATION_LESS_THAN_EQUAL,
	">": borgpb.Relation_RELATION_GREATER_THAN, ">=": borgpb.Relation_RELATION_GREATER_THAN_EQUAL,
	"is_set": borgpb.Relation_RELATION_PRESENT, "is_not_set": borgpb.Relation_RELATION_NOT_PRESENT,
}

func (n *Nomad) constrain(spec *borgpb.JobSpec, all []nomadConstraint) {
	for _, c := range all {
		if c.Operand == "distinct_hosts" {
			if c.RTarget != "false" {
				spec.MaxPerMachine = 1
			}
			continue
		}
		relation, known := nomadRelations[c.Operand]
		key, ok := nomadAttribute(c.LTarget)
		if c.Operand == "distinct_property" && key == "meta.rack" {
			most, err := strconv.ParseUint(cmp.Or(c.RTarget, "1"), 10, 31)
			if err == nil && most > 0 {
				spec.MaxPerRack = uint32(most)
				continue
			}
		}
		if !known || !ok || len(spec.Task.Constraints) >= maxConstraints2011 || len(key) > maxKeyBytes || len(c.RTarget) > maxValueBytes {
			n.cell.note("constraints with " + brief(cmp.Or(c.Operand, "=")) + ", or of what machines do not say")
			continue
		}
		spec.Task.Constraints = append(spec.Task.Constraints, &borgpb.Constraint{Key: key, Relation: relation, Value: c.RTarget})
	}
}

// allocated is what an allocation has; where it does not say, what its group asks
// for.
func (n *Nomad) allocated(a *nomadAlloc, g *nomadGroup) *borgpb.Resources {
	r := &borgpb.Resources{}
	switch {
	case a.AllocatedResources != nil:
		for _, t := range a.AllocatedResources.Tasks {
			r.CpuMilli += t.CPU.CPUShares
			r.MemBytes += t.Memory.MemoryMB * mebibyte
			for _, d := range t.Devices {
				if r.Devices == nil {
					r.Devices = make(map[string]int64)
				}
				r.Devices[label(d.Type)] += int64(len(d.DeviceIDs))
			}
		}
		r.DiskBytes = a.AllocatedResources.Shared.DiskMB * mebibyte
	case a.Resources != nil:
		r.CpuMilli, r.MemBytes, r.DiskBytes = a.Resources.CPU, a.Resources.MemoryMB*mebibyte, a.Resources.DiskMB*mebibyte
	case g != nil:
		return n.wanted(g)
	default:
		n.cell.note("allocations that do not say what they have: ask for /v1/allocations?resources=true")
	}
	return r
}

// wanted is what a task group asks for.
func (n *Nomad) wanted(g *nomadGroup) *borgpb.Resources {
	r := &borgpb.Resources{}
	for _, t := range g.Tasks {
		if t.Resources != nil {
			r.CpuMilli += t.Resources.CPU
			r.MemBytes += t.Resources.MemoryMB * mebibyte
		}
	}
	if g.EphemeralDisk != nil {
		r.DiskBytes = g.EphemeralDisk.SizeMB * mebibyte
	}
	return r
}
