package replica

import (
	"cmp"
	"errors"
	"fmt"
	"slices"

	"go.etcd.io/raft/v3"
	"go.etcd.io/raft/v3/raftpb"
	"google.golang.org/protobuf/proto"

	"borg/mutant"
	"borg/proto/borgpb"
)

// Bounds that raft keeps for us.
const (
	maxMessageBytes     = 1 << 20
	maxInflightMessages = 256
	maxInflightBytes    = 16 << 20
	maxUncommittedBytes = 64 << 20
	maxApplyingBytes    = 8 << 20
)

// transferContext is what raft says in the messages of an election that a master asked for.
const transferContext = "CampaignTransfer"

// promoteLag is how many entries a learner may be behind when it gets its vote.
const promoteLag = 256

// CoreConfig is what a core begins with.
type CoreConfig struct {
	// ID of this replica, from 1.
	ID uint64
	// Nonce differs each time the replica is started, so that an answer to a
	// read of an earlier life is not taken for one of this.
	Nonce uint64
	// Storage is read by Step. It must already hold what was reported as
	// appended, and may hold more.
	Storage raft.Storage
	// Header is what the cell's records stand for: applied index and members.
	Header *borgpb.CheckpointHeader
	// ElectionTicks without a word from the elected master start an election;
	// raft adds up to as many at random. HeartbeatTicks lie between heartbeats.
	ElectionTicks, HeartbeatTicks int
	// StallTicks is how long one append may take before an elected replica
	// hands over to another.
	StallTicks int
	// UncommittedBytes bounds what is appended and not committed; beyond it nothing is
	// taken. Zero: 64 MiB.
	UncommittedBytes uint64
	// Logger gets raft's own words.
	Logger raft.Logger
}

func (c *CoreConfig) uncommittedBytes() uint64 {
	if mutant.Planted(mutant.UncommittedUnbounded) {
		return 0
	}
	return cmp.Or(c.UncommittedBytes, maxUncommittedBytes)
}

// Core decides everything about the log: who is elected, what is committed.
// Each Step takes events and returns what is to be done about them. It is a
// function of its events and of the storage (and of raft's election jitter).
type Core struct {
	cfg      CoreConfig
	rn       *raft.RawNode
	ticks    uint64
	patience patience
	members  Membership
	state    CoreState
	// Term of the last entry handed out for application that we know to be
	// applied, and its index.
	applied, appliedTerm uint64
	// When each append that is under way was handed out, oldest first.
	appendTicks []uint64
	// The tick at which each other replica was last heard.
	heard map[uint64]uint64
	// Who was elected last that this replica knows of.
	lastElected uint64
	// Members whose stream has ended, and that have not been heard of as masters since:
	// when one was the master his process is dead, most likely.
	ended map[uint64]bool
	// The term of an election that the master before it asked for.
	plannedTerm uint64
	// Reads that are not answered, with the tick at which each was last asked.
	reads map[uint64]uint64
	// A change of members that was proposed in this term is not yet applied, or
	// raft has not heard yet that it is.
	changing bool
	// Index of the last entry that was handed out to be appended. Raft makes nothing of
	// a change before changesFrom is applied.
	last, changesFrom uint64
	removal           removal
	out               Effects
}

// CoreState is how a replica stands.
type CoreState struct {
	Term, Elected, Commit uint64
	Leading               bool
	// Settled: leading, and everything of earlier terms is applied here.
	Settled bool
}

// Event is something that happened to a replica.
type Event interface{ event() }

