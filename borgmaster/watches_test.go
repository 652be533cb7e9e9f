package borgmaster_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"borg/borgmaster"
	"borg/borgmaster/watch"
	"borg/identity"
	"borg/proto/borgpb"
	"borg/proto/borgrpc"
)

func (tc *testCell) watch(replica int, role identity.Role, who string, req *borgrpc.WatchRequest) func() (*borgrpc.WatchResponse, error) {
	tc.t.Helper()
	ctx, cancel := context.WithCancel(tc.t.Context())
	tc.t.Cleanup(cancel)
	stream, err := borgrpc.NewWatchServiceClient(tc.conn(replica, role, who)).Watch(ctx, req)
	if err != nil {
		tc.t.Fatal(err)
	}
	return stream.Recv
}

// next is the next message that is no bookmark.
func next(t *testing.T, recv func() (*borgrpc.WatchResponse, error)) *borgrpc.WatchResponse {
	t.Helper()
	for {
		resp, err := recv()
		if err != nil {
			t.Fatal(err)
		}
		if resp.State || len(resp.Changes) > 0 {
			return resp
		}
	}
}

// TestWatch: the state, then each change, at any replica and on from any index.
func TestWatch(t *testing.T) {
	tc := newCell(t, 3, nil)
	alice := tc.client(1, "alice")
	tc.must(alice, submit(t, "alice", "web", 2))
	recv := tc.watch(2, identity.User, "alice", &borgrpc.WatchRequest{Kind: borgpb.ObjectKind_OBJECT_KIND_TASK, User: "alice"})
	state := next(t, recv)
	if !state.State || state.More || len(state.Changes) != 2 || state.Changes[1].Object.GetTask().GetIndex() != 1 {
		t.Fatalf("the state is %v", state)
	}
	tc.must(tc.client(1, "bob"), submit(t, "bob", "other", 1))
	tc.must(alice, kill("alice", "web"))
	dead := next(t, recv)
	if len(dead.Changes) != 2 || dead.Index <= state.Index || dead.Changes[0].Previous.GetTask().GetStatus().GetState() != borgpb.State_STATE_PENDING ||
		dead.Changes[0].Object.GetTask().GetStatus().GetState() != borgpb.State_STATE_DEAD {
		t.Fatalf("the end of the job is told as %v", dead)
	}
	again := next(t, tc.watch(3, identity.User, "alice", &borgrpc.WatchRequest{Kind: borgpb.ObjectKind_OBJECT_KIND_TASK, User: "alice", FromIndex: state.Index, Epoch: state.Epoch}))
	if again.State || again.Index != dead.Index || len(again.Changes) != 2 {
		t.Errorf("another replica goes on with %v", again)
	}
}

func TestWatchIsRefused(t *testing.T) {
	tc := newCell(t, 1, func(_ int, c *borgmaster.Config) { c.Watch = watch.Config{Changes: 2} })
	for i := range 5 {
		tc.must(tc.client(1, "alice"), submit(t, "alice", fmt.Sprint("j", i), 1))
	}
	job, machine := borgpb.ObjectKind_OBJECT_KIND_JOB, borgpb.ObjectKind_OBJECT_KIND_MACHINE
	tests := []struct {
		role identity.Role
		who  string
		req  *borgrpc.WatchRequest
		code codes.Code
		says string
	}{
		{identity.User, "alice", &borgrpc.WatchRequest{}, codes.InvalidArgument, "can be watched"},
		{identity.User, "alice", &borgrpc.WatchRequest{Kind: job, Name: "x"}, codes.InvalidArgument, "the user is missing"},
		{identity.User, "alice", &borgrpc.WatchRequest{Kind: machine, User: "alice"}, codes.InvalidArgument, "belong to nobody"},
		{identity.User, "alice", &borgrpc.WatchRequest{Kind: job, Selector: "a b"}, codes.InvalidArgument, "selector"},
		{identity.User, "alice", &borgrpc.WatchRequest{Kind: job, User: "alice", Name: strings.Repeat("x", 257)}, codes.InvalidArgument, "257 bytes; at most 256"},
		{identity.User, "alice", &borgrpc.WatchRequest{Kind: job, FromIndex: 1}, codes.OutOfRange, "watch from index 0"},
		{identity.User, "alice", &borgrpc.WatchRequest{Kind: job, FromIndex: 6, Epoch: 9}, codes.OutOfRange, "of epoch 9"},
		{identity.User, "alice", &borgrpc.WatchRequest{Kind: job, FromIndex: 1 << 40}, codes.OutOfRange, "is still to come"},
		{identity.Task, "alice/j1/0", &borgrpc.WatchRequest{Kind: machine}, codes.PermissionDenied, "its own user"},
		{identity.Task, "alice/j1/0", &borgrpc.WatchRequest{Kind: job, User: "bob"}, codes.PermissionDenied, "its own user"},
	}
	for _, tt := range tests {
		_, err := tc.watch(1, tt.role, tt.who, tt.req)()
		if status.Code(err) != tt.code || !strings.Contains(err.Error(), tt.says) {
			t.Errorf("%v %s: watch %v: %v, want %v, %q", tt.role, tt.who, tt.req, err, tt.code, tt.says)
		}
	}
	if own := next(t, tc.watch(1, identity.Task, "alice/j1/0", &borgrpc.WatchRequest{Kind: job})); len(own.Changes) != 5 {
		t.Errorf("a task sees %d jobs of its user, want 5", len(own.Changes))
	}
}

