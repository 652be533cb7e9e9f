package fleet

import (
	"fmt"
	"math/rand/v2"

	"borg/proto/borgpb"
)

// Shapes of machines: thousandths of a core, memory, and how many of 100, as in
// the workload that the scheduler is measured with.
var shapes = []struct{ cpuMilli, memGiB, share int64 }{
	{32_000, 128, 30}, {16_000, 64, 25}, {64_000, 256, 15}, {32_000, 64, 15}, {16_000, 128, 10}, {96_000, 384, 5},
}

const (
	// Machines of a rack, and of a power domain.
	rackOf, powerOf     = 40, 400
	diskBytes           = 1 << 40
	portFirst, portLast = 20000, 20999
	ssdPercent          = 30
	generations         = 8
	// Threads of a core that tasks may have alone.
	coreThreads = 2
)

// Spec is what machine k of the fleets of a seed is.
func Spec(seed uint64, k int, port uint16) *borgpb.MachineSpec {
	r := rand.New(rand.NewPCG(seed, uint64(k)<<32))
	n := 0
	for at := r.Int64N(100); at >= shapes[n].share; n++ {
		at -= shapes[n].share
	}
	attributes := map[string]string{
		"rack": fmt.Sprintf("r%d", (k-1)/rackOf), "power": fmt.Sprintf("p%d", (k-1)/powerOf),
		"gen": fmt.Sprint(1 + r.IntN(generations)), "arch": "amd64", "os": "linux", "runtime": "pretended",
	}
	if r.IntN(100) < ssdPercent {
		attributes["disk"] = "ssd"
	}
	return &borgpb.MachineSpec{
		Addr:     Addr(k, port).String(),
		Capacity: &borgpb.Resources{CpuMilli: shapes[n].cpuMilli, MemBytes: shapes[n].memGiB << 30, DiskBytes: diskBytes},
		// Each machine would have all ports to itself.
		PortFirst: portFirst, PortLast: portLast,
		Attributes: attributes,
	}
}

// OfferCores has a machine offer tasks so many cores of its own, of two threads each, as
// far as it has them: the first core is everybody's.
func OfferCores(m *borgpb.MachineSpec, cores int) {
	cores = min(cores, int(m.Capacity.CpuMilli/1000/coreThreads)-1)
	if cores <= 0 {
		return
	}
	m.Capacity.Devices = map[string]int64{borgpb.ExclusiveCPU: int64(cores * coreThreads)}
	m.Attributes[borgpb.CoreThreads] = fmt.Sprint(coreThreads)
}
