package sim

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"

	"go.etcd.io/raft/v3/raftpb"
	"google.golang.org/protobuf/proto"

	"borg/borgmaster/replica"
	"borg/borgmaster/roster"
	"borg/proto/borgpb"
)

const (
	rosterTickNs = 100 * millisecond
	// A cell has so many voters, about, at least and at most.
	fewVoters, manyVoters = 3, 5
	// Numbers are not endless: the ends of machines come after those of replicas.
	lastReplica = 90
	// A replica is caught up that is so far behind, at most (replica.promoteLag).
	caughtUpLag = 256
)

// rosterOperator replaces, adds and takes out replicas, as borgcfg master does, by
// the same planner; and now and then as somebody does who asks no planner.
type rosterOperator struct {
	w    *World
	rand *rand.Rand
	// What is under way; nil: nothing. checked: it was not refused.
	goal    *roster.Goal
	checked bool
	// Where a replica is to join before the goal is looked at.
	joins  []string
	nextNs int64
	// When there was last one replica alone; 0: never.
	aloneNs int64
	// Index of the last change of members that anybody has applied.
	changed uint64
}

// changeMembers lets the operator begin, if the seed has one.
func (w *World) changeMembers() {
	w.roster = &rosterOperator{w: w, rand: stream(w.cfg.Seed, "members")}
	if w.swarm.membersNs > 0 {
		w.roster.nextNs = w.now + between(w.roster.rand, second, w.swarm.membersNs+second)
		w.roster.tick()
	}
}

func (o *rosterOperator) tick() {
	o.w.after(rosterTickNs, func() {
		if r := o.w.leader(); r != nil {
			o.look(r)
		}
		o.tick()
	})
}

// rosterOf is what the elected replica tells of the members.
func rosterOf(r *replicaNode) roster.Roster {
	m := r.core.Members()
	is := roster.Roster{Removed: m.Removed, NextID: 1}
	for _, id := range m.Removed {
		is.NextID = max(is.NextID, id+1)
	}
	peers := r.core.Peers(1)
	for _, x := range m.Members {
		is.NextID = max(is.NextID, x.GetId()+1)
		one := roster.Replica{ID: x.GetId(), Addr: x.GetAddr(), Learner: m.Learner(x.GetId())}
		if one.ID == r.id {
			one.Elected, one.Heard, one.Current = true, true, true
		}
		for _, p := range peers {
			if p.ID == one.ID {
				// In ticks.
				one.Heard, one.Current, one.Behind = p.Heard < 100, p.Current, p.Behind
			}
		}
		is.Replicas = append(is.Replicas, one)
	}
	return is
}

// look does the next thing that is to be done, if there is one.
func (o *rosterOperator) look(r *replicaNode) {
	is := rosterOf(r)
	if o.goal == nil {
		if o.w.healed || o.w.now < o.nextNs || is.NextID > lastReplica {
			return
		}
		o.nextNs = o.w.now + between(o.rand, o.w.swarm.membersNs/2, 2*o.w.swarm.membersNs)
		o.draw(r, is)
		return
	}
	if len(o.joins) > 0 {
		if slices.ContainsFunc(is.Replicas, func(x roster.Replica) bool { return x.Addr == o.joins[0] }) {
			o.joins = o.joins[1:]
		} else {
			o.join(r, is.NextID, o.joins[0])
		}
		return
	}
	// The one who asked may have died; who asks again looks at all of it once more.
	if o.checked = o.checked && !chance(o.rand, 50); !o.checked {
		if err := o.goal.Check(is); err != nil {
			o.refused(err)
			return
		}
		o.checked = true
	}
	step, err := o.goal.Next(is)
	if err != nil {
		o.refused(err)
		return
	}
	o.take(r, step)
}

// refused: what is not for the sake of a lost disk is given up after a while.
func (o *rosterOperator) refused(err error) {
	o.w.mark("change of members refused")
	o.w.say("the operator's %+v is refused: %v", *o.goal, err)
	var needed bool
	for _, id := range o.goal.Out {
		needed = needed || o.w.nodes[id].diskless
	}
	if !needed && chance(o.rand, 100) {
		o.goal = nil
	}
}

