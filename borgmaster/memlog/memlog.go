// Package memlog is the replicated log in memory: entries are applied at once,
// by every replica of a group, in the goroutine that proposes. There is no
// disk, no network and no election but by command, and the clocks are the
// caller's, so a cell can be stepped through time.
//
// The master over it is the production master. It must not be used where
// anything has to survive the process.
package memlog

import (
	"context"
	"fmt"
	"slices"
	"sync"

	"google.golang.org/protobuf/proto"

	"borg/borgmaster"
	"borg/borgmaster/cell"
	"borg/proto/borgpb"
)

// maxHeld bounds the entries kept for Entries.
const maxHeld = 10_000

// Config is what a Group needs.
type Config struct {
	// Cell id and epoch of an empty cell; not read when Load is set.
	CellID string
	Epoch  uint64
	// Load, when set, makes each replica's copy of the cell.
	Load func() (*cell.Cell, error)
	// Replicas, by id from 1. 0: 1.
	Replicas int
	// Addresses of the replicas, in order; may be left out.
	Addrs []string
	// Clock stamps entries: cell time may go on only while somebody is elected.
	Clock func() (cellNs, wallNs int64)
}

// Group is the replicas of one cell. Lock order: order, then a Log's mu.
type Group struct {
	cfg  Config
	logs []*Log

	// Held while an entry is applied by all replicas and their listeners hear of
	// it, so that entries are heard in order.
	order sync.Mutex
	// Guarded by order.
	term, elected uint64
	members       []*borgpb.Member
}

// Log is one replica of a Group: a borgmaster.Log and borgmaster.Members.
type Log struct {
	group     *Group
	id        uint64
	listeners []borgmaster.Listener

	mu sync.RWMutex
	// Guarded by mu.
	cell  *cell.Cell
	state borgmaster.LogState
	held  []borgmaster.CommittedEntry
	// Closed and replaced when state changes.
	changed chan struct{}
}

var (
	_ borgmaster.Log     = (*Log)(nil)
	_ borgmaster.Members = (*Log)(nil)
)

// NewGroup returns a group in which nobody is elected.
func NewGroup(cfg Config) (*Group, error) {
	g := &Group{cfg: cfg}
	for i := range max(cfg.Replicas, 1) {
		c := cell.New(cfg.CellID, cfg.Epoch)
		if cfg.Load != nil {
			var err error
			if c, err = cfg.Load(); err != nil {
				return nil, fmt.Errorf("load the cell of replica %d: %w", i+1, err)
			}
		}
		member := &borgpb.Member{Id: uint64(i + 1)}
		if i < len(cfg.Addrs) {
			member.Addr = cfg.Addrs[i]
		}
		g.members = append(g.members, member)
		g.term = max(g.term, c.Term())
		g.logs = append(g.logs, &Log{
			group: g, id: member.Id, cell: c, changed: make(chan struct{}),
			state: borgmaster.LogState{Replica: member.Id, Term: c.Term(), Applied: c.Index(), Commit: c.Index()},
		})
	}
	return g, nil
}

// Replica returns the log of one replica, by id from 1.
func (g *Group) Replica(id uint64) *Log { return g.logs[id-1] }

// Elect makes a replica the elected one, in a new term; 0 is nobody. Like
// every elected master it first applies an empty entry of its own term.
func (g *Group) Elect(id uint64) {
	g.order.Lock()
	defer g.order.Unlock()
	g.term++
	g.elected = id
	for _, l := range g.logs {
		l.setState(func(s *borgmaster.LogState) { s.Elected, s.Term, s.Ready = id, g.term, false })
	}
	if id == 0 {
		return
	}
	g.append(nil)
	g.logs[id-1].setState(func(s *borgmaster.LogState) { s.Ready = true })
}

// append applies one entry everywhere. The caller holds order.
func (g *Group) append(data []byte) []*borgpb.Result {
	var results []*borgpb.Result
	for _, l := range g.logs {
		r := l.apply(g.term, data)
		if l.id == g.elected {
			results = r
		}
	}
	return results
}

func (l *Log) apply(term uint64, data []byte) []*borgpb.Result {
	l.mu.Lock()
	entry := borgmaster.CommittedEntry{Index: l.cell.Index() + 1, Term: term, Data: data}
	results, events := l.cell.Apply(entry.Index, term, data)
	// Nothing is written down here; without this the list of changed records
	// would grow for ever.
	l.cell.Flush(nil)
	l.held = append(l.held, entry)
	if len(l.held) > 2*maxHeld {
		l.held = slices.Clone(l.held[len(l.held)-maxHeld:])
	}
	l.state.Applied, l.state.Commit = entry.Index, entry.Index
	l.mu.Unlock()
	for _, listener := range l.listeners {
		listener.Applied(entry, results, events)
	}
	return results
}

func (l *Log) setState(f func(*borgmaster.LogState)) {
	l.mu.Lock()
	f(&l.state)
	state := l.state
	close(l.changed)
	l.changed = make(chan struct{})
	l.mu.Unlock()
	for _, listener := range l.listeners {
		listener.StateChanged(state)
	}
}

// Propose applies an op in an entry of its own.
func (l *Log) Propose(ctx context.Context, op *borgpb.Op) (*borgpb.Result, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	data, err := proto.Marshal(op)
	if err != nil {
		return nil, fmt.Errorf("marshal op: %w", err)
	}
	g := l.group
	g.order.Lock()
	defer g.order.Unlock()
	if g.elected != l.id {
		return nil, borgmaster.ErrNotElected
	}
	entry := &borgpb.Entry{Ops: [][]byte{data}}
	entry.CellTimeNs, entry.WallTimeNs = g.cfg.Clock()
	if data, err = proto.Marshal(entry); err != nil {
		return nil, fmt.Errorf("marshal entry: %w", err)
	}
	return g.append(data)[0], nil
}

// ReadIndex waits until somebody is elected: every replica has then applied
// all there is.
func (l *Log) ReadIndex(ctx context.Context) error {
	for {
		l.mu.RLock()
		elected, changed := l.state.Elected, l.changed
		l.mu.RUnlock()
		if elected != 0 {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// View calls f with the cell between two Applies.
func (l *Log) View(f func(c *cell.Cell)) {
	l.mu.RLock()
	defer l.mu.RUnlock()
	f(l.cell)
}

// State says how this replica stands.
func (l *Log) State() borgmaster.LogState {
	l.mu.RLock()
	defer l.mu.RUnlock()
	return l.state
}

// Subscribe registers a listener; not while ops are proposed.
func (l *Log) Subscribe(listener borgmaster.Listener) { l.listeners = append(l.listeners, listener) }

// Entries returns the entries after an index that are still held.
func (l *Log) Entries(after uint64, most int) ([]borgmaster.CommittedEntry, bool) {
	l.mu.RLock()
	defer l.mu.RUnlock()
	if after >= l.cell.Index() {
		return nil, true
	}
	if len(l.held) == 0 || after+1 < l.held[0].Index {
		return nil, false
	}
	held := l.held[after+1-l.held[0].Index:]
	return slices.Clone(held[:min(len(held), most)]), true
}

// Members are the replicas of the group.
func (l *Log) Members() []*borgpb.Member { return l.group.members }

// Learners: there are none.
func (l *Log) Learners() []uint64 { return nil }

// Removed: the group stays as it is.
func (l *Log) Removed(uint64) bool { return false }

// AllRemoved implements borgmaster.Members.
func (l *Log) AllRemoved() []uint64 { return nil }
