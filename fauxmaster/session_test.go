package fauxmaster_test

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"borg/borgmaster/cell"
	"borg/fauxmaster"
	"borg/fauxmaster/plan"
	"borg/fauxmaster/workload"
	"borg/proto/borgpb"
	"borg/proto/borgrpc"
	"borg/scheduler"
)

// TestAnswersAreWhatASessionDoes asks fit, whatif and fail of random cells, then makes
// the same changes in a session (the production master and scheduler over pretended
// machines) until it rests. BORG_PLAN_SEEDS is how many cells, BORG_PLAN_SEED the first.
func TestAnswersAreWhatASessionDoes(t *testing.T) {
	count, first := 20, 0
	if text := os.Getenv("BORG_PLAN_SEEDS"); text != "" {
		count, _ = strconv.Atoi(text)
	}
	if text := os.Getenv("BORG_PLAN_SEED"); text != "" {
		first, _ = strconv.Atoi(text)
	}
	var came kinds
	t.Cleanup(func() { came.check(t, count) })
	for seed := first; seed < first+count; seed++ {
		t.Run(fmt.Sprintf("seed=%d", seed), func(t *testing.T) {
			t.Parallel()
			d := drawPlanned(t, uint64(seed))
			d.kinds = &came
			came.count(d.cell)
			d.fit()
			d.whatIf()
			d.fail()
			if t.Failed() {
				t.Logf("again: BORG_PLAN_SEEDS=1 BORG_PLAN_SEED=%d go test ./fauxmaster -run TestAnswersAreWhatASessionDoes", seed)
			}
		})
	}
}

// kinds counts in how many random cells there is what makes a plan hard.
type kinds struct {
	mu sync.Mutex
	of map[string]int
}

func (k *kinds) add(kind string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.of == nil {
		k.of = make(map[string]int)
	}
	k.of[kind]++
}

// count looks at what a cell has before it is asked about.
func (k *kinds) count(c *cell.Cell) {
	has := make(map[string]bool)
	for j := range c.Jobs() {
		spec := j.Spec()
		pending, running, _ := j.Counts()
		has["waiters"] = has["waiters"] || pending > 0
		if running == 0 {
			continue
		}
		_, inSet := j.AllocSet()
		has["allocs"] = has["allocs"] || inSet
		has["volumes"] = has["volumes"] || len(spec.GetTask().GetVolumes()) > 0
		has["gangs"] = has["gangs"] || spec.GetGang() && spec.GetTasks() > 1
		has["budgets"] = has["budgets"] || spec.GetDisruptionBudget() != nil
	}
	countKinds(c, has)
	for kind, yes := range has {
		if yes {
			k.add(kind)
		}
	}
}

// check wants each kind in at least one of ten cells, and something that moved or gave way.
func (k *kinds) check(t *testing.T, cells int) {
	t.Logf("of %d cells: %v", cells, k.of)
	if cells < 20 {
		return
	}
	for _, kind := range []string{"waiters", "allocs", "volumes", "gangs", "budgets", "daemons", "held ports", "time limits", "quotas"} {
		if k.of[kind] < cells/10 {
			t.Errorf("%d of %d cells have %s", k.of[kind], cells, kind)
		}
	}
	if k.of["evictions"] == 0 || k.of["moves"] == 0 && cells >= 100 {
		t.Errorf("no change led to evictions, or none to moves")
	}
}

// planned is a random cell that questions are asked of.
type planned struct {
	t    *testing.T
	r    *rand.Rand
	cell *cell.Cell
	cfg  scheduler.Config
	jobs int
	// kinds counts what the cells come to; nil: nobody does.
	kinds *kinds
	// rested is a session that nothing was done in; nil: none was made yet.
	rested *cell.Cell
}

// before is the cell as a session leaves it that nothing is done in.
func (d *planned) before() *cell.Cell {
	if d.rested == nil {
		d.rested = d.sessionAfter(func(*served) {})
	}
	return d.rested
}

