package borgmaster_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"borg/identity"
	"borg/proto/borgpb"
	"borg/proto/borgrpc"
)

func writeFile(user, name, content string, ifVersion ...uint64) *borgpb.Op {
	o := &borgpb.WriteFile{User: user, Name: name, Content: []byte(content)}
	if len(ifVersion) > 0 {
		o.IfVersion = &ifVersion[0]
	}
	return &borgpb.Op{Op: &borgpb.Op_WriteFile{WriteFile: o}}
}

func deleteFile(user, name string) *borgpb.Op {
	return &borgpb.Op{Op: &borgpb.Op_DeleteFile{DeleteFile: &borgpb.DeleteFile{User: user, Name: name}}}
}

func (tc *testCell) files(replica int, role identity.Role, who string) borgrpc.FileServiceClient {
	return borgrpc.NewFileServiceClient(tc.conn(replica, role, who))
}

// newFileCell has alice's job web running on machine m1.
func newFileCell(t *testing.T, n int) *testCell {
	t.Helper()
	tc := newCell(t, n, nil)
	tc.hasUsers()
	tc.addMachine(startBorglet(t, "m1"))
	tc.must(tc.client(1, "alice"), submitWith(t, "alice", "web", func(s *borgpb.JobSpec) { s.Tasks, s.Task.Ports = 2, []string{"http"} }))
	tc.place("alice", "web", "m1")
	return tc
}

// TestFilesOfAUser: what one replica took all others show, at once, to the user, his
// tasks and admins, and to nobody else.
func TestFilesOfAUser(t *testing.T) {
	tc := newFileCell(t, 3)
	task := borgrpc.NewMasterServiceClient(tc.conn(2, identity.Task, "alice/web/0"))
	ask := func(c borgrpc.MasterServiceClient, op *borgpb.Op) *borgpb.Result {
		t.Helper()
		resp, err := c.Mutate(t.Context(), &borgrpc.MutateRequest{Op: tc.op(op)})
		if err != nil {
			t.Fatal(err)
		}
		return resp.Result
	}
	read := func(replica int, role identity.Role, who, user, name string) (string, error) {
		resp, err := tc.files(replica, role, who).ReadFile(t.Context(), &borgrpc.ReadFileRequest{User: user, Name: name})
		return fmt.Sprintf("%s %d", resp.GetContent(), resp.GetFile().GetVersion()), err
	}
	if r := ask(task, writeFile("alice", "conf/leader", "web/0", 0)); r.Refusal != nil || r.Version != 1 {
		t.Fatalf("a task writes a file of its user: %v", r)
	}
	for replica := 1; replica <= 3; replica++ {
		for _, who := range []identity.Name{{Role: identity.User, ID: "alice"}, {Role: identity.Task, ID: "alice/web/1"}, {Role: identity.User, ID: "root"}} {
			if text, err := read(replica, who.Role, who.ID, "alice", "conf/leader"); err != nil || text != "web/0 1" {
				t.Errorf("%s reads at replica %d: %q, %v", who.Words(), replica, text, err)
			}
		}
	}
	if r := ask(task, writeFile("alice", "conf/leader", "web/1", 0)); r.Refusal.GetKind() != borgpb.RefusalKind_REFUSAL_KIND_CONFLICT {
		t.Errorf("another one that must be the first: %v", r)
	}
	if r := ask(tc.client(3, "alice"), writeFile("alice", "conf/leader", "alice", 1)); r.Refusal != nil || r.Version != 2 {
		t.Errorf("its user writes it, as it was: %v", r)
	}
	tc.must(tc.client(1, "alice"), writeFile("alice", "conf/size", ""))
	tc.must(tc.client(1, "bob"), writeFile("bob", "secret-plan", "x"))

	// Whose they are not.
	for _, who := range []identity.Name{{Role: identity.User, ID: "bob"}, {Role: identity.Task, ID: "bob/db/0"}} {
		if _, err := read(2, who.Role, who.ID, "alice", "conf/leader"); status.Code(err) != codes.PermissionDenied {
			t.Errorf("%s reads a file of alice: %v", who.Words(), err)
		}
		if _, err := tc.files(2, who.Role, who.ID).ListFiles(t.Context(), &borgrpc.ListFilesRequest{User: "alice"}); status.Code(err) != codes.PermissionDenied {
			t.Errorf("%s lists the files of alice: %v", who.Words(), err)
		}
		stream, err := tc.files(2, who.Role, who.ID).WatchFiles(t.Context(), &borgrpc.WatchFilesRequest{User: "alice"})
		if err == nil {
			_, err = stream.Recv()
		}
		if status.Code(err) != codes.PermissionDenied {
			t.Errorf("%s watches the files of alice: %v", who.Words(), err)
		}
	}
	for what, op := range map[string]*borgpb.Op{"writes": writeFile("bob", "secret-plan", "y"), "deletes": deleteFile("bob", "secret-plan")} {
		if r := ask(task, op); r.Refusal.GetKind() != borgpb.RefusalKind_REFUSAL_KIND_PERMISSION {
			t.Errorf("a task of alice %s a file of bob: %v", what, r)
		}
	}
	// An admin may, and a task of an admin may not.
	tc.must(tc.client(1, "root"), submit(t, "root", "tool", 1))
	tc.place("root", "tool", "m1")
	if _, err := read(1, identity.Task, "root/tool/0", "alice", "conf/leader"); status.Code(err) != codes.PermissionDenied {
		t.Errorf("a task of an admin reads a file of alice: %v", err)
	}
	if r := ask(borgrpc.NewMasterServiceClient(tc.conn(1, identity.Task, "root/tool/0")), writeFile("alice", "conf/leader", "root")); r.Refusal.GetKind() != borgpb.RefusalKind_REFUSAL_KIND_PERMISSION {
		t.Errorf("a task of an admin writes a file of alice: %v", r)
	}

	// In pages; with no user it is one's own that are meant.
	var names []string
	for after := ""; ; {
		page, err := tc.files(3, identity.Task, "alice/web/0").ListFiles(t.Context(), &borgrpc.ListFilesRequest{After: after, Limit: 1})
		if err != nil || len(page.Files) != 1 {
			t.Fatalf("a page: %v, %v", page, err)
		}
		names = append(names, page.Files[0].Name)
		if after = page.NextAfter; after == "" {
			break
		}
	}
	if !slices.Equal(names, []string{"conf/leader", "conf/size"}) {
		t.Errorf("alice's files are %v", names)
	}
	if _, err := read(1, identity.User, "alice", "alice", "conf/none"); status.Code(err) != codes.NotFound {
		t.Errorf("a file that is not there: %v", err)
	}
	if _, err := read(1, identity.User, "alice", "alice", "../up"); status.Code(err) != codes.InvalidArgument {
		t.Errorf("a name that leads up: %v", err)
	}
}

