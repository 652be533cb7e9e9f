package reclaim

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"
	"google.golang.org/protobuf/proto"

	"borg/borgmaster/cell"
	"borg/proto/borgpb"
	"borg/proto/borgrpc"
)

const (
	second = int64(1e9)
	mib    = int64(1 << 20)
	// Wall clock when cell time is zero.
	wallZero = int64(1e18)
)

// world is a cell with one machine, m1, its log, and the core of whoever is elected.
type world struct {
	t     testing.TB
	cell  *cell.Cell
	core  *Core
	cfg   Config
	term  uint64
	nowNs int64
	// Cell time of the last entry.
	entryNs int64
	// What each job's tasks use; absent: nothing is said.
	uses map[string]*borgpb.Used
	// Ops with reservations, and reservations in them.
	ops, logged int
	// An op of a look is lost on its way.
	lose bool
	// Shards say only what differs from what they told last, by machine; nil: all.
	told map[string][]*borgrpc.CopyUsage
}

func newWorld(t testing.TB, cfg Config) *world {
	w := &world{t: t, cell: cell.New("c1", 1), cfg: cfg, term: 1, core: New(cfg), uses: map[string]*borgpb.Used{}}
	w.must(&borgpb.Op{Op: &borgpb.Op_RaiseFormat{RaiseFormat: &borgpb.RaiseFormat{Format: cell.BuildFormat}}})
	w.core.Elected(w.term)
	return w
}

func (w *world) machine(name string, cpuMilli, memBytes int64) {
	w.apply(&borgpb.Op{Op: &borgpb.Op_AddMachine{AddMachine: &borgpb.AddMachine{Name: name, Spec: &borgpb.MachineSpec{
		Addr: "h:1", Capacity: &borgpb.Resources{CpuMilli: cpuMilli, MemBytes: memBytes}, PortFirst: 20000, PortLast: 20999,
	}}}})
}

func (w *world) apply(op *borgpb.Op) *borgpb.Result {
	w.t.Helper()
	data, err := proto.Marshal(op)
	if err != nil {
		w.t.Fatal(err)
	}
	entry, err := proto.Marshal(&borgpb.Entry{CellTimeNs: w.nowNs, WallTimeNs: wallZero + w.nowNs, Ops: [][]byte{data}})
	if err != nil {
		w.t.Fatal(err)
	}
	w.entryNs = w.nowNs
	results, _ := w.cell.Apply(w.cell.Index()+1, w.term, entry)
	// That of a large cell takes long.
	if w.cell.NumMachines() < 5 {
		if err := w.cell.Check(); err != nil {
			w.t.Fatalf("after %v: %v", op, err)
		}
	}
	return results[0]
}

func (w *world) must(op *borgpb.Op) {
	w.t.Helper()
	if r := w.apply(op); r.Refusal != nil {
		w.t.Fatalf("%v was refused: %v", op, r.Refusal)
	}
}

func (w *world) submit(name string, spec *borgpb.JobSpec) {
	w.t.Helper()
	data, err := proto.Marshal(spec)
	if err != nil {
		w.t.Fatal(err)
	}
	w.must(&borgpb.Op{Op: &borgpb.Op_SubmitJob{SubmitJob: &borgpb.SubmitJob{User: "alice", Name: name, Spec: data}}})
}

// place assigns what waits of a job to a machine, has it run, and says why what was
// refused was.
func (w *world) place(name, machine string) (refused string) {
	w.t.Helper()
	j := w.cell.Job(cell.JobKey{User: "alice", Name: name})
	for index, task := range j.Tasks() {
		if task.State() != borgpb.State_STATE_PENDING {
			continue
		}
		r := w.apply(&borgpb.Op{Op: &borgpb.Op_Assign{Assign: &borgpb.Assign{Assignments: []*borgpb.Assignment{{
			Uid: j.UID().String(), Index: index, LastAttempt: task.Attempt(), Machine: machine, Version: j.Version(),
		}}}}})
		for _, item := range r.Items {
			if item.Kind != 0 {
				return item.Kind.String()
			}
		}
		w.must(&borgpb.Op{Op: &borgpb.Op_Reports{Reports: &borgpb.Reports{Machines: []*borgpb.MachineReport{{Machine: machine, Tasks: []*borgpb.TaskReport{{
			JobUid: j.UID().String(), Index: index, Attempt: task.Attempt(), State: int32(borgpb.AttemptState_ATTEMPT_STATE_RUNNING), Pid: 1, StartedWallNs: wallZero + w.nowNs,
		}}}}}}})
	}
	return ""
}

