package door

import (
	"context"
	"sync/atomic"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/stats"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"borg/identity"
)

const (
	// slowTimeout is how long a client may take to send the message of a call, and to read
	// each message of the answer. Then its connection is closed, to free the memory held for
	// it. Masters are exempt.
	slowTimeout = 30 * time.Second
	// maxAnswersOfUser bounds the bytes of unread answers of one user and its tasks, on all
	// connections.
	maxAnswersOfUser = 64 << 20
	// maxAnswers bounds the same of all users together. With more, the connection that has
	// most of them is closed.
	maxAnswers = 512 << 20
)

// FullHere returns the error of a call for which this replica has no place, though another one may
// have. It has no retry time: a client that gets one waits, and then asks the same replica.
func FullHere(format string, args ...any) error {
	return status.Errorf(codes.ResourceExhausted, format, args...)
}

// TooMuch returns the error of a call that is refused now, would be refused by other replicas too,
// and may be retried after a time.
func TooMuch(text string, retry time.Duration) error {
	s := status.New(codes.ResourceExhausted, text)
	if with, err := s.WithDetails(&errdetails.RetryInfo{RetryDelay: durationpb.New(retry)}); err == nil {
		s = with
	}
	return s.Err()
}

// RetryAfter returns the time after which an error says to retry; 0 if it does not say.
func RetryAfter(err error) time.Duration {
	if err == nil {
		return 0
	}
	for _, d := range status.Convert(err).Details() {
		if info, ok := d.(*errdetails.RetryInfo); ok {
			return info.GetRetryDelay().AsDuration()
		}
	}
	return 0
}

// patience closes the connection of a client that takes too long to send or read a message.
type patience struct {
	timer *time.Timer
	// The connection of the caller.
	flow *inflow
	// Bytes of the unread answer of this call.
	held atomic.Int64
	// Called when the call has ended; nil for nothing. Set by the handler's goroutine.
	atEnd func()
}

type patienceKey struct{}

func (p *patience) begin() {
	if p != nil {
		p.timer.Reset(slowTimeout)
	}
}

func (p *patience) end() {
	if p != nil {
		p.timer.Stop()
	}
}

func patienceOf(ctx context.Context) *patience {
	p, _ := ctx.Value(patienceKey{}).(*patience)
	return p
}

// AtEnd makes the door call f when the answer to a call of a user or a task has been encoded, or
// the call has failed. It reports whether it will: not for other callers, nor a second time.
func AtEnd(ctx context.Context, f func()) bool {
	p := patienceOf(ctx)
	if p == nil || p.atEnd != nil {
		return false
	}
	p.atEnd = f
	return true
}

// count adds n bytes to the unread answers of the connection, of its user and of all users. It
// reports whether the user may have that many. Where all users together have too many, the
// connection with the most is closed.
func (p *patience) count(n int64) bool {
	p.flow.unread.Add(n)
	ofUser, ofAll := p.flow.user.answers.Add(n), p.flow.crowd.answers.Add(n)
	if n > 0 && ofAll > maxAnswers {
		p.flow.crowd.hangUpLargest(nil, func(f *inflow) int64 { return f.unread.Load() }, ofAll, maxAnswers)
	}
	return n <= 0 || ofUser <= maxAnswersOfUser
}

// answer counts an answer that is about to be sent. It returns an error if the user has too many
// unread answers.
func (p *patience) answer(caller identity.Name, resp any) error {
	m, ok := resp.(proto.Message)
	if p == nil || !ok {
		return nil
	}
	n := int64(proto.Size(m))
	p.held.Add(n)
	if !p.count(n) {
		return tooManyAnswers(caller)
	}
	p.begin()
	return nil
}

func tooManyAnswers(caller identity.Name) error {
	return TooMuch(caller.Words()+": its user has too many answers that nobody reads", time.Second)
}

