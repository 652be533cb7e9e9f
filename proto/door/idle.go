package door

import (
	"errors"
	"sync"
	"time"
)

// Frames that carry no message cost no call, so nothing else counts them: settings, pings, windows,
// resets, priorities, continuations, empty data, frames of unknown kinds, and heads of calls that
// gRPC refuses by itself. A client needs a few of them for each call and for each frame that this
// end writes for a call. Beyond that each counts, until time has passed.

const (
	// maxIdleFrames bounds the idle frames of a connection that are counted. One more closes it.
	maxIdleFrames = 1024
	// idleFramesPerS is how many of them are forgotten each second.
	idleFramesPerS = 64
	// maxIdleFramesOfUser bounds those of one user and its tasks. The connection that sends
	// one more rests.
	maxIdleFramesOfUser = 16384
	// idleFramesOfUserPerS is how many of those are forgotten each second.
	idleFramesOfUserPerS = 4096
	// idleRest is how long such a connection is not read.
	idleRest = time.Second

	// idlePayloadBytes is how many bytes of payload count as one frame more. One frame of
	// settings may hold thousands of them.
	idlePayloadBytes = 16
	// smallDataBytes is the payload below which a frame of data counts as idle. gRPC keeps each
	// frame of a message in some fifty bytes beside it.
	smallDataBytes = 64

	// framesOfConn, framesOfCall, framesOfMessage and framesOfWritten are how many idle frames
	// come with a new connection, a call, a message that was decoded, and a frame written for a call.
	framesOfConn    = 8
	framesOfCall    = 8
	framesOfMessage = 2
	framesOfWritten = 3
	// bytesOfRefusedFrame is the payload of the frames in which the message of a refused call
	// may still come.
	bytesOfRefusedFrame = 16 << 10
)

var errIdleFrames = errors.New("too many frames came that carry no message")

// idleFrames counts the idle frames of a connection or of a user.
type idleFrames struct {
	most, perS int64

	mu sync.Mutex
	// Frames that count; below zero as many may come before any counts. Guarded by mu, like at.
	n int64
	// When frames were last forgotten.
	at time.Time
}

// add counts n frames, and reports whether there are too many.
func (c *idleFrames) add(n int64) (over bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.n += n; c.n <= c.most {
		return false
	}
	now := time.Now()
	past := int64(now.Sub(c.at).Seconds() * float64(c.perS))
	c.n, c.at = max(c.n-past, 0), now
	return c.n > c.most
}

// allow lets n more frames come, of which at most four times the bound are kept.
func (c *idleFrames) allow(n int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.n = max(c.n-n, -4*c.most)
}

func idleOfConn() *idleFrames {
	return &idleFrames{most: maxIdleFrames, perS: idleFramesPerS, n: -framesOfConn, at: time.Now()}
}

func idleOfUser() *idleFrames {
	return &idleFrames{most: maxIdleFramesOfUser, perS: idleFramesOfUserPerS, at: time.Now()}
}

// idle counts n idle frames of the connection. An error closes it.
func (f *inflow) idle(n int64) error {
	if f.user.idle.add(n) && f.rest != nil {
		f.rest(idleRest)
	}
	if f.idles.add(n) {
		return errIdleFrames
	}
	return nil
}

// countFrame counts the present frame if it is idle.
func (f *inflow) countFrame() error {
	n := 1 + int64(f.left)/idlePayloadBytes
	switch f.head[3] {
	case frameData:
		if f.padNext && f.left > 0 {
			// payload counts it when the length of the padding has come.
			return nil
		}
		return f.countData(f.left)
	case frameHeaders:
		f.heads, f.headOnly = n, f.head[4]&flagEndStream != 0
	case frameContinuation:
		f.heads += n
	}
	return f.idle(n)
}

// countData counts a frame of data if it is idle. bytes are its payload without padding.
func (f *inflow) countData(bytes uint32) error {
	if bytes >= smallDataBytes {
		// Also of a call that was refused: its client may have sent much before it heard so.
		return nil
	}
	return f.idle(1)
}

// allow lets n more idle frames come.
func (f *inflow) allow(n int64) {
	f.idles.allow(n)
	f.user.idle.allow(n)
}

// called says that the head of a call has come which gRPC accepts. Its message may be so large.
func (f *inflow) called(limit int64) {
	f.allow(f.heads + framesOfCall + limit/bytesOfRefusedFrame)
	f.heads = 0
}
