package process

import (
	"context"

	"borg/proto/borgpb"
	"borg/proto/borgrpc"
)

// plan proposes moves when passes decide nothing more. Nothing else is proposed
// until the plan is answered and the copy shows what became of it, since the search
// does not remember what a plan took.
func (s *session) plan(ctx context.Context) {
	if s.planning || s.again || s.inFlight > 0 || s.resting != nil || s.copy.Index() < s.planned {
		return
	}
	o := s.search.Plan(s.copy)
	if o == nil {
		return
	}
	o.Build = s.cfg.Build
	s.cfg.Logger.Info("moves proposed", "index", s.copy.Index(), "moves", len(o.Moves), "placed", o.Placement != nil)
	s.planning = true
	s.workers.Go(func() {
		ctx, cancel := context.WithTimeout(ctx, assignTimeout)
		defer cancel()
		r, err := s.client.MoveTasks(ctx, &borgrpc.MoveTasksRequest{Move: o})
		s.plans <- answer{result: r.GetResult(), err: err}
	})
}

// settlePlan tells the search what became of a plan. When nobody knows, the copy
// will show it; what is placed twice in between the cell refuses.
func (s *session) settlePlan(a answer) {
	s.planning = false
	var result *borgpb.Result
	switch {
	case a.err != nil || a.result == nil:
		s.takeRest()
		s.cfg.Logger.Warn("moves were not answered", "pause", s.rest, "err", a.err)
	default:
		result, s.planned = a.result, a.result.GetIndex()
		if r := result.GetRefusal(); r != nil {
			s.cfg.Logger.Info("moves refused", "index", s.planned, "first", r.GetObject(), "why", r.GetMessage())
		}
	}
	s.search.SettlePlan(s.copy, result)
}