// watchLine is a message of a watch in words.
func watchLine(resp *borgrpc.WatchFilesResponse) string {
	var words []string
	if resp.State {
		words = append(words, "state")
	}
	for _, one := range resp.Changes {
		word := fmt.Sprintf("%s@%d=%s", one.File.Name, one.File.Version, one.Content)
		if one.Deleted {
			word = fmt.Sprintf("%s@%d deleted", one.File.Name, one.File.Version)
		}
		words = append(words, word)
	}
	return strings.Join(words, " ")
}

// TestWatchFiles: what there is, and then each change below the name, in order, at
// any replica. The next one is made when the last was seen, so nothing is superseded.
func TestWatchFiles(t *testing.T) {
	tc := newFileCell(t, 2)
	alice := tc.client(1, "alice")
	tc.must(alice, writeFile("alice", "conf/a", "1"))
	tc.must(alice, writeFile("alice", "confer", "2"))
	stream, err := tc.files(2, identity.Task, "alice/web/0").WatchFiles(t.Context(), &borgrpc.WatchFilesRequest{Prefix: "conf", Content: true})
	if err != nil {
		t.Fatal(err)
	}
	heard := func(want string) {
		t.Helper()
		resp, err := stream.Recv()
		if err != nil || watchLine(resp) != want {
			t.Fatalf("heard %q, %v, want %q", watchLine(resp), err, want)
		}
	}
	heard("state conf/a@1=1")
	tc.must(alice, writeFile("alice", "conf/a", "3"))
	heard("conf/a@3=3")
	// Of others, and beside it.
	tc.must(alice, writeFile("alice", "confer", "4"))
	tc.must(tc.client(1, "bob"), writeFile("bob", "conf/a", "5"))
	tc.must(alice, deleteFile("alice", "conf/a"))
	heard("conf/a@6 deleted")
	tc.must(alice, writeFile("alice", "conf/b/c", "7"))
	heard("conf/b/c@7=7")

	empty, err := tc.files(1, identity.User, "bob").WatchFiles(t.Context(), &borgrpc.WatchFilesRequest{Prefix: "none"})
	if err != nil {
		t.Fatal(err)
	}
	if resp, err := empty.Recv(); err != nil || watchLine(resp) != "state" || resp.More {
		t.Errorf("the state of nothing is %v, %v", resp, err)
	}
	// Who died has nothing to watch any more.
	tc.must(alice, kill("alice", "web"))
	until(t, "a task that was ended is refused", func() bool {
		tc.must(alice, writeFile("alice", "conf/a", "x"))
		for {
			resp, err := stream.Recv()
			if err != nil {
				return status.Code(err) == codes.Unauthenticated
			}
			if slices.ContainsFunc(resp.Changes, func(one *borgrpc.FileChange) bool { return one.File.Name == "conf/a" }) {
				return false
			}
		}
	})
}

