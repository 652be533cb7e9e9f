package borgmaster_test

import (
	"fmt"
	"testing"

	"google.golang.org/protobuf/proto"

	"borg/borgmaster/cell"
	"borg/proto/borgpb"
	"borg/proto/borgrpc"
)

// batchOp submits a batch job of priority 0.
func batchOp(t *testing.T, owner, name string, change func(*borgpb.JobSpec)) *borgpb.Op {
	t.Helper()
	spec := &borgpb.JobSpec{Kind: borgpb.JobKind_JOB_KIND_BATCH, Tasks: 1,
		Task: &borgpb.TaskSpec{Resources: &borgpb.Resources{CpuMilli: 10, MemBytes: 1 << 20}, Args: []string{"/bin/true"}}}
	change(spec)
	data, err := proto.Marshal(spec)
	if err != nil {
		t.Fatal(err)
	}
	return &borgpb.Op{Op: &borgpb.Op_SubmitJob{SubmitJob: &borgpb.SubmitJob{User: owner, Name: name, Spec: data}}}
}

// TestChainsEndInPortions: a user who ends, with one raw call, jobs that all depend on each other
// ends them in portions; the elected master asks for the next one by itself.
func TestChainsEndInPortions(t *testing.T) {
	const jobs = 1_300
	tc := newCell(t, 1, nil)
	tc.hasUsers()
	alice := tc.client(1, "alice")
	for i := range jobs {
		tc.must(alice, batchOp(t, "alice", fmt.Sprint("j", i), func(s *borgpb.JobSpec) {
			if i > 0 {
				s.StartAfter, s.AfterFailure = []string{fmt.Sprint("alice/j", i-1)}, borgpb.AfterFailure_AFTER_FAILURE_DIE
			}
		}))
	}
	ended := tc.must(alice, kill("alice", "j0"))
	live, last := -1, uint64(0)
	until(t, "all jobs have ended", func() bool {
		tc.group.Replica(1).View(func(c *cell.Cell) {
			live, last = c.CountsOf("alice").Jobs, c.Index()
		})
		return live == 0
	})
	if last == ended.Index {
		t.Errorf("all %d jobs ended with entry %d", jobs, last)
	}
	resp, err := alice.GetCell(t.Context(), &borgrpc.GetCellRequest{})
	if err != nil || resp.TasksPending != 0 || resp.Jobs != 0 {
		t.Errorf("%v, %v: want no job that lives", resp, err)
	}
}

// TestSaversOfARawClient: a raw client gets no saver that is charged to nobody, or has no limit.
func TestSaversOfARawClient(t *testing.T) {
	tc := newCell(t, 1, nil)
	tc.hasUsers()
	root, alice := tc.client(1, "root"), tc.client(1, "alice")
	tc.must(root, &borgpb.Op{Op: &borgpb.Op_SetQuotaPolicy{SetQuotaPolicy: &borgpb.SetQuotaPolicy{Enforce: new(true)}}})
	b := startBorglet(t, "m1")
	tc.addMachine(b)
	tc.must(root, &borgpb.Op{Op: &borgpb.Op_SetQuota{SetQuota: &borgpb.SetQuota{User: "alice", Band: borgpb.Band_BAND_PRODUCTION,
		Limit: &borgpb.Resources{CpuMilli: 100, MemBytes: 1 << 28}}}})
	for _, q := range []struct {
		alloc int64
		saver *borgpb.Resources
		want  borgpb.RefusalKind
	}{
		{50, nil, borgpb.RefusalKind_REFUSAL_KIND_INVALID},
		{50, &borgpb.Resources{CpuMilli: 10, MemBytes: 1 << 20, DiskBytes: 1 << 50}, borgpb.RefusalKind_REFUSAL_KIND_INVALID},
		{50, &borgpb.Resources{CpuMilli: 51, MemBytes: 1 << 20}, borgpb.RefusalKind_REFUSAL_KIND_INVALID},
		{51, &borgpb.Resources{CpuMilli: 51, MemBytes: 1 << 20}, borgpb.RefusalKind_REFUSAL_KIND_QUOTA},
		{50, &borgpb.Resources{CpuMilli: 50, MemBytes: 1 << 20}, borgpb.RefusalKind_REFUSAL_KIND_UNSPECIFIED},
	} {
		spec, err := proto.Marshal(&borgpb.AllocSetSpec{Allocs: 2, Priority: 200, Resources: &borgpb.Resources{CpuMilli: q.alloc, MemBytes: 1 << 24},
			Saver: &borgpb.Saver{Task: &borgpb.TaskSpec{Args: []string{"/bin/save"}, Resources: q.saver}}})
		if err != nil {
			t.Fatal(err)
		}
		resp, err := alice.Mutate(t.Context(), &borgrpc.MutateRequest{Op: tc.op(&borgpb.Op{Op: &borgpb.Op_SubmitAllocSet{
			SubmitAllocSet: &borgpb.SubmitAllocSet{User: "alice", Name: "place", Spec: spec}}})})
		if err != nil || resp.Result.GetRefusal().GetKind() != q.want {
			t.Errorf("a saver that asks for %v: %v, %v, want %v", q.saver, resp, err, q.want)
		}
	}
}
