package borgmaster_test

import (
	"crypto/ed25519"
	"crypto/rand"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"borg/identity"
	"borg/proto/borgpb"
	"borg/proto/borgrpc"
)

// certifyTask asks in the name of a machine.
func (tc *testCell) certifyTask(replica int, machine string, id *borgrpc.CopyID) (*borgrpc.CertifyTaskResponse, ed25519.PrivateKey, error) {
	tc.t.Helper()
	public, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		tc.t.Fatal(err)
	}
	resp, err := tc.identities(replica, source(tc.t, identity.Borglet, machine)).CertifyTask(tc.t.Context(), &borgrpc.CertifyTaskRequest{Copy: id, PublicKey: public})
	return resp, key, err
}

// TestCertificatesOfTasks: a borglet gets certificates of the copies that the
// cell has on its own machine now, and of nothing else.
func TestCertificatesOfTasks(t *testing.T) {
	tc := newCell(t, 2, nil)
	b1, b2 := startBorglet(t, "m1"), startBorglet(t, "m2")
	tc.addMachine(b1)
	tc.addMachine(b2)
	alice := tc.client(1, "alice")
	tc.must(alice, submit(t, "alice", "web", 2))
	uid := tc.tasks("alice", "web")[0].Meta.Uid
	id := &borgrpc.CopyID{JobUid: uid, Index: 1, Attempt: 1}
	if _, _, err := tc.certifyTask(1, "m1", id); status.Code(err) != codes.PermissionDenied {
		t.Errorf("for a task that waits: %v, want PermissionDenied", err)
	}
	tc.place("alice", "web", "m1")
	// Through a replica that is not elected.
	resp, key, err := tc.certifyTask(2, "m1", id)
	if err != nil {
		t.Fatal(err)
	}
	cert := resp.Certificate
	c, err := identity.NewCredential(key, &identity.Issued{Certificate: cert.Certificate, Authorities: cert.Authorities})
	if err != nil || c.Name.String() != "spiffe://test/task/alice/web/1" || len(cert.Masters) != 2 || c.Expires().Sub(c.IssuedAt()) != identity.Life {
		t.Errorf("CertifyTask = %v, %v, want task alice/web/1 for an hour, and two masters", c, err)
	}
	for what, ask := range map[string]struct {
		machine string
		id      *borgrpc.CopyID
	}{
		"of another machine's task":   {"m2", id},
		"of a machine that is nobody": {"m9", id},
		"of another attempt":          {"m1", &borgrpc.CopyID{JobUid: uid, Index: 1, Attempt: 2}},
		"of a task that is not there": {"m1", &borgrpc.CopyID{JobUid: uid, Index: 7, Attempt: 1}},
		"of no job":                   {"m1", &borgrpc.CopyID{JobUid: "1-99-0", Index: 1, Attempt: 1}},
	} {
		if _, _, err := tc.certifyTask(1, ask.machine, ask.id); status.Code(err) != codes.PermissionDenied || !strings.Contains(err.Error(), "running on machine "+ask.machine) {
			t.Errorf("%s: %v, want PermissionDenied", what, err)
		}
	}
	if _, _, err := tc.certifyTask(1, "m1", &borgrpc.CopyID{JobUid: "../x", Attempt: 1}); status.Code(err) != codes.InvalidArgument {
		t.Errorf("of an odd uid: %v, want InvalidArgument", err)
	}
	// Told to stop, it is not its task's copy any more, whatever the machine says.
	b1.stop()
	tc.must(tc.client(1, "root"), &borgpb.Op{Op: &borgpb.Op_DrainMachine{DrainMachine: &borgpb.DrainMachine{Name: "m1", Drain: true}}})
	if _, _, err := tc.certifyTask(1, "m1", id); status.Code(err) != codes.PermissionDenied {
		t.Errorf("of a copy that was told to stop: %v, want PermissionDenied", err)
	}
	tc.place("alice", "web", "m2")
	if _, _, err := tc.certifyTask(1, "m1", id); status.Code(err) != codes.PermissionDenied {
		t.Errorf("of a copy that was replaced: %v, want PermissionDenied", err)
	}
	if _, _, err := tc.certifyTask(1, "m2", &borgrpc.CopyID{JobUid: uid, Index: 1, Attempt: 2}); err != nil {
		t.Errorf("of the copy that replaced it: %v", err)
	}
}
