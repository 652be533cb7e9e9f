package main

import (
	"context"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"borg/borgmaster/cell"
	"borg/fauxmaster/fleet"
	"borg/proto/borgpb"
)

// Scenarios about where tasks run.

func constrained(key string, relation borgpb.Relation, value string, soft bool) *borgpb.JobSpec {
	spec := sized(1, 1<<20)
	spec.Task.Constraints = []*borgpb.Constraint{{Key: key, Relation: relation, Value: value, Soft: soft}}
	return spec
}

// A hard constraint that no machine meets waits and says so, a soft one does not wait;
// each relation finds the one machine that is like that.
func constraints(t *testing.T, s *scenarios) {
	names := s.names(t)
	if r := s.asks(t, s.ann, "ann", "arm", constrained("arch", borgpb.Relation_RELATION_EQUAL, "arm", false)); r != nil {
		t.Fatal(r)
	}
	s.why(t, "ann", "arm", 0, fmt.Sprintf("0 of %d machines", len(names)))
	if r := s.asks(t, s.ann, "ann", "arm-soft", constrained("arch", borgpb.Relation_RELATION_EQUAL, "arm", true)); r != nil {
		t.Fatal(r)
	}
	s.until(t, "ann", "arm-soft", "it runs although no machine is like that", allStarted)
	// One machine is at 3, all others at 5, and one of those is odd.
	for i, name := range names {
		level := map[string]string{"level": "5", "plain": "yes"}
		if i == 0 {
			level["level"] = "3"
		} else if i == 1 {
			level = map[string]string{"level": "7", "odd": "yes"}
		}
		s.set(t, name, level)
		t.Cleanup(func() {
			ctx, cancel := context.WithTimeout(context.Background(), patience)
			defer cancel()
			o := &borgpb.SetMachine{Name: name, RemoveAttributes: []string{"level"}}
			if _, err := s.client.Mutate(ctx, &borgpb.Op{Op: &borgpb.Op_SetMachine{SetMachine: o}}); err != nil {
				t.Error(err)
			}
		})
	}
	for _, q := range []struct {
		key      string
		relation borgpb.Relation
		value    string
		where    int
	}{
		{"level", borgpb.Relation_RELATION_EQUAL, "3", 0},
		{"plain", borgpb.Relation_RELATION_NOT_EQUAL, "yes", 1},
		{"level", borgpb.Relation_RELATION_LESS_THAN, "5", 0},
		{"level", borgpb.Relation_RELATION_GREATER_THAN, "5", 1},
		{"level", borgpb.Relation_RELATION_LESS_THAN_EQUAL, "3", 0},
		{"level", borgpb.Relation_RELATION_GREATER_THAN_EQUAL, "7", 1},
		{"odd", borgpb.Relation_RELATION_PRESENT, "", 1},
		{"plain", borgpb.Relation_RELATION_NOT_PRESENT, "", 1},
	} {
		name := fmt.Sprint("rel", int32(q.relation))
		if r := s.asks(t, s.ann, "ann", name, constrained(q.key, q.relation, q.value, false)); r != nil {
			t.Fatal(r)
		}
		s.until(t, "ann", name, fmt.Sprintf("a task with %v runs", q.relation), allStarted)
		if at := s.tasksOf(t, "ann", name)[0].Status.Machine; at != names[q.where] {
			t.Errorf("%s %v %q runs on %s, want %s", q.key, q.relation, q.value, at, names[q.where])
		}
	}
}

// racks makes six racks of two machines each, three in each of two power domains. Rack 0
// is what vanishes when 2 of every 12 machines do, power domain 0 when 6 do.
func (s *scenarios) racks(t *testing.T) (rack, power map[string]string) {
	t.Helper()
	rack, power = map[string]string{}, map[string]string{}
	for _, name := range s.names(t) {
		i := s.machineNumber(name) % s.Machines
		rack[name], power[name] = fmt.Sprint("rack", i/2), fmt.Sprint("power", i/6)
		s.set(t, name, map[string]string{"rack": rack[name], "power": power[name]})
	}
	return rack, power
}

