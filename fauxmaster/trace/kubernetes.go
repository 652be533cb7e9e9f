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
	cell  *Cell
	kept  ledger
}

// KubernetesLabels are the labels of nodes that name failure domains.
type KubernetesLabels struct{ Rack, Power string }

type kubeMeta struct {
	Name      string            `json:"name"`
	Namespace string            `json:"namespace"`
	Labels    map[string]string `json:"labels"`
	Owners    []struct {
		Kind       string `json:"kind"`
		Name       string `json:"name"`
		Controller *bool  `json:"controller"`
	} `json:"ownerReferences"`
}

type kubeNode struct {
	Meta kubeMeta `json:"metadata"`
	Spec struct {
		Unschedulable bool        `json:"unschedulable"`
		Taints        []kubeTaint `json:"taints"`
	} `json:"spec"`
	Status struct {
		Allocatable map[string]string `json:"allocatable"`
		Capacity    map[string]string `json:"capacity"`
		Conditions  []struct {
			Type   string `json:"type"`
			Status string `json:"status"`
		} `json:"conditions"`
	} `json:"status"`
}

type kubeTaint struct {
	Key    string `json:"key"`
	Value  string `json:"value"`
	Effect string `json:"effect"`
}

type kubeClass struct {
	Meta       kubeMeta `json:"metadata"`
	Value      int64    `json:"value"`
	Default    bool     `json:"globalDefault"`
	Preemption string   `json:"preemptionPolicy"`
}

type kubePod struct {
	Meta kubeMeta `json:"metadata"`
	Spec struct {
		Node           string            `json:"nodeName"`
		Containers     []kubeContainer   `json:"containers"`
		Init           []kubeContainer   `json:"initContainers"`
		Overhead       map[string]string `json:"overhead"`
		Selector       map[string]string `json:"nodeSelector"`
		Priority       *int64            `json:"priority"`
		Class          string            `json:"priorityClassName"`
		Preemption     string            `json:"preemptionPolicy"`
		Scheduler      string            `json:"schedulerName"`
		Tolerations    []kubeToleration  `json:"tolerations"`
		Affinity       *kubeAffinity     `json:"affinity"`
		TopologySpread []json.RawMessage `json:"topologySpreadConstraints"`
		Gates          []json.RawMessage `json:"schedulingGates"`
		Volumes        []struct {
			Claim *json.RawMessage `json:"persistentVolumeClaim"`
		} `json:"volumes"`
	} `json:"spec"`
	Status struct {
		Phase string `json:"phase"`
	} `json:"status"`
}

type kubeContainer struct {
	Restart   string `json:"restartPolicy"`
	Resources struct {
		Requests map[string]string `json:"requests"`
		Limits   map[string]string `json:"limits"`
	} `json:"resources"`
	Ports []struct {
		Host int64 `json:"hostPort"`
	} `json:"ports"`
}

type kubeToleration struct {
	Key      string `json:"key"`
	Operator string `json:"operator"`
	Value    string `json:"value"`
	Effect   string `json:"effect"`
	Seconds  *int64 `json:"tolerationSeconds"`
}

type kubeTerm struct {
	Expressions []kubeExpression `json:"matchExpressions"`
	Fields      []kubeExpression `json:"matchFields"`
}

type kubeExpression struct {
	Key      string   `json:"key"`
	Operator string   `json:"operator"`
	Values   []string `json:"values"`
}

type kubePodTerm struct {
	Selector struct {
		Labels      map[string]string `json:"matchLabels"`
		Expressions []kubeExpression  `json:"matchExpressions"`
	} `json:"labelSelector"`
	Topology string `json:"topologyKey"`
}

type kubeAffinity struct {
	Node *struct {
		Required *struct {
			Terms []kubeTerm `json:"nodeSelectorTerms"`
		} `json:"requiredDuringSchedulingIgnoredDuringExecution"`
		Preferred []struct {
			Term kubeTerm `json:"preference"`
		} `json:"preferredDuringSchedulingIgnoredDuringExecution"`
	} `json:"nodeAffinity"`
	Pod *struct {
		Required  []kubePodTerm     `json:"requiredDuringSchedulingIgnoredDuringExecution"`
		Preferred []json.RawMessage `json:"preferredDuringSchedulingIgnoredDuringExecution"`
	} `json:"podAffinity"`
	AntiPod *struct {
		Required  []kubePodTerm     `json:"requiredDuringSchedulingIgnoredDuringExecution"`
		Preferred []json.RawMessage `json:"preferredDuringSchedulingIgnoredDuringExecution"`
	} `json:"podAntiAffinity"`
}

