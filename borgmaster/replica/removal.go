package replica

import (
	"maps"
	"slices"

	"go.etcd.io/raft/v3/raftpb"
	"google.golang.org/protobuf/proto"
)

// removal is the taking out of another member, from when it is in the log. Who is taken out ends
// when he hears that it is committed, and takes his vote with him. Of two voters the one who stays
// must then know that he needs it no more, whatever befalls him: so the commit is durable here
// before it is told to anybody, or done.
type removal struct {
	// Indices of those in the log whose commit is not durable, ascending.
	at []uint64
	// What was sent with a lower commit instead, the last to each member, and what is to be
	// applied once it is durable.
	told  map[uint64]*raftpb.Message
	apply []*raftpb.Message
}

// note looks for them among entries that come into the log.
func (r *removal) note(id uint64, entries []*raftpb.Entry) {
	if len(entries) > 0 {
		// They take the place of what was there.
		r.at = slices.DeleteFunc(r.at, func(index uint64) bool { return index >= entries[0].GetIndex() })
	}
	for _, e := range entries {
		if e.GetType() != raftpb.EntryConfChange {
			continue
		}
		cc := new(raftpb.ConfChange)
		if proto.Unmarshal(e.GetData(), cc) == nil && cc.GetType() == raftpb.ConfChangeRemoveNode && cc.GetNodeId() != id {
			r.at = append(r.at, e.GetIndex())
		}
	}
}

// holds tells whether a commit must be durable first.
func (r *removal) holds(commit uint64) bool { return len(r.at) > 0 && commit >= r.at[0] }

// before is a message as it may be sent now.
func (r *removal) before(m *raftpb.Message) *raftpb.Message {
	switch m.GetType() {
	case raftpb.MsgApp, raftpb.MsgHeartbeat:
	default:
		return m
	}
	if !r.holds(m.GetCommit()) {
		return m
	}
	if r.told == nil {
		r.told = make(map[uint64]*raftpb.Message)
	}
	r.told[m.GetTo()] = m
	m = proto.CloneOf(m)
	m.Commit = new(r.at[0] - 1)
	return m
}

// written notes a commit that is durable, and gives back what waited for one.
func (r *removal) written(commit uint64) (told, apply []*raftpb.Message) {
	waiting := len(r.at)
	r.at = slices.DeleteFunc(r.at, func(index uint64) bool { return index <= commit })
	if len(r.at) == waiting {
		return nil, nil
	}
	for _, to := range slices.Sorted(maps.Keys(r.told)) {
		told = append(told, r.told[to])
	}
	apply = r.apply
	r.told, r.apply = nil, nil
	return told, apply
}
