package linkshard

import (
	"context"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"borg/proto/borgrpc"
)

// lineLife is for how long polls go over one stream: a connection that is to be made
// anew, with new certificates, waits for it. A borglet that knows no streams is asked
// again after so long.
const lineLife = 10 * time.Minute

// whenConnected has a call wait for a connection that is being made, as long as it may
// take. Otherwise a connection that has failed before fails it at once.
var whenConnected = grpc.WaitForReady(true)

// line is the stream of polls to one machine, opened when first needed. It is used by
// the one poll of its machine that is in flight.
type line struct {
	// Ends with the shard, or when the machine is no longer polled from here.
	ctx    context.Context
	hangUp context.CancelFunc

	// Nil: none is open. It leads to addr.
	stream borgrpc.BorgletService_PollsClient
	addr   string
	cancel context.CancelFunc
	// What was said on it last: which request of the machine's, and whom to believe.
	asked  uint64
	belief *borgrpc.Belief
	// Until when it is used; or, without one, until when no other one is tried.
	until time.Time
	// Ends the poll that takes too long, which late tells.
	timer *time.Timer
	late  *atomic.Bool
}

func newLine(ctx context.Context) *line {
	ln := &line{}
	ln.ctx, ln.hangUp = context.WithCancel(ctx)
	return ln
}

// poll sends a request and awaits the answer for at most timeout. asked numbers the orders in it: those of
// the same number are the same.
func (ln *line) poll(borglet borgrpc.BorgletServiceClient, addr string, req *borgrpc.PollRequest, asked uint64, timeout time.Duration) (*borgrpc.PollResponse, error) {
	deadline := time.Now().Add(timeout)
	if ln.stream != nil && (ln.addr != addr || deadline.After(ln.until)) {
		ln.drop()
	}
	if ln.stream == nil && deadline.Before(ln.until) {
		return ln.once(borglet, req, deadline)
	}
	used := ln.stream != nil
	resp, err := ln.exchange(borglet, addr, req, asked, deadline)
	if err != nil && used && status.Code(err) != codes.DeadlineExceeded {
		// It may have ended since the last poll, with its connection.
		resp, err = ln.exchange(borglet, addr, req, asked, deadline)
	}
	if status.Code(err) == codes.Unimplemented {
		ln.until = time.Now().Add(lineLife)
		return ln.once(borglet, req, deadline)
	}
	return resp, err
}

func (ln *line) once(borglet borgrpc.BorgletServiceClient, req *borgrpc.PollRequest, deadline time.Time) (*borgrpc.PollResponse, error) {
	ctx, cancel := context.WithDeadline(ln.ctx, deadline)
	defer cancel()
	return borglet.Poll(ctx, req, whenConnected)
}

func (ln *line) exchange(borglet borgrpc.BorgletServiceClient, addr string, req *borgrpc.PollRequest, asked uint64, deadline time.Time) (*borgrpc.PollResponse, error) {
	if ln.stream == nil {
		ctx, cancel := context.WithCancel(ln.ctx)
		late := new(atomic.Bool)
		ln.addr, ln.cancel, ln.late, ln.asked = addr, cancel, late, 0
		ln.until = deadline.Add(lineLife)
		ln.timer = time.AfterFunc(time.Until(deadline), func() {
			late.Store(true)
			cancel()
		})
		stream, err := borglet.Polls(ctx, whenConnected)
		if err != nil {
			return nil, ln.ended(err)
		}
		ln.stream = stream
	} else {
		ln.timer.Reset(time.Until(deadline))
	}
	full := req
	if ln.asked == asked && proto.Equal(ln.belief, req.Belief) {
		req = &borgrpc.PollRequest{Fence: req.Fence, KnownHash: req.KnownHash, Replica: req.Replica, SameOrders: true, NoUsage: req.NoUsage}
	}
	// An error of Send says only that there is one to be received.
	_ = ln.stream.Send(req)
	resp, err := ln.stream.Recv()
	if err != nil {
		return nil, ln.ended(err)
	}
	ln.asked, ln.belief = asked, full.Belief
	if !ln.timer.Stop() {
		ln.drop()
	}
	return resp, nil
}

// ended drops the stream and says why.
func (ln *line) ended(err error) error {
	late := ln.late.Load()
	ln.drop()
	if late {
		// What it says of a connection that was not made is why.
		return status.Error(codes.DeadlineExceeded, status.Convert(err).Message())
	}
	if _, ok := status.FromError(err); !ok {
		// The borglet has ended the stream.
		return status.Error(codes.Unavailable, err.Error())
	}
	return err
}

func (ln *line) drop() {
	ln.timer.Stop()
	ln.cancel()
	ln.stream, ln.until = nil, time.Time{}
}
