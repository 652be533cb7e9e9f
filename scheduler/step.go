package scheduler

import "math/bits"

// steps are the slots by what is free there of one resource: a set for each of
// some amounts, four to a doubling, of those with at least that much. A walk over
// the set of the highest step that a request reaches passes by most of the machines
// that are too full without looking at them.
type steps struct {
	// at is the step of each slot.
	at []uint8
	// sets[k] holds the slots at step k+1 and above.
	sets [maxSteps]bitset
	// shift makes units of which the first step is one.
	shift uint8
}

// maxSteps is the highest step; beyond are the amounts of 2^16 units and more.
const maxSteps = 64

// The first steps are 32 thousandths of a core and 16 MiB.
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

// stepOf is the step that an amount reaches; zero: not even the first. More
// never reaches less.
func stepOf(amount int64, shift uint8) uint8 {
	units := amount >> shift
	if units <= 0 {
		return 0
	}
	doublings := bits.Len64(uint64(units)) - 1
	// The two bits below the highest: quarters of the doubling.
	quarters := uint64(units) << 2 >> doublings & 3
	return uint8(min(4*doublings+int(quarters)+1, maxSteps))
}

// put notes how much is free in a slot.
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

// of returns the slots that may hold a request; more of them than do. All is what
// it returns for one that needs none.
func (s *steps) of(request int64, all bitset) bitset {
	if k := stepOf(request, s.shift); k > 0 {
		return s.sets[k-1]
	}
	return all
}
