package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"
	"google.golang.org/protobuf/proto"

	"borg/borgmaster/cell"
	"borg/checkpoint"
	"borg/proto/borgpb"
	"borg/scheduler"
)

// story is the past of a small cell: two machines come, a job is wanted, placed by
// the real scheduler, runs, and is killed for a reason. One task is too large.
func story(t *testing.T) (dir string) {
	t.Helper()
	dir = t.TempDir()
	search, err := scheduler.New(scheduler.Config{})
	if err != nil {
		t.Fatal(err)
	}
	c := cell.New("cc-0001", 1)
	w, err := checkpoint.OpenArchiveWriter(nil, dir, &borgpb.ReplicaIdentity{CellName: "cc", CellId: c.ID(), Epoch: 1, Replica: 1}, 1)
	if err != nil {
		t.Fatal(err)
	}
	var entries []checkpoint.PastEntry
	apply := func(op *borgpb.Op) {
		t.Helper()
		var data []byte
		if op != nil {
			o, err := proto.Marshal(op)
			if err != nil {
				t.Fatal(err)
			}
			ns := int64(c.Index()) * 1e9
			if data, err = proto.Marshal(&borgpb.Entry{CellTimeNs: ns, WallTimeNs: 1_800_000_000e9 + ns, Ops: [][]byte{o}}); err != nil {
				t.Fatal(err)
			}
		}
		_, events := c.Apply(c.Index()+1, 2, data)
		search.Observe(c, events)
		c.Flush(nil)
		entries = append(entries, checkpoint.PastEntry{Epoch: 1, Index: c.Index(), Term: 2, Data: data})
	}
	keep := func() {
		t.Helper()
		if err := w.Append(entries, 1_800_000_000e9); err != nil {
			t.Fatal(err)
		}
		entries = nil
		file := checkpointOf(t, c, "cc", nil)
		if err := os.WriteFile(filepath.Join(dir, fmt.Sprintf("checkpoint-1-%012d.ckpt", c.Index())), file, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	alice := &borgpb.Principal{User: "alice", Role: borgpb.Role_ROLE_USER}
	submit := func(name string, tasks uint32, cpuMilli int64) {
		spec, err := proto.Marshal(&borgpb.JobSpec{Kind: borgpb.JobKind_JOB_KIND_SERVICE, Tasks: tasks, Priority: 200, Task: &borgpb.TaskSpec{
			Args: []string{"/bin/hello"}, Resources: &borgpb.Resources{CpuMilli: cpuMilli, MemBytes: 1 << 30}, GraceNs: 1e9,
		}})
		if err != nil {
			t.Fatal(err)
		}
		apply(&borgpb.Op{Principal: alice, Command: "borgcfg up " + name + ".borg", RequestId: name, RequestWallNs: 1_800_000_000e9,
			Op: &borgpb.Op_SubmitJob{SubmitJob: &borgpb.SubmitJob{User: "alice", Name: name, Spec: spec}}})
	}
	place := func() {
		b := search.Pass(c)
		assign := proto.CloneOf(b.Assign)
		assign.Build = "b1"
		apply(&borgpb.Op{Principal: &borgpb.Principal{Role: borgpb.Role_ROLE_SCHEDULER}, Op: &borgpb.Op_Assign{Assign: assign}})
		search.Settle(c, b.ID, &borgpb.Result{Index: c.Index()})
	}
	apply(nil)
	for _, name := range []string{"m1", "m2"} {
		apply(&borgpb.Op{Principal: alice, Op: &borgpb.Op_AddMachine{AddMachine: &borgpb.AddMachine{Name: name, Spec: &borgpb.MachineSpec{
			Addr: "10.0.0.1:7101", Capacity: &borgpb.Resources{CpuMilli: 8000, MemBytes: 32 << 30},
		}}}})
	}
	keep()
	submit("web", 2, 500)
	place()
	var running []*borgpb.TaskReport
	for p := range c.Machine("m1").Copies() {
		running = append(running, &borgpb.TaskReport{JobUid: p.JobUID().String(), Index: p.Index(), Attempt: p.Attempt(),
			State: int32(borgpb.AttemptState_ATTEMPT_STATE_RUNNING), Pid: 77, StartedWallNs: 1_800_000_005e9})
	}
	apply(&borgpb.Op{Op: &borgpb.Op_Reports{Reports: &borgpb.Reports{Machines: []*borgpb.MachineReport{{Machine: "m1", Tasks: running}}}}})
	keep()
	submit("giant", 1, 64_000)
	apply(&borgpb.Op{Principal: alice, Op: &borgpb.Op_KillJob{KillJob: &borgpb.KillJob{User: "alice", Name: "nothing"}}})
	apply(&borgpb.Op{Principal: alice, Command: "borgcfg down web", Reason: "replaced by a better one", RequestId: "down", RequestWallNs: 1_800_000_000e9,
		Op: &borgpb.Op_KillJob{KillJob: &borgpb.KillJob{User: "alice", Name: "web"}}})
	keep()
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return dir
}

// took is how long a replay took, which nobody repeats.
var took = regexp.MustCompile(`in [0-9.]+m?s;`)

// TestPast tells a story again, by every verb that looks into the past.
func TestPast(t *testing.T) {
	dir := story(t)
	datadriven.RunTest(t, "testdata/past.txt", func(t *testing.T, d *datadriven.TestData) string {
		var out, errs bytes.Buffer
		args := strings.Fields(strings.ReplaceAll(d.Input, "ARCHIVE", dir))
		code := run(t.Context(), append([]string{"fauxmaster"}, args...), &out, &errs)
		text := out.String() + errs.String()
		if code != 0 {
			text += fmt.Sprintf("exit code %d\n", code)
		}
		return took.ReplaceAllString(strings.ReplaceAll(text, dir, "ARCHIVE"), "in TIME;")
	})
}
