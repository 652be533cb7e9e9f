package trace

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"borg/proto/borgpb"
)

// Kubernetes is a cluster as kubectl writes it down: nodes become machines, pods
// tasks of the jobs that own them. What has no counterpart here is noted.
type Kubernetes struct {
	labels KubernetesLabels
	nodes  []kubeNode
	pods   []kubePod
	// classes are priority classes by name.
	classes map[string]kubeClass
	// asked are the labels of nodes that some pod names; nodes have more than a machine
	// may.
	asked map[string]bool
	// devices are the names of what pods ask for; gpus those of GPUs, in nodes too.
	devices, gpus map[string]bool
	workloads     []kubeWorkload
	budgets       []kubeBudget
	// claims and disks of volumes by name, and the pods that name each claim.
	claims    map[kubeName]*kubeClaim
	disks     map[string]*kubeDisk
	claimants map[kubeName]int
	// running are the nodes on which pods run.
	running map[string]bool
	// shunned are the workloads that the terms of anti-affinity match.
	shunned map[string]map[kubeOwner]bool
	cell    *Cell
	kept    ledger
}

// kubeName is the name of an object in a namespace.
type kubeName struct{ namespace, name string }

// KubernetesLabels are the labels of nodes that name failure domains.
type KubernetesLabels struct{ Rack, Power string }

// LoadKubernetes reads what `kubectl get nodes,pods,… -A -o json` wrote, in one file or several.
func LoadKubernetes(labels KubernetesLabels, files ...string) (*Cell, error) {
	k := NewKubernetes(labels)
	for _, file := range files {
		if err := readFile(file, k.Read); err != nil {
			return nil, err
		}
	}
	return k.Cell()
}

// NewKubernetes makes an empty cluster.
func NewKubernetes(labels KubernetesLabels) *Kubernetes {
	return &Kubernetes{
		labels: labels, classes: make(map[string]kubeClass), asked: make(map[string]bool), devices: make(map[string]bool), gpus: make(map[string]bool),
		claims: make(map[kubeName]*kubeClaim), disks: make(map[string]*kubeDisk), claimants: make(map[kubeName]int),
		running: make(map[string]bool), shunned: make(map[string]map[kubeOwner]bool), cell: &Cell{},
	}
}

// Read reads one file. Lists that kubectl did not mix do not say the kind of each
// item; then what it has tells.
func (k *Kubernetes) Read(file string, in io.Reader) error {
	k.kept.from(in)
	return eachItem(file, in, func(raw json.RawMessage) error {
		var is struct {
			Kind   string `json:"kind"`
			Status struct {
				Allocatable json.RawMessage `json:"allocatable"`
			} `json:"status"`
			Spec struct {
				Containers json.RawMessage `json:"containers"`
			} `json:"spec"`
		}
		if json.Unmarshal(raw, &is) != nil {
			return fmt.Errorf("%s is no object of Kubernetes", brief(string(raw)))
		}
		kind := is.Kind
		switch {
		case kind == "" && is.Status.Allocatable != nil:
			kind = "Node"
		case kind == "" && is.Spec.Containers != nil:
			kind = "Pod"
		}
		if read := k.readers()[kind]; read != nil {
			if err := read(raw); err != nil {
				return fmt.Errorf("a %s: %w", kind, err)
			}
			return nil
		}
		if kind == "" {
			k.cell.note("items that say neither what they are nor what they have: is that the output of kubectl get pods?")
			return nil
		}
		k.cell.note("objects of kind " + brief(kind))
		return nil
	})
}

// readers read one object of a kind.
func (k *Kubernetes) readers() map[string]func(raw json.RawMessage) error {
	all := map[string]func(raw json.RawMessage) error{
		"Node": func(raw json.RawMessage) error {
			countObject(k.cell, raw, &nodeSpec, &nodeStatus)
			return keep(k, raw, func(n *kubeNode) { k.nodes = append(k.nodes, *n) })
		},
		"Pod": func(raw json.RawMessage) error {
			return keep(k, raw, func(p *kubePod) {
				if !p.ended() {
					countObject(k.cell, raw, &podSpec, &podStatus)
				}
				k.pods = append(k.pods, *p)
			})
		},
		"PriorityClass": func(raw json.RawMessage) error {
			return keep(k, raw, func(c *kubeClass) { k.classes[c.Meta.Name] = *c })
		},
		"PodDisruptionBudget": func(raw json.RawMessage) error {
			countObject(k.cell, raw, &budgetSpec)
			return keep(k, raw, func(b *kubeBudget) { k.budgets = append(k.budgets, *b) })
		},
		"PersistentVolumeClaim": func(raw json.RawMessage) error {
			countObject(k.cell, raw, &claimSpec)
			return keep(k, raw, func(c *kubeClaim) { k.claims[kubeName{c.Meta.Namespace, c.Meta.Name}] = c })
		},
		"PersistentVolume": func(raw json.RawMessage) error {
			countObject(k.cell, raw, &diskSpec)
			return keep(k, raw, func(d *kubeDisk) { k.disks[d.Meta.Name] = d })
		},
		"CronJob": func(raw json.RawMessage) error {
			countObject(k.cell, raw, &cronJobSpec)
			return nil
		},
	}
	for kind, spec := range workloadSpecs {
		all[kind] = func(raw json.RawMessage) error {
			countObject(k.cell, raw, spec)
			return keep(k, raw, func(w *kubeWorkload) {
				w.Kind = kind
				k.workloads = append(k.workloads, *w)
			})
		}
	}
	return all
}

