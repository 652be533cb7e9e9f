package plan_test

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"google.golang.org/protobuf/proto"

	"borg/borgmaster/cell"
	"borg/proto/borgpb"
	"borg/scheduler"
)

// live is a cell that works: the scheduler that has been with it from the start,
// and borglets. It shares no code with a Model.
type live struct {
	tb     testing.TB
	cell   *cell.Cell
	s      *scheduler.Scheduler
	wallNs int64
	// evicted counts tasks that lost a place.
	evicted int
}

func newLive(tb testing.TB, c *cell.Cell) *live {
	tb.Helper()
	s, err := scheduler.New(search)
	if err != nil {
		tb.Fatal(err)
	}
	return &live{tb: tb, cell: c, s: s, wallNs: max(c.WallNs(), 1_800_000_000e9)}
}

// search is the configuration of all schedulers here. Moves have tests of their own,
// against a session.
var search = scheduler.Config{Seed: 1, Reschedule: scheduler.RescheduleOff}

// copyOf is another cell in the same state.
func copyOf(tb testing.TB, c *cell.Cell) *cell.Cell {
	tb.Helper()
	o, err := cell.Load(c.Records())
	if err != nil {
		tb.Fatal(err)
	}
	return o
}

func (l *live) apply(ops ...*borgpb.Op) []*borgpb.Result {
	l.tb.Helper()
	l.wallNs += 1e6
	e := &borgpb.Entry{CellTimeNs: l.cell.TimeNs() + 1e6, WallTimeNs: l.wallNs}
	for _, op := range ops {
		data, err := proto.Marshal(op)
		if err != nil {
			l.tb.Fatal(err)
		}
		e.Ops = append(e.Ops, data)
	}
	data, err := proto.Marshal(e)
	if err != nil {
		l.tb.Fatal(err)
	}
	results, events := l.cell.Apply(l.cell.Index()+1, 1, data)
	for _, e := range events {
		if e.ObjectKind == borgpb.ObjectKind_OBJECT_KIND_TASK && e.From == borgpb.State_STATE_RUNNING && e.To != borgpb.State_STATE_RUNNING {
			l.evicted++
		}
	}
	l.s.Observe(l.cell, events)
	return results
}

// must is apply for ops that are not to be refused.
func (l *live) must(ops ...*borgpb.Op) {
	l.tb.Helper()
	for i, r := range l.apply(ops...) {
		if r.GetRefusal() != nil {
			l.tb.Fatalf("%v is refused: %v", ops[i], r.GetRefusal())
		}
	}
}

// settle lets the cell work until nothing happens.
func (l *live) settle() {
	l.tb.Helper()
	for range 1000 {
		busy := false
		for b := l.s.Pass(l.cell); b.ID != 0 || b.More; b = l.s.Pass(l.cell) {
			if b.ID == 0 {
				continue
			}
			busy = true
			r := l.apply(&borgpb.Op{Op: &borgpb.Op_Assign{Assign: b.Assign}})[0]
			if refused := l.s.Settle(l.cell, b.ID, r); refused.Count > 0 {
				l.tb.Fatalf("an assignment is refused: %v", refused.First)
			}
		}
		busy = l.obey() || busy
		if !busy {
			if err := l.cell.Check(); err != nil {
				l.tb.Fatal(err)
			}
			return
		}
	}
	l.tb.Fatal("the cell does not come to rest")
}

// obey lets the borglets report: who was told to stop has, who was placed runs.
func (l *live) obey() bool {
	l.tb.Helper()
	said := &borgpb.Reports{}
	for m := range l.cell.Machines() {
		report := &borgpb.MachineReport{Machine: m.Name()}
		for p := range m.Copies() {
			state := borgpb.AttemptState_ATTEMPT_STATE_UNSPECIFIED
			switch {
			case !m.Up():
			case p.State() == borgpb.AttemptState_ATTEMPT_STATE_STOPPING:
				state = borgpb.AttemptState_ATTEMPT_STATE_STOPPED
			case p.State() == borgpb.AttemptState_ATTEMPT_STATE_ASSIGNED && !p.Waits():
				state = borgpb.AttemptState_ATTEMPT_STATE_RUNNING
			}
			if state != borgpb.AttemptState_ATTEMPT_STATE_UNSPECIFIED {
				report.Tasks = append(report.Tasks, &borgpb.TaskReport{
					JobUid: p.JobUID().String(), Index: p.Index(), Attempt: p.Attempt(), State: int32(state), Pid: 7, Exit: &borgpb.Exit{},
				})
			}
		}
		if len(report.Tasks) > 0 {
			said.Machines = append(said.Machines, report)
		}
	}
	if len(said.Machines) > 0 {
		l.apply(&borgpb.Op{Op: &borgpb.Op_Reports{Reports: said}})
	}
	return len(said.Machines) > 0
}

func addMachine(name string, cpuMilli, memBytes int64, attributes map[string]string) *borgpb.Op {
	return &borgpb.Op{Op: &borgpb.Op_AddMachine{AddMachine: &borgpb.AddMachine{Name: name, Spec: &borgpb.MachineSpec{
		Addr: "10.0.0.1:7101", Capacity: &borgpb.Resources{CpuMilli: cpuMilli, MemBytes: memBytes}, Attributes: attributes,
	}}}}
}

func submit(name string, spec *borgpb.JobSpec) *borgpb.Op {
	data, err := proto.Marshal(spec)
	if err != nil {
		panic(err)
	}
	return &borgpb.Op{
		Principal: &borgpb.Principal{User: "ann", Role: borgpb.Role_ROLE_USER},
		Op:        &borgpb.Op_SubmitJob{SubmitJob: &borgpb.SubmitJob{User: "ann", Name: name, Spec: data}},
	}
}

