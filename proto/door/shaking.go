package door

import (
	"context"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"borg/proto/door/entrance"
)

const (
	// So many handshakes with borglets are under way at once, of those that are answered in
	// time: each is half a millisecond of signatures at both ends, and thousands begin
	// together when as many machines come back.
	maxShaking = 8
	// One that takes so much longer than others did lately, and at least so long, waits for
	// the other end, and keeps nobody waiting.
	slowShakingFactor, slowShakingLeast = 8, 100 * time.Millisecond
	// What others did is an average over about so many.
	shakingLag = 16
)

// shaking are the handshakes of this process's callers, with borglets, and those at its
// doors that are at work. Whatever else a process has to do, its log before all, would
// wait for a processor behind all that begin together.
var shaking = struct {
	withBorglets chan struct{}
	atDoors      *entrance.Turns
	// How long one with a borglet takes; nanoseconds.
	takesNs atomic.Int64
}{
	withBorglets: make(chan struct{}, maxShaking),
	atDoors:      entrance.NewTurns(max(runtime.GOMAXPROCS(0)/2, 1)),
}

// shakeInTurn waits for a turn for a handshake with a borglet. It ends with done, or when it
// takes too long.
func shakeInTurn(ctx context.Context) (done func(ok bool), err error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	select {
	case shaking.withBorglets <- struct{}{}:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	leave := sync.OnceFunc(func() { <-shaking.withBorglets })
	began := time.Now()
	slow := time.AfterFunc(max(slowShakingFactor*time.Duration(shaking.takesNs.Load()), slowShakingLeast), leave)
	return func(ok bool) {
		slow.Stop()
		leave()
		if was := shaking.takesNs.Load(); ok {
			shaking.takesNs.Store(was + (int64(time.Since(began))-was)/shakingLag)
		}
	}, nil
}
