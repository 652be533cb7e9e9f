package door

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"borg/identity"
	"borg/proto/borgrpc"
)

// TestPatience: the connection of a caller ends when he keeps a call waiting, and not
// while the server takes its time.
func TestPatience(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hungUp := false
		p := &patience{timer: time.AfterFunc(slowTimeout, func() { hungUp = true })}
		time.Sleep(slowTimeout / 2)
		p.end()
		time.Sleep(2 * slowTimeout)
		if hungUp {
			t.Error("hung up on a caller whose message had come")
		}
		p.begin()
		time.Sleep(slowTimeout + time.Second)
		synctest.Wait()
		if !hungUp {
			t.Error("did not hang up on a caller who does not read")
		}
	})
}

// TestAnswersAreBounded: what one caller has not read is bounded over all his calls.
func TestAnswersAreBounded(t *testing.T) {
	alice := identity.Name{Cell: "test", Role: identity.User, ID: "alice"}
	flow := newInflow(newCrowd(), newPresentUser(""))
	resp := &borgrpc.GetCellResponse{Build: strings.Repeat("x", 8<<20)}
	for n := range 12 {
		p := &patience{timer: time.AfterFunc(time.Hour, func() {}), flow: flow}
		defer p.timer.Stop()
		err := p.answer(alice, resp)
		if want := n >= 7; (err != nil) != want {
			t.Errorf("answer %d of 8 MiB: %v", n, err)
		}
		if err != nil && (status.Code(err) != codes.ResourceExhausted || RetryAfter(err) == 0) {
			t.Errorf("it is refused with %v and no time to wait", err)
		}
	}
}
