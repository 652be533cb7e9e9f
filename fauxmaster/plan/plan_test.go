package plan_test

import (
	"bytes"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	"borg/borgmaster/cell"
	"borg/fauxmaster/plan"
	"borg/proto/borgpb"
	"borg/scheduler"
)

// recordsOf is the whole cell as it is written down.
func recordsOf(c *cell.Cell) []byte {
	var b bytes.Buffer
	for k, v := range c.Records() {
		b.Write(k)
		b.Write(v)
	}
	return b.Bytes()
}

// placed counts the tasks of a job that have a place.
func placed(c *cell.Cell, key cell.JobKey) (n int) {
	_, running, _ := c.Job(key).Counts()
	return int(running)
}

// TestFit asks how many more fit, and then submits so many, and one more.
func TestFit(t *testing.T) {
	eachSeed(t, func(t *testing.T, d *drawn) {
		spec := d.job(1 << 40)
		q := plan.FitQuestion{Jobs: []plan.Wanted{{User: "ann", Name: "new", Spec: spec}}, NoPreemption: d.r.IntN(2) == 0, CountPer: "rack"}
		before := recordsOf(d.cell)
		a, err := plan.Fit(d.cell, search, q)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(before, recordsOf(d.cell)) {
			t.Error("the question changed the cell")
		}
		if a.AtLeast || a.Unit != "tasks" {
			t.Fatalf("%+v, want a count of tasks", a)
		}
		per := 0
		for _, n := range a.Per {
			per += n.Count
		}
		if per != a.Count {
			t.Errorf("%d places, by rack %v", a.Count, a.Per)
		}
		key := cell.JobKey{User: "ann", Name: "new"}
		for _, n := range []int{a.Count, a.Count + 1} {
			if n == 0 {
				continue
			}
			l := newLive(t, copyOf(t, d.cell))
			want := proto.CloneOf(spec)
			want.Tasks = uint32(n)
			if q.NoPreemption {
				want.Preempt = borgpb.Preempt_PREEMPT_NEVER
			}
			l.must(submit("new", want))
			l.settle()
			if got := placed(l.cell, key); got != a.Count {
				t.Errorf("fit says %d; of %d tasks that were submitted %d have a place", a.Count, n, got)
			}
			if n == a.Count && l.evicted != a.Evicted {
				t.Errorf("fit says that %d tasks would give way, %d did", a.Evicted, l.evicted)
			}
		}
		if t.Failed() {
			t.Logf("the job: %v, without preemption: %v", spec, q.NoPreemption)
		}
	})
}

// TestFitSets fits two jobs in together.
func TestFitSets(t *testing.T) {
	l := newLive(t, cell.New("c", 1))
	for i := range 3 {
		l.must(addMachine(fmt.Sprintf("m%d", i), 10_000, 40<<30, nil))
	}
	// A set takes 7 cores: 3 + 2*2. Four of 30 would be 28 cores, in pieces of 3, 2
	// and 2 that fill 10, 10 and 8 of the machines.
	a, err := plan.Fit(l.cell, search, plan.FitQuestion{Jobs: []plan.Wanted{
		{User: "ann", Name: "a", Spec: job(1, 200, 3000, 1<<30)}, {User: "ann", Name: "b", Spec: job(2, 200, 2000, 1<<30)},
	}})
	if err != nil || a.Count != 4 || a.Unit != "sets" || a.AtLeast {
		t.Errorf("%+v, %v; want 4 sets", a, err)
	}
	gang := job(4, 200, 4000, 1<<30)
	gang.Gang = true
	// Two tasks of 4 cores on each machine: one gang of four, and no second one.
	if a, err = plan.Fit(l.cell, search, plan.FitQuestion{Jobs: []plan.Wanted{{User: "ann", Name: "g", Spec: gang}}}); err != nil || a.Count != 1 || a.Unit != "sets" {
		t.Errorf("%+v, %v; want 1 gang", a, err)
	}
}

// TestFitTooMany stops at what one job can have.
func TestFitTooMany(t *testing.T) {
	l := newLive(t, cell.New("c", 1))
	l.must(addMachine("m", 1_000_000, 1<<50, nil))
	a, err := plan.Fit(l.cell, search, plan.FitQuestion{Jobs: []plan.Wanted{{User: "ann", Name: "tiny", Spec: job(1, 200, 500_000, 1)}}, Scales: []int{1, 2, 4}})
	if err != nil || a.Count != 2 || a.AtLeast {
		t.Errorf("%+v, %v; want 2", a, err)
	}
	want := []int64{2000, 1000, 500}
	for i, s := range a.Largest {
		if s.Permille != want[i] || s.CPUMilli != 500*want[i] {
			t.Errorf("%d times %+v, want %d thousandths", s.Copies, s, want[i])
		}
	}
}

