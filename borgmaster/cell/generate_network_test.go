package cell

import "borg/proto/borgpb"

// Networks of their own, for the random walk.

// network gives a job one now and then, and few that it cannot have.
func (g *generator) network(s *borgpb.JobSpec) {
	if g.c.format < FormatNetworks || s.AllocSet != "" && !g.one(30) {
		return
	}
	if g.one(4) {
		s.Task.Network = pick(g.r, []borgpb.Network{borgpb.Network_NETWORK_OWN, borgpb.Network_NETWORK_OWN, borgpb.Network_NETWORK_MACHINE})
	}
	if g.one(12) {
		s.Overrides = append(s.Overrides, &borgpb.TaskOverride{First: 1, Last: 3, Spec: &borgpb.TaskSpec{Network: borgpb.Network_NETWORK_OWN}})
	}
}

func (g *generator) networkOfSet(s *borgpb.AllocSetSpec) {
	if g.c.format >= FormatNetworks && g.one(3) {
		s.Network = borgpb.Network_NETWORK_OWN
	}
}

// networkOfMachine: most can give networks.
func (g *generator) networkOfMachine(s *borgpb.MachineSpec) {
	if g.c.format >= FormatNetworks && !g.one(3) {
		s.Attributes[NetworkAttribute] = "own"
	}
}

// addr is what a copy says of its address, which now and then is none.
func (g *generator) addr(p *Copy, r *borgpb.TaskReport) {
	if g.c.format < FormatNetworks {
		return
	}
	r.Addr = p.Addr()
	if g.one(4) {
		r.Addr = pick(g.r, []string{"", "10.0.0.7", "10.0.0.8", "2001:db8::1"})
	}
	if g.one(60) {
		r.Addr = "somewhere else"
	}
}
