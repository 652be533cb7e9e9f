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
	o := p.controller()
	hash := p.Meta.Labels["pod-template-hash"]
	if base, ok := strings.CutSuffix(o.name, "-"+hash); o.kind == "ReplicaSet" && hash != "" && ok && base != "" {
		o.kind, o.name = "Deployment", base
	}
	return o
}

// ended reports whether a pod takes no room any more, or is about to give it back.
func (p *kubePod) ended() bool {
	return p.Status.Phase == "Succeeded" || p.Status.Phase == "Failed" || p.Meta.Deleted != ""
}

// kubeGroup is the pods that become one job, if one job can have them all.
type kubeGroup struct {
	owner    kubeOwner
	priority int32
	never    bool
	batch    bool
	pods     []kubeTask
}

// jobs makes jobs of the pods that live, by owner and priority. Pods of one owner
// that need different things are tasks with overrides.
func (k *Kubernetes) jobs(machines *names) error {
	groups, err := k.groups(machines)
	if err != nil {
		return err
	}
	budgets := k.bindBudgets(groups)
	users, jobs := newNames(), make(map[string]*names)
	for _, key := range sortedKeys(groups) {
		g := groups[key]
		user := users.name(cmp.Or(g.owner.namespace, "default"))
		if jobs[user] == nil {
			jobs[user] = newNames()
		}
		// Two owners of one name get two names.
		name := jobs[user].another(g.owner.name)
		spec := &borgpb.JobSpec{Kind: borgpb.JobKind_JOB_KIND_SERVICE, Priority: g.priority, DisruptionBudget: budgets[g]}
		if g.batch {
			spec.Kind = borgpb.JobKind_JOB_KIND_BATCH
		}
		if g.never {
			spec.Preempt = borgpb.Preempt_PREEMPT_NEVER
		}
		if g.owner.kind == "Pod" || g.owner.kind == "Node" {
			// Nobody makes it again.
			spec.OnLost = borgpb.OnLost_ON_LOST_DEAD
		}
		if g.owner.kind == "DaemonSet" {
			k.cell.Jobs = append(k.cell.Jobs, k.cell.daemon(user, name, spec, g.pods))
			continue
		}
		all := k.split(user, name, jobs[user], spec, g.pods)
		if len(all) > 1 && spec.DisruptionBudget != nil {
			k.cell.note("disruption budgets of workloads that become several jobs: each has it")
		}
		k.cell.Jobs = append(k.cell.Jobs, all...)
	}
	return nil
}

// groups puts pods together.
func (k *Kubernetes) groups(machines *names) (map[string]*kubeGroup, error) {
	groups := make(map[string]*kubeGroup)
	values := k.valuesInNodes()
	priorities := k.priorities()
	at := make(map[string]*Machine, len(k.cell.Machines))
	for i := range k.cell.Machines {
		at[k.cell.Machines[i].Name] = &k.cell.Machines[i]
	}
	for i := range k.pods {
		p := &k.pods[i]
		if p.ended() {
			k.cell.note(map[bool]string{false: "pods that have ended", true: "pods that are being deleted: they take no room"}[p.Meta.Deleted != ""])
			continue
		}
		t, err := k.task(p, values)
		if err != nil {
			return nil, fmt.Errorf("pod %s of %s: %w", brief(p.Meta.Name), brief(p.Meta.Namespace), err)
		}
		o := p.owner()
		if p.Spec.Node != "" {
			t.machine = machines.name(p.Spec.Node)
			if m := at[t.machine]; m != nil && o.kind != "DaemonSet" {
				k.letRun(t.spec, m)
			}
		}
		words, err := proto.MarshalOptions{Deterministic: true}.Marshal(t.spec)
		if err != nil {
			return nil, err
		}
		t.alike, t.pod = string(words), p
		priority, never, batch := priorities[k.priority(p)], k.preemption(p) == "Never", p.batch()
		key := fmt.Sprintf("%s\x00%s\x00%s\x00%03d\x00%v", o.namespace, o.name, o.kind, priority, never)
		if o.kind == "DaemonSet" {
			// Two jobs would be two daemons on each machine.
			key = fmt.Sprintf("%s\x00%s\x00%s", o.namespace, o.name, o.kind)
		}
		if groups[key] == nil {
			groups[key] = &kubeGroup{owner: o, priority: priority, never: never, batch: batch}
		}
		groups[key].priority = max(groups[key].priority, priority)
		groups[key].pods = append(groups[key].pods, t)
	}
	return groups, nil
}

// batch reports whether a pod is one that ends: that of a Job, or one that nobody owns and
// that is not started again.
func (p *kubePod) batch() bool {
	kind := p.owner().kind
	return kind == "Job" || kind == "Pod" && (p.Spec.Restart == "Never" || p.Spec.Restart == "OnFailure")
}