// TestLargest holds the curve to the scheduler: scaled to what it says, the task
// fits so many times, as far as nothing but amounts keeps it away.
func TestLargest(t *testing.T) {
	eachSeed(t, func(t *testing.T, d *drawn) {
		spec := job(1, priorities[d.r.IntN(len(priorities))], 1000, 1<<30)
		a, err := plan.Fit(d.cell, search, plan.FitQuestion{
			Jobs: []plan.Wanted{{User: "ann", Name: "new", Spec: spec}}, NoPreemption: true, Scales: []int{1, 5},
		})
		if err != nil {
			t.Fatal(err)
		}
		for _, s := range a.Largest {
			for _, more := range []int64{0, 1} {
				scaled := proto.CloneOf(spec)
				scaled.Tasks, scaled.Preempt = uint32(s.Copies), borgpb.Preempt_PREEMPT_NEVER
				scaled.Task.Resources = &borgpb.Resources{
					CpuMilli: (s.Permille + more) * 1000 / 1000, MemBytes: (1<<30)/1000*(s.Permille+more) + (1<<30)%1000*(s.Permille+more)/1000,
				}
				if scaled.Task.Resources.CpuMilli == 0 {
					continue
				}
				l := newLive(t, copyOf(t, d.cell))
				l.must(submit("new", scaled))
				l.settle()
				if got := placed(l.cell, cell.JobKey{User: "ann", Name: "new"}); (got == s.Copies) != (more == 0) {
					t.Errorf("%d times %d+%d thousandths: %d have a place", s.Copies, s.Permille, more, got)
				}
			}
		}
	})
}

// change draws something to try on a cell.
func (d *drawn) change(t *testing.T) []*borgpb.Op {
	r := d.r
	by := func(text string) []*cell.Machine {
		s, err := plan.ParseSelector(text)
		if err != nil {
			t.Fatal(err)
		}
		return s.Select(d.cell)
	}
	rack := fmt.Sprintf("rack=r%d", r.IntN((d.cell.NumMachines()+4)/5))
	switch r.IntN(6) {
	case 0:
		return plan.DrainMachines(by(rack))
	case 1:
		return plan.AddMachines(d.cell, 3, &borgpb.MachineSpec{Addr: "10.0.0.1:7101", Capacity: &borgpb.Resources{CpuMilli: 16_000, MemBytes: 64 << 30}})
	case 2:
		return plan.SetAttribute(by(rack), "disk", "ssd")
	case 3:
		spec := d.job(1 << 40)
		spec.Tasks = uint32(1 + r.IntN(40))
		return []*borgpb.Op{plan.Submit("ann", "new", spec, nil)}
	}
	return plan.RemoveMachines(d.cell, by(rack))
}

// TestWhatIf says what would happen, and then does it.
func TestWhatIf(t *testing.T) {
	eachSeed(t, func(t *testing.T, d *drawn) {
		ops := d.change(t)
		before := recordsOf(d.cell)
		e, err := plan.WhatIf(d.cell, search, plan.Change{Ops: ops})
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(before, recordsOf(d.cell)) {
			t.Error("the question changed the cell")
		}
		said := make(map[string]plan.TaskChange)
		for _, c := range e.Tasks {
			said[c.Task] = c
		}
		was := make(map[string]string)
		for j := range d.cell.Jobs() {
			for _, task := range j.Tasks() {
				was[task.ID().String()] = at(task)
			}
		}
		running := make(map[string]int)
		for j := range d.cell.Jobs() {
			_, n, _ := j.Counts()
			running[j.Key().String()] = int(n)
		}
		d.evicted = 0
		d.must(ops...)
		d.settle()
		for j := range d.cell.Jobs() {
			for _, task := range j.Tasks() {
				id := task.ID().String()
				want, old := at(task), was[id]
				c, listed := said[id]
				delete(said, id)
				switch {
				case listed && (c.To != want || c.From != old):
					t.Errorf("%s: said to be %s from %q to %q, it went from %q to %q", id, c.Fate, c.From, c.To, old, want)
				case !listed && want != old:
					t.Errorf("%s went from %q to %q, and nothing was said", id, old, want)
				}
			}
		}
		for id, c := range said {
			t.Errorf("%s: said to be %s, there is no such task", id, c.Fate)
		}
		if e.Evictions != d.evicted {
			t.Errorf("said were %d evictions, there were %d", e.Evictions, d.evicted)
		}
		lose := make(map[string]int)
		for _, j := range e.Jobs {
			lose[j.Job] = j.After
		}
		for j := range d.cell.Jobs() {
			key := j.Key().String()
			_, n, _ := j.Counts()
			if after, less := lose[key]; less != (int(n) < running[key]) || less && after != int(n) {
				t.Errorf("%s ran with %d and runs with %d; said was %d, %v", key, running[key], n, after, less)
			}
		}
	})
}

