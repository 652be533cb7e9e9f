package replica

import (
	"encoding/binary"
	"fmt"
	"maps"
	"slices"
	"strings"

	"go.etcd.io/raft/v3"
	"go.etcd.io/raft/v3/raftpb"
	"go.etcd.io/raft/v3/tracker"
	"google.golang.org/protobuf/proto"

	"borg/borgmaster"
	"borg/mutant"
)

// readState asks raft how the replica stands.
func (c *Core) readState() CoreState {
	st := c.rn.BasicStatus()
	s := CoreState{Term: st.GetTerm(), Elected: st.Lead, Commit: st.GetCommit(), Leading: st.RaftState == raft.StateLeader}
	s.Settled = s.Leading && c.appliedTerm == s.Term
	return s
}

// tick lets a tick pass, and looks after what only time can show.
func (c *Core) tick(lateTicks uint64) {
	c.ticks++
	if c.patience.tick(lateTicks, c.state.Leading) {
		c.rn.Tick()
	}
	c.askAgain()
	// What follows need not be looked at in every tick.
	if c.ticks%uint64(c.cfg.ElectionTicks) != 0 {
		return
	}
	s := c.readState()
	if s.Leading && len(c.appendTicks) > 0 && c.ticks-c.appendTicks[0] >= uint64(c.cfg.StallTicks) && !mutant.Planted(mutant.StalledStays) {
		// Our disk hangs. What we are elected for can be done by another.
		_ = c.transfer(0)
	}
	if s.Settled && !c.changing {
		c.promote(s)
	}
}

// askAgain repeats reads whose question or answer was lost. Either answer is
// good: the index was committed after the read was first asked.
func (c *Core) askAgain() {
	for _, id := range slices.Sorted(maps.Keys(c.reads)) {
		if c.ticks-c.reads[id] >= uint64(c.cfg.ElectionTicks) {
			c.reads[id] = c.ticks
			c.rn.ReadIndex(c.readContext(id))
		}
	}
}

// transfer hands over to a voter, by default to the one that has most of the
// log among those heard of within an election timeout. There is no heir when
// too few are left to elect one.
func (c *Core) transfer(to uint64) error {
	if !c.readState().Leading {
		return errNotLeading
	}
	if to != 0 {
		if err := c.mayInherit(to); err != nil {
			return err
		}
	} else if to = c.heir(); to == 0 {
		c.out.NoHeir = true
		return errNoHeir
	}
	c.rn.TransferLeader(to)
	return nil
}

// heir is the voter that has most of the log; 0: too few are there to elect one.
func (c *Core) heir() (to uint64) {
	var best uint64
	there := 1
	c.rn.WithProgress(func(id uint64, typ raft.ProgressType, pr tracker.Progress) {
		if id == c.cfg.ID || typ != raft.ProgressTypePeer || !c.heardWithin(id, uint64(c.cfg.ElectionTicks)) {
			return
		}
		there++
		if to == 0 || pr.Match > best {
			to, best = id, pr.Match
		}
	})
	if there < len(c.members.Voters)/2+1 {
		return 0
	}
	return to
}

// mayInherit refuses one that could not be elected at once: from the moment that
// raft hands over it takes nothing, until the other has caught up or an election
// timeout has passed.
func (c *Core) mayInherit(id uint64) error {
	switch {
	case c.members.Member(id) == nil:
		return fmt.Errorf("%w %d", borgmaster.ErrNoMember, id)
	case id == c.cfg.ID:
		return fmt.Errorf("replica %d is elected already", id)
	case !c.members.Voter(id):
		return fmt.Errorf("replica %d is a learner and cannot be elected; it is given its vote when it has caught up", id)
	case !c.heardWithin(id, uint64(c.cfg.ElectionTicks)):
		return fmt.Errorf("replica %d was not heard just now; is it running?", id)
	}
	if behind := c.behind(id); behind > promoteLag {
		return fmt.Errorf("replica %d is %d entries behind, and at most %d would be caught up at once; try again when it has caught up", id, behind, promoteLag)
	}
	return nil
}

// behind is how many of the entries that are committed a member is not known to
// have written.
func (c *Core) behind(id uint64) (entries uint64) {
	commit := c.readState().Commit
	if id == c.cfg.ID {
		return 0
	}
	entries = commit
	c.rn.WithProgress(func(x uint64, _ raft.ProgressType, pr tracker.Progress) {
		if x == id {
			entries = commit - min(pr.Match, commit)
		}
	})
	return entries
}

// current tells whether a member counts in a majority: it was heard of lately and
// is hardly behind. One that has to be sent a checkpoint first confirms nothing
// until then.
func (c *Core) current(id uint64) bool {
	return id == c.cfg.ID || c.active(id) && c.behind(id) <= promoteLag
}

