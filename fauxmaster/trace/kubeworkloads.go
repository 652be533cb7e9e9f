package trace

import (
	"cmp"

	"borg/proto/borgpb"
)

// maxMissing is how many pods are added for all workloads together.
const maxMissing = 1_000_000

// addMissing adds the pods that workloads want and nobody has made yet. They wait. A
// DaemonSet without pods gets one without a node, which makes it a daemon job.
func (k *Kubernetes) addMissing() {
	have, deployed := make(map[kubeOwner]int64), make(map[kubeOwner]bool)
	for i := range k.pods {
		p := &k.pods[i]
		if p.ended() {
			continue
		}
		have[p.owner()]++
		if by := p.controller(); by != p.owner() {
			have[by]++
		}
	}
	for i := range k.workloads {
		if w := &k.workloads[i]; w.Kind == "Deployment" {
			deployed[kubeOwner{w.Meta.Namespace, w.Kind, w.Meta.Name}] = true
		}
	}
	added := int64(0)
	for i := range k.workloads {
		w := &k.workloads[i]
		if w.Kind == "ReplicaSet" && len(w.Meta.Owners) > 0 && deployed[kubeOwner{w.Meta.Namespace, w.Meta.Owners[0].Kind, w.Meta.Owners[0].Name}] {
			// Its Deployment says how many there are.
			continue
		}
		n := w.wanted(have[kubeOwner{w.Meta.Namespace, w.Kind, w.Meta.Name}])
		if n > maxIndex2011 || added+n > maxMissing || k.kept.room(n*keptItemBytes) != nil {
			k.cell.note("workloads with more pods missing than a job or a cell may have: none were added")
			continue
		}
		added += n
		k.kept.add(n * keptItemBytes)
		for range n {
			k.pods = append(k.pods, w.pod())
			k.cell.note("pods that a controller has not made yet: they wait")
		}
	}
}

// controller is who made a pod.
func (p *kubePod) controller() kubeOwner {
	o := kubeOwner{p.Meta.Namespace, "Pod", p.Meta.Name}
	for _, ref := range p.Meta.Owners {
		if ref.Controller == nil || *ref.Controller || len(p.Meta.Owners) == 1 {
			o.kind, o.name = ref.Kind, ref.Name
		}
	}
	return o
}

// wanted is how many pods are missing of a workload that has some.
func (w *kubeWorkload) wanted(have int64) int64 {
	number := func(n *int64, otherwise int64) int64 {
		if n == nil {
			return otherwise
		}
		return *n
	}
	switch w.Kind {
	case "DaemonSet":
		return max(1-have, 0)
	case "Job":
		for _, c := range w.Status.Conditions {
			if c.Status == "True" && (c.Type == "Complete" || c.Type == "Failed") {
				return 0
			}
		}
		most := number(w.Spec.Parallelism, 1)
		switch {
		case w.Spec.Suspend:
			return 0
		case w.Spec.Completions != nil:
			most = min(most, *w.Spec.Completions-w.Status.Succeeded)
		case w.Status.Succeeded > 0:
			// The first that succeeds says that the work is done.
			return 0
		}
		return max(most-have, 0)
	}
	return max(number(w.Spec.Replicas, 1)-have, 0)
}

// pod is one that the workload would make.
func (w *kubeWorkload) pod() kubePod {
	p := kubePod{Meta: w.Spec.Template.Meta, Spec: w.Spec.Template.Spec}
	p.Meta.Namespace, p.Meta.Name = w.Meta.Namespace, cmp.Or(p.Meta.Name, w.Meta.Name)
	p.Meta.Owners = []kubeRef{{Kind: w.Kind, Name: w.Meta.Name}}
	p.Spec.Node = ""
	return p
}

// place wants the nodes where the volumes of a pod can be.
func (k *Kubernetes) place(p *kubePod, spec *borgpb.TaskSpec) {
	for _, v := range p.Spec.Volumes {
		name := kubeName{p.Meta.Namespace, p.Meta.Name + "-" + v.Name}
		switch {
		case v.Claim != nil:
			name.name = v.Claim.Name
		case v.Ephemeral == nil:
			continue
		}
		claim := k.claims[name]
		if claim == nil || claim.Spec.Volume != "" && k.disks[claim.Spec.Volume] == nil {
			k.cell.note("claims of volumes that are not there: where these can be is not known")
			continue
		}
		k.claimants[name]++
		if k.claimants[name] == 2 && len(claim.Spec.Modes) == 1 && claim.Spec.Modes[0] != "ReadWriteMany" && claim.Spec.Modes[0] != "ReadOnlyMany" {
			k.cell.note("claims that several pods share and one node at a time can have: here they may be apart")
		}
		disk := k.disks[claim.Spec.Volume]
		if disk == nil {
			k.cell.note("claims that no volume is bound to yet: it may be anywhere")
			continue
		}
		if a := disk.Spec.Affinity; a != nil && a.Required != nil {
			k.only(spec, a.Required.Terms)
		}
	}
}