func drawPlanned(t *testing.T, seed uint64) *planned {
	t.Helper()
	d := &planned{t: t, r: rand.New(rand.NewPCG(seed, 0xb1)), cell: cell.New("planned", 1)}
	m, err := plan.New(d.cell, scheduler.Config{Reschedule: scheduler.RescheduleOff})
	if err != nil {
		t.Fatal(err)
	}
	if err := m.Must(&borgpb.Op{Op: &borgpb.Op_RaiseFormat{RaiseFormat: &borgpb.RaiseFormat{Format: cell.BuildFormat}}}); err != nil {
		t.Fatal(err)
	}
	n := 3 + d.r.IntN(6)
	for i := range n {
		cpu := []int64{4000, 8000}[d.r.IntN(2)]
		op := &borgpb.Op{Op: &borgpb.Op_AddMachine{AddMachine: &borgpb.AddMachine{Name: fmt.Sprintf("m%d", i), Spec: &borgpb.MachineSpec{
			Addr: "127.0.0.1:7101", Capacity: &borgpb.Resources{CpuMilli: cpu, MemBytes: cpu << 21, DiskBytes: 50 << 30},
			Attributes: map[string]string{"rack": fmt.Sprintf("r%d", i/2)}, PortFirst: 20000, PortLast: 20007,
		}}}}
		if err := m.Must(op); err != nil {
			t.Fatal(err)
		}
	}
	d.addKinds(m)
	for range n + d.r.IntN(2*n) {
		for _, op := range d.object() {
			m.Do(op)
		}
		if err := m.Rest(); err != nil {
			t.Fatal(err)
		}
	}
	// What comes last waits, whether it fits or not.
	for range d.r.IntN(4) {
		for _, op := range d.object() {
			m.Do(op)
		}
	}
	d.limit(m)
	return d
}

// object draws a job, or an alloc set with a job in it.
func (d *planned) object() []*borgpb.Op {
	d.jobs++
	r, name := d.r, fmt.Sprintf("j%d", d.jobs)
	spec := d.job()
	if r.IntN(6) != 0 {
		return []*borgpb.Op{plan.Submit("ann", name, spec, nil)}
	}
	set := &borgpb.AllocSetSpec{Allocs: uint32(1 + r.IntN(2)), Priority: spec.Priority, Resources: &borgpb.Resources{CpuMilli: 1500, MemBytes: 3 << 30, DiskBytes: 3 << 30}}
	spec.AllocSet = "ann/set-" + name
	spec.Gang, spec.DisruptionBudget, spec.Task.Volumes = false, nil, nil
	spec.Task.Resources = &borgpb.Resources{CpuMilli: 500, MemBytes: 1 << 30}
	return []*borgpb.Op{plan.Submit("ann", "set-"+name, nil, set), plan.Submit("ann", name, spec, nil)}
}

func (d *planned) job() *borgpb.JobSpec {
	r := d.r
	cpu := int64(1+r.IntN(8)) * 500
	spec := &borgpb.JobSpec{
		Kind: borgpb.JobKind_JOB_KIND_SERVICE, Tasks: uint32(1 + r.IntN(3)), Priority: []int32{25, 110, 200, 200, 210, 400}[r.IntN(6)],
		Task: &borgpb.TaskSpec{Args: []string{"/bin/x"}, Resources: &borgpb.Resources{CpuMilli: cpu, MemBytes: int64(1+r.IntN(6)) << 29}},
	}
	if spec.Priority < 120 {
		spec.Kind = borgpb.JobKind_JOB_KIND_BATCH
	}
	switch r.IntN(7) {
	case 0:
		spec.MaxPerMachine = 1
	case 1:
		spec.Gang = true
	case 2:
		spec.DisruptionBudget = &borgpb.DisruptionBudget{MaxDown: 1}
	case 3:
		spec.Task.Volumes = []*borgpb.Volume{{Name: "v", Path: "/v", DiskBytes: 1 << 30}}
	case 4:
		spec.Preempt = borgpb.Preempt_PREEMPT_NEVER
	}
	return spec
}

