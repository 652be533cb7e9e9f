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

// withoutAddrs leaves out of what a machine said what the log does not know yet: it has
// it from before the cell was restored.
func (k *Known) withoutAddrs(format uint32) {
	if format >= cell.FormatNetworks {
		return
	}
	for i, t := range k.Tasks {
		if t.Addr != "" {
			k.Tasks[i] = proto.CloneOf(t)
			k.Tasks[i].Addr = ""
		}
	}
}
