package scheduler_test

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	"borg/borgmaster/cell"
	"borg/proto/borgpb"
	"borg/scheduler"
)

// world is a cell and a scheduler over a copy of it. Entries reach the copy
// only by catchUp, as they do when a master is followed.
type world struct {
	cell, copy *cell.Cell
	s          *scheduler.Scheduler
	// log holds the entries that the copy has not seen, with their terms.
	log    []entry
	wallNs int64
	timeNs int64
}

type entry struct {
	index uint64
	data  []byte
}

func newWorld(t testing.TB, cfg scheduler.Config) *world {
	t.Helper()
	s, err := scheduler.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return &world{
		cell: cell.New("test", 1), copy: cell.New("test", 1), s: s,
		wallNs: 1_800_000_000_000_000_000, timeNs: 1e9,
	}
}

// entry is an entry of one op. The first one raises the format before.
func (w *world) entry(op *borgpb.Op) []byte {
	w.wallNs += 1e6
	w.timeNs += 1e6
	e := &borgpb.Entry{CellTimeNs: w.timeNs, WallTimeNs: w.wallNs}
	ops := []*borgpb.Op{op}
	if w.cell.Format() < cell.BuildFormat {
		raise := &borgpb.RaiseFormat{Format: cell.BuildFormat}
		ops = []*borgpb.Op{{Op: &borgpb.Op_RaiseFormat{RaiseFormat: raise}}, op}
	}
	for _, op := range ops {
		data, err := proto.Marshal(op)
		if err != nil {
			panic(err)
		}
		e.Ops = append(e.Ops, data)
	}
	data, err := proto.Marshal(e)
	if err != nil {
		panic(err)
	}
	return data
}

// do applies one op to the cell.
func (w *world) do(op *borgpb.Op) *borgpb.Result {
	e := w.entry(op)
	w.log = append(w.log, entry{w.cell.Index() + 1, e})
	results, _ := w.cell.Apply(w.cell.Index()+1, 1, e)
	return results[len(results)-1]
}

// apply is do where cell and copy are one, and says what happened.
func (w *world) apply(op *borgpb.Op) (*borgpb.Result, []cell.Event) {
	e := w.entry(op)
	results, events := w.cell.Apply(w.cell.Index()+1, 1, e)
	return results[len(results)-1], events
}

// must is do for an op that is not to be refused.
func (w *world) must(t testing.TB, op *borgpb.Op) *borgpb.Result {
	t.Helper()
	r := w.do(op)
	if r.GetRefusal() != nil {
		t.Fatalf("%s: refused: %v", op, r.GetRefusal())
	}
	return r
}

// catchUp feeds the copy.
func (w *world) catchUp() {
	for _, e := range w.log {
		_, events := w.copy.Apply(e.index, 1, e.data)
		w.s.Observe(w.copy, events)
	}
	w.log = nil
}

// root submits in the name of user.
func asUser(user string, op *borgpb.Op) *borgpb.Op {
	op.Principal = &borgpb.Principal{User: user, Role: borgpb.Role_ROLE_USER}
	return op
}

func addMachine(name string, spec *borgpb.MachineSpec) *borgpb.Op {
	return asUser("admin", &borgpb.Op{Op: &borgpb.Op_AddMachine{AddMachine: &borgpb.AddMachine{Name: name, Spec: spec}}})
}

func submitJob(user, name string, spec *borgpb.JobSpec) *borgpb.Op {
	data, err := proto.Marshal(spec)
	if err != nil {
		panic(err)
	}
	return asUser(user, &borgpb.Op{Op: &borgpb.Op_SubmitJob{SubmitJob: &borgpb.SubmitJob{User: user, Name: name, Spec: data}}})
}

func assign(a *borgpb.Assign) *borgpb.Op {
	return &borgpb.Op{
		Principal: &borgpb.Principal{User: "scheduler", Role: borgpb.Role_ROLE_SCHEDULER},
		Op:        &borgpb.Op_Assign{Assign: a},
	}
}

// reported ends or starts the current copy of a task, as its borglet tells it.
func reported(j *cell.Job, index uint32, machine string, attempt uint64, state borgpb.AttemptState) *borgpb.Op {
	return &borgpb.Op{Op: &borgpb.Op_Reports{Reports: &borgpb.Reports{Machines: []*borgpb.MachineReport{{
		Machine: machine,
		Tasks: []*borgpb.TaskReport{{
			JobUid: j.UID().String(), Index: index, Attempt: attempt, State: int32(state),
			Exit: &borgpb.Exit{},
		}},
	}}}}}
}

