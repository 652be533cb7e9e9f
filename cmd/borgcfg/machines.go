package main

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"borg/borgmaster/client"
	"borg/cli"
	"borg/proto/borgpb"
	"borg/proto/borgrpc"
)

func machineList(s *session) error {
	m, err := s.master()
	if err != nil {
		return err
	}
	req := &borgrpc.ListMachinesRequest{Selector: s.flag.String("selector")}
	if len(s.args) == 1 {
		req.Name = s.args[0]
	}
	resp, err := m.ListMachines(s.ctx, req)
	var missing *client.NotFoundError
	if err == nil && req.Name != "" && len(resp.Machines) == 0 || errors.As(err, &missing) {
		return s.noSuchMachine(req.Name)
	}
	if err != nil {
		return err
	}
	switch {
	case s.out.machine():
		return list(s.out, resp.Machines)
	case s.out.format == "name":
		var names []string
		for _, m := range resp.Machines {
			names = append(names, m.GetMeta().GetName())
		}
		return s.out.names(names)
	}
	if len(resp.Machines) == 0 && req.Selector != "" {
		s.progress("no machine has the labels or attributes %s", req.Selector)
		return nil
	}
	if len(resp.Machines) == 0 {
		s.progress("no machines; let one join: borgcfg machine invite NAME")
		return nil
	}
	return s.machineTable(resp.Machines)
}

func (s *session) machineTable(machines []*borgpb.Machine) error {
	var t table
	head := []string{"MACHINE", "STATE", "TASKS", "ALLOCS", "CPU", "MEM", "DISK", "CHANGED", "ADDRESS"}
	if s.out.wide() {
		head = append(head, "RESERVED CPU", "RESERVED MEM", "USED CPU", "USED MEM", "UNKNOWN", "HELD PORTS", "CERTIFICATE UNTIL", "ATTRIBUTES", "REASON")
	}
	t.head(head...)
	for _, m := range machines {
		st, capacity := m.GetStatus(), m.GetSpec().GetCapacity()
		row := []any{m.GetMeta().GetName(), s.machineState(m), st.GetTasks(), st.GetAllocs(),
			cpuText(st.GetLimits().GetCpuMilli()) + " of " + cpuText(capacity.GetCpuMilli()),
			bytesText(st.GetLimits().GetMemBytes()) + " of " + bytesText(capacity.GetMemBytes()),
			bytesText(st.GetLimits().GetDiskBytes()) + " of " + bytesText(capacity.GetDiskBytes()),
			ago(s.now(), st.GetChangedWallNs()), m.GetSpec().GetAddr()}
		if s.out.wide() {
			usedCPU, usedMem := "?", "?"
			if used := st.GetUsed(); used != nil {
				usedCPU, usedMem = cpuText(used.CpuMilli), bytesText(used.MemBytes)
			}
			row = append(row, cpuText(st.GetReserved().GetCpuMilli()), bytesText(st.GetReserved().GetMemBytes()), usedCPU, usedMem, len(st.GetUnknownTasks()), len(st.GetHeldPorts()), s.certificateUntil(m),
				attributesText(m.GetSpec().GetAttributes()), st.GetReason())
		}
		t.add(row...)
	}
	if err := t.write(s.out, ""); err != nil {
		return err
	}
	for _, m := range machines {
		if held := m.GetStatus().GetHeldPorts(); len(held) > 0 {
			fmt.Fprintf(s.stdout, "%s: other programs hold %s; tasks get none of them\n", m.GetMeta().GetName(), heldPortsText(held))
		}
		if n := len(m.GetStatus().GetUnknownTasks()); n > 0 {
			fmt.Fprintf(s.stdout, "%s: %s run there that the cell does not have: what it gave up it ends by itself, of the rest you decide: borgcfg restore unknown\n", m.GetMeta().GetName(), plural(n, "task"))
		}
	}
	return nil
}

// maxHeldNamed bounds the ports that are named of one machine; -o yaml has all of them.
const maxHeldNamed = 4