// keep decodes an object, charges what it takes, and hands it on.
func keep[T any](k *Kubernetes, raw json.RawMessage, to func(*T)) error {
	o := new(T)
	if err := json.Unmarshal(raw, o); err != nil {
		return err
	}
	if err := k.kept.item(o); err != nil {
		return err
	}
	to(o)
	return nil
}

// countObject counts what is lost of an object's spec, and of its status.
func countObject(c *Cell, raw json.RawMessage, parts ...*object) {
	for i, part := range parts {
		part.count(c, fieldOf(raw, []string{"spec", "status"}[i]))
	}
}

// fieldOf returns one field of an object; nil if it has none.
func fieldOf(raw json.RawMessage, name string) json.RawMessage {
	var has map[string]json.RawMessage
	if json.Unmarshal(raw, &has) != nil {
		return nil
	}
	return has[name]
}

// The attribute that is a node's own name, the taint of a cordoned node, and those of nodes
// that are not ready.
const (
	nodeAttribute    = "node"
	cordonTaint      = "node.kubernetes.io/unschedulable"
	notReadyTaint    = "node.kubernetes.io/not-ready"
	unreachableTaint = "node.kubernetes.io/unreachable"
)

// Cell makes the cell.
func (k *Kubernetes) Cell() (*Cell, error) {
	if len(k.nodes) == 0 {
		return nil, fmt.Errorf("there is no node in it: want what kubectl get nodes,pods,deployments,statefulsets,daemonsets,jobs,pdb,priorityclasses,pv,pvc -A -o json writes")
	}
	k.addMissing()
	for i := range k.pods {
		k.pods[i].asks(k.asked)
		if p := &k.pods[i]; !p.ended() && p.Spec.Node != "" {
			k.running[p.Spec.Node] = true
		}
	}
	k.findDevices()
	machines := newNames()
	slices.SortStableFunc(k.nodes, func(a, b kubeNode) int { return strings.Compare(a.Meta.Name, b.Meta.Name) })
	for i := range k.nodes {
		m, err := k.machine(&k.nodes[i], machines)
		if err != nil {
			return nil, err
		}
		k.cell.Machines = append(k.cell.Machines, m)
	}
	if err := k.jobs(machines); err != nil {
		return nil, err
	}
	return k.cell, nil
}

func (k *Kubernetes) machine(n *kubeNode, machines *names) (Machine, error) {
	has := n.Status.Allocatable
	if len(has) == 0 {
		has = n.Status.Capacity
		k.cell.note("nodes that do not say what is allocatable: their capacity was taken")
	}
	amounts, err := readQuantities(has, false)
	if err != nil {
		return Machine{}, fmt.Errorf("node %s: %w", brief(n.Meta.Name), err)
	}
	capacity := k.resources(amounts, "amounts of ")
	if has["pods"] != "" {
		k.cell.note("limits of pods per node: a cell has none")
	}
	m := Machine{Name: machines.name(n.Meta.Name), Spec: &borgpb.MachineSpec{
		Addr: "127.0.0.1:7101", Capacity: capacity, PortFirst: borgpb.TaskPortFirst, PortLast: borgpb.TaskPortLast,
		Attributes: map[string]string{nodeAttribute: n.Meta.Name},
	}}
	for key, label := range map[string]string{"rack": k.labels.Rack, "power": k.labels.Power} {
		if v := n.Meta.Labels[label]; label != "" && v != "" {
			m.Spec.Attributes[key] = v
		}
	}
	k.cell.attributes(m.Spec.Attributes, n.Meta.Labels, k.asked)
	cordoned := false
	for _, t := range n.Spec.Taints {
		taint := &borgpb.Taint{Key: t.Key, Value: t.Value}
		switch t.Effect {
		case "NoSchedule":
		case "PreferNoSchedule":
			taint.PreferNot = true
		case "NoExecute":
			taint.Evict = true
		default:
			k.cell.note("taints of effect " + brief(t.Effect))
			continue
		}
		cordoned = cordoned || t.Key == cordonTaint
		k.taint(m.Spec, taint)
	}
	if n.Spec.Unschedulable && !cordoned {
		k.taint(m.Spec, &borgpb.Taint{Key: cordonTaint})
	}
	for _, c := range n.Status.Conditions {
		if c.Type != "Ready" || c.Status == "True" {
			continue
		}
		if !k.running[n.Meta.Name] {
			m.Down = true
			continue
		}
		k.cell.note("nodes that are not ready, with pods that run: they take nobody new, and what runs there stays")
		if !slices.ContainsFunc(m.Spec.Taints, func(t *borgpb.Taint) bool { return t.Key == notReadyTaint || t.Key == unreachableTaint }) {
			k.taint(m.Spec, &borgpb.Taint{Key: notReadyTaint})
		}
	}
	return m, nil
}

// taint adds a taint; a machine has one of each key, the stronger one.
func (k *Kubernetes) taint(spec *borgpb.MachineSpec, t *borgpb.Taint) {
	if len(t.Key) > maxKeyBytes || len(t.Value) > maxValueBytes {
		k.cell.note("taints that are longer than ours may be")
		return
	}
	strength := func(t *borgpb.Taint) int {
		switch {
		case t.Evict:
			return 2
		case t.PreferNot:
			return 0
		}
		return 1
	}
	for i, o := range spec.Taints {
		if o.Key == t.Key {
			k.cell.note("taints beside a stronger one of the same key")
			if strength(t) > strength(o) {
				spec.Taints[i] = t
			}
			return
		}
	}
	spec.Taints = append(spec.Taints, t)
}

// sortedKeys of a map.
func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