// across counts the tasks of a job in each domain.
func (s *scenarios) across(t *testing.T, name string, domain map[string]string) map[string]int {
	n := map[string]int{}
	for _, x := range s.tasksOf(t, "ann", name) {
		n[domain[x.Status.Machine]]++
	}
	return n
}

// 12 tasks on 6 racks in 2 power domains are 2 in each rack and 6 in each power domain,
// without being asked; with a rack at most 2 of them are lost.
func failureDomains(t *testing.T, s *scenarios) {
	rack, _ := s.spread(t)
	s.killDomain(t, "rack0", rack, 2)
}

// TestScenario22Power has a whole power domain vanish, with which at most 6 of 12 tasks are
// lost. It has a cell of its own, because a cell gives up a tenth of its machines in a minute,
// and that of all scenarios has lost a rack.
func TestScenario22Power(t *testing.T) {
	alongside(t)
	c := fakeCell(t, 5, 12, fleet.Life{})
	if err := c.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	c.hasLatestFormat(t)
	s := &scenarios{Cell: c, ann: c.clientOf(t, "ann", new(atomic.Int64))}
	_, power := s.spread(t)
	s.killDomain(t, "power0", power, 6)
}

// spread runs 12 tasks, which are 2 in each rack and 6 in each power domain.
func (s *scenarios) spread(t *testing.T) (rack, power map[string]string) {
	t.Helper()
	rack, power = s.racks(t)
	if r := s.asks(t, s.ann, "ann", "spread", sized(12, 1<<20)); r != nil {
		t.Fatal(r)
	}
	s.until(t, "ann", "spread", "all tasks run", allStarted)
	for name, n := range s.across(t, "spread", rack) {
		if n != 2 {
			t.Errorf("%d tasks in %s, want 2", n, name)
		}
	}
	for name, n := range s.across(t, "spread", power) {
		if n != 6 {
			t.Errorf("%d tasks in %s, want 6", n, name)
		}
	}
	return rack, power
}

// killDomain has the machines of a domain vanish, each of which runs a task, and wants no
// other task to be touched: of the domain's, those are placed elsewhere whose machines are
// given up, as fast as the cell gives machines up; none runs twice when all are back.
func (s *scenarios) killDomain(t *testing.T, name string, domain map[string]string, most int) {
	t.Helper()
	attempts := func() map[uint32]uint64 {
		at := map[uint32]uint64{}
		for _, x := range s.tasksOf(t, "ann", "spread") {
			at[x.Index] = x.Status.Attempt
		}
		return at
	}
	there := map[uint32]bool{}
	for _, x := range s.tasksOf(t, "ann", "spread") {
		there[x.Index] = domain[x.Status.Machine] == name
	}
	before := attempts()
	tell := func(part int) {
		t.Helper()
		if err := s.FakeVanish(shortly(t), part, s.Machines); err != nil {
			t.Fatal(err)
		}
	}
	tell(most)
	moved := func() (n int) {
		for index, attempt := range attempts() {
			if attempt == before[index] {
				continue
			}
			if n++; !there[index] {
				t.Errorf("%s is gone, and task %d, which was not there, was moved", name, index)
			}
		}
		return n
	}
	waitFor(t, "a task of "+name+" is placed elsewhere", func() string {
		if moved() == 0 {
			return "none is"
		}
		return ""
	})
	tell(0)
	s.until(t, "ann", "spread", "all tasks run, and none twice", func(j *borgpb.Job) bool {
		return allStarted(j) && j.Status.GetStopping() == 0
	})
	waitFor(t, "all machines are back", func() string {
		for name, m := range s.machines(t) {
			if m.Status.State != borgpb.MachineState_MACHINE_STATE_UP {
				return name + " is down"
			}
		}
		return ""
	})
	if n := moved(); n > most {
		t.Errorf("%d tasks were lost with %s, want at most %d", n, name, most)
	}
}

