package fauxmaster_test

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"google.golang.org/protobuf/proto"

	"borg/borgmaster/cell"
	"borg/checkpoint"
	"borg/proto/borgpb"
	"borg/proto/borgrpc"
	"borg/scheduler"
	"borg/scheduler/process"
)

const (
	recordedID = "cell-of-the-past"
	second     = int64(1e9)
	// When the run begins, by its wall clock.
	epochWallNs = 1_790_000_000 * second
)

// recorded is a seeded run of a cell with a scheduler beside it, and the archive
// that it leaves: users come and go, machines break, answers are late, and not
// all that the scheduler wants can be done when it comes to the log.
type recorded struct {
	t      *testing.T
	rand   *rand.Rand
	dir    string
	cell   *cell.Cell
	writer *checkpoint.ArchiveWriter
	// Of the log, not in the archive yet.
	unwritten []checkpoint.PastEntry
	jobs      int
	pids      int64

	// The scheduler's copy lags behind.
	copy     *cell.Cell
	search   *scheduler.Scheduler
	feed     []checkpoint.PastEntry
	inFlight []scheduler.Batch
	answers  []answer

	// What the live cell was, by index, and what was said of tasks then.
	digests map[uint64]cell.Digest
	said    []explained
}

type answer struct {
	batch  uint64
	result *borgpb.Result
}

// explained is what the live scheduler said of a task at an index.
type explained struct {
	id   cell.TaskID
	resp *borgrpc.WhyResponse
}

func record(t *testing.T, seed uint64, steps int) *recorded {
	t.Helper()
	search, err := scheduler.New(scheduler.Config{})
	if err != nil {
		t.Fatal(err)
	}
	r := &recorded{
		t: t, rand: rand.New(rand.NewPCG(seed, 1)), dir: t.TempDir(), cell: cell.New(recordedID, 1),
		copy: cell.New(recordedID, 1), search: search, digests: map[uint64]cell.Digest{},
	}
	id := &borgpb.ReplicaIdentity{CellName: "past", CellId: recordedID, Epoch: 1, Replica: 1}
	if r.writer, err = checkpoint.OpenArchiveWriter(nil, r.dir, id, 1); err != nil {
		t.Fatal(err)
	}
	r.apply(nil)
	for format := uint32(2); format <= cell.BuildFormat; format++ {
		r.apply(&borgpb.Op{Op: &borgpb.Op_RaiseFormat{RaiseFormat: &borgpb.RaiseFormat{Format: format}}})
	}
	for m := range 12 {
		r.apply(&borgpb.Op{Principal: user("admin"), Op: &borgpb.Op_AddMachine{AddMachine: &borgpb.AddMachine{
			Name: fmt.Sprintf("m%02d", m), Spec: &borgpb.MachineSpec{
				Addr: fmt.Sprintf("10.0.0.%d:7101", m), PortFirst: 20000, PortLast: 20099, Attributes: map[string]string{"rack": fmt.Sprintf("r%d", m%3)},
				Capacity: &borgpb.Resources{CpuMilli: 8000, MemBytes: 32 << 30, DiskBytes: 100 << 30},
			},
		}}})
	}
	r.keep()
	for step := range steps {
		r.step()
		if step%600 == 599 {
			r.keep()
		}
		if step%60 == 59 {
			r.ask()
		}
	}
	r.keep()
	if err := r.writer.Close(); err != nil {
		t.Fatal(err)
	}
	return r
}

func user(name string) *borgpb.Principal {
	return &borgpb.Principal{User: name, Role: borgpb.Role_ROLE_USER}
}

var asScheduler = &borgpb.Principal{Role: borgpb.Role_ROLE_SCHEDULER}

