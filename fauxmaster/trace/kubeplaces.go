package trace

import (
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"borg/proto/borgpb"
)

// valuesInNodes are the values that each label has on some node.
func (k *Kubernetes) valuesInNodes() map[string][]string {
	seen := make(map[string]map[string]bool)
	add := func(key, v string) {
		if seen[key] == nil {
			seen[key] = make(map[string]bool)
		}
		seen[key][v] = true
	}
	for i := range k.nodes {
		n := &k.nodes[i]
		for key, v := range n.Meta.Labels {
			add(key, v)
		}
		add(nodeAttribute, n.Meta.Name)
	}
	all := make(map[string][]string)
	for key, vs := range seen {
		all[key] = sortedKeys(vs)
	}
	return all
}

// asks notes the labels of nodes that the pod names.
func (p *kubePod) asks(labels map[string]bool) {
	for key := range p.Spec.Selector {
		labels[key] = true
	}
	a := p.Spec.Affinity
	if a == nil {
		return
	}
	if a.AntiPod != nil {
		for i := range a.AntiPod.Required {
			labels[a.AntiPod.Required[i].Topology] = true
		}
	}
	if a.Node == nil {
		return
	}
	terms := make([]kubeTerm, 0, 1)
	if a.Node.Required != nil {
		terms = append(terms, a.Node.Required.Terms...)
	}
	for _, o := range a.Node.Preferred {
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
		if n.Required != nil {
			terms := n.Required.Terms
			if p.owner().kind == "DaemonSet" {
				// The controller ties each pod to its node by name; here the seat does.
				terms = withoutFields(terms)
			}
			if len(terms) > 0 {
				k.oneOf(t.spec, terms, values)
			}
		}
		for _, o := range n.Preferred {
			all := o.Term.all()
			if len(all) == 1 && len(all[0].Values) <= 1 {
				k.constrain(t.spec, all[0], true, values)
				continue
			}
			k.cell.only(t.spec, wordsOf(o.Term), true, func(i int) bool { return o.Term.holds(&k.nodes[i]) })
		}
	}
	if a.Pod != nil {
		if len(a.Pod.Required) > 0 {
			k.cell.note("pods that must be beside others: here they may be anywhere")
		}
		if len(a.Pod.Preferred) > 0 {
			k.cell.note("pods that would rather be beside others")
		}
	}
	if a.AntiPod == nil {
		return
	}
	if len(a.AntiPod.Preferred) > 0 {
		k.cell.note("pods that would rather not be beside others: a job is spread anyhow")
	}
	for i := range a.AntiPod.Required {
		k.apart(p, t, &a.AntiPod.Required[i])
	}
}

// oneOf wants nodes that meet one term of several.
func (k *Kubernetes) oneOf(spec *borgpb.TaskSpec, terms []kubeTerm, values map[string][]string) {
	if len(terms) == 1 && len(terms[0].all()) > 0 {
		for _, e := range terms[0].all() {
			k.constrain(spec, e, false, values)
		}
		return
	}
	k.only(spec, terms)
}

func (k *Kubernetes) only(spec *borgpb.TaskSpec, terms []kubeTerm) {
	k.cell.only(spec, wordsOf(terms), false, func(i int) bool {
		return slices.ContainsFunc(terms, func(t kubeTerm) bool { return t.holds(&k.nodes[i]) })
	})
}

// wordsOf are the same for the same demand.
func wordsOf(demand any) string {
	words, err := json.Marshal(demand)
	if err != nil {
		panic(fmt.Sprintf("a demand on machines: %v", err))
	}
	return string(words)
}

// withoutFields leaves out what terms say of the name of a node. A term that says nothing
// else holds on all nodes.
func withoutFields(terms []kubeTerm) (all []kubeTerm) {
	for _, t := range terms {
		if len(t.Expressions) == 0 {
			return nil
		}
		all = append(all, kubeTerm{Expressions: t.Expressions})
	}
	return all
}

