package borgmaster_test

import (
	"fmt"
	"slices"
	"testing"

	"google.golang.org/protobuf/proto"

	"borg/proto/borgpb"
	"borg/proto/borgrpc"
)

// TestListsArePaged: page by page all that there is comes once, in order.
func TestListsArePaged(t *testing.T) {
	tc := newCell(t, 1, nil)
	c := tc.client(1, "alice")
	for i := range 7 {
		tc.must(c, submit(t, "alice", fmt.Sprint("j", i), 3))
	}
	tc.must(c, kill("alice", "j3"))
	set := &borgpb.Op{Op: &borgpb.Op_SubmitAllocSet{SubmitAllocSet: &borgpb.SubmitAllocSet{User: "alice", Name: "set",
		Spec: allocSetSpec(t, 5)}}}
	tc.must(c, set)
	pages := func(what string, want []string, page func(after string) (names []string, next string, err error)) {
		t.Helper()
		var got []string
		n, after := 0, ""
		for {
			names, next, err := page(after)
			if err != nil {
				t.Fatalf("%s after %q: %v", what, after, err)
			}
			if n++; len(names) > 2 {
				t.Fatalf("%s: a page has %d", what, len(names))
			}
			got = append(got, names...)
			if after = next; after == "" {
				break
			}
		}
		if !slices.Equal(got, want) || n < 2 {
			t.Errorf("%s in %d pages: %v, want %v", what, n, got, want)
		}
	}
	pages("jobs", []string{"j0", "j1", "j2", "j4", "j5", "j6"}, func(after string) (names []string, next string, err error) {
		resp, err := c.ListJobs(t.Context(), &borgrpc.ListJobsRequest{After: after, Limit: 2})
		for _, j := range resp.GetJobs() {
			names = append(names, j.Meta.Name)
		}
		return names, resp.GetNextAfter(), err
	})
	pages("tasks of a job", []string{"0", "1", "2"}, func(after string) (names []string, next string, err error) {
		resp, err := c.ListTasks(t.Context(), &borgrpc.ListTasksRequest{User: "alice", Name: "j1", After: after, Limit: 2})
		for _, j := range resp.GetTasks() {
			names = append(names, fmt.Sprint(j.Index))
		}
		return names, resp.GetNextAfter(), err
	})
	// Those that wait, and those that are dead.
	var all []string
	for j := range 7 {
		for i := range 3 {
			all = append(all, fmt.Sprintf("j%d/%d", j, i))
		}
	}
	pages("all tasks", all, func(after string) (names []string, next string, err error) {
		resp, err := c.ListTasks(t.Context(), &borgrpc.ListTasksRequest{After: after, Limit: 2})
		for _, j := range resp.GetTasks() {
			names = append(names, fmt.Sprint(j.Meta.Name, "/", j.Index))
		}
		return names, resp.GetNextAfter(), err
	})
	pages("allocs", []string{"0", "1", "2", "3", "4"}, func(after string) (names []string, next string, err error) {
		resp, err := c.ListAllocs(t.Context(), &borgrpc.ListAllocsRequest{User: "alice", Name: "set", After: after, Limit: 2})
		for _, j := range resp.GetAllocs() {
			names = append(names, fmt.Sprint(j.Index))
		}
		return names, resp.GetNextAfter(), err
	})
}

func allocSetSpec(t *testing.T, n uint32) []byte {
	t.Helper()
	b, err := proto.Marshal(&borgpb.AllocSetSpec{Allocs: n, Priority: 200, Resources: &borgpb.Resources{CpuMilli: 100, MemBytes: 1 << 20}})
	if err != nil {
		t.Fatal(err)
	}
	return b
}
