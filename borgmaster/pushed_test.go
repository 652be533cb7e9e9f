package borgmaster_test

import (
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"borg/borgmaster/cell"
	"borg/identity"
	"borg/proto/borgpb"
	"borg/proto/borgrpc"
)

// What a task's spec names of its owner's is given to the borglet of its machine, each when it
// is asked for, and to nobody else.
func TestFilesAndLoginsReachTheirTasks(t *testing.T) {
	tc, _ := newSecretCell(t, 2)
	until(t, "the cell has its latest format", func() (latest bool) {
		tc.group.Replica(1).View(func(c *cell.Cell) { latest = c.Format() == cell.BuildFormat })
		return latest
	})
	b := startBorglet(t, "m1")
	tc.addMachine(b)
	tc.addMachine(startBorglet(t, "m2"))
	alice := tc.client(1, "alice")
	for _, name := range []string{"db", "registry", "other"} {
		if r, err := tc.setSecret(1, "alice", "alice", name, "value of "+name); err != nil || r.Refusal != nil {
			t.Fatalf("SetSecret: %v, %v", r, err)
		}
	}
	write := func(name, content string) *borgpb.Op {
		return &borgpb.Op{Op: &borgpb.Op_WriteFile{WriteFile: &borgpb.WriteFile{User: "alice", Name: name, Content: []byte(content)}}}
	}
	tc.must(alice, write("conf/app", "one"))
	tc.must(alice, write("conf/other", "x"))
	tc.must(alice, submitWith(t, "alice", "web", func(s *borgpb.JobSpec) {
		s.Task.Secrets = []string{"db"}
		s.Task.Files = []*borgpb.PushedFile{{Name: "conf/app"}}
		digest := "sha256:" + strings.Repeat("a", 64)
		s.Task.Packages = []*borgpb.Package{{Name: "a", Digest: digest, Path: "/a", Credentials: "registry"}, {Name: "b", Digest: digest, Path: "/b", Credentials: "registry"}}
	}))
	tc.place("alice", "web", "m1")
	id := &borgrpc.CopyID{JobUid: tc.tasks("alice", "web")[0].Meta.Uid, Attempt: 1}
	ask := func(machine string, req *borgrpc.CertifyTaskRequest) (*borgrpc.CertifyTaskResponse, error) {
		req.Copy = id
		return tc.identities(2, source(t, identity.Borglet, machine)).CertifyTask(t.Context(), req)
	}
	files, err := ask("m1", &borgrpc.CertifyTaskRequest{Files: true})
	if err != nil || len(files.GetFiles()) != 1 || files.Files[0].Name != "conf/app" || string(files.Files[0].Content) != "one" || files.Files[0].Version == 0 || files.Certificate != nil || len(files.Secrets) > 0 {
		t.Errorf("files: %v, %v, want the one that the task names, and nothing else", files, err)
	}
	logins, err := ask("m1", &borgrpc.CertifyTaskRequest{PackageCredentials: true})
	if err != nil || len(logins.GetSecrets()) != 1 || logins.Secrets[0].Name != "registry" || string(logins.Secrets[0].Value) != "value of registry" || logins.Certificate != nil {
		t.Errorf("logins: %v, %v, want the one that its packages name, once", logins, err)
	}
	// The task itself is not given it.
	if own, _, err := tc.certifyTask(1, "m1", id); err != nil || len(own.GetSecrets()) != 1 || own.Secrets[0].Name != "db" || len(own.GetFiles()) > 0 {
		t.Errorf("its own: %v, %v", own, err)
	}
	for _, req := range []*borgrpc.CertifyTaskRequest{{Files: true}, {PackageCredentials: true}} {
		if resp, err := ask("m2", req); status.Code(err) != codes.PermissionDenied {
			t.Errorf("another machine: %v, %v, want PermissionDenied", resp, err)
		}
	}
	tc.must(alice, &borgpb.Op{Op: &borgpb.Op_DeleteFile{DeleteFile: &borgpb.DeleteFile{User: "alice", Name: "conf/app"}}})
	if files, err := ask("m1", &borgrpc.CertifyTaskRequest{Files: true}); err != nil || len(files.GetFiles()) != 0 {
		t.Errorf("after it was deleted: %v, %v", files, err)
	}
}
