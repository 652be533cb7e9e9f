package trace

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"

	"borg/proto/borgpb"
)

// kubeOwner is who wants a pod: with its kind, since a Deployment and a
// StatefulSet may share a name.
type kubeOwner struct{ namespace, kind, name string }

// owner finds the workload behind a pod: of a ReplicaSet that bears the hash of a
// template, the Deployment.
func (p *kubePod) owner() kubeOwner {
	o := kubeOwner{p.Meta.Namespace, "Pod", p.Meta.Name}
	for _, ref := range p.Meta.Owners {
		if ref.Controller == nil || *ref.Controller || len(p.Meta.Owners) == 1 {
			o.kind, o.name = ref.Kind, ref.Name
		}
	}
	hash := p.Meta.Labels["pod-template-hash"]
	if base, ok := strings.CutSuffix(o.name, "-"+hash); o.kind == "ReplicaSet" && hash != "" && ok && base != "" {
		o.kind, o.name = "Deployment", base
	}
	return o
}

// jobs makes jobs of the pods that live, by owner and priority. Pods of one owner
// that need different things are tasks with overrides.
func (k *Kubernetes) jobs(machines *names) error {
	type group struct {
		owner    kubeOwner
		priority int32
		never    bool
		pods     []kubeTask
	}
	groups := make(map[string]*group)
	values := k.valuesInNodes()
	priorities := k.priorities()
	for i := range k.pods {
		p := &k.pods[i]
		t, err := k.task(p, values)
		if err != nil {
			return fmt.Errorf("pod %s of %s: %w", brief(p.Meta.Name), brief(p.Meta.Namespace), err)
		}
		if p.Spec.Node != "" {
			t.machine = machines.name(p.Spec.Node)
		}
		o, priority := p.owner(), priorities[k.priority(p)]
		never := p.Spec.Preemption == "Never"
		key := fmt.Sprintf("%s\x00%s\x00%s\x00%03d\x00%v", o.namespace, o.name, o.kind, priority, never)
		if o.kind == "DaemonSet" {
			// Two jobs would be two daemons on each machine.
			key = fmt.Sprintf("%s\x00%s\x00%s", o.namespace, o.name, o.kind)
		}
		if groups[key] == nil {
			groups[key] = &group{owner: o, priority: priority, never: never}
		}
		groups[key].priority = max(groups[key].priority, priority)
		groups[key].pods = append(groups[key].pods, t)
	}
	users, jobs := newNames(), make(map[string]*names)
	for _, key := range sortedKeys(groups) {
		g := groups[key]
		user := users.name(cmp.Or(g.owner.namespace, "default"))
		if jobs[user] == nil {
			jobs[user] = newNames()
		}
		// Two owners of one name get two names.
		name := jobs[user].another(g.owner.name)
		spec := &borgpb.JobSpec{Kind: borgpb.JobKind_JOB_KIND_SERVICE, Priority: g.priority}
		if g.owner.kind == "Job" {
			spec.Kind = borgpb.JobKind_JOB_KIND_BATCH
		}
		if g.never {
			spec.Preempt = borgpb.Preempt_PREEMPT_NEVER
		}
		if g.owner.kind == "DaemonSet" {
			k.cell.Jobs = append(k.cell.Jobs, k.cell.daemon(user, name, spec, g.pods))
			continue
		}
		k.cell.Jobs = append(k.cell.Jobs, k.split(user, name, jobs[user], spec, g.pods)...)
	}
	return nil
}

// kubeTask is a pod as a task.
type kubeTask struct {
	spec    *borgpb.TaskSpec
	machine string
	// apart: no two of its kind on one machine, or in one power domain.
	perMachine, perPower bool
	// alike is the same for pods that need the same.
	alike string
}

// maxOverrides is how many differences one job may have.
const maxOverrides = 900

