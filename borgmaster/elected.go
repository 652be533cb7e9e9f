package borgmaster

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"borg/identity"
	"borg/proto/borgpb"
	"borg/proto/door"
)

const (
	// How long a call waits for somebody to be elected.
	electionWait = 5 * time.Second
	// Pause before the same replica is asked again.
	electionRetry = 50 * time.Millisecond
	// Set on calls that a replica passes on: the next one must not.
	forwardedKey = "borg-forwarded"
)

// quickReconnect keeps the pause after a failed dial short: a replica or a
// borglet that was restarted should be found again at once.
var quickReconnect = grpc.ConnectParams{
	Backoff:           backoff.Config{BaseDelay: 50 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: time.Second},
	MinConnectTimeout: time.Second,
}

// onElected runs a call where the truth is: local when this replica is elected
// and ready, remote (in the caller's name) on the elected one otherwise. While
// nobody is elected it waits a little. repeatable says that the call may be
// made again when it is not known whether it was done.
func onElected[R any](ctx context.Context, m *Master, repeatable bool, local func(context.Context) (R, error), remote func(context.Context, *grpc.ClientConn) (R, error)) (R, error) {
	var none R
	began := time.Now()
	why := "nobody is elected"
	for {
		changed := m.stateChanged.Wait()
		state := m.cfg.Log.State()
		var err error
		tried := true
		switch {
		case state.Ready:
			var r R
			if r, err = local(ctx); err == nil {
				return r, nil
			}
		case isForwarded(ctx):
			return none, status.Errorf(codes.Unavailable, "replica %d is not elected", state.Replica)
		case state.Elected != 0 && state.Elected != state.Replica:
			var r R
			if r, err = forward(ctx, m, state.Elected, remote); err == nil {
				return r, nil
			}
		default:
			tried = false
		}
		if tried {
			if !mayRetry(err, repeatable) && !m.isStopping() {
				return none, m.grpcError(err)
			}
			why = fmt.Sprintf("replica %d, the elected one as far as replica %d knows, says: %s", state.Elected, state.Replica, door.Reason(m.grpcError(err)))
		}
		pause := time.NewTimer(min(electionRetry, electionWait-time.Since(began)))
		select {
		case <-changed:
		case <-pause.C:
			if time.Since(began) >= electionWait {
				return none, status.Errorf(codes.Unavailable, "waited %v for an elected master: %s", electionWait, why)
			}
		case <-m.stopping:
			pause.Stop()
			return none, errStopping
		case <-ctx.Done():
			pause.Stop()
			return none, status.FromContextError(ctx.Err()).Err()
		}
		pause.Stop()
	}
}

func (m *Master) isStopping() bool {
	select {
	case <-m.stopping:
		return true
	default:
		return false
	}
}

// mayRetry tells errors that another try can mend.
func mayRetry(err error, repeatable bool) bool {
	switch {
	case errors.Is(err, ErrNotElected):
		return true
	case errors.Is(err, ErrUnknownOutcome):
		return repeatable
	}
	return status.Code(err) == codes.Unavailable && repeatable
}

// forward makes a call on another replica in the caller's name. It is given up
// when that replica is no longer the elected one: it may be one that hangs.
func forward[R any](ctx context.Context, m *Master, replica uint64, call func(context.Context, *grpc.ClientConn) (R, error)) (R, error) {
	var none R
	conn, err := m.replicaConn(replica)
	if err != nil {
		return none, status.Error(codes.Unavailable, err.Error())
	}
	out, cancel := context.WithCancel(forwarding(ctx))
	watched := make(chan struct{})
	go func() {
		defer close(watched)
		for {
			changed := m.stateChanged.Wait()
			if m.cfg.Log.State().Elected != replica {
				cancel()
			}
			select {
			case <-changed:
			case <-out.Done():
				return
			}
		}
	}()
	r, err := call(out, conn)
	givenUp := out.Err() != nil && ctx.Err() == nil
	cancel()
	<-watched
	if own := m.cfg.Identity.Name(); err != nil && status.Convert(err).Message() == status.Convert(door.Revoked(own)).Message() {
		// It is we who are not believed, and not the caller, who may ask another one.
		return none, status.Errorf(codes.Unavailable, "%s was taken out of the cell", own.Words())
	}
	if err != nil && givenUp {
		return none, status.Errorf(codes.Unavailable, "replica %d was no longer elected before it answered", replica)
	}
	return r, err
}

// elected is who is elected as far as this replica knows, for clients, so that they need
// not ask here the next time; nil: nobody, or one of whom there is no address yet.
func (m *Master) elected() *borgpb.Member {
	state := m.cfg.Log.State()
	for _, member := range m.cfg.Members.Members() {
		if member.Id == state.Elected {
			return member
		}
	}
	return nil
}

// forwarding returns a context in which another replica is asked in the caller's name.
func forwarding(ctx context.Context) context.Context {
	return door.Behalf(metadata.AppendToOutgoingContext(ctx, forwardedKey, "1"), door.Caller(ctx), door.Issued(ctx))
}

func isForwarded(ctx context.Context) bool {
	return len(metadata.ValueFromIncomingContext(ctx, forwardedKey)) > 0
}

// replicaConn returns the connection to another replica.
func (m *Master) replicaConn(id uint64) (*grpc.ClientConn, error) {
	for _, member := range m.cfg.Members.Members() {
		if member.Id == id {
			return m.conns.to(m.conns.named(identity.Master, strconv.FormatUint(id, 10)), member.Addr)
		}
	}
	return nil, fmt.Errorf("the address of replica %d is not known here", id)
}

// readIndex waits until this replica is as fresh as the moment of the call. By
// then it may know that the caller was revoked.
func (m *Master) readIndex(ctx context.Context) error {
	wait, cancel := context.WithTimeout(ctx, electionWait)
	defer cancel()
	err := m.cfg.Log.ReadIndex(wait)
	if err == nil {
		return m.believes(ctx)
	}
	if ctx.Err() != nil {
		return status.FromContextError(ctx.Err()).Err()
	}
	if wait.Err() != nil {
		return status.Errorf(codes.Unavailable, "waited %v and nobody is elected; a stale read is still possible", electionWait)
	}
	return m.grpcError(err)
}
