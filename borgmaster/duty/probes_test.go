package duty

import (
	"fmt"
	"testing"

	"borg/borgmaster/linkshard"
	"borg/proto/borgrpc"
)

// TestProbesAreBounded: when half of a large cell vanishes its machines are tried as far
// as they can be called down, and hardly any beyond that; one that another replica has
// reached comes first.
func TestProbesAreBounded(t *testing.T) {
	const machines = 1000
	d := New(Bounds{})
	now := int64(0)
	elected := Elected{Term: 1, Self: 1, Members: []uint64{1, 2, 3}}
	for n := range machines {
		elected.Machines = append(elected.Machines, MachineSeen{Name: fmt.Sprint("m", n), Addr: "x:1", Up: true})
	}
	d.Step(now, elected)
	out := map[string]int64{}
	contradicted := 0
	act := func(effects []Effect) {
		for _, e := range effects {
			switch e := e.(type) {
			case Probe:
				out[e.Machine] = now
				if d.machines[e.Machine].contradicted > 0 {
					contradicted++
				}
			case Propose:
				if e.Machine != "" {
					d.Step(now, Proposed{Machine: e.Machine, OK: true})
					d.Step(now, MachineSeen{Name: e.Machine, Addr: "x:1"})
				}
			}
		}
		if len(out) != d.probes || len(out) > probesAtOnce {
			t.Fatalf("at %d ms %d machines are being tried and %d are counted; want at most %d", now/1e6, len(out), d.probes, probesAtOnce)
		}
	}
	unheard := uint32(0)
	started := 0
	for ; now < 130e9; now += 100e6 {
		for _, replica := range elected.Members {
			_, version := d.Live()
			report := Reported{Replica: replica, Unheard: &unheard, LiveVersion: version}
			if now >= 10e9 && now%1e9 == 0 {
				unheard = machines / 2 / 3
				for n := 0; n < machines; n += 2 {
					name := fmt.Sprint("m", n)
					if live, _ := d.Live(); linkshard.Owner(name, live) == replica && d.machines[name].up {
						report.Contacts = append(report.Contacts, &borgrpc.Contact{Machine: name, Missed: uint32(now/1e9 - 9), SilentNs: now - 9e9})
					}
				}
			}
			before := len(out)
			act(d.Step(now, report))
			started += len(out) - before
		}
		before := len(out)
		act(d.Step(now, Ticked{Members: elected.Members}))
		started += len(out) - before
		for name, at := range out {
			// Another replica reaches one of them.
			if reached := name == "m0"; now-at >= 1e9 {
				delete(out, name)
				act(d.Step(now, Probed{Machine: name, Replica: 2, Reached: reached}))
			}
		}
	}
	if d.down < 190 || d.down > 220 {
		t.Errorf("%d machines were called down in two minutes; want a tenth of %d a minute", d.down, machines)
	}
	if started > d.down+4*120 {
		t.Errorf("%d machines were tried for %d that were called down", started, d.down)
	}
	if contradicted == 0 {
		t.Error("a machine that another replica reached was not tried again")
	}
}
