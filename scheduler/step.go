package scheduler

import "math/bits"

// steps indexes the slots by the free amount of one resource. There are two steps for each
// doubling of the amount, and for each step the set of slots with at least that much free. A
// walk over the set of the highest step that a request reaches skips most machines that are too
// full.
type steps struct {
	// Step of each slot.
	at []uint8
	// sets[k] holds the slots at step k+1 and above.
	sets [maxSteps]bitset
	// An amount shifted right by this is in units; the first step is one unit.
	shift uint8
}

// maxSteps is the highest step; it covers all amounts from its own on.
const maxSteps = 32

// The units are 32 milli-cores and 16 MiB.
const (
	cpuShift = 5
	memShift = 24
)

func newSteps(n int, shift uint8) *steps {
	s := &steps{at: make([]uint8, n), shift: shift}
	words := (n + 63) / 64
	all := make(bitset, maxSteps*words)
	for k := range s.sets {
		s.sets[k] = all[k*words : (k+1)*words : (k+1)*words]
	}
	return s
}

// stepOf returns the highest step that an amount reaches; 0 if it is below the first. It is
// monotonic in the amount.
func stepOf(amount int64, shift uint8) uint8 {
	units := amount >> shift
	if units <= 0 {
		return 0
	}
	doublings := bits.Len64(uint64(units)) - 1
	// The bit below the highest: the upper half of the doubling.
	upper := uint64(units) << 1 >> doublings & 1
	return uint8(min(2*doublings+int(upper)+1, maxSteps))
}

// put sets how much is free in a slot.
func (s *steps) put(i int32, free int64) {
	now, before := stepOf(free, s.shift), s.at[i]
	for k := before; k < now; k++ {
		s.sets[k].set(i, true)
	}
	for k := now; k < before; k++ {
		s.sets[k].set(i, false)
	}
	s.at[i] = now
}

// of returns a superset of the slots with room for a request; all if the request is below the
// first step.
func (s *steps) of(request int64, all bitset) bitset {
	if k := stepOf(request, s.shift); k > 0 {
		return s.sets[k-1]
	}
	return all
}