// At most 2 of a rack, and 12 of 14 tasks find a place; the others say why.
func limitPerRack(t *testing.T, s *scenarios) {
	rack, _ := s.racks(t)
	spec := sized(14, 1<<20)
	spec.MaxPerRack = 2
	if r := s.asks(t, s.ann, "ann", "limited", spec); r != nil {
		t.Fatal(r)
	}
	s.until(t, "ann", "limited", "12 of 14 run", func(j *borgpb.Job) bool { return j.Status.GetStarted() == 12 })
	waits := slices.IndexFunc(s.tasksOf(t, "ann", "limited"), func(x *borgpb.Task) bool { return x.Status.GetState() == borgpb.State_STATE_PENDING })
	s.why(t, "ann", "limited", uint32(waits), "rack")
	for name, n := range s.across(t, "limited", rack) {
		if name != "" && n != 2 {
			t.Errorf("%d tasks in %s, want 2", n, name)
		}
	}
}

// Two tasks with three ports each on one machine share no port; where five are left, who
// asks for six has no place.
func portsOfAMachine(t *testing.T, s *scenarios) {
	at := s.names(t)[3]
	run := func(name string, tasks, ports int) {
		t.Helper()
		if r := s.asks(t, s.ann, "ann", name, withPorts(at, tasks, ports)); r != nil {
			t.Fatal(r)
		}
	}
	run("ports", 2, 3)
	s.until(t, "ann", "ports", "both tasks run", allStarted)
	granted := map[uint32]bool{}
	for _, x := range s.tasksOf(t, "ann", "ports") {
		for _, p := range x.Status.Ports {
			granted[p] = true
		}
	}
	if len(granted) != 6 {
		t.Errorf("two tasks have the ports %v, want six different ones", granted)
	}
	const most, free = 16, 5
	spec := s.machines(t)[at].Spec
	taken := int(spec.PortLast-spec.PortFirst) + 1 - len(granted) - free
	run("fill", taken/most, most)
	s.until(t, "ann", "fill", "nearly all ports are granted", allStarted)
	run("last", 1, taken%most)
	s.until(t, "ann", "last", "five ports are left", allStarted)
	run("more", 1, free+1)
	s.why(t, "ann", "more", 0, "ports")
	run("fits", 1, free)
	s.until(t, "ann", "fits", "who asks for five has them", allStarted)
}

// withPorts is a job on one machine whose tasks have so many ports.
func withPorts(machine string, tasks, ports int) *borgpb.JobSpec {
	spec := constrained(cell.NameAttribute, borgpb.Relation_RELATION_EQUAL, machine, false)
	spec.Tasks = uint32(tasks)
	for i := range ports {
		spec.Task.Ports = append(spec.Task.Ports, fmt.Sprint("p", i))
	}
	return spec
}