// at is the name of a task's machine.
func at(t *cell.Task) string {
	if p := t.Current(); p != nil {
		return p.Machine().Name()
	}
	return ""
}

// TestWhatIfRefused passes on why the cell would not do it.
func TestWhatIfRefused(t *testing.T) {
	l := newLive(t, cell.New("c", 1))
	l.must(addMachine("m", 1000, 1<<30, nil))
	_, err := plan.WhatIf(l.cell, search, plan.Change{Ops: []*borgpb.Op{plan.Submit("ann", "Not A Name", job(1, 200, 1, 1), nil)}})
	if refused, ok := err.(*plan.Refused); !ok || refused.Why.GetKind() != borgpb.RefusalKind_REFUSAL_KIND_INVALID {
		t.Errorf("%v, want what the cell said", err)
	}
}

// TestFail ranks racks by what production loses.
func TestFail(t *testing.T) {
	l := newLive(t, cell.New("c", 1))
	for i := range 3 {
		l.must(addMachine(fmt.Sprintf("a%d", i), 10_000, 40<<30, map[string]string{"rack": "a"}))
	}
	l.must(addMachine("b0", 10_000, 40<<30, map[string]string{"rack": "b"}))
	l.must(submit("prod", job(8, 200, 4000, 1<<30)))
	l.settle()
	l.must(submit("batch", job(4, 110, 2000, 1<<30)))
	l.settle()
	by, err := plan.ParseSelector("rack=*")
	if err != nil {
		t.Fatal(err)
	}
	all, err := plan.Fail(l.cell, search, []plan.Selector{by}, nil)
	if err != nil || len(all) != 2 {
		t.Fatalf("%+v, %v; want two racks", all, err)
	}
	// Of eight tasks of production two are on b. Without a six of them wait, and all
	// of batch; without b two of batch have room left, if production takes theirs.
	if w := all[0]; w.Domain != "rack=a" || w.Machines != 3 || w.ProdPending != 6 || w.Pending < 9 {
		t.Errorf("the worst is %+v, want rack a and 6 of production that wait", w)
	}
	if all[1].Domain != "rack=b" || all[1].ProdPending >= all[0].ProdPending {
		t.Errorf("then comes %+v", all[1])
	}
	// A rack is tried once, also if its first machines are down.
	l.must(&borgpb.Op{Op: &borgpb.Op_MachineDown{MachineDown: &borgpb.MachineDown{Name: "a0", Term: max(l.cell.Term(), 1)}}},
		&borgpb.Op{Op: &borgpb.Op_MachineDown{MachineDown: &borgpb.MachineDown{Name: "a1", Term: max(l.cell.Term(), 1)}}})
	all, err = plan.Fail(l.cell, search, []plan.Selector{by}, nil)
	if err != nil || len(all) != 2 || all[0].Machines+all[1].Machines != 2 {
		t.Errorf("with two machines down: %+v, %v; want two racks of one machine each", all, err)
	}
}

