package borgmaster_test

import (
	"cmp"
	"context"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"borg/borgmaster"
	"borg/borgmaster/admission"
	"borg/borgmaster/cellkey"
	"borg/proto/borgpb"
	"borg/proto/borgrpc"
)

// changedLog is a log with functions that are called first; nil for none.
type changedLog struct {
	borgmaster.Log
	propose   func(*borgpb.Op)
	readIndex func() error
}

func (l *changedLog) Propose(ctx context.Context, op *borgpb.Op) (*borgpb.Result, error) {
	if l.propose != nil {
		l.propose(op)
	}
	return l.Log.Propose(ctx, op)
}

func (l *changedLog) ReadIndex(ctx context.Context) error {
	if l.readIndex != nil {
		if err := l.readIndex(); err != nil {
			return err
		}
	}
	return l.Log.ReadIndex(ctx)
}

// newChargedCell has one replica that keeps secrets, whose budgets get nothing back.
func newChargedCell(t *testing.T, log *changedLog) *testCell {
	t.Helper()
	key, err := cellkey.NewKey()
	if err != nil {
		t.Fatal(err)
	}
	var still atomic.Bool
	tc := newCell(t, 1, func(_ int, c *borgmaster.Config) {
		goes := c.MonotonicNs
		c.MonotonicNs = func() int64 {
			if still.Load() {
				return int64(time.Hour)
			}
			return goes()
		}
		c.Keys = cellkey.NewRing(nil, key)
		log.Log = c.Log
		c.Log = log
	})
	tc.hasUsers()
	still.Store(true)
	return tc
}

// TestSecretsTakeLogBytes: the bytes of secrets count in the budget of changes.
func TestSecretsTakeLogBytes(t *testing.T) {
	tc := newChargedCell(t, new(changedLog))
	const maxLogBytes = 16 << 20
	value := strings.Repeat("x", 64<<10)
	var err error
	n := 0
	for err == nil && n*len(value) <= 2*maxLogBytes {
		if _, err = tc.setSecret(1, "ann", "ann", "s", value); err == nil {
			n++
		}
	}
	tooMuch(t, err, `user "ann"`, "16 MiB at once")
	if bytes := n * len(value); bytes < maxLogBytes/2 || bytes > maxLogBytes+len(value) {
		t.Errorf("%d bytes of secrets are in the log at once, want about %d", bytes, maxLogBytes)
	}
	if r, err := tc.setSecret(1, "bob", "bob", "s", value); err != nil || r.GetRefusal() != nil {
		t.Errorf("a secret of another user: %v, %v", r.GetRefusal(), err)
	}
}

// TestSecretsOfOthersGoOn: while the log takes its time for the secret of one user, that of another
// is set.
func TestSecretsOfOthersGoOn(t *testing.T) {
	entered, release := make(chan struct{}, 1), make(chan struct{})
	tc := newChargedCell(t, &changedLog{propose: func(op *borgpb.Op) {
		if op.GetSetSecret().GetUser() == "ann" {
			entered <- struct{}{}
			<-release
		}
	}})
	set := func(ctx context.Context, user string) error {
		_, err := tc.secrets(1, user).SetSecret(ctx, &borgrpc.SetSecretRequest{
			RequestId: "set-of-" + user, RequestWallNs: time.Now().UnixNano(), User: user, Name: "s", Value: []byte("x"),
		})
		return err
	}
	var anns sync.WaitGroup
	anns.Go(func() {
		if err := set(t.Context(), "ann"); err != nil {
			t.Errorf("ann's secret: %v", err)
		}
	})
	<-entered
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	if err := set(ctx, "bob"); err != nil {
		t.Errorf("bob's secret, while ann's is on its way: %v", err)
	}
	close(release)
	anns.Wait()
}

