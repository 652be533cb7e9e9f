package replica

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"go.etcd.io/raft/v3/raftpb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"borg/identity"
	"borg/proto/borgrpc"
	"borg/proto/door"
)

const (
	// maxPeerMessages bounds what waits for one peer; raft bounds the bytes in
	// flight.
	maxPeerMessages = 4096
	// maxRequestBytes is where a request is closed; one message more may be in
	// it.
	maxRequestBytes = 2 << 20
	// snapshotChunkBytes is the size of the pieces of a checkpoint on the wire.
	snapshotChunkBytes = 256 << 10
	// snapshotTimeout bounds the sending of one checkpoint.
	snapshotTimeout = 10 * time.Minute

	minBackoff = 20 * time.Millisecond
	maxBackoff = 500 * time.Millisecond
)

// peer is the way to one other replica. Its goroutine, which its transport
// waits for, sends what is queued.
type peer struct {
	t     *grpcTransport
	id    uint64
	addr  string
	queue *mailbox[*raftpb.Message]
	// Ends its goroutine; nil: it does not run yet. Guarded by the transport's
	// mu.
	cancel context.CancelFunc
}

// dial makes a connection that is made again soon when it breaks: an election
// waits for no one.
func (p *peer) dial() (*grpc.ClientConn, error) {
	want := identity.Name{Cell: p.t.own.Name().Cell, Role: identity.Master, ID: fmt.Sprint(p.id)}
	return door.Dial(p.addr, p.t.own, want, grpc.WithConnectParams(grpc.ConnectParams{
		Backoff:           backoff.Config{BaseDelay: minBackoff, Multiplier: 1.6, Jitter: 0.2, MaxDelay: maxBackoff},
		MinConnectTimeout: time.Second,
	}))
}

// run keeps a stream to the peer until ctx ends.
func (p *peer) run(ctx context.Context) {
	conn, err := p.dial()
	if err != nil {
		p.t.log.Error("a member has a bad address", "to", p.id, "err", err)
		return
	}
	defer conn.Close()
	client := borgrpc.NewRaftServiceClient(conn)
	wait := minBackoff
	said := ""
	for ctx.Err() == nil {
		sent, err := p.stream(ctx, client)
		if ctx.Err() != nil {
			return
		}
		p.t.in.Unreachable(p.id)
		if text := fmt.Sprint(err); text != said {
			said = text
			p.t.log.Info("a member is not reached", "to", p.id, "err", err)
		}
		p.refused(err)
		if wait = min(2*wait, maxBackoff); sent {
			wait, said = minBackoff, ""
		}
		timer := time.NewTimer(wait)
		select {
		case <-ctx.Done():
		case <-timer.C:
		}
		timer.Stop()
	}
}

// refused tells the replica when the peer will never let it in. A replica's certificate
// is revoked by its removal alone, and the door may say so before admit does.
func (p *peer) refused(err error) {
	said := status.Convert(err)
	switch text := said.Message(); said.Code() {
	case codes.Unauthenticated:
		if text == status.Convert(door.Revoked(p.t.own.Name())).Message() {
			p.t.in.Refused(ErrRemoved)
		}
	case codes.FailedPrecondition:
		switch {
		case strings.Contains(text, refusedRemoved):
			p.t.in.Refused(ErrRemoved)
		case strings.Contains(text, refusedIncarnation):
			p.t.in.Refused(ErrIncarnation)
		}
	}
}