// TestCompaction follows the method of the paper: what is tied is dropped, large
// jobs are loosened, the cell is cloned where it is too small.
func TestCompaction(t *testing.T) {
	l := newLive(t, cell.New("c", 1))
	for i := range 10 {
		l.must(addMachine(fmt.Sprintf("m%d", i), 10_000, 40<<30, map[string]string{"number": fmt.Sprint(i), "rack": fmt.Sprintf("r%d", i/2)}))
	}
	tied := job(2, 200, 1000, 1<<30)
	tied.Task.Constraints = []*borgpb.Constraint{{Key: "number", Relation: borgpb.Relation_RELATION_EQUAL, Value: "3"}}
	wide := job(8, 200, 1000, 1<<30)
	wide.MaxPerMachine = 1
	narrow := job(3, 200, 1000, 1<<30)
	narrow.MaxPerMachine = 1
	l.must(submit("tied", tied), submit("wide", wide), submit("narrow", narrow), submit("rest", job(10, 110, 1900, 1<<30)))
	l.settle()
	k, err := plan.NewCompaction(l.cell, search, plan.Of{})
	if err != nil {
		t.Fatal(err)
	}
	if k.Dropped != 2 || k.Tasks != 21 || len(k.Softened) != 1 || k.Softened[0] != "ann/wide" || k.Clones != 1 {
		t.Errorf("%d dropped, %d packed, softened %v, %d clones; want 2, 21, ann/wide, 1", k.Dropped, k.Tasks, k.Softened, k.Clones)
	}
	// 11 cores of single ones and 19 of pairs of them: three machines would be
	// filled to the last core, and narrow needs three.
	var trials []plan.Probe
	none := func(int) (plan.Probe, bool) { return plan.Probe{}, false }
	for i := range plan.Trials {
		made := 0
		p, err := k.Trial(i, none, func(plan.Probe) error { made++; return nil })
		if err != nil {
			t.Fatal(err)
		}
		if made == 0 || made > k.ProbesPerTrial()+1 {
			t.Errorf("trial %d made %d packs, about %d were announced", i, made, k.ProbesPerTrial())
		}
		trials = append(trials, p)
	}
	sum := plan.Sum(trials)
	if sum.Least < 3 || sum.Most > 4 || len(sum.All) != plan.Trials || sum.Machines != sum.All[9] {
		t.Errorf("%+v, want 3 or 4 machines, the tenth of the trials", sum)
	}

	// More work than the cell holds: it is cloned.
	l.must(submit("more", job(60, 110, 1900, 1<<30)))
	l.settle()
	if k, err = plan.NewCompaction(l.cell, search, plan.Of{}); err != nil || k.Clones != 2 {
		t.Fatalf("%+v, %v; want two clones", k, err)
	}
	p, err := k.Trial(0, none, func(plan.Probe) error { return nil })
	if err != nil || p.Machines <= 10 || p.Machines > 20 {
		t.Errorf("%+v, %v; want more machines than the cell has", p, err)
	}
	// What no machine can hold is left out.
	l.must(submit("huge", job(1, 110, 11_000, 1<<30)))
	if k, err = plan.NewCompaction(l.cell, search, plan.Of{}); err != nil || k.Clones != 2 || len(k.Nowhere) != 1 {
		t.Errorf("%+v, %v; want huge left out", k, err)
	}
}

// TestCompactionLoosensMaxPer: a limit of tasks per value of an attribute is a hard constraint
// as the others are.
func TestCompactionLoosensMaxPer(t *testing.T) {
	l := newLive(t, cell.New("c", 1))
	l.must(&borgpb.Op{Op: &borgpb.Op_RaiseFormat{RaiseFormat: &borgpb.RaiseFormat{Format: cell.BuildFormat}}})
	for i := range 10 {
		l.must(addMachine(fmt.Sprintf("m%d", i), 10_000, 40<<30, map[string]string{"number": fmt.Sprint(i)}))
	}
	wide := job(8, 200, 1000, 1<<30)
	wide.MaxPer = map[string]uint32{"number": 1}
	l.must(submit("wide", wide))
	l.settle()
	k, err := plan.NewCompaction(l.cell, search, plan.Of{})
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(k.Softened, []string{"ann/wide"}) {
		t.Errorf("softened %v, want ann/wide", k.Softened)
	}
}

// TestClonesOfNamedRacks: a rack that an override names is in each clone by its name.
func TestClonesOfNamedRacks(t *testing.T) {
	l := newLive(t, cell.New("c", 1))
	for i := range 20 {
		l.must(addMachine(fmt.Sprintf("m%d", i), 10_000, 40<<30, map[string]string{"rack": fmt.Sprintf("r%d", i/2)}))
	}
	named := job(6, 200, 4000, 1<<30)
	named.Overrides = []*borgpb.TaskOverride{{First: 0, Last: 5, Spec: &borgpb.TaskSpec{
		Constraints: []*borgpb.Constraint{{Key: "rack", Relation: borgpb.Relation_RELATION_EQUAL, Value: "r0"}},
	}}}
	l.must(submit("named", named))
	l.settle()
	k, err := plan.NewCompaction(l.cell, search, plan.Of{})
	if err != nil {
		t.Fatal(err)
	}
	if k.Clones != 2 {
		t.Errorf("%d clones, want 2: the machines of the rack are doubled", k.Clones)
	}
}