type (
	// Tick is the passing of one tick; of so many more nothing was heard, as it came late.
	Tick struct{ LateTicks uint64 }
	// Receive is a message from another replica.
	Receive struct{ Message *raftpb.Message }
	// Propose asks for an entry. The effects say whether it was taken.
	Propose struct{ Data []byte }
	// Change asks for a change of members. The effects say whether it was
	// taken.
	Change struct {
		ID     uint64
		Type   raftpb.ConfChangeType
		Member *borgpb.Member
	}
	// Read asks for an index that, once applied, shows everything that was
	// committed when it was asked.
	Read struct{ ID uint64 }
	// ForgetRead takes a Read back.
	ForgetRead struct{ ID uint64 }
	// Appended says that the oldest append under way is durable.
	Appended struct{ Append *Append }
	// Applied says that the oldest apply under way is done.
	Applied struct{ Apply *Apply }
	// Campaign starts an election now.
	Campaign struct{}
	// Transfer hands leadership to another voter; zero: to the best one. The
	// effects say whether it was taken.
	Transfer struct{ To uint64 }
	// Unreachable says that messages to a member were lost.
	Unreachable struct{ Member uint64 }
	// Ended says that a stream of messages from a member has ended.
	Ended struct{ Member uint64 }
	// SnapshotSent says how the sending of a checkpoint ended.
	SnapshotSent struct {
		Member uint64
		Failed bool
	}
)

func (Tick) event()         {}
func (Receive) event()      {}
func (Propose) event()      {}
func (Change) event()       {}
func (Read) event()         {}
func (ForgetRead) event()   {}
func (Appended) event()     {}
func (Applied) event()      {}
func (Campaign) event()     {}
func (Transfer) event()     {}
func (Unreachable) event()  {}
func (Ended) event()        {}
func (SnapshotSent) event() {}

// Effects are what is to be done, each list in its order. Appends are done one
// after the other, and so are applies; an append of a checkpoint comes after
// all applies before it.
type Effects struct {
	// Send may be sent at once. A message may be lost, but should rarely be.
	Send []*raftpb.Message
	// Append is to be made durable and answered with Appended.
	Append []*Append
	// Apply is to be applied and answered with Applied.
	Apply []*Apply
	// Proposed has, for each Propose, Change and Transfer in order, the term in
	// which it was taken, or why it was not.
	Proposed []Proposed
	// Reads are answered.
	Reads []ReadDone
	// NoHeir: a Transfer to the best one found nobody.
	NoHeir bool
	// State after the step; Changed when another than before.
	State   CoreState
	Changed bool
}

// Append is entries, hard state and checkpoint to be made durable.
type Append struct {
	Entries []*raftpb.Entry
	// Hard is nil when it did not change.
	Hard *raftpb.HardState
	// Snapshot, when not nil, replaces everything and comes before Entries. Its
	// data is a CheckpointHeader.
	Snapshot *raftpb.Snapshot
	// Sync: it must not be lost once it is answered.
	Sync bool

	responses []*raftpb.Message
}

// Apply is committed entries to be applied.
type Apply struct {
	Entries []Committed

	responses []*raftpb.Message
}

// Committed is a committed entry.
type Committed struct {
	Entry *raftpb.Entry
	// Members is set by an entry that changed them.
	Members *Membership
	// Change is the id of the Change that it was, and Refused why it was not
	// done.
	Change  uint64
	Refused error
}

func (e Committed) isChange() bool { return e.Entry.GetType() != raftpb.EntryNormal }

// Proposed says what became of a Propose, Change or Transfer.
type Proposed struct {
	Term uint64
	Err  error
}

// ReadDone answers a Read.
type ReadDone struct{ ID, Index uint64 }

// Why a Propose, Change or Transfer was not taken.
var (
	errNotLeading = errors.New("this replica is not elected")
	errDropped    = errors.New("the log takes nothing at this moment")
	errChanging   = errors.New("another change of members is under way; try again")
	// It would end when it has applied that, and of two voters the other one, which
	// does not know yet that this is committed, would wait for its vote for ever.
	errItself = errors.New("the elected replica does not take itself out; have another one elected first: borgcfg master transfer")
	errNoHeir = errors.New("no other replica that votes and was heard just now could be elected")
)