// sessionAfter opens the cell as a session, lets it rest, makes a change and lets it
// rest again. It returns what the session saves at the end.
func (d *planned) sessionAfter(change func(s *served)) *cell.Cell {
	d.t.Helper()
	var file bytes.Buffer
	if err := workload.Stream(&file, "planned", d.cell); err != nil {
		d.t.Fatal(err)
	}
	p, err := fauxmaster.Load(&file)
	if err != nil {
		d.t.Fatal(err)
	}
	s := serve(d.t, p, func(c *fauxmaster.Config) { c.Search, c.Speed = d.cfg, fauxmaster.Speed{} })
	defer s.stop()
	s.pass(3 * time.Minute)
	change(s)
	s.pass(3 * time.Minute)
	return s.saved().Cell
}

// saved is what the session hands out as a checkpoint.
func (s *served) saved() *fauxmaster.Picture {
	s.t.Helper()
	var file bytes.Buffer
	if err := s.SaveCheckpoint(s.t.Context(), "", &borgrpc.SaveCheckpointRequest{}, func(resp *borgrpc.SaveCheckpointResponse) error {
		_, err := file.Write(resp.GetChunk())
		return err
	}); err != nil {
		s.t.Fatal(err)
	}
	p, err := fauxmaster.Load(&file)
	if err != nil {
		s.t.Fatal(err)
	}
	return p
}

func (s *served) mutate(ops []*borgpb.Op) {
	s.t.Helper()
	for _, op := range ops {
		op = proto.CloneOf(op)
		op.Principal = nil
		if _, err := s.Mutate(s.t.Context(), op); err != nil {
			s.t.Fatal(err)
		}
	}
}

// fit submits as many as fit, and one more.
func (d *planned) fit() {
	spec := d.job()
	spec.Gang = false
	a, err := plan.Fit(d.cell, d.cfg, plan.FitQuestion{Jobs: []plan.Wanted{{User: "ann", Name: "new", Spec: spec}}})
	if err != nil {
		d.t.Fatal(err)
	}
	for _, n := range []int{a.Count, a.Count + 1} {
		if n == 0 {
			continue
		}
		want := proto.CloneOf(spec)
		want.Tasks = uint32(n)
		c := d.sessionAfter(func(s *served) {
			setAside(s, d.cell)
			s.mutate([]*borgpb.Op{plan.Submit("ann", "new", want, nil)})
		})
		_, got, _ := c.Job(cell.JobKey{User: "ann", Name: "new"}).Counts()
		if (int(got) == n) != (n == a.Count) {
			d.t.Errorf("fit says %d; of %d that a session was given %d have a place; the job: %v", a.Count, n, got, spec)
		}
	}
}

// change draws something to try.
func (d *planned) change() []*borgpb.Op {
	by, err := plan.ParseSelector(fmt.Sprintf("machine=m%d", d.r.IntN(d.cell.NumMachines())))
	if err != nil {
		d.t.Fatal(err)
	}
	switch d.r.IntN(4) {
	case 0:
		return plan.DrainMachines(by.Select(d.cell))
	case 1:
		return plan.AddMachines(d.cell, 1, &borgpb.MachineSpec{Addr: "127.0.0.1:7101", Capacity: &borgpb.Resources{CpuMilli: 4000, MemBytes: 8 << 30, DiskBytes: 50 << 30}})
	case 2:
		return []*borgpb.Op{plan.Submit("ann", "new", d.job(), nil)}
	}
	return plan.RemoveMachines(d.cell, by.Select(d.cell))
}