// promote gives a learner that has caught up its vote.
func (c *Core) promote(s CoreState) {
	var id uint64
	c.rn.WithProgress(func(x uint64, typ raft.ProgressType, pr tracker.Progress) {
		if typ == raft.ProgressTypeLearner && c.active(x) && pr.State == tracker.StateReplicate && pr.Match+promoteLag >= s.Commit {
			id = x
		}
	})
	if m := c.members.Member(id); m != nil {
		_ = c.change(Change{Type: raftpb.ConfChangeAddNode, Member: m})
	}
}

// change proposes a change of members that is sure to be done: raft would drop
// others without a word.
func (c *Core) change(ev Change) Proposed {
	s := c.readState()
	switch {
	case !s.Leading:
		return Proposed{Err: errNotLeading}
	case s.Settled && c.last < c.changesFrom:
		// Nobody else may have anything to log.
		_ = c.rn.Propose(nil)
		return Proposed{Err: errChanging}
	case !s.Settled || c.changing || c.applied < c.changesFrom:
		return Proposed{Err: errChanging}
	}
	data, err := proto.Marshal(ev.Member)
	if err != nil {
		return Proposed{Err: err}
	}
	cc := &raftpb.ConfChange{
		Id:      new(ev.ID),
		Type:    ev.Type.Enum(),
		NodeId:  new(ev.Member.GetId()),
		Context: data,
	}
	next, err := c.members.apply(cc)
	if err != nil {
		return Proposed{Err: err}
	}
	if id := ev.Member.GetId(); ev.Type == raftpb.ConfChangeAddNode && !c.current(id) {
		return Proposed{Err: fmt.Errorf("replica %d is not heard or has not caught up (it is %d entries behind), and its vote would count against a majority; it is given it by itself when it has", id, c.behind(id))}
	}
	if ev.Type == raftpb.ConfChangeRemoveNode && ev.Member.GetId() == c.cfg.ID {
		return Proposed{Err: errItself}
	}
	if err := c.survives(next); err != nil {
		return Proposed{Err: err}
	}
	if err := c.rn.ProposeConfChange(cc); err != nil {
		// Raft has noted a change at the index that this one would have had, and drops
		// others without a word until that is applied.
		for c.rn.HasReady() {
			c.ready()
		}
		c.changesFrom = c.last + 1
		return Proposed{Err: errDropped}
	}
	c.changing = true
	return Proposed{Term: s.Term}
}

// survives refuses a membership whose voters would not be a majority at once:
// the cell would stand still until more of them come back.
func (c *Core) survives(next Membership) error {
	if slices.Equal(next.Voters, c.members.Voters) || mutant.Planted(mutant.VotersUncounted) {
		return nil
	}
	var current, missing []uint64
	for _, id := range next.Voters {
		switch {
		case c.current(id):
			current = append(current, id)
		default:
			missing = append(missing, id)
		}
	}
	if need := len(next.Voters)/2 + 1; len(current) < need {
		return fmt.Errorf("of the %d members that would vote %d are there and have caught up, and %d are needed; bring back %s first", len(next.Voters), len(current), need, numbered(missing))
	}
	return nil
}

func numbered(ids []uint64) string {
	var b strings.Builder
	for i, id := range ids {
		switch {
		case i == 0:
		case i == len(ids)-1:
			b.WriteString(" or ")
		default:
			b.WriteString(", ")
		}
		fmt.Fprint(&b, id)
	}
	return b.String()
}

// active tells whether a replica was heard of lately. Raft's own mark is taken
// back at every check of the quorum, and says nothing just after one.
func (c *Core) active(id uint64) bool { return c.heardWithin(id, 2*uint64(c.cfg.ElectionTicks)) }

func (c *Core) heardWithin(id, ticks uint64) bool {
	at, ok := c.heard[id]
	return ok && c.ticks-at < ticks
}

// readContext names a read among those of all replicas and all their lives.
func (c *Core) readContext(id uint64) []byte {
	b := make([]byte, 0, 24)
	b = binary.BigEndian.AppendUint64(b, c.cfg.ID)
	b = binary.BigEndian.AppendUint64(b, c.cfg.Nonce)
	return binary.BigEndian.AppendUint64(b, id)
}

func (c *Core) readID(ctx []byte) (id uint64, ok bool) {
	if len(ctx) != 24 || binary.BigEndian.Uint64(ctx) != c.cfg.ID || binary.BigEndian.Uint64(ctx[8:]) != c.cfg.Nonce {
		return 0, false
	}
	return binary.BigEndian.Uint64(ctx[16:]), true
}