// NewCore makes a core of what is on the disk.
func NewCore(cfg CoreConfig) (*Core, error) {
	rn, err := raft.NewRawNode(&raft.Config{
		ID:                        cfg.ID,
		ElectionTick:              cfg.ElectionTicks,
		HeartbeatTick:             cfg.HeartbeatTicks,
		Storage:                   cfg.Storage,
		Applied:                   cfg.Header.GetIndex(),
		AsyncStorageWrites:        true,
		MaxSizePerMsg:             maxMessageBytes,
		MaxCommittedSizePerReady:  maxApplyingBytes,
		MaxUncommittedEntriesSize: cfg.uncommittedBytes(),
		MaxInflightMsgs:           maxInflightMessages,
		MaxInflightBytes:          maxInflightBytes,
		CheckQuorum:               true,
		PreVote:                   true,
		Logger:                    cfg.Logger,
		DisableProposalForwarding: true,
		StepDownOnRemoval:         true,
	})
	if err != nil {
		return nil, fmt.Errorf("start raft: %w", err)
	}
	c := &Core{cfg: cfg, rn: rn, members: membershipOf(cfg.Header), heard: make(map[uint64]uint64), ended: make(map[uint64]bool), reads: make(map[uint64]uint64)}
	c.applied, c.appliedTerm = cfg.Header.GetIndex(), cfg.Header.GetTerm()
	if c.last, err = cfg.Storage.LastIndex(); err != nil {
		return nil, fmt.Errorf("start raft: %w", err)
	}
	if err := c.noteRemoval(); err != nil {
		return nil, fmt.Errorf("start raft: %w", err)
	}
	c.state = c.readState()
	c.patience.saw(c.state.Term, true)
	return c, nil
}

// noteRemoval looks for one in what the log has beyond the commit.
func (c *Core) noteRemoval() error {
	hard, _, err := c.cfg.Storage.InitialState()
	if err != nil {
		return err
	}
	for at := max(hard.GetCommit(), c.applied) + 1; at <= c.last; {
		entries, err := c.cfg.Storage.Entries(at, c.last+1, maxMessageBytes)
		if err != nil {
			return err
		}
		c.removal.note(c.cfg.ID, entries)
		at += uint64(len(entries))
	}
	return nil
}

// Members is the membership that raft goes by.
func (c *Core) Members() Membership { return c.members }

// State is how the replica stands.
func (c *Core) State() CoreState { return c.state }

// Uncommitted: an entry was handed out to be appended and is not committed.
func (c *Core) Uncommitted() bool { return c.last > c.state.Commit }

// Step takes events in order and returns what is to be done.
func (c *Core) Step(events ...Event) Effects {
	for _, ev := range events {
		c.step(ev)
	}
	for c.rn.HasReady() {
		c.ready()
	}
	c.out.State = c.readState()
	c.patience.saw(c.out.State.Term, c.out.State.Term == c.plannedTerm || c.lastElected == 0 || c.ended[c.lastElected])
	if c.out.State.Elected != 0 {
		c.lastElected = c.out.State.Elected
	}
	if !c.out.State.Leading {
		c.changing = false
	}
	c.out.Changed = c.out.State != c.state
	c.state = c.out.State
	out := c.out
	c.out = Effects{}
	return out
}