func (o *rosterOperator) take(r *replicaNode, step roster.Step) {
	switch step.Kind {
	case roster.Done:
		o.w.say("the operator has come to %+v", *o.goal)
		o.goal = nil
	case roster.Join:
		o.join(r, step.ID, step.Addr)
	case roster.Transfer:
		o.transfer(r, step.ID)
	case roster.Remove:
		o.change(r, raftpb.ConfChangeRemoveNode, &borgpb.Member{Id: step.ID, Addr: step.Addr})
	}
}

// draw begins something else.
func (o *rosterOperator) draw(r *replicaNode, is roster.Roster) {
	voters := is.Voters()
	one := voters[o.rand.IntN(len(voters))]
	kind, lost := o.rand.IntN(10), o.rand.IntN(2) == 0
	two := 1 + o.rand.IntN(2)
	if o.w.swarm.replaceOnly {
		kind, lost = 9, false
	}
	switch {
	case kind == 0:
		o.transfer(r, one.ID)
	case kind == 1:
		// Without a planner, and without a thought.
		o.change(r, raftpb.ConfChangeRemoveNode, &borgpb.Member{Id: one.ID, Addr: one.Addr})
	case len(voters) < fewVoters || kind < 4 && len(voters) < manyVoters:
		o.goal = &roster.Goal{}
		o.comeIn(is, two)
	case len(voters) > manyVoters || kind < 6 && len(voters) > 1:
		o.goal = &roster.Goal{Out: []uint64{one.ID}}
		if other := voters[o.rand.IntN(len(voters))]; two == 2 && other.ID != one.ID && len(voters) > 2 {
			o.goal.Out = append(o.goal.Out, other.ID)
		}
	default:
		o.goal = &roster.Goal{Out: []uint64{one.ID}}
		x := o.w.nodes[one.ID]
		sameAddr := o.rand.IntN(2) == 0
		if lost = lost && len(voters) > 2 && !slices.ContainsFunc(o.w.replicas, func(x *replicaNode) bool { return x.diskless }); lost {
			x.losesDisk()
		}
		if lost && sameAddr {
			o.goal.In = []string{one.Addr}
		} else {
			o.comeIn(is, 1)
		}
	}
	if o.checked = false; o.goal != nil {
		o.w.say("the operator wants %+v of %+v", *o.goal, is.Replicas)
	}
}

// comeIn lets n new replicas join first.
func (o *rosterOperator) comeIn(is roster.Roster, n int) {
	for i := range n {
		addr := addrOf(is.NextID + uint64(i))
		o.joins, o.goal.In = append(o.joins, addr), append(o.goal.In, addr)
	}
}

// join has a replica taken in as a learner, and started a while later.
func (o *rosterOperator) join(r *replicaNode, id uint64, addr string) {
	x := o.w.nodes[id]
	if x == nil {
		x = newReplicaNode(o.w, id, true)
		o.w.nodes[id] = x
	}
	if !o.change(r, raftpb.ConfChangeAddLearnerNode, &borgpb.Member{Id: id, Addr: addr}) {
		return
	}
	after := between(o.rand, 10*millisecond, 2*second)
	if chance(o.rand, 200) {
		// Its address is wrong, until somebody sees that.
		after = between(o.rand, 2*second, 8*second)
	}
	// Whoever was started before and lost its disk never comes back.
	life := x.life
	o.w.after(after, func() {
		if x.diskless && x.life == life && !x.gone {
			x.ident.Members = slices.Clone(r.core.Members().Members)
			x.makeDirectory()
			x.start()
		}
	})
}

func (o *rosterOperator) change(r *replicaNode, typ raftpb.ConfChangeType, m *borgpb.Member) bool {
	out, ok := r.step(replica.Change{ID: uint64(o.w.now), Type: typ, Member: m})
	if !ok {
		return false
	}
	err := out.Proposed[0].Err
	o.w.say("the operator asks for %v of replica %d: %v", typ, m.GetId(), err)
	if err != nil {
		o.w.mark("change of members refused")
	}
	r.handOut(out, nil)
	return err == nil
}

