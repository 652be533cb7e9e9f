package cell

import "borg/proto/borgpb"

// heldPorts has a borglet say now and then that others hold ports of its machine.
func (g *generator) heldPorts(p *Copy, r *borgpb.TaskReport) {
	if g.c.format < formatHeldPorts || !g.one(12) {
		return
	}
	r.State, r.Pid, r.Exit = int32(borgpb.AttemptState_ATTEMPT_STATE_LOST), 0, nil
	for _, n := range p.Ports() {
		r.HeldPorts = append(r.HeldPorts, &borgpb.HeldPort{Port: n, By: "nginx (process 812)"})
	}
	for range 1 + g.r.IntN(4) {
		r.HeldPorts = append(r.HeldPorts, &borgpb.HeldPort{Port: uint32(1 + g.r.IntN(1<<16-1))})
	}
	if first, last := p.machine.PortRange(); last > first {
		r.HeldPorts = append(r.HeldPorts, &borgpb.HeldPort{Port: uint32(first) + uint32(g.r.IntN(int(last-first)))})
	}
}