// split makes jobs of pods that belong together. Overrides change what a task
// asks for and what constrains it; they cannot take constraints away, so those
// without come first. What is too much for one job goes into another.
func (k *Kubernetes) split(user, name string, used *names, spec *borgpb.JobSpec, pods []kubeTask) (all []Job) {
	slices.SortStableFunc(pods, func(a, b kubeTask) int {
		return cmp.Or(cmp.Compare(len(a.spec.Constraints)+len(a.spec.Tolerations), len(b.spec.Constraints)+len(b.spec.Tolerations)), cmp.Compare(a.alike, b.alike))
	})
	for len(pods) > 0 {
		j := Job{User: user, Name: name, Spec: proto.CloneOf(spec)}
		if len(all) > 0 {
			j.Name = used.another(name)
		}
		first := pods[0]
		j.Spec.Task = proto.CloneOf(first.spec)
		n := 0
		for n < len(pods) && (len(j.Spec.Overrides) < maxOverrides || pods[n].alike == pods[n-1].alike) && covers(first.spec, pods[n].spec) {
			p := &pods[n]
			if p.perMachine {
				j.Spec.MaxPerMachine = 1
			}
			if p.perPower {
				j.Spec.MaxPerPower = 1
			}
			switch {
			case p.alike == first.alike:
			case p.alike == pods[n-1].alike:
				j.Spec.Overrides[len(j.Spec.Overrides)-1].Last = uint32(n)
			default:
				j.Spec.Overrides = append(j.Spec.Overrides, &borgpb.TaskOverride{First: uint32(n), Last: uint32(n), Spec: &borgpb.TaskSpec{
					Resources: p.spec.Resources, Constraints: p.spec.Constraints, Tolerations: p.spec.Tolerations,
				}})
			}
			j.Machines = append(j.Machines, p.machine)
			n++
		}
		j.Spec.Tasks = uint32(n)
		pods = pods[n:]
		all = append(all, j)
	}
	return all
}

// covers tells whether an override can make the one task of the other: an empty
// list in it would change nothing.
func covers(base, o *borgpb.TaskSpec) bool {
	return (len(base.Constraints) == 0 || len(o.Constraints) > 0) && (len(base.Tolerations) == 0 || len(o.Tolerations) > 0)
}

// priority is that of a pod; admission writes it into the pod from its class.
func (k *Kubernetes) priority(p *kubePod) int64 {
	switch {
	case p.Spec.Priority != nil:
		return *p.Spec.Priority
	case p.Spec.Class != "":
		return k.classes[p.Spec.Class].Value
	}
	for _, c := range k.classes {
		if c.Default {
			return c.Value
		}
	}
	return 0
}

// Priorities of Kubernetes from which on they are the system's.
const (
	systemCluster = 2_000_000_000
	systemNode    = 2_000_001_000
)

// priorities makes ours of theirs, order kept: below zero is free, zero
// production, what is above is production too, the system's is monitoring. Nobody
// of production takes the place of another, as there a higher class would.
func (k *Kubernetes) priorities() map[int64]int32 {
	seen := make(map[int64]bool)
	for i := range k.pods {
		seen[k.priority(&k.pods[i])] = true
	}
	ours := make(map[int64]int32)
	below, above := int32(0), int32(0)
	for _, p := range slices.Sorted(maps.Keys(seen)) {
		switch {
		case p >= systemNode:
			ours[p] = 450
		case p >= systemCluster:
			ours[p] = 400
		case p > 0:
			above++
			ours[p] = min(200+above, 359)
		case p == 0:
			ours[p] = 200
		default:
			ours[p] = min(50+below, 99)
			below++
		}
	}
	for range above {
		k.cell.note("priority classes above zero: they are in the production band, where none takes the place of another; there a higher one would")
	}
	return ours
}