// kubeTask is a pod as a task.
type kubeTask struct {
	spec    *borgpb.TaskSpec
	machine string
	pod     *kubePod
	// No two of its kind on one machine, in one rack or power domain, or where one of
	// these attributes is the same.
	perMachine, perRack, perPower bool
	perValue                      []string
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
			if p.perRack {
				j.Spec.MaxPerRack = 1
			}
			if p.perPower {
				j.Spec.MaxPerPower = 1
			}
			k.perValue(j.Spec, p.perValue)
			switch {
			case p.alike == first.alike:
			case p.alike == pods[n-1].alike:
				j.Spec.Overrides[len(j.Spec.Overrides)-1].Last = uint32(n)
			default:
				j.Spec.Overrides = append(j.Spec.Overrides, &borgpb.TaskOverride{First: uint32(n), Last: uint32(n), Spec: &borgpb.TaskSpec{
					Resources: p.spec.Resources, Constraints: p.spec.Constraints, Tolerations: p.spec.Tolerations, MaxRuntimeNs: p.spec.MaxRuntimeNs,
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
	return (len(base.Constraints) == 0 || len(o.Constraints) > 0) && (len(base.Tolerations) == 0 || len(o.Tolerations) > 0) &&
		(base.MaxRuntimeNs == 0 || o.MaxRuntimeNs > 0)
}

// perValue limits a job to one task per value of attributes.
func (k *Kubernetes) perValue(spec *borgpb.JobSpec, keys []string) {
	for _, key := range keys {
		if spec.MaxPer[key] == 0 && len(spec.MaxPer) == maxPerValue {
			k.cell.note("pods that must not be beside their own kind in a domain that a job cannot name")
			continue
		}
		if spec.MaxPer == nil {
			spec.MaxPer = make(map[string]uint32)
		}
		spec.MaxPer[key] = 1
	}
}

// priority is that of a pod; admission writes it into the pod from its class.
func (k *Kubernetes) priority(p *kubePod) int64 {
	switch class := p.Spec.Class; {
	case p.Spec.Priority != nil:
		return *p.Spec.Priority
	case class == "system-node-critical":
		return systemNode
	case class == "system-cluster-critical":
		return systemCluster
	case class != "":
		return k.classes[class].Value
	}
	for _, c := range k.classes {
		if c.Default {
			return c.Value
		}
	}
	return 0
}

// preemption is what a pod may do to others; admission writes it, too.
func (k *Kubernetes) preemption(p *kubePod) string {
	if p.Spec.Preemption != "" || p.Spec.Class == "" {
		return p.Spec.Preemption
	}
	if _, known := k.classes[p.Spec.Class]; !known && p.Spec.Priority == nil && !strings.HasPrefix(p.Spec.Class, "system-") {
		k.cell.note("pods of a priority class that is not there: priority 0")
	}
	return k.classes[p.Spec.Class].Preemption
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
	if o := p.owner(); o.kind == "Node" {
		// It is in a file of its node, and runs there or nowhere.
		k.constrain(t.spec, kubeExpression{nodeAttribute, "In", []string{cmp.Or(p.Spec.Node, o.name)}}, false, values)
	}
	k.affinity(p, &t, values)
	k.place(p, t.spec)
	for _, o := range p.Spec.Tolerations {
		k.tolerate(t.spec, o)
	}
	if s := p.Spec.Deadline; s != nil && *s > 0 {
		if p.batch() {
			t.spec.MaxRuntimeNs = min(*s, maxRuntimeSeconds) * 1e9
		} else {
			k.cell.note("pods that end after activeDeadlineSeconds, and are no batch")
		}
	}
	spec := &p.Spec
	for _, n := range []struct {
		is    bool
		words string
	}{
		{slices.ContainsFunc(spec.TopologySpread, func(c struct {
			Unsatisfiable string `json:"whenUnsatisfiable"`
		}) bool {
			return c.Unsatisfiable != "ScheduleAnyway"
		}), "pods with topology spread constraints that bind: a job is spread, and by no rule"},
		{len(spec.Gates) > 0, "pods behind a scheduling gate: here they may be placed"},
		{spec.Scheduler != "" && spec.Scheduler != "default-scheduler", "pods of another scheduler: ours places them"},
	} {
		if n.is {
			k.cell.note(n.words)
		}
	}
	if p.hasHostPort() {
		t.perMachine = p.owner().kind != "Node"
		k.cell.note("pods with ports of the host: here only those of one job are kept off each other's machines")
	}
	return t, nil
}

// maxRuntimeSeconds is how long a task of ours may be given at most.
const maxRuntimeSeconds = 366 * 24 * 3600

// hasHostPort reports whether a pod has a port of its machine.
func (p *kubePod) hasHostPort() bool {
	is := func(c kubeContainer) bool {
		return slices.ContainsFunc(c.Ports, func(port kubePort) bool { return port.Host != 0 })
	}
	return slices.ContainsFunc(p.Spec.Containers, is) || slices.ContainsFunc(p.Spec.Init, is)
}