// hear is what link shards send of all machines.
func (w *world) hear() {
	for m := range w.cell.Machines() {
		u := &borgrpc.MachineUsage{Machine: m.Name()}
		for p := range m.Copies() {
			if used := w.uses[p.Key().Name]; used != nil && p.State() == borgpb.AttemptState_ATTEMPT_STATE_RUNNING {
				u.Copies = append(u.Copies, &borgrpc.CopyUsage{
					JobUid: p.JobUID().String(), Index: p.Index(), Attempt: p.Attempt(), CpuMilli: used.CpuMilli, MemBytes: used.MemBytes,
				})
			}
		}
		if w.told != nil {
			w.told[m.Name()], u = u.Copies, restOf(u, w.told[m.Name()])
		}
		w.core.Hear([]*borgrpc.MachineUsage{u})
	}
}

// restOf leaves out of a word what was told the last time.
func restOf(u *borgrpc.MachineUsage, told []*borgrpc.CopyUsage) *borgrpc.MachineUsage {
	if len(u.Copies) == 0 || !slices.EqualFunc(u.Copies, told, func(a, b *borgrpc.CopyUsage) bool {
		return a.JobUid == b.JobUid && a.Index == b.Index && a.Attempt == b.Attempt
	}) {
		return u
	}
	rest := &borgrpc.MachineUsage{Machine: u.Machine, Rest: true}
	for i, c := range u.Copies {
		if !proto.Equal(c, told[i]) {
			rest.Copies = append(rest.Copies, c)
		}
	}
	return rest
}

// pass lets five seconds pass: what is used is heard and looked at until nothing
// waits, and a cell at rest has its clock moved every ten seconds.
func (w *world) pass() {
	w.nowNs += 5 * second
	if w.nowNs-w.entryNs >= 10*second {
		w.must(&borgpb.Op{Op: &borgpb.Op_Time{Time: &borgpb.SetTime{}}})
	}
	w.hear()
	for {
		op := w.core.Look(w.cell)
		if op != nil {
			w.ops++
			for _, m := range op.GetReports().GetMachines() {
				w.logged += len(m.Reservations)
			}
			if !w.lose {
				w.must(op)
			}
			w.core.Proposed()
		}
		if len(w.core.queue) == 0 {
			return
		}
	}
}

// failOver has somebody else elected: nothing of what the core knew is left.
func (w *world) failOver() {
	w.term++
	w.core = New(w.cfg)
	w.core.Elected(w.term)
}

// reserved is what the cell has for task 0 of a job.
func (w *world) reserved(name string) (used *borgpb.Used) {
	p := w.cell.Job(cell.JobKey{User: "alice", Name: name}).Task(0).Current()
	r, _, _ := p.Reservation()
	return &borgpb.Used{CpuMilli: r.CPUMilli, MemBytes: r.MemBytes}
}

// TestTranscripts plays what happens to reservations over virtual hours:
//
//	cell [setting=NAME]                  a new cell with machine m1, and an elected master
//	job NAME cpu=N mem=MIB [prod] [fixed] [tasks=N]
//	place NAME                           on m1, and running
//	uses NAME cpu=N mem=MIB              from now on; without amounts nothing is said of it
//	run until=SECONDS show=SECONDS NAME  the curve of task 0, every so many seconds
//	fail-over, lose, keep                another master; ops of the core get lost, or not
//	resize NAME cpu=N mem=MIB            an update of its limits
func TestTranscripts(t *testing.T) {
	datadriven.Walk(t, "testdata", func(t *testing.T, path string) {
		var w *world
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			if d.Cmd == "cell" {
				name := "medium"
				d.MaybeScanArgs(t, "setting", &name)
				cfg, err := ParseConfig(name)
				if err != nil {
					return err.Error()
				}
				w = newWorld(t, cfg)
				w.machine("m1", 16_000, 32_768*mib)
				return ""
			}
			return w.play(t, d)
		})
	})
}

