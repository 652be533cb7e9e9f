package cell

import (
	"strconv"

	"borg/proto/borgpb"
)

// offerCPUs reads own-cpus=N of a machine: so many processors may be had alone.
func (s *script) offerCPUs(r *borgpb.Resources) {
	if !s.has("own-cpus") {
		return
	}
	if r.Devices == nil {
		r.Devices = make(map[string]int64)
	}
	r.Devices[borgpb.ExclusiveCPU] = s.num("own-cpus", 0)
}

// asksCores reads exclusive, class=batch|latency-sensitive and cpu-device of a job.
func (s *script) asksCores(t *borgpb.TaskSpec) {
	t.ExclusiveCores = s.has("exclusive")
	switch s.arg("class", "") {
	case "batch":
		t.AppClass = borgpb.AppClass_APP_CLASS_BATCH
	case "latency-sensitive":
		t.AppClass = borgpb.AppClass_APP_CLASS_LATENCY_SENSITIVE
	}
	if s.has("cpu-device") {
		t.Resources.Devices = map[string]int64{borgpb.ExclusiveCPU: s.num("cpu-device", 0)}
	}
}

// cpus reads cpus=(N,...) of an assignment.
func (s *script) cpus() *borgpb.DeviceGrant {
	g := &borgpb.DeviceGrant{Name: borgpb.ExclusiveCPU}
	for _, number := range s.list("cpus") {
		n, _ := strconv.Atoi(number)
		g.Numbers = append(g.Numbers, uint32(n))
	}
	return g
}
