package main

import (
	"errors"
	"fmt"

	"borg/borgmaster/client"
	"borg/proto/borgrpc"
)

// passed is the pseudo reason of machines that passed all tests.
const passed = "fits"

// why prints the funnel: how many machines each test refused, until none is
// left or some are.
func why(s *session) error {
	job, index, err := s.task(s.args[0])
	if err != nil {
		return err
	}
	m, err := s.master()
	if err != nil {
		return err
	}
	resp, err := m.Why(s.ctx, &borgrpc.WhyRequest{User: job.user, Name: job.name, Index: index})
	var missing *client.NotFoundError
	if errors.As(err, &missing) {
		return s.noSuchTask(job, missing)
	}
	if err != nil {
		return err
	}
	if s.out.machine() {
		return s.out.one(resp)
	}
	if s.out.format == "name" {
		return s.out.names([]string{taskName(job.user, job.name, index)})
	}
	s.say("%s/%d: %s", s.short(job.user, job.name), index, orWord(resp.Summary, word(resp.Task.GetStatus().GetState())))
	if len(resp.Reasons) > 0 {
		t := funnel(resp)
		if err := t.write(s.out, "  "); err != nil {
			return err
		}
	}
	if len(resp.Changes) > 0 {
		s.say("to run it now, any one of:")
		var t table
		for _, c := range resp.Changes {
			t.add(c.Change, "fits "+plural(c.Machines, "machine"))
		}
		if err := t.write(s.out, "  "); err != nil {
			return err
		}
	}
	if resp.Placement != nil {
		return placement(s, resp.Placement)
	}
	return fight(s, resp.Fight)
}

// placement prints what a place was chosen for.
func placement(s *session, p *borgrpc.WhyPlacement) error {
	when := fmt.Sprintf("chosen at index %d", p.Index)
	if p.Index == 0 {
		when = "as things are now, had it no place yet"
	}
	if p.Fight != nil {
		fmt.Fprintf(s.stdout, "%s: no machine had room\n", when)
		return fight(s, p.Fight)
	}
	fmt.Fprintf(s.stdout, "%s: %s of %d looked at had room\n", when, plural(p.Found, "place"), p.Looked)
	runnerUp := p.RunnerUp
	if runnerUp == "" {
		runnerUp = "no other"
	}
	var t table
	t.head("SCORE", p.Machine, runnerUp)
	var here, there int64
	for _, part := range p.Parts {
		here, there = here+part.Points, there+part.RunnerUp
		if part.Points != 0 || part.RunnerUp != 0 {
			t.add(part.Part, part.Points, unless(p.RunnerUp == "", part.RunnerUp))
		}
	}
	t.add("in all", here, unless(p.RunnerUp == "", there))
	return t.write(s.out, "  ")
}

// unless writes a number where there is one.
func unless(none bool, n int64) string {
	if none {
		return ""
	}
	return fmt.Sprint(n)
}

// fight prints who gave way to whom; nothing when nobody did.
func fight(s *session, f *borgrpc.WhyFight) error {
	if f == nil {
		return nil
	}
	fmt.Fprintf(s.stdout, "%s, of priority %d, took room on %s at index %d; %s looked at closely\n",
		f.By, f.Priority, f.Machine, f.Index, plural(f.Looked, "machine"))
	var t table
	t.head("WHO", "PRIORITY", "")
	for _, v := range f.Victims {
		t.add(v.Name, priorityText(v.Priority), "gave way")
	}
	for _, v := range f.Spared {
		t.add(v.Name, priorityText(v.Priority), "stayed: "+v.Why)
	}
	if err := t.write(s.out, "  "); err != nil {
		return err
	}
	cost := "it cost " + f.Cost
	if f.Otherwise != "" {
		cost += fmt.Sprintf("; on %s it would have cost %s", f.Otherwise, f.Dearer)
	}
	fmt.Fprintln(s.stdout, cost)
	return nil
}

// priorityText is the priority of somebody who held room.
func priorityText(n int32) string {
	if n < 0 {
		return "stopping"
	}
	return fmt.Sprint(n)
}

// funnel is the machines that are left after each test.
func funnel(resp *borgrpc.WhyResponse) *table {
	var t table
	t.head("LEFT", "REFUSED", "TEST", "WHY", "NEAREST")
	t.add(resp.Machines, "", "machines in the cell", "", "")
	left := int64(resp.Machines)
	for _, r := range resp.Reasons {
		if r.Test == passed {
			continue
		}
		left -= int64(r.Machines)
		t.add(left, r.Machines, r.Test, r.Detail, r.Nearest)
	}
	for _, r := range resp.Reasons {
		if r.Test == passed {
			t.add(cell{fmt.Sprint(r.Machines), good}, "", "could hold it", r.Detail, r.Nearest)
		}
	}
	return &t
}
