package main

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"borg/borgmaster/cell"
	"borg/checkpoint"
	"borg/cli"
	"borg/proto/borgpb"
)

// sample is a checkpoint of a small cell: two machines, a job of three tasks of
// which one is placed, and a job that was killed.
func sample(t *testing.T, change func(*borgpb.CheckpointHeader)) []byte {
	t.Helper()
	c := cell.New("cc-0001", 3)
	apply := func(op *borgpb.Op) *borgpb.Result {
		t.Helper()
		now := int64(1_800_000_000e9)
		op.Principal = &borgpb.Principal{User: "alice", Role: borgpb.Role_ROLE_USER}
		data, err := proto.Marshal(op)
		if err != nil {
			t.Fatal(err)
		}
		entry, err := proto.Marshal(&borgpb.Entry{CellTimeNs: int64(c.Index()) * int64(time.Second), WallTimeNs: now, Ops: [][]byte{data}})
		if err != nil {
			t.Fatal(err)
		}
		results, _ := c.Apply(c.Index()+1, 2, entry)
		if r := results[0]; r.GetRefusal() != nil || len(r.GetItems()) > 0 {
			t.Fatalf("%v: %v", op, r)
		}
		return results[0]
	}
	for _, name := range []string{"m1", "m2"} {
		apply(&borgpb.Op{Op: &borgpb.Op_AddMachine{AddMachine: &borgpb.AddMachine{Name: name, Spec: &borgpb.MachineSpec{
			Addr: "10.0.0.1:7101", Capacity: &borgpb.Resources{CpuMilli: 8000, MemBytes: 32 << 30},
		}}}})
	}
	spec, err := proto.Marshal(&borgpb.JobSpec{Kind: borgpb.JobKind_JOB_KIND_SERVICE, Tasks: 3, Priority: 200, Task: &borgpb.TaskSpec{
		Args: []string{"/bin/hello"}, Resources: &borgpb.Resources{CpuMilli: 500, MemBytes: 1 << 30},
	}})
	if err != nil {
		t.Fatal(err)
	}
	submit := func(name string) string {
		return apply(&borgpb.Op{Op: &borgpb.Op_SubmitJob{SubmitJob: &borgpb.SubmitJob{User: "alice", Name: name, Spec: spec}}}).GetUid()
	}
	uid := submit("hello")
	submit("old")
	apply(&borgpb.Op{Op: &borgpb.Op_KillJob{KillJob: &borgpb.KillJob{User: "alice", Name: "old"}}})
	apply(&borgpb.Op{Op: &borgpb.Op_Assign{Assign: &borgpb.Assign{Assignments: []*borgpb.Assignment{{Uid: uid, Index: 1, Machine: "m2", Version: 1}}}}})

	return checkpointOf(t, c, "cc", change)
}

// checkpointOf writes a cell down.
func checkpointOf(t *testing.T, c *cell.Cell, name string, change func(*borgpb.CheckpointHeader)) []byte {
	t.Helper()
	d := c.Digest()
	h := &borgpb.CheckpointHeader{
		CellFormat: c.Format(), CellName: name, CellId: c.ID(), Epoch: c.Epoch(), Index: c.Index(), Term: c.Term(),
		CellTimeNs: c.TimeNs(), WallTimeNs: c.WallNs(), Digest: d[:], Voters: []uint64{1, 2, 3},
	}
	if change != nil {
		change(h)
	}
	var b bytes.Buffer
	w, err := checkpoint.NewWriter(&b, h)
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
	return b.Bytes()
}

func show(t *testing.T, file []byte, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "cell.ckpt")
	if err := os.WriteFile(path, file, 0o600); err != nil {
		t.Fatal(err)
	}
	var out, errs bytes.Buffer
	code = run(context.Background(), append([]string{"fauxmaster", "show", path}, args...), &out, &errs)
	return code, out.String(), errs.String()
}

