package borgmaster_test

import (
	"testing"

	"google.golang.org/protobuf/proto"

	"borg/proto/borgpb"
	"borg/proto/borgrpc"
)

// TestAfterFailureIsChecked: whatever a client sends, what becomes of a job after another
// one's failure is a value that the cell knows, of a job that starts after one, and of its
// owner's own.
func TestAfterFailureIsChecked(t *testing.T) {
	tc := newCell(t, 1, nil)
	tc.hasUsers()
	alice := tc.client(1, "alice")
	tc.must(alice, submit(t, "alice", "first", 1))
	tc.must(tc.client(1, "bob"), submit(t, "bob", "first", 1))
	with := func(name string, change func(*borgpb.JobSpec)) *borgpb.Op {
		op := submit(t, "alice", name, 1)
		spec := new(borgpb.JobSpec)
		if err := proto.Unmarshal(op.GetSubmitJob().Spec, spec); err != nil {
			t.Fatal(err)
		}
		change(spec)
		data, err := proto.Marshal(spec)
		if err != nil {
			t.Fatal(err)
		}
		op.GetSubmitJob().Spec = data
		return op
	}
	for name, test := range map[string]struct {
		change func(*borgpb.JobSpec)
		want   borgpb.RefusalKind
		field  string
	}{
		"no such value": {func(s *borgpb.JobSpec) { s.StartAfter, s.AfterFailure = []string{"alice/first"}, 4 }, borgpb.RefusalKind_REFUSAL_KIND_MALFORMED, ""},
		"negative":      {func(s *borgpb.JobSpec) { s.StartAfter, s.AfterFailure = []string{"alice/first"}, -1 }, borgpb.RefusalKind_REFUSAL_KIND_MALFORMED, ""},
		"after none":    {func(s *borgpb.JobSpec) { s.AfterFailure = borgpb.AfterFailure_AFTER_FAILURE_WAIT }, borgpb.RefusalKind_REFUSAL_KIND_INVALID, "spec.after_failure"},
		"another's": {func(s *borgpb.JobSpec) {
			s.StartAfter, s.AfterFailure = []string{"bob/first"}, borgpb.AfterFailure_AFTER_FAILURE_RUN
		}, borgpb.RefusalKind_REFUSAL_KIND_PERMISSION, "spec.start_after"},
		"right": {func(s *borgpb.JobSpec) {
			s.StartAfter, s.AfterFailure = []string{"alice/first"}, borgpb.AfterFailure_AFTER_FAILURE_DIE
		}, borgpb.RefusalKind_REFUSAL_KIND_UNSPECIFIED, ""},
	} {
		job := "wrong"
		if test.want == borgpb.RefusalKind_REFUSAL_KIND_UNSPECIFIED {
			job = "second"
		}
		resp, err := alice.Mutate(t.Context(), &borgrpc.MutateRequest{Op: tc.op(with(job, test.change))})
		if r := resp.GetResult().GetRefusal(); err != nil || r.GetKind() != test.want || r.GetField() != test.field {
			t.Errorf("%s: %v, %v; want %v of %q", name, resp, err, test.want, test.field)
		}
	}
	tc.must(alice, kill("alice", "first"))
	if job, err := alice.GetJob(t.Context(), &borgrpc.GetJobRequest{User: "alice", Name: "second"}); err != nil || job.Job.Status.State != borgpb.State_STATE_DEAD {
		t.Errorf("the job that was to die after the other one is %v, %v", job, err)
	}
}
