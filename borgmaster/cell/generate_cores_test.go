package cell

import (
	"fmt"

	"borg/proto/borgpb"
)

// cores has some tasks ask for cores of their own, nearly always for whole ones.
func (g *generator) cores(t *borgpb.TaskSpec) {
	if !g.one(10) {
		return
	}
	t.ExclusiveCores = true
	if !g.one(8) {
		t.Resources.CpuMilli = int64(1+g.r.IntN(3)) * 1000
	}
	if g.one(3) {
		t.AppClass = borgpb.AppClass(g.r.IntN(3))
	}
	if g.one(20) {
		t.Resources.Devices = map[string]int64{borgpb.ExclusiveCPU: 1}
	}
}

// offerCPUs has machines offer processors, of cores with one thread or two.
func (g *generator) offerCPUs(r *borgpb.Resources, attributes map[string]string) {
	if g.one(3) {
		return
	}
	threads := 1 + g.r.IntN(2)
	r.Devices[borgpb.ExclusiveCPU] = int64(threads * g.r.IntN(4))
	if attributes != nil {
		attributes[borgpb.CoreThreads] = fmt.Sprint(threads)
	}
}