// task makes a task of a pod.
func (k *Kubernetes) task(p *kubePod, values map[string][]string) (kubeTask, error) {
	r, err := k.request(p)
	if err != nil {
		return kubeTask{}, err
	}
	t := kubeTask{spec: &borgpb.TaskSpec{Args: placeholder, Resources: r}}
	for _, key := range sortedKeys(p.Spec.Selector) {
		k.constrain(t.spec, kubeExpression{key, "In", []string{p.Spec.Selector[key]}}, false, values)
	}
	k.affinity(p, &t, values)
	if p.owner().kind == "DaemonSet" {
		// The controller ties each pod to its node by name; here the seat does.
		t.spec.Constraints = slices.DeleteFunc(t.spec.Constraints, func(c *borgpb.Constraint) bool { return c.Key == nodeAttribute })
	}
	for _, o := range p.Spec.Tolerations {
		k.tolerate(t.spec, o)
	}
	spec := &p.Spec
	for _, n := range []struct {
		is    bool
		words string
	}{
		{len(spec.TopologySpread) > 0, "pods with topology spread constraints"},
		{len(spec.Gates) > 0, "pods behind a scheduling gate: here they may be placed"},
		{spec.Scheduler != "" && spec.Scheduler != "default-scheduler", "pods of another scheduler: ours places them"},
		{slices.ContainsFunc(spec.Containers, func(c kubeContainer) bool {
			return slices.ContainsFunc(c.Ports, func(port struct {
				Host int64 `json:"hostPort"`
			}) bool {
				return port.Host != 0
			})
		}), "pods with ports of the host"},
	} {
		if n.is {
			k.cell.note(n.words)
		}
	}
	for _, v := range spec.Volumes {
		if v.Claim != nil {
			k.cell.note("claims of volumes: where these can be is not looked at")
		}
	}
	words, err := proto.MarshalOptions{Deterministic: true}.Marshal(t.spec)
	if err != nil {
		return t, err
	}
	t.alike = string(words)
	return t, nil
}

// request is what Kubernetes sets aside for a pod: the sum of the containers, at
// least the largest that runs before them, and what the pod itself takes.
func (k *Kubernetes) request(p *kubePod) (*borgpb.Resources, error) {
	sum := make(map[string]*[2]int64)
	at := func(name string) *[2]int64 {
		if sum[name] == nil {
			sum[name] = new([2]int64)
		}
		return sum[name]
	}
	add := func(c *kubeContainer) error {
		for name, text := range withDefaults(c) {
			n, err := scaledQuantity(name, text)
			if err != nil {
				return err
			}
			at(name)[0] += n
		}
		return nil
	}
	if len(p.Spec.Containers) == 0 {
		k.cell.note("pods that do not say their containers: they ask for nothing")
	}
	beyond, nothing := false, true
	for i := range p.Spec.Containers {
		c := &p.Spec.Containers[i]
		if err := add(c); err != nil {
			return nil, err
		}
		nothing = nothing && len(withDefaults(c)) == 0
		for name, limit := range c.Resources.Limits {
			beyond = beyond || c.Resources.Requests[name] != "" && c.Resources.Requests[name] != limit
		}
	}
	for i := range p.Spec.Init {
		c := &p.Spec.Init[i]
		if c.Restart == "Always" {
			// It runs beside the others.
			if err := add(c); err != nil {
				return nil, err
			}
			continue
		}
		for name, text := range withDefaults(c) {
			n, err := scaledQuantity(name, text)
			if err != nil {
				return nil, err
			}
			at(name)[1] = max(at(name)[1], n)
		}
	}
	if beyond {
		k.cell.note("pods whose limits are above their requests: they are placed by requests, as Kubernetes does")
	}
	if nothing && len(p.Spec.Containers) > 0 {
		k.cell.note("pods that ask for nothing")
	}
	total := &borgpb.Resources{}
	for _, name := range sortedKeys(sum) {
		n := max(sum[name][0], sum[name][1])
		if text := p.Spec.Overhead[name]; text != "" {
			over, err := scaledQuantity(name, text)
			if err != nil {
				return nil, err
			}
			n += over
		}
		switch {
		case n == 0:
		case name == "cpu":
			total.CpuMilli = n
		case name == "memory":
			total.MemBytes = n
		case name == "ephemeral-storage":
			total.DiskBytes = n
		case strings.Contains(name, "/") && n <= maxOpenbGPUs:
			if total.Devices == nil {
				total.Devices = make(map[string]int64)
			}
			total.Devices[deviceName(name)] += n
		default:
			k.cell.note("requests of " + brief(name))
		}
	}
	return total, nil
}

