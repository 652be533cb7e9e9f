package scheduler

import "slices"

// choosePorts returns n ports of a machine that nobody has, that nobody was
// promised and that no other program holds, ascending from a start that follows from seed, so that neighbours
// and successors rarely get the ones that others just gave back. It returns none
// when there are not enough. Ports of victims will do: each has one holder. They
// are put into ports, which is empty.
func choosePorts(ports []uint32, t *site, n int, seed uint64, victims []unit) []uint32 {
	if n == 0 {
		return ports
	}
	first, last := t.machine.PortRange()
	if first == 0 || last < first {
		return ports
	}
	used := t.machine.UsedPorts()
	size := uint64(last-first) + 1
	start := mix(seed^t.order) % size
	for i := uint64(0); i < size && len(ports) < n; i++ {
		port := first + uint16((start+i)%size)
		if t.machine.HeldByOther(port) {
			continue
		}
		if _, taken := slices.BinarySearch(used, port); taken && !heldByVictim(victims, uint32(port)) {
			continue
		}
		if slices.Contains(t.promised.Ports, uint32(port)) {
			continue
		}
		ports = append(ports, uint32(port))
	}
	if len(ports) < n {
		return ports[:0]
	}
	return ports
}

func heldByVictim(victims []unit, port uint32) bool {
	return slices.ContainsFunc(victims, func(u unit) bool { return slices.Contains(u.ports, port) })
}
