package door

import (
	"encoding/binary"
	"sync"
)

// outflow follows the frames that are written to one connection, to learn when a message of
// a call, and the end of the call, have been written. gRPC reports the end of a call as soon as
// its answer waits to be written, and takes one message of a stream, however large, before it
// makes the next one wait. A client that opens no window, or reads nothing, would otherwise
// hold any number of answers that are counted nowhere.
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
	// The call whose payload the present frame carries; nil if none is followed.
	data *answering
	// Lets so many idle frames of the other end come.
	allow func(frames int64)
}

// answering is one call on its way out.
type answering struct {
	// The end of it was written, or nobody waits for it.
	written bool
	// gRPC has ended the call: no message follows.
	last bool
	// Set when gRPC has reported the end of the call, unless that was written by then.
	release func()
	// Called in place of release where gRPC has not reported the end.
	abandon func()
	// The message that waits to be written; nil if none does. A call has one at most.
	unread *unread
	// Head of the message that is being written, how much of it was, and how much of the
	// message behind it has yet to be.
	head  [messageHeadBytes]byte
	headN int
	left  int64
}

// unread is a message of a stream that was handed to gRPC and has not been written.
type unread struct {
	bytes int64
	// Takes bytes off what the user holds, and stops the timer unless the call has ended.
	release func(bytes int64, last bool)
	// Closed when the message is written, or never will be.
	done chan struct{}
}

// written is a closed channel, for callers with no message waiting to be written.
var written = func() chan struct{} {
	c := make(chan struct{})
	close(c)
	return c
}()

func newOutflow(allow func(frames int64)) *outflow {
	return &outflow{calls: make(map[uint32]*answering), allow: allow}
}

// begin counts a call until its end is written.
func (o *outflow) begin(stream uint32, abandon func()) *answering {
	a := &answering{abandon: abandon}
	o.mu.Lock()
	closed := o.closed
	if closed {
		a.written = true
	} else {
		o.calls[stream] = a
	}
	o.mu.Unlock()
	if closed {
		abandon()
	}
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

// send counts a message of a stream until it is written. The one before it was.
func (o *outflow) send(a *answering, bytes int64, release func(bytes int64, last bool)) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if a.written || o.closed {
		release(bytes, false)
		return
	}
	a.unread = &unread{bytes: bytes, release: release, done: make(chan struct{})}
}

// unsend says that gRPC did not take the message.
func (o *outflow) unsend(a *answering) {
	o.mu.Lock()
	defer o.mu.Unlock()
	a.read()
}

// waiting returns a channel that is closed when no message of a call waits to be written.
func (o *outflow) waiting(a *answering) <-chan struct{} {
	o.mu.Lock()
	defer o.mu.Unlock()
	if a.unread == nil {
		return written
	}
	return a.unread.done
}

// finish says that no message of a call follows.
func (o *outflow) finish(a *answering) {
	o.mu.Lock()
	defer o.mu.Unlock()
	a.last = true
}

// read says that the message that waits is written, or never will be. The caller holds mu.
func (a *answering) read() {
	u := a.unread
	if u == nil {
		return
	}
	a.unread = nil
	u.release(u.bytes, a.last)
	close(u.done)
}

// follow follows the bytes of messages that were written. The caller holds mu.
func (a *answering) follow(b []byte) {
	for len(b) > 0 {
		if a.left > 0 {
			n := min(a.left, int64(len(b)))
			a.left -= n
			b = b[n:]
		} else {
			n := copy(a.head[a.headN:], b)
			a.headN += n
			b = b[n:]
			if a.headN < messageHeadBytes {
				return
			}
			a.headN, a.left = 0, int64(binary.BigEndian.Uint32(a.head[1:]))
		}
		if a.left == 0 {
			a.read()
		}
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
	if release, a.release = a.release, nil; release == nil {
		release = a.abandon
	}
	a.written = true
	a.read()
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

func (o *outflow) stream() uint32 { return binary.BigEndian.Uint32(o.head[5:]) & (1<<31 - 1) }

// feed follows the next bytes that were written.
func (o *outflow) feed(b []byte) {
	var all []func()
	frames := int64(0)
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
			if o.data = nil; o.head[3] == frameData {
				o.data = o.calls[o.stream()]
			}
			if o.head[3] <= frameHeaders && o.calls[o.stream()] != nil {
				frames++
			}
		}
		n := min(int(o.left), len(b))
		o.left -= uint32(n)
		if o.data != nil {
			o.data.follow(b[:n])
		}
		b = b[n:]
		if o.left > 0 {
			break
		}
		o.headN = 0
		kind, flags := o.head[3], o.head[4]
		if kind == frameReset || kind <= frameHeaders && flags&flagEndStream != 0 {
			if release := o.drop(o.stream()); release != nil {
				all = append(all, release)
			}
		}
	}
	o.mu.Unlock()
	if frames > 0 {
		o.allow(frames * framesOfWritten)
	}
	for _, release := range all {
		release()
	}
}