func job(tasks uint32, priority int32, cpuMilli, memBytes int64) *borgpb.JobSpec {
	spec := &borgpb.JobSpec{Kind: borgpb.JobKind_JOB_KIND_SERVICE, Tasks: tasks, Priority: priority, Task: &borgpb.TaskSpec{
		Args: []string{"/bin/x"}, Resources: &borgpb.Resources{CpuMilli: cpuMilli, MemBytes: memBytes},
	}}
	if priority < 120 {
		spec.Kind = borgpb.JobKind_JOB_KIND_BATCH
	}
	return spec
}

// drawn is a cell that follows from a seed.
type drawn struct {
	*live
	r *rand.Rand
	// n counts jobs.
	n int
}

// eachSeed runs a test over 50 cells, every third of them over 90 % full.
func eachSeed(t *testing.T, test func(t *testing.T, d *drawn)) {
	for seed := range uint64(50) {
		t.Run(fmt.Sprintf("seed=%d", seed), func(t *testing.T) {
			r := rand.New(rand.NewPCG(seed, 0xfa0))
			fill := int64(30 + r.IntN(55))
			if seed%3 == 0 {
				fill = int64(91 + r.IntN(6))
			}
			d := drawCell(t, r, fill)
			test(t, d)
		})
	}
}

var priorities = []int32{25, 110, 112, 200, 240, 400}

// drawCell draws a cell and fills it until its tasks reserve so many percent of
// the CPU, which has come to rest then.
func drawCell(t *testing.T, r *rand.Rand, fillPercent int64) *drawn {
	t.Helper()
	d := &drawn{live: newLive(t, cell.New("drawn", 1)), r: r}
	d.must(&borgpb.Op{Op: &borgpb.Op_RaiseFormat{RaiseFormat: &borgpb.RaiseFormat{Format: cell.BuildFormat}}})
	capacity := int64(0)
	for i := range 15 + r.IntN(30) {
		cpu := []int64{8, 16, 16, 32}[r.IntN(4)] * 1000
		capacity += cpu
		attributes := map[string]string{"rack": fmt.Sprintf("r%d", i/5), "power": fmt.Sprintf("p%d", i/15)}
		if r.IntN(3) == 0 {
			attributes["disk"] = "ssd"
		}
		op := addMachine(fmt.Sprintf("m%02d", i), cpu, []int64{2, 4, 8}[r.IntN(3)]*cpu<<20, attributes)
		if r.IntN(12) == 0 {
			op.GetAddMachine().Spec.Taints = []*borgpb.Taint{{Key: "dedicated", Value: "db"}}
		}
		d.must(op)
	}
	held := func() (n int64) {
		for m := range d.cell.Machines() {
			n += m.Held(false).CPUMilli
		}
		return n
	}
	for range 400 {
		if held()*100 >= capacity*fillPercent {
			break
		}
		left := capacity*fillPercent/100 - held()
		d.must(submit(fmt.Sprintf("j%d", d.n), d.job(left)))
		d.n++
		d.settle()
		if r.IntN(3) == 0 {
			d.reserve()
		}
	}
	d.settle()
	if got := held() * 100; got < capacity*(fillPercent-3) {
		t.Fatalf("the cell is %d %% full, want about %d", got/capacity, fillPercent)
	}
	return d
}

// job draws a job that asks for at most so much in all.
func (d *drawn) job(leftCPUMilli int64) *borgpb.JobSpec {
	r := d.r
	cpu := int64(1+r.IntN(12)) * 250
	if r.IntN(4) == 0 {
		cpu = 50
	}
	tasks := max(min(int64(1+r.IntN(12)), leftCPUMilli/cpu), 1)
	spec := job(uint32(tasks), priorities[r.IntN(len(priorities))], cpu, int64(1+r.IntN(8))<<28)
	switch r.IntN(8) {
	case 0:
		spec.Task.Constraints = []*borgpb.Constraint{{Key: "disk", Relation: borgpb.Relation_RELATION_EQUAL, Value: "ssd", Soft: r.IntN(2) == 0}}
	case 1:
		spec.MaxPerMachine = uint32(1 + r.IntN(2))
	case 2:
		spec.MaxPerRack = uint32(1 + r.IntN(3))
	case 3:
		spec.Task.Tolerations = []*borgpb.Toleration{{Key: "dedicated"}}
	case 4:
		spec.Preempt = borgpb.Preempt_PREEMPT_NEVER
	}
	return spec
}

// reserve lets some of what runs reserve less than its limits.
func (d *drawn) reserve() {
	d.tb.Helper()
	said := &borgpb.Reports{}
	for m := range d.cell.Machines() {
		report := &borgpb.MachineReport{Machine: m.Name()}
		for p := range m.Copies() {
			if d.r.IntN(3) == 0 {
				report.Reservations = append(report.Reservations, &borgpb.TaskReservation{
					JobUid: p.JobUID().String(), Index: p.Index(), Attempt: p.Attempt(),
					CpuMilli: p.Resources().CPUMilli * int64(4+d.r.IntN(6)) / 10, MemBytes: p.Resources().MemBytes * 8 / 10,
				})
			}
		}
		if len(report.Reservations) > 0 {
			said.Machines = append(said.Machines, report)
		}
	}
	if len(said.Machines) > 0 {
		d.apply(&borgpb.Op{Op: &borgpb.Op_Reports{Reports: said}})
	}
}
