package main

import (
	"context"
	"math/rand/v2"
	"sync"
	"time"

	"borg/proto/borgrpc"
)

// watchPeriod is the pause of a watcher between its looks at a replica.
const watchPeriod = 200 * time.Millisecond

// followed are the streams of events that were followed, by replica.
type followed struct {
	mu      sync.Mutex // guards streams
	streams map[int][]*stream
}

func pause(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
	case <-t.C:
	}
}

// watch looks at replica i in turn in every way that there is, until ctx is
// done. That a replica does not answer is no violation.
func (m *masters) watch(ctx context.Context, i int, rng *rand.Rand) {
	for ctx.Err() == nil {
		mode := borgrpc.ReadMode(rng.IntN(2))
		switch rng.IntN(5) {
		case 0:
			_, _, _ = m.listJobs(ctx, i, &borgrpc.ListJobsRequest{Mode: mode, Dead: rng.IntN(2) == 0})
		case 1:
			_, _, _ = m.listTasks(ctx, i, &borgrpc.ListTasksRequest{Mode: mode, Attempts: rng.IntN(2) == 0, Limit: uint32(rng.IntN(40))})
		case 2:
			_, _, _ = m.listMachines(ctx, i, mode)
		case 3:
			if s, err := m.snapshot(ctx, i); err == nil && s.index > 0 {
				m.witness.see(func(b *book) { b.sawAll(s) })
			}
		}
		if c, err := m.getCell(ctx, i); err == nil {
			m.witness.note(record{Kind: recordIndex, Index: c.GetCommitIndex()})
		}
		pause(ctx, watchPeriod)
	}
}

// follow follows the events of replica i until ctx is done, and begins anew
// where it was when the stream breaks.
func (m *masters) follow(ctx context.Context, i int, into *followed) {
	from := uint64(0)
	for ctx.Err() == nil {
		s, _ := m.events(ctx, i, from, true)
		if s.last != nil {
			from = s.last.GetIndex()
		}
		into.mu.Lock()
		into.streams[i] = append(into.streams[i], s)
		into.mu.Unlock()
		pause(ctx, watchPeriod)
	}
}
