package cell

import "borg/proto/borgpb"

// quarantineOp takes a copy out of service, or lets one go.
func (g *generator) quarantineOp() *borgpb.Op {
	if kept := g.c.quarantined; len(kept) > 0 && g.one(3) {
		p := pick(g.r, kept)
		o := &borgpb.ReleaseTask{User: p.job.key.User, Name: p.job.key.Name, Index: p.index}
		if g.one(2) {
			o.Attempt = p.attempt + uint64(g.r.IntN(5)/4)
		}
		return g.user(&borgpb.Op{Op: &borgpb.Op_ReleaseTask{ReleaseTask: o}})
	}
	user, name := g.key()
	o := &borgpb.QuarantineTask{User: user, Name: name, Index: uint32(g.r.IntN(4)), ForNs: int64(g.r.IntN(40)) * second}
	for range 20 {
		// One that runs, if there is one.
		m := pick(g.r, g.c.machineList)
		if m == nil || len(m.copies) == 0 {
			continue
		}
		if p := pick(g.r, m.copies); p.state.current() {
			o.User, o.Name, o.Index, o.Attempt = p.job.key.User, p.job.key.Name, p.index, p.attempt
			break
		}
	}
	switch {
	case g.one(20):
		o.ForNs = pick(g.r, []int64{-1, maxQuarantineNs, maxQuarantineNs + 1})
	case g.one(20):
		o.Attempt++
	case g.one(3):
		o.Attempt = 0
	}
	return g.user(&borgpb.Op{Op: &borgpb.Op_QuarantineTask{QuarantineTask: o}})
}
