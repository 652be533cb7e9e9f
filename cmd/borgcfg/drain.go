package main

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"borg/borgmaster/client"
	"borg/cli"
	"borg/proto/borgpb"
	"borg/proto/borgrpc"
)

// machineDrain empties machines. All are told at once, so that nothing goes from one
// to the next; the budgets of the jobs hold for all of them together.
func machineDrain(s *session) error {
	deadline := s.flag.Duration("deadline")
	switch {
	case deadline < 0 || s.flag.IsSet("deadline") && deadline == 0:
		return cli.Errorf(cli.Usage, "a deadline of %v has passed already", deadline).Hint("to empty the machine now: --now")
	case deadline != 0 && s.flag.Bool("now"):
		return cli.Errorf(cli.Usage, "--now needs no --deadline").Hint("leave one of both out")
	}
	names, err := s.machinesToDrain()
	if err != nil {
		return err
	}
	var first error
	drained := false
	for _, name := range names {
		err := s.mutateMachineNamed(name, &borgpb.Op{Op: &borgpb.Op_DrainMachine{DrainMachine: &borgpb.DrainMachine{
			Name: name, Drain: true, DeadlineNs: int64(deadline), Now: s.flag.Bool("now"), GiveUpVolumes: s.flag.Bool("give-up-volumes"),
		}}}, "draining")
		var refused *client.RefusedError
		switch {
		case len(names) > 1 && errors.As(err, &refused) && refused.Refusal.Kind == borgpb.RefusalKind_REFUSAL_KIND_STATE:
			s.say("machine %s: draining already", name)
		case first == nil:
			first = err
		}
		drained = drained || err == nil
	}
	if drained {
		s.tellNoneLeft()
	}
	if first != nil || !s.flag.Bool("wait") {
		return first
	}
	return s.waitForEmpty(names)
}

// tellNoneLeft warns when no machine is left that takes tasks, and says how many tasks will
// wait then. The drain is done, whether or not that can be told.
func (s *session) tellNoneLeft() {
	resp, err := s.client.ListMachines(s.ctx, &borgrpc.ListMachinesRequest{})
	if err != nil {
		return
	}
	tasks, first := uint32(0), ""
	for _, m := range resp.Machines {
		st := m.GetStatus()
		if !st.GetDraining() && st.GetState() != borgpb.MachineState_MACHINE_STATE_DOWN {
			return
		}
		if st.GetDraining() {
			tasks, first = tasks+st.GetTasks(), cmp.Or(first, m.GetMeta().GetName())
		}
	}
	s.progress("warning: no machine is left that takes tasks: %s will wait, and what waits now; one takes tasks again with: borgcfg machine undrain %s",
		plural(tasks, "task")+" still there", first)
}

// machinesToDrain are those that are named, or selected.
func (s *session) machinesToDrain() ([]string, error) {
	selector := s.flag.String("selector")
	switch {
	case selector == "" && len(s.args) == 0:
		return nil, cli.Errorf(cli.Usage, "no machine is named").Hint("borgcfg machine drain m1 m2, or --selector rack=r1")
	case selector != "" && len(s.args) > 0:
		return nil, cli.Errorf(cli.Usage, "machines are named or selected, not both").Hint("leave out --selector, or the names")
	case selector == "":
		return slices.Compact(slices.Sorted(slices.Values(s.args))), nil
	}
	m, err := s.master()
	if err != nil {
		return nil, err
	}
	resp, err := m.ListMachines(s.ctx, &borgrpc.ListMachinesRequest{Selector: selector})
	if err != nil {
		return nil, err
	}
	var names []string
	for _, x := range resp.Machines {
		names = append(names, x.GetMeta().GetName())
	}
	if len(names) == 0 {
		return nil, cli.Errorf(cli.NotFound, "no machine has the labels or attributes %s", selector).Hint("see what there is: borgcfg machine list -o wide")
	}
	return names, nil
}

// waitForEmpty tells how the machines become empty, and what they wait for.
func (s *session) waitForEmpty(names []string) error {
	left := slices.Clone(names)
	told := map[string]string{}
	return s.poll(strings.Join(names, ", "), "borgcfg machine drains", func() (bool, error) {
		resp, err := s.client.ListMachines(s.ctx, &borgrpc.ListMachinesRequest{})
		if err != nil {
			return false, err
		}
		there := map[string]*borgpb.Machine{}
		for _, m := range resp.Machines {
			there[m.GetMeta().GetName()] = m
		}
		left = slices.DeleteFunc(left, func(name string) bool {
			line := drainLine(there[name].GetStatus())
			if line != told[name] {
				s.progress("%s: %s", name, line)
				told[name] = line
			}
			return line == emptyWord
		})
		return len(left) == 0, nil
	})
}

