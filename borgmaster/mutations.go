package borgmaster

import (
	"errors"
	"io"
	"sync"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"borg/proto/borgrpc"
)

// Mutations answers the mutations of one stream, one after the other. When this replica
// stops, the one under way is answered and the stream ends.
func (a *masterAPI) Mutations(stream borgrpc.MasterService_MutationsServer) error {
	// Held while a request is answered; for ever once the stream is to end.
	var busy sync.Mutex
	ended := make(chan error, 1)
	// Nobody but the end of the stream can wake who waits for its next request. That is
	// why this goroutine is not the one that does.
	go func() { ended <- a.answerMutations(stream, &busy) }()
	select {
	case err := <-ended:
		return err
	case <-a.m.stopping:
	}
	busy.Lock()
	select {
	case err := <-ended:
		return err
	default:
		return errStopping
	}
}

var errStopping = status.Error(codes.Unavailable, "this replica is stopping")

func (a *masterAPI) answerMutations(stream borgrpc.MasterService_MutationsServer, busy *sync.Mutex) error {
	answer := func(req *borgrpc.MutateRequest) error {
		if !busy.TryLock() {
			return errStopping
		}
		defer busy.Unlock()
		resp, err := a.Mutate(stream.Context(), req)
		if err != nil {
			return err
		}
		return stream.Send(resp)
	}
	for {
		req, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err == nil {
			err = answer(req)
		}
		if err != nil {
			return err
		}
	}
}
