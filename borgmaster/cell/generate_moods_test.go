package cell

import (
	"fmt"
	"slices"

	"borg/proto/borgpb"
)

// Moods, for the random walk: for a while most of what happens is of one kind, and machines and
// borglets are honest, so that what takes many steps gets far.

type mood int

const (
	plainMood mood = iota
	rollingMood
	familyMood
	savingMood
	standingMood
	moods
)

// inMood makes the next op in the present mood; nil: it is as any other. A mood lasts for some
// 300 ops.
func (g *generator) inMood() *borgpb.Op {
	if g.even || g.c.format < BuildFormat {
		return nil
	}
	if g.one(300) {
		g.mood = mood(g.r.IntN(int(moods)))
	}
	if g.mood == plainMood || g.one(8) {
		return nil
	}
	switch g.r.IntN(8) {
	case 0, 1:
		return g.place()
	case 2, 3, 4:
		return g.honestReports()
	case 5:
		if g.one(2) {
			return g.machineOp()
		}
	}
	switch g.mood {
	case rollingMood:
		return g.rollOp()
	case familyMood:
		return g.familyOp()
	case savingMood:
		return g.savingOp()
	}
	return g.standingOp()
}

// place assigns what waits to machines on which it fits.
func (g *generator) place() *borgpb.Op {
	o := &borgpb.Assign{CopyIndex: g.c.Index(), Build: "walk"}
	for j := range g.c.jobs.each() {
		if g.c.Queued(j) {
			o.Enable = append(o.Enable, j.uid.String())
		}
	}
	for a := range g.c.PendingAllocs() {
		o.Assignments = append(o.Assignments, g.allocAssignment(a))
	}
	for j, i := range g.c.Pending() {
		if len(o.Assignments) >= 6 {
			break
		}
		if g.one(2) {
			o.Assignments = append(o.Assignments, g.assignment(j, i))
		}
	}
	return &borgpb.Op{Op: &borgpb.Op_Assign{Assign: o}}
}

// honestReports tell of most machines that what should run runs, and that what should stop has
// stopped; now and then that something ended.
func (g *generator) honestReports() *borgpb.Op {
	o := new(borgpb.Reports)
	for m := range g.c.Machines() {
		if m.down || g.one(4) {
			continue
		}
		mr := &borgpb.MachineReport{Machine: m.name}
		for _, p := range m.copies {
			r := &borgpb.TaskReport{JobUid: p.job.uid.String(), Index: p.index, Attempt: p.attempt, State: int32(attemptRunning), Restarts: p.restarts, Pid: 1}
			switch {
			case p.state == attemptStopping:
				r.State = int32(attemptStopped)
			case g.one(30):
				r.State = int32(attemptFailed)
			case g.one(30) || p.job.saving != nil && g.one(3):
				r.State = int32(attemptFinished)
			}
			if !attemptState(r.State).live() {
				r.Exit = &borgpb.Exit{}
			}
			g.addr(p, r)
			mr.Tasks = append(mr.Tasks, r)
		}
		o.Machines = append(o.Machines, mr)
	}
	return &borgpb.Op{Op: &borgpb.Op_Reports{Reports: o}}
}

// rollOp updates a job so that its tasks change one after another, or does something to an update
// that rolls.
func (g *generator) rollOp() *borgpb.Op {
	var rolling []*Job
	for j := range g.c.jobs.each() {
		if j.update.Rolling() {
			rolling = append(rolling, j)
		}
	}
	j := pick(g.r, rolling)
	if len(rolling) < 2 || g.one(12) {
		return g.beginRolling()
	}
	switch g.r.IntN(6) {
	case 0:
		return g.judgeGate()
	case 1:
		return g.user(&borgpb.Op{Op: &borgpb.Op_ResizeJob{ResizeJob: &borgpb.ResizeJob{User: j.key.User, Name: j.key.Name, Tasks: uint32(1 + g.r.IntN(8))}}})
	case 2:
		return g.user(&borgpb.Op{Op: &borgpb.Op_ControlUpdate{ControlUpdate: &borgpb.ControlUpdate{
			User: j.key.User, Name: j.key.Name, Verb: borgpb.UpdateVerb(1 + g.r.IntN(7)),
		}}})
	}
	return g.honestReports()
}

// beginRolling updates a job of a few tasks, which it submits if there is none.
func (g *generator) beginRolling() *borgpb.Op {
	var all []*Job
	for j := range g.c.jobs.each() {
		if j.running > 0 && j.saving == nil && j.cron == nil {
			all = append(all, j)
		}
	}
	j := pick(g.r, all)
	if j == nil || len(all) < 4 {
		user, name := g.key()
		return g.user(&borgpb.Op{Op: &borgpb.Op_SubmitJob{SubmitJob: &borgpb.SubmitJob{User: user, Name: name, Labels: g.labels(), Spec: marshal(g.t, g.smallSpec())}}})
	}
	s := g.vary(j)
	s.Task.Args = []string{"prog", fmt.Sprint(g.r.IntN(100))}
	if s.Update == nil || g.one(2) {
		s.Update = &borgpb.UpdatePolicy{BatchSize: uint32(g.r.IntN(3))}
		g.rollout(s.Update)
	}
	return g.user(&borgpb.Op{Op: &borgpb.Op_UpdateJob{UpdateJob: &borgpb.UpdateJob{User: j.key.User, Name: j.key.Name, Labels: j.labels, Spec: marshal(g.t, s)}}})
}

