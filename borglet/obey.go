package borglet

import (
	"google.golang.org/protobuf/proto"

	"borg/mutant"
	"borg/proto/borgrpc"
)

// Master is the side of a borglet that masters speak to: whom it obeys, and
// what it makes of a poll. It decides and does nothing itself; what it wants
// kept goes through save.
type Master struct {
	// Fence as it was last kept.
	Fence Fence
	// Dir is the borglet's directory, for what people are told.
	Dir string
}

// Poll judges a poll and, if it is to be obeyed, gives it to the core. save
// keeps a new fence and returns when it is safe: nothing is obeyed before.
// The effects are to be done whatever becomes of the answer.
func (m *Master) Poll(core *Core, now Now, req *borgrpc.PollRequest, save func(Fence) error) (*borgrpc.PollResponse, []Effect, error) {
	idle := true
	for _, t := range core.copies {
		idle = idle && t.phase == ended
	}
	next, v := m.Fence.judge(req.GetFence(), req.GetMachine(), idle)
	resp := &borgrpc.PollResponse{}
	switch v {
	case otherCell, otherMachine:
		return nil, nil, &refusal{verdict: v, fence: m.Fence, dir: m.Dir, cellID: req.GetFence().GetCellId(), machine: req.GetMachine()}
	case stale:
		resp.Fenced, resp.Highest = true, m.Fence.wire()
		return resp, nil, nil
	}
	next.Removed = m.Fence.removedAfter(next, req.GetBelief())
	if !next.Equal(m.Fence) {
		if mutant.Planted(mutant.FenceNotKept) {
			save = func(Fence) error { return nil }
		}
		if err := save(next); err != nil {
			return nil, nil, err
		}
		m.Fence = next
	}
	effects := core.Step(now, Polled{Desired: req.GetDesired(), Stops: req.GetStops(), Forget: req.GetForget()})
	state := core.State()
	resp.Highest, resp.Hash = m.Fence.wire(), state.Hash
	resp.Described = core.describe(req.GetDescribe())
	if string(req.GetKnownHash()) == string(state.Hash) {
		resp.Unchanged = true
	} else {
		resp.Tasks, resp.Versions, resp.LabelMarks = state.Tasks, state.Versions, state.LabelMarks
	}
	return resp, effects, nil
}

// maxDescribedBytes bounds what one answer describes; the rest is asked for again.
const maxDescribedBytes = 2 << 20

// describe says what copies run, as far as they are here and were ever wanted.
func (c *Core) describe(copies []*borgrpc.CopyID) (runs []*borgrpc.Desired) {
	bytes := 0
	for _, asked := range copies {
		id, err := IDOf(asked)
		if err != nil {
			continue
		}
		if t := c.copies[id]; t != nil && t.Desired != nil {
			if bytes += proto.Size(t.Desired); bytes > maxDescribedBytes && len(runs) > 0 {
				break
			}
			runs = append(runs, t.Desired)
		}
	}
	return runs
}
