package borgmaster

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"borg/borgmaster/admission"
	"borg/proto/door"
)

// TestTurnOfReads: a read waits for its turn, until it has it, gives up, or is refused with
// a time to come back; none of that leaves a turn taken.
func TestTurnOfReads(t *testing.T) {
	a := newAdmitter(admission.Config{Replica: 2}, func() int64 { return time.Now().UnixNano() })
	a.turns = admission.NewTurns[chan struct{}](2, 1, 1)
	defer a.close()
	ctx := context.Background()
	first, err := a.turn(ctx, "alice", false)
	if err != nil {
		t.Fatal(err)
	}

	if _, err = a.turn(ctx, "bob", false); status.Code(err) != codes.ResourceExhausted || door.RetryAfter(err) <= 0 ||
		!strings.Contains(err.Error(), `user "bob" waited 400 ms at replica 2 for its turn to read`) {
		t.Errorf("one who waited in vain hears: %v", err)
	}

	short, cancel := context.WithCancel(ctx)
	gone := make(chan error)
	go func() {
		_, err := a.turn(short, "carol", false)
		gone <- err
	}()
	cancel()
	if err := <-gone; status.Code(err) != codes.Canceled {
		t.Errorf("one who gave up hears: %v", err)
	}

	next := make(chan error)
	go func() {
		leave, err := a.turn(ctx, "dave", false)
		if err == nil {
			leave()
		}
		next <- err
	}()
	for {
		if _, turns := a.stats(); turns.Waiting == 1 {
			break
		}
		time.Sleep(time.Millisecond)
	}
	first()
	if err := <-next; err != nil {
		t.Errorf("one whose turn it was: %v", err)
	}
	leave, err := a.turn(ctx, "erin", false)
	if err != nil {
		t.Fatalf("after all have gone: %v", err)
	}
	leave()
}

// TestSlowReadsGiveWay: two users whose clients take nothing have all places of long reads. When
// their clients have kept them waiting for too long, they end if somebody waits, and only then.
func TestSlowReadsGiveWay(t *testing.T) {
	now := int64(1)
	a := newAdmitter(admission.Config{Replica: 2}, func() int64 { return atomic.LoadInt64(&now) })
	defer a.close()
	var slow []*longRead
	for i := range maxLongReads {
		r, err := a.longRead(t.Context(), ofAudits, []string{"alice", "bob"}[i/maxLongReadsOfUser])
		if err != nil {
			t.Fatal(err)
		}
		slow = append(slow, r)
	}
	send := func(takesNs int64) func() error {
		return func() error {
			atomic.AddInt64(&now, takesNs)
			return nil
		}
	}
	if err := slow[0].sent(send(2 * maxUnreadNs)); err != nil {
		t.Errorf("a slow read, when nobody waits: %v", err)
	}
	served := make(chan error)
	go func() {
		r, err := a.longRead(t.Context(), ofAudits, "carol")
		if err == nil {
			err = r.sent(send(1))
			r.leave()
		}
		served <- err
	}()
	for a.longReads(ofAudits).Waiting == 0 {
		time.Sleep(time.Millisecond)
	}
	for range 3 {
		if err := slow[1].sent(send(maxUnreadNs / 3)); err != nil {
			t.Errorf("a read that is not slow: %v", err)
		}
	}
	err := slow[1].sent(send(1))
	if status.Code(err) != codes.ResourceExhausted || !strings.Contains(err.Error(), `user "alice" took the answer so slowly that the read waited for 30 s`) {
		t.Errorf("a slow read, when others wait, ends with %v", err)
	}
	slow[1].leave()
	if err := <-served; err != nil {
		t.Errorf("one who waited for a place: %v", err)
	}
}

// TestWalksRestTogether: while the log goes on, walks of all users owe it four times what they have worked, and a while
// after its last entry nothing.
func TestWalksRestTogether(t *testing.T) {
	now, applied := int64(1e9), uint64(10)
	a := newAdmitter(admission.Config{Replica: 2}, func() int64 { return now })
	defer a.close()
	a.places = 2
	work := func(user string, ns int64) {
		now += ns
		a.walked(user, now-ns, applied)
	}
	owed := func() int64 { return max(a.way.againNs-now, 0) }
	work("alice", 1e6)
	work("bob", 1e6)
	if got, want := owed(), int64(giveWayPart*(1e6+1e6)/2-1e6); got != want {
		t.Errorf("after 2 ms of work with 2 turns at a time walks rest for %d ns, want %d", got, want)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := a.giveWay(ctx); err == nil {
		t.Error("a walk whose caller has gone does not end while it rests")
	}
	now += logBusyNs
	work("alice", 1e6)
	if got := owed(); got != 0 {
		t.Errorf("in a log that stands still walks rest for %d ns, want 0", got)
	}
	if err := a.giveWay(t.Context()); err != nil {
		t.Error(err)
	}
	applied++
	work("alice", 1e6)
	if got, want := owed(), int64(giveWayPart*1e6/2); got != want {
		t.Errorf("when the log goes on again walks rest for %d ns, want %d", got, want)
	}
}

// TestAWalkThatRestsHasNoTurn: while walks rest for the log other reads have the turn. A piece that
// took long, because a disk or a processor was slow, counts for mostWalkNs.
func TestAWalkThatRestsHasNoTurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		a := newAdmitter(admission.Config{Replica: 1}, func() int64 { return int64(time.Since(start)) + 1e9 })
		a.places, a.turns, a.walking = 1, newLine(1, 1, 1), newLine(1, 1, 1)
		leave, err := a.walkPlace(t.Context(), "walker")
		if err != nil {
			t.Fatal(err)
		}
		since := a.nowNs()
		time.Sleep(120 * time.Millisecond)
		a.walked("walker", since, 7)
		leave()
		rested := make(chan time.Duration)
		ended := time.Now()
		go func() {
			leave, err := a.walkPlace(t.Context(), "walker")
			if err != nil {
				t.Error(err)
				return
			}
			rested <- time.Since(ended)
			leave()
		}()
		synctest.Wait()
		leave, err = a.turn(t.Context(), "alice", false)
		if waited := time.Since(ended); err != nil || waited != 0 {
			t.Fatalf("while a walk rests alice waits %v for a turn: %v", waited, err)
		}
		leave()
		if got, want := <-rested, time.Duration(giveWayPart*mostWalkNs); got != want {
			t.Errorf("the walk rests for %v, want %v", got, want)
		}
	})
}