// stream sends what is queued until something breaks. It says whether anything
// was sent.
func (p *peer) stream(ctx context.Context, client borgrpc.RaftServiceClient) (sent bool, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := client.Send(ctx)
	if err != nil {
		return false, err
	}
	req := &borgrpc.SendRequest{
		CellId:      p.t.identity.GetCellId(),
		Epoch:       p.t.identity.GetEpoch(),
		From:        p.t.identity.GetReplica(),
		To:          p.id,
		Incarnation: p.t.identity.GetIncarnation(),
		BeganDigest: p.t.identity.GetBeganDigest(),
	}
	if err := stream.Send(req); err != nil {
		return false, lastWord(stream, err)
	}
	for {
		select {
		case <-ctx.Done():
			return sent, ctx.Err()
		case <-p.queue.wake:
		}
		for queue := p.queue.take(); len(queue) > 0; {
			req, n, err := p.request(queue)
			if err != nil {
				return sent, err
			}
			queue = queue[n:]
			if err := stream.Send(req); err != nil {
				return sent, lastWord(stream, err)
			}
			sent = true
		}
	}
}

// request encodes the first n messages of queue.
func (p *peer) request(queue []*raftpb.Message) (req *borgrpc.SendRequest, n int, err error) {
	req = new(borgrpc.SendRequest)
	for bytes := 0; n < len(queue) && bytes < maxRequestBytes; n++ {
		data, err := proto.Marshal(queue[n])
		if err != nil {
			return nil, 0, fmt.Errorf("encode a raft message: %w", err)
		}
		bytes += len(data)
		req.Messages = append(req.Messages, data)
	}
	return req, n, nil
}

// lastWord is why the other side ended the stream, if it said so.
func lastWord(stream interface{ RecvMsg(any) error }, err error) error {
	if err != io.EOF {
		return err
	}
	if err2 := stream.RecvMsg(new(borgrpc.SendResponse)); err2 != nil && err2 != io.EOF {
		return err2
	}
	return errors.New("the stream was ended")
}

// sendSnapshot sends a checkpoint file by a call of its own.
func (p *peer) sendSnapshot(ctx context.Context, m *raftpb.Message, write func(io.Writer) error) error {
	ctx, cancel := context.WithTimeout(ctx, snapshotTimeout)
	defer cancel()
	conn, err := p.dial()
	if err != nil {
		return err
	}
	defer conn.Close()
	stream, err := borgrpc.NewRaftServiceClient(conn).SendSnapshot(ctx)
	if err != nil {
		return err
	}
	data, err := proto.Marshal(m)
	if err != nil {
		return fmt.Errorf("encode a raft message: %w", err)
	}
	w := &chunkWriter{stream: stream, req: &borgrpc.SendSnapshotRequest{
		CellId:      p.t.identity.GetCellId(),
		Epoch:       p.t.identity.GetEpoch(),
		From:        p.t.identity.GetReplica(),
		To:          p.id,
		Incarnation: p.t.identity.GetIncarnation(),
		BeganDigest: p.t.identity.GetBeganDigest(),
		Message:     data,
	}}
	if err := write(w); err == nil {
		err = w.flush()
		if err != nil && err != io.EOF {
			return err
		}
	} else if !errors.Is(err, io.EOF) {
		return err
	}
	// The answer, or why the other side ended the call.
	_, err = stream.CloseAndRecv()
	return err
}

// chunkWriter cuts a stream of bytes into the chunks of a call.
type chunkWriter struct {
	stream grpc.ClientStreamingClient[borgrpc.SendSnapshotRequest, borgrpc.SendSnapshotResponse]
	req    *borgrpc.SendSnapshotRequest
}

func (w *chunkWriter) Write(b []byte) (int, error) {
	written := len(b)
	for len(b) > 0 {
		n := min(len(b), snapshotChunkBytes-len(w.req.Chunk))
		w.req.Chunk = append(w.req.Chunk, b[:n]...)
		b = b[n:]
		if len(w.req.Chunk) == snapshotChunkBytes {
			if err := w.flush(); err != nil {
				return 0, err
			}
		}
	}
	return written, nil
}

func (w *chunkWriter) flush() error {
	err := w.stream.Send(w.req)
	w.req = &borgrpc.SendSnapshotRequest{Chunk: make([]byte, 0, snapshotChunkBytes)}
	return err
}
