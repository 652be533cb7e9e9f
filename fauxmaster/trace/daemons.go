package trace

import (
	"slices"

	"google.golang.org/protobuf/proto"

	"borg/proto/borgpb"
)

// daemon makes a daemon job of the pods of a DaemonSet, or of the allocations of a
// system job: one task on each machine that matches. All of them ask for what the
// largest asks for. What ran somewhere goes on there: taints that would keep it from such a
// machine do not bind it.
func (c *Cell) daemon(user, name string, spec *borgpb.JobSpec, pods []kubeTask) Job {
	j := Job{User: user, Name: name, Spec: spec}
	spec.Kind, spec.Tasks, spec.Overrides = borgpb.JobKind_JOB_KIND_DAEMON, 0, nil
	spec.MaxPerMachine, spec.MaxPerRack, spec.MaxPerPower = 0, 0, 0
	spec.Task, spec.MaxPer, spec.DisruptionBudget = proto.CloneOf(pods[0].spec), nil, nil
	spec.Task.Tolerations = slices.DeleteFunc(spec.Task.Tolerations, func(t *borgpb.Toleration) bool {
		if t.ForgivenessNs > 0 {
			c.note("tolerations for a time of daemons, which tolerate for good or not at all")
		}
		return t.ForgivenessNs > 0
	})
	most := spec.Task.Resources
	for i := range pods {
		if !proto.Equal(pods[i].spec.Resources, pods[0].spec.Resources) {
			c.note("daemons of one set that ask for other amounts than the first: all are given the largest of each")
			atLeast(most, pods[i].spec.Resources)
		}
		j.Machines = append(j.Machines, pods[i].machine)
	}
	c.letStay(&j)
	return j
}

// atLeast raises each amount to the one in of.
func atLeast(r, of *borgpb.Resources) {
	r.CpuMilli, r.MemBytes, r.DiskBytes = max(r.CpuMilli, of.CpuMilli), max(r.MemBytes, of.MemBytes), max(r.DiskBytes, of.DiskBytes)
	for name, n := range of.Devices {
		if r.Devices == nil {
			r.Devices = make(map[string]int64)
		}
		r.Devices[name] = max(r.Devices[name], n)
	}
}

// letStay takes away what would keep a daemon from a machine where it ran.
func (c *Cell) letStay(j *Job) {
	at := make(map[string]bool)
	for _, name := range j.Machines {
		at[name] = true
	}
	for i := range c.Machines {
		m := &c.Machines[i]
		if !at[m.Name] {
			continue
		}
		for _, t := range m.Spec.Taints {
			if !t.PreferNot && !tolerates(j.Spec.Task, t) && len(j.Spec.Task.Tolerations) < maxTolerations {
				c.note("daemons on machines with taints that came later: they tolerate them")
				j.Spec.Task.Tolerations = append(j.Spec.Task.Tolerations, &borgpb.Toleration{Key: t.Key, Value: t.Value})
			}
		}
	}
}

// tolerates reports whether a task tolerates a taint for good.
func tolerates(task *borgpb.TaskSpec, taint *borgpb.Taint) bool {
	for _, t := range task.GetTolerations() {
		if t.Key == taint.Key && (t.Value == "" || t.Value == taint.Value) && t.ForgivenessNs == 0 {
			return true
		}
	}
	return false
}