// LoadKubernetes reads what `kubectl get nodes,pods,poddisruptionbudgets,
// priorityclasses -A -o json` wrote, in one file or several.
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
	return &Kubernetes{labels: labels, classes: make(map[string]kubeClass), asked: make(map[string]bool), cell: &Cell{}}
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
		switch {
		case is.Kind == "Node" || is.Kind == "" && is.Status.Allocatable != nil:
			var n kubeNode
			if err := json.Unmarshal(raw, &n); err != nil {
				return fmt.Errorf("a node: %w", err)
			}
			nodeSpec.count(k.cell, fieldOf(raw, "spec"))
			nodeStatus.count(k.cell, fieldOf(raw, "status"))
			if err := k.kept.item(&n); err != nil {
				return fmt.Errorf("node %s: %w", brief(n.Meta.Name), err)
			}
			k.nodes = append(k.nodes, n)
		case is.Kind == "Pod" || is.Kind == "" && is.Spec.Containers != nil:
			var p kubePod
			if err := json.Unmarshal(raw, &p); err != nil {
				return fmt.Errorf("a pod: %w", err)
			}
			if p.Status.Phase == "Succeeded" || p.Status.Phase == "Failed" {
				k.cell.note("pods that have ended")
				break
			}
			podSpec.count(k.cell, fieldOf(raw, "spec"))
			if err := k.kept.item(&p); err != nil {
				return fmt.Errorf("pod %s of %s: %w", brief(p.Meta.Name), brief(p.Meta.Namespace), err)
			}
			k.pods = append(k.pods, p)
		case is.Kind == "PriorityClass":
			var c kubeClass
			if err := json.Unmarshal(raw, &c); err != nil {
				return fmt.Errorf("a priority class: %w", err)
			}
			if err := k.kept.item(&c); err != nil {
				return fmt.Errorf("priority class %s: %w", brief(c.Meta.Name), err)
			}
			k.classes[c.Meta.Name] = c
		case is.Kind == "PodDisruptionBudget":
			k.cell.note("disruption budgets, which select pods by label: say disruption_budget in the job file")
		case is.Kind == "":
			k.cell.note("items that say neither what they are nor what they have: is that the output of kubectl get pods?")
		default:
			k.cell.note("objects of kind " + brief(is.Kind))
		}
		return nil
	})
}

// fieldOf returns one field of an object; nil if it has none.
func fieldOf(raw json.RawMessage, name string) json.RawMessage {
	var has map[string]json.RawMessage
	if json.Unmarshal(raw, &has) != nil {
		return nil
	}
	return has[name]
}

// The attribute that is a node's own name, and the taint of a cordoned node.
const (
	nodeAttribute = "node"
	cordonTaint   = "node.kubernetes.io/unschedulable"
)

// Cell makes the cell.
func (k *Kubernetes) Cell() (*Cell, error) {
	if len(k.nodes) == 0 {
		return nil, fmt.Errorf("there is no node in it: want what kubectl get nodes,pods,poddisruptionbudgets,priorityclasses -A -o json writes")
	}
	for i := range k.pods {
		k.pods[i].asks(k.asked)
	}
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
	capacity, err := k.amounts(has, false)
	if err != nil {
		return Machine{}, fmt.Errorf("node %s: %w", brief(n.Meta.Name), err)
	}
	if has["pods"] != "" {
		k.cell.note("limits of pods per node: a cell has none")
	}
	m := Machine{Name: machines.name(n.Meta.Name), Spec: &borgpb.MachineSpec{
		Addr: "127.0.0.1:7101", Capacity: capacity, Attributes: map[string]string{nodeAttribute: n.Meta.Name},
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
		if c.Type == "Ready" && c.Status != "True" {
			m.Down = true
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

// amounts reads a map of quantities. What is no CPU, memory or disk is a device.
func (k *Kubernetes) amounts(from map[string]string, asked bool) (*borgpb.Resources, error) {
	r := &borgpb.Resources{}
	for _, name := range sortedKeys(from) {
		scale := int64(1)
		if name == "cpu" {
			scale = 1000
		}
		n, err := quantity(from[name], scale, asked)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		switch {
		case n == 0:
		case name == "cpu":
			r.CpuMilli = n
		case name == "memory":
			r.MemBytes = n
		case name == "ephemeral-storage":
			r.DiskBytes = n
		case name == "pods":
		case strings.Contains(name, "/") && n <= maxOpenbGPUs:
			if r.Devices == nil {
				r.Devices = make(map[string]int64)
			}
			r.Devices[deviceName(name)] += n
		default:
			k.cell.note("amounts of " + brief(name))
		}
	}
	return r, nil
}

// deviceName makes a name of ours of an extended resource: nvidia.com/gpu is gpu,
// anything else keeps who makes it.
func deviceName(theirs string) string {
	if strings.HasSuffix(theirs, "/gpu") {
		return gpu
	}
	return label(theirs)
}

// sortedKeys of a map.
func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
