package trace

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"borg/proto/borgpb"
)

// request2011 is what a task asks for; tasks with the same are alike.
type request2011 struct {
	// constraints in words, so that they can be compared.
	constraints        string
	cpuMilli, memBytes int64
}

// row2011 is a task that becomes one of ours.
type row2011 struct {
	request2011
	id task2011ID
	t  *task2011
	// chain is what became of it; nil: nobody asks.
	chain *chain2011
}

// rows are the tasks to make jobs of, those of a job of the trace side by side.
func (g *Google2011) rows(c *Cell) (all []row2011) {
	add := func(id task2011ID, t *task2011, chain *chain2011) {
		if !t.known() {
			c.Unknown++
			return
		}
		all = append(all, row2011{request2011{
			constraintWords(g.constraintsOf(id, t)), asked(t.cpu, g.largest.CPUMilli), asked(t.mem, g.largest.MemBytes),
		}, id, t, chain})
	}
	if g.follow != nil {
		g.follow.close()
		for _, chain := range g.follow.all {
			add(chain.id, chain.t, chain)
		}
		return all
	}
	for _, id := range slices.SortedFunc(maps.Keys(g.tasks), func(a, b task2011ID) int {
		return cmp.Or(cmp.Compare(a.job, b.job), cmp.Compare(a.index, b.index))
	}) {
		add(id, g.tasks[id], nil)
	}
	return all
}

// jobs makes jobs of the tasks of one: one for each priority that they have, and
// for each moment at which they came and went.
// Where one of them says that no two may share a machine, it holds for all of a job.
func (g *Google2011) jobs(c *Cell, all []row2011) {
	different := slices.ContainsFunc(all, func(r row2011) bool { return r.t.different })
	// Stable: tasks that are alike keep their order. Those without constraints
	// come first, since an override can add constraints and not take them away.
	slices.SortStableFunc(all, func(a, b row2011) int {
		return cmp.Or(cmp.Compare(b.t.priority, a.t.priority), a.chain.compare(b.chain), cmp.Compare(a.constraints, b.constraints),
			cmp.Compare(a.cpuMilli, b.cpuMilli), cmp.Compare(a.memBytes, b.memBytes))
	})
	for len(all) > 0 {
		end := jobEnd(all)
		g.job(c, all[:end], different)
		all = all[end:]
	}
}

// jobEnd is how many of the tasks make one job.
func jobEnd(all []row2011) int {
	end, requests, bytes := 1, 1, 0
	for end < len(all) && all[end].t.priority == all[0].t.priority && !all[end].chain.apart(all[0].chain) {
		if all[end].request2011 != all[end-1].request2011 {
			requests++
		}
		if all[end].chain != nil {
			bytes += 12 + 12*len(all[end].chain.Runs)
		}
		if requests > maxRequests2011 || bytes > maxHistoryBytes {
			break
		}
		end++
	}
	return end
}

// job makes one job.
func (g *Google2011) job(c *Cell, one []row2011, different bool) {
	first := one[0]
	j := g.begin(first)
	j.Spec.Tasks = uint32(len(one))
	if different {
		j.Spec.MaxPerMachine = 1
	}
	for i, o := range one {
		switch {
		case i == 0:
			g.fill(j.Spec.Task, o)
		case o.request2011 != one[i-1].request2011:
			over := &borgpb.TaskOverride{First: uint32(i), Last: uint32(i), Spec: &borgpb.TaskSpec{}}
			g.fill(over.Spec, o)
			j.Spec.Overrides = append(j.Spec.Overrides, over)
		case o.request2011 != first.request2011:
			j.Spec.Overrides[len(j.Spec.Overrides)-1].Last = uint32(i)
		}
		if o.chain == nil || o.chain.here {
			j.Machines = append(j.Machines, g.place(c, o.t))
			if j.Spec.AllocSet != "" {
				j.enter(g.allocOf(o.t))
			}
		}
	}
	if first.chain == nil {
		c.Jobs = append(c.Jobs, j)
		return
	}
	chains := make([]*chain2011, len(one))
	for i := range one {
		chains[i] = one[i].chain
	}
	g.follow.tell(c, &j, chains)
}

// place is the name of a task's machine.
func (g *Google2011) place(c *Cell, t *task2011) string {
	if t.machine == 0 {
		return ""
	}
	if m := g.machines[t.machine]; m == nil || !m.here {
		c.Strangers++
	}
	return g.machineNamed(t.machine)
}

func (g *Google2011) fill(spec *borgpb.TaskSpec, r row2011) {
	spec.Resources = &borgpb.Resources{CpuMilli: r.cpuMilli, MemBytes: r.memBytes}
	spec.Constraints = g.constraintsOf(r.id, r.t)
}

// constraintsOf are those of a task, from the table of them or with the task.
func (g *Google2011) constraintsOf(id task2011ID, t *task2011) []*borgpb.Constraint {
	if k := g.constraints[id]; k != nil {
		return k.list
	}
	return t.constraints
}

func constraintWords(list []*borgpb.Constraint) string {
	var words strings.Builder
	for _, one := range list {
		fmt.Fprintf(&words, "%s\x00%d\x00%s\x00", one.Key, one.Relation, one.Value)
	}
	return words.String()
}

// priorities are ours for those of 2011: free (0 and 1), batch (2 to 8),
// production (9 and 10), monitoring (11).
var priorities = [12]int16{0, 25, 100, 102, 104, 106, 108, 110, 112, 200, 300, 400}

// priority2011 reads a priority, and gives ours.
func (r *rows) priority2011(column int) int16 {
	return priorities[r.integer(column, 0, int64(len(priorities))-1)]
}

func jobSpec2011(t *task2011) *borgpb.JobSpec {
	spec := &borgpb.JobSpec{
		Kind: borgpb.JobKind_JOB_KIND_BATCH, Priority: int32(t.priority),
		Task: &borgpb.TaskSpec{Args: placeholder, AppClass: borgpb.AppClass_APP_CLASS_BATCH},
	}
	if TierOf(int32(t.priority)) >= Production {
		spec.Kind = borgpb.JobKind_JOB_KIND_SERVICE
	}
	if t.class >= 2 {
		spec.Task.AppClass = borgpb.AppClass_APP_CLASS_LATENCY_SENSITIVE
	}
	return spec
}
