package duty

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"

	"borg/borgmaster/linkshard"
	"borg/proto/borgpb"
	"borg/proto/borgrpc"
)

// TestDuties plays transcripts of the elected master's duties: each command is
// an event at a time, its output what the shell is to do.
func TestDuties(t *testing.T) {
	datadriven.Walk(t, "testdata/duties", func(t *testing.T, path string) {
		d := New(Bounds{})
		now := int64(0)
		datadriven.RunTest(t, path, func(t *testing.T, td *datadriven.TestData) string {
			var at string
			if td.MaybeScanArgs(t, "at", &at) {
				now = int64(seconds(t, at) * 1e9)
			}
			switch td.Cmd {
			case "owner":
				return showOwners(d, strings.Fields(td.Input))
			case "heartbeats":
				return heartbeats(t, td, d, &now)
			}
			var b strings.Builder
			for _, e := range d.Step(now, parseDuty(t, td)) {
				b.WriteString(showEffect(e))
			}
			if td.HasArg("show") {
				b.WriteString(showDuties(d))
			}
			return b.String()
		})
	})
}

func seconds(t *testing.T, text string) float64 {
	t.Helper()
	n, err := strconv.ParseFloat(strings.TrimSuffix(text, "s"), 64)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// heartbeats lets replicas report twice a second until a time.
func heartbeats(t *testing.T, td *datadriven.TestData, d *Core, now *int64) string {
	t.Helper()
	var until int64
	var replicas string
	td.ScanArgs(t, "until", &until)
	td.ScanArgs(t, "replicas", &replicas)
	var b strings.Builder
	const every = 500e6
	for ; *now <= until*1e9; *now += every {
		for _, id := range ids(t, replicas) {
			for _, e := range d.Step(*now, Reported{Replica: id}) {
				b.WriteString(showEffect(e))
			}
		}
	}
	*now -= every
	return b.String() + showDuties(d)
}

func ids(t *testing.T, text string) []uint64 {
	t.Helper()
	var all []uint64
	for f := range strings.SplitSeq(text, "+") {
		n, err := strconv.ParseUint(f, 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, n)
	}
	return all
}

func parseDuty(t *testing.T, td *datadriven.TestData) Event {
	t.Helper()
	var text string
	var replica uint64
	td.MaybeScanArgs(t, "replica", &replica)
	switch td.Cmd {
	case "elected":
		e := Elected{Self: 1}
		td.ScanArgs(t, "term", &e.Term)
		td.MaybeScanArgs(t, "before", &e.Before)
		td.ScanArgs(t, "members", &text)
		e.Members = ids(t, text)
		for name := range strings.FieldsSeq(td.Input) {
			name, down := strings.CutSuffix(name, "(down)")
			e.Machines = append(e.Machines, MachineSeen{Name: name, Addr: name + ":7101", Up: !down})
		}
		return e
	case "report":
		e := Reported{Replica: replica}
		td.MaybeScanArgs(t, "format", &e.Format)
		var unheard uint32
		if td.MaybeScanArgs(t, "unheard", &unheard) {
			e.Unheard = &unheard
			td.MaybeScanArgs(t, "of", &e.LiveVersion)
		}
		td.MaybeScanArgs(t, "returned", &e.Returned)
		if td.MaybeScanArgs(t, "deaf", &text) {
			e.SilentNs = int64(seconds(t, text) * 1e9)
		}
		for line := range strings.Lines(td.Input) {
			f := strings.Fields(line)
			switch f[1] {
			case "reached":
				e.Contacts = append(e.Contacts, &borgrpc.Contact{Machine: f[0], Reached: true})
			case "missed":
				// After one miss a poll a second: silent for a second more than polls missed.
				missed, _ := strconv.ParseUint(f[2], 10, 32)
				silent := float64(missed + 1)
				if len(f) > 3 {
					silent = seconds(t, f[3])
				}
				e.Contacts = append(e.Contacts, &borgrpc.Contact{Machine: f[0], Missed: uint32(missed), Error: "no route", SilentNs: int64(silent * 1e9)})
			case "says":
				e.Contacts = append(e.Contacts, &borgrpc.Contact{Machine: f[0], Reached: true, Set: &borgpb.SetMachine{
					Name: f[0], SetAttributes: map[string]string{"kernel": f[2]},
				}})
			case "unknown":
				u := &borgpb.MachineReport{Machine: f[0]}
				for _, uid := range f[2:] {
					u.Tasks = append(u.Tasks, &borgpb.TaskReport{JobUid: uid})
				}
				e.Unknown = append(e.Unknown, u)
			}
		}
		return e
	case "paused":
		var n int64
		td.ScanArgs(t, "ms", &n)
		return Paused{n * 1e6}
	case "closed":
		return DoorClosed{replica}
	case "probed":
		e := Probed{Replica: replica, Reached: td.HasArg("reached"), NoAnswer: td.HasArg("no-answer"), Err: "timed out"}
		td.ScanArgs(t, "machine", &e.Machine)
		return e
	case "proposed":
		e := Proposed{OK: !td.HasArg("refused")}
		td.ScanArgs(t, "machine", &e.Machine)
		return e
	case "down", "up":
		td.ScanArgs(t, "machine", &text)
		return MachineSeen{Name: text, Addr: text + ":7101", Up: td.Cmd == "up"}
	case "gone":
		td.ScanArgs(t, "machine", &text)
		return MachineGone{text}
	case "tick":
		td.ScanArgs(t, "members", &text)
		e := Ticked{Members: ids(t, text)}
		td.MaybeScanArgs(t, "applied", &e.Applied)
		td.MaybeScanArgs(t, "format", &e.Format)
		td.MaybeScanArgs(t, "first-admin", &e.FirstAdmin)
		e.LostDeclared = td.HasArg("lost-declared")
		return e
	}
	t.Fatalf("unknown command %q", td.Cmd)
	return nil
}

func showEffect(e Effect) string {
	switch e := e.(type) {
	case Probe:
		return fmt.Sprintf("probe %s at %s by replica %d\n", e.Machine, e.Addr, e.Replica)
	case Propose:
		switch op := e.Op.Op.(type) {
		case *borgpb.Op_MachineDown:
			return fmt.Sprintf("down %s term %d: %s\n", e.Machine, op.MachineDown.Term, op.MachineDown.Reason)
		case *borgpb.Op_MachineUp:
			return fmt.Sprintf("up %s\n", e.Machine)
		case *borgpb.Op_SetMachine:
			return fmt.Sprintf("set %s %v\n", op.SetMachine.Name, op.SetMachine.SetAttributes)
		case *borgpb.Op_Time:
			return "time\n"
		case *borgpb.Op_Grant:
			return fmt.Sprintf("grant %s the capability %s\n", op.Grant.User, op.Grant.Capability)
		case *borgpb.Op_RaiseFormat:
			return fmt.Sprintf("raise the format to %d\n", op.RaiseFormat.Format)
		}
	}
	return fmt.Sprintf("%#v\n", e)
}

func showDuties(d *Core) string {
	var s strings.Builder
	s.WriteString(fmt.Sprintf("live %v version %d\n", d.live, d.liveVersion))
	if len(d.missing) > 0 {
		s.WriteString(fmt.Sprintf("missing %v\n", slices.Sorted(maps.Keys(d.missing))))
	}
	if r := d.Reach(); r.Unreachable > 0 {
		s.WriteString(fmt.Sprintf("%d of %d machines cannot be reached", r.Unreachable, r.Machines))
		if r.Stopped {
			s.WriteString(fmt.Sprintf(", more than %d %%: none is called down", r.StopPercent))
		}
		s.WriteString("\n")
	}
	for _, name := range slices.Sorted(maps.Keys(d.unknown)) {
		s.WriteString(fmt.Sprintf("unknown on %s: %d\n", name, len(d.unknown[name])))
	}
	return s.String()
}

func showOwners(d *Core, machines []string) string {
	var b strings.Builder
	for _, name := range machines {
		fmt.Fprintf(&b, "%s: %v\n", name, linkshard.Ranked(name, d.live))
	}
	return b.String()
}
