package linkshard

import (
	"google.golang.org/protobuf/proto"

	"borg/borgmaster/cell"
	"borg/proto/borgpb"
)

// allocNetworks are the allocs of a machine that have a network of their own.
func allocNetworks(m *cell.Machine) (names []string) {
	for a := range m.Allocs() {
		if a.Set().Spec().GetNetwork() == borgpb.Network_NETWORK_OWN {
			names = append(names, a.Name())
		}
	}
	return names
}

// readdressed tells whether a copy that counts has another address than the cell knows.
func readdressed(c *cell.Cell, p *cell.Copy, t *borgpb.TaskReport) bool {
	return p.Current() && !terminal(t.State) && c.HearsAddr(p, t.Addr) != p.Addr()
}

// withoutNews leaves out of what a machine said what the log does not know yet: its
// borglet has it from before the cell was restored, or is newer than the masters' format.
func (k *Known) withoutNews(format uint32) {
	if format >= cell.FormatExitWays {
		return
	}
	for i, t := range k.Tasks {
		addr := t.Addr != "" && format < cell.FormatNetworks
		reason := t.GetExit().GetReason() != "" && format < cell.FormatExitReasons
		failures := t.Failures != 0 && format < cell.FormatCrashingServices
		way := t.GetExit().GetReasonCode() != 0 || t.GetExit().GetOomProcess() != "" || t.GetExit().GetOomBytes() != 0
		if !addr && !reason && !failures && !way && len(t.HeldPorts) == 0 && t.OomKills == 0 {
			continue
		}
		t = proto.CloneOf(t)
		k.Tasks[i], t.HeldPorts, t.OomKills = t, nil, 0
		if failures {
			t.Failures = 0
		}
		if way {
			t.Exit.ReasonCode, t.Exit.OomProcess, t.Exit.OomBytes = 0, "", 0
		}
		if addr {
			t.Addr = ""
		}
		if reason {
			t.Exit.Reason = ""
		}
	}
}
