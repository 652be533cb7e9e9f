package cfg

import (
	"strings"

	"borg/proto/borgpb"
)

// DiffAllocSet compares an alloc set of the cell with what a file says of it. An effect
// on tasks is one on what runs in its allocs.
func DiffAllocSet(old *borgpb.AllocSet, o *Object) []Change {
	d := &differ{}
	d.message("", old.GetSpec().ProtoReflect(), o.AllocSet.ProtoReflect())
	for i := range d.changes {
		d.changes[i].Effect = effectOfSet(d.changes[i].Path)
	}
	return append(DiffLabels(old.GetMeta(), o), d.changes...)
}

func effectOfSet(path string) Effect {
	switch field := first(path); {
	case path == "allocs":
		return EffectResize
	case strings.HasPrefix(path, "resources.device"):
		return EffectReschedule
	case field == "resources" || field == "constraints":
		return EffectInPlace
	}
	return EffectNone
}