// Written returns a channel that is closed when the client's connection has taken every
// message that a stream has sent so far. A handler waits for it before it builds the next
// message, so that a client that does not read holds one message, encoded and counted, and
// nothing else. For a master, a scheduler or a program of this machine it is closed.
func Written(ctx context.Context) <-chan struct{} {
	r := receivingOf(ctx)
	if r == nil {
		return written
	}
	return r.flow.out.waiting(r.out)
}

// sendWhenWritten sends a message of a stream once the one before it is written, and counts it
// until it is written itself. The client has slowTimeout for each.
func (p *patience) sendWhenWritten(stream grpc.ServerStream, ctx context.Context, m any) error {
	r := receivingOf(ctx)
	p.begin()
	if r == nil || p == nil {
		defer p.end()
		return stream.SendMsg(m)
	}
	out := r.flow.out
	select {
	case <-out.waiting(r.out):
	case <-ctx.Done():
		return status.FromContextError(ctx.Err()).Err()
	}
	bytes := int64(0)
	if m, ok := m.(proto.Message); ok {
		bytes = int64(proto.Size(m))
	}
	if !p.count(bytes) {
		p.count(-bytes)
		return tooManyAnswers(Caller(ctx))
	}
	// The one before has stopped the timer.
	p.begin()
	out.send(r.out, bytes, func(bytes int64, last bool) {
		p.count(-bytes)
		if !last {
			p.end()
		}
	})
	err := stream.SendMsg(m)
	if err != nil {
		out.unsend(r.out)
	}
	return err
}

// callCounter is a stats.Handler that counts the concurrent calls of each connection, and times
// the sending and reading of their messages.
type callCounter struct{}

func (callCounter) TagConn(ctx context.Context, _ *stats.ConnTagInfo) context.Context { return ctx }
func (callCounter) HandleConn(context.Context, stats.ConnStats)                       {}

func (callCounter) TagRPC(ctx context.Context, _ *stats.RPCTagInfo) context.Context {
	info, ok := authOf(ctx)
	if !ok || info.flow == nil {
		// A master, a scheduler, or a program of this machine: it is not counted.
		return ctx
	}
	return context.WithValue(ctx, patienceKey{}, &patience{timer: time.AfterFunc(slowTimeout, info.hangUp), flow: info.flow})
}

// authOf returns the identity of the other end of the connection, which may be a master that
// forwards the call of somebody else.
func authOf(ctx context.Context) (authInfo, bool) {
	p, _ := peer.FromContext(ctx)
	if p == nil {
		return authInfo{}, false
	}
	info, ok := p.AuthInfo.(authInfo)
	return info, ok
}

func (callCounter) HandleRPC(ctx context.Context, s stats.RPCStats) {
	switch s := s.(type) {
	case *stats.Begin:
		if r := receivingOf(ctx); r != nil {
			r.run()
		} else {
			countCall(ctx, 1)
		}
	case *stats.InPayload:
		patienceOf(ctx).end()
		// It is decoded, and its memory counts in place of its bytes.
		if r := receivingOf(ctx); r != nil {
			r.wire = int64(s.WireLength)
			r.take(r.wire)
			r.flow.allow(framesOfMessage)
		}
	case *stats.End:
		endCall(ctx)
	}
}

// endCall is called when gRPC reports the end of a call, while its answer still waits to be
// written. The call and its answer count until that is done, for which the client has
// slowTimeout.
func endCall(ctx context.Context) {
	p, r := patienceOf(ctx), receivingOf(ctx)
	if p != nil && p.atEnd != nil {
		p.atEnd()
	}
	release := func() {
		if p != nil {
			p.end()
			p.count(-p.held.Load())
		}
		if r != nil {
			r.release()
		} else {
			countCall(ctx, -1)
		}
	}
	if r == nil {
		release()
		return
	}
	r.end()
	r.flow.out.finish(r.out)
	p.begin()
	r.flow.out.ended(r.out, release)
}

// countCall adds n to the concurrent calls of a connection that has no inflow.
func countCall(ctx context.Context, n int32) {
	if info, ok := authOf(ctx); ok && info.calls != nil {
		info.calls.Add(n)
	}
}
