package cell

import (
	"borg/mutant"
	"borg/proto/borgpb"
)

// formatRefusalsKept is the format from which on refusals are remembered, and who
// asked. Before it a try that was long under way could be done after a later try
// of the same request was refused and its client told so.
const formatRefusalsKept = 2

// request is the memory of one mutation that was answered, so that a retry gets
// the same answer.
type request struct {
	mark
	// Answered by the rules of format 2: who asked is known, and a refusal may
	// be there (nil: it was done).
	asked, gone bool

	seq uint64
	id  string
	// What was asked for: the requestSum of the op.
	sum uint64
	// The client's clock when it made the id.
	madeWallNs int64
	// The cell's clock when the mutation was answered.
	doneWallNs int64

	index          uint64
	uid, updateUID UID
	version        uint64
	user           string
	refusal        *borgpb.Refusal
	// Next newer request of the same user; nil if this is the newest, or gone.
	next *request
}

// requestsTogether is how many requests lie side by side in memory, as one object.
const requestsTogether = 32

// requests remembers ids for 15 minutes of wall time, up to a budget of each user and
// 1,000,000 in all. What may have been forgotten is told from what is new by the client's
// clock: an id made at or before the mark of its user, or more than 15 minutes ago, is too
// old to know.
type requests struct {
	byID map[string]*request
	// Oldest first; some may be gone.
	queue []*request
	of    map[string]*requestsOf
	// By user.
	marks []*requestMark
	// Room for the next ones, which were made together and are forgotten together.
	room    []request
	nextSeq uint64
	// maxRequests, but for tests.
	most int
}

// checkRequest answers a retry from memory, or refuses what cannot be told, or what has the
// id of another request.
func (c *Cell) checkRequest(op *borgpb.Op) (*borgpb.Result, *borgpb.Refusal) {
	switch {
	case len(op.RequestId) > maxRequestIDBytes:
		return nil, invalid("request_id", "longer than %d bytes", maxRequestIDBytes)
	case len(op.Command) > maxCommandBytes:
		return nil, invalid("command", "longer than %d bytes", maxCommandBytes)
	case len(op.Reason) > maxReasonBytes:
		return nil, invalid("reason", "longer than %d bytes", maxReasonBytes)
	case len(op.ConfigHash) > maxRequestIDBytes:
		return nil, invalid("config_hash", "longer than %d bytes", maxRequestIDBytes)
	case op.Principal.GetUser() != "" && !validName(op.Principal.User):
		return nil, invalid("principal.user", "%q is not a name: want a-z, 0-9 and -", clip(op.Principal.User, 64))
	case op.RequestId == "":
		return nil, nil
	}
	if r := c.requests.byID[op.RequestId]; r != nil && !mutant.Planted(mutant.RequestNotAsked) {
		if r.asked && r.user != op.Principal.GetUser() {
			return nil, invalid("request_id", "another user's request has this id; make a new one")
		}
		if r.sum != c.now.sum {
			return nil, invalid("request_id", "this id was used for another request; make a new id for each request, and keep it for the tries of that one alone")
		}
		return r.answer(), nil
	}
	wall := c.clock.wallNs
	switch {
	case op.RequestWallNs <= 0 || op.RequestWallNs > maxTimeNs:
		return nil, invalid("request_wall_ns", "%d is not a time; a request id comes with the client's clock", op.RequestWallNs)
	case op.RequestWallNs < wall-requestMemoryNs || op.RequestWallNs <= c.requests.forgottenOf(op.Principal.GetUser()):
		return nil, refuse(borgpb.RefusalKind_REFUSAL_KIND_TOO_OLD, "", "request_wall_ns",
			"the request was made too long ago to know whether it was done; look, then ask anew")
	case op.RequestWallNs > wall+requestMemoryNs:
		return nil, invalid("request_wall_ns", "the client's clock is %s ahead of the cell's", spanWords(op.RequestWallNs-wall))
	}
	return nil, nil
}

func (r *request) answer() *borgpb.Result {
	res := &borgpb.Result{Index: r.index, Version: r.version, Refusal: r.refusal, Repeated: true}
	if !r.uid.IsZero() {
		res.Uid = r.uid.String()
	}
	if !r.updateUID.IsZero() {
		res.UpdateUid = r.updateUID.String()
	}
	return res
}

// keepsRefusal tells whether a refusal is remembered. One that says that the
// time of the request is out of range is not: the request itself says as much
// each time. Nor is a bug of ours.
func (c *Cell) keepsRefusal(op *borgpb.Op, r *borgpb.Refusal) bool {
	switch {
	case c.format < formatRefusalsKept, op.RequestId == "", len(op.RequestId) > maxRequestIDBytes,
		op.RequestWallNs <= 0, op.RequestWallNs > maxTimeNs:
		return false
	}
	return r.Kind != borgpb.RefusalKind_REFUSAL_KIND_TOO_OLD && r.Kind != borgpb.RefusalKind_REFUSAL_KIND_INTERNAL
}

// remember keeps the answer to a mutation.
func (c *Cell) remember(op *borgpb.Op, res *borgpb.Result) {
	if op.RequestId == "" {
		return
	}
	q := &c.requests
	if q.byID[op.RequestId] != nil {
		// Another user's.
		return
	}
	if len(q.room) == 0 {
		q.room = make([]request, requestsTogether)
	}
	r := &q.room[0]
	q.room = q.room[1:]
	*r = request{
		asked: c.format >= formatRefusalsKept,
		// A clock that is too far ahead is refused, and must not keep the memory of it for longer.
		seq: q.nextSeq, id: op.RequestId, sum: c.now.sum, madeWallNs: min(op.RequestWallNs, c.clock.wallNs+requestMemoryNs), doneWallNs: c.clock.wallNs,
		index: res.Index, version: res.Version, refusal: res.Refusal,
	}
	user := ""
	if r.asked {
		user = op.Principal.GetUser()
	}
	r.uid, _ = parseUID(res.Uid)
	if res.UpdateUid != "" {
		r.updateUID, _ = parseUID(res.UpdateUid)
	}
	q.nextSeq++
	of := q.share(user)
	q.add(r, of)
	c.dirty(r)
	c.thinRequests(of, c.StateBudget(user, measureRequests))
	if len(q.byID) > q.most {
		// Many at once: finding the user takes longer than the rest. Where many users have few
		// each, no one loses more than half.
		of = q.largest()
		c.thinRequests(of, max(of.count-int64(q.most/64+1), of.count/2))
	}
}

// forgetRequests drops what is older than the memory.
func (c *Cell) forgetRequests() {
	q := &c.requests
	c.expireRequestMarks()
	for len(q.queue) > 0 {
		r := q.queue[0]
		if r.gone {
			q.queue = q.queue[1:]
			continue
		}
		if max(r.doneWallNs, r.madeWallNs)+requestMemoryNs >= c.clock.wallNs {
			return
		}
		q.queue[0] = nil
		q.queue = q.queue[1:]
		c.dropRequest(r)
	}
}
