package borgmaster_test

import (
	"fmt"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"borg/identity"
	"borg/proto/borgpb"
	"borg/proto/borgrpc"
)

// oddJobs are jobs as large in one respect as the cell lets them be.
func oddJobs(t *testing.T) (all []*borgpb.SubmitJob) {
	many := func(n int) map[string]string {
		m := make(map[string]string, n)
		for i := range n {
			m[fmt.Sprint("A", i)] = "x"
		}
		return m
	}
	add := func(name string, annotations map[string]string, change func(*borgpb.JobSpec)) {
		spec := &borgpb.JobSpec{Kind: borgpb.JobKind_JOB_KIND_SERVICE, Tasks: 50, Task: &borgpb.TaskSpec{
			Args: []string{"/bin/true"}, Resources: &borgpb.Resources{CpuMilli: 1, MemBytes: 1 << 20}}}
		change(spec)
		data, err := proto.Marshal(spec)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, &borgpb.SubmitJob{User: "mallory", Name: name, Annotations: annotations, Spec: data})
	}
	plain := func(*borgpb.JobSpec) {}
	add("args", nil, func(s *borgpb.JobSpec) { s.Task.Args = append(s.Task.Args, make([]string, 32_000)...) })
	add("arg", nil, func(s *borgpb.JobSpec) { s.Task.Args = append(s.Task.Args, strings.Repeat("x", 250<<10)) })
	add("env", nil, func(s *borgpb.JobSpec) {
		s.Task.Env = many(4_000)
		for i := range uint32(50) {
			s.Overrides = append(s.Overrides, &borgpb.TaskOverride{First: i, Last: i, Spec: &borgpb.TaskSpec{Env: map[string]string{"A1": fmt.Sprint(i)}}})
		}
	})
	add("annotation", map[string]string{"k": strings.Repeat("x", 64<<10-1)}, plain)
	add("annotations", many(1_000), plain)
	return all
}

// TestOddObjectsAreShown: whatever one user's jobs are made of, others list and watch the cell
// with them in it, and no message is larger than the wire takes. Those that would take more
// than they are charged are refused.
func TestOddObjectsAreShown(t *testing.T) {
	tc := newCell(t, 1, nil)
	mallory, bob := tc.client(1, "mallory"), tc.client(1, "bob")
	kinds := []borgpb.ObjectKind{borgpb.ObjectKind_OBJECT_KIND_JOB, borgpb.ObjectKind_OBJECT_KIND_TASK}
	watched := func() {
		t.Helper()
		for _, kind := range kinds {
			recv, changes := tc.watch(1, identity.User, "bob", &borgrpc.WatchRequest{Kind: kind}), 0
			for more := true; more; {
				resp := next(t, recv)
				if more = resp.More; proto.Size(resp) > 1<<20 {
					t.Errorf("a message of a watch of %v has %d bytes", kind, proto.Size(resp))
				}
				changes += len(resp.Changes)
			}
			if changes == 0 {
				t.Errorf("a watch of %v shows nothing", kind)
			}
		}
		for after, more := "", true; more; more = after != "" {
			resp, err := bob.ListTasks(t.Context(), &borgrpc.ListTasksRequest{After: after})
			if err != nil {
				t.Fatal(err)
			}
			after = resp.NextAfter
		}
		for after, more := "", true; more; more = after != "" {
			resp, err := bob.ListJobs(t.Context(), &borgrpc.ListJobsRequest{After: after, Dead: true})
			if err != nil {
				t.Fatal(err)
			}
			after = resp.NextAfter
		}
	}
	live := make(map[borgpb.ObjectKind]func() (*borgrpc.WatchResponse, error))
	for _, kind := range kinds {
		live[kind] = tc.watch(1, identity.User, "bob", &borgrpc.WatchRequest{Kind: kind})
		next(t, live[kind])
	}
	for _, job := range oddJobs(t) {
		tc.must(mallory, &borgpb.Op{Op: &borgpb.Op_SubmitJob{SubmitJob: job}})
		watched()
		for _, kind := range kinds {
			for more := true; more; {
				more = next(t, live[kind]).More
			}
		}
	}
	for _, job := range oddJobs(t) {
		tc.must(mallory, kill("mallory", job.Name))
	}
	watched()
	spec := &borgpb.JobSpec{Kind: borgpb.JobKind_JOB_KIND_SERVICE, Tasks: 1, Task: &borgpb.TaskSpec{
		Args: make([]string, 120_000), Resources: &borgpb.Resources{CpuMilli: 1, MemBytes: 1 << 20}}}
	data, err := proto.Marshal(spec)
	if err != nil {
		t.Fatal(err)
	}
	op := tc.op(&borgpb.Op{Op: &borgpb.Op_SubmitJob{SubmitJob: &borgpb.SubmitJob{User: "mallory", Name: "more", Spec: data}}})
	resp, err := mallory.Mutate(t.Context(), &borgrpc.MutateRequest{Op: op})
	if status.Code(err) != codes.InvalidArgument || !strings.Contains(err.Error(), "texts, entries and messages") {
		t.Errorf("120,000 arguments: %v, %v, want them refused", resp, err)
	}
}
