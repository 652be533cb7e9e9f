package fauxmaster

import (
	"maps"
	"slices"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"

	"borg/proto/borgpb"
)

const (
	// Real time without another report after which those that were gathered are told,
	// and the longest that one waits.
	gatherFor  = 5 * time.Millisecond
	gatherMost = 50 * time.Millisecond
	// The longest that reports wait for those that are known to come.
	gatherAll = time.Second
	// Reports of copies in one entry, and their bytes. One that comes on top of them may
	// be as large again, which is still below what an op may have.
	maxGathered      = 2_000
	maxGatheredBytes = 400 << 10
)

// gathered are reports of one moment, which the link shard finds machine by machine. They
// become one entry. Otherwise a pass between two of them would see a part of what happened
// at that moment, and chance would say which.
type gathered struct {
	// tell puts reports into the log.
	tell func(*borgpb.Reports)
	// more reports whether others of the same moment are known to come.
	more func() bool

	mu sync.Mutex
	// Guarded by mu, all that follows. By machine; empty: none wait.
	machines map[string]*borgpb.MachineReport
	// Of what waits: copies, bytes, and since when.
	copies, bytes int
	since         time.Time
	// timer tells what waits; nil: none is set.
	timer *time.Timer
	// telling: some are on their way into the log.
	telling bool
	closed  bool
}

// add gathers reports.
func (g *gathered) add(r *borgpb.Reports) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed {
		return
	}
	if len(g.machines) == 0 {
		g.machines, g.since = make(map[string]*borgpb.MachineReport), time.Now()
	}
	for _, m := range r.GetMachines() {
		g.copies, g.bytes = g.copies+len(m.GetTasks()), g.bytes+proto.Size(m)
		if had := g.machines[m.GetMachine()]; had != nil {
			proto.Merge(had, m)
		} else {
			g.machines[m.GetMachine()] = proto.CloneOf(m)
		}
	}
	wait := min(gatherFor, max(gatherMost-time.Since(g.since), 0))
	if g.full() {
		wait = 0
	}
	if g.timer == nil {
		g.timer = time.AfterFunc(wait, g.send)
		return
	}
	g.timer.Reset(wait)
}

// full reports whether an entry can hold no more.
func (g *gathered) full() bool { return g.copies >= maxGathered || g.bytes >= maxGatheredBytes }

// send tells what was gathered. Those who add meanwhile are told later.
func (g *gathered) send() {
	more := g.more()
	g.mu.Lock()
	if g.closed || g.telling || len(g.machines) == 0 {
		g.mu.Unlock()
		return
	}
	if more && !g.full() && time.Since(g.since) < gatherAll {
		g.timer.Reset(gatherFor)
		g.mu.Unlock()
		return
	}
	all := &borgpb.Reports{}
	for _, name := range slices.Sorted(maps.Keys(g.machines)) {
		all.Machines = append(all.Machines, g.machines[name])
	}
	g.machines, g.copies, g.bytes, g.telling = nil, 0, 0, true
	g.mu.Unlock()
	g.tell(all)
	g.mu.Lock()
	defer g.mu.Unlock()
	g.telling = false
	if len(g.machines) > 0 && !g.closed {
		g.timer.Reset(0)
	}
}

// wait reports whether any are not in the log yet.
func (g *gathered) wait() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return len(g.machines) > 0 || g.telling
}

// close drops what waits.
func (g *gathered) close() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.closed = true
	if g.timer != nil {
		g.timer.Stop()
	}
}
