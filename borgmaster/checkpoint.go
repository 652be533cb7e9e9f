package borgmaster

import (
	"bufio"
	"context"
	"io"
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

// SaveCheckpoint sends this replica's cell as it is, or as it was when it kept a
// checkpoint. It holds up neither the log nor others: one at a time is made.
func (a *checkpointAPI) SaveCheckpoint(req *borgrpc.SaveCheckpointRequest, stream borgrpc.CheckpointService_SaveCheckpointServer) error {
	m := a.m
	if err := m.forAdmins(door.Caller(stream.Context())); err != nil {
		return err
	}
	past := req.GetIndex() != 0 || req.GetWallTimeNs() != 0
	if past && m.cfg.Past == nil || m.cfg.Checkpoints == nil {
		return status.Error(codes.Unimplemented, "this replica has no checkpoints")
	}
	select {
	case m.saving <- struct{}{}:
		defer func() { <-m.saving }()
	default:
		return door.FullHere("this replica is sending a checkpoint already; try again, or ask another one")
	}
	w := bufio.NewWriterSize(chunkSender{stream}, checkpointChunkBytes)
	index, err := m.sendCheckpoint(req, past, stream, w)
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

func (m *Master) sendCheckpoint(req *borgrpc.SaveCheckpointRequest, past bool, stream borgrpc.CheckpointService_SaveCheckpointServer, w io.Writer) (index uint64, err error) {
	if !past {
		if about := m.aboutBytes(); about > 0 {
			if err := stream.Send(&borgrpc.SaveCheckpointResponse{AboutBytes: about}); err != nil {
				return 0, err
			}
		}
		return m.cfg.Checkpoints.Checkpoint(stream.Context(), w)
	}
	if end := m.logEnd(); req.GetIndex() > end {
		return 0, status.Errorf(codes.NotFound, "the log of replica %d ends at index %d", m.cfg.Replica, end)
	}
	f, index, bytes, err := m.cfg.Past.OpenKept(req.GetIndex(), req.GetWallTimeNs())
	if err != nil {
		return 0, err
	}
	defer f.Close()
	if err := stream.Send(&borgrpc.SaveCheckpointResponse{AboutBytes: uint64(bytes)}); err != nil {
		return 0, err
	}
	_, err = io.Copy(w, f)
	return index, err
}

// logEnd returns the last index of which this replica knows, now or in an epoch before.
func (m *Master) logEnd() uint64 {
	end := m.cfg.Log.State().Commit
	if kept, err := m.cfg.Past.Kept(); err == nil {
		for _, l := range kept.GetLogs() {
			end = max(end, l.LastIndex)
		}
		for _, k := range kept.GetCheckpoints() {
			end = max(end, k.Index)
		}
	}
	return end
}

// aboutBytes guesses the size of a checkpoint of now: that of the last one.
func (m *Master) aboutBytes() uint64 {
	if m.cfg.Past == nil {
		return 0
	}
	kept, err := m.cfg.Past.Kept()
	if n := len(kept.GetCheckpoints()); err == nil && n > 0 {
		return kept.GetCheckpoints()[n-1].GetBytes()
	}
	return 0
}

// ListCheckpoints tells what of the past this replica has kept.
func (a *checkpointAPI) ListCheckpoints(ctx context.Context, _ *borgrpc.ListCheckpointsRequest) (*borgrpc.ListCheckpointsResponse, error) {
	m := a.m
	if err := m.forAdmins(door.Caller(ctx)); err != nil {
		return nil, err
	}
	if m.cfg.Past == nil {
		return &borgrpc.ListCheckpointsResponse{Replica: m.cfg.Replica, Off: true}, nil
	}
	kept, err := m.cfg.Past.Kept()
	return kept, m.grpcError(err)
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