func (c *Core) step(ev Event) {
	switch ev := ev.(type) {
	case Tick:
		c.tick(ev.LateTicks)
	case Receive:
		c.heard[ev.Message.GetFrom()] = c.ticks
		c.noteMaster(ev.Message)
		if ev.Message.GetType() == raftpb.MsgTimeoutNow && mutant.Planted(mutant.HeirWaits) {
			return
		}
		// What raft refuses here is a message that came too late.
		_ = c.rn.Step(ev.Message)
	case Propose:
		c.out.Proposed = append(c.out.Proposed, c.propose(ev.Data))
	case Change:
		c.out.Proposed = append(c.out.Proposed, c.change(ev))
	case Read:
		if mutant.Planted(mutant.ReadWithoutAsking) && c.state.Settled {
			c.out.Reads = append(c.out.Reads, ReadDone{ID: ev.ID, Index: c.state.Commit})
			return
		}
		c.reads[ev.ID] = c.ticks
		c.rn.ReadIndex(c.readContext(ev.ID))
	case ForgetRead:
		delete(c.reads, ev.ID)
	case Appended:
		c.appendTicks = c.appendTicks[1:]
		c.respond(ev.Append.responses)
		c.wrote(ev.Append)
	case Applied:
		if n := len(ev.Apply.Entries); n > 0 {
			last := ev.Apply.Entries[n-1].Entry
			c.applied, c.appliedTerm = last.GetIndex(), last.GetTerm()
		}
		c.respond(ev.Apply.responses)
		if slices.ContainsFunc(ev.Apply.Entries, Committed.isChange) {
			// Not sooner: until it has heard this, raft makes nothing of the next change,
			// and who asked for that would wait for ever.
			c.changing = false
		}
	case Campaign:
		_ = c.rn.Campaign()
	case Transfer:
		p := Proposed{Term: c.readState().Term}
		if p.Err = c.transfer(ev.To); p.Err != nil {
			p.Term = 0
		}
		c.out.Proposed = append(c.out.Proposed, p)
	case Unreachable:
		c.rn.ReportUnreachable(ev.Member)
	case Ended:
		c.ended[ev.Member] = true
	case SnapshotSent:
		status := raft.SnapshotFinish
		if ev.Failed {
			status = raft.SnapshotFailure
		}
		c.rn.ReportSnapshot(ev.Member, status)
	default:
		panic(fmt.Sprintf("unknown event %T", ev))
	}
}

// noteMaster notes what a message says of masters that come and go: that one lives, or that
// one has asked another to follow him.
func (c *Core) noteMaster(m *raftpb.Message) {
	switch m.GetType() {
	case raftpb.MsgApp, raftpb.MsgHeartbeat, raftpb.MsgSnap:
		delete(c.ended, m.GetFrom())
	case raftpb.MsgTimeoutNow:
		c.plannedTerm = c.state.Term + 1
	case raftpb.MsgVote:
		if string(m.GetContext()) == transferContext {
			c.plannedTerm = m.GetTerm()
		}
	}
}

// respond delivers what was waiting for the disk or for the cell.
func (c *Core) respond(responses []*raftpb.Message) {
	for _, m := range responses {
		if m.GetTo() == c.cfg.ID {
			_ = c.rn.Step(m)
		} else {
			c.out.Send = append(c.out.Send, m)
		}
	}
}

// wrote does what waited for a commit to be durable.
func (c *Core) wrote(a *Append) {
	if !a.Sync || a.Hard == nil {
		return
	}
	told, apply := c.removal.written(a.Hard.GetCommit())
	for _, m := range told {
		c.out.Send = append(c.out.Send, c.removal.before(m))
	}
	for _, m := range apply {
		c.committed(m)
	}
}

// committed takes what is to be applied, in its order.
func (c *Core) committed(m *raftpb.Message) {
	n := len(m.GetEntries())
	if len(c.removal.apply) > 0 || n > 0 && c.removal.holds(m.GetEntries()[n-1].GetIndex()) {
		c.removal.apply = append(c.removal.apply, m)
		return
	}
	c.apply(m)
}

// ready takes what raft has for us.
func (c *Core) ready() {
	rd := c.rn.Ready()
	for _, rs := range rd.ReadStates {
		if id, ok := c.readID(rs.RequestCtx); ok {
			if _, waiting := c.reads[id]; waiting {
				delete(c.reads, id)
				c.out.Reads = append(c.out.Reads, ReadDone{ID: id, Index: rs.Index})
			}
		}
	}
	for _, m := range rd.Messages {
		switch m.GetTo() {
		case raft.LocalAppendThread:
			c.append(m, rd.MustSync)
		case raft.LocalApplyThread:
			c.committed(m)
		default:
			c.out.Send = append(c.out.Send, c.removal.before(m))
		}
	}
}