// whatIf compares where every task is.
func (d *planned) whatIf() {
	ops := d.change()
	e, err := plan.WhatIf(d.cell, d.cfg, plan.Change{Ops: ops})
	if refused := new(plan.Refused); errors.As(err, &refused) {
		d.kinds.add("refused")
		d.sessionAfter(func(s *served) {
			if s.refuses(ops) == nil {
				d.t.Errorf("whatif says %q, a session accepts it", err)
			}
		})
		return
	}
	if err != nil {
		d.t.Fatal(err)
	}
	if e.Moves > 0 || e.Rested.Moved > 0 {
		d.kinds.add("moves")
	}
	if e.Evictions > 0 {
		d.kinds.add("evictions")
	}
	before := d.before()
	after := d.sessionAfter(func(s *served) { s.mutate(ops) })
	said := make(map[string]string)
	for _, c := range e.Tasks {
		said[c.Task] = c.From + " to " + c.To
	}
	was := whereAll(before)
	var wrong []string
	for task, to := range whereAll(after) {
		want := ""
		if from, known := was[task]; from != to || !known {
			want = from + " to " + to
		}
		// A task that ran on is not told unless it was restarted where it is.
		if got := said[task]; got != want && (want != "" || got != to+" to "+to) {
			wrong = append(wrong, fmt.Sprintf("%s: whatif says %q, a session does %q", task, got, want))
		}
	}
	slices.Sort(wrong)
	for _, text := range wrong {
		d.t.Error(text)
	}
	if len(wrong) > 0 {
		d.t.Logf("the change: %v", ops)
	}
}

// fail compares what waits.
func (d *planned) fail() {
	by, err := plan.ParseSelector("rack=r0")
	if err != nil {
		d.t.Fatal(err)
	}
	all, err := plan.Fail(d.cell, d.cfg, []plan.Selector{by}, nil)
	if err != nil {
		d.t.Fatal(err)
	}
	waits := func(c *cell.Cell) (n int) {
		for j := range c.Jobs() {
			for i, t := range j.Tasks() {
				// A daemon waits for its own machine; it counts while that one takes tasks.
				m := j.Seat(i)
				away := j.Kind() == borgpb.JobKind_JOB_KIND_DAEMON && (m == nil || !m.Up() || m.Draining())
				if t.State() == borgpb.State_STATE_PENDING && !away {
					n++
				}
			}
		}
		return n
	}
	before := d.before()
	after := d.sessionAfter(func(s *served) {
		var names []string
		for _, m := range by.Select(d.cell) {
			names = append(names, m.Name())
		}
		if err := s.server.FailMachines(d.t.Context(), names); err != nil {
			d.t.Fatal(err)
		}
	})
	if got := waits(after) - waits(before); got != all[0].Pending {
		d.t.Errorf("fail says that %d more wait without r0; in a session %d do", all[0].Pending, got)
	}
}

// whereAll is the machine of each task; empty: none.
func whereAll(c *cell.Cell) map[string]string {
	all := make(map[string]string)
	for j := range c.Jobs() {
		for _, t := range j.Tasks() {
			all[t.ID().String()] = ""
			if p := t.Current(); p != nil {
				all[t.ID().String()] = p.Machine().Name()
			}
		}
	}
	return all
}

// TestSavedSession: what a session hands out opens again as the same cell, and a second
// session goes on from it.
func TestSavedSession(t *testing.T) {
	d := drawPlanned(t, 1)
	var file bytes.Buffer
	if err := workload.Stream(&file, "planned", d.cell); err != nil {
		t.Fatal(err)
	}
	p, err := fauxmaster.Load(&file)
	if err != nil {
		t.Fatal(err)
	}
	stopped := func(c *fauxmaster.Config) { c.Speed = fauxmaster.Speed{} }
	s := serve(t, p, stopped)
	s.submit("kept", borgpb.JobKind_JOB_KIND_SERVICE, 1, 100)
	s.pass(time.Minute)
	first, second := s.saved(), s.saved()
	if first.Cell.Digest() != second.Cell.Digest() || first.Header.GetCellName() != "planned" {
		t.Errorf("saved twice at rest: %v and %v", first.Header, second.Header)
	}
	s.stop()
	want := whereAll(first.Cell)
	again := serve(t, first, stopped)
	again.pass(time.Second)
	if got := whereAll(again.saved().Cell); !maps.Equal(got, want) {
		t.Errorf("opened again: %v, want %v", got, want)
	}
}
