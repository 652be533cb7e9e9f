package borglet

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"borg/proto/borgpb"
	"borg/proto/borgrpc"
)

// TestExecRates: a user starts a burst and then one program each period. Others do not lose
// anything by it, and a user who was quiet has the whole burst.
func TestExecRates(t *testing.T) {
	var x execRates
	const every = int64(execEvery)
	taken := func(by string, now int64) (n int) {
		for x.take(by, now) == 0 {
			n++
		}
		return n
	}
	now := int64(time.Hour)
	if n := taken("mallory", now); n != execBurst {
		t.Errorf("a burst of %d programs, want %d", n, execBurst)
	}
	if n := taken("bob", now); n != execBurst {
		t.Errorf("another user has a burst of %d programs, want %d", n, execBurst)
	}
	if wait := x.take("mallory", now+every/4); int64(wait) != every-every/4 {
		t.Errorf("the next program may start in %v, want %v", wait, time.Duration(every-every/4))
	}
	for i := int64(1); i <= 3; i++ {
		if n := taken("mallory", now+i*every); n != 1 {
			t.Errorf("period %d: %d programs, want 1", i, n)
		}
	}
	now += 100 * every
	for i := range 3 * maxExecRates {
		x.take(fmt.Sprint("user", i), now+int64(i)*every)
	}
	if len(x.full) > maxExecRates {
		t.Errorf("%d users are remembered, want at most %d", len(x.full), maxExecRates)
	}
	if n := taken("mallory", now); n != execBurst {
		t.Errorf("after a quiet time a burst of %d programs, want %d", n, execBurst)
	}
}

// TestCheckRates: commands of health checks beyond a user's burst wait, each behind the one
// before it, and those of others do not.
func TestCheckRates(t *testing.T) {
	var x execRates
	now := int64(time.Hour)
	for i := range int64(3 * checkBurst) {
		want := time.Duration(max(i+1-checkBurst, 0)) * checkEvery
		if wait := x.reserve("mallory", now); wait != want {
			t.Errorf("check %d waits %v, want %v", i+1, wait, want)
		}
	}
	if wait := x.reserve("bob", now); wait != 0 {
		t.Errorf("a check of another user waits %v", wait)
	}
	if wait := x.reserve("mallory", now+3*checkBurst*int64(checkEvery)); wait != 0 {
		t.Errorf("after a quiet time a check waits %v", wait)
	}
}

// TestManyChecksWait: the checks of one user's tasks that are too many in a short time are
// made later. None of them fails, and those of others do not wait.
func TestManyChecksWait(t *testing.T) {
	delayed := 0
	p := newProber(NewFake(), func() { delayed++ })
	ended, end := context.WithCancel(context.Background())
	end()
	for i := range checkBurst {
		if !p.turn(ended, "mallory") {
			t.Fatalf("check %d waits", i+1)
		}
	}
	command := Check{Record: Record{Desired: &borgrpc.Desired{User: "mallory", Spec: &borgpb.TaskSpec{Health: &borgpb.HealthCheck{Command: []string{"true"}}}}}}
	if err := p.check(ended, command, t.TempDir()); !errors.Is(err, errUndecided) || delayed != 1 {
		t.Errorf("a check that waited until the borglet ended: %v, %d waited", err, delayed)
	}
	if !p.turn(ended, "bob") || delayed != 1 {
		t.Error("a check of another user waits")
	}
}

// execCall is one ExecCopy call of a client.
type execCall struct {
	grpc.ServerStream
	start *borgrpc.ExecCopyRequest
}

func (c *execCall) Context() context.Context                  { return context.Background() }
func (c *execCall) Recv() (*borgrpc.ExecCopyRequest, error)   { return c.start, nil }
func (c *execCall) Send(response *borgrpc.ExecResponse) error { return nil }

// TestExecsTooFast: the borglet refuses programs that a user starts too fast, and says when
// to try again.
func TestExecsTooFast(t *testing.T) {
	a := startAgent(t, t.TempDir())
	id := ID{JobUID: "1-1-0", Attempt: 1}
	a.until(&borgrpc.PollRequest{Fence: fence(1, 4, 100), Desired: []*borgrpc.Desired{wanted(id)}}, allIn(running1))
	call := &execCall{start: &borgrpc.ExecCopyRequest{Copy: id.wire(), By: "mallory", Program: &borgrpc.ExecProgram{Args: []string{"true"}}}}
	for n := range 10 * execBurst {
		err := a.server.ExecCopy(call)
		if status.Code(err) != codes.ResourceExhausted {
			continue
		}
		if n < execBurst || !strings.Contains(err.Error(), "too fast") || !strings.Contains(err.Error(), "try again in ") {
			t.Errorf("program %d is refused: %v", n+1, err)
		}
		return
	}
	t.Errorf("%d programs were started", 10*execBurst)
}
