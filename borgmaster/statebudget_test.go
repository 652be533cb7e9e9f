package borgmaster_test

import (
	"fmt"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	"borg/borgmaster/cell"
	"borg/proto/borgpb"
	"borg/proto/borgrpc"
)

// TestStateBudgetOfARawClient: a client that asks no borgcfg gets as many tasks and allocs
// at priority 0 as its user's budget, and the rest of the cell goes on.
func TestStateBudgetOfARawClient(t *testing.T) {
	tc := newCell(t, 2, nil)
	root, alice, bob := tc.client(1, "root"), tc.client(2, "alice"), tc.client(1, "bob")
	tc.hasUsers()
	until(t, "the cell is of the latest format", func() (latest bool) {
		tc.group.Replica(1).View(func(c *cell.Cell) { latest = c.Format() == cell.BuildFormat })
		return latest
	})
	tc.must(root, &borgpb.Op{Op: &borgpb.Op_SetQuotaPolicy{SetQuotaPolicy: &borgpb.SetQuotaPolicy{Enforce: new(true)}}})
	tc.must(root, &borgpb.Op{Op: &borgpb.Op_SetStateBudget{SetStateBudget: &borgpb.SetStateBudget{Amounts: []*borgpb.StateAmount{
		{Measure: borgpb.StateMeasure_STATE_MEASURE_TASKS, Amount: 100}, {Measure: borgpb.StateMeasure_STATE_MEASURE_ALLOCS, Amount: 50}}}}})
	free := func(user, name string, tasks uint32) *borgpb.Op {
		spec, err := proto.Marshal(&borgpb.JobSpec{Kind: borgpb.JobKind_JOB_KIND_BATCH, Tasks: tasks,
			Task: &borgpb.TaskSpec{Resources: &borgpb.Resources{CpuMilli: 1, MemBytes: 1 << 20}, Args: []string{"/bin/true"}}})
		if err != nil {
			t.Fatal(err)
		}
		return &borgpb.Op{Op: &borgpb.Op_SubmitJob{SubmitJob: &borgpb.SubmitJob{User: user, Name: name, Spec: spec}}}
	}
	set := func(name string, allocs uint32) *borgpb.Op {
		spec, err := proto.Marshal(&borgpb.AllocSetSpec{Allocs: allocs, Resources: &borgpb.Resources{CpuMilli: 1, MemBytes: 1 << 20}})
		if err != nil {
			t.Fatal(err)
		}
		return &borgpb.Op{Op: &borgpb.Op_SubmitAllocSet{SubmitAllocSet: &borgpb.SubmitAllocSet{User: "alice", Name: name, Spec: spec}}}
	}
	refused := func(op *borgpb.Op, words string) {
		t.Helper()
		resp, err := alice.Mutate(t.Context(), &borgrpc.MutateRequest{Op: tc.op(op)})
		if r := resp.GetResult().GetRefusal(); err != nil || r.GetKind() != borgpb.RefusalKind_REFUSAL_KIND_LIMIT || !strings.Contains(r.Message, words) {
			t.Errorf("%v, %v, want it refused with %q", resp, err, words)
		}
	}
	for i := range 10 {
		tc.must(alice, free("alice", fmt.Sprint("j", i), 10))
	}
	refused(free("alice", "more", 1), "borgcfg quota state alice tasks=101")
	refused(set("pool", 51), "borgcfg quota state alice allocs=51")
	tc.must(alice, set("pool", 50))
	tc.must(bob, free("bob", "work", 100))
	resp, err := alice.ListQuotas(t.Context(), &borgrpc.ListQuotasRequest{User: "alice"})
	if err != nil || len(resp.Shares) != 1 {
		t.Fatalf("her shares are %v, %v", resp.GetShares(), err)
	}
	for _, h := range resp.Shares[0].Held[:2] {
		if h.Used != h.Allowed {
			t.Errorf("she holds %v, want all that she may", h)
		}
	}
	for _, h := range resp.Cell.GetHeld()[:1] {
		if h.Used != 200 || h.Allowed != 2_000_000 || h.Reserved != 200_000 {
			t.Errorf("the cell holds %v", h)
		}
	}
}
