package borgmaster_test

import (
	"errors"
	"io"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"borg/borgmaster"
	"borg/borgmaster/audit"
	"borg/identity"
	"borg/proto/borgpb"
	"borg/proto/borgrpc"
)

// auditedCell is a cell whose replicas keep an audit.
func auditedCell(t *testing.T, n int) *testCell {
	t.Helper()
	return newCell(t, n, func(replica int, c *borgmaster.Config) {
		trail, err := audit.Open(audit.Config{Dir: t.TempDir(), Replica: uint64(replica)})
		if err != nil {
			t.Fatal(err)
		}
		// After the master, which is stopped later in this test, and so before.
		t.Cleanup(func() { trail.Close() })
		c.Audit = trail
	})
}

// audit asks a replica, in the name of a user.
func (tc *testCell) audit(replica int, user string, req *borgrpc.AuditRequest) (records []*borgpb.AuditRecord, silent []*borgrpc.SilentReplica) {
	tc.t.Helper()
	stream, err := borgrpc.NewAuditServiceClient(tc.conn(replica, identity.User, user)).Audit(tc.t.Context(), req)
	for err == nil {
		var resp *borgrpc.AuditResponse
		if resp, err = stream.Recv(); err == nil {
			records, silent = append(records, resp.Records...), append(silent, resp.Silent...)
		}
	}
	if !errors.Is(err, io.EOF) {
		tc.t.Fatal(err)
	}
	return records, silent
}

func lines(records []*borgpb.AuditRecord) string {
	var b strings.Builder
	for _, r := range records {
		b.WriteString(r.Who + " " + r.Verb)
		if r.Object != "" {
			b.WriteString(" " + r.Object)
		}
		if r.Refusal != nil {
			b.WriteString(" refused")
		}
		b.WriteString("\n")
	}
	return b.String()
}

func TestAuditTellsWhoDidWhat(t *testing.T) {
	tc := auditedCell(t, 3)
	tc.hasUsers()
	op := submit(t, "alice", "web", 1)
	op.Command, op.ConfigHash, op.Reason = "borgcfg up web.borg", "c0ffee", "it is time"
	tc.must(tc.client(2, "alice"), op)
	// Refused at two places: by the log, asked through replica 3, and by replica 2's
	// table of calls.
	if resp, err := tc.client(3, "bob").Mutate(t.Context(), &borgrpc.MutateRequest{Op: tc.op(kill("alice", "web"))}); err != nil || resp.Result.GetRefusal() == nil {
		t.Fatalf("bob kills alice/web: %v, %v", resp, err)
	}
	if _, err := tc.identities(2, source(t, identity.Borglet, "m1")).WhoAmI(t.Context(), &borgrpc.WhoAmIRequest{}); status.Code(err) != codes.PermissionDenied {
		t.Fatalf("a borglet asks who it is: %v", err)
	}
	if resp, err := tc.client(1, "alice").Mutate(t.Context(), &borgrpc.MutateRequest{Op: tc.op(kill("alice", "nothing"))}); err != nil || resp.Result.GetRefusal() == nil {
		t.Fatalf("alice kills what is not there: %v, %v", resp, err)
	}
	tc.must(tc.client(1, "root"), kill("alice", "web"))

	all := "alice submit-job alice/web\nbob kill-job alice/web refused\nm1 WhoAmI refused\nalice kill-job alice/nothing refused\nroot kill-job alice/web\n"
	for replica := 1; replica <= 3; replica++ {
		records, silent := tc.audit(replica, "root", &borgrpc.AuditRequest{})
		if got := lines(records); got != all || len(silent) != 0 {
			t.Errorf("replica %d tells (silent: %v)\n%swant\n%s", replica, silent, got, all)
		}
	}
	records, _ := tc.audit(1, "root", &borgrpc.AuditRequest{Ops: true})
	first, refused := records[0], records[1]
	if first.Command != op.Command || first.ConfigHash != op.ConfigHash || first.Reason != op.Reason || first.Index == 0 || first.Replica != 0 || len(first.Op) == 0 || first.Version != 1 {
		t.Errorf("the submit is told as %v", first)
	}
	if refused.Replica != 0 || refused.Index == 0 || refused.Refusal.Kind != borgpb.RefusalKind_REFUSAL_KIND_PERMISSION {
		t.Errorf("what the cell refused is told as %v", refused)
	}
	if r := records[2]; r.Replica != 2 || r.Index != 0 || r.Refusal.Kind != borgpb.RefusalKind_REFUSAL_KIND_PERMISSION {
		t.Errorf("what replica 2 refused is told as %v", r)
	}
	for _, tt := range []struct {
		user string
		req  *borgrpc.AuditRequest
		want string
	}{
		{"bob", &borgrpc.AuditRequest{}, "bob kill-job alice/web refused\n"},
		{"alice", &borgrpc.AuditRequest{}, "alice submit-job alice/web\nbob kill-job alice/web refused\nalice kill-job alice/nothing refused\nroot kill-job alice/web\n"},
		{"alice", &borgrpc.AuditRequest{Object: "web", Refused: true}, "bob kill-job alice/web refused\n"},
		{"root", &borgrpc.AuditRequest{User: "root"}, "root kill-job alice/web\n"},
		{"root", &borgrpc.AuditRequest{Object: "bob"}, "bob kill-job alice/web refused\n"},
		{"root", &borgrpc.AuditRequest{Verb: "submit"}, "alice submit-job alice/web\n"},
		{"root", &borgrpc.AuditRequest{Last: 2}, "alice kill-job alice/nothing refused\nroot kill-job alice/web\n"},
		{"root", &borgrpc.AuditRequest{SinceWallNs: first.WallNs + 1, UntilWallNs: refused.WallNs + 1}, "bob kill-job alice/web refused\n"},
		{"carol", &borgrpc.AuditRequest{}, ""},
	} {
		got, _ := tc.audit(2, tt.user, tt.req)
		if lines(got) != tt.want {
			t.Errorf("%s asks %v and hears\n%swant\n%s", tt.user, tt.req, lines(got), tt.want)
		}
	}
}