// apart keeps a pod from others of its kind.
func (k *Kubernetes) apart(p *kubePod, t *kubeTask, term *kubePodTerm) {
	near := len(term.Namespaces) == 0 && len(term.NamespacesLike) == 0 || slices.Contains(term.Namespaces, p.Meta.Namespace)
	if !near || !term.Selector.matches(p.Meta.Labels) {
		k.cell.note("pods that must not be beside others of another job")
		return
	}
	if k.shunsOthers(p, term) {
		k.cell.note("pods that must not be beside others of another job too: here only beside their own kind")
	}
	switch key := attributeKey(term.Topology); {
	case term.Topology == "":
	case term.Topology == "kubernetes.io/hostname":
		t.perMachine = true
	case term.Topology == k.labels.Rack:
		t.perRack = true
	case term.Topology == k.labels.Power:
		t.perPower = true
	case slices.Contains(t.perValue, key):
	case key == nodeAttribute || key == "rack" || key == "power" || len(t.perValue) >= maxPerValue:
		k.cell.note("pods that must not be beside their own kind in a domain that a job cannot name")
	default:
		t.perValue = append(t.perValue, key)
	}
}

// maxPerValue is of how many attributes a job may limit its tasks per value.
const maxPerValue = 4

// shunsOthers reports whether a term matches pods of another workload in its namespace.
func (k *Kubernetes) shunsOthers(p *kubePod, term *kubePodTerm) bool {
	words := p.Meta.Namespace + wordsOf(term.Selector)
	owners, known := k.shunned[words]
	if !known {
		owners = make(map[kubeOwner]bool)
		for i := range k.pods {
			if o := &k.pods[i]; o.Meta.Namespace == p.Meta.Namespace && !o.ended() && term.Selector.matches(o.Meta.Labels) {
				owners[o.owner()] = true
			}
		}
		k.shunned[words] = owners
	}
	return len(owners) > 1 || len(owners) == 1 && !owners[p.owner()]
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

// holds reports whether a node meets a term; an empty one no node does.
func (t *kubeTerm) holds(n *kubeNode) bool {
	for _, e := range t.Expressions {
		v, ok := n.Meta.Labels[e.Key]
		if !e.holds(v, ok) {
			return false
		}
	}
	for _, e := range t.Fields {
		if e.Key != "metadata.name" || !e.holds(n.Meta.Name, true) {
			return false
		}
	}
	return len(t.Expressions)+len(t.Fields) > 0
}

// holds reports whether a label, which is there if ok, meets an expression.
func (e *kubeExpression) holds(v string, ok bool) bool {
	switch e.Operator {
	case "In":
		return ok && slices.Contains(e.Values, v)
	case "NotIn":
		return !ok || !slices.Contains(e.Values, v)
	case "Exists":
		return ok
	case "DoesNotExist":
		return !ok
	case "Gt", "Lt":
		have, err := strconv.ParseInt(v, 10, 64)
		if !ok || err != nil || len(e.Values) != 1 {
			return false
		}
		want, err := strconv.ParseInt(e.Values[0], 10, 64)
		return err == nil && (e.Operator == "Gt" && have > want || e.Operator == "Lt" && have < want)
	}
	return false
}

// matches reports whether labels meet a selector. None matches nothing, an empty one all.
func (s *kubeSelector) matches(labels map[string]string) bool {
	if s == nil {
		return false
	}
	for key, v := range s.Labels {
		if have, ok := labels[key]; !ok || have != v {
			return false
		}
	}
	for _, e := range s.Expressions {
		v, ok := labels[e.Key]
		if !e.holds(v, ok) {
			return false
		}
	}
	return true
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
	default:
		k.cell.note("expressions about nodes with the operator " + brief(e.Operator) + ", which is not known")
		return
	}
	if len(ks) > 0 && len(ks) <= maxConstraintsOfOne && len(spec.Constraints)+len(ks) <= maxConstraints2011-maxConstraintsOfOne {
		spec.Constraints = append(spec.Constraints, ks...)
		return
	}
	term := kubeTerm{Expressions: []kubeExpression{e}}
	if e.Key == nodeAttribute {
		term = kubeTerm{Fields: []kubeExpression{{"metadata.name", e.Operator, e.Values}}}
	}
	k.cell.only(spec, wordsOf(term), soft, func(i int) bool { return term.holds(&k.nodes[i]) })
}

// maxConstraintsOfOne is how many constraints one expression may become; what is longer
// becomes one attribute of the machines that it means.
const maxConstraintsOfOne = 8