// withDefaults are the requests of a container; where there is only a limit, that
// is the request.
func withDefaults(c *kubeContainer) map[string]string {
	all := maps.Clone(c.Resources.Limits)
	if all == nil {
		all = make(map[string]string)
	}
	maps.Copy(all, c.Resources.Requests)
	return all
}

func scaledQuantity(name, text string) (int64, error) {
	scale := int64(1)
	if name == "cpu" {
		scale = 1000
	}
	n, err := quantity(text, scale, true)
	if err != nil {
		return 0, fmt.Errorf("%s: %w", name, err)
	}
	return n, nil
}

// valuesInNodes are the values that each label has on some node.
func (k *Kubernetes) valuesInNodes() map[string][]string {
	all := make(map[string][]string)
	for i := range k.nodes {
		n := &k.nodes[i]
		for key, v := range n.Meta.Labels {
			if !slices.Contains(all[key], v) {
				all[key] = append(all[key], v)
			}
		}
		all[nodeAttribute] = append(all[nodeAttribute], n.Meta.Name)
	}
	for _, vs := range all {
		slices.Sort(vs)
	}
	return all
}

// asks notes the labels of nodes that the pod names.
func (p *kubePod) asks(labels map[string]bool) {
	for key := range p.Spec.Selector {
		labels[key] = true
	}
	if p.Spec.Affinity == nil || p.Spec.Affinity.Node == nil {
		return
	}
	n := p.Spec.Affinity.Node
	terms := make([]kubeTerm, 0, 1)
	if n.Required != nil {
		terms = append(terms, n.Required.Terms...)
	}
	for _, o := range n.Preferred {
		terms = append(terms, o.Term)
	}
	for _, t := range terms {
		for _, e := range t.Expressions {
			labels[e.Key] = true
		}
	}
}

// affinity maps what a pod wants of nodes, and which pods it shuns.
func (k *Kubernetes) affinity(p *kubePod, t *kubeTask, values map[string][]string) {
	a := p.Spec.Affinity
	if a == nil {
		return
	}
	if n := a.Node; n != nil {
		switch {
		case n.Required == nil:
		case len(n.Required.Terms) == 1:
			for _, e := range n.Required.Terms[0].all() {
				k.constrain(t.spec, e, false, values)
			}
		case len(n.Required.Terms) > 1:
			k.cell.note("pods whose node affinity has alternatives: they may be placed anywhere")
		}
		for _, o := range n.Preferred {
			for _, e := range o.Term.all() {
				k.constrain(t.spec, e, true, values)
			}
		}
	}
	if a.Pod != nil && len(a.Pod.Required)+len(a.Pod.Preferred) > 0 {
		k.cell.note("pods with affinity to others")
	}
	if a.AntiPod == nil {
		return
	}
	if len(a.AntiPod.Preferred) > 0 {
		k.cell.note("pods that would rather not be beside others: a job is spread anyhow")
	}
	for _, term := range a.AntiPod.Required {
		own := term.matches(p.Meta.Labels)
		switch {
		case own && term.Topology == "kubernetes.io/hostname":
			t.perMachine = true
		case own && term.Topology == k.labels.Power && term.Topology != "":
			t.perPower = true
		default:
			k.cell.note("pods that must not be beside others, but for their own kind on a machine or in a power domain")
		}
	}
}

// all are the expressions of a term. The only field there is is the node's name.
func (t *kubeTerm) all() []kubeExpression {
	all := slices.Clone(t.Expressions)
	for _, e := range t.Fields {
		if e.Key == "metadata.name" {
			e.Key = nodeAttribute
		}
		all = append(all, e)
	}
	return all
}

