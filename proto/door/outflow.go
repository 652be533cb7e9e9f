package door

import (
	"encoding/binary"
	"sync"
)

// outflow follows the frames that are written to one connection, to learn when the end of
// a call has been written. gRPC reports the end of a call as soon as its answer waits to be
// written. A client that opens no window, or reads nothing, would otherwise hold any number
// of answers that are counted nowhere.
type outflow struct {
	mu sync.Mutex
	// Calls whose ends have not been written, by stream. Guarded by mu, as is all that
	// follows.
	calls map[uint32]*answering
	// The connection is closed: nothing waits to be written any more.
	closed bool
	// Head of the present frame, how much of it was written, and how much of the frame's
	// payload has yet to be.
	head  [frameHeadBytes]byte
	headN int
	left  uint32
}

// answering is one call on its way out.
type answering struct {
	// The end of it was written, or nobody waits for it.
	written bool
	// Set when gRPC has reported the end of the call, unless that was written by then.
	release func()
}

func newOutflow() *outflow { return &outflow{calls: make(map[uint32]*answering)} }

// begin counts a call until its end is written.
func (o *outflow) begin(stream uint32) *answering {
	a := new(answering)
	o.mu.Lock()
	defer o.mu.Unlock()
	o.calls[stream] = a
	return a
}

// ended calls release once the end of a call that gRPC has ended is written, which may be
// at once.
func (o *outflow) ended(a *answering, release func()) {
	o.mu.Lock()
	now := a.written || o.closed
	if !now {
		a.release = release
	}
	o.mu.Unlock()
	if now {
		release()
	}
}

// wrote says that the end of a call was written, or that its client gave it up.
func (o *outflow) wrote(stream uint32) {
	o.mu.Lock()
	release := o.drop(stream)
	o.mu.Unlock()
	if release != nil {
		release()
	}
}

// drop takes a call out and returns what is to be called then, if anything. The caller
// holds mu.
func (o *outflow) drop(stream uint32) (release func()) {
	a := o.calls[stream]
	if a == nil {
		return nil
	}
	delete(o.calls, stream)
	// Timers may hold the call for a while; what it was about is let go.
	release, a.release = a.release, nil
	a.written = true
	return release
}

// close says that the connection is closed.
func (o *outflow) close() {
	o.mu.Lock()
	var all []func()
	for stream := range o.calls {
		if release := o.drop(stream); release != nil {
			all = append(all, release)
		}
	}
	o.closed = true
	o.mu.Unlock()
	for _, release := range all {
		release()
	}
}

// feed follows the next bytes that were written.
func (o *outflow) feed(b []byte) {
	var all []func()
	o.mu.Lock()
	for len(b) > 0 {
		if o.headN < frameHeadBytes {
			n := copy(o.head[o.headN:], b)
			o.headN += n
			b = b[n:]
			if o.headN < frameHeadBytes {
				break
			}
			o.left = uint32(o.head[0])<<16 | uint32(o.head[1])<<8 | uint32(o.head[2])
		}
		n := min(int(o.left), len(b))
		o.left -= uint32(n)
		b = b[n:]
		if o.left > 0 {
			break
		}
		o.headN = 0
		kind, flags := o.head[3], o.head[4]
		if kind == frameReset || kind <= frameHeaders && flags&flagEndStream != 0 {
			if release := o.drop(binary.BigEndian.Uint32(o.head[5:]) & (1<<31 - 1)); release != nil {
				all = append(all, release)
			}
		}
	}
	o.mu.Unlock()
	for _, release := range all {
		release()
	}
}