const emptyWord = "empty"

// drainLine says how much of a machine is left, and the first thing it waits for.
func drainLine(st *borgpb.MachineStatus) string {
	if st.GetTasks()+st.GetAllocs() == 0 {
		return emptyWord
	}
	line := plural(st.GetTasks(), "task") + " to go"
	if st.GetAllocs() > 0 {
		line = plural(st.GetTasks(), "task") + " and " + plural(st.GetAllocs(), "alloc") + " to go"
	}
	if bs := st.GetDrain().GetBlockers(); len(bs) > 0 {
		line += ", " + heldWords(bs)
	}
	return line
}

// isKept reports whether what holds a drain is a volume that is kept for a task that is gone.
// Otherwise it is a task, which may work in a volume.
func isKept(b *borgpb.DrainBlocker) bool { return b.GetVolume() != "" && b.GetWaitNs() != 0 }

// heldWords counts the tasks that are held back and the volumes that are kept apart, with the
// first reason of each.
func heldWords(bs []*borgpb.DrainBlocker) string {
	var kept, held []*borgpb.DrainBlocker
	for _, b := range bs {
		if isKept(b) {
			kept = append(kept, b)
		} else {
			held = append(held, b)
		}
	}
	var parts []string
	if len(held) > 0 {
		parts = append(parts, plural(len(held), "task")+" held back: "+held[0].GetReason())
	}
	if len(kept) > 0 {
		parts = append(parts, plural(len(kept), "volume")+" kept: "+kept[0].GetReason())
	}
	return strings.Join(parts, "; ")
}

// heldCount is how many tasks are held back, and how many volumes are kept.
func heldCount(bs []*borgpb.DrainBlocker) string {
	kept := 0
	for _, b := range bs {
		if isKept(b) {
			kept++
		}
	}
	text := fmt.Sprint(len(bs) - kept)
	if kept > 0 {
		text += " and " + plural(kept, "volume")
	}
	return text
}

// machineDrains lists the machines that are being emptied, and what each waits for.
func machineDrains(s *session) error {
	m, err := s.master()
	if err != nil {
		return err
	}
	req := &borgrpc.ListMachinesRequest{}
	if len(s.args) == 1 {
		req.Name = s.args[0]
	}
	resp, err := m.ListMachines(s.ctx, req)
	var missing *client.NotFoundError
	if errors.As(err, &missing) {
		return s.noSuchMachine(req.Name)
	}
	if err != nil {
		return err
	}
	drains := slices.DeleteFunc(resp.Machines, func(m *borgpb.Machine) bool { return !m.GetStatus().GetDraining() })
	switch {
	case s.out.machine():
		return list(s.out, drains)
	case s.out.format == "name":
		var names []string
		for _, m := range drains {
			names = append(names, m.GetMeta().GetName())
		}
		return s.out.names(names)
	}
	if len(drains) == 0 {
		s.progress("no machine is draining")
		return nil
	}
	var t table
	t.head("MACHINE", "SINCE", "BY", "DEADLINE", "GONE", "LEFT", "HELD BACK", "REASON")
	for _, m := range drains {
		st, d := m.GetStatus(), m.GetStatus().GetDrain()
		t.add(m.GetMeta().GetName(), ago(s.now(), d.GetSinceWallNs()), d.GetUser(), deadlineText(d), d.GetEvicted(), st.GetTasks(), heldCount(d.GetBlockers()), d.GetReason())
	}
	if err := t.write(s.out, ""); err != nil {
		return err
	}
	for _, m := range drains {
		if st := m.GetStatus(); st.GetState() == borgpb.MachineState_MACHINE_STATE_DOWN {
			s.say("%s does not answer: its tasks have left it, and %s may run there until it answers", m.GetMeta().GetName(), copies(st.GetTasks()))
		}
	}
	return s.blockerTable(drains)
}

func deadlineText(d *borgpb.Drain) string {
	switch {
	case d.GetForced():
		return "now"
	case d.GetDeadlineLeftNs() != 0:
		return "in " + span(time.Duration(d.GetDeadlineLeftNs()))
	}
	return "none"
}

// blockerTable lists the tasks that are held back.
func (s *session) blockerTable(drains []*borgpb.Machine) error {
	var t table
	t.head("MACHINE", "TASK OR VOLUME", "BUDGET OF", "NOT BEFORE", "WAITS BECAUSE")
	n := 0
	for _, m := range drains {
		for _, b := range m.GetStatus().GetDrain().GetBlockers() {
			when := "others run again"
			switch {
			case b.GetWaitNs() != 0:
				when = "in " + span(time.Duration(b.GetWaitNs()))
			case b.GetVolume() != "", b.GetJob() == "":
				when = "-"
			}
			who := b.GetTask()
			if isKept(b) {
				who = b.GetVolume()
			}
			budget := b.GetJob()
			if b.GetVolume() != "" {
				budget = "-"
			}
			t.add(m.GetMeta().GetName(), who, budget, when, b.GetReason())
			n++
		}
	}
	if n == 0 {
		return nil
	}
	s.say("")
	return t.write(s.out, "")
}

