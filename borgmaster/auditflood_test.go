package borgmaster_test

import (
	"fmt"
	"os"
	"slices"
	"testing"

	"google.golang.org/protobuf/proto"

	"borg/borgmaster"
	"borg/borgmaster/audit"
	"borg/proto/borgpb"
	"borg/proto/borgrpc"
)

// TestFloodOfRefusalsDropsItsOwn has one user be refused 10,000 times, at once by the log
// and at once before it. What others and admins did is all still there, every refusal is
// counted or told as dropped, and the journals stay within their bytes.
func TestFloodOfRefusalsDropsItsOwn(t *testing.T) {
	const logBytes, localBytes = 256 << 10, 128 << 10
	var dirs []string
	tc := newCell(t, 1, func(replica int, c *borgmaster.Config) {
		dir := t.TempDir()
		dirs = append(dirs, dir)
		trail, err := audit.Open(audit.Config{Dir: dir, Replica: uint64(replica), LogBytes: logBytes, LocalBytes: localBytes})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { trail.Close() })
		c.Audit = trail
	})
	tc.hasUsers()
	alice, root, mallory := tc.client(1, "alice"), tc.client(1, "root"), tc.client(1, "mallory")
	tc.must(alice, submit(t, "alice", "web", 1))
	tc.must(root, kill("alice", "web"))
	if _, err := alice.Mutate(t.Context(), &borgrpc.MutateRequest{Op: tc.op(kill("alice", "nothing"))}); err != nil {
		t.Fatal(err)
	}
	const flood = 5_000
	for i := range flood {
		resp, err := mallory.Mutate(t.Context(), &borgrpc.MutateRequest{Op: tc.op(kill("alice", fmt.Sprint("job", i)))})
		if err != nil || resp.Result.GetRefusal() == nil {
			t.Fatalf("mallory kills a job of alice: %v, %v", resp, err)
		}
		// This one has no request id and does not reach the log.
		if resp, err := mallory.Mutate(t.Context(), &borgrpc.MutateRequest{Op: kill("alice", fmt.Sprint("job", i))}); err == nil && resp.Result.GetRefusal() == nil {
			t.Fatalf("an op without a request id: %v, %v", resp, err)
		}
	}
	records, _ := tc.audit(1, "root", &borgrpc.AuditRequest{})
	var kept, dropped uint64
	others := slices.DeleteFunc(slices.Clone(records), func(r *borgpb.AuditRecord) bool {
		if r.Who != "mallory" {
			return false
		}
		if r.Drop != nil {
			dropped += r.Drop.Times
		}
		kept += r.Count
		return true
	})
	if want := "alice submit-job alice/web\nroot kill-job alice/web\nalice kill-job alice/nothing refused\n"; lines(others) != want {
		t.Errorf("after the flood there is\n%swant\n%s", lines(others), want)
	}
	if kept+dropped != 2*flood || dropped == 0 || kept == 0 {
		t.Errorf("%d refusals of mallory are kept and %d told as dropped, want %d in all, and some of both", kept, dropped, 2*flood)
	}
	if own, _ := tc.audit(1, "alice", &borgrpc.AuditRequest{User: "mallory"}); slices.ContainsFunc(own, func(r *borgpb.AuditRecord) bool { return r.Drop != nil }) {
		t.Error("alice is told what was dropped of mallory")
	}
	if last, _ := tc.audit(1, "root", &borgrpc.AuditRequest{Last: 1}); len(last) < 2 || last[0].Drop == nil {
		t.Errorf("with the newest alone it is not told what was dropped: %v", last)
	}
	size := int64(0)
	entries, err := os.ReadDir(dirs[0])
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		info, err := e.Info()
		if err != nil {
			t.Fatal(err)
		}
		size += info.Size()
	}
	if size > logBytes+localBytes {
		t.Errorf("the journals have %d bytes, want at most %d", size, logBytes+localBytes)
	}
}

// TestRefusedSpecsAreHashed: a refused submit of a large job costs the audit a few bytes.
func TestRefusedSpecsAreHashed(t *testing.T) {
	tc := auditedCell(t, 1)
	tc.hasUsers()
	op := submit(t, "alice", "web", 1)
	op.GetSubmitJob().Spec = append(op.GetSubmitJob().Spec, make([]byte, 30_000)...)
	for range 3 {
		if _, err := tc.client(1, "bob").Mutate(t.Context(), &borgrpc.MutateRequest{Op: tc.op(proto.CloneOf(op))}); err != nil {
			t.Fatal(err)
		}
	}
	records, _ := tc.audit(1, "root", &borgrpc.AuditRequest{Ops: true})
	if len(records) != 1 || records[0].Count != 3 || len(records[0].OpHash) != 32 || proto.Size(records[0]) > 2_000 {
		t.Errorf("three refused submits are told as %v", records)
	}
}
