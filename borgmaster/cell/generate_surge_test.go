package cell

import (
	"cmp"

	"borg/proto/borgpb"
)

// pace gives an update something of what format 8 added.
func (g *generator) pace(p *borgpb.UpdatePolicy) {
	if g.c.format < FormatSurges {
		return
	}
	if g.one(3) {
		p.Surge = uint32(g.r.IntN(4))
	}
	if g.one(3) {
		p.Order, p.SpreadBy = borgpb.UpdateOrder_UPDATE_ORDER_SPREAD, pick(g.r, []string{"", "rack", "arch", "machine"})
	}
	if g.one(3) {
		p.Gate = &borgpb.MetricGate{Url: "http://prom:9090", Query: "up", MostMicro: new(int64(g.r.IntN(9))), FailAfterNs: int64(g.r.IntN(20)) * second / 2}
		if g.one(9) {
			p.Gate.LeastMicro = new(int64(4))
		}
	}
	switch {
	case g.one(40):
		p.SpreadBy = "rack"
	case g.one(40):
		p.Surge = maxTasksPerJob + 1
	case g.one(40) && p.Gate != nil:
		p.Gate.Query = ""
	}
}

// judgeGate answers for a gate, mostly one that waits.
func (g *generator) judgeGate() *borgpb.Op {
	user, name := g.key()
	for j := range g.c.Gated() {
		if user, name = j.key.User, j.key.Name; g.one(2) {
			break
		}
	}
	o := &borgpb.JudgeGate{User: user, Name: name, Words: "0.25", Verdict: borgpb.GateVerdict(cmp.Or(g.r.IntN(4), g.r.IntN(4)))}
	if j := g.c.Job(JobKey{user, name}); j != nil && j.update != nil && !g.one(9) {
		o.UpdateUid = j.update.uid.String()
	}
	return &borgpb.Op{Op: &borgpb.Op_JudgeGate{JudgeGate: o}}
}
