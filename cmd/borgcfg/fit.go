package main

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"

	"borg/cfg"
	"borg/proto/borgpb"
)

// nameAttribute is the key under which constraints find the name of a machine.
const nameAttribute = "machine"

// tooLarge says why no machine could hold t, which is a task or an alloc, even
// if it were empty, or "". It is a courtesy to the user and no promise: the scheduler decides.
func tooLarge(t *borgpb.TaskSpec, what string, machines []*borgpb.Machine) string {
	need := t.GetResources()
	var best borgpb.Resources
	most := map[string]int64{}
	matching := 0
	for _, m := range machines {
		if !matches(t.GetConstraints(), m) {
			continue
		}
		matching++
		c := m.GetSpec().GetCapacity()
		if need.GetCpuMilli() <= c.GetCpuMilli() && need.GetMemBytes() <= c.GetMemBytes() && need.GetDiskBytes() <= c.GetDiskBytes() &&
			len(t.GetPorts()) <= portsOf(m) && deviceShort(need, c) == "" {
			return ""
		}
		best.CpuMilli = max(best.CpuMilli, c.GetCpuMilli())
		best.MemBytes = max(best.MemBytes, c.GetMemBytes())
		best.DiskBytes = max(best.DiskBytes, c.GetDiskBytes())
		best.Ports = max(best.Ports, int64(portsOf(m)))
		for name, milli := range devicesOf(c) {
			most[name] = max(most[name], milli)
		}
	}
	switch {
	case matching == 0 && t.GetNetwork() == borgpb.Network_NETWORK_OWN:
		return fmt.Sprintf("none of the %d satisfies its constraints, of which network=own is one, since it wants a network of its own", len(machines))
	case matching == 0:
		return fmt.Sprintf("none of the %d satisfies its constraints", len(machines))
	case need.GetCpuMilli() > best.CpuMilli:
		return fmt.Sprintf("%s asks for %s cpu, and the largest machine has %s", what, cpuText(need.GetCpuMilli()), cpuText(best.CpuMilli))
	case need.GetMemBytes() > best.MemBytes:
		return fmt.Sprintf("%s asks for %s of memory, and the largest machine has %s", what, bytesText(need.GetMemBytes()), bytesText(best.MemBytes))
	case need.GetDiskBytes() > best.DiskBytes:
		return fmt.Sprintf("%s asks for %s of disk, and the largest machine has %s", what, bytesText(need.GetDiskBytes()), bytesText(best.DiskBytes))
	case int64(len(t.GetPorts())) > best.Ports:
		return fmt.Sprintf("%s asks for %s, and no machine has more than %d", what, plural(len(t.GetPorts()), "port"), best.Ports)
	}
	if name := deviceShort(need, &borgpb.Resources{DeviceMilli: most}); name != "" {
		return fmt.Sprintf("%s asks for %s %s, and no machine has more than %s", what, cpuText(devicesOf(need)[name]), name, cpuText(most[name]))
	}
	return "none has enough of everything that it asks for"
}

// portsOf returns how many ports a machine gives to tasks.
func portsOf(m *borgpb.Machine) int {
	if first := m.GetSpec().GetPortFirst(); first != 0 {
		return int(m.GetSpec().GetPortLast()) - int(first) + 1
	}
	return 0
}

// devicesOf returns devices by name, in thousandths of one.
func devicesOf(r *borgpb.Resources) map[string]int64 {
	all := maps.Clone(r.GetDeviceMilli())
	if all == nil {
		all = map[string]int64{}
	}
	for name, n := range r.GetDevices() {
		all[name] += n * 1000
	}
	return all
}

// deviceShort returns the first device of which need asks for more than there is; empty
// if none.
func deviceShort(need, have *borgpb.Resources) string {
	has := devicesOf(have)
	wants := devicesOf(need)
	for _, name := range slices.Sorted(maps.Keys(wants)) {
		if wants[name] > has[name] {
			return name
		}
	}
	return ""
}