// smallSpec asks for little, so that it runs on most machines.
func (g *generator) smallSpec() *borgpb.JobSpec {
	s := &borgpb.JobSpec{
		Kind: pick(g.r, []borgpb.JobKind{1, 2}), Tasks: uint32(1 + g.r.IntN(6)), Priority: pick(g.r, []int32{0, 0, 110, 200}), SubmitChildren: g.one(2),
		Task: &borgpb.TaskSpec{Args: []string{"prog"}, Resources: &borgpb.Resources{CpuMilli: int64(50 + g.r.IntN(200)), MemBytes: 64 << 20}},
	}
	if g.one(4) {
		s.Task.Volumes = g.volumes(true)
	}
	if g.one(3) {
		s.DisruptionBudget = g.budget()
	}
	return s
}

// familyOp makes jobs that have parents and start after others, by users and by tasks, and ends
// some of those that others hang on.
func (g *generator) familyOp() *borgpb.Op {
	var live, above []*Job
	for j := range g.c.jobs.each() {
		if j.deathSeq != 0 || j.saving != nil {
			continue
		}
		live = append(live, j)
		if len(g.c.jobRefs.children[j.key])+len(g.c.jobRefs.followers[j.key]) > 0 {
			above = append(above, j)
		}
	}
	if j := pick(g.r, above); j != nil && g.one(12) {
		return g.user(&borgpb.Op{Op: &borgpb.Op_KillJob{KillJob: &borgpb.KillJob{User: j.key.User, Name: j.key.Name}}})
	}
	user, name := pick(g.r, []string{"ann", "bob"}), pick(g.r, []string{"a", "b", "c", "d", "e", "child-1", "child-2", "child-3"})
	s := g.smallSpec()
	on := pick(g.r, live)
	op := &borgpb.Op{Op: &borgpb.Op_SubmitJob{SubmitJob: &borgpb.SubmitJob{User: user, Name: name}}}
	switch {
	case on == nil:
	case g.one(2):
		user, s.Parent = on.key.User, on.key.String()
	case g.one(2):
		user, s.StartAfter, s.AfterFailure = on.key.User, []string{on.key.String()}, borgpb.AfterFailure(g.r.IntN(4))
	}
	op.GetSubmitJob().User, op.GetSubmitJob().Spec = user, marshal(g.t, s)
	op = g.user(op)
	op.Principal.User = user
	if s.Parent != "" && on.running > 0 && g.one(2) {
		op.Principal = &borgpb.Principal{User: user, Role: borgpb.Role_ROLE_TASK, Task: fmt.Sprintf("%v/%d", on.key, g.r.IntN(len(on.rows)))}
	}
	return op
}

// savingOp makes alloc sets that leave something to save, and has their machines emptied, lost
// and found.
func (g *generator) savingOp() *borgpb.Op {
	key := JobKey{"ann", pick(g.r, []string{"p", "q"})}
	set := g.c.AllocSet(key)
	if set == nil || set.deathSeq != 0 {
		s := g.setSpec()
		s.Priority, s.Constraints, s.Resources = pick(g.r, []int32{0, 110}), nil, &borgpb.Resources{CpuMilli: 500, MemBytes: 256 << 20}
		s.Saver = &borgpb.Saver{
			Task:   &borgpb.TaskSpec{Args: []string{"save"}, Resources: &borgpb.Resources{CpuMilli: 50, MemBytes: 64 << 20}},
			TimeNs: int64(20+g.r.IntN(200)) * second,
		}
		return g.user(&borgpb.Op{Op: &borgpb.Op_SubmitAllocSet{SubmitAllocSet: &borgpb.SubmitAllocSet{User: key.User, Name: key.Name, Spec: marshal(g.t, s)}}})
	}
	switch g.r.IntN(6) {
	case 0:
		if g.one(4) {
			return g.user(g.killAllocSet())
		}
		return g.user(g.changeSet())
	case 1, 2:
		s := g.smallSpec()
		s.AllocSet, s.Priority, s.Task.Volumes = key.String(), min(s.Priority, set.spec.Priority), nil
		name := pick(g.r, []string{"in-p", "in-q", "in-r"})
		if j := g.c.Job(JobKey{key.User, name}); j != nil && j.deathSeq == 0 && g.one(2) {
			// It leaves the set, or comes to the other one.
			if s.Kind = j.Kind(); g.one(2) {
				s.AllocSet = ""
			}
			return g.user(&borgpb.Op{Op: &borgpb.Op_UpdateJob{UpdateJob: &borgpb.UpdateJob{User: key.User, Name: name, Spec: marshal(g.t, s)}}})
		}
		return g.user(&borgpb.Op{Op: &borgpb.Op_SubmitJob{SubmitJob: &borgpb.SubmitJob{User: key.User, Name: name, Spec: marshal(g.t, s)}}})
	}
	m := pick(g.r, slices.Collect(g.c.Machines()))
	switch {
	case m == nil || g.one(3):
		return g.honestReports()
	case m.down:
		return &borgpb.Op{Op: &borgpb.Op_MachineUp{MachineUp: &borgpb.MachineUp{Name: m.name}}}
	case m.draining:
		return &borgpb.Op{Op: &borgpb.Op_DrainMachine{DrainMachine: &borgpb.DrainMachine{Name: m.name}}}
	case g.one(3):
		return &borgpb.Op{Op: &borgpb.Op_MachineDown{MachineDown: &borgpb.MachineDown{Name: m.name, Term: g.term, Reason: "no answer"}}}
	}
	return &borgpb.Op{Op: &borgpb.Op_DrainMachine{DrainMachine: &borgpb.DrainMachine{Name: m.name, Drain: true, Now: g.one(4)}}}
}