// apply puts an op into the log; nil: an entry that raft makes for itself.
func (r *recorded) apply(op *borgpb.Op) *borgpb.Result {
	r.t.Helper()
	var data []byte
	index := r.cell.Index() + 1
	if op != nil {
		o, err := proto.Marshal(op)
		if err != nil {
			r.t.Fatal(err)
		}
		ns := int64(index) * second / 10
		if data, err = proto.Marshal(&borgpb.Entry{CellTimeNs: ns, WallTimeNs: epochWallNs + ns, Ops: [][]byte{o}}); err != nil {
			r.t.Fatal(err)
		}
	}
	results, _ := r.cell.Apply(index, 1, data)
	r.cell.Flush(nil)
	r.digests[index] = r.cell.Digest()
	e := checkpoint.PastEntry{Epoch: 1, Index: index, Term: 1, Data: data}
	r.unwritten = append(r.unwritten, e)
	r.feed = append(r.feed, e)
	if index%1024 == 0 {
		// As an elected master does now and then.
		d, _ := r.cell.DigestAt(index)
		r.apply(&borgpb.Op{Op: &borgpb.Op_Digest{Digest: &borgpb.LogDigest{Index: index, Digest: d[:]}}})
	}
	if len(results) == 0 {
		return nil
	}
	return results[0]
}

// keep adds a checkpoint to the archive.
func (r *recorded) keep() {
	r.t.Helper()
	if err := r.writer.Append(r.unwritten, epochWallNs); err != nil {
		r.t.Fatal(err)
	}
	r.unwritten = nil
	writeCheckpoint(r.t, filepath.Join(r.dir, fmt.Sprintf("checkpoint-1-%012d.ckpt", r.cell.Index())), "past", r.cell)
}

