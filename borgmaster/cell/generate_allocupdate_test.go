package cell

import (
	"fmt"

	"borg/proto/borgpb"
)

// changeSet updates or resizes an alloc set: mostly in one respect, so that it is not
// refused for another.
func (g *generator) changeSet() *borgpb.Op {
	name := pick(g.r, []string{"p", "p", "q", "q", "z"})
	if g.one(3) {
		return &borgpb.Op{Op: &borgpb.Op_ResizeAllocSet{ResizeAllocSet: &borgpb.ResizeAllocSet{
			User: "ann", Name: name, ExpectVersion: g.version(), Allocs: uint32(g.r.IntN(6))}}}
	}
	spec := g.setSpec()
	if s := g.c.AllocSet(JobKey{"ann", name}); s != nil && !g.one(10) {
		next := sized(s.spec, 0)
		switch g.r.IntN(8) {
		case 0:
			next.Allocs = uint32(1 + g.r.IntN(5))
		case 1:
			next.Priority = spec.Priority
		case 2:
			next.MaxPerMachine, next.MaxPer = spec.MaxPerMachine, spec.MaxPer
		case 3:
			next.Constraints = []*borgpb.Constraint{{Key: "rack", Relation: borgpb.Relation_RELATION_EQUAL, Value: fmt.Sprint(g.r.IntN(3))}}
		case 4:
			next.Saver = spec.Saver
		case 5:
			next.Resources = spec.Resources
		default:
			next.Resources.CpuMilli = spec.Resources.CpuMilli
		}
		if next.Allocs == 0 {
			next.Allocs = s.spec.Allocs
		}
		spec = next
	}
	return &borgpb.Op{Op: &borgpb.Op_UpdateAllocSet{UpdateAllocSet: &borgpb.UpdateAllocSet{
		User: "ann", Name: name, ExpectVersion: g.version(), Labels: g.labels(), Annotations: map[string]string{"seen": fmt.Sprint(g.r.IntN(2))},
		Spec: marshal(g.t, spec), Merge: g.one(2)}}}
}