// TestSelectorsAreBounded: each call with a selector refuses a large one, in few words.
func TestSelectorsAreBounded(t *testing.T) {
	tc := newCell(t, 1, nil)
	c, ctx := tc.client(1, "alice"), t.Context()
	values := make([]string, 7000)
	for i := range values {
		values[i] = fmt.Sprintf("v%d", i)
	}
	for _, tt := range []struct{ selector, says string }{
		{"zz notin (" + strings.Join(values, ",") + ")", "at most 4096"},
		{"zz notin (" + strings.Join(values[:129], ",") + ")", "129 values; at most 128"},
		{strings.Repeat("zz,", 40) + "zz", "41 requirements; at most 32"},
	} {
		for name, call := range map[string]func() error{
			"Watch": func() error {
				_, err := tc.watch(1, identity.User, "alice", &borgrpc.WatchRequest{Kind: borgpb.ObjectKind_OBJECT_KIND_JOB, Selector: tt.selector})()
				return err
			},
			"ListJobs": func() error {
				_, err := c.ListJobs(ctx, &borgrpc.ListJobsRequest{Selector: tt.selector})
				return err
			},
			"ListTasks": func() error {
				_, err := c.ListTasks(ctx, &borgrpc.ListTasksRequest{Selector: tt.selector})
				return err
			},
			"ListAllocs": func() error {
				_, err := c.ListAllocs(ctx, &borgrpc.ListAllocsRequest{Selector: tt.selector})
				return err
			},
			"ListMachines": func() error {
				_, err := c.ListMachines(ctx, &borgrpc.ListMachinesRequest{Selector: tt.selector})
				return err
			},
			"SafeToDrain": func() error {
				_, err := c.SafeToDrain(ctx, &borgrpc.SafeToDrainRequest{Selector: tt.selector, Count: 1})
				return err
			},
		} {
			err := call()
			if status.Code(err) != codes.InvalidArgument || !strings.Contains(err.Error(), tt.says) || len(err.Error()) > 200 {
				t.Errorf("%s with a selector of %d bytes: %.300v, want InvalidArgument, %q", name, len(tt.selector), err, tt.says)
			}
		}
	}
}

func TestWatchesAreBounded(t *testing.T) {
	tc := newCell(t, 1, nil)
	conn := borgrpc.NewWatchServiceClient(tc.conn(1, identity.User, "alice"))
	begin := func(c borgrpc.WatchServiceClient) error {
		stream, err := c.Watch(t.Context(), &borgrpc.WatchRequest{Kind: borgpb.ObjectKind_OBJECT_KIND_MACHINE})
		if err == nil {
			_, err = stream.Recv()
		}
		return err
	}
	const most = 256
	for i := range most {
		if i > 0 && i%50 == 0 {
			// Streams of a connection are bounded too.
			conn = borgrpc.NewWatchServiceClient(tc.conn(1, identity.User, "alice"))
		}
		if err := begin(conn); err != nil {
			t.Fatalf("watch %d: %v", i+1, err)
		}
	}
	if err := begin(borgrpc.NewWatchServiceClient(tc.conn(1, identity.User, "alice"))); status.Code(err) != codes.ResourceExhausted {
		t.Errorf("watch %d of one user: %v", most+1, err)
	}
	if err := begin(borgrpc.NewWatchServiceClient(tc.conn(1, identity.User, "bob"))); err != nil {
		t.Errorf("a watch of another: %v", err)
	}
}