func (o *rosterOperator) transfer(r *replicaNode, to uint64) {
	out, ok := r.step(replica.Transfer{To: to})
	if !ok {
		return
	}
	if err := out.Proposed[0].Err; err == nil {
		o.w.mark("election transferred")
	}
	o.w.say("the operator has replica %d elected: %v", to, out.Proposed[0].Err)
	r.handOut(out, nil)
}

// losesDisk is the end of a replica's disk, and of the replica.
func (r *replicaNode) losesDisk() {
	r.w.say("replica %d loses its disk", r.id)
	r.w.mark("disk lost")
	r.mend()
	r.resume()
	r.crash(keepAll, false)
	r.life++
	r.diskless = true
}

// leaves is the end of a replica that has heard that it was taken out.
func (r *replicaNode) leaves() {
	if r.gone {
		return
	}
	r.w.say("replica %d was taken out, and ends", r.id)
	if !slices.Contains(r.core.Members().Removed, r.id) {
		r.w.mark("removed replica was refused")
	}
	r.gone = true
	r.mend()
	r.crash(keepAll, false)
}

// membersChanged notes who the members are from an index on.
func (w *World) membersChanged(index uint64, m *replica.Membership) {
	if index <= w.roster.changed {
		return
	}
	w.roster.changed = index
	was := len(w.replicas)
	if was == 1 {
		w.roster.aloneNs = w.now
	}
	w.replicas = slices.DeleteFunc(slices.Clone(w.replicas), func(x *replicaNode) bool { return slices.Contains(m.Removed, x.id) })
	if len(w.replicas) < was {
		w.mark("member taken out")
	}
	for _, x := range m.Members {
		if node := w.nodes[x.GetId()]; !slices.Contains(w.replicas, node) {
			w.replicas = append(w.replicas, node)
			w.mark("member joined")
		}
	}
	slices.SortFunc(w.replicas, func(a, b *replicaNode) int { return cmp.Compare(a.id, b.id) })
	w.failover.look()
}

// wasAlone tells whether there is one replica alone, or was within a time.
func (w *World) wasAlone(withinNs int64) bool {
	return len(w.replicas) == 1 || w.roster != nil && w.roster.aloneNs != 0 && w.now-w.roster.aloneNs < withinNs
}

// proposesMembers: S25, when the elected replica appends a change after which other
// voters decide, a majority of them is there and has caught up. What happens to them
// later is nobody's fault.
func (r *replicaNode) proposesMembers(entries []*raftpb.Entry) {
	for _, e := range entries {
		if e.GetType() != raftpb.EntryConfChange || !r.leading || e.GetTerm() != r.term {
			continue
		}
		cc := new(raftpb.ConfChange)
		if err := proto.Unmarshal(e.GetData(), cc); err != nil {
			r.w.fail("replica %d appends a change of members that cannot be read: %v", r.id, err)
			return
		}
		voters := slices.Clone(r.core.Members().Voters)
		switch cc.GetType() {
		case raftpb.ConfChangeAddNode:
			r.w.mark("member given its vote")
			voters = append(voters, cc.GetNodeId())
		case raftpb.ConfChangeRemoveNode:
			voters = slices.DeleteFunc(voters, func(id uint64) bool { return id == cc.GetNodeId() })
		default:
			continue
		}
		r.quorumOf(voters, cc)
	}
}

// awayNs is how long a replica is away when the elected one must have seen it: two
// election timeouts and what clocks may be off by. Without an aim single messages are
// late, or held back.
func (w *World) awayNs() int64 {
	if w.cfg.Aim == "" {
		return 10 * second
	}
	return second
}