func matches(constraints []*borgpb.Constraint, m *borgpb.Machine) bool {
	for _, c := range constraints {
		if !c.Soft && !matchesOne(c, m) {
			return false
		}
	}
	return true
}

func matchesOne(c *borgpb.Constraint, m *borgpb.Machine) bool {
	value, present := m.GetSpec().GetAttributes()[c.Key]
	if c.Key == nameAttribute {
		value, present = m.GetMeta().GetName(), true
	}
	switch c.Relation {
	case borgpb.Relation_RELATION_EQUAL:
		return present && value == c.Value
	case borgpb.Relation_RELATION_NOT_EQUAL:
		return !present || value != c.Value
	case borgpb.Relation_RELATION_PRESENT:
		return present
	case borgpb.Relation_RELATION_NOT_PRESENT:
		return !present
	}
	have, err := strconv.ParseInt(value, 10, 64)
	want, err2 := strconv.ParseInt(c.Value, 10, 64)
	if err != nil || err2 != nil {
		return false
	}
	switch c.Relation {
	case borgpb.Relation_RELATION_LESS_THAN:
		return have < want
	case borgpb.Relation_RELATION_LESS_THAN_EQUAL:
		return have <= want
	case borgpb.Relation_RELATION_GREATER_THAN:
		return have > want
	case borgpb.Relation_RELATION_GREATER_THAN_EQUAL:
		return have >= want
	}
	return true
}

// tooWide says by which limit per machine, rack or other attribute, or for want of room, a gang
// could never start on the machines that there are, or "".
func (st *step) tooWide(what *borgpb.TaskSpec, machines []*borgpb.Machine) string {
	var spec interface {
		GetGang() bool
		GetMaxPerMachine() uint32
		GetMaxPerRack() uint32
		GetMaxPerPower() uint32
		GetMaxPer() map[string]uint32
	} = st.Job
	count, of := st.Job.GetTasks(), "tasks"
	if st.Kind == cfg.KindAllocSet {
		spec, count, of = st.AllocSet, st.AllocSet.GetAllocs(), "allocs"
	}
	if !spec.GetGang() {
		return ""
	}
	limits := map[string]uint32{nameAttribute: spec.GetMaxPerMachine(), "rack": spec.GetMaxPerRack(), "power": spec.GetMaxPerPower()}
	maps.Copy(limits, spec.GetMaxPer())
	for _, key := range slices.Sorted(maps.Keys(limits)) {
		most, places := limits[key], make(map[string]bool)
		for _, m := range machines {
			if !matches(what.GetConstraints(), m) {
				continue
			}
			place := "machine " + m.GetMeta().GetName()
			if value, ok := m.GetSpec().GetAttributes()[key]; ok && key != nameAttribute {
				place = "value " + value
			}
			places[place] = true
		}
		if fit := uint64(most) * uint64(len(places)); most > 0 && fit < uint64(count) {
			return fmt.Sprintf("it is a gang of %d %s, which start together or not at all, and at most %d per %s let %d run on the machines of the cell", count, of, most, key, fit)
		}
	}
	if len(st.Job.GetOverrides()) > 0 {
		return "" // Not all of its tasks ask for the same.
	}
	room := uint64(0)
	for _, m := range machines {
		if matches(what.GetConstraints(), m) {
			room += timesIn(what.GetResources(), m.GetSpec().GetCapacity())
		}
	}
	if room < uint64(count) {
		return fmt.Sprintf("it is a gang of %d %s, which start together or not at all, and the machines of the cell have room for %d, even if they were empty", count, of, room)
	}
	return ""
}

// timesIn is how often need goes into capacity; at most what any gang can have.
func timesIn(need, capacity *borgpb.Resources) uint64 {
	times := int64(math.MaxUint32)
	for _, r := range []struct{ need, has int64 }{
		{need.GetCpuMilli(), capacity.GetCpuMilli()}, {need.GetMemBytes(), capacity.GetMemBytes()}, {need.GetDiskBytes(), capacity.GetDiskBytes()},
	} {
		if r.need > 0 {
			times = min(times, r.has/r.need)
		}
	}
	return uint64(max(times, 0))
}