// TestRetryIsChargedOnce: a second try of a change that comes while the first is under way takes no
// work.
func TestRetryIsChargedOnce(t *testing.T) {
	var both sync.WaitGroup
	both.Add(2)
	tc := newChargedCell(t, &changedLog{propose: func(op *borgpb.Op) {
		if op.GetResizeJob().GetTasks() == 90_000 {
			both.Done()
			both.Wait()
		}
	}})
	alice := tc.client(1, "alice")
	tc.must(alice, submit(t, "alice", "huge", 1))
	op := tc.op(resize("alice", "huge", 90_000))
	var tries sync.WaitGroup
	var repeated atomic.Int32
	for range 2 {
		tries.Go(func() {
			resp, err := alice.Mutate(t.Context(), &borgrpc.MutateRequest{Op: op})
			if err != nil || resp.Result.Refusal != nil {
				t.Errorf("a try: %v, %v", resp.GetResult().GetRefusal(), err)
			}
			if resp.GetResult().GetRepeated() {
				repeated.Add(1)
			}
		})
	}
	tries.Wait()
	if n := repeated.Load(); n != 1 {
		t.Fatalf("%d of two tries were repeated", n)
	}
	tc.must(alice, resize("alice", "huge", 1))
}

// TestUnloggedIsGivenBack: a change that does not get into the log takes nothing of the budgets, and
// one that the elected master looks at and refuses takes the work of that.
func TestUnloggedIsGivenBack(t *testing.T) {
	var fails atomic.Bool
	tc := newChargedCell(t, &changedLog{readIndex: func() error {
		if fails.Load() {
			return errors.New("the disk is gone")
		}
		return nil
	}})
	alice := tc.client(1, "alice")
	tc.must(alice, submit(t, "alice", "huge", 1))
	fails.Store(true)
	for range 5 {
		_, err := alice.Mutate(t.Context(), &borgrpc.MutateRequest{Op: tc.op(resize("alice", "huge", 90_000))})
		if status.Code(err) != codes.Internal {
			t.Fatalf("a change for which the log cannot be read: %v", err)
		}
	}
	fails.Store(false)
	tc.must(alice, resize("alice", "huge", 90_000))
	tc.must(alice, resize("alice", "huge", 1))

	spec := &borgpb.JobSpec{
		Kind: borgpb.JobKind_JOB_KIND_SERVICE, Tasks: 1_500, Priority: 200, Parent: "bob/nobody",
		Task: &borgpb.TaskSpec{Resources: &borgpb.Resources{CpuMilli: 100, MemBytes: 1 << 20}, Args: []string{"/bin/sleep", strings.Repeat("x", 200<<10)}},
	}
	data, err := proto.Marshal(spec)
	if err != nil {
		t.Fatal(err)
	}
	bob := tc.client(1, "bob")
	for range 16 << 20 / len(data) * 5 / 4 {
		resp, err := bob.Mutate(t.Context(), &borgrpc.MutateRequest{Op: tc.op(&borgpb.Op{Op: &borgpb.Op_SubmitJob{SubmitJob: &borgpb.SubmitJob{User: "bob", Name: "big", Spec: data}}})})
		if err != nil || !strings.Contains(resp.Result.Refusal.GetMessage(), "there is no live job bob/nobody") {
			t.Fatalf("a change that is refused: %v, %v", resp.GetResult().GetRefusal(), err)
		}
	}
}

// TestSecretsAreRefusedAtTheDoor: after the elected master has refused a user's secret, the replica that
// passed it on refuses the next one by itself.
func TestSecretsAreRefusedAtTheDoor(t *testing.T) {
	began := time.Now()
	var clocks [3]atomic.Int64
	clock := func(replica int) func() int64 {
		return func() int64 { return cmp.Or(clocks[replica].Load(), int64(time.Since(began))+1) }
	}
	tc, _ := newSecretCell(t, 2, func(replica int, c *borgmaster.Config) { c.MonotonicNs = clock(replica) })
	const elected, other = 1, 2
	for i := range clocks {
		clocks[i].Store(int64(time.Since(began)) + 1)
	}
	set := func(replica int) error {
		_, err := tc.setSecret(replica, "ann", "ann", "s", strings.Repeat("x", 64<<10))
		return err
	}
	var err error
	for n := 0; err == nil && n < 2*admission.MaxLogBytes>>16; n++ {
		err = set(other)
	}
	tooMuch(t, err, `user "ann"`)
	clocks[elected].Add(int64(time.Minute))
	if err := set(elected); err != nil {
		t.Errorf("a minute later, at the elected master: %v", err)
	}
	tooMuch(t, set(other), `user "ann"`)
	clocks[other].Add(int64(time.Minute))
	if err := set(other); err != nil {
		t.Errorf("a minute later, at the other replica: %v", err)
	}
}
