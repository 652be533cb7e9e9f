package audit_test

import (
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"borg/borgmaster/audit"
	"borg/borgmaster/cell"
	"borg/proto/borgpb"
)

// run makes a random life of a cell: what people ask for, and what the cell does
// by itself in between.
type run struct {
	t       *testing.T
	r       *rand.Rand
	c       *cell.Cell
	log     *audit.Log
	entries []entry
	seq     int
	cellNs  int64
	wallNs  int64
	// Ops that people asked for, some of them twice.
	asked []*borgpb.Op
}

type entry struct {
	index   uint64
	entry   *borgpb.Entry
	results []*borgpb.Result
}

const second = int64(time.Second)

func (w *run) step() {
	w.cellNs += int64(w.r.IntN(5)) * second
	w.wallNs += int64(w.r.IntN(5)) * second
	e := &borgpb.Entry{CellTimeNs: w.cellNs, WallTimeNs: w.wallNs}
	for range 1 + w.r.IntN(4) {
		data, err := proto.Marshal(w.op())
		if err != nil {
			w.t.Fatal(err)
		}
		e.Ops = append(e.Ops, data)
	}
	w.apply(e)
}

func (w *run) apply(e *borgpb.Entry) {
	data, err := proto.Marshal(e)
	if err != nil {
		w.t.Fatal(err)
	}
	index := w.c.Index() + 1
	results, _ := w.c.Apply(index, 1, data)
	w.log.Applied(index, data, results)
	w.entries = append(w.entries, entry{index, e, results})
}

func (w *run) op() *borgpb.Op {
	user := pick(w.r, "ann", "bob", "root")
	job := pick(w.r, "web", "db", "cron", "x")
	machine := fmt.Sprintf("m%d", w.r.IntN(6))
	switch w.r.IntN(14) {
	case 0, 1, 2:
		return w.people(user, &borgpb.Op{Op: &borgpb.Op_SubmitJob{SubmitJob: &borgpb.SubmitJob{User: user, Name: job, Spec: w.spec()}}})
	case 3:
		return w.people(user, &borgpb.Op{Op: &borgpb.Op_KillJob{KillJob: &borgpb.KillJob{User: pick(w.r, "ann", "bob"), Name: job}}})
	case 4:
		return w.people(user, &borgpb.Op{Op: &borgpb.Op_ResizeJob{ResizeJob: &borgpb.ResizeJob{User: user, Name: job, Tasks: 1 + uint32(w.r.IntN(8))}}})
	case 5:
		return w.people(user, &borgpb.Op{Op: &borgpb.Op_UpdateJob{UpdateJob: &borgpb.UpdateJob{User: user, Name: job, Spec: w.spec()}}})
	case 6:
		return w.people("root", &borgpb.Op{Op: &borgpb.Op_AddMachine{AddMachine: &borgpb.AddMachine{Name: machine, Spec: &borgpb.MachineSpec{
			Addr: machine + ":1", Capacity: &borgpb.Resources{CpuMilli: 4000, MemBytes: 4 << 30},
		}}}})
	case 7:
		return w.people("root", &borgpb.Op{Op: &borgpb.Op_DrainMachine{DrainMachine: &borgpb.DrainMachine{Name: machine, Drain: w.r.IntN(2) == 0}}})
	case 8:
		return w.people(user, &borgpb.Op{Op: &borgpb.Op_Grant{Grant: &borgpb.Grant{User: pick(w.r, "ann", "root"), Capability: pick(w.r, "admin", "no-estimation")}}})
	case 9:
		return w.people(user, &borgpb.Op{Op: &borgpb.Op_Revoke{Revoke: &borgpb.Revoke{User: "ann", Capability: "admin"}}})
	case 10:
		if len(w.asked) > 0 {
			return pick(w.r, w.asked...)
		}
		fallthrough
	case 11:
		return &borgpb.Op{Op: &borgpb.Op_MachineDown{MachineDown: &borgpb.MachineDown{Name: machine, Term: 1, Reason: "silent"}}}
	case 12:
		return &borgpb.Op{Op: &borgpb.Op_MachineUp{MachineUp: &borgpb.MachineUp{Name: machine}}}
	default:
		return w.assign()
	}
}

// people makes an op one that somebody asked for.
func (w *run) people(user string, op *borgpb.Op) *borgpb.Op {
	w.seq++
	op.RequestId, op.RequestWallNs = fmt.Sprintf("%026d", w.seq), w.wallNs
	op.Principal = &borgpb.Principal{User: user, Role: borgpb.Role_ROLE_USER}
	op.Command, op.Reason = "borgcfg up x.borg", "because"
	w.asked = append(w.asked, op)
	return op
}

func (w *run) spec() []byte {
	spec, err := proto.Marshal(&borgpb.JobSpec{
		Kind: borgpb.JobKind_JOB_KIND_SERVICE, Tasks: 1 + uint32(w.r.IntN(5)), Priority: int32(w.r.IntN(460)),
		Task: &borgpb.TaskSpec{Resources: &borgpb.Resources{CpuMilli: 100 * int64(1+w.r.IntN(9)), MemBytes: 1 << 20}, Args: []string{"/bin/x"}},
	})
	if err != nil {
		w.t.Fatal(err)
	}
	return spec
}