func (w *world) play(t *testing.T, d *datadriven.TestData) string {
	w.t = t
	var cpu, mem int64
	d.MaybeScanArgs(t, "cpu", &cpu)
	d.MaybeScanArgs(t, "mem", &mem)
	name := ""
	if len(d.CmdArgs) > 0 && d.Cmd != "run" {
		name = d.CmdArgs[0].Key
	}
	switch d.Cmd {
	case "job":
		spec := &borgpb.JobSpec{Kind: borgpb.JobKind_JOB_KIND_SERVICE, Tasks: 1, Priority: 100, Task: &borgpb.TaskSpec{
			Resources: &borgpb.Resources{CpuMilli: cpu, MemBytes: mem * mib}, Args: []string{"/bin/x"},
		}}
		d.MaybeScanArgs(t, "tasks", &spec.Tasks)
		if d.HasArg("prod") {
			spec.Priority = 200
		}
		if spec.Task.NoEstimation = d.HasArg("fixed"); spec.Task.NoEstimation {
			w.apply(&borgpb.Op{Op: &borgpb.Op_Grant{Grant: &borgpb.Grant{User: "alice", Capability: string(cell.NoEstimation)}}})
		}
		w.submit(name, spec)
	case "place":
		return w.place(name, "m1")
	case "uses":
		w.uses[name] = &borgpb.Used{CpuMilli: cpu, MemBytes: mem * mib}
		if len(d.CmdArgs) == 1 {
			delete(w.uses, name)
		}
	case "run":
		return w.curve(d)
	case "fail-over":
		w.failOver()
	case "lose", "keep":
		w.lose = d.Cmd == "lose"
	case "resize":
		j := w.cell.Job(cell.JobKey{User: "alice", Name: name})
		spec := proto.CloneOf(w.cell.JobProto(j).Spec)
		spec.Task.Resources = &borgpb.Resources{CpuMilli: cpu, MemBytes: mem * mib}
		data, err := proto.Marshal(spec)
		if err != nil {
			t.Fatal(err)
		}
		w.must(&borgpb.Op{Op: &borgpb.Op_UpdateJob{UpdateJob: &borgpb.UpdateJob{User: "alice", Name: name, Spec: data}}})
	default:
		t.Fatalf("%s: unknown command %s", d.Pos, d.Cmd)
	}
	return ""
}

func (w *world) curve(d *datadriven.TestData) string {
	var untilS, showS int64
	d.ScanArgs(w.t.(*testing.T), "until", &untilS)
	d.ScanArgs(w.t.(*testing.T), "show", &showS)
	name := d.CmdArgs[len(d.CmdArgs)-1].Key
	w.ops, w.logged = 0, 0
	var out strings.Builder
	fmt.Fprintf(&out, "%6s %6s %6s  %6s %8s\n", "s", "cpu", "MiB", "logged", "in ops")
	for w.nowNs < untilS*second {
		w.pass()
		if w.nowNs/second%showS == 0 {
			r := w.reserved(name)
			fmt.Fprintf(&out, "%6d %6d %6d  %6d %8d\n", w.nowNs/second, r.CpuMilli, r.MemBytes/mib, w.logged, w.ops)
		}
	}
	return out.String()
}

// crowd is a cell of steady tasks: each uses its own part of its limit.
func crowd(t *testing.T, tasks int) *world {
	w := newWorld(t, Config{})
	const perJob = 50
	for i := range tasks / perJob {
		name := fmt.Sprintf("j%d", i)
		w.machine("m"+name, 1_000_000, 1<<40)
		w.submit(name, &borgpb.JobSpec{Kind: borgpb.JobKind_JOB_KIND_SERVICE, Tasks: perJob, Priority: 200, Task: &borgpb.TaskSpec{
			Resources: &borgpb.Resources{CpuMilli: 4000, MemBytes: 8192 * mib}, Args: []string{"/bin/x"},
		}})
		if refused := w.place(name, "m"+name); refused != "" {
			t.Fatal(refused)
		}
	}
	return w
}

