package client

import (
	"context"
	"errors"
	"io"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"borg/proto/borgrpc"
)

const (
	// A second mutation of the same replica within so long goes over a stream, which is
	// kept for so long for the next one: that costs both ends about two thirds.
	keepMutations = 10 * time.Second
	// A stream is used for so long, so that its connection follows the certificates.
	mutationsLife = time.Minute
)

// mutations are the streams of mutations that a replica has with this client. Each is of
// one mutation at a time; those that are made at once have one each.
type mutations struct {
	mu sync.Mutex // guards what follows
	// Those that nobody uses, the last used one last.
	kept []*mutationStream
	// When the replica last answered a mutation.
	answered time.Time
	// It is older than streams of mutations.
	unknown bool
	closed  bool
}

type mutationStream struct {
	stream borgrpc.MasterService_MutationsClient
	cancel context.CancelFunc
	opened time.Time
	// It was cancelled and takes no more.
	spent bool
	// Ends it when nobody has used it for long. Stopped while somebody does.
	idle *time.Timer
}

// mutate asks one replica for a mutation. That a stream has ended while nobody used it
// says nothing of the replica as it is now, so it is asked by a call.
func (r *replica) mutate(ctx context.Context, req *borgrpc.MutateRequest) (*borgrpc.MutateResponse, error) {
	s := r.mutations.take(r.master)
	if s == nil {
		return r.mutateByCall(ctx, req)
	}
	resp, err := s.ask(ctx, req)
	switch {
	case err == nil:
		r.mutations.keep(s)
		return resp, nil
	case ctx.Err() != nil:
		return nil, status.FromContextError(ctx.Err()).Err()
	case status.Code(err) == codes.Unimplemented:
		r.mutations.noneThere()
	case !errors.Is(err, errEnded):
		return nil, err
	}
	return r.mutateByCall(ctx, req)
}

func (r *replica) mutateByCall(ctx context.Context, req *borgrpc.MutateRequest) (*borgrpc.MutateResponse, error) {
	resp, err := r.master.Mutate(ctx, req)
	if err == nil {
		r.mutations.done()
	}
	return resp, err
}

// take returns a stream that nobody uses; nil: it is not worth one.
func (m *mutations) take(master borgrpc.MasterServiceClient) *mutationStream {
	m.mu.Lock()
	defer m.mu.Unlock()
	for n := len(m.kept); n > 0; n = len(m.kept) {
		s := m.kept[n-1]
		m.kept = m.kept[:n-1]
		if s.idle.Stop() {
			return s
		}
	}
	now := time.Now()
	if m.closed || m.unknown || m.answered.IsZero() || now.Sub(m.answered) > keepMutations {
		return nil
	}
	ctx, cancel := context.WithCancel(context.Background())
	stream, err := master.Mutations(ctx)
	if err != nil {
		cancel()
		return nil
	}
	return &mutationStream{stream: stream, cancel: cancel, opened: now}
}

// keep puts back a stream on which the last mutation was answered.
func (m *mutations) keep(s *mutationStream) {
	now := time.Now()
	m.mu.Lock()
	defer m.mu.Unlock()
	m.answered = now
	switch {
	case m.closed || s.spent || now.Sub(s.opened) > mutationsLife:
		s.cancel()
		return
	case s.idle == nil:
		s.idle = time.AfterFunc(keepMutations, s.cancel)
	default:
		s.idle.Reset(keepMutations)
	}
	m.kept = append(m.kept, s)
}

func (m *mutations) done() {
	m.mu.Lock()
	m.answered = time.Now()
	m.mu.Unlock()
}

func (m *mutations) noneThere() {
	m.mu.Lock()
	m.unknown = true
	m.mu.Unlock()
}

// close ends all that are kept, and those in use once they are put back.
func (m *mutations) close() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.closed = true
	for _, s := range m.kept {
		s.idle.Stop()
		s.cancel()
	}
	m.kept = nil
}

// errEnded: a stream had ended before anything was asked on it.
var errEnded = errors.New("the stream of mutations has ended")

// ask sends one mutation and waits for its answer. After an error the stream has ended.
func (s *mutationStream) ask(ctx context.Context, req *borgrpc.MutateRequest) (*borgrpc.MutateResponse, error) {
	stop := context.AfterFunc(ctx, s.cancel)
	sent := s.stream.Send(req)
	resp, err := s.stream.Recv()
	// Whoever gives up just when the answer has come has it all the same.
	s.spent = !stop()
	if err == nil {
		return resp, nil
	}
	s.cancel()
	switch {
	case errors.Is(sent, io.EOF) && status.Code(err) != codes.Unimplemented:
		return nil, errEnded
	case errors.Is(err, io.EOF):
		return nil, status.Error(codes.Unavailable, "the replica has ended the stream of mutations")
	}
	return nil, err
}
