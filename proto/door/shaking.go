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
	// maxShaking bounds the concurrent handshakes with borglets. Each takes half a millisecond
	// of signatures at both ends, and thousands start together when as many machines return.
	maxShaking = 8
	// A handshake gives up its place when it takes slowShakingFactor times as long as others
	// lately, and at least slowShakingLeast: it then waits for the other end.
	slowShakingFactor, slowShakingLeast = 8, 100 * time.Millisecond
	// shakingLag is about how many handshakes the average of their time covers.
	shakingLag = 16
)

// shaking bounds the handshakes that compute at one time in this process: those with borglets,
// and those at its doors. Without a bound all that start together would keep the processors
// from other work, above all from the log.
var shaking = struct {
	withBorglets chan struct{}
	atDoors      *entrance.Turns
	// Average time of a handshake with a borglet, in nanoseconds.
	takesNs atomic.Int64
}{
	withBorglets: make(chan struct{}, maxShaking),
	atDoors:      entrance.NewTurns(max(runtime.GOMAXPROCS(0)/2, 1)),
}

// shakeInTurn waits for a place for a handshake with a borglet. The caller calls done after the
// handshake, with whether it succeeded; a slow handshake loses its place before.
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
