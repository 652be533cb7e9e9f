package journal

import (
	"slices"

	"borg/proto/borgpb"
	"borg/proto/borgrpc"
)

// Second has another replica keep what this one's polls told: rows of windows that have
// ended, and drafts of those that have not. It sends nothing itself, reads no clock, and
// is not safe for concurrent use.
type Second struct {
	self uint64
	open OpenWindows
	// Most rows and drafts in a message.
	most int
	// Finished rows that only this replica has.
	waiting []*borgpb.UsageRow
	// All rows of what began before are finished, and are waiting or kept.
	beforeNs int64
	// Who is spoken to; 0: nobody yet.
	at uint64
	// What the drafts belong to; 0: nobody has any.
	session uint64
	// Of the last one that was begun.
	last uint64
	// The message that was sent, until it is known what came of it.
	sent *borgrpc.KeepUsageRequest
}

// OpenWindows are those that are being added up.
type OpenWindows interface {
	Open() int
	Drafts(most int) *borgrpc.UsageDrafts
	Redraft()
}

// NewSecond speaks for a replica, with so much in a message.
func NewSecond(self uint64, open OpenWindows, most int) *Second {
	return &Second{self: self, open: open, most: most}
}

// Finished takes in rows that this replica has kept; all that is still open began at
// beforeNs or later.
func (s *Second) Finished(rows []*borgpb.UsageRow, beforeNs int64) {
	s.waiting = append(s.waiting, rows...)
	s.beforeNs = beforeNs
}

// Also takes in rows that this replica has kept for another one.
func (s *Second) Also(rows []*borgpb.UsageRow) { s.waiting = append(s.waiting, rows...) }

// Drop gives up the oldest rows that wait: those beyond most, and those that ended before
// beforeNs. It says how many.
func (s *Second) Drop(most int, beforeNs int64) (n int) {
	n = max(len(s.waiting)-most, 0)
	for n < len(s.waiting) && s.waiting[n].ToNs < beforeNs {
		n++
	}
	s.drop(n)
	return n
}

func (s *Second) drop(n int) {
	if s.waiting = s.waiting[n:]; len(s.waiting) == 0 {
		s.waiting = nil
	}
}

// Message is the next one, and to whom of the replicas; nil: there is nothing to say.
func (s *Second) Message(nowNs int64, replicas []uint64) (to uint64, req *borgrpc.KeepUsageRequest) {
	if !slices.Contains(replicas, s.at) || s.at == s.self {
		s.move(replicas)
	}
	if s.at == 0 || len(s.waiting) == 0 && s.session == 0 && s.open.Open() == 0 {
		return 0, nil
	}
	n := min(len(s.waiting), s.most)
	req = &borgrpc.KeepUsageRequest{Rows: s.waiting[:n:n], Replica: s.self, Session: s.session}
	switch {
	case s.session != 0:
		req.Drafts = s.open.Drafts(s.most - n)
	case s.open.Open() > 0:
		// Drafts come when it is known that somebody is there.
		s.last = max(uint64(nowNs), s.last+1)
		req.Session, req.Begins = s.last, true
	}
	if n == len(s.waiting) {
		req.FinishedBeforeNs = s.beforeNs
	}
	s.sent = req
	return s.at, req
}

// Answered hears that the last message was taken, or that what it was a part of is not
// known; and says whether there is more to say at once.
func (s *Second) Answered(again bool) (more bool) {
	req := s.sent
	s.sent = nil
	s.drop(len(req.Rows))
	switch {
	case again:
		s.session = 0
		return !req.Begins
	case req.Begins:
		s.session = req.Session
		s.open.Redraft()
		return true
	}
	return len(req.Rows)+DraftsIn(req.Drafts) == s.most
}

// Failed hears that nobody took the last message: another replica is asked next. What
// there was in it may have been taken all the same.
func (s *Second) Failed(replicas []uint64) {
	s.sent = nil
	s.move(replicas)
}

// move goes on to the replica after the present one.
func (s *Second) move(replicas []uint64) {
	from := s.at
	if from == 0 {
		from = s.self
	}
	s.at, s.session = 0, 0
	var first uint64
	for _, id := range replicas {
		switch {
		case id == s.self:
		case id > from && (s.at == 0 || id < s.at):
			s.at = id
		case first == 0 || id < first:
			first = id
		}
	}
	if s.at == 0 {
		s.at = first
	}
}
