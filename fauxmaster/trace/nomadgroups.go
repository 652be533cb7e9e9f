package trace

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"

	"borg/proto/borgpb"
)

// groups makes a job of each task group: its allocations, and what is missing of
// its count.
func (n *Nomad) groups(machines map[string]string) error {
	type groupID struct {
		job   nomadJobID
		group string
	}
	live, done := make(map[groupID][]*nomadAlloc), make(map[groupID]int64)
	for i := range n.allocs {
		a := &n.allocs[i]
		if a.ClientStatus == "complete" && a.DesiredStatus != "stop" {
			done[groupID{nomadJobID{cmp.Or(a.Namespace, "default"), a.JobID}, a.TaskGroup}]++
		}
		switch {
		case a.ended():
			n.cell.note("allocations that have ended")
		case a.stopping():
			n.cell.note("allocations that are being stopped")
		default:
			id := groupID{nomadJobID{cmp.Or(a.Namespace, "default"), a.JobID}, a.TaskGroup}
			live[id] = append(live[id], a)
		}
	}
	for id, j := range n.jobs {
		for i := range j.TaskGroups {
			if g := (groupID{id, j.TaskGroups[i].Name}); live[g] == nil && !j.Stop && j.Status != "dead" && !j.template() {
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
		if err := n.group(user, used[user], id.job, id.group, live[id], done[id], machines); err != nil {
			return fmt.Errorf("group %s of job %s: %w", brief(id.group), brief(id.job.id), err)
		}
	}
	return nil
}

func (a *nomadAlloc) ended() bool {
	return a.ClientStatus == "complete" || a.ClientStatus == "failed" || a.ClientStatus == "lost"
}

func (a *nomadAlloc) stopping() bool { return a.DesiredStatus == "stop" || a.DesiredStatus == "evict" }

// nomadTaskOf is an allocation, or one that is missing, as a task.
type nomadTaskOf struct {
	r       *borgpb.Resources
	machine string
}

// group makes the job of a task group.
func (n *Nomad) group(user string, used *names, id nomadJobID, group string, live []*nomadAlloc, done int64, machines map[string]string) error {
	spec := &borgpb.JobSpec{Kind: borgpb.JobKind_JOB_KIND_SERVICE, Priority: 250, Task: &borgpb.TaskSpec{Args: placeholder}}
	j := n.jobs[id]
	g := n.about(spec, j, group)
	var tasks []nomadTaskOf
	for _, a := range live {
		machine, ok := machines[a.NodeID]
		if !ok && a.NodeID != "" {
			machine = label(cmp.Or(a.NodeName, a.NodeID))
		}
		tasks = append(tasks, nomadTaskOf{n.allocated(a, g), machine})
	}
	missing := n.missing(j, g, int64(len(tasks)), done)
	if err := n.kept.room(missing * keptItemBytes); err != nil {
		return err
	}
	n.kept.add(missing * keptItemBytes)
	for range missing {
		tasks = append(tasks, nomadTaskOf{n.wanted(g), ""})
	}
	if len(tasks) == 0 {
		return nil
	}
	name := used.another(id.id + "-" + group)
	if j != nil && j.Type == "system" {
		var daemons []kubeTask
		for _, t := range tasks {
			of := proto.CloneOf(spec.Task)
			of.Resources = t.r
			daemons = append(daemons, kubeTask{spec: of, machine: t.machine})
		}
		n.cell.Jobs = append(n.cell.Jobs, n.cell.daemon(user, name, spec, daemons))
		return nil
	}
	n.cell.Jobs = append(n.cell.Jobs, n.together(Job{User: user, Name: name, Spec: spec}, tasks))
	return nil
}

// about takes over what a job and its task group say of all allocations.
func (n *Nomad) about(spec *borgpb.JobSpec, j *nomadJob, group string) *nomadGroup {
	if j == nil {
		n.cell.note("allocations of jobs that are not there: priority 50 and no constraints")
		return nil
	}
	if j.Type == "sysbatch" {
		n.cell.note("allocations of sysbatch jobs, which run once on each node: here they are tasks of a batch job")
	}
	n.like(spec, j)
	n.constrain(spec, j.Constraints, len(j.TaskGroups) > 1)
	n.datacenters(spec, j.Datacenters)
	n.pool(spec, j.NodePool)
	if len(j.Affinities)+len(j.Spreads) > 0 {
		n.cell.note("jobs with affinities or spreads")
	}
	at := slices.IndexFunc(j.TaskGroups, func(g nomadGroup) bool { return g.Name == group })
	if at < 0 {
		return nil
	}
	g := &j.TaskGroups[at]
	n.constrain(spec, g.all(), false)
	n.drivers(spec, g)
	n.hostVolumes(spec, g)
	if len(g.Affinities)+len(g.Spreads) > 0 || slices.ContainsFunc(g.Tasks, func(t nomadTask) bool { return len(t.Affinities) > 0 }) {
		n.cell.note("task groups with affinities or spreads")
	}
	if g.hasStaticPort() {
		spec.MaxPerMachine = 1
		n.cell.note("task groups with static ports: here only those of one group are kept off each other's machines")
	}
	return g
}

// missing is how many allocations there should be and are not. What a batch job has done
// is not done again, and a system job needs only one to be a daemon.
func (n *Nomad) missing(j *nomadJob, g *nomadGroup, live, done int64) int64 {
	if g == nil || j.Stop || j.Status == "dead" || j.template() {
		return 0
	}
	count := int64(1)
	if g.Count != nil {
		count = *g.Count
	}
	switch j.Type {
	case "system":
		return max(min(count, 1)-live, 0)
	case "sysbatch":
		return 0
	case "batch":
		live += done
	}
	return max(min(count, maxIndex2011)-live, 0)
}

// together makes tasks of one job of allocations that may be of different sizes.
func (n *Nomad) together(j Job, tasks []nomadTaskOf) Job {
	spec := j.Spec
	words := func(r *borgpb.Resources) string {
		return fmt.Sprint(r.CpuMilli, r.MemBytes, r.DiskBytes, r.Devices)
	}
	slices.SortStableFunc(tasks, func(a, b nomadTaskOf) int { return strings.Compare(words(a.r), words(b.r)) })
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
	return j
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
