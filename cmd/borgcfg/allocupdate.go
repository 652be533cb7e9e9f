package main

import (
	"fmt"

	"borg/cli"
	"borg/proto/borgpb"
	"borg/proto/borgrpc"
)

// updateSet is the mutation that gives an alloc set the spec of its file.
func (st *step) updateSet() (*borgpb.Op, error) {
	spec, err := st.SpecBytes()
	if err != nil {
		return nil, fmt.Errorf("%s: %w", st.Key(), err)
	}
	return &borgpb.Op{ConfigHash: st.file.Hash, Op: &borgpb.Op_UpdateAllocSet{UpdateAllocSet: &borgpb.UpdateAllocSet{
		User: st.User, Name: st.Name, ExpectVersion: st.allocs.GetMeta().GetVersion(), Labels: st.Labels, Annotations: st.Annotations,
		Spec: spec, Merge: st.merged != nil}}}, nil
}

// sayBehind says what is still to be done after an update of an alloc set, which is
// updated whether or not that can be told.
func (s *session) sayBehind(user, name string) {
	resp, err := s.client.ListAllocs(s.ctx, &borgrpc.ListAllocsRequest{User: user, Name: name, Limit: 1})
	if err == nil && len(resp.AllocSets) > 0 {
		s.sayWaits(resp.AllocSets[0])
	}
}

// sayWaits says how many allocs are yet to become what the spec says, and why.
func (s *session) sayWaits(set *borgpb.AllocSet) {
	st := set.GetStatus()
	if st.GetBehind() == 0 {
		return
	}
	why := ""
	if st.GetWaits() != "" {
		why = ": " + st.GetWaits()
	}
	s.progress("%s yet to become what the spec says%s", plural(st.GetBehind(), "alloc"), why)
}

// resizeSet changes the number of allocs. What runs in those that end is told: it waits
// for room in the others.
func (s *session) resizeSet(n jobName, set *borgpb.AllocSet, allocs uint32) error {
	name, before := s.short(n.user, n.name), set.GetSpec().GetAllocs()
	switch {
	case set.GetStatus().GetState() == borgpb.State_STATE_DEAD:
		return cli.Errorf(cli.Refused, "alloc set %s is dead", n).Hint("make it again: borgcfg up FILE")
	case before == allocs:
		s.say("alloc set %s: unchanged, %s", name, plural(before, "alloc"))
		return nil
	}
	leave, err := s.tasksFrom(n, allocs)
	if err != nil {
		return err
	}
	if _, err := s.client.Mutate(s.ctx, s.op(&borgpb.Op{Op: &borgpb.Op_ResizeAllocSet{ResizeAllocSet: &borgpb.ResizeAllocSet{
		User: n.user, Name: n.name, ExpectVersion: set.GetMeta().GetVersion(), Allocs: allocs}}})); err != nil {
		return err
	}
	s.say("alloc set %s: %d -> %d allocs", name, before, allocs)
	if leave > 0 {
		s.progress("%s ran in allocs that end: each waits for room in another, or for the alloc of its index (borgcfg why TASK)", plural(leave, "task"))
	}
	return nil
}

// tasksFrom counts the tasks in the allocs of a set from that index on.
func (s *session) tasksFrom(n jobName, first uint32) (tasks uint32, err error) {
	after := ""
	if first > 0 {
		after = taskName(n.user, n.name, first-1)
	}
	for {
		resp, err := s.client.ListAllocs(s.ctx, &borgrpc.ListAllocsRequest{User: n.user, Name: n.name, After: after})
		if err != nil {
			return 0, err
		}
		for _, a := range resp.Allocs {
			tasks += uint32(len(a.GetStatus().GetTasks()))
		}
		if after = resp.NextAfter; after == "" {
			return tasks, nil
		}
	}
}
