package borgmaster_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/emptypb"

	"borg/borgmaster"
	"borg/borgmaster/admission"
	"borg/identity"
	"borg/proto/borgpb"
	"borg/proto/borgrpc"
	"borg/proto/door"
)

// TestTooMuchIsRefused: whoever asks for more than he may hears when to come back, and
// nothing of it is done; others do not notice. So at the elected master and elsewhere.
func TestTooMuchIsRefused(t *testing.T) {
	tc := newCell(t, 2, func(_ int, c *borgmaster.Config) { c.Admission = admission.Config{WritesPerS: 1, ReadsPerS: 60} })
	for replica := 1; replica <= 2; replica++ {
		// At the elected one a user who was refused is refused whomever he asks.
		user := fmt.Sprint("alice-", replica)
		alice, bob := tc.client(replica, user), tc.client(replica, "bob")
		var err error
		name := ""
		for n := 0; err == nil && n < 100; n++ {
			name = fmt.Sprintf("job-%d-%d", replica, n)
			_, err = alice.Mutate(context.Background(), &borgrpc.MutateRequest{Op: tc.op(submit(t, user, name, 1))})
		}
		tooMuch(t, err, fmt.Sprintf("user %q", user), "more than 1 changes a second", "--user-writes", fmt.Sprint("replica ", replica))
		_, err = bob.GetJob(context.Background(), &borgrpc.GetJobRequest{User: user, Name: name})
		if status.Code(err) != codes.NotFound {
			t.Errorf("replica %d: the job of the refused change: %v", replica, err)
		}
		tc.must(bob, submit(t, "bob", fmt.Sprint("job-", replica), 1))

		for err = nil; err == nil; {
			_, err = alice.ListJobs(context.Background(), &borgrpc.ListJobsRequest{})
		}
		tooMuch(t, err, fmt.Sprintf("user %q", user), "more than 60 reads a second", "--user-reads")
	}
}

// TestStreamsHaveARate: a user who opens and cancels streams of any kind without end is refused, and told when to try
// again; others are not.
func TestStreamsHaveARate(t *testing.T) {
	tc := newCell(t, 1, func(_ int, c *borgmaster.Config) { c.Admission = admission.Config{ReadsPerS: 1e9} })
	for name, open := range map[string]func(ctx context.Context, conn *grpc.ClientConn) (grpc.ClientStream, error){
		"watch": func(ctx context.Context, conn *grpc.ClientConn) (grpc.ClientStream, error) {
			return borgrpc.NewWatchServiceClient(conn).Watch(ctx, &borgrpc.WatchRequest{Kind: borgpb.ObjectKind_OBJECT_KIND_JOB})
		},
		"events": func(ctx context.Context, conn *grpc.ClientConn) (grpc.ClientStream, error) {
			return borgrpc.NewMasterServiceClient(conn).Events(ctx, &borgrpc.EventsRequest{Follow: true})
		},
		"files": func(ctx context.Context, conn *grpc.ClientConn) (grpc.ClientStream, error) {
			return borgrpc.NewFileServiceClient(conn).WatchFiles(ctx, &borgrpc.WatchFilesRequest{})
		},
		"mutations": func(ctx context.Context, conn *grpc.ClientConn) (grpc.ClientStream, error) {
			return borgrpc.NewMasterServiceClient(conn).Mutations(ctx)
		},
	} {
		user := "alice-" + name
		conn := tc.conn(1, identity.User, user)
		var err error
		for n := 0; status.Code(err) != codes.ResourceExhausted && n < 100*admission.MaxOpens; n++ {
			ctx, cancel := context.WithCancel(t.Context())
			var stream grpc.ClientStream
			if stream, err = open(ctx, conn); err == nil && name == "mutations" {
				err = stream.CloseSend()
			}
			if err == nil {
				err = stream.RecvMsg(new(emptypb.Empty))
			}
			cancel()
		}
		tooMuch(t, err, fmt.Sprintf("user %q", user), "streams or reads of much", "MaxOpens")
		if _, err := tc.client(1, "bob-"+name).GetJob(t.Context(), &borgrpc.GetJobRequest{User: "bob", Name: "none"}); status.Code(err) != codes.NotFound {
			t.Errorf("beside a flood of %s another user's read: %v", name, err)
		}
	}
}

func tooMuch(t *testing.T, err error, words ...string) {
	t.Helper()
	if status.Code(err) != codes.ResourceExhausted || door.RetryAfter(err) <= 0 {
		t.Fatalf("want a refusal with a time to come back: %v", err)
	}
	for _, w := range words {
		if !strings.Contains(err.Error(), w) {
			t.Errorf("%q does not say %q", err, w)
		}
	}
}

// TestAnswersSayWhoIsElected: with each answer to a change goes who is elected.
func TestAnswersSayWhoIsElected(t *testing.T) {
	tc := newCell(t, 3, nil)
	for replica := 1; replica <= 3; replica++ {
		resp, err := tc.client(replica, "alice").Mutate(context.Background(), &borgrpc.MutateRequest{Op: tc.op(kill("alice", "none"))})
		if err != nil {
			t.Fatal(err)
		}
		if got := resp.Elected; got.GetId() != 1 || got.GetAddr() != tc.addrs[0] {
			t.Errorf("replica %d says that %v is elected, want replica 1 at %s", replica, got, tc.addrs[0])
		}
		if resp.Replica != uint64(replica) {
			t.Errorf("replica %d says it is %d", replica, resp.Replica)
		}
	}
}