func (r *replicaNode) quorumOf(voters []uint64, cc *raftpb.ConfChange) {
	if r.w.now-r.resumedNs < second {
		// It was stopped, and believes what it knew before.
		return
	}
	var there []uint64
	for _, id := range voters {
		x := r.w.nodes[id]
		if x.awaySinceNs != 0 && r.w.now-x.awaySinceNs > r.w.awayNs() {
			continue
		}
		if x.up {
			if last, err := x.store.LastIndex(); err == nil && last+caughtUpLag < r.core.State().Commit {
				continue
			}
		}
		there = append(there, id)
	}
	if need := roster.Majority(len(voters)); len(there) < need {
		r.w.fail("S25: after %v of replica %d the voters are %v, of which %v are there, and a majority is %d", cc.GetType(), cc.GetNodeId(), voters, there, need)
	}
}

// membersUnsettled: L6, who has joined gets its vote and the cell, and who lost its
// disk is replaced.
func (w *World) membersUnsettled() string {
	if w.roster.goal != nil {
		return fmt.Sprintf("the operator has not come to %+v", *w.roster.goal)
	}
	for _, x := range w.replicas {
		switch r := w.leader(); {
		case !x.up:
			return fmt.Sprintf("replica %d is a member and does not run", x.id)
		case r != nil && !r.core.Members().Voter(x.id):
			return fmt.Sprintf("replica %d has no vote yet", x.id)
		}
	}
	return ""
}

const (
	// mostInRow checkpoints in a row may be sent to a replica that does not catch up by
	// the log between them.
	mostInRow = 8
	// mostSent checkpoints are made for one follower in a second.
	mostSent = 6
)

// sends: L7, a follower that takes no checkpoint is not made one after the other.
func (r *replicaNode) sends(to *replicaNode) {
	lately := slices.DeleteFunc(r.sentNs[to.id], func(at int64) bool { return r.w.now-at > second })
	r.sentNs[to.id] = append(lately, r.w.now)
	if n := len(r.sentNs[to.id]); n > mostSent {
		r.w.fail("L7: replica %d makes %d checkpoints for replica %d within a second", r.id, n, to.id)
	}
}

// hangsMostNs is how long a replica whose disk hangs is elected: half a second until
// it sees that, up to an election timeout until it looks, and what clocks are off by.
const hangsMostNs = second

// hungTooLong: S26, a replica whose disk hangs is not elected for long, if others can
// be.
func (w *World) hungTooLong() {
	most := int64(hangsMostNs)
	if w.swarm.lossPermille > 0 || w.swarm.latePermille > 0 || w.swarm.driftPPM > 0 || w.cfg.Aim == "" {
		most *= 3
	}
	for i, x := range w.replicas {
		if !x.up || x.paused || x.appendSinceNs == 0 || !x.core.State().Leading || w.now-max(x.appendSinceNs, x.resumedNs) < most {
			continue
		}
		if w.failover.others(i, most) {
			w.fail("S26: the disk of replica %d hangs for %d ms, and it is elected", x.id, (w.now-x.appendSinceNs)/millisecond)
		}
	}
}

// others tells whether a majority without the i-th replica could have elected another
// one for so long.
func (f *failover) others(i int, ns int64) bool {
	if f.w.swarm.membersNs > 0 {
		return false
	}
	for three, since := range f.since {
		if since != 0 && f.w.now-since >= ns && !slices.Contains(three[:], i) {
			return true
		}
	}
	return false
}

// bounded: S15, what is appended and not committed has a bound, up to one entry.
func (r *replicaNode) bounded() {
	bound := r.w.swarm.uncommittedBytes
	if bound == 0 || !r.leading {
		return
	}
	last, _ := r.store.LastIndex()
	commit := r.core.State().Commit
	if last <= commit {
		return
	}
	entries, err := r.store.Entries(commit+1, last+1, 1<<30)
	if err != nil {
		r.cannot("read its log", err)
		return
	}
	sum, largest := uint64(0), uint64(0)
	for _, e := range entries {
		if e.GetTerm() == r.term {
			sum, largest = sum+uint64(len(e.GetData())), max(largest, uint64(len(e.GetData())))
		}
	}
	if sum > bound/2 {
		r.w.mark("appended as much as may be")
	}
	if sum > bound+largest {
		r.w.fail("S15: replica %d has appended %d bytes that nobody confirms, and may append %d", r.id, sum, bound)
	}
}