// What starts after a job waits until that has finished; if it is killed instead, what
// starts after it goes on to wait, starts all the same or ends, as it says, and its child
// ends with it.
func dependencies(t *testing.T, s *scenarios) {
	batch := sized(2, 1<<20)
	batch.Kind = borgpb.JobKind_JOB_KIND_BATCH
	after := func(name string) *borgpb.JobSpec {
		spec := sized(1, 1<<20)
		spec.StartAfter = []string{"ann/" + name}
		return spec
	}
	if r := s.asks(t, s.ann, "ann", "a", batch); r != nil {
		t.Fatal(r)
	}
	if r := s.asks(t, s.ann, "ann", "b", after("a")); r != nil {
		t.Fatal(r)
	}
	b := s.until(t, "ann", "b", "b runs", allStarted)
	if a := s.until(t, "ann", "a", "a has finished", finished); a.Status.GetDead() != 2 || b.Status.GetStarted() != 1 {
		t.Errorf("b runs and a is %v", a.Status)
	}

	if r := s.asks(t, s.ann, "ann", "long", sized(1, 1<<20)); r != nil {
		t.Fatal(r)
	}
	if r := s.asks(t, s.ann, "ann", "held", after("long")); r != nil {
		t.Fatal(r)
	}
	child := sized(1, 1<<20)
	child.Parent = "ann/long"
	if r := s.asks(t, s.ann, "ann", "child", child); r != nil {
		t.Fatal(r)
	}
	s.until(t, "ann", "child", "the child runs", allStarted)
	for name, then := range map[string]borgpb.AfterFailure{"runs": borgpb.AfterFailure_AFTER_FAILURE_RUN, "dies": borgpb.AfterFailure_AFTER_FAILURE_DIE} {
		spec := after("long")
		spec.AfterFailure = then
		if r := s.asks(t, s.ann, "ann", name, spec); r != nil {
			t.Fatal(r)
		}
	}
	s.must(t, killOf("ann", "long"))
	s.until(t, "ann", "runs", "what starts all the same runs", allStarted)
	s.until(t, "ann", "dies", "what ends with it is dead", func(j *borgpb.Job) bool { return j.Status.GetDead() == 1 })
	s.until(t, "ann", "child", "the child is dead with its parent", func(j *borgpb.Job) bool { return j.Status.GetDead() == 1 })
	if j, err := s.job(shortly(t), "ann", "held"); err != nil || j.Status.GetPending() != 1 {
		t.Errorf("what starts after a job that was killed is %v, %v; want it to wait", j.GetStatus(), err)
	}
}

// A daemon job has a task for each machine that matches. Ten machines come and it has ten
// more; one goes and leaves a hole at its index, and others are not renumbered; when it is
// back the hole is taken again.
func daemonsFollow(t *testing.T, s *scenarios) {
	names := s.names(t)
	match := func(lamp string, names ...string) {
		for _, name := range names {
			s.set(t, name, map[string]string{"lamp": lamp})
		}
	}
	match("on", names[:2]...)
	defer match("", names...)
	spec := constrained("lamp", borgpb.Relation_RELATION_PRESENT, "", false)
	spec.Kind, spec.Tasks = borgpb.JobKind_JOB_KIND_DAEMON, 0
	if r := s.asks(t, s.ann, "ann", "daemon", spec); r != nil {
		t.Fatal(r)
	}
	at := func(n int) map[string]uint32 {
		s.until(t, "ann", "daemon", fmt.Sprintf("%d tasks run", n), func(j *borgpb.Job) bool {
			return int(j.Status.GetStarted()) == n && j.Status.GetPending()+j.Status.GetStopping() == 0
		})
		at := map[string]uint32{}
		for _, x := range s.tasksOf(t, "ann", "daemon") {
			if x.Status.GetState() == borgpb.State_STATE_RUNNING {
				at[x.Status.Machine] = x.Index
			}
		}
		return at
	}
	keep := func(when string, before, now map[string]uint32) {
		t.Helper()
		for name, index := range before {
			if is, there := now[name]; there && is != index {
				t.Errorf("the task on %s was %d and is %d when %s", name, index, is, when)
			}
		}
	}
	first := at(2)
	match("on", names[2:]...)
	all := at(len(names))
	if len(all) != 12 {
		t.Fatalf("they are on %v, want ten more than %v", all, first)
	}
	keep("machines came", first, all)
	gone := names[4]
	match("", gone)
	without := at(len(names) - 1)
	if index, still := without[gone]; still {
		t.Errorf("task %d is left on %s, which no longer matches", index, gone)
	}
	keep("a machine went", all, without)
	for name, index := range without {
		if index == all[gone] {
			t.Errorf("the hole at %d is taken by %s", index, name)
		}
	}
	match("on", gone)
	again := at(len(names))
	keep("it came back", without, again)
	if again[gone] != all[gone] {
		t.Errorf("on %s is task %d, want it in the hole at %d", gone, again[gone], all[gone])
	}
}

