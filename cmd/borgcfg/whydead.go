package main

import (
	"cmp"
	"fmt"
	"strings"

	"borg/proto/borgpb"
	"borg/proto/borgrpc"
)

// maxDeadNamed bounds the tasks that are named for one way of ending.
const maxDeadNamed = 4

// whyDead says why a job is dead, and how its tasks ended, once for all that ended
// alike. False: it is not dead.
func (s *session) whyDead(n jobName) (bool, error) {
	v, err := s.find(n)
	if err != nil || v.job.GetStatus().GetState() != borgpb.State_STATE_DEAD {
		return false, err
	}
	resp, err := s.client.ListAllTasks(s.ctx, &borgrpc.ListTasksRequest{User: n.user, Name: n.name}, 0)
	if err != nil {
		return true, err
	}
	name := s.short(n.user, n.name)
	s.say("%s", deadVerdict(v.job, name, resp.Tasks))
	var order []string
	alike := map[string][]uint32{}
	for _, t := range resp.Tasks {
		st := t.GetStatus()
		how := cmp.Or(exitText(st.GetLastExit()), st.GetReason(), "it never ran")
		if alike[how] == nil {
			order = append(order, how)
		}
		alike[how] = append(alike[how], t.GetIndex())
	}
	for _, how := range order {
		all := alike[how]
		var text strings.Builder
		for i, index := range all[:min(len(all), maxDeadNamed)] {
			if i > 0 {
				text.WriteString(", ")
			}
			fmt.Fprintf(&text, "%s/%d", name, index)
		}
		if more := len(all) - maxDeadNamed; more > 0 {
			fmt.Fprintf(&text, " and %d more", more)
		}
		s.say("  %s: %s", text.String(), how)
	}
	wrote := fmt.Sprintf("what it wrote: borgcfg logs %s/0", name)
	if st := v.job.GetStatus(); st.GetReason() == "" && !endedAlone(v.job, resp.Tasks) {
		wrote = fmt.Sprintf("who ended it: borgcfg audit %s; ", name) + wrote
	}
	s.progress("%s", wrote)
	return true, nil
}
