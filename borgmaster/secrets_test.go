package borgmaster_test

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"borg/borgmaster"
	"borg/borgmaster/admission"
	"borg/borgmaster/cell"
	"borg/borgmaster/cellkey"
	"borg/identity"
	"borg/proto/borgpb"
	"borg/proto/borgrpc"
)

// newSecretCell has masters with one cell key, and an admin.
func newSecretCell(t *testing.T, n int, change ...func(int, *borgmaster.Config)) (*testCell, []*cellkey.Ring) {
	t.Helper()
	key, err := cellkey.NewKey()
	if err != nil {
		t.Fatal(err)
	}
	var rings []*cellkey.Ring
	tc := newCell(t, n, func(i int, c *borgmaster.Config) {
		c.Keys = cellkey.NewRing(nil, key)
		rings = append(rings, c.Keys)
		for _, f := range change {
			f(i, c)
		}
	})
	tc.hasUsers()
	return tc, rings
}

func (tc *testCell) secrets(replica int, who string) borgrpc.SecretServiceClient {
	return borgrpc.NewSecretServiceClient(tc.conn(replica, identity.User, who))
}

func (tc *testCell) setSecret(replica int, who, user, name, value string) (*borgpb.Result, error) {
	tc.t.Helper()
	tc.ops++
	resp, err := tc.secrets(replica, who).SetSecret(tc.t.Context(), &borgrpc.SetSecretRequest{
		RequestId: fmt.Sprintf("set-%d", tc.ops), RequestWallNs: time.Now().UnixNano(), User: user, Name: name, Value: []byte(value),
	})
	return resp.GetResult(), err
}

// submitWith is a job that names secrets.
func submitWith(t *testing.T, owner, name string, change func(*borgpb.JobSpec)) *borgpb.Op {
	t.Helper()
	op := submit(t, owner, name, 1)
	spec := new(borgpb.JobSpec)
	if err := proto.Unmarshal(op.GetSubmitJob().Spec, spec); err != nil {
		t.Fatal(err)
	}
	change(spec)
	var err error
	if op.GetSubmitJob().Spec, err = proto.Marshal(spec); err != nil {
		t.Fatal(err)
	}
	return op
}

// sealedSecrets is what the cell of a replica holds.
func (tc *testCell) sealedSecrets(replica uint64) map[string]string {
	all := map[string]string{}
	tc.group.Replica(replica).View(func(c *cell.Cell) {
		for s := range c.Secrets() {
			all[s.User()+"/"+s.Name()] = s.KeyID() + " " + string(s.Sealed())
		}
	})
	return all
}