// Who forgives a taint for a while stays for so long, and goes then; who does not goes
// at once.
func forgiveness(t *testing.T, s *scenarios) {
	at := s.names(t)[5]
	patient := constrained(cell.NameAttribute, borgpb.Relation_RELATION_EQUAL, at, false)
	const forgives = 3 * time.Second
	patient.Task.Tolerations = []*borgpb.Toleration{{Key: "smoke", ForgivenessNs: int64(forgives)}}
	if r := s.asks(t, s.ann, "ann", "patient", patient); r != nil {
		t.Fatal(r)
	}
	if r := s.asks(t, s.ann, "ann", "hasty", constrained(cell.NameAttribute, borgpb.Relation_RELATION_EQUAL, at, false)); r != nil {
		t.Fatal(r)
	}
	s.until(t, "ann", "patient", "it runs", allStarted)
	s.until(t, "ann", "hasty", "it runs", allStarted)
	s.must(t, &borgpb.Op{Op: &borgpb.Op_SetMachine{SetMachine: &borgpb.SetMachine{Name: at, SetTaints: []*borgpb.Taint{{Key: "smoke", Evict: true}}}}})
	tainted := time.Now()
	gone := func(j *borgpb.Job) bool { return j.Status.GetPending() == 1 && j.Status.GetStopping() == 0 }
	s.until(t, "ann", "hasty", "who does not forgive is gone", gone)
	s.until(t, "ann", "patient", "who forgives is gone", gone)
	if stayed := time.Since(tainted); stayed < forgives-100*time.Millisecond {
		t.Errorf("who forgives for %v was gone after %v", forgives, stayed)
	}
	s.must(t, &borgpb.Op{Op: &borgpb.Op_SetMachine{SetMachine: &borgpb.SetMachine{Name: at, RemoveTaints: []string{"smoke"}}}})
	s.until(t, "ann", "patient", "it runs again", allStarted)
}

// With a budget of one, of two machines that are emptied at once the second waits until
// what the first gave up runs elsewhere.
func budgetOfTwoDrains(t *testing.T, s *scenarios) {
	spec := sized(5, 1<<20)
	spec.MaxPerMachine, spec.DisruptionBudget = 1, &borgpb.DisruptionBudget{MaxDown: 1}
	// Five machines and no other, so that nobody has a place elsewhere.
	names := s.names(t)[:5]
	for _, name := range names {
		s.set(t, name, map[string]string{"five": "yes"})
	}
	spec.Task.Constraints = []*borgpb.Constraint{{Key: "five", Relation: borgpb.Relation_RELATION_PRESENT}}
	if r := s.asks(t, s.ann, "ann", "budget", spec); r != nil {
		t.Fatal(r)
	}
	s.until(t, "ann", "budget", "all tasks run", allStarted)
	drain := func(name string, on bool) {
		s.must(t, &borgpb.Op{Op: &borgpb.Op_DrainMachine{DrainMachine: &borgpb.DrainMachine{Name: name, Drain: on}}})
	}
	drain(names[0], true)
	drain(names[1], true)
	s.until(t, "ann", "budget", "one of two has gone", func(j *borgpb.Job) bool { return j.Status.GetPending() == 1 && j.Status.GetStarted() == 4 })
	on := map[string]bool{}
	for _, x := range s.tasksOf(t, "ann", "budget") {
		on[x.Status.Machine] = true
	}
	if on[names[0]] == on[names[1]] {
		t.Errorf("of two machines that are emptied, a task is on %v; want one to wait", on)
	}
	drain(names[0], false)
	s.until(t, "ann", "budget", "the other has gone, and the first is used again", func(j *borgpb.Job) bool {
		if j.Status.GetStarted() != 4 || j.Status.GetPending() != 1 {
			return false
		}
		return !slices.ContainsFunc(s.tasksOf(t, "ann", "budget"), func(x *borgpb.Task) bool { return x.Status.Machine == names[1] })
	})
	drain(names[1], false)
	s.until(t, "ann", "budget", "all run again", allStarted)
}