// append hands out what is to be made durable. What answers it wait for, which a commit that
// has moved on is not, raft says by mustSync: entries, terms and votes. Appends are done in
// order, so an answer that comes with nothing else tells of what was synced before it.
func (c *Core) append(m *raftpb.Message, mustSync bool) {
	a := &Append{Entries: m.GetEntries(), responses: m.GetResponses(), Sync: mustSync || m.GetSnapshot() != nil}
	if hs := (&raftpb.HardState{Term: m.Term, Vote: m.Vote, Commit: m.Commit}); !raft.IsEmptyHardState(hs) {
		a.Hard = hs
	}
	if s := m.GetSnapshot(); !raft.IsEmptySnap(s) {
		a.Snapshot = s
		var h borgpb.CheckpointHeader
		// The one who received it has made this data himself.
		if err := proto.Unmarshal(s.GetData(), &h); err != nil {
			panic(fmt.Sprintf("checkpoint header of index %d: %v", s.GetMetadata().GetIndex(), err))
		}
		c.members = membershipOf(&h)
		c.applied, c.appliedTerm = h.GetIndex(), h.GetTerm()
		c.last = h.GetIndex()
	}
	if n := len(a.Entries); n > 0 {
		c.last = a.Entries[n-1].GetIndex()
	}
	c.removal.note(c.cfg.ID, a.Entries)
	if a.Hard != nil && c.removal.holds(a.Hard.GetCommit()) {
		a.Sync = true
	}
	if mutant.Planted(mutant.VoteNotKept) && a.Hard != nil {
		a.Hard.Vote = nil
	}
	if mutant.Planted(mutant.VoteNotSynced) {
		a.Sync = len(a.Entries) > 0
	}
	if mutant.Planted(mutant.AckBeforeSync) {
		mine := func(m *raftpb.Message) bool { return m.GetTo() == c.cfg.ID }
		c.out.Send = append(c.out.Send, slices.DeleteFunc(slices.Clone(a.responses), mine)...)
	}
	c.appendTicks = append(c.appendTicks, c.ticks)
	c.out.Append = append(c.out.Append, a)
}

func (c *Core) apply(m *raftpb.Message) {
	a := &Apply{responses: m.GetResponses(), Entries: make([]Committed, len(m.GetEntries()))}
	for i, e := range m.GetEntries() {
		a.Entries[i].Entry = e
		if a.Entries[i].isChange() {
			c.applyChange(&a.Entries[i])
		}
	}
	c.out.Apply = append(c.out.Apply, a)
}

// applyChange lets a committed change of members take effect. Raft allows it
// at any time from its commit on; here, before the entries are handed out, it
// needs no answer from the apply goroutine.
func (c *Core) applyChange(e *Committed) {
	cc := new(raftpb.ConfChange)
	if e.Entry.GetType() != raftpb.EntryConfChange {
		e.Refused = fmt.Errorf("a change of type %v is not known", e.Entry.GetType())
		return
	}
	if err := proto.Unmarshal(e.Entry.GetData(), cc); err != nil {
		e.Refused = fmt.Errorf("the change of members at index %d cannot be read: %w", e.Entry.GetIndex(), err)
		return
	}
	e.Change = cc.GetId()
	next, err := c.members.apply(cc)
	if err != nil {
		e.Refused = err
		return
	}
	c.rn.ApplyConfChange(cc)
	c.members = next
	e.Members = &next
}

func (c *Core) propose(data []byte) Proposed {
	s := c.readState()
	if !s.Leading {
		return Proposed{Err: errNotLeading}
	}
	if err := c.rn.Propose(data); err != nil {
		return Proposed{Err: errDropped}
	}
	return Proposed{Term: s.Term}
}
