package door

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"net"
	"sync/atomic"
	"time"

	"borg/identity"
)

// What callers who are no masters send is bounded while it arrives. gRPC reads a
// message of whatever size the server takes from anybody, waits for its end, and
// calls us when it has all of it. So the frames of HTTP/2 are followed here, on
// their way to it: how large a message says it is, by the limit of its method; how
// much of messages has come that was not decoded, and what decoded ones take until they are
// answered, by user and in all; and how long a message takes.

const (
	// plainRequestBytes bounds a message of a method that has no entry in
	// requestBytes.
	plainRequestBytes = 64 << 10
	// longRequestBytes bounds one that carries a secret, a machine, or a policy.
	longRequestBytes = 256 << 10
	// mutateBytes bounds one that carries a spec or a file, each of up to 256 KiB, with
	// its labels and annotations.
	mutateBytes = 768 << 10
	// validateBytes bounds one that carries several of them.
	validateBytes = 2 << 20
	// restoreBytes bounds one that names the jobs of a restored cell.
	restoreBytes = 1 << 20
	// maxReceivingOfUser bounds what the calls of one user, with those of its tasks,
	// hold: whatever part of their messages has come, and what the decoded ones take in
	// memory until they are answered. The connection that has most of it is closed;
	// a message that is not decoded for it is refused.
	maxReceivingOfUser = 32 << 20
	// maxReceiving bounds the same of all users together.
	maxReceiving = 256 << 20
	// alwaysTakenBytes is the memory of a request that is taken whatever its user holds, so that
	// a flood of large ones is in nobody's way: maxCallsOfUser of them are 16 MiB.
	alwaysTakenBytes = 4 << 10
	// bodyTimeout bounds the time from the first byte of a message to its last. Then
	// its connection is closed.
	bodyTimeout = 10 * time.Second
)

// requestBytes bounds one message of the methods that need more than
// plainRequestBytes, when it comes from anybody but a master or a scheduler.
var requestBytes = map[string]int64{
	"/borgrpc.MasterService/Mutate":         mutateBytes,
	"/borgrpc.MasterService/Mutations":      mutateBytes,
	"/borgrpc.MasterService/Validate":       validateBytes,
	"/borgrpc.MasterService/AddMachine":     longRequestBytes,
	"/borgrpc.MasterService/GetLabelPolicy": longRequestBytes,
	"/borgrpc.SecretService/SetSecret":      longRequestBytes,
	"/borgrpc.ExecService/Exec":             longRequestBytes,
	"/borgrpc.IdentityService/Join":         longRequestBytes,
	"/borgrpc.RestoreService/AdoptUnknown":  restoreBytes,
	"/borgrpc.RestoreService/StopUnknown":   restoreBytes,
}

// RequestBytes returns how large a message of a method may be from a caller of that
// role.
func RequestBytes(method string, role identity.Role) int64 {
	if role == identity.Master || role == identity.Scheduler {
		return maxMessageBytes
	}
	if n := requestBytes[method]; n > 0 {
		return n
	}
	return plainRequestBytes
}

var hungUp atomic.Int64

// HungUp is how many connections this process has closed for what they sent: too much at once,
// a message that took too long or was too large, or too many frames without a message.
func HungUp() int64 { return hungUp.Load() }

const (
	prefaceBytes     = 24
	frameHeadBytes   = 9
	messageHeadBytes = 5
	minSweep         = 16

	frameData         = 0x0
	frameHeaders      = 0x1
	frameReset        = 0x3
	frameContinuation = 0x9
	flagEndStream     = 0x1
	flagPadded        = 0x8
	refusedMessage    = 0xff
)

var errMessageTooLarge = errors.New("a message is larger than its call may send")

// inflow follows what one connection sends. Only the goroutine that reads from the
// connection uses it, but for the atomics.
type inflow struct {
	crowd *crowd
	// The user that sends, shared by all connections of that user.
	user *presentUser
	// Closes the connection.
	hangUp func()
	// Bytes that have come and were not decoded, and the memory of messages that were and are not
	// answered.
	held atomic.Int64
	// The connection is being closed for what it holds.
	closing atomic.Bool
	// The connection was closed.
	gone atomic.Bool
	// Bytes of answers that were not read.
	unread atomic.Int64

	// Bytes of the preface that have yet to come.
	preface int
	// Head of the present frame, and how much of it has come.
	head  [frameHeadBytes]byte
	headN int
	// Payload of the present frame that has yet to come; of it, padding at its end.
	left, padding uint32
	// The length of the padding comes next.
	padNext bool
	// Calls whose messages may go on, by stream.
	calls map[uint32]*receiving
	// With as many calls, those that have ended are removed.
	sweepAt int
	// What is written to the connection.
	out *outflow
	// Frames that carry no message.
	idles *idleFrames
	// What the heads of the present call count in idles.
	heads int64
	// The present call ends with its head.
	headOnly bool
	// Makes the connection rest, and waits until that is over or the connection is closed; nil in
	// tests alone.
	rest, wait func(time.Duration)
}