// TestSecretsReachTheirTasks and nobody else.
func TestSecretsReachTheirTasks(t *testing.T) {
	tc, _ := newSecretCell(t, 2)
	b1, b2 := startBorglet(t, "m1"), startBorglet(t, "m2")
	tc.addMachine(b1)
	tc.addMachine(b2)
	const value = "correct horse battery staple"
	// Through a replica that is not elected.
	if r, err := tc.setSecret(2, "alice", "alice", "db", value); err != nil || r.Refusal != nil || r.Version != 1 {
		t.Fatalf("SetSecret = %v, %v", r, err)
	}
	for _, replica := range []uint64{1, 2} {
		for key, sealed := range tc.sealedSecrets(replica) {
			if strings.Contains(sealed, value) || strings.Contains(sealed, "horse") {
				t.Errorf("replica %d has %s in the clear", replica, key)
			}
		}
	}
	for what, who := range map[string]string{"another user": "bob", "nobody in particular": "mallory"} {
		if r, err := tc.setSecret(1, who, "alice", "db", "x"); status.Code(err) != codes.PermissionDenied || !strings.Contains(err.Error(), "granted by root") {
			t.Errorf("%s sets alice's secret: %v, %v, want PermissionDenied and who can help", what, r, err)
		}
		if resp, err := tc.secrets(1, who).ListSecrets(t.Context(), &borgrpc.ListSecretsRequest{User: "alice"}); status.Code(err) != codes.PermissionDenied {
			t.Errorf("%s lists alice's secrets: %v, %v", what, resp, err)
		}
		if resp, err := tc.secrets(1, who).RotateCellKey(t.Context(), &borgrpc.RotateCellKeyRequest{}); status.Code(err) != codes.PermissionDenied {
			t.Errorf("%s rotates the cell key: %v, %v", what, resp, err)
		}
	}
	if r, err := tc.setSecret(1, "root", "alice", "tls", "second"); err != nil || r.Refusal != nil {
		t.Errorf("an admin sets a secret of alice: %v, %v", r, err)
	}
	list, err := tc.secrets(2, "alice").ListSecrets(t.Context(), &borgrpc.ListSecretsRequest{User: "alice"})
	if err != nil || len(list.Secrets) != 2 || list.Secrets[0].Name != "db" || list.Secrets[0].Version != 1 || list.Secrets[0].KeyId == "" {
		t.Errorf("alice's secrets are %v, %v", list, err)
	}
	// The sealed op is the elected master's own: no user sends one.
	forged := &borgpb.Op{Op: &borgpb.Op_SetSecret{SetSecret: &borgpb.SetSecret{User: "alice", Name: "db", Version: 2, KeyId: "00000000000000aa", Sealed: make([]byte, 28)}}}
	for _, who := range []string{"alice", "root"} {
		if resp, err := tc.client(1, who).Mutate(t.Context(), &borgrpc.MutateRequest{Op: tc.op(proto.CloneOf(forged))}); err != nil || resp.Result.Refusal.GetKind() != borgpb.RefusalKind_REFUSAL_KIND_PERMISSION {
			t.Errorf("%s sends a sealed secret: %v, %v, want it refused", who, resp, err)
		}
	}
	if _, err := tc.setSecret(1, "alice", "alice", "big", strings.Repeat("x", cell.MaxSecretBytes+1)); status.Code(err) != codes.InvalidArgument {
		t.Errorf("a secret that is too large: %v", err)
	}
	if r, err := tc.setSecret(1, "alice", "alice", "big", strings.Repeat("x", cell.MaxSecretBytes)); err != nil || r.Refusal != nil {
		t.Errorf("the largest secret: %v, %v", r, err)
	}

	missing, err := tc.client(1, "bob").Mutate(t.Context(), &borgrpc.MutateRequest{Op: tc.op(submitWith(t, "bob", "web", func(s *borgpb.JobSpec) { s.Task.Secrets = []string{"db"} }))})
	if err != nil || missing.Result.Refusal.GetKind() != borgpb.RefusalKind_REFUSAL_KIND_NOT_FOUND || !strings.Contains(missing.Result.Refusal.Message, "borgcfg secret set db") {
		t.Errorf("bob's job names a secret of alice: %v, %v, want it refused with what to do", missing, err)
	}
	tc.must(tc.client(1, "alice"), submitWith(t, "alice", "web", func(s *borgpb.JobSpec) { s.Task.Secrets = []string{"db"} }))
	tc.must(tc.client(1, "alice"), submit(t, "alice", "plain", 1))
	tc.place("alice", "web", "m1")
	tc.place("alice", "plain", "m1")
	copyOf := func(job string) *borgrpc.CopyID {
		return &borgrpc.CopyID{JobUid: tc.tasks("alice", job)[0].Meta.Uid, Attempt: 1}
	}
	given := func(replica int, machine, job string) ([]*borgrpc.Secret, error) {
		resp, _, err := tc.certifyTask(replica, machine, copyOf(job))
		return resp.GetSecrets(), err
	}
	for _, replica := range []int{1, 2} {
		if got, err := given(replica, "m1", "web"); err != nil || len(got) != 1 || got[0].Name != "db" || string(got[0].Value) != value {
			t.Errorf("replica %d gives %v, %v, want the one that the task names", replica, got, err)
		}
	}
	if got, err := given(1, "m1", "plain"); err != nil || len(got) != 0 {
		t.Errorf("a task that names none is given %v, %v", got, err)
	}
	if got, err := given(1, "m2", "web"); status.Code(err) != codes.PermissionDenied {
		t.Errorf("another machine is given %v, %v", got, err)
	}
	if r, err := tc.setSecret(1, "alice", "alice", "db", "new"); err != nil || r.Version != 2 {
		t.Errorf("another value: %v, %v", r, err)
	}
	if got, err := given(2, "m1", "web"); err != nil || string(got[0].Value) != "new" {
		t.Errorf("after a change the task is given %v, %v", got, err)
	}
	del := func(who string) borgpb.RefusalKind {
		t.Helper()
		resp, err := tc.client(1, who).Mutate(t.Context(), &borgrpc.MutateRequest{Op: tc.op(&borgpb.Op{Op: &borgpb.Op_DeleteSecret{DeleteSecret: &borgpb.DeleteSecret{User: "alice", Name: "db"}}})})
		if err != nil {
			t.Fatal(err)
		}
		return resp.Result.Refusal.GetKind()
	}
	if got := del("bob"); got != borgpb.RefusalKind_REFUSAL_KIND_PERMISSION {
		t.Errorf("bob deletes alice's secret: %v", got)
	}
	if got := del("alice"); got != borgpb.RefusalKind_REFUSAL_KIND_STATE {
		t.Errorf("a secret that a job names is deleted: %v", got)
	}
	tc.must(tc.client(1, "alice"), kill("alice", "web"))
	if got := del("alice"); got != 0 {
		t.Errorf("alice deletes her secret: %v", got)
	}
}