// tolerate maps a toleration. Ours have no effect of their own: one that does not
// tolerate a taint of its key that some node has is left out.
func (k *Kubernetes) tolerate(spec *borgpb.TaskSpec, o kubeToleration) {
	if o.Operator != "" && o.Operator != "Equal" && o.Operator != "Exists" {
		k.cell.note("tolerations with the operator " + brief(o.Operator) + ", which is not known")
		return
	}
	if o.Key == "" {
		if o.Operator == "Exists" {
			k.tolerateAll(spec, o)
		}
		return
	}
	if len(o.Key) > maxKeyBytes || len(o.Value) > maxValueBytes {
		k.cell.note("tolerations that are longer than ours may be")
		return
	}
	met, missed := 0, 0
	for i := range k.cell.Machines {
		for _, t := range k.cell.Machines[i].Spec.Taints {
			switch {
			case t.Key != o.Key:
			case (o.Effect == "" || o.Effect == effectOf(t)) && (o.Operator == "Exists" || o.Value == t.Value):
				met++
			case o.Operator == "Exists" || o.Value == t.Value || o.Value == "":
				// Ours would tolerate it.
				missed++
			}
		}
	}
	switch {
	case met == 0 && missed > 0:
		return
	case missed > 0:
		k.cell.note("tolerations of a taint that other nodes have with another effect or value: here they tolerate it there too")
	}
	t := &borgpb.Toleration{Key: o.Key}
	if o.Operator != "Exists" {
		t.Value = o.Value
	}
	if o.Seconds != nil && o.Effect == "NoExecute" {
		if *o.Seconds <= 0 {
			// It has to leave at once.
			return
		}
		if *o.Seconds > maxForgivenessSeconds {
			k.cell.note("tolerations for more than a day: here they are for a day")
		}
		t.ForgivenessNs = min(*o.Seconds, maxForgivenessSeconds) * 1e9
	}
	k.addToleration(spec, t)
}

const maxForgivenessSeconds = 24 * 3600

// effectOf is the word of Kubernetes for what a taint does.
func effectOf(t *borgpb.Taint) string {
	switch {
	case t.Evict:
		return "NoExecute"
	case t.PreferNot:
		return "PreferNoSchedule"
	}
	return "NoSchedule"
}

// tolerateAll tolerates the taints that nodes have.
func (k *Kubernetes) tolerateAll(spec *borgpb.TaskSpec, o kubeToleration) {
	for i := range k.cell.Machines {
		for _, t := range k.cell.Machines[i].Spec.Taints {
			if o.Effect == "" || o.Effect == effectOf(t) {
				k.tolerate(spec, kubeToleration{Key: t.Key, Operator: "Exists", Effect: effectOf(t), Seconds: o.Seconds})
			}
		}
	}
}

func (k *Kubernetes) addToleration(spec *borgpb.TaskSpec, t *borgpb.Toleration) {
	for _, have := range spec.Tolerations {
		if have.Key == t.Key && have.Value == t.Value {
			// One that forgives for good is the stronger.
			if t.ForgivenessNs == 0 {
				have.ForgivenessNs = 0
			}
			return
		}
	}
	if len(spec.Tolerations) >= maxTolerations {
		k.cell.note("tolerations beyond 32 of one pod")
		return
	}
	spec.Tolerations = append(spec.Tolerations, t)
}

const maxTolerations = 32

// letRun lets a pod stay on its node, where a taint has come that would make it leave.
func (k *Kubernetes) letRun(spec *borgpb.TaskSpec, m *Machine) {
	for _, t := range m.Spec.Taints {
		if !t.Evict || slices.ContainsFunc(spec.Tolerations, func(o *borgpb.Toleration) bool {
			return o.Key == t.Key && (o.Value == "" || o.Value == t.Value)
		}) {
			continue
		}
		k.cell.note("pods on nodes with a taint that evicts and that they do not tolerate: they stay, and tolerate it")
		k.addToleration(spec, &borgpb.Toleration{Key: t.Key, Value: t.Value})
	}
}

// deviceName makes a name of ours of an extended resource: GPUs of a cluster that has
// those of one maker are gpu, anything else keeps who makes it.
func (k *Kubernetes) deviceName(theirs string) string {
	if strings.HasSuffix(theirs, "/gpu") && len(k.gpus) == 1 {
		return gpu
	}
	return label(theirs)
}