func TestShowTable(t *testing.T) {
	code, out, errs := show(t, sample(t, nil))
	if code != cli.OK {
		t.Fatalf("exit code %d: %s", code, errs)
	}
	for _, want := range []string{
		"cc (cc-0001), epoch 3", "index 6, term 2", "as computed from the records",
		"2, 1 of them not dead", "6: 2 pending, 1 running, 3 dead", "2, 2 up",
		"alice/hello", "service",
	} {
		if !strings.Contains(out, want) {
			t.Errorf("%q is missing in:\n%s", want, out)
		}
	}
}

func TestShowJSON(t *testing.T) {
	// A flag after the argument is a flag.
	code, out, errs := show(t, sample(t, nil), "-o", "json")
	if code != cli.OK {
		t.Fatalf("exit code %d: %s", code, errs)
	}
	var got struct {
		Header struct {
			CellName string
			Index    string
		}
		Counts counts
		Jobs   []struct {
			Meta struct{ Name string }
		}
	}
	if err := json.Unmarshal([]byte(out), &got); err != nil {
		t.Fatalf("%v in:\n%s", err, out)
	}
	want := counts{Jobs: 2, LiveJobs: 1, Tasks: 6, Pending: 2, Running: 1, Dead: 3, Machines: 2, Up: 2}
	if got.Counts != want || got.Header.CellName != "cc" || got.Header.Index != "6" || len(got.Jobs) != 2 {
		t.Errorf("got %+v, want counts %+v", got, want)
	}
}

func TestShowRefuses(t *testing.T) {
	whole := sample(t, nil)
	flipped := bytes.Clone(whole)
	flipped[len(flipped)/2] ^= 1
	for _, tc := range []struct {
		name string
		file []byte
		args []string
		code int
		says string
	}{
		{"a flipped byte", flipped, nil, cli.Invalid, "damaged"},
		{"the end is missing", whole[:len(whole)-1], nil, cli.Invalid, "damaged"},
		{"text", []byte("machines: 3\n"), nil, cli.Invalid, "not a checkpoint"},
		{"another digest", sample(t, func(h *borgpb.CheckpointHeader) { h.Digest[0] ^= 1 }), nil, cli.Invalid, "digest"},
		{"another index", sample(t, func(h *borgpb.CheckpointHeader) { h.Index++ }), nil, cli.Invalid, "header"},
		{"another cell", sample(t, func(h *borgpb.CheckpointHeader) { h.CellId = "dd" }), nil, cli.Invalid, "header"},
		{"an unknown format", whole, []string{"-o", "xml"}, cli.Usage, "xml"},
		{"two files", whole, []string{"second"}, cli.Usage, "one checkpoint"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			code, out, errs := show(t, tc.file, tc.args...)
			if code != tc.code || !strings.Contains(errs, tc.says) || out != "" {
				t.Errorf("exit code %d, want %d; says %q, want %q in it; output %q", code, tc.code, errs, tc.says, out)
			}
		})
	}
	var out, errs bytes.Buffer
	if code := run(context.Background(), []string{"fauxmaster", "show", filepath.Join(t.TempDir(), "none")}, &out, &errs); code != cli.NotFound {
		t.Errorf("a missing file: exit code %d, want %d", code, cli.NotFound)
	}
}

// TestShowArchive shows an archive at its end and at a moment, and asks it a question as if it
// were a checkpoint.
func TestShowArchive(t *testing.T) {
	dir := story(t)
	if out := mustRun(t, "show", dir); !strings.Contains(out, "alice/giant") || !strings.Contains(out, "every byte") {
		t.Errorf("at its end:\n%s", out)
	}
	if out := mustRun(t, "show", dir, "--at", "3"); strings.Contains(out, "alice/giant") || !strings.Contains(out, "index 3,") {
		t.Errorf("at index 3:\n%s", out)
	}
	if out := mustRun(t, "fit", dir, "--job", "alice/giant"); !strings.Contains(out, "0 more tasks of alice/giant fit.") || !strings.Contains(out, "One more does not fit: 0 of 2 machines fit: 2 cpu") {
		t.Errorf("fit:\n%s", out)
	}
	if code, _, errs := ask(t, "show"); code != cli.Usage || !strings.Contains(errs, "fauxmaster show CHECKPOINT|ARCHIVE") {
		t.Errorf("no argument: exit code %d, %s", code, errs)
	}
}