// TestRotation: every replica has the new key before it is used, all secrets are
// sealed anew under their versions, and the old key goes.
func TestRotation(t *testing.T) {
	tc, rings := newSecretCell(t, 3)
	b := startBorglet(t, "m1")
	tc.addMachine(b)
	names := []string{"a", "b", "c"}
	for _, name := range names {
		if r, err := tc.setSecret(1, "alice", "alice", name, "value of "+name); err != nil || r.Refusal != nil {
			t.Fatalf("SetSecret: %v, %v", r, err)
		}
	}
	tc.must(tc.client(1, "alice"), submitWith(t, "alice", "web", func(s *borgpb.JobSpec) { s.Task.Secrets = names }))
	tc.place("alice", "web", "m1")
	id := &borgrpc.CopyID{JobUid: tc.tasks("alice", "web")[0].Meta.Uid, Attempt: 1}
	opens := func(replica int) {
		t.Helper()
		resp, _, err := tc.certifyTask(replica, "m1", id)
		if err != nil || len(resp.Secrets) != len(names) {
			t.Fatalf("replica %d gives %v, %v", replica, resp.GetSecrets(), err)
		}
		for i, s := range resp.Secrets {
			if string(s.Value) != "value of "+names[i] {
				t.Errorf("replica %d gives %v", replica, s)
			}
		}
	}
	before, old := tc.sealedSecrets(1), rings[0].First()
	// A follower is asked; it passes it on.
	resp, err := tc.secrets(2, "root").RotateCellKey(t.Context(), &borgrpc.RotateCellKeyRequest{RequestId: "once"})
	if err != nil || resp.Sealed != 3 || !slices.Equal(resp.Dropped, []string{old}) || resp.KeyId == old || len(resp.Untold) != 0 {
		t.Fatalf("RotateCellKey = %v, %v", resp, err)
	}
	if again, err := tc.secrets(1, "root").RotateCellKey(t.Context(), &borgrpc.RotateCellKeyRequest{RequestId: "once"}); err != nil || again.KeyId != resp.KeyId {
		t.Errorf("the same request is another rotation: %v, %v", again, err)
	}
	for i, ring := range rings {
		if !slices.Equal(ring.IDs(), []string{resp.KeyId}) {
			t.Errorf("replica %d has keys %v, want %s alone", i+1, ring.IDs(), resp.KeyId)
		}
		opens(i + 1)
	}
	for key, sealed := range tc.sealedSecrets(1) {
		if sealed == before[key] || !strings.HasPrefix(sealed, resp.KeyId) {
			t.Errorf("%s was not sealed anew", key)
		}
	}
	// A replica that does not answer keeps the new key from being used.
	tc.stop[2]()
	if _, err := tc.secrets(1, "root").RotateCellKey(t.Context(), &borgrpc.RotateCellKeyRequest{}); status.Code(err) != codes.FailedPrecondition || !strings.Contains(err.Error(), "replica 3") {
		t.Errorf("rotated without replica 3: %v", err)
	}
	if _, err := tc.secrets(1, "root").RotateCellKey(t.Context(), &borgrpc.RotateCellKeyRequest{}); status.Code(err) != codes.FailedPrecondition {
		t.Errorf("rotated without replica 3: %v", err)
	}
	if n := len(rings[0].IDs()); n != 2 {
		t.Errorf("two tries have left %d keys, want the one in use and the one to come", n)
	}
	opens(1)
	if r, err := tc.setSecret(1, "alice", "alice", "a", "value of a"); err != nil || r.Refusal != nil {
		t.Errorf("set while a rotation is stuck: %v, %v", r, err)
	}
	opens(2)
}

