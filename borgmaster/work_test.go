package borgmaster_test

import (
	"cmp"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"borg/borgmaster"
	"borg/borgmaster/cell"
	"borg/proto/borgpb"
	"borg/proto/borgrpc"
)

func resize(owner, name string, tasks uint32) *borgpb.Op {
	return &borgpb.Op{Op: &borgpb.Op_ResizeJob{ResizeJob: &borgpb.ResizeJob{User: owner, Name: name, Tasks: tasks}}}
}

// newStillCell starts n masters for whose budgets no time passes, in a cell of the latest format.
func newStillCell(t *testing.T, n int) *testCell {
	t.Helper()
	now := clock(1)
	var stoodAt atomic.Int64
	tc := newCell(t, n, func(_ int, c *borgmaster.Config) {
		c.MonotonicNs = func() int64 { return cmp.Or(stoodAt.Load(), now()) }
	})
	until(t, "the cell is of the latest format", func() (raised bool) {
		tc.group.Replica(1).View(func(c *cell.Cell) { raised = c.Format() == cell.BuildFormat })
		return raised
	})
	stoodAt.Store(now())
	return tc
}

// TestWorkIsBounded: a user who has much done by small requests is told when to come back,
// whichever replica is asked. Small changes of the user and changes of others go on.
func TestWorkIsBounded(t *testing.T) {
	tc := newStillCell(t, 2)
	for replica := 1; replica <= 2; replica++ {
		user := fmt.Sprint("alice-", replica)
		alice, bob := tc.client(replica, user), tc.client(replica, "bob")
		tc.must(alice, submit(t, user, "huge", 1))
		var err error
		done := 0
		for err == nil && done < 10 {
			_, err = alice.Mutate(t.Context(), &borgrpc.MutateRequest{Op: tc.op(resize(user, "huge", []uint32{100_000, 1}[done%2]))})
			if err == nil {
				done++
			}
		}
		tooMuch(t, err, fmt.Sprintf("user %q", user), "change of 100000 tasks", "200000 at once", "10000 more each second", "replica 1")
		if done != 2 {
			t.Errorf("%d large changes were done at once, want 2", done)
		}
		for i := range 20 {
			tc.must(alice, submit(t, user, fmt.Sprint("small-", i), 3))
			tc.must(bob, submit(t, "bob", fmt.Sprint("job-", replica, "-", i), 50))
		}
	}
}

// TestQuotaPolicyIsBounded: a call that names bands over and over is refused for the second time.
func TestQuotaPolicyIsBounded(t *testing.T) {
	tc := newCell(t, 1, nil)
	tc.hasUsers()
	policy := &borgpb.SetQuotaPolicy{}
	for range 1_000 {
		policy.Oversell = append(policy.Oversell, &borgpb.Oversell{Band: borgpb.Band_BAND_BATCH, Milli: 1})
	}
	resp, err := tc.client(1, "root").Mutate(t.Context(), &borgrpc.MutateRequest{Op: tc.op(&borgpb.Op{Op: &borgpb.Op_SetQuotaPolicy{SetQuotaPolicy: policy}})})
	if err != nil || resp.GetResult().GetRefusal().GetKind() != borgpb.RefusalKind_REFUSAL_KIND_INVALID || !strings.Contains(resp.Result.Refusal.Message, "batch is named twice") {
		t.Errorf("%v, %v; want it refused for its length", resp, err)
	}
}