func machineUndrain(s *session) error {
	for _, name := range s.args {
		if err := s.mutateMachineNamed(name, &borgpb.Op{Op: &borgpb.Op_DrainMachine{DrainMachine: &borgpb.DrainMachine{Name: name}}}, "takes tasks again"); err != nil {
			return err
		}
	}
	return nil
}

// budgetLine says what a disruption budget allows, and what is used of it.
func budgetLine(b *borgpb.DisruptionBudget, down uint32) string {
	var parts []string
	if b.GetMaxDown() > 0 {
		parts = append(parts, fmt.Sprintf("%d of %d down", down, b.GetMaxDown()))
	}
	if b.GetMaxPerTask() > 0 {
		parts = append(parts, fmt.Sprintf("each task at most %s in %s", plural(b.GetMaxPerTask(), "time"), span(time.Duration(b.GetWindowNs()))))
	}
	return "disruption budget: " + strings.Join(parts, "; ")
}

// safeToDrain tells which of the machines that are named can go now, all together, or
// finds some. When not all that are named can it ends with exit code 6.
func safeToDrain(s *session) error {
	m, err := s.master()
	if err != nil {
		return err
	}
	selector, count := s.flag.String("selector"), s.flag.Uint("count")
	if len(s.args) > 0 && (selector != "" || count != 0) {
		return cli.Errorf(cli.Usage, "machines are named or looked for, not both").Hint("leave out --selector and --count, or the names")
	}
	req := &borgrpc.SafeToDrainRequest{Selector: selector, Count: uint32(min(count, 1<<31))}
	for _, name := range s.args {
		if !slices.Contains(req.Machines, name) {
			req.Machines = append(req.Machines, name)
		}
	}
	resp, err := m.SafeToDrain(s.ctx, req)
	if err != nil {
		return err
	}
	return s.drainVerdicts(resp, len(req.Machines) > 0)
}

func (s *session) drainVerdicts(resp *borgrpc.SafeToDrainResponse, named bool) error {
	safe := 0
	for _, v := range resp.Verdicts {
		if v.GetSafe() {
			safe++
		}
	}
	switch {
	case s.out.machine():
		if err := list(s.out, resp.Verdicts); err != nil {
			return err
		}
	case s.out.format == "name":
		var names []string
		for _, v := range resp.Verdicts {
			if v.GetSafe() {
				names = append(names, v.GetMachine())
			}
		}
		if err := s.out.names(names); err != nil {
			return err
		}
	default:
		if err := s.verdictTable(resp.Verdicts); err != nil {
			return err
		}
	}
	if resp.GetNote() != "" {
		s.progress("%s", resp.GetNote())
	}
	switch {
	case !named && len(resp.Verdicts) == 0:
		return cli.Errorf(cli.Refused, "no machine can be emptied now").Hint("ask about one to hear why: borgcfg machine safe-to-drain MACHINE")
	case named && safe < len(resp.Verdicts):
		return cli.Errorf(cli.Refused, "%d of %s can go now", safe, plural(len(resp.Verdicts), "machine")).Hint("a drain takes as long as budgets need: borgcfg machine drain MACHINE --wait")
	}
	return nil
}

func (s *session) verdictTable(all []*borgrpc.DrainVerdict) error {
	if len(all) == 0 {
		return nil
	}
	var t table
	t.head("MACHINE", "SAFE", "TASKS", "ALLOCS", "BECAUSE")
	for _, v := range all {
		word := cell{text: "no", style: waiting}
		if v.GetSafe() {
			word = cell{text: "yes", style: good}
		}
		why := "all may go, and all have places elsewhere"
		if v.GetTasks()+v.GetAllocs() == 0 {
			why = "nothing runs there"
		}
		var parts []string
		if b := v.GetBlockers(); len(b) > 0 {
			parts = append(parts, heldWords(b))
		}
		if h := v.GetHomeless(); len(h) > 0 {
			parts = append(parts, "no place elsewhere for "+strings.Join(h[:min(len(h), 3)], ", "))
			if len(h) > 3 {
				parts[len(parts)-1] += fmt.Sprintf(" and %d more", len(h)-3)
			}
		}
		if len(parts) > 0 {
			why = strings.Join(parts, "; ")
		} else if !v.GetSafe() {
			why = "not known"
		}
		t.add(v.GetMachine(), word, v.GetTasks(), v.GetAllocs(), why)
	}
	return t.write(s.out, "")
}
