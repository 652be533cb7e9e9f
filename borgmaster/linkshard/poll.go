package linkshard

import (
	"fmt"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"borg/borgmaster/cell"
	"borg/proto/borgrpc"
	"borg/proto/door"
)

// poll asks one machine once.
func (l *loop) poll(p Poll, on *line) Answer {
	addr, req := l.station.Ask(p)
	if req == nil {
		return l.station.Weigh(p, nil, Outcome{})
	}
	resp, err := l.ask(p, on, addr, req)
	o := Outcome{Response: resp}
	if err != nil {
		o = Outcome{Missed: missed(err), Err: door.Reason(err)}
	}
	return l.station.Weigh(p, req, o)
}

func (l *loop) ask(p Poll, on *line, addr string, req *borgrpc.PollRequest) (*borgrpc.PollResponse, error) {
	borglet, err := l.cfg.Borglets.Borglet(p.Machine, addr)
	if err != nil {
		return nil, status.Error(codes.Unavailable, err.Error())
	}
	// That others were connected to first is not the machine's fault: time counts from
	// here.
	return on.poll(borglet, addr, req, p.known.asked, time.Duration(p.timeoutNs))
}

// Ask makes the request of a poll; nil when the machine is no longer in the
// cell. It may be called from any goroutine, once for each poll.
func (s *Station) Ask(p Poll) (addr string, req *borgrpc.PollRequest) {
	s.cfg.Log.View(func(c *cell.Cell) {
		if m := c.Machine(p.Machine); m != nil {
			addr, req = m.Addr(), p.known.request(c, m, s.cfg.CellName, s.cfg.Core.Replica)
			p.known.sentNs = c.TimeNs()
		}
	})
	if req == nil {
		return addr, nil
	}
	if s.cfg.Belief != nil {
		req.Belief = s.cfg.Belief()
	}
	req.NoUsage = s.cfg.NowNs() < p.known.usageDueNs
	return addr, req
}

// Afresh is what Ask says of orders when it repeats none, for who doubts that those are
// the same.
func (s *Station) Afresh(p Poll) (req *borgrpc.PollRequest) {
	s.cfg.Log.View(func(c *cell.Cell) {
		if m := c.Machine(p.Machine); m != nil {
			req = Build(c, m, s.cfg.CellName, s.cfg.Core.Replica, p.known)
		}
	})
	return req
}

// Weigh makes of the outcome of a poll what the station is to take. It may be
// called from any goroutine, once for each poll, after Ask.
func (s *Station) Weigh(p Poll, req *borgrpc.PollRequest, o Outcome) Answer {
	a := Answer{event: Answered{Machine: p.Machine, Reached: true}}
	resp := o.Response
	switch {
	case req == nil:
	case o.Missed:
		a.event.Reached, a.event.Err = false, o.Err[:min(len(o.Err), maxTextBytes)]
	case resp == nil:
		// It answered, if only to say no: a machine that is there.
		a.event.Err = o.Err
		s.warn("borglet refuses polls", p, a.event.Err)
	case resp.Fenced:
		a.event.Busy = true
		a.event.Err = fenced(resp.Highest, req.Fence)
		// A replica that is behind catches up; nothing mends the rest by itself.
		if h := resp.Highest; h.GetCellId() != req.Fence.CellId || h.GetEpoch() > req.Fence.Epoch || h.GetTerm() > s.cfg.Log.State().Term {
			s.warn("borglet obeys another master", p, a.event.Err)
		}
	default:
		same := p.known.same(resp)
		p.known.Take(resp)
		a.allocs, a.volumes = resp.AllocUsage, resp.VolumeUsage
		if a.usage = resp.Usage; !req.NoUsage {
			p.known.usageDueNs = s.cfg.NowNs() + p.usageNs
		}
		s.cfg.Log.View(func(c *cell.Cell) {
			m := c.Machine(p.Machine)
			switch {
			case m == nil:
			case same && p.known.rests(c, m):
				a.compared = &Comparison{}
			default:
				a.compared = Compare(s.cfg.NowNs(), c, m, req, resp, p.known)
				p.known.rest(c, m, req, a.compared)
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
func (s *Station) warn(message string, p Poll, why string) {
	now := s.cfg.NowNs()
	known := p.known
	if known.warnedNs == 0 || now-known.warnedNs > warnAgainNs {
		known.warnedNs = now
		s.cfg.Logger.Warn(message, "machine", p.Machine, "err", why)
	}
	// Its line goes on: what is asked next is not what was asked on it before.
	*known = Known{warnedNs: known.warnedNs, asked: known.asked}
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
