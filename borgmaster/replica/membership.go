package replica

import (
	"cmp"
	"errors"
	"fmt"
	"slices"

	"go.etcd.io/raft/v3/raftpb"
	"google.golang.org/protobuf/proto"

	"borg/borgmaster"
	"borg/proto/borgpb"
)

// Membership is who the replicas of a cell are at one index of the log. It is
// never changed in place.
type Membership struct {
	Voters   []uint64
	Learners []uint64
	// Members are the voters and learners with their addresses, by id.
	Members []*borgpb.Member
	// Removed are ids that must not come back.
	Removed []uint64
}

func membershipOf(h *borgpb.CheckpointHeader) Membership {
	return Membership{Voters: h.GetVoters(), Learners: h.GetLearners(), Members: h.GetMembers(), Removed: h.GetRemoved()}
}

func (m Membership) fill(h *borgpb.CheckpointHeader) {
	h.Voters, h.Learners, h.Members, h.Removed = m.Voters, m.Learners, m.Members, m.Removed
}

// Member returns the member of that id; nil when there is none.
func (m Membership) Member(id uint64) *borgpb.Member {
	for _, x := range m.Members {
		if x.GetId() == id {
			return x
		}
	}
	return nil
}

// Voter tells whether id votes.
func (m Membership) Voter(id uint64) bool { return slices.Contains(m.Voters, id) }

// Learner tells whether id is sent the log without a vote.
func (m Membership) Learner(id uint64) bool { return slices.Contains(m.Learners, id) }

// apply is the membership after a change. It decides by the membership alone,
// so that every replica decides alike, and an error leaves it as it was.
func (m Membership) apply(cc *raftpb.ConfChange) (Membership, error) {
	id := cc.GetNodeId()
	var member borgpb.Member
	if err := proto.Unmarshal(cc.GetContext(), &member); err != nil {
		return m, fmt.Errorf("the change of member %d cannot be read: %w", id, err)
	}
	if id == 0 || member.GetId() != id {
		return m, fmt.Errorf("a change of member %d speaks of member %d", id, member.GetId())
	}
	if slices.Contains(m.Removed, id) {
		return m, fmt.Errorf("number %d belonged to a replica that was removed and is not used again; take a new number", id)
	}
	switch cc.GetType() {
	case raftpb.ConfChangeAddLearnerNode:
		return m.addLearner(&member)
	case raftpb.ConfChangeAddNode:
		if !m.Learner(id) {
			return m, fmt.Errorf("member %d is not a learner", id)
		}
		m.Learners = without(m.Learners, id)
		m.Voters = insert(m.Voters, id)
	case raftpb.ConfChangeRemoveNode:
		return m.remove(id)
	case raftpb.ConfChangeUpdateNode:
		return m.update(&member)
	default:
		return m, fmt.Errorf("a change of type %v is not known", cc.GetType())
	}
	return m, nil
}

func (m Membership) addLearner(member *borgpb.Member) (Membership, error) {
	if m.Member(member.GetId()) != nil {
		return m, fmt.Errorf("number %d is taken by a member of the cell; take a new number", member.GetId())
	}
	if member.GetAddr() == "" {
		return m, errors.New("a new member needs an address")
	}
	for _, x := range m.Members {
		if x.GetAddr() == member.GetAddr() {
			return m, fmt.Errorf("address %s belongs to member %d; remove that member first", x.GetAddr(), x.GetId())
		}
	}
	m.Learners = insert(m.Learners, member.GetId())
	m.Members = append(slices.Clone(m.Members), member)
	slices.SortFunc(m.Members, func(a, b *borgpb.Member) int { return cmp.Compare(a.GetId(), b.GetId()) })
	return m, nil
}

func (m Membership) remove(id uint64) (Membership, error) {
	if m.Member(id) == nil {
		return m, fmt.Errorf("%w %d", borgmaster.ErrNoMember, id)
	}
	if m.Voter(id) && len(m.Voters) == 1 {
		return m, fmt.Errorf("member %d is the last one that votes", id)
	}
	m.Voters, m.Learners = without(m.Voters, id), without(m.Learners, id)
	m.Members = slices.DeleteFunc(slices.Clone(m.Members), func(x *borgpb.Member) bool { return x.GetId() == id })
	m.Removed = insert(m.Removed, id)
	return m, nil
}

// update changes the address, or notes the incarnation of a member that had
// none: a known incarnation never changes.
func (m Membership) update(member *borgpb.Member) (Membership, error) {
	old := m.Member(member.GetId())
	if old == nil {
		return m, fmt.Errorf("there is no member %d", member.GetId())
	}
	if old.GetIncarnation() != 0 && old.GetIncarnation() != member.GetIncarnation() {
		return m, fmt.Errorf("member %d is known with another directory", member.GetId())
	}
	m.Members = slices.Clone(m.Members)
	m.Members[slices.Index(m.Members, old)] = member
	return m, nil
}

func insert(ids []uint64, id uint64) []uint64 {
	ids = append(slices.Clone(ids), id)
	slices.Sort(ids)
	return ids
}

func without(ids []uint64, id uint64) []uint64 {
	return slices.DeleteFunc(slices.Clone(ids), func(x uint64) bool { return x == id })
}