// TestWatchesOfFilesAreBounded: of one user, so that others may watch too.
func TestWatchesOfFilesAreBounded(t *testing.T) {
	tc := newCell(t, 1, nil)
	watch := func(who string) error {
		stream, err := tc.files(1, identity.User, who).WatchFiles(t.Context(), &borgrpc.WatchFilesRequest{})
		if err == nil {
			_, err = stream.Recv()
		}
		return err
	}
	const most = 64
	for i := range most {
		if err := watch("alice"); err != nil {
			t.Fatalf("watch %d: %v", i+1, err)
		}
	}
	if err := watch("alice"); status.Code(err) != codes.ResourceExhausted {
		t.Errorf("watch %d of one user: %v", most+1, err)
	}
	if err := watch("bob"); err != nil {
		t.Errorf("a watch of another: %v", err)
	}
}

// TestFloodOfFiles: with nobody elected writes wait, and one user has so many that
// wait and no more, whosever the files are; others are let in, and all that waited is
// done.
func TestFloodOfFiles(t *testing.T) {
	tc := newFileCell(t, 1)
	tc.group.Elect(0)
	const most = 16
	answers := make(chan error, most+2)
	write := func(who, owner, name string) {
		client, op := tc.client(1, who), tc.op(writeFile(owner, name, "x"))
		go func() {
			resp, err := client.Mutate(t.Context(), &borgrpc.MutateRequest{Op: op})
			if err == nil && resp.Result.Refusal != nil {
				err = fmt.Errorf("%s: %v", name, resp.Result.Refusal)
			}
			answers <- err
		}()
	}
	for i := range most + 1 {
		owner := "alice"
		if i%2 > 0 {
			// To which he has no right, which is found out later.
			owner = "bob"
		}
		write("alice", owner, fmt.Sprint("f", i))
	}
	if err := <-answers; status.Code(err) != codes.ResourceExhausted {
		t.Fatalf("the first answer is %v, want that it is one too many", err)
	}
	write("bob", "bob", "plan")
	tc.group.Elect(1)
	done, refused := 0, 0
	for range most + 1 {
		if err := <-answers; err == nil {
			done++
		} else if strings.Contains(err.Error(), "PERMISSION") {
			refused++
		} else {
			t.Error(err)
		}
	}
	if done+refused != most+1 || done < most/2+1 {
		t.Errorf("%d were done and %d refused of %d that waited", done, refused, most+1)
	}
}

// TestResolve: where tasks are, for everybody, with the names of their ports.
func TestResolve(t *testing.T) {
	tc := newFileCell(t, 2)
	tc.must(tc.client(1, "bob"), submit(t, "bob", "waits", 3))
	names := func(replica int, role identity.Role, who string) borgrpc.NameServiceClient {
		return borgrpc.NewNameServiceClient(tc.conn(replica, role, who))
	}
	until(t, "the tasks are said to run", func() bool {
		resp, err := names(2, identity.Task, "bob/db/0").Resolve(t.Context(), &borgrpc.ResolveRequest{User: "alice", Job: "web"})
		return err == nil && len(resp.Endpoints) == 2 && resp.Endpoints[0].Running && resp.Endpoints[1].Running
	})
	resp, err := names(1, identity.User, "alice").Resolve(t.Context(), &borgrpc.ResolveRequest{Job: "web", First: 1, OneTask: true})
	if err != nil || len(resp.Endpoints) != 1 || resp.Tasks != 2 || resp.Next != 0 {
		t.Fatalf("the second task: %v, %v", resp, err)
	}
	if one := resp.Endpoints[0]; one.Index != 1 || one.Attempt != 1 || one.State != borgpb.State_STATE_RUNNING || one.Machine != "m1" || one.Host != "127.0.0.1" || one.Ports["http"] != 20001 {
		t.Errorf("the second task is at %v", one)
	}
	resp, err = names(2, identity.User, "alice").Resolve(t.Context(), &borgrpc.ResolveRequest{User: "bob", Job: "waits", Limit: 2})
	if err != nil || len(resp.Endpoints) != 2 || resp.Next != 2 || resp.Endpoints[0].State != borgpb.State_STATE_PENDING || resp.Endpoints[0].Host != "" {
		t.Errorf("a page of what waits: %v, %v", resp, err)
	}
	resp, err = names(2, identity.User, "alice").Resolve(t.Context(), &borgrpc.ResolveRequest{User: "bob", Job: "waits", Limit: 2, First: resp.GetNext()})
	if err != nil || len(resp.Endpoints) != 1 || resp.Next != 0 {
		t.Errorf("the last page: %v, %v", resp, err)
	}
	for what, req := range map[string]*borgrpc.ResolveRequest{"a job": {Job: "none"}, "a task": {Job: "web", First: 2, OneTask: true}} {
		if _, err := names(1, identity.User, "alice").Resolve(t.Context(), req); status.Code(err) != codes.NotFound {
			t.Errorf("%s that is not there: %v", what, err)
		}
	}
}
