package tell

import (
	"cmp"
	"fmt"
	"io"

	"borg/cli"
	"borg/proto/borgpb"
	"borg/proto/borgrpc"
)

// passed is the pseudo reason of machines that passed all tests.
const passed = "fits"

// Why prints why a task waits, or what its place was chosen for: how many
// machines each test refused, until none is left or some are. name is the task as
// whoever asks calls it.
func Why(w io.Writer, color bool, name string, resp *borgrpc.WhyResponse) error {
	p := page{w, color}
	p.say("%s: %s", name, cmp.Or(resp.Summary, Word(resp.Task.GetStatus().GetState())))
	if st := resp.Task.GetStatus(); st.GetState() == borgpb.State_STATE_DEAD && st.GetLastExit() != nil {
		p.say("its last run ended: %s", Exit(st.LastExit))
	}
	if len(resp.Reasons) > 0 {
		if err := funnel(resp).Write(w, color, "  "); err != nil {
			return err
		}
	}
	if len(resp.Changes) > 0 {
		p.say("to run it now, any one of:")
		var t Table
		for _, c := range resp.Changes {
			t.Add(c.Change, "fits "+plural(c.Machines, "machine"))
		}
		if err := t.Write(w, color, "  "); err != nil {
			return err
		}
	}
	if resp.Placement != nil {
		return p.placement(resp.Placement)
	}
	return p.fight(resp.Fight)
}

// page is where it is printed.
type page struct {
	w     io.Writer
	color bool
}

func (p page) say(format string, args ...any) {
	fmt.Fprintln(p.w, cli.VisibleLines(fmt.Sprintf(format, args...)))
}

// placement prints what a place was chosen for.
func (p page) placement(at *borgrpc.WhyPlacement) error {
	when := fmt.Sprintf("chosen at index %d", at.Index)
	if at.Index == 0 {
		when = "as things are now, had it no place yet"
	}
	if at.Fight != nil {
		p.say("%s: no machine had room", when)
		return p.fight(at.Fight)
	}
	p.say("%s: %s of %d looked at had room", when, plural(at.Found, "place"), at.Looked)
	var t Table
	t.Head("SCORE", at.Machine, cmp.Or(at.RunnerUp, "no other"))
	var here, there int64
	for _, part := range at.Parts {
		here, there = here+part.Points, there+part.RunnerUp
		if part.Points != 0 || part.RunnerUp != 0 {
			t.Add(part.Part, part.Points, unless(at.RunnerUp == "", part.RunnerUp))
		}
	}
	t.Add("in all", here, unless(at.RunnerUp == "", there))
	return t.Write(p.w, p.color, "  ")
}

// unless writes a number where there is one.
func unless(none bool, n int64) string {
	if none {
		return ""
	}
	return fmt.Sprint(n)
}

// fight prints who gave way to whom; nothing when nobody did.
func (p page) fight(f *borgrpc.WhyFight) error {
	if f == nil {
		return nil
	}
	p.say("%s, of priority %d, took room on %s at index %d; %s looked at closely",
		f.By, f.Priority, f.Machine, f.Index, plural(f.Looked, "machine"))
	var t Table
	t.Head("WHO", "PRIORITY", "")
	for _, v := range f.Victims {
		t.Add(v.Name, priorityText(v.Priority), "gave way")
	}
	for _, v := range f.Spared {
		t.Add(v.Name, priorityText(v.Priority), "stayed: "+v.Why)
	}
	if err := t.Write(p.w, p.color, "  "); err != nil {
		return err
	}
	cost := "it cost " + f.Cost
	if f.Otherwise != "" {
		cost += fmt.Sprintf("; on %s it would have cost %s", f.Otherwise, f.Dearer)
	}
	p.say("%s", cost)
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
func funnel(resp *borgrpc.WhyResponse) *Table {
	var t Table
	t.Head("LEFT", "REFUSED", "TEST", "WHY", "NEAREST")
	t.Add(resp.Machines, "", "machines in the cell", "", "")
	left := int64(resp.Machines)
	for _, r := range resp.Reasons {
		if r.Test == passed {
			continue
		}
		left -= int64(r.Machines)
		t.addFolded(3, left, r.Machines, r.Test, r.Detail, r.Nearest)
	}
	for _, r := range resp.Reasons {
		if r.Test == passed {
			t.addFolded(3, Cell{fmt.Sprint(r.Machines), Good}, "", "could hold it", r.Detail, r.Nearest)
		}
	}
	return &t
}