// assign places what waits, as a scheduler does.
func (w *run) assign() *borgpb.Op {
	a := &borgpb.Assign{}
	for j := range w.c.Jobs() {
		for i := range j.NumTasks() {
			if j.Task(i).Current() == nil && w.r.IntN(2) == 0 && len(a.Assignments) < 10 {
				a.Assignments = append(a.Assignments, &borgpb.Assignment{Uid: j.UID().String(), Index: i, Machine: fmt.Sprintf("m%d", w.r.IntN(6))})
			}
		}
	}
	return &borgpb.Op{Op: &borgpb.Op_Assign{Assign: a}}
}

func pick[T any](r *rand.Rand, list ...T) T { return list[r.IntN(len(list))] }

// TestTheAuditIsWhatPeopleChanged makes a random life of a cell, takes out of its
// log everything that people asked for, and puts in the place of it what the
// audit says that they did: the cell comes to the same state. Without it, it does
// not. So nothing that people changed is missing in the audit, and nothing is in
// it that did not happen. What was refused changed nothing: the audit has its number.
func TestTheAuditIsWhatPeopleChanged(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	if s := os.Getenv("BORG_AUDIT_SEED"); s != "" {
		var err error
		if seed, err = strconv.ParseUint(s, 10, 64); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("repeat with: BORG_AUDIT_SEED=%d go test ./borgmaster/audit -run TestTheAuditIsWhatPeopleChanged", seed)
	trail := open(t, t.TempDir())
	w := &run{t: t, r: rand.New(rand.NewPCG(seed, 1)), c: cell.New("replayed", 1), log: trail.Log, cellNs: second, wallNs: 1_800_000_000 * second}
	w.apply(&borgpb.Entry{CellTimeNs: w.cellNs, WallTimeNs: w.wallNs}) // index 1: the log of a cell begins after it
	raise, _ := proto.Marshal(&borgpb.Op{Op: &borgpb.Op_RaiseFormat{RaiseFormat: &borgpb.RaiseFormat{Format: cell.BuildFormat}}})
	w.apply(&borgpb.Entry{CellTimeNs: w.cellNs, WallTimeNs: w.wallNs, Ops: [][]byte{raise}})
	for range 1000 {
		w.step()
	}
	did := make(map[[2]uint64][]byte)
	refused, wereRefused := uint64(0), uint64(0)
	err := trail.Log.Each(audit.Pick{}, func(r *borgpb.AuditRecord) error {
		if r.Hole != nil || r.WallNs == 0 || r.Command == "" || r.Reason == "" || r.Verb == "" || r.Who == "" {
			t.Errorf("a record lacks something: %v", r)
		}
		if r.Refusal != nil {
			refused += r.Count
			return nil
		}
		did[[2]uint64{r.Index, uint64(r.N)}] = r.Op
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(did) < 200 {
		t.Errorf("the audit has %d records of what was done, want hundreds", len(did))
	}
	with, without := cell.New("replayed", 1), cell.New("replayed", 1)
	for _, e := range w.entries {
		audited := &borgpb.Entry{CellTimeNs: e.entry.CellTimeNs, WallTimeNs: e.entry.WallTimeNs}
		own := proto.CloneOf(audited)
		for n, data := range e.entry.Ops {
			op := new(borgpb.Op)
			if err := proto.Unmarshal(data, op); err != nil {
				t.Fatal(err)
			}
			if e.results[n].Refusal != nil && op.RequestId != "" && !e.results[n].Repeated {
				// The cell remembers that it has refused it.
				audited.Ops = append(audited.Ops, data)
				wereRefused++
			} else if op.RequestId == "" {
				audited.Ops, own.Ops = append(audited.Ops, data), append(own.Ops, data)
			} else if data, ok := did[[2]uint64{e.index, uint64(n)}]; ok {
				audited.Ops = append(audited.Ops, data)
			} else if !e.results[n].Repeated {
				t.Errorf("what user %s asked for at index %d is not in the audit: %v", op.Principal.User, e.index, op)
			}
		}
		apply(t, with, e.index, audited)
		apply(t, without, e.index, own)
	}
	if refused != wereRefused || refused == 0 {
		t.Errorf("the audit counts %d refusals, want %d, and some", refused, wereRefused)
	}
	if got, want := with.Digest(), w.c.Digest(); got != want {
		t.Errorf("the cell replayed from the audit has the digest %x, want %x", got, want)
	}
	if without.Digest() == w.c.Digest() {
		t.Error("what people did changed nothing")
	}
}

func apply(t *testing.T, c *cell.Cell, index uint64, e *borgpb.Entry) {
	t.Helper()
	data, err := proto.Marshal(e)
	if err != nil {
		t.Fatal(err)
	}
	c.Apply(index, 1, data)
}

func open(t *testing.T, dir string) *audit.Trail {
	t.Helper()
	trail, err := audit.Open(audit.Config{Dir: dir, Replica: 1})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { trail.Close() })
	return trail
}
