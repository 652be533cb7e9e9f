package linkshard

import (
	"maps"
	"slices"

	"google.golang.org/protobuf/proto"

	"borg/borgmaster/cell"
	"borg/proto/borgpb"
)

// facts are the attributes that only the machine can know. What anybody else
// says of them would not last until the next poll.
var facts = []string{"arch", "os", "kernel", "hostname", "runtime", "cgroup", cell.NetworkAttribute}

// IsFact tells whether only the machine's borglet has a say on an attribute.
func IsFact(key string) bool { return slices.Contains(facts, key) }

// Change returns what the cell should be told of a machine, or nil: present is
// what the cell has, word what the borglet says, before what it last said (nil:
// not known). Capacity, ports, packages (where the cell's format knows them) and facts
// follow the borglet always; other
// attributes only when the borglet changed its own word on them, so that an
// operator's attribute stays until then.
func Change(format uint32, name string, present, before, word *borgpb.MachineSpec) *borgpb.SetMachine {
	if word == nil {
		return nil
	}
	set := &borgpb.SetMachine{Name: name, SetAttributes: map[string]string{}}
	changed := false
	if c := word.GetCapacity(); c != nil && !sameCapacity(c, present.GetCapacity()) {
		set.Capacity, changed = c, true
	}
	if word.PortLast != 0 && (word.PortFirst != present.GetPortFirst() || word.PortLast != present.GetPortLast()) {
		set.PortFirst, set.PortLast, changed = word.PortFirst, word.PortLast, true
	}
	if format >= cell.FormatPackages {
		set.Packages = changedPackages(present.GetPackages(), word.Packages)
		changed = changed || set.Packages != nil
	}
	for key, value := range word.Attributes {
		old, had := before.GetAttributes()[key]
		follow := IsFact(key) || (before != nil && (!had || old != value))
		if have, ok := present.GetAttributes()[key]; follow && (!ok || have != value) {
			set.SetAttributes[key], changed = value, true
		}
	}
	for _, key := range slices.Sorted(maps.Keys(before.GetAttributes())) {
		have, ok := present.GetAttributes()[key]
		if _, says := word.Attributes[key]; !says && ok && have == before.Attributes[key] {
			set.RemoveAttributes, changed = append(set.RemoveAttributes, key), true
		}
	}
	if !changed {
		return nil
	}
	return set
}

// sameCapacity leaves ports out: their number follows from the range.
func sameCapacity(a, b *borgpb.Resources) bool {
	a, b = proto.CloneOf(a), proto.CloneOf(b)
	if a == nil || b == nil {
		return a == b
	}
	a.Ports, b.Ports = 0, 0
	return proto.Equal(a, b)
}