func newInflow(c *crowd, user *presentUser) *inflow {
	f := &inflow{crowd: c, user: user, preface: prefaceBytes, calls: make(map[uint32]*receiving), sweepAt: minSweep, idles: idleOfConn()}
	user.idle.allow(framesOfConn)
	f.out = newOutflow(f.allow)
	return f
}

func (f *inflow) stream() uint32 { return binary.BigEndian.Uint32(f.head[5:]) & (1<<31 - 1) }

// begin is called for each call that is let in, before anything behind the head of
// the call was read: the present frame is the one with its head.
func (f *inflow) begin(limit int64, calls *atomic.Int32) *receiving {
	if len(f.calls) >= f.sweepAt {
		for id, r := range f.calls {
			if r.ended.Load() {
				delete(f.calls, id)
			}
		}
		f.sweepAt = 2*len(f.calls) + minSweep
	}
	r := &receiving{flow: f, limit: limit, calls: calls}
	r.out = f.out.begin(f.stream(), r.abandon)
	if !f.headOnly {
		f.calls[f.stream()] = r
	}
	return r
}

// feed follows the next bytes that gRPC will read. It changes the length of a message
// that is too large to one that gRPC refuses, with a status that says so; an error
// closes the connection.
func (f *inflow) feed(b []byte) error {
	for len(b) > 0 {
		switch {
		case f.preface > 0:
			n := min(f.preface, len(b))
			f.preface -= n
			b = b[n:]
		case f.headN < frameHeadBytes:
			n := copy(f.head[f.headN:], b)
			f.headN += n
			b = b[n:]
			if f.headN == frameHeadBytes {
				if err := f.beginFrame(); err != nil {
					return err
				}
			}
		default:
			n := min(int(f.left), len(b))
			if err := f.payload(b[:n]); err != nil {
				return err
			}
			f.left -= uint32(n)
			b = b[n:]
			if f.left == 0 {
				f.endFrame()
			}
		}
	}
	return nil
}

func (f *inflow) beginFrame() error {
	f.left = uint32(f.head[0])<<16 | uint32(f.head[1])<<8 | uint32(f.head[2])
	f.padding, f.padNext = 0, f.head[3] == frameData && f.head[4]&flagPadded != 0
	err := f.countFrame()
	if f.left == 0 {
		f.endFrame()
	}
	return err
}

func (f *inflow) endFrame() {
	f.headN = 0
	if r := f.calls[f.stream()]; r != nil && f.head[3] == frameReset {
		f.user.waste.add(r.held.Load())
	}
	if f.head[3] == frameReset || f.head[4]&flagEndStream != 0 && f.head[3] <= frameHeaders {
		delete(f.calls, f.stream())
	}
	if f.head[3] == frameReset {
		f.out.wrote(f.stream())
	}
}

// payload follows a part of the payload of the present frame.
func (f *inflow) payload(b []byte) error {
	if f.head[3] != frameData {
		return nil
	}
	left := f.left
	if f.padNext {
		f.padNext, f.padding = false, uint32(b[0])
		b, left = b[1:], left-1
		if err := f.countData(left - min(left, f.padding)); err != nil {
			return err
		}
	}
	if left <= f.padding {
		return nil
	}
	if data := int(left - f.padding); len(b) > data {
		b = b[:data]
	}
	r := f.calls[f.stream()]
	if r == nil || len(b) == 0 {
		return nil
	}
	r.add(int64(len(b)))
	return r.follow(b)
}

// receiving is a call whose messages arrive.
type receiving struct {
	flow  *inflow
	limit int64
	// Number of calls of the connection, with this one.
	calls *atomic.Int32
	// How far gRPC is with the call.
	state atomic.Int32
	// The same call on its way out.
	out *answering

	// Of the present message; only the goroutine that reads uses these: its head, how
	// much of that has come, and how much of the rest has yet to come.
	head  [messageHeadBytes]byte
	headN int
	left  int64
	// A message was too large: nothing more is looked at.
	deaf bool
	// Closes the connection when the present message takes too long; nil: it has come.
	late *time.Timer

	// Bytes that have come and were not decoded, and the memory of what was.
	held  atomic.Int64
	ended atomic.Bool
	// Bytes of the last message that was decoded or refused; only the handler's goroutine uses it.
	wire int64
}

// follow follows the bytes of a call's messages.
func (r *receiving) follow(b []byte) error {
	for len(b) > 0 && !r.deaf {
		if r.left > 0 {
			n := min(r.left, int64(len(b)))
			if r.left -= n; r.left == 0 {
				r.complete()
			}
			b = b[n:]
			continue
		}
		n := copy(r.head[r.headN:], b)
		here := b[:n]
		r.headN += n
		b = b[n:]
		if r.headN < messageHeadBytes {
			break
		}
		r.headN, r.left = 0, int64(binary.BigEndian.Uint32(r.head[1:]))
		if r.left <= r.limit {
			continue
		}
		r.deaf, r.left = true, 0
		if len(here) < messageHeadBytes-1 {
			return errMessageTooLarge
		}
		for i := range here[len(here)-(messageHeadBytes-1):] {
			here[len(here)-1-i] = refusedMessage
		}
	}
	r.watch()
	return nil
}

