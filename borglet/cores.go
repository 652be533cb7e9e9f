package borglet

import (
	"cmp"
	"fmt"
	"slices"

	"borg/proto/borgpb"
	"borg/proto/borgrpc"
)

// Cores are the processors of a machine, and which of them a task may have alone: whole
// cores with all their threads. The first core is always everybody's, so that there is
// one on which all other tasks run.
type Cores struct {
	// All processors, ascending.
	All []int
	// Threads of each core that may be had alone; a power of two.
	Threads int
	// Own is number n of the device exclusive-cpu, core after core.
	Own []int
}

// DivideCores says what tasks may have of cores, each of which is given by its
// processors: at most so many of them, of those with as many threads as most have.
func DivideCores(cores [][]int, most int) Cores {
	cores = slices.Clone(cores)
	slices.SortFunc(cores, func(a, b []int) int { return cmp.Compare(a[0], b[0]) })
	var c Cores
	alike := map[int]int{}
	for _, core := range cores {
		c.All = append(c.All, core...)
		n := len(core)
		if alike[n]++; n&(n-1) == 0 && (alike[n] > alike[c.Threads] || alike[n] == alike[c.Threads] && n < c.Threads) {
			c.Threads = n
		}
	}
	slices.Sort(c.All)
	for i, core := range cores {
		if i > 0 && len(core) == c.Threads && len(c.Own) < most*c.Threads {
			c.Own = append(c.Own, slices.Sorted(slices.Values(core))...)
		}
	}
	return c
}

// Of returns the processors of some numbers, which must be those of whole cores.
func (c *Cores) Of(numbers []uint32) ([]int, error) {
	var cpus []int
	for i, n := range numbers {
		if int64(n) >= int64(len(c.Own)) {
			return nil, fmt.Errorf("the machine has %d processors for tasks with cores of their own, and none of number %d; has it changed?", len(c.Own), n)
		}
		if first := i - i%c.Threads; len(numbers)%c.Threads != 0 || numbers[first]%uint32(c.Threads) != 0 || n != numbers[first]+uint32(i-first) {
			return nil, fmt.Errorf("processors %d are not whole cores of %d threads", numbers, c.Threads)
		}
		cpus = append(cpus, c.Own[n])
	}
	slices.Sort(cpus)
	return cpus, nil
}

// Rest is what is left when some processors are taken. It is never nothing.
func (c *Cores) Rest(taken []int) []int {
	return slices.DeleteFunc(slices.Clone(c.All), func(cpu int) bool {
		return slices.Contains(taken, cpu) && slices.Contains(c.Own, cpu)
	})
}

// ownCPUs are the numbers of the processors that a copy has alone. A cell that does not
// know of exclusive cores grants none.
func ownCPUs(d *borgrpc.Desired) []uint32 {
	if !d.GetSpec().GetExclusiveCores() {
		return nil
	}
	for _, g := range d.GetDevices() {
		if g.GetName() == borgpb.ExclusiveCPU {
			return g.GetNumbers()
		}
	}
	return nil
}
