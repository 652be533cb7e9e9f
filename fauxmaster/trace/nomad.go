package trace

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"

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
	// counted are the jobs of which it is noted what is lost.
	counted map[nomadJobID]bool
	// running are the ids of nodes on which allocations run.
	running map[string]bool
	// coreMilli is the most that a core of any node has.
	coreMilli int64
	kept      ledger
}

type nomadJobID struct{ namespace, id string }

type nomadNode struct {
	ID, Name, Datacenter, NodeClass, NodePool, Status, SchedulingEligibility string

	Drain             bool
	DrainStrategy     json.RawMessage
	Attributes, Meta  map[string]string
	Drivers           map[string]struct{ Detected, Healthy bool }
	HostVolumes       map[string]json.RawMessage
	NodeResources     *nomadResources
	ReservedResources *nomadResources
	// Before Nomad 0.9.
	Resources, Reserved *nomadOld
}

type nomadResources struct {
	CPU     struct{ CPUShares, TotalCPUCores int64 }
	Memory  struct{ MemoryMB int64 }
	Disk    struct{ DiskMB int64 }
	Devices []nomadDevices
}

// nomadDevices are devices of a kind that a node has, or some that an allocation was given.
type nomadDevices struct {
	Vendor, Type, Name string
	Instances          []struct{ Healthy *bool }
	DeviceIDs          []string
}

// healthy is how many of them can be used.
func (d *nomadDevices) healthy() (n int64) {
	for _, i := range d.Instances {
		if i.Healthy == nil || *i.Healthy {
			n++
		}
	}
	return n
}

type nomadOld struct{ CPU, MemoryMB, DiskMB int64 }

type nomadAlloc struct {
	ID, Namespace, NodeID, NodeName, JobID, TaskGroup, DesiredStatus, ClientStatus string

	Job                *nomadJob
	AllocatedResources *nomadAllocated
	Resources          *nomadOld
}

type nomadAllocated struct {
	Tasks          map[string]nomadAllocatedTask
	TaskLifecycles map[string]*nomadLifecycle
	Shared         struct{ DiskMB int64 }
}

type nomadAllocatedTask struct {
	CPU     struct{ CPUShares int64 }
	Memory  struct{ MemoryMB int64 }
	Devices []nomadDevices
}

type nomadJob struct {
	ID, Namespace, Type string

	Stop             bool
	Status           string
	Priority         int64
	Datacenters      []string
	NodePool         string
	Constraints      []nomadConstraint
	Affinities       []json.RawMessage
	Spreads          []json.RawMessage
	Periodic         json.RawMessage
	ParameterizedJob json.RawMessage
	Dispatched       bool
	TaskGroups       []nomadGroup
}

// template reports whether others are made of the job, and nothing of itself.
func (j *nomadJob) template() bool {
	return !isEmpty(j.Periodic) || !isEmpty(j.ParameterizedJob) && !j.Dispatched
}

func isEmpty(raw json.RawMessage) bool { return len(raw) == 0 || isEmptyJSON(raw) }

type nomadGroup struct {
	Name                string
	Count               *int64
	Constraints         []nomadConstraint
	Affinities, Spreads []json.RawMessage
	EphemeralDisk       *struct{ SizeMB int64 }
	Networks            []nomadNetwork
	Volumes             map[string]struct{ Type, Source string }
	Tasks               []nomadTask
}

type nomadTask struct {
	Name, Driver string

	Constraints []nomadConstraint
	Affinities  []json.RawMessage
	Lifecycle   *nomadLifecycle
	Resources   *nomadRequest
}

type nomadLifecycle struct {
	Hook    string
	Sidecar bool
}

type nomadRequest struct {
	CPU, MemoryMB, Cores, MemoryMaxMB int64

	Networks []nomadNetwork
	Devices  []struct {
		Name        string
		Count       *int64
		Constraints []json.RawMessage
	}
}