// TestAuditNamesSilentReplicas: what a dead replica refused is not known, and that
// is said.
func TestAuditNamesSilentReplicas(t *testing.T) {
	tc := auditedCell(t, 3)
	tc.hasUsers()
	tc.must(tc.client(1, "alice"), submit(t, "alice", "web", 1))
	tc.stop[2]()
	records, silent := tc.audit(1, "root", &borgrpc.AuditRequest{})
	if lines(records) != "alice submit-job alice/web\n" || len(silent) != 1 || silent[0].Replica != 3 || silent[0].Why == "" {
		t.Errorf("with replica 3 dead: %s and silent are %v", lines(records), silent)
	}
}

// TestOthersFillTheAudit: a replica that was given a checkpoint tells what others have of that
// part of the log, and says of whom it asked in vain.
func TestOthersFillTheAudit(t *testing.T) {
	tc := newCell(t, 3, func(replica int, c *borgmaster.Config) {
		trail, err := audit.Open(audit.Config{Dir: t.TempDir(), Replica: uint64(replica)})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { trail.Close() })
		switch replica {
		case 1:
			trail.Log.Restored(1000)
		case 2:
			trail.Log.Restored(3)
		}
		c.Audit = trail
	})
	tc.hasUsers()
	for _, name := range []string{"a", "b", "c", "d"} {
		tc.must(tc.client(1, "alice"), submit(t, "alice", name, 1))
	}
	all := "alice submit-job alice/a\nalice submit-job alice/b\nalice submit-job alice/c\nalice submit-job alice/d\n"
	asked := &borgrpc.AuditRequest{Verb: "submit"}
	for replica := 1; replica <= 3; replica++ {
		if records, silent := tc.audit(replica, "alice", asked); lines(records) != all || len(silent) != 0 {
			t.Errorf("replica %d tells (silent: %v)\n%swant\n%s", replica, silent, lines(records), all)
		}
	}
	if records, _ := tc.audit(1, "alice", &borgrpc.AuditRequest{Verb: "submit", UntilWallNs: 1}); len(records) != 0 {
		t.Errorf("before all of them there are %v", records)
	}
	if records, _ := tc.audit(1, "alice", &borgrpc.AuditRequest{Verb: "submit", Last: 2}); lines(records) != "alice submit-job alice/c\nalice submit-job alice/d\n" {
		t.Errorf("the last two are\n%s", lines(records))
	}
	// Now nobody who has the first entries answers.
	tc.stop[2]()
	records, _ := tc.audit(1, "alice", asked)
	h := records[0].GetHole()
	if h.GetFrom() != 2 || h.GetTo() != 3 || !strings.Contains(h.GetWhy(), "replica 2: this replica was given a checkpoint") || !strings.Contains(h.GetWhy(), "replica 3: ") {
		t.Errorf("without replica 3 the hole is %v", records[0])
	}
	if got := lines(records[1:]); got == "" || !strings.HasSuffix(all, got) {
		t.Errorf("without replica 3 what is told is\n%s", got)
	}
}
