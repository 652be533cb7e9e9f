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
	// Rows of usage in one message to another replica.
	maxUsageSent = 5_000
	// Rows that wait for another replica; of more, one replica keeps the only copy.
	maxUsageWaiting = 1_000_000
	// After so long a row is not offered to another replica any more: whoever reads
	// waits for late rows a while longer, and no longer.
	usageGivenUp = 10 * time.Minute
	// How often it is looked whether a window has ended.
	usageTick = time.Second
	// How long another replica is waited for.
	keepTimeout = 5 * time.Second
)

// heardUsage hears what a poll told.
func (m *Master) heardUsage(machine string, told []*borgrpc.Usage, allocs []*borgrpc.AllocUsage) {
	if m.cfg.Journal != nil {
		m.cfg.Journal.Told(machine, told, allocs)
	}
}

// keepUsage writes what this replica's polls told, and has another replica write it
// too, until ctx ends.
func (m *Master) keepUsage(ctx context.Context) {
	k := &usageKeeper{m: m}
	tick := time.NewTicker(usageTick)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			// What has not ended is a part of a window; another replica goes on with it.
			ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), keepTimeout)
			defer cancel()
			k.round(ctx, true)
			return
		case <-tick.C:
			k.round(ctx, false)
		}
	}
}

// usageKeeper is rows on their way to a second replica.
type usageKeeper struct {
	m       *Master
	waiting []*borgpb.UsageRow
	// How many only this replica has.
	alone int
}

func (k *usageKeeper) round(ctx context.Context, all bool) {
	m := k.m
	rows := m.cfg.Journal.Ended(all)
	m.cfg.Log.View(func(c *cell.Cell) { rows = named(c, rows) })
	// What this disk does not take, two others shall.
	_ = m.cfg.Journal.Keep(rows)
	k.waiting = append(k.waiting, rows...)
	if more := len(k.waiting) - maxUsageWaiting; more > 0 {
		k.drop(more)
	}
	for len(k.waiting) > 0 {
		n := min(len(k.waiting), maxUsageSent)
		if !k.send(ctx, k.waiting[:n]) {
			break
		}
		k.waiting = k.waiting[n:]
	}
	old := 0
	for old < len(k.waiting) && k.waiting[old].ToNs < time.Now().Add(-usageGivenUp).UnixNano() {
		old++
	}
	k.drop(old)
	if len(k.waiting) == 0 {
		k.waiting = nil
	}
}

// named says of copies the names of their jobs, and of allocs the uids of their sets, as
// far as the cell knows them. An alloc whose set it does not know is left out: nobody
// could tell whose it was.
func named(c *cell.Cell, rows []*borgpb.UsageRow) []*borgpb.UsageRow {
	ofAllocs := false
	rows = slices.DeleteFunc(rows, func(r *borgpb.UsageRow) bool {
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
		r.JobUid, r.Attempt, ofAllocs = s.UID().String(), s.Alloc(r.Index).Attempt(), true
		return false
	})
	if ofAllocs {
		slices.SortFunc(rows, journal.CompareUsage)
	}
	return rows
}

func (k *usageKeeper) drop(n int) {
	if n == 0 || len(k.m.cfg.Members.Members()) < 2 {
		k.waiting = k.waiting[n:]
		return
	}
	k.waiting = k.waiting[n:]
	k.alone += n
	k.m.cfg.Logger.Warn("no other replica took what copies used; this one has the only rows", "rows", n, "all", k.alone)
}

// send offers rows to the replicas after this one, until one has kept them.
func (k *usageKeeper) send(ctx context.Context, rows []*borgpb.UsageRow) bool {
	m := k.m
	var after, before []uint64
	for _, member := range m.cfg.Members.Members() {
		switch {
		case member.Id > m.cfg.Replica:
			after = append(after, member.Id)
		case member.Id < m.cfg.Replica:
			before = append(before, member.Id)
		}
	}
	if len(after)+len(before) == 0 {
		return true
	}
	for _, id := range append(after, before...) {
		conn, err := m.replicaConn(id)
		if err != nil {
			continue
		}
		ctx, cancel := context.WithTimeout(ctx, keepTimeout)
		_, err = borgrpc.NewHistoryServiceClient(conn).KeepUsage(ctx, &borgrpc.KeepUsageRequest{CellId: m.cellID, Rows: rows})
		cancel()
		if err == nil {
			return true
		}
	}
	return false
}

// KeepUsage keeps what another replica's polls told.
func (a *historyAPI) KeepUsage(_ context.Context, req *borgrpc.KeepUsageRequest) (*borgrpc.KeepUsageResponse, error) {
	m := a.m
	switch {
	case m.cfg.Journal == nil:
		return nil, status.Error(codes.Unimplemented, "this replica keeps no events")
	case req.GetCellId() != m.cellID:
		return nil, status.Errorf(codes.FailedPrecondition, "these rows are of cell %s, this is cell %s", req.GetCellId(), m.cellID)
	case len(req.GetRows()) > maxUsageSent:
		return nil, status.Errorf(codes.InvalidArgument, "%d rows in one message, at most %d", len(req.GetRows()), maxUsageSent)
	}
	if err := m.cfg.Journal.Keep(req.GetRows()); err != nil {
		return nil, status.Errorf(codes.Unavailable, "keep rows of usage: %v", err)
	}
	return &borgrpc.KeepUsageResponse{}, nil
}
