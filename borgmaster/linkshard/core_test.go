package linkshard

import (
	"fmt"
	"strconv"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"

	"borg/proto/borgpb"
	"borg/proto/borgrpc"
)

// TestCore plays transcripts: each command is an event at a time, its output
// what the shell is to do.
func TestCore(t *testing.T) {
	datadriven.Walk(t, "testdata/core", func(t *testing.T, path string) {
		core := NewCore(CoreConfig{Replica: 1, MaxInFlight: 3})
		now := int64(0)
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			if d.HasArg("at") {
				var at string
				d.ScanArgs(t, "at", &at)
				now = ms(t, at)
			}
			return show(core, now, core.Step(now, parseEvent(t, d)))
		})
	})
}

func ms(t *testing.T, text string) int64 {
	t.Helper()
	n, err := strconv.ParseInt(strings.TrimSuffix(text, "ms"), 10, 64)
	if err != nil {
		t.Fatalf("time %q: %v", text, err)
	}
	return n * 1e6
}

func parseEvent(t *testing.T, d *datadriven.TestData) Event {
	var machine, text string
	if d.HasArg("machine") {
		d.ScanArgs(t, "machine", &machine)
	}
	flag := func(key string) bool { return d.HasArg(key) }
	switch d.Cmd {
	case "machines":
		return MachinesAre{Names: strings.Fields(d.Input)}
	case "add":
		return MachineAdded{machine}
	case "remove":
		return MachineRemoved{machine}
	case "touch":
		return Touched{machine}
	case "live":
		var e LiveSet
		d.ScanArgs(t, "term", &e.Term)
		d.ScanArgs(t, "version", &e.Version)
		for f := range strings.FieldsSeq(d.Input) {
			n, err := strconv.ParseUint(f, 10, 64)
			if err != nil {
				t.Fatal(err)
			}
			e.Live = append(e.Live, n)
		}
		return e
	case "log":
		return LogContact{OK: flag("ok")}
	case "master":
		return MasterContact{OK: flag("ok")}
	case "tick":
		return Tick{}
	case "answer":
		e := Answered{Machine: machine, Reached: !flag("miss"), Busy: flag("busy"), Down: flag("down")}
		if flag("miss") {
			e.Err = "connection refused"
		}
		if d.MaybeScanArgs(t, "set", &text) {
			e.Contact = &borgrpc.Contact{Set: &borgpb.SetMachine{Name: machine, SetAttributes: map[string]string{"kernel": text}}}
		}
		return e
	}
	t.Fatalf("unknown command %q", d.Cmd)
	return nil
}

func show(core *Core, now int64, eff Effects) string {
	var b strings.Builder
	for _, name := range eff.Polls {
		fmt.Fprintf(&b, "poll %s\n", name)
	}
	for _, c := range eff.Contacts {
		fmt.Fprintf(&b, "contact %s reached=%v missed=%d", c.Machine, c.Reached, c.Missed)
		if c.SilentNs != 0 {
			fmt.Fprintf(&b, " silent for %d ms", c.SilentNs/1e6)
		}
		if c.Error != "" {
			fmt.Fprintf(&b, " (%s)", c.Error)
		}
		if c.Set != nil {
			fmt.Fprintf(&b, " set %v", c.Set.SetAttributes)
		}
		b.WriteByte('\n')
	}
	if ns := core.DeafNs(now); ns > 0 {
		fmt.Fprintf(&b, "deaf for %d ms\n", ns/1e6)
	}
	if next, ok := core.Next(); ok {
		fmt.Fprintf(&b, "next in %d ms\n", (next-now)/1e6)
	} else {
		b.WriteString("nothing is due\n")
	}
	return b.String()
}