// writeCheckpoint writes a cell down.
func writeCheckpoint(t *testing.T, path, name string, c *cell.Cell) {
	t.Helper()
	d := c.Digest()
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	w, err := checkpoint.NewWriter(f, &borgpb.CheckpointHeader{
		CellFormat: c.Format(), CellName: name, CellId: c.ID(), Epoch: c.Epoch(), Index: c.Index(), Term: c.Term(),
		CellTimeNs: c.TimeNs(), WallTimeNs: c.WallNs(), Digest: d[:], Voters: []uint64{1},
	})
	if err != nil {
		t.Fatal(err)
	}
	for k, v := range c.Records() {
		if err := w.Add(k, v); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
}

// step is one thing that happens.
func (r *recorded) step() {
	switch n := r.rand.IntN(100); {
	case n < 8:
		r.submit()
	case n < 11:
		r.kill()
	case n < 13:
		r.breakMachine()
	case n < 45:
		r.report()
	case n < 60:
		r.propose()
	case n < 70:
		r.settle()
	default:
		r.takeIn(r.rand.IntN(4))
		r.pass()
	}
}

func (r *recorded) submit() {
	kind, priority := borgpb.JobKind_JOB_KIND_SERVICE, int32(200)
	if r.rand.IntN(2) == 0 {
		kind, priority = borgpb.JobKind_JOB_KIND_BATCH, 100
	}
	r.jobs++
	r.apply(&borgpb.Op{Principal: user("alice"), Op: &borgpb.Op_SubmitJob{SubmitJob: &borgpb.SubmitJob{
		User: "alice", Name: fmt.Sprintf("j%d", r.jobs), Spec: spec(r.t, kind, priority, 1+uint32(r.rand.IntN(12)), 200+int64(r.rand.IntN(20))*100),
	}}})
}

func spec(t *testing.T, kind borgpb.JobKind, priority int32, tasks uint32, cpuMilli int64) []byte {
	t.Helper()
	data, err := proto.Marshal(&borgpb.JobSpec{Kind: kind, Priority: priority, Tasks: tasks, Task: &borgpb.TaskSpec{
		Args: []string{"/bin/true"}, GraceNs: second, Resources: &borgpb.Resources{CpuMilli: cpuMilli, MemBytes: cpuMilli << 20},
	}})
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func (r *recorded) kill() {
	var live []cell.JobKey
	for j := range r.cell.Jobs() {
		if j.State() != borgpb.State_STATE_DEAD {
			live = append(live, j.Key())
		}
	}
	if len(live) > 3 {
		key := live[r.rand.IntN(len(live))]
		r.apply(&borgpb.Op{Principal: user("alice"), Reason: "no longer wanted", Op: &borgpb.Op_KillJob{KillJob: &borgpb.KillJob{User: key.User, Name: key.Name}}})
	}
}

// breakMachine drains a machine, or has it used again.
func (r *recorded) breakMachine() {
	m := r.cell.Machine(fmt.Sprintf("m%02d", r.rand.IntN(12)))
	r.apply(&borgpb.Op{Principal: user("admin"), Op: &borgpb.Op_DrainMachine{DrainMachine: &borgpb.DrainMachine{Name: m.Name(), Drain: !m.Draining()}}})
}

// report has the borglet of a machine say how its copies go on.
func (r *recorded) report() {
	m := r.cell.Machine(fmt.Sprintf("m%02d", r.rand.IntN(12)))
	report := &borgpb.MachineReport{Machine: m.Name()}
	for p := range m.Copies() {
		tr := &borgpb.TaskReport{JobUid: p.JobUID().String(), Index: p.Index(), Attempt: p.Attempt(), Pid: p.PID(), StartedWallNs: p.StartedWallNs()}
		switch s := p.State(); {
		case s == borgpb.AttemptState_ATTEMPT_STATE_STOPPING:
			tr.State = int32(borgpb.AttemptState_ATTEMPT_STATE_STOPPED)
		case s == borgpb.AttemptState_ATTEMPT_STATE_RUNNING && p.Kind() == borgpb.JobKind_JOB_KIND_BATCH && r.rand.IntN(3) == 0:
			tr.State, tr.Exit = int32(borgpb.AttemptState_ATTEMPT_STATE_FINISHED), &borgpb.Exit{}
		case s == borgpb.AttemptState_ATTEMPT_STATE_ASSIGNED:
			r.pids++
			tr.State, tr.Pid, tr.StartedWallNs = int32(borgpb.AttemptState_ATTEMPT_STATE_RUNNING), r.pids, r.cell.WallNs()
		default:
			continue
		}
		report.Tasks = append(report.Tasks, tr)
	}
	if len(report.Tasks) > 0 {
		r.apply(&borgpb.Op{Op: &borgpb.Op_Reports{Reports: &borgpb.Reports{Machines: []*borgpb.MachineReport{report}}}})
	}
}

// takeIn lets the scheduler's copy come up to so many entries behind.
func (r *recorded) takeIn(behind int) {
	for len(r.feed) > behind {
		e := r.feed[0]
		r.feed = r.feed[1:]
		_, events := r.copy.Apply(e.Index, e.Term, e.Data)
		r.search.Observe(r.copy, events)
		r.copy.Flush(nil)
	}
}

func (r *recorded) pass() {
	if r.copy.Index() == 0 || len(r.inFlight) >= 4 {
		return
	}
	b := r.search.Pass(r.copy)
	if len(b.Assign.GetAssignments()) > 0 {
		b.Assign = proto.CloneOf(b.Assign)
		b.Assign.Build = "recorded"
		r.inFlight = append(r.inFlight, b)
	}
}

// propose brings the oldest batch to the log.
func (r *recorded) propose() {
	if len(r.inFlight) == 0 {
		return
	}
	b := r.inFlight[0]
	r.inFlight = r.inFlight[1:]
	r.answers = append(r.answers, answer{b.ID, r.apply(&borgpb.Op{Principal: asScheduler, Op: &borgpb.Op_Assign{Assign: b.Assign}})})
}

// settle brings the oldest answer back.
func (r *recorded) settle() {
	if len(r.answers) == 0 {
		return
	}
	a := r.answers[0]
	r.answers = r.answers[1:]
	r.search.Settle(r.copy, a.batch, a.result)
}

// ask has the live scheduler explain some task, with nothing in flight.
func (r *recorded) ask() {
	for len(r.inFlight) > 0 {
		r.propose()
	}
	for len(r.answers) > 0 {
		r.settle()
	}
	r.takeIn(0)
	var ids []cell.TaskID
	for j := range r.cell.Jobs() {
		if j.State() != borgpb.State_STATE_DEAD {
			ids = append(ids, cell.TaskID{Job: j.Key(), Index: uint32(r.rand.IntN(int(j.NumTasks())))})
		}
	}
	if len(ids) == 0 || r.search.InFlight() > 0 {
		return
	}
	id := ids[r.rand.IntN(len(ids))]
	why, err := r.search.Explain(r.copy, id.Job, id.Index)
	if err != nil {
		r.t.Fatal(err)
	}
	r.said = append(r.said, explained{id, process.WhyResponse(why, r.copy.Index())})
}
