package main

import (
	"errors"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"

	"borg/borgmaster/client"
	"borg/cli"
	"borg/proto/borgpb"
	"borg/proto/borgrpc"
)

// allocList lists the alloc sets, or one and its allocs.
func allocList(s *session) error {
	if len(s.args) == 1 {
		return s.allocsOf(s.args[0])
	}
	m, err := s.master()
	if err != nil {
		return err
	}
	resp, err := m.ListAllocs(s.ctx, &borgrpc.ListAllocsRequest{Selector: s.flag.String("selector")})
	if err != nil {
		return err
	}
	switch {
	case s.out.machine():
		return list(s.out, resp.AllocSets)
	case s.out.format == "name":
		var names []string
		for _, a := range resp.AllocSets {
			names = append(names, a.GetMeta().GetUser()+"/"+a.GetMeta().GetName())
		}
		return s.out.names(names)
	}
	if len(resp.AllocSets) == 0 {
		s.progress("no alloc sets")
		return nil
	}
	var t table
	t.head("ALLOC SET", "STATE", "ALLOCS", "RUNNING", "PENDING", "CPU EACH", "MEM EACH", "CHANGED", "REASON")
	for _, a := range resp.AllocSets {
		st, r := a.GetStatus(), a.GetSpec().GetResources()
		t.add(s.short(a.GetMeta().GetUser(), a.GetMeta().GetName()), stateCell(st.GetState()), a.GetSpec().GetAllocs(), st.GetRunning(), st.GetPending(),
			cpuText(r.GetCpuMilli()), bytesText(r.GetMemBytes()), ago(s.now(), st.GetChangedWallNs()), st.GetReason())
	}
	return t.write(s.out, "")
}

func (s *session) allocsOf(arg string) error {
	n, err := s.job(arg)
	if err != nil {
		return err
	}
	m, err := s.master()
	if err != nil {
		return err
	}
	resp, err := m.ListAllocs(s.ctx, &borgrpc.ListAllocsRequest{User: n.user, Name: n.name, Used: s.out.wide() || s.out.machine()})
	var missing *client.NotFoundError
	if errors.As(err, &missing) || (err == nil && len(resp.AllocSets) == 0) {
		return cli.Errorf(cli.NotFound, "there is no alloc set %s", n).Hint("%s", s.missingHint(n.String(), "there is no such alloc set"))
	}
	if err != nil {
		return err
	}
	switch {
	case s.out.machine():
		return s.out.parts(part{"alloc_set", []proto.Message{resp.AllocSets[0]}, false}, part{"allocs", messages(resp.Allocs), true})
	case s.out.format == "name":
		var names []string
		for _, a := range resp.Allocs {
			names = append(names, taskName(a.GetMeta().GetUser(), a.GetMeta().GetName(), a.GetIndex()))
		}
		return s.out.names(names)
	}
	spec := resp.AllocSets[0].GetSpec().GetResources()
	var t table
	head := []string{"ALLOC", "STATE", "ATTEMPT", "MACHINE", "CPU", "MEM"}
	if s.out.wide() {
		head = append(head, "CPU USED", "MEM USED")
	}
	t.head(append(head, "TASKS", "CHANGED", "REASON")...)
	for _, a := range resp.Allocs {
		st, capacity := a.GetStatus(), spec
		if h := st.GetHolds(); h != nil {
			capacity = h
		}
		cells := []any{
			taskName(a.GetMeta().GetUser(), a.GetMeta().GetName(), a.GetIndex()), stateCell(st.GetState()), number(st.GetAttempt()), st.GetMachine(),
			cpuText(st.GetUsed().GetCpuMilli()) + " of " + cpuText(capacity.GetCpuMilli()),
			bytesText(st.GetUsed().GetMemBytes()) + " of " + bytesText(capacity.GetMemBytes()),
		}
		if s.out.wide() {
			cells = append(cells, usedText(st)...)
		}
		t.add(append(cells, strings.Join(st.GetTasks(), " "), ago(s.now(), st.GetChangedWallNs()), st.GetReason())...)
	}
	if err := t.write(s.out, ""); err != nil {
		return err
	}
	s.sayWaits(resp.AllocSets[0])
	return s.savesOf(resp.AllocSets[0])
}

// usedText is what all in an alloc uses: nothing for one that is nowhere.
func usedText(st *borgpb.AllocStatus) []any {
	switch used := st.GetMeasured(); {
	case used != nil:
		return []any{cpuText(used.GetCpuMilli()), bytesText(used.GetMemBytes())}
	case st.GetState() == borgpb.State_STATE_RUNNING:
		return []any{"?", "?"}
	}
	return []any{"", ""}
}

// savesOf shows what allocs of a set left on machines and is not saved.
func (s *session) savesOf(set *borgpb.AllocSet) error {
	saves := set.GetStatus().GetSaves()
	if len(saves) == 0 {
		return nil
	}
	var t table
	t.head("LEFT BY", "ATTEMPT", "MACHINE", "SAVED BY", "FAILED", "GIVEN UP IN", "REASON")
	for _, v := range saves {
		left := "given up"
		if v.GetLeftNs() > 0 {
			left = time.Duration(v.GetLeftNs()).Truncate(time.Second).String()
		}
		t.add(taskName(set.GetMeta().GetUser(), set.GetMeta().GetName(), v.GetIndex()), v.GetAttempt(), v.GetMachine(), v.GetJob(), v.GetFailures(), left, v.GetReason())
	}
	return t.write(s.out, "")
}
