package borgmaster

import (
	"context"
	"slices"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"borg/borgmaster/cell"
	"borg/borgmaster/journal"
	"borg/proto/borgpb"
	"borg/proto/borgrpc"
)

const (
	// Rows and drafts of usage in one message to another replica.
	maxUsageSent = 5_000
	// Rows that wait for another replica; of more, one replica keeps the only copy.
	maxUsageWaiting = 1_000_000
	// After so long a row is not offered to another replica any more: whoever reads
	// waits for late rows a while longer, and no longer.
	usageGivenUp = 10 * time.Minute
	// How often it is looked whether a window has ended, and what is new goes into drafts.
	usageTick = time.Second
	// How long another replica is waited for.
	keepTimeout = 5 * time.Second
	// The elected master has enough to do, and is asked when no other one answers; then it is
	// for so long.
	electedKeeps = time.Minute
)

// heardUsage hears what a poll told.
func (m *Master) heardUsage(machine string, told []*borgrpc.Usage, allocs []*borgrpc.AllocUsage) {
	if m.cfg.Journal != nil {
		m.cfg.Journal.Told(machine, told, allocs)
	}
}

// leftMachine hears that others poll a machine now.
func (m *Master) leftMachine(machine string) {
	if m.cfg.Journal != nil {
		m.cfg.Journal.Left(machine)
	}
}

// keepUsage writes what this replica's polls told, and has another replica write it
// too, until ctx ends.
func (m *Master) keepUsage(ctx context.Context) {
	k := &usageKeeper{m: m, second: journal.NewSecond(m.cfg.Replica, m.cfg.Journal, maxUsageSent)}
	rounds(ctx, usageTick, usageBudget, func() { k.round(ctx, false) })
	// What has not ended is a part of a window; another replica goes on with it.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), keepTimeout)
	defer cancel()
	k.round(ctx, true)
}

// usageKeeper has what polls told kept here and by a second replica.
type usageKeeper struct {
	m      *Master
	second *journal.Second
	// Until then the elected master is as good as any other.
	electedUntil time.Time
	// How many rows only this replica has.
	alone int
}

func (k *usageKeeper) round(ctx context.Context, all bool) {
	j := k.m.cfg.Journal
	rows, beforeNs := j.Ended(all)
	k.second.Finished(k.keep(rows), beforeNs)
	rescued := k.keep(j.Rescued(k.m.cfg.MonotonicNs(), all))
	if !all {
		k.second.Also(rescued)
	}
	others := k.others()
	if len(others) == 0 {
		k.second.Drop(0, 0)
		return
	}
	k.gaveUp(k.second.Drop(maxUsageWaiting, 0))
	if now, rest := time.Now(), k.notElected(others); now.Before(k.electedUntil) || len(rest) == 0 {
		k.speak(ctx, others)
	} else if !k.speak(ctx, rest) && len(rest) < len(others) {
		k.electedUntil = now.Add(electedKeeps)
		k.speak(ctx, others)
	}
	k.gaveUp(k.second.Drop(maxUsageWaiting, time.Now().Add(-usageGivenUp).UnixNano()))
}

// keep writes rows, and returns them with what the cell says of them.
func (k *usageKeeper) keep(rows []*borgpb.UsageRow) []*borgpb.UsageRow {
	if len(rows) > 0 {
		k.m.cfg.Log.View(func(c *cell.Cell) { rows = named(c, rows) })
		// What this disk does not take, two others shall.
		_ = k.m.cfg.Journal.Keep(rows)
	}
	return rows
}

// named says of copies the names of their jobs, and of allocs the uids of their sets, as
// far as the cell knows them. An alloc whose set it does not know is left out: nobody
// could tell whose it was.
func named(c *cell.Cell, rows []*borgpb.UsageRow) []*borgpb.UsageRow {
	return slices.DeleteFunc(rows, func(r *borgpb.UsageRow) bool {
		if !r.OfAlloc {
			if uid, err := cell.ParseUID(r.JobUid); err == nil {
				if j := c.JobByUID(uid); j != nil {
					r.Job = j.Key().String()
				}
			}
			return false
		}
		key, err := cell.ParseJobKey(r.Job)
		if err != nil {
			return true
		}
		s := c.AllocSet(key)
		if s == nil || s.Alloc(r.Index) == nil {
			return true
		}
		r.JobUid, r.Attempt = s.UID().String(), s.Alloc(r.Index).Attempt()
		return false
	})
}

func (k *usageKeeper) others() (ids []uint64) {
	for _, member := range k.m.cfg.Members.Members() {
		if member.Id != k.m.cfg.Replica {
			ids = append(ids, member.Id)
		}
	}
	return ids
}

func (k *usageKeeper) notElected(ids []uint64) []uint64 {
	elected := k.m.cfg.Log.State().Elected
	return slices.DeleteFunc(slices.Clone(ids), func(id uint64) bool { return id == elected })
}

func (k *usageKeeper) gaveUp(n int) {
	if n == 0 {
		return
	}
	k.alone += n
	k.m.cfg.Logger.Warn("no other replica took what copies used; this one has the only rows", "rows", n, "all", k.alone)
}

// speak says what there is to be said, to the first of the others that answers, if any does.
func (k *usageKeeper) speak(ctx context.Context, others []uint64) (heard bool) {
	for failed := 0; failed < len(others); {
		to, req := k.second.Message(time.Now().UnixNano(), others)
		if req == nil {
			return true
		}
		req.CellId = k.m.cellID
		resp, err := k.send(ctx, to, req)
		if err != nil {
			k.second.Failed(others)
			failed++
		} else if !k.second.Answered(resp.GetAgain()) {
			return true
		}
	}
	return false
}

func (k *usageKeeper) send(ctx context.Context, to uint64, req *borgrpc.KeepUsageRequest) (*borgrpc.KeepUsageResponse, error) {
	conn, err := k.m.replicaConn(to)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, keepTimeout)
	defer cancel()
	return borgrpc.NewHistoryServiceClient(conn).KeepUsage(ctx, req)
}

// KeepUsage keeps what another replica's polls told.
func (a *historyAPI) KeepUsage(_ context.Context, req *borgrpc.KeepUsageRequest) (*borgrpc.KeepUsageResponse, error) {
	m, n := a.m, len(req.GetRows())+journal.DraftsIn(req.GetDrafts())
	switch {
	case m.cfg.Journal == nil:
		return nil, status.Error(codes.Unimplemented, "this replica keeps no events")
	case req.GetCellId() != m.cellID:
		return nil, status.Errorf(codes.FailedPrecondition, "these rows are of cell %s, this is cell %s", req.GetCellId(), m.cellID)
	case n > maxUsageSent:
		return nil, status.Errorf(codes.InvalidArgument, "%d rows and drafts in one message, at most %d", n, maxUsageSent)
	case !journal.WholeDrafts(req.GetDrafts()):
		return nil, status.Error(codes.InvalidArgument, "of some of these drafts something is missing")
	}
	if err := m.cfg.Journal.Keep(req.GetRows()); err != nil {
		return nil, status.Errorf(codes.Unavailable, "keep rows of usage: %v", err)
	}
	return &borgrpc.KeepUsageResponse{Again: !m.cfg.Journal.Hold(m.cfg.MonotonicNs(), req)}, nil
}