// TestSteadyTasksCostTheLogNothing wants of 1,000 tasks that use what they use, give
// or take a tenth, a bounded number of entries while their reservations fall, and next to none
// afterwards.
func TestSteadyTasksCostTheLogNothing(t *testing.T) {
	w := crowd(t, 1000)
	r := rand.New(rand.NewPCG(1, 2))
	pass := func(untilS int64) {
		w.ops, w.logged = 0, 0
		for w.nowNs < untilS*second {
			for i := range 20 {
				base := int64(100 + 100*i)
				w.uses[fmt.Sprintf("j%d", i)] = &borgpb.Used{CpuMilli: base*9/10 + r.Int64N(base/5), MemBytes: (base*9/10 + r.Int64N(base/5)) * mib}
			}
			w.pass()
		}
	}
	pass(3 * 3600)
	if w.logged == 0 || w.logged > 60*1000 {
		t.Errorf("in the first three hours %d reservations of 1,000 tasks were logged, want some and at most 60 for each", w.logged)
	}
	pass(4 * 3600)
	if w.logged > 1000 {
		t.Errorf("in the fourth hour %d reservations of 1,000 tasks were logged, want at most 1 for each", w.logged)
	}
	for i := range 20 {
		name := fmt.Sprintf("j%d", i)
		if got, most := w.reserved(name), int64(100+100*i)*11/10*1175/1000*106/100; got.CpuMilli > most {
			t.Errorf("%s reserves %d, want at most %d", name, got.CpuMilli, most)
		}
	}
}

// TestRestIsAsToldBefore has one master told all that is used each time, and another one
// only of what differs, sometimes twice before it looks: both reserve the same at any time.
func TestRestIsAsToldBefore(t *testing.T) {
	all, some := crowd(t, 200), crowd(t, 200)
	some.told = map[string][]*borgrpc.CopyUsage{}
	r := rand.New(rand.NewPCG(3, 4))
	kept := int64(0)
	for step := range 700 {
		for i := range 4 {
			name := fmt.Sprintf("j%d", i)
			switch r.IntN(8) {
			case 0:
				all.uses[name] = &borgpb.Used{CpuMilli: r.Int64N(5000), MemBytes: r.Int64N(8192) * mib}
			case 1:
				if step%50 == 0 {
					delete(all.uses, name)
				}
			}
		}
		some.uses = all.uses
		if r.IntN(3) == 0 {
			// Neither has looked when the next word comes.
			all.nowNs, some.nowNs = all.nowNs+second, some.nowNs+second
			all.hear()
			some.hear()
			name := fmt.Sprintf("j%d", r.IntN(4))
			all.uses[name] = &borgpb.Used{CpuMilli: r.Int64N(5000), MemBytes: mib}
		}
		all.pass()
		some.pass()
		for i := range 4 {
			name := fmt.Sprintf("j%d", i)
			if want, got := all.reserved(name), some.reserved(name); !proto.Equal(want, got) {
				t.Fatalf("step %d: %s reserves %v, and %v where all is told", step, name, got, want)
			}
			if all.reserved(name).CpuMilli < 4000 {
				kept++
			}
		}
	}
	if all.ops == 0 || all.ops != some.ops || kept == 0 {
		t.Errorf("%d and %d ops were proposed, and reservations were below the limit %d times; want the same, and some", all.ops, some.ops, kept)
	}
}

// TestOpsAreBounded has 3,000 reservations rise and fall at once: those that rise go
// first, an op holds 2,000, none is proposed while one is under way, and all are
// found again.
func TestOpsAreBounded(t *testing.T) {
	w := crowd(t, 3000)
	for i := range 60 {
		w.uses[fmt.Sprintf("j%d", i)] = &borgpb.Used{CpuMilli: 4000 - int64(i%2)*3000, MemBytes: 1024 * mib}
	}
	w.nowNs += 400 * second
	w.must(&borgpb.Op{Op: &borgpb.Op_Time{Time: &borgpb.SetTime{}}})
	w.hear()
	w.core.Look(w.cell)
	for i := range 30 {
		w.uses[fmt.Sprintf("j%d", 2*i)].CpuMilli = 6000
	}
	w.nowNs += 60 * second
	w.must(&borgpb.Op{Op: &borgpb.Op_Time{Time: &borgpb.SetTime{}}})
	w.hear()
	op := w.core.Look(w.cell)
	rising, n := 0, 0
	for _, m := range op.GetReports().GetMachines() {
		for _, r := range m.Reservations {
			n++
			if r.CpuMilli > 4000 {
				rising++
			}
		}
	}
	if n != maxPerOp || rising != 1500 {
		t.Fatalf("an op has %d reservations, %d of them rising; want %d and all 1500", n, rising, maxPerOp)
	}
	w.hear()
	if again := w.core.Look(w.cell); again != nil {
		t.Errorf("another op while one is under way: %v", again)
	}
	w.must(op)
	w.core.Proposed()
	w.nowNs += 5 * second
	w.hear()
	left := 0
	for _, m := range w.core.Look(w.cell).GetReports().GetMachines() {
		left += len(m.Reservations)
	}
	if left != 1000 {
		t.Errorf("the next op has %d reservations, want the 1000 that were left", left)
	}
}