type nomadNetwork struct {
	ReservedPorts []struct{ Value int64 }
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
	return &Nomad{jobs: make(map[nomadJobID]*nomadJob), cell: &Cell{}, asked: make(map[string]bool), counted: make(map[nomadJobID]bool), running: make(map[string]bool)}
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
			nomadAllocObject.count(n.cell, raw)
			n.countJob(nomadJobID{cmp.Or(a.Namespace, "default"), a.JobID}, has["Job"])
			n.allocs = append(n.allocs, a)
		case eligible || resources:
			var o nomadNode
			if err := json.Unmarshal(raw, &o); err != nil {
				return fmt.Errorf("a node: %w", err)
			}
			if err := n.kept.item(&o); err != nil {
				return fmt.Errorf("node %s: %w", brief(o.Name), err)
			}
			nomadNodeObject.count(n.cell, raw)
			n.nodes = append(n.nodes, o)
		case groups || summary:
			var j nomadJob
			if err := json.Unmarshal(raw, &j); err != nil {
				return fmt.Errorf("a job: %w", err)
			}
			if err := n.kept.item(&j); err != nil {
				return fmt.Errorf("job %s: %w", brief(j.ID), err)
			}
			n.countJob(nomadJobID{cmp.Or(j.Namespace, "default"), j.ID}, raw)
			n.job(&j)
		default:
			n.cell.note("objects that are no node, allocation or job")
		}
		return nil
	})
}

// countJob notes what is lost of a job, once: each of its allocations may have it too.
func (n *Nomad) countJob(id nomadJobID, raw json.RawMessage) {
	if len(raw) > 0 && !n.counted[id] {
		n.counted[id] = true
		nomadJobObject.count(n.cell, raw)
	}
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
		if a := &n.allocs[i]; !a.ended() && !a.stopping() {
			n.running[a.NodeID] = true
		}
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
	for i := range n.nodes {
		if r := n.nodes[i].NodeResources; r != nil && r.CPU.TotalCPUCores > 0 {
			n.coreMilli = max(n.coreMilli, min(r.CPU.CPUShares/r.CPU.TotalCPUCores, maxCores))
		}
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
			capacity.Devices[label(d.Type)] += d.healthy()
		}
		if s := o.ReservedResources; s != nil {
			capacity.CpuMilli -= s.CPU.CPUShares
			capacity.MemBytes -= mebibytes(s.Memory.MemoryMB)
			capacity.DiskBytes -= mebibytes(s.Disk.DiskMB)
		}
	case o.Resources != nil:
		capacity.CpuMilli, capacity.MemBytes, capacity.DiskBytes = o.Resources.CPU, o.Resources.MemoryMB*mebibyte, o.Resources.DiskMB*mebibyte
		if s := o.Reserved; s != nil {
			capacity.CpuMilli -= s.CPU
			capacity.MemBytes -= mebibytes(s.MemoryMB)
			capacity.DiskBytes -= mebibytes(s.DiskMB)
		}
	default:
		n.cell.note("nodes that do not say what they have: ask for /v1/nodes?resources=true")
	}
	n.cell.bound(capacity)
	m := Machine{Name: name, Spec: &borgpb.MachineSpec{
		Addr: "127.0.0.1:7101", Capacity: capacity, PortFirst: borgpb.TaskPortFirst, PortLast: borgpb.TaskPortLast,
		Attributes: map[string]string{nodeAttribute: o.Name},
	}}
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
	unready := o.Status != "" && o.Status != "ready"
	m.Down = unready && !n.running[o.ID]
	switch {
	case unready && n.running[o.ID]:
		n.cell.note("nodes that are not ready, with allocations that run: they take nobody new, and what runs there stays")
		m.Spec.Taints = append(m.Spec.Taints, &borgpb.Taint{Key: "not-ready"})
	case o.Drain || !isEmpty(o.DrainStrategy):
		n.cell.note("nodes that are being drained: they take nobody new, and what runs there stays")
		m.Spec.Taints = append(m.Spec.Taints, &borgpb.Taint{Key: "draining"})
	case o.SchedulingEligibility == "ineligible":
		m.Spec.Taints = append(m.Spec.Taints, &borgpb.Taint{Key: "ineligible"})
	}
	return m
}
