package borgmaster

import (
	"bufio"
	"slices"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"borg/proto/borgrpc"
	"borg/proto/door"
)

// checkpointChunkBytes is the size of the pieces in which a checkpoint is sent.
const checkpointChunkBytes = 256 << 10

// checkpointAPI serves CheckpointService.
type checkpointAPI struct {
	borgrpc.UnimplementedCheckpointServiceServer
	m *Master
}

// SaveCheckpoint sends this replica's cell. It holds up neither the log nor
// others: one at a time is made.
func (a *checkpointAPI) SaveCheckpoint(_ *borgrpc.SaveCheckpointRequest, stream borgrpc.CheckpointService_SaveCheckpointServer) error {
	m := a.m
	if err := m.forAdmins(door.Caller(stream.Context())); err != nil {
		return err
	}
	if m.cfg.Checkpoints == nil {
		return status.Error(codes.Unimplemented, "this replica has no checkpoints")
	}
	select {
	case m.saving <- struct{}{}:
		defer func() { <-m.saving }()
	default:
		return status.Error(codes.ResourceExhausted, "this replica is sending a checkpoint already; try again, or ask another one")
	}
	w := bufio.NewWriterSize(chunkSender{stream}, checkpointChunkBytes)
	index, err := m.cfg.Checkpoints.Checkpoint(stream.Context(), w)
	if err == nil {
		err = w.Flush()
	}
	if err != nil {
		return m.grpcError(err)
	}
	m.cfg.Logger.Info("checkpoint sent", "index", index)
	m.noteDone(stream.Context(), "SaveCheckpoint", "")
	return stream.Send(&borgrpc.SaveCheckpointResponse{Index: index})
}

// chunkSender is a stream as a writer.
type chunkSender struct {
	stream borgrpc.CheckpointService_SaveCheckpointServer
}

func (c chunkSender) Write(p []byte) (int, error) {
	// A write may be larger than the buffer in front of it.
	for chunk := range slices.Chunk(p, checkpointChunkBytes) {
		if err := c.stream.Send(&borgrpc.SaveCheckpointResponse{Chunk: chunk}); err != nil {
			return 0, err
		}
	}
	return len(p), nil
}