// TestStrangeWordsAreIgnored has shards say what makes no sense.
func TestStrangeWordsAreIgnored(t *testing.T) {
	w := crowd(t, 50)
	uid := w.cell.Job(cell.JobKey{User: "alice", Name: "j0"}).UID().String()
	w.nowNs = 1000 * second
	w.must(&borgpb.Op{Op: &borgpb.Op_Time{Time: &borgpb.SetTime{}}})
	w.core.Hear([]*borgrpc.MachineUsage{
		{Machine: "nowhere", Copies: []*borgrpc.CopyUsage{{JobUid: uid, Attempt: 1}}},
		{Machine: "mj0", Copies: []*borgrpc.CopyUsage{
			{JobUid: "x", Attempt: 1}, {JobUid: uid, Attempt: 7}, {JobUid: uid, Index: 99, Attempt: 1},
			{JobUid: uid, Index: 1, Attempt: 1, CpuMilli: math.MaxInt64, MemBytes: math.MinInt64},
			{JobUid: uid, Index: 1, Attempt: 1, CpuMilli: math.MaxInt64, MemBytes: math.MaxInt64},
		}},
	})
	op := w.core.Look(w.cell)
	want := fmt.Sprintf("job_uid:%q index:1 attempt:1 cpu_milli:%d mem_bytes:%d", uid, int64(maxCPUMilli), int64(maxMemBytes))
	if got := op.GetReports().GetMachines(); len(got) != 1 || len(got[0].Reservations) != 1 || strings.ReplaceAll(got[0].Reservations[0].String(), "  ", " ") != want {
		t.Fatalf("proposed is %v, want %s", op, want)
	}
	w.must(op)
	if r := w.cell.Job(cell.JobKey{User: "alice", Name: "j0"}).Task(1).Current(); r.Held(false).MemBytes != maxMemBytes {
		t.Errorf("the cell has %v", r.Held(false))
	}
	// What is said of an alloc is for people: what a machine uses is what its copies do.
	before := w.core.UsedOn(w.cell.TimeNs(), "mj0")
	w.core.Hear([]*borgrpc.MachineUsage{{Machine: "mj0", Copies: []*borgrpc.CopyUsage{{JobUid: uid, Index: 1, Attempt: 1, CpuMilli: 7, MemBytes: maxMemBytes}},
		Allocs: []*borgrpc.AllocUse{{Alloc: "alice/pool/0", CpuMilli: 50, MemBytes: 60}, {Alloc: "alice/pool/1", CpuMilli: -1, MemBytes: 1}}}})
	w.core.Look(w.cell)
	now := w.cell.TimeNs()
	if got := w.core.UsedOn(now, "mj0"); got.GetCpuMilli() != 7+before.GetCpuMilli()-maxCPUMilli || got.GetMemBytes() != before.GetMemBytes() {
		t.Errorf("the machine uses %v beside an alloc, before %v", got, before)
	}
	for alloc, want := range map[string]string{"alice/pool/0": "cpu_milli:50 mem_bytes:60", "alice/pool/1": "mem_bytes:1", "alice/pool/2": "<nil>"} {
		if got := w.core.UsedIn(now, "mj0", alloc); strings.ReplaceAll(fmt.Sprint(got), "  ", " ") != want {
			t.Errorf("in alloc %s is used %v, want %s", alloc, got, want)
		}
	}
	if got := w.core.UsedIn(now+2*unheardNs, "mj0", "alice/pool/0"); got != nil {
		t.Errorf("long after the last word an alloc uses %v", got)
	}
	if w.core.UsedOn(w.cell.TimeNs(), "nowhere") != nil || w.core.UsedOn(w.cell.TimeNs(), "mj0") == nil {
		t.Error("what machines use is not known where it was heard alone")
	}
}
