package cell

import (
	"fmt"
	"strings"

	"borg/proto/borgpb"
)

func (s *script) setSpec() *borgpb.AllocSetSpec {
	spec := &borgpb.AllocSetSpec{
		Allocs: uint32(s.num("allocs", 1)), Priority: int32(s.num("priority", 200)), Resources: s.resources(), MaxPer: s.maxPer(),
		Network: s.network(), Gang: s.has("gang"), Volumes: s.volumes(false),
	}
	if s.has("rack") {
		spec.Constraints = []*borgpb.Constraint{{Key: "rack", Relation: borgpb.Relation_RELATION_EQUAL, Value: s.arg("rack", "")}}
	}
	if s.has("saver") {
		spec.Saver = &borgpb.Saver{TimeNs: s.num("save-time", 0), Task: &borgpb.TaskSpec{
			Args: s.list("saver"), ExclusiveCores: s.has("saver-cores"), Resources: &borgpb.Resources{CpuMilli: s.num("saver-cpu", 100), MemBytes: 1 << 20}}}
	}
	return spec
}

// changeSet reads: update-allocset USER/SET [expect=N] [merge] and what allocset reads, or
// resize-allocset USER/SET allocs=N [expect=N].
func (s *script) changeSet() *borgpb.Op {
	user, name := s.key()
	expect := uint64(s.num("expect", 0))
	if s.d.Cmd == "resize-allocset" {
		return &borgpb.Op{Op: &borgpb.Op_ResizeAllocSet{ResizeAllocSet: &borgpb.ResizeAllocSet{
			User: user, Name: name, ExpectVersion: expect, Allocs: uint32(s.num("allocs", 0))}}}
	}
	return &borgpb.Op{Op: &borgpb.Op_UpdateAllocSet{UpdateAllocSet: &borgpb.UpdateAllocSet{
		User: user, Name: name, ExpectVersion: expect, Labels: s.words("labels"), Annotations: s.words("annotations"),
		Spec: marshal(s.t, s.setSpec()), Merge: s.d.HasArg("merge")}}}
}

// showSet shows an alloc set and what each of its allocs holds.
func (s *script) showSet(b *strings.Builder, set *AllocSet) {
	p := s.c.AllocSetProto(set)
	fmt.Fprintf(b, "%v version %d, %d allocs, %d behind", set.key, p.Meta.Version, p.Spec.Allocs, p.Status.Behind)
	if why := s.c.Waits(set); why != "" {
		fmt.Fprintf(b, " (%s)", why)
	}
	for _, k := range sortedKeys(set.labels) {
		fmt.Fprintf(b, " %s=%s", k, set.labels[k])
	}
	allocs, labels, _ := set.Given()
	fmt.Fprintf(b, "; given %d", allocs)
	for _, k := range sortedKeys(labels) {
		fmt.Fprintf(b, " %s=%s", k, labels[k])
	}
	b.WriteString("\n")
	for a := range set.Allocs() {
		at := ""
		if a.machine != nil {
			at = " on " + a.machine.name
		}
		fmt.Fprintf(b, "%d.%d %v%s holds %s\n", a.index, a.attempt, a.state, at, chargeOf(0, &a.room.capacity, 1).words())
	}
}
