package trace

import (
	"fmt"
	"slices"

	"borg/proto/borgpb"
)

const secondNs = int64(1e9)

// openbPriorities are ours for the classes of openb, which has no priorities.
var openbPriorities = map[string]int32{"LS": 200, "Guaranteed": 115, "Burstable": 115, "BE": 100}

// Recorded is a cell of all machines, with nothing in it, at which the pods arrive when
// they came, and from which they go when they went: a job of one task each. Pods that
// ended by themselves do so after as long as they ran; others are killed
// when they were deleted. Pods without times are left out and noted.
func (o *Openb) Recorded() *Cell {
	c := &Cell{}
	var models []string
	for i := range o.Machines {
		m := &o.Machines[i]
		if m.Model != "" && !slices.Contains(models, m.Model) {
			models = append(models, m.Model)
		}
		c.Machines = append(c.Machines, m.machine())
	}
	slices.Sort(models)
	for i := range o.Pods {
		p := &o.Pods[i]
		if !p.Timed {
			c.note("pods left out, as the list has no times")
			continue
		}
		c.LastNs = max(c.LastNs, p.EndS*secondNs)
		j := Job{User: "openb", Name: fmt.Sprintf("pod-%d", i), Spec: &borgpb.JobSpec{
			Kind: borgpb.JobKind_JOB_KIND_BATCH, Tasks: 1, Priority: openbPriorities[p.QoS], Task: p.spec(models),
		}}
		h := p.history()
		SetHistories(j.Spec, []History{h})
		c.Arrivals = append(c.Arrivals, Arrival{AtNs: p.SubmitS * secondNs, Op: j.Op(), Histories: []History{h}})
		if h.final() == Killed {
			c.Arrivals = append(c.Arrivals, Arrival{AtNs: p.EndS * secondNs, Op: killJob(&j)})
		}
	}
	c.sortArrivals()
	return c
}

// history is what became of a pod.
func (p *OpenbPod) history() History {
	how, ok := map[string]End{"Succeeded": Finished, "Failed": Failed}[p.Phase]
	if !ok {
		how = Killed
	}
	r := Run{WaitNs: (p.EndS - p.SubmitS) * secondNs, RunNs: NeverRan, End: Killed}
	if p.ScheduleS >= 0 {
		r = Run{WaitNs: (p.ScheduleS - p.SubmitS) * secondNs, RunNs: (p.EndS - p.ScheduleS) * secondNs, End: how}
	}
	return History{Runs: []Run{r}}
}