// heldPortsText is "port 20000 (nginx (process 812), left out for 9m0s) and 2 more".
func heldPortsText(held []*borgpb.HeldPort) string {
	var names []string
	for _, h := range held[:min(len(held), maxHeldNamed)] {
		by := h.GetBy()
		if by == "" {
			by = "holder unknown"
		}
		names = append(names, fmt.Sprintf("port %d (%s, left out for %s)", h.GetPort(), by, time.Duration(h.GetLeftNs()).Round(time.Second)))
	}
	text := strings.Join(names, ", ")
	if more := len(held) - maxHeldNamed; more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return text
}

func (s *session) machineState(m *borgpb.Machine) cell {
	st := m.GetStatus()
	c := cell{text: word(st.GetState())}
	switch {
	case st.GetState() == borgpb.MachineState_MACHINE_STATE_DOWN:
		c.style = bad
	case st.GetDraining():
		c.style = waiting
	case st.GetState() == borgpb.MachineState_MACHINE_STATE_UP:
		c.style = good
	}
	if st.GetDraining() {
		c.text += ", draining"
	}
	if left, known := s.certificateLeft(m); known && left < nearCertificateEnd {
		c.style = bad
		if c.text += ", certificate ended"; left > 0 {
			c.text = strings.TrimSuffix(c.text, "ended") + "ends in " + left.Round(time.Minute).String()
		}
	}
	return c
}

// certificateUntil is "2026-12-05 10:00:00", or "?" if no master has seen it lately.
func (s *session) certificateUntil(m *borgpb.Machine) string {
	if until := m.GetStatus().GetCertificateUntilWallNs(); until != 0 {
		return time.Unix(0, until).Local().Format(time.DateTime)
	}
	return "?"
}

// nearCertificateEnd is what is left of a machine's certificate when that is told: it is
// renewed when half of its week is over.
const nearCertificateEnd = 42 * time.Hour

// certificateLeft is for how long the certificate of a machine counts, where that was seen.
func (s *session) certificateLeft(m *borgpb.Machine) (time.Duration, bool) {
	until := m.GetStatus().GetCertificateUntilWallNs()
	return time.Duration(until - s.now().UnixNano()), until != 0
}

func attributesText(m map[string]string) string {
	var out []string
	for k, v := range m {
		out = append(out, k+"="+v)
	}
	slices.Sort(out)
	return strings.Join(out, ",")
}

func machineAdd(s *session) error {
	labels, err := pairs("--label", s.flag.StringSlice("label"))
	if err != nil {
		return err
	}
	attributes, err := pairs("--attribute", s.flag.StringSlice("attribute"))
	if err != nil {
		return err
	}
	if err := constrainable(slices.Collect(maps.Keys(attributes))); err != nil {
		return err
	}
	addr := s.args[0]
	if !strings.Contains(addr, ":") {
		return cli.Errorf(cli.Usage, "%q is not an address", addr).Hint("write HOST:PORT of its borglet, such as %s:7101", addr)
	}
	m, err := s.master()
	if err != nil {
		return err
	}
	resp, err := m.AddMachine(s.ctx, &borgrpc.AddMachineRequest{Addr: addr, Name: s.flag.String("name"), Labels: labels, Attributes: attributes,
		Command: s.command(), Reason: s.flag.String("reason")})
	if err != nil {
		return err
	}
	s.say("machine %s: added", resp.GetName())
	return nil
}

// mutateMachine does an op on the machine that is named first.
func (s *session) mutateMachine(op *borgpb.Op, done string) error {
	return s.mutateMachineNamed(s.args[0], op, done)
}

func (s *session) mutateMachineNamed(name string, op *borgpb.Op, done string) error {
	m, err := s.master()
	if err != nil {
		return err
	}
	result, err := m.Mutate(s.ctx, s.op(op))
	var refused *client.RefusedError
	if errors.As(err, &refused) && refused.Refusal.Kind == borgpb.RefusalKind_REFUSAL_KIND_NOT_FOUND {
		return s.noSuchMachine(name)
	}
	if err != nil {
		return err
	}
	s.say("machine %s: %s", name, done)
	if n := result.GetLeftRunning(); n > 0 {
		s.progress("nobody has heard the end of what ran there: %s may run on there, beside others that are started elsewhere; "+
			"the cell ends them if the machine is added again, or else stop the borglet and its tasks there by hand", plural(n, "task"))
	}
	return nil
}