// TestDoesNotFitNamesTasks: the error of a workload that fits onto no number of machines names
// the tasks that wait.
func TestDoesNotFitNamesTasks(t *testing.T) {
	l := newLive(t, cell.New("c", 1))
	for i := range 10 {
		l.must(addMachine(fmt.Sprintf("m%d", i), 10_000, 40<<30, map[string]string{"rack": fmt.Sprintf("r%d", i/2)}))
	}
	one := job(2, 200, 1000, 1<<30)
	one.MaxPerRack = 1
	one.Task.Constraints = []*borgpb.Constraint{{Key: "rack", Relation: borgpb.Relation_RELATION_EQUAL, Value: "r0"}}
	l.must(submit("one", one))
	l.settle()
	_, err := plan.NewCompaction(l.cell, search, plan.Of{})
	if err == nil || !strings.Contains(err.Error(), ": ann/one/") {
		t.Errorf("%v; want it to name a task of ann/one", err)
	}
	if _, err := plan.NewCompaction(l.cell, search, plan.Of{Pending: 1}); err != nil {
		t.Errorf("one may wait: %v", err)
	}
}

// TestCompactionGoesOn takes the probes that were made before, and makes no others.
func TestCompactionGoesOn(t *testing.T) {
	l := newLive(t, cell.New("c", 1))
	for i := range 40 {
		l.must(addMachine(fmt.Sprintf("m%d", i), 10_000, 40<<30, nil))
	}
	l.must(submit("j", job(90, 200, 1900, 1<<30)))
	l.settle()
	k, err := plan.NewCompaction(l.cell, search, plan.Of{})
	if err != nil {
		t.Fatal(err)
	}
	known := make(map[int]plan.Probe)
	whole, err := k.Trial(7, func(int) (plan.Probe, bool) { return plan.Probe{}, false }, func(p plan.Probe) error { known[p.Machines] = p; return nil })
	if err != nil || whole.Machines != 18 {
		t.Fatalf("%+v, %v; want 18 machines, of five tasks each", whole, err)
	}
	again, err := k.Trial(7, func(n int) (plan.Probe, bool) { p, ok := known[n]; return p, ok }, func(p plan.Probe) error {
		t.Errorf("%+v is packed again", p)
		return nil
	})
	if err != nil || !reflect.DeepEqual(again, whole) {
		t.Errorf("%+v, %v; want %+v", again, err, whole)
	}
	if b := whole.Below; b == nil || b.Machines != 17 || b.Pending != 5 || b.Waits != "ann/j/85 of priority 200, which asks for 1.900 cpu and 1024 MiB" {
		t.Errorf("one machine fewer: %+v", whole.Below)
	}
	// The scheduler's own search comes to the same.
	if n, ok, err := scheduler.Compact(l.cell, search, 7); n != 18 || !ok || err != nil {
		t.Errorf("%d, %v, %v; want 18", n, ok, err)
	}
}

// TestCompare sets two policies side by side.
func TestCompare(t *testing.T) {
	l := newLive(t, cell.New("c", 1))
	for i := range 4 {
		l.must(addMachine(fmt.Sprintf("m%d", i), 10_000, 40<<30, nil))
	}
	l.must(submit("batch", job(20, 110, 2000, 1<<30)))
	l.settle()
	l.must(submit("prod", job(2, 200, 10_000, 1<<30)))
	s, err := plan.Compare(l.cell, search)
	if err != nil || s.Placed != 2 || s.Displaced != 10 || s.Preempted != 10 || s.Left != 10 || s.Pending != 10 || s.ProdPending != 0 {
		t.Errorf("%+v, %v; want 10 of batch to give way", s, err)
	}
}

// TestFitPutsQuotasAside: where quotas are enforced, an owner without any is told how many
// tasks there is room for.
func TestFitPutsQuotasAside(t *testing.T) {
	l := newLive(t, cell.New("c", 1))
	l.must(&borgpb.Op{Op: &borgpb.Op_RaiseFormat{RaiseFormat: &borgpb.RaiseFormat{Format: cell.BuildFormat}}})
	on := true
	l.must(&borgpb.Op{Op: &borgpb.Op_Grant{Grant: &borgpb.Grant{User: "root", Capability: string(cell.Admin)}}})
	l.must(&borgpb.Op{Op: &borgpb.Op_SetQuotaPolicy{SetQuotaPolicy: &borgpb.SetQuotaPolicy{Enforce: &on}}})
	l.must(addMachine("m", 10_000, 40<<30, nil))
	spec := job(1, 200, 3000, 1<<30)
	spec.Task.Mounts = []*borgpb.Mount{{Source: "/srv", Path: "/srv"}}
	a, err := plan.Fit(l.cell, search, plan.FitQuestion{Jobs: []plan.Wanted{{User: "ann", Name: "a", Spec: spec}}})
	if err != nil || a.Count != 3 {
		t.Errorf("%+v, %v; want 3 tasks", a, err)
	}
	if !l.cell.QuotasEnforced() {
		t.Error("the question changed the cell")
	}
}