// TestRotationIsCharged: what a rotation writes counts in the budget of who asks for it.
func TestRotationIsCharged(t *testing.T) {
	// The clock of the budgets stands still once the cell is there.
	began, still := time.Now(), atomic.Int64{}
	clock := func() int64 { return cmp.Or(still.Load(), int64(time.Since(began))+1) }
	tc, _ := newSecretCell(t, 1, func(_ int, c *borgmaster.Config) { c.MonotonicNs = clock })
	still.Store(clock())
	const size = cell.MaxSecretBytes
	for i := range 8 {
		if r, err := tc.setSecret(1, "alice", "alice", fmt.Sprint("s", i), strings.Repeat("x", size)); err != nil || r.Refusal != nil {
			t.Fatalf("%v, %v", r, err)
		}
	}
	var err error
	rounds := 0
	for most := admission.MaxLogBytes / (8 * size); err == nil && rounds <= most; rounds++ {
		_, err = tc.secrets(1, "root").RotateCellKey(t.Context(), &borgrpc.RotateCellKeyRequest{})
	}
	tooMuch(t, err, `user "root"`)
	if rounds < 2 {
		t.Error("not even one rotation was done")
	}
}

// TestReplicaWithoutKeys: it says so, and a rotation mends it.
func TestReplicaWithoutKeys(t *testing.T) {
	tc, rings := newSecretCell(t, 2)
	for _, ring := range rings {
		if err := ring.Change(nil, ring.IDs()); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := tc.setSecret(1, "alice", "alice", "db", "x"); status.Code(err) != codes.FailedPrecondition || !strings.Contains(err.Error(), "rotate-key") {
		t.Errorf("set without a key: %v, want what to do", err)
	}
	if _, err := tc.secrets(1, "root").RotateCellKey(t.Context(), &borgrpc.RotateCellKeyRequest{}); err != nil {
		t.Fatal(err)
	}
	if r, err := tc.setSecret(2, "alice", "alice", "db", "x"); err != nil || r.Refusal != nil {
		t.Errorf("after the rotation: %v, %v", r, err)
	}
	if !slices.Equal(rings[0].IDs(), rings[1].IDs()) {
		t.Errorf("the replicas have %v and %v", rings[0].IDs(), rings[1].IDs())
	}
	// Lost with secrets sealed: those are set anew.
	for _, ring := range rings {
		if err := ring.Change(nil, ring.IDs()); err != nil {
			t.Fatal(err)
		}
	}
	rotate := func() error {
		_, err := tc.secrets(1, "root").RotateCellKey(t.Context(), &borgrpc.RotateCellKeyRequest{})
		return err
	}
	if err := rotate(); status.Code(err) != codes.FailedPrecondition || !strings.Contains(err.Error(), "alice/db") || !strings.Contains(err.Error(), "set these secrets anew") {
		t.Errorf("the key of a secret is lost: %v, want which, and what to do", err)
	}
	if r, err := tc.setSecret(1, "alice", "alice", "db", "y"); err != nil || r.Refusal != nil || r.Version != 2 {
		t.Errorf("set anew: %v, %v", r, err)
	}
	if err := rotate(); err != nil {
		t.Errorf("after that: %v", err)
	}
}

// TestWhatATaskMayDo: with the certificate of a task, against real masters.
func TestWhatATaskMayDo(t *testing.T) {
	tc, _ := newSecretCell(t, 2)
	tc.addMachine(startBorglet(t, "m1"))
	tc.must(tc.client(1, "alice"), submitWith(t, "alice", "web", func(s *borgpb.JobSpec) {
		s.Tasks, s.SubmitChildren, s.Task.Env = 2, true, map[string]string{"TOKEN": "alice's own"}
	}))
	tc.must(tc.client(1, "bob"), submitWith(t, "bob", "db", func(s *borgpb.JobSpec) {
		s.Task.Ports, s.Task.Env = []string{"sql"}, map[string]string{"TOKEN": "bob's own"}
	}))
	tc.place("alice", "web", "m1")
	tc.place("bob", "db", "m1")
	me := borgrpc.NewMasterServiceClient(tc.conn(2, identity.Task, "alice/web/0"))
	ask := func(op *borgpb.Op) *borgpb.Refusal {
		t.Helper()
		resp, err := me.Mutate(t.Context(), &borgrpc.MutateRequest{Op: tc.op(op)})
		if err != nil {
			t.Fatal(err)
		}
		return resp.Result.Refusal
	}
	note := func(index uint32, text string) *borgpb.Op {
		return &borgpb.Op{Op: &borgpb.Op_SetTaskNote{SetTaskNote: &borgpb.SetTaskNote{User: "alice", Job: "web", Index: index, Attempt: 1, Text: text, Annotations: map[string]string{"shard": "7"}}}}
	}
	if r := ask(note(0, "warming up")); r != nil {
		t.Errorf("a task sets its note: %v", r)
	}
	if st := tc.tasks("alice", "web")[0].Status; st.Note != "warming up" || st.NoteAnnotations["shard"] != "7" {
		t.Errorf("the task says %q %v", st.Note, st.NoteAnnotations)
	}
	child := submitWith(t, "alice", "child", func(s *borgpb.JobSpec) { s.Parent = "alice/web" })
	if r := ask(child); r != nil {
		t.Errorf("a task submits a child: %v", r)
	}
	for what, op := range map[string]*borgpb.Op{
		"a note of another task":  note(1, "x"),
		"a job without a parent":  submit(t, "alice", "free", 1),
		"a job of another user":   submitWith(t, "bob", "x", func(s *borgpb.JobSpec) { s.Parent = "alice/web" }),
		"the end of its own job":  kill("alice", "web"),
		"the end of another's":    kill("bob", "db"),
		"a grant":                 {Op: &borgpb.Op_Grant{Grant: &borgpb.Grant{User: "alice", Capability: "admin"}}},
		"its user's secret, gone": {Op: &borgpb.Op_DeleteSecret{DeleteSecret: &borgpb.DeleteSecret{User: "alice", Name: "db"}}},
		"another size of its job": {Op: &borgpb.Op_ResizeJob{ResizeJob: &borgpb.ResizeJob{User: "alice", Name: "web", Tasks: 9}}},
	} {
		if r := ask(op); r.GetKind() != borgpb.RefusalKind_REFUSAL_KIND_PERMISSION || r.Message == "" {
			t.Errorf("a task asks for %s: %v, want it refused", what, r)
		}
	}
	if r := ask(kill("alice", "child")); r != nil {
		t.Errorf("a task ends a child of its job: %v", r)
	}
	// It may find whom it talks to, and not what they were told.
	resp, err := me.ListTasks(t.Context(), &borgrpc.ListTasksRequest{User: "bob"})
	if err != nil || len(resp.Tasks) != 1 || resp.Tasks[0].Status.Machine != "m1" || len(resp.Tasks[0].Status.Ports) != 1 || resp.Tasks[0].Spec.Ports[0] != "sql" || len(resp.Tasks[0].Spec.Env) != 0 {
		t.Errorf("bob's tasks are %v, %v, want where they run and nothing else", resp, err)
	}
	if resp, err := me.GetJob(t.Context(), &borgrpc.GetJobRequest{User: "alice", Name: "web"}); err != nil || resp.Job.Spec.Task.Env["TOKEN"] == "" {
		t.Errorf("its own job: %v, %v", resp, err)
	}
	if resp, err := me.GetJob(t.Context(), &borgrpc.GetJobRequest{User: "bob", Name: "db"}); status.Code(err) != codes.PermissionDenied {
		t.Errorf("bob's job: %v, %v, want PermissionDenied", resp, err)
	}
	if is, err := tc.identities(1, source(t, identity.Task, "alice/web/0")).WhoAmI(t.Context(), &borgrpc.WhoAmIRequest{}); err != nil || is.Name != "spiffe://test/task/alice/web/0" || len(is.Capabilities) != 0 {
		t.Errorf("it is %v, %v", is, err)
	}
	// A user cannot speak for it, not even an admin.
	for _, who := range []string{"alice", "root"} {
		if resp, err := tc.client(1, who).Mutate(t.Context(), &borgrpc.MutateRequest{Op: tc.op(note(0, "x"))}); err != nil || resp.Result.Refusal.GetKind() != borgpb.RefusalKind_REFUSAL_KIND_PERMISSION {
			t.Errorf("%s sets the note of a task: %v, %v", who, resp, err)
		}
	}
	// With the end of its job its certificate is worth nothing.
	tc.must(tc.client(1, "alice"), kill("alice", "web"))
	until(t, "the certificate of a task that was ended is refused", func() bool {
		_, err := me.ListTasks(t.Context(), &borgrpc.ListTasksRequest{User: "bob"})
		return status.Code(err) == codes.Unauthenticated
	})
}
