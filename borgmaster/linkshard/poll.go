package linkshard

import (
	"context"
	"fmt"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"borg/borgmaster/cell"
	"borg/proto/borgrpc"
	"borg/proto/door"
)

// poll asks one machine once. known is this poll's alone until it returns.
func (l *loop) poll(name string, known *Known) answer {
	var req *borgrpc.PollRequest
	var addr string
	l.cfg.Log.View(func(c *cell.Cell) {
		if m := c.Machine(name); m != nil {
			addr, req = m.Addr(), Build(c, m, l.cfg.CellName, l.cfg.Core.Replica, known)
		}
	})
	a := answer{event: Answered{Machine: name, Reached: true}}
	if req == nil {
		return a
	}
	resp, err := l.ask(addr, req)
	switch {
	case err != nil && missed(err):
		reason := door.Reason(err)
		a.event.Reached, a.event.Err = false, reason[:min(len(reason), maxTextBytes)]
	case err != nil:
		// It answered, if only to say no: a machine that is there.
		a.event.Err = door.Reason(err)
		l.warn("borglet refuses polls", name, known, a.event.Err)
	case resp.Fenced:
		a.event.Busy = true
		a.event.Err = fenced(resp.Highest, req.Fence)
		// A replica that is behind catches up; nothing mends the rest by itself.
		if h := resp.Highest; h.GetCellId() != req.Fence.CellId || h.GetEpoch() > req.Fence.Epoch || h.GetTerm() > l.cfg.Log.State().Term {
			l.warn("borglet obeys another master", name, known, a.event.Err)
		}
	default:
		known.Take(resp)
		l.cfg.Log.View(func(c *cell.Cell) {
			if m := c.Machine(name); m != nil {
				a.compared = Compare(l.cfg.NowNs(), c, m, req, resp, known)
			}
		})
	}
	if cmp := a.compared; cmp != nil {
		a.event.Busy, a.event.Down = cmp.Busy, cmp.Down
		if cmp.Set != nil {
			a.event.Contact = &borgrpc.Contact{Set: cmp.Set}
		}
	}
	return a
}

// warn forgets what the borglet said, and tells an operator once in a while.
func (l *loop) warn(message, machine string, known *Known, why string) {
	now := l.cfg.NowNs()
	if known.warnedNs == 0 || now-known.warnedNs > warnAgainNs {
		known.warnedNs = now
		l.cfg.Logger.Warn(message, "machine", machine, "err", why)
	}
	*known = Known{warnedNs: known.warnedNs}
}

func (l *loop) ask(addr string, req *borgrpc.PollRequest) (*borgrpc.PollResponse, error) {
	ctx, cancel := context.WithTimeout(l.ctx, pollTimeout)
	defer cancel()
	borglet, err := l.cfg.Borglets.Borglet(addr)
	if err != nil {
		return nil, status.Error(codes.Unavailable, err.Error())
	}
	return borglet.Poll(ctx, req)
}

// missed tells a borglet that is not there from one that says no.
func missed(err error) bool {
	switch status.Code(err) {
	case codes.Unavailable, codes.DeadlineExceeded, codes.Canceled, codes.Unknown, codes.Unimplemented:
		return true
	}
	return false
}

func fenced(highest, ours *borgrpc.Fence) string {
	if highest.GetCellId() != ours.CellId {
		return fmt.Sprintf("it obeys another cell, %s", highest.GetCellId())
	}
	return fmt.Sprintf("it has obeyed term %d index %d, this replica is at term %d index %d",
		highest.GetTerm(), highest.GetIndex(), ours.Term, ours.Index)
}
