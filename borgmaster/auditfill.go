package borgmaster

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"

	"borg/proto/borgpb"
	"borg/proto/borgrpc"
	"borg/proto/door"
)

// auditFiller tells, of a part of the log of which this replica has no audit, what other
// replicas have.
type auditFiller struct {
	m      *Master
	walk   *walk
	filter auditFilter
	tell   func(*borgpb.AuditRecord) error
}

// fills reports whether a record is a hole that other replicas may fill: its time is the end
// of what is missing.
func (f *auditFiller) fills(r *borgpb.AuditRecord) bool {
	return r.Hole.GetTo() != 0 && r.WallNs >= f.filter.GetSinceWallNs()
}

// fill asks one other replica after the other. What none of them has is told as a hole.
func (f *auditFiller) fill(hole *borgpb.AuditRecord) error {
	// The others may wait for turns of the same user.
	f.walk.rest()
	var others []uint64
	for _, member := range f.m.cfg.Members.Members() {
		if member.Id != f.m.cfg.Replica {
			others = append(others, member.Id)
		}
	}
	return f.from(others, hole)
}

// from asks the first of some replicas, and the rest for what that one lacks.
func (f *auditFiller) from(others []uint64, hole *borgpb.AuditRecord) error {
	if len(others) == 0 {
		if !f.filter.match(hole) {
			return nil
		}
		return f.tell(hole)
	}
	// The rest of what is missing begins with next.
	next, to := hole.Hole.From, hole.Hole.To
	rest := func(from, to uint64, why string) error {
		left := proto.CloneOf(hole)
		left.Index, left.Hole.From, left.Hole.To = to, from, to
		left.Hole.Why += fmt.Sprintf("; replica %d: %s", others[0], why)
		return f.from(others[1:], left)
	}
	var told error
	err := f.m.auditLogOf(f.walk.ctx, others[0], f.filter.AuditRequest, func(r *borgpb.AuditRecord) error {
		switch h := r.Hole; {
		case h.GetTo() >= next && h.GetFrom() <= to:
			until := min(h.To, to)
			told = rest(max(next, h.From), until, h.Why)
			next = until + 1
		case h != nil || r.Index < next || r.Index > to:
			return nil
		default:
			if next = r.Index; f.filter.match(r) {
				told = f.tell(r)
			}
		}
		return told
	})
	switch {
	case told != nil:
		return told
	case f.walk.ctx.Err() != nil:
		return f.walk.ctx.Err()
	case err != nil && next <= to:
		return rest(next, to, door.Reason(err))
	}
	return nil
}

// auditLogOf calls f with what another replica has of the log, in the caller's name.
func (m *Master) auditLogOf(ctx context.Context, replica uint64, req *borgrpc.AuditRequest, f func(*borgpb.AuditRecord) error) error {
	conn, err := m.replicaConn(replica)
	if err != nil {
		return err
	}
	req = proto.CloneOf(req)
	req.Last, req.UntilWallNs = 0, 0
	ctx, cancel := context.WithCancelCause(door.Behalf(metadata.AppendToOutgoingContext(ctx, forwardedKey, "1"), door.Caller(ctx), door.Issued(ctx)))
	defer cancel(nil)
	silence := time.AfterFunc(auditTimeout, func() { cancel(lateAnswer(auditTimeout)) })
	defer silence.Stop()
	stream, err := borgrpc.NewAuditServiceClient(conn).Audit(ctx, req, grpc.WaitForReady(false))
	for err == nil {
		var resp *borgrpc.AuditResponse
		if resp, err = stream.Recv(); err != nil {
			break
		}
		silence.Stop()
		for _, s := range resp.GetSilent() {
			return errors.New(s.Why)
		}
		for _, r := range resp.GetRecords() {
			if err := f(r); err != nil {
				return err
			}
		}
		silence.Reset(auditTimeout)
	}
	switch cause := context.Cause(ctx); {
	case errors.Is(err, io.EOF):
		return nil
	case cause != nil:
		return cause
	}
	return err
}

// lateAnswer says that another replica did not answer in time, which may be for the caller's
// other reads: they wait for their turns there.
func lateAnswer(after time.Duration) error {
	return fmt.Errorf("no answer within %s; it may be down, or busy with other reads of yours", after)
}