// matches tells whether labels meet the selector, as far as it says plainly.
func (t *kubePodTerm) matches(labels map[string]string) bool {
	for key, v := range t.Selector.Labels {
		if labels[key] != v {
			return false
		}
	}
	for _, e := range t.Selector.Expressions {
		if e.Operator != "In" || !slices.Contains(e.Values, labels[e.Key]) {
			return false
		}
	}
	return len(t.Selector.Labels)+len(t.Selector.Expressions) > 0
}

// constrain adds what an expression says. Any of some values is none of the
// others that there are.
func (k *Kubernetes) constrain(spec *borgpb.TaskSpec, e kubeExpression, soft bool, values map[string][]string) {
	var ks []*borgpb.Constraint
	add := func(r borgpb.Relation, v string) {
		ks = append(ks, &borgpb.Constraint{Key: attributeKey(e.Key), Relation: r, Value: v, Soft: soft})
	}
	switch e.Operator {
	case "In":
		if len(e.Values) == 1 {
			add(borgpb.Relation_RELATION_EQUAL, e.Values[0])
			break
		}
		add(borgpb.Relation_RELATION_PRESENT, "")
		for _, v := range values[e.Key] {
			if !slices.Contains(e.Values, v) {
				add(borgpb.Relation_RELATION_NOT_EQUAL, v)
			}
		}
	case "NotIn":
		for _, v := range e.Values {
			add(borgpb.Relation_RELATION_NOT_EQUAL, v)
		}
	case "Exists":
		add(borgpb.Relation_RELATION_PRESENT, "")
	case "DoesNotExist":
		add(borgpb.Relation_RELATION_NOT_PRESENT, "")
	case "Gt", "Lt":
		if len(e.Values) == 1 {
			add(map[string]borgpb.Relation{"Gt": borgpb.Relation_RELATION_GREATER_THAN, "Lt": borgpb.Relation_RELATION_LESS_THAN}[e.Operator], e.Values[0])
		}
	}
	switch {
	case len(ks) == 0 || len(spec.Constraints)+len(ks) > maxConstraints2011:
		k.cell.note("expressions about nodes that take too many constraints, or are unknown")
	default:
		spec.Constraints = append(spec.Constraints, ks...)
	}
}

func (k *Kubernetes) tolerate(spec *borgpb.TaskSpec, o kubeToleration) {
	switch {
	case o.Key == "" && o.Operator == "Exists":
		// All of them: those that nodes have.
		for i := range k.nodes {
			for _, t := range k.nodes[i].Spec.Taints {
				k.tolerate(spec, kubeToleration{Key: t.Key, Operator: "Exists", Effect: o.Effect})
			}
			if k.nodes[i].Spec.Unschedulable {
				k.tolerate(spec, kubeToleration{Key: cordonTaint, Operator: "Exists"})
			}
		}
	case len(o.Key) > maxKeyBytes || len(o.Value) > maxValueBytes || o.Key == "":
		k.cell.note("tolerations that are longer than ours may be, or say nothing")
	case len(spec.Tolerations) >= maxTolerations:
		k.cell.note("tolerations beyond 32 of one pod")
	default:
		t := &borgpb.Toleration{Key: o.Key}
		if o.Operator != "Exists" {
			t.Value = o.Value
		}
		if o.Seconds != nil && o.Effect == "NoExecute" {
			t.ForgivenessNs = min(*o.Seconds, 24*3600) * 1e9
		}
		for _, have := range spec.Tolerations {
			if have.Key == t.Key && have.Value == t.Value {
				// One that forgives for good is the stronger.
				if t.ForgivenessNs == 0 {
					have.ForgivenessNs = 0
				}
				return
			}
		}
		spec.Tolerations = append(spec.Tolerations, t)
	}
}

const maxTolerations = 32