func (s *session) noSuchMachine(name string) error {
	e := cli.Errorf(cli.NotFound, "there is no machine %s", name)
	resp, err := s.client.ListMachines(s.ctx, &borgrpc.ListMachinesRequest{})
	if err == nil {
		var known []string
		for _, m := range resp.Machines {
			known = append(known, m.GetMeta().GetName())
		}
		if near := cli.Nearest(name, known); near != "" {
			return e.Hint("did you mean %s?", near)
		}
	}
	return e.Hint("see what there is: borgcfg machine list")
}

func machineRemove(s *session) error {
	name := s.args[0]
	err := s.mutateMachine(&borgpb.Op{Op: &borgpb.Op_RemoveMachine{RemoveMachine: &borgpb.RemoveMachine{
		Name: name, Force: s.flag.Bool("force"), GiveUpVolumes: s.flag.Bool("give-up-volumes")}}}, "removed")
	var refused *client.RefusedError
	if !errors.As(err, &refused) || refused.Refusal.Kind != borgpb.RefusalKind_REFUSAL_KIND_STATE {
		return err
	}
	return cli.Errorf(cli.Refused, "%w", err).Hint("what is on it: borgcfg tasks --machine %s; borgcfg volume list --machine %s\n"+
		"have its tasks run elsewhere first: borgcfg machine drain %s --wait; of a machine that does not answer, start the borglet there: what it has still is ended\n"+
		"or remove it with what is on it: borgcfg machine remove %s --force --give-up-volumes", name, name, name, name)
}

func machineSet(s *session) error {
	set := &borgpb.SetMachine{Name: s.args[0], SetAttributes: make(map[string]string)}
	for _, arg := range s.args[1:] {
		if key, value, ok := strings.Cut(arg, "="); ok && key != "" {
			set.SetAttributes[key] = value
		} else if key, ok := strings.CutSuffix(arg, "-"); ok && key != "" {
			set.RemoveAttributes = append(set.RemoveAttributes, key)
		} else {
			return cli.Errorf(cli.Usage, "%q is neither KEY=VALUE nor KEY-", arg).Hint("rack=r7 sets an attribute, rack- removes it")
		}
	}
	if err := constrainable(slices.Collect(maps.Keys(set.SetAttributes))); err != nil {
		return err
	}
	return s.changeMachine(set)
}

// changeMachine makes the changes that the arguments after the name say.
func (s *session) changeMachine(set *borgpb.SetMachine) error {
	if err := s.machineHasRemoved(set); err != nil {
		return err
	}
	return s.mutateMachine(&borgpb.Op{Op: &borgpb.Op_SetMachine{SetMachine: set}}, "changed: "+changedWords(s.args[1:]))
}

// machineTaint changes the taints of a machine.
func machineTaint(s *session) error {
	set := &borgpb.SetMachine{Name: s.args[0]}
	for _, arg := range s.args[1:] {
		if key, ok := strings.CutSuffix(arg, "-"); ok && key != "" {
			set.RemoveTaints = append(set.RemoveTaints, key)
			continue
		}
		text, effect, _ := strings.Cut(arg, ":")
		t := &borgpb.Taint{Evict: effect == "evict", PreferNot: effect == "prefer-not"}
		t.Key, t.Value, _ = strings.Cut(text, "=")
		if t.Key == "" || effect != "" && !t.Evict && !t.PreferNot {
			return cli.Errorf(cli.Usage, "%q is no taint", arg).
				Hint("dedicated=db keeps others away, maintenance:evict makes them leave, slow:prefer-not is only advice, and slow- removes it")
		}
		set.SetTaints = append(set.SetTaints, t)
	}
	return s.changeMachine(set)
}

// constrainable refuses attributes that no constraint in a job file could name.
func constrainable(keys []string) error {
	for _, key := range slices.Sorted(slices.Values(keys)) {
		if strings.ContainsAny(key, " \t=<>!,") {
			return cli.Errorf(cli.Usage, "attribute %q: no constraint could name it", key).Hint("leave out spaces, commas, and the signs = < > !")
		}
		if key == nameAttribute {
			return cli.Errorf(cli.Usage, "attribute %q: for constraints that is the name of the machine", key).Hint("choose another name for the attribute")
		}
	}
	return nil
}