// reserved is what an elected master estimates that a copy will use.
func reserved(p *cell.Copy, cpuMilli, memBytes int64) *borgpb.Op {
	return &borgpb.Op{Op: &borgpb.Op_Reports{Reports: &borgpb.Reports{Machines: []*borgpb.MachineReport{{
		Machine: p.Machine().Name(),
		Reservations: []*borgpb.TaskReservation{{
			JobUid: p.JobUID().String(), Index: p.Index(), Attempt: p.Attempt(), CpuMilli: cpuMilli, MemBytes: memBytes,
		}},
	}}}}}
}

// machineSpec is a machine with room; attributes are "key=value".
func machineSpec(cpuMilli, memBytes int64, attributes ...string) *borgpb.MachineSpec {
	spec := &borgpb.MachineSpec{
		Addr:       "127.0.0.1:7101",
		Capacity:   &borgpb.Resources{CpuMilli: cpuMilli, MemBytes: memBytes, DiskBytes: 1 << 40},
		PortFirst:  20000,
		PortLast:   20999,
		Attributes: map[string]string{},
	}
	for _, a := range attributes {
		k, v, _ := strings.Cut(a, "=")
		spec.Attributes[k] = v
	}
	return spec
}

// testDigest is a digest that machines can have, for a short one: d1, d2, ...
func testDigest(short string) string {
	if n, is := strings.CutPrefix(short, "d"); is {
		return "sha256:" + strings.Repeat("0", 64-len(n)) + n
	}
	return short
}

func testDigests(short []string) (long []string) {
	for _, d := range short {
		long = append(long, testDigest(d))
	}
	return long
}

// hasPackages says that there are these too on a machine.
func hasPackages(machine string, digests ...string) *borgpb.Op {
	return asUser("admin", &borgpb.Op{Op: &borgpb.Op_SetMachine{SetMachine: &borgpb.SetMachine{Name: machine, Packages: &borgpb.PackageChange{Add: digests}}}})
}

func banPackage(name, digest, machine string) *borgpb.Op {
	op := asUser("admin", &borgpb.Op{Op: &borgpb.Op_BanPackage{BanPackage: &borgpb.BanPackage{Name: name, Digest: digest, Machine: machine}}})
	op.Reason = "it leaks"
	return op
}

func unbanPackage(name, digest, machine string) *borgpb.Op {
	return asUser("admin", &borgpb.Op{Op: &borgpb.Op_UnbanPackage{UnbanPackage: &borgpb.UnbanPackage{Name: name, Digest: digest, Machine: machine}}})
}

// service is a job of tasks that each ask for so much.
func service(tasks uint32, priority int32, cpuMilli, memBytes int64) *borgpb.JobSpec {
	return &borgpb.JobSpec{
		Kind: borgpb.JobKind_JOB_KIND_SERVICE, Tasks: tasks, Priority: priority,
		Task: &borgpb.TaskSpec{
			Args:      []string{"/bin/true"},
			Resources: &borgpb.Resources{CpuMilli: cpuMilli, MemBytes: memBytes},
		},
	}
}

// settleAll makes passes and applies what they decide until nothing more is
// decided. It returns the number of placements that the cell accepted.
func (w *world) settleAll(t testing.TB) int {
	t.Helper()
	placed, _ := w.settleCounted(t)
	return placed
}

// settleCounted is settleAll that also returns how many placements the cell refused.
func (w *world) settleCounted(t testing.TB) (placed, denied int) {
	t.Helper()
	for range 1000 {
		w.catchUp()
		b := w.s.Pass(w.copy)
		if len(b.Assign.GetAssignments()) == 0 {
			if !b.More {
				return placed, denied
			}
			continue
		}
		r := w.do(assign(b.Assign))
		refused := w.s.Settle(w.copy, b.ID, r)
		placed, denied = placed+refused.Of-refused.Count, denied+refused.Count
	}
	t.Fatalf("passes go on and on: %d in flight", w.s.InFlight())
	return placed, denied
}

// onMachines says how many running tasks of a job each machine has.
func onMachines(c *cell.Cell, key cell.JobKey) map[string]int {
	at := make(map[string]int)
	for _, task := range c.Job(key).Tasks() {
		if p := task.Current(); p != nil {
			at[p.Machine().Name()]++
		}
	}
	return at
}

// countsText writes counts in order of name.
func countsText(counts map[string]int) string {
	var parts []string
	for _, k := range slices.Sorted(maps.Keys(counts)) {
		parts = append(parts, fmt.Sprintf("%s:%d", k, counts[k]))
	}
	return strings.Join(parts, " ")
}