// complete stops the timer of a message that has arrived.
func (r *receiving) complete() {
	if r.late != nil {
		r.late.Stop()
		r.late = nil
	}
}

// watch bounds the time that the present message takes, from now on if it has just
// begun.
func (r *receiving) watch() {
	partial := (r.left > 0 || r.headN > 0) && !r.deaf
	switch {
	case partial && r.late == nil:
		r.late = time.AfterFunc(bodyTimeout, func() {
			if !r.ended.Load() && !r.flow.closing.Swap(true) {
				hungUp.Add(1)
				r.flow.hangUp()
			}
		})
	case !partial:
		r.complete()
	}
}

// add counts bytes that have come, and closes the connection that holds most when
// that is too much.
func (r *receiving) add(n int64) {
	if r.ended.Load() {
		return
	}
	switch ofUser, ofAll := r.count(n); {
	case ofUser > maxReceivingOfUser:
		r.flow.crowd.hangUpLargest(r.flow.user, receivedBytes, ofUser, maxReceivingOfUser)
	case ofAll > maxReceiving:
		r.flow.crowd.hangUpLargest(nil, receivedBytes, ofAll, maxReceiving)
	}
}

// count adds n to what the call, its connection, its user and all users hold, and returns the
// last two.
func (r *receiving) count(n int64) (ofUser, ofAll int64) {
	ofUser, ofAll = r.flow.user.receiving.Add(n), r.flow.crowd.receiving.Add(n)
	r.hold(n)
	return ofUser, ofAll
}

// hold adds n to what the call and its connection hold.
func (r *receiving) hold(n int64) {
	r.held.Add(n)
	r.flow.held.Add(n)
	if r.ended.Load() {
		r.take(r.held.Load())
	}
}

// take subtracts up to n bytes from what the call holds.
func (r *receiving) take(n int64) {
	for {
		held := r.held.Load()
		taken := min(n, held)
		if !r.held.CompareAndSwap(held, held-taken) {
			continue
		}
		r.flow.held.Add(-taken)
		r.flow.user.receiving.Add(-taken)
		r.flow.crowd.receiving.Add(-taken)
		return
	}
}

// receivedBytes returns what a connection holds: bytes that have come, and decoded messages.
func receivedBytes(f *inflow) int64 { return f.held.Load() }

// A call that tap lets in is counted. gRPC reports the beginning and the end of most calls,
// but ends some at once without a report, such as those whose time is over.
const (
	callAdmitted int32 = iota
	callRuns
	callReleased
)

// run says that gRPC has reported the beginning of the call.
func (r *receiving) run() {
	if r.state.Swap(callRuns) == callReleased {
		// The client had given it up, and it runs all the same.
		r.ended.Store(false)
		r.flow.countCall(r.calls, 1)
	}
}

// abandon releases a call whose end was written, or whose connection was closed, before gRPC
// reported its beginning.
func (r *receiving) abandon() {
	if r.state.CompareAndSwap(callAdmitted, callReleased) {
		r.end()
		r.flow.countCall(r.calls, -1)
	}
}

// release gives back the place of a call that has ended.
func (r *receiving) release() {
	if r.state.Swap(callReleased) != callReleased {
		r.flow.countCall(r.calls, -1)
	}
}

// end releases all that the call holds.
func (r *receiving) end() {
	r.ended.Store(true)
	r.take(r.held.Load())
}

type receivingKey struct{}

func receivingOf(ctx context.Context) *receiving {
	r, _ := ctx.Value(receivingKey{}).(*receiving)
	return r
}

// bufferedConn reads ahead, and shows an inflow what is read by whoever reads from it.
// gRPC is told to have no buffer of its own, so the inflow is never ahead of it.
type bufferedConn struct {
	net.Conn
	r *bufio.Reader
	// Nil: a master's, or that of a process of this machine.
	flow *inflow
}

func buffered(conn net.Conn, flow *inflow) *bufferedConn {
	return &bufferedConn{conn, bufio.NewReaderSize(conn, readBufferBytes), flow}
}

func (c *bufferedConn) Read(b []byte) (int, error) {
	if c.flow != nil && c.flow.wait != nil {
		c.flow.wait(c.flow.user.waste.rest())
	}
	n, err := c.r.Read(b)
	if n > 0 && c.flow != nil {
		if refused := c.flow.feed(b[:n]); refused != nil {
			if !c.flow.closing.Swap(true) {
				hungUp.Add(1)
			}
			c.Close()
			return 0, refused
		}
	}
	return n, err
}

func (c *bufferedConn) Write(b []byte) (int, error) {
	n, err := c.Conn.Write(b)
	if c.flow != nil {
		c.flow.out.feed(b[:n])
	}
	return n, err
}
