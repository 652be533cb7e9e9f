package fauxmaster

import (
	"context"
	"sync/atomic"
	"time"

	"google.golang.org/protobuf/proto"

	"borg/borgmaster"
	"borg/borgmaster/cell"
	"borg/borgmaster/memlog"
	"borg/proto/borgpb"
)

const (
	// restAfter is real time without an entry before which nothing is taken to rest.
	restAfter = 20 * time.Millisecond
	// restAnyhow is how long the scheduler and the link shard are waited for that do not
	// say that they are done: there may be none.
	restAnyhow = 10 * time.Second
)

// pastLog is the log of a cell whose wall clock is not that of its clients. What
// they say of the time is meant as now.
type pastLog struct {
	*memlog.Log
	world  *World
	wallNs int64
	// Real time of the last entry, nanoseconds.
	appliedNs atomic.Int64
	// Reports on their way into the log.
	reports gathered
	// settledAt is the index at which the scheduler last had nothing more to do.
	settledAt atomic.Uint64
	// idle reports whether the link shard has nothing more to do.
	idle func() bool
}

// Propose applies an op, by the cell's clock.
func (l *pastLog) Propose(ctx context.Context, op *borgpb.Op) (*borgpb.Result, error) {
	if r := op.GetReports(); r != nil {
		// The shard finds again what is refused or does not arrive.
		l.reports.add(r)
		return &borgpb.Result{}, nil
	}
	if op.GetRequestWallNs() == 0 {
		// Nobody asked for it.
		return l.Log.Propose(ctx, op)
	}
	now := l.wallNs + l.world.NowNs()
	op = proto.CloneOf(op)
	op.RequestWallNs += now - time.Now().UnixNano()
	if t := op.GetAddToken(); t != nil {
		t.ExpiresWallNs += now - time.Now().UnixNano()
	}
	if r := op.GetRevoke(); r.GetCertificatesWallNs() != 0 {
		r.CertificatesWallNs = now
	}
	return l.Log.Propose(ctx, op)
}

// tell has the cell hear what time it is.
func (l *pastLog) tell(ctx context.Context) {
	_, _ = l.Log.Propose(ctx, &borgpb.Op{Principal: asMaster, Op: &borgpb.Op_Time{Time: &borgpb.SetTime{}}})
}

// asMaster is how the cell's own doing is named in the log.
var asMaster = &borgpb.Principal{Role: borgpb.Role_ROLE_MASTER}

// resting tells whether all that was applied has had its consequences.
func (l *pastLog) resting() bool {
	since := time.Since(time.Unix(0, l.appliedNs.Load()))
	if l.reports.wait() || since < restAfter {
		return false
	}
	return since >= restAnyhow || l.idle() && l.settledAt.Load() >= l.State().Applied
}

// Applied notes that something goes on.
func (l *pastLog) Applied(borgmaster.CommittedEntry, []*borgpb.Result, []cell.Event) {
	l.appliedNs.Store(time.Now().UnixNano())
}

// StateChanged and Restored mean nothing here.
func (l *pastLog) StateChanged(borgmaster.LogState) {}
func (l *pastLog) Restored(uint64)                  {}