// mergingOp submits a job that takes much to merge.
func mergingOp(t *testing.T, owner, name, parent string, overrides int) *borgpb.Op {
	t.Helper()
	spec := &borgpb.JobSpec{
		Kind: borgpb.JobKind_JOB_KIND_SERVICE, Tasks: 1, Priority: 200, Parent: parent,
		Task: &borgpb.TaskSpec{
			Resources: &borgpb.Resources{CpuMilli: 100, MemBytes: 1 << 20}, Args: []string{"/bin/sleep", "1000"}, GraceNs: 1e9, Env: map[string]string{},
		},
	}
	for i := range 1_000 {
		spec.Task.Env[fmt.Sprint("V", i)] = "x"
	}
	for i := range overrides {
		spec.Overrides = append(spec.Overrides, &borgpb.TaskOverride{First: uint32(i), Last: uint32(i), Spec: &borgpb.TaskSpec{Args: []string{"/bin/true"}}})
	}
	data, err := proto.Marshal(spec)
	if err != nil {
		t.Fatal(err)
	}
	return &borgpb.Op{Op: &borgpb.Op_SubmitJob{SubmitJob: &borgpb.SubmitJob{User: owner, Name: name, Spec: data}}}
}

// TestRefusedWorkIsNotLogged: what takes much to read and is refused then is refused by the
// elected master alone; and each time counts.
func TestRefusedWorkIsNotLogged(t *testing.T) {
	tc := newStillCell(t, 1)
	// With an entry the cell knows the time.
	tc.must(tc.client(1, "carol"), submit(t, "carol", "first", 1))
	// What is refused in the log is remembered, too.
	logged := func() (n int64) {
		tc.group.Replica(1).View(func(c *cell.Cell) { n = c.CellStateUse()[borgpb.StateMeasure_STATE_MEASURE_REQUESTS] })
		return n
	}
	for _, tt := range []struct {
		who, parent string
		overrides   int
		says        string
	}{
		{"alice", "alice/nobody", 300, "there is no live job alice/nobody"},
		{"bob", "", 900, "too much to merge"},
	} {
		client := tc.client(1, tt.who)
		op := mergingOp(t, tt.who, "big", tt.parent, tt.overrides)
		before := logged()
		var err error
		refused := 0
		for err == nil && refused < 100 {
			var resp *borgrpc.MutateResponse
			if resp, err = client.Mutate(t.Context(), &borgrpc.MutateRequest{Op: tc.op(op)}); err != nil {
				break
			}
			if r := resp.Result.Refusal; r == nil || !strings.Contains(r.Message, tt.says) {
				t.Fatalf("refused with %v, want %q", r, tt.says)
			}
			refused++
		}
		tooMuch(t, err, fmt.Sprintf("user %q", tt.who), "10000 more each second")
		if refused == 0 {
			t.Error("none was looked at")
		}
		_, err = client.Validate(t.Context(), &borgrpc.ValidateRequest{Ops: []*borgpb.Op{tc.op(op)}})
		tooMuch(t, err, fmt.Sprintf("user %q", tt.who), "10000 more each second")
		for range 64 {
			_, _ = client.Validate(t.Context(), &borgrpc.ValidateRequest{Ops: []*borgpb.Op{tc.op(op)}})
		}
		_, err = client.Validate(t.Context(), &borgrpc.ValidateRequest{Ops: []*borgpb.Op{tc.op(kill(tt.who, "big"))}})
		tooMuch(t, err, fmt.Sprintf("user %q", tt.who))
		if n := logged() - before; n != 0 {
			t.Errorf("the log has %d of %d refused changes", n, refused)
		}
	}

	ops := make([]*borgpb.Op, 20)
	for i := range ops {
		ops[i] = tc.op(mergingOp(t, "carol", fmt.Sprint("big-", i), "", 300))
	}
	carol := tc.client(1, "carol")
	if _, err := carol.Validate(t.Context(), &borgrpc.ValidateRequest{Ops: ops}); status.Code(err) != codes.InvalidArgument || !strings.Contains(err.Error(), "ask about fewer") {
		t.Errorf("more than may be asked about at once: %v", err)
	}
	resp, err := carol.Validate(t.Context(), &borgrpc.ValidateRequest{Ops: ops[:8]})
	if err != nil || resp.Refusal != nil {
		t.Errorf("what may be asked about: %v, %v", resp.GetRefusal(), err)
	}
	before := logged()
	tc.must(carol, mergingOp(t, "carol", "big", "", 300))
	if n := logged() - before; n != 1 {
		t.Errorf("the log has %d changes more, want the one that was taken", n)
	}
}
