package main

import (
	"fmt"

	"borg/cli"
	"borg/proto/borgpb"
	"borg/proto/borgrpc"
	"borg/tell"
)

// eventsShown is how many events people get to see unless they ask for more.
const eventsShown = 50

func events(s *session) error {
	if usesHistory(s) {
		return history(s)
	}
	req := &borgrpc.EventsRequest{Machine: s.flag.String("machine"), Follow: s.flag.Bool("follow"), Last: uint32(s.flag.Uint64("last"))}
	if job := s.flag.String("job"); job != "" {
		n, err := s.job(job)
		if err != nil {
			return err
		}
		req.Job = n.String()
	}
	m, err := s.master()
	if err != nil {
		return err
	}
	if err := s.tellUnknown(s.flag.String("job"), req.Machine); err != nil {
		return err
	}
	if req.Follow && s.missed != nil {
		// It may come.
		if err := s.tellMissed(s.missed); err != nil {
			return err
		}
	}
	cut := !s.flag.IsSet("last") && !s.out.machine()
	if cut {
		req.Last = eventsShown
	}
	if s.out.machine() && !req.Follow {
		n, err := s.eventList(req)
		if err != nil {
			return err
		}
		return s.tellNoted(n)
	}
	shown := 0
	err = m.Events(s.ctx, req, func(resp *borgrpc.EventsResponse) error {
		for _, e := range resp.Events {
			shown++
			if err := s.printEvent(e); err != nil {
				return err
			}
		}
		return nil
	})
	if err == nil && !req.Follow {
		s.tellCut(cut, shown, eventsShown)
	}
	if err == nil && shown == 0 {
		s.progress("no events of that among the newest of all, which a master has in memory; older ones: --since 30d")
	}
	if err == nil && !req.Follow {
		err = s.tellNoted(shown)
	}
	return err
}

// eventList prints all events as one list, and counts them.
func (s *session) eventList(req *borgrpc.EventsRequest) (n int, err error) {
	var all []*borgpb.Event
	err = s.client.Events(s.ctx, req, func(resp *borgrpc.EventsResponse) error {
		all = append(all, resp.Events...)
		return nil
	})
	if err != nil {
		return 0, err
	}
	return len(all), list(s.out, all)
}

// printEvent prints an event on a line of its own: they come one by one, so
// that no table can be made of them.
func (s *session) printEvent(e *borgpb.Event) error {
	if done, err := s.printMessage(e); done {
		return err
	}
	if s.out.format == "name" {
		_, err := fmt.Fprintln(s.stdout, cli.Visible(e.Object))
		return err
	}
	_, err := fmt.Fprintln(s.stdout, tell.Event(e))
	return err
}
