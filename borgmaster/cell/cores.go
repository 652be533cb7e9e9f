package cell

import (
	"math/bits"
	"slices"
	"strconv"

	"borg/proto/borgpb"
)

// FormatCores is the format from which on tasks that ask for exclusive cores get them.
const FormatCores = 9

// Whole cores for one task alone are devices of the machine: as many of exclusive-cpu as
// it has cpu, whose numbers are those of processors, with the threads of one core next to
// each other. So whatever places, counts, explains and takes devices does it with cores.
// A machine keeps the first core for all others, and the cpu of who has cores alone counts
// as that of everybody, so what runs beside him has a place on the rest.
//
// A spec that was committed before format 9 stays without effect until it is committed
// anew: nobody has checked what it asks for.

// asksCores tells whether some task of a spec may ask for cores of its own.
func asksCores(s *borgpb.JobSpec) bool {
	return s.Task.GetExclusiveCores() || slices.ContainsFunc(s.Overrides, func(o *borgpb.TaskOverride) bool {
		return o.Spec.GetExclusiveCores()
	})
}

// checkCores refuses what cannot be had with cores of one's own.
func checkCores(s *borgpb.JobSpec, t *borgpb.TaskSpec, field string) *borgpb.Refusal {
	if r := checkNoCPUDevice(t.Resources, field+".resources"); r != nil {
		return r
	}
	cpu := t.Resources.GetCpuMilli()
	switch {
	case !t.ExclusiveCores:
		return nil
	case s.AllocSet != "":
		return invalid(field+".exclusive_cores", "a task in an alloc runs where its alloc does, beside others; leave out alloc_set or exclusive_cores")
	case classOf(s, t) == borgpb.AppClass_APP_CLASS_BATCH:
		return invalid(field+".exclusive_cores", "cores are kept free for latency-sensitive tasks only, and nobody waits for what this one does; leave it out, or say app_class latency-sensitive")
	case cpu == 0 || cpu%1000 != 0:
		return invalid(field+".exclusive_cores", "it asks for %s cpu, and cores are whole; ask for 1, 2, 3 ... cpu", DeviceText(cpu))
	case cpu/1000 > MaxGrantedDevices:
		return limit(field+".exclusive_cores", "%d cpu; at most %d", cpu/1000, MaxGrantedDevices)
	}
	return nil
}

// checkNoCPUDevice keeps processors from those who would not pay for them as cpu.
func checkNoCPUDevice(r *borgpb.Resources, field string) *borgpb.Refusal {
	if r.GetDevices()[borgpb.ExclusiveCPU] != 0 || r.GetDeviceMilli()[borgpb.ExclusiveCPU] != 0 {
		return invalid(field+".devices", "%s cannot be asked for as a device; write exclusive_cores = True, and how much cpu", borgpb.ExclusiveCPU)
	}
	return nil
}

// classOf is the class of a task: who does not say serves requests unless his work ends.
func classOf(s *borgpb.JobSpec, t *borgpb.TaskSpec) borgpb.AppClass {
	switch {
	case t.AppClass != borgpb.AppClass_APP_CLASS_UNSPECIFIED:
		return t.AppClass
	case s.Kind == borgpb.JobKind_JOB_KIND_BATCH || s.Kind == borgpb.JobKind_JOB_KIND_CRON:
		return borgpb.AppClass_APP_CLASS_BATCH
	}
	return borgpb.AppClass_APP_CLASS_LATENCY_SENSITIVE
}

// own has the need ask for the processors, and for machines of whose cores they are a
// whole number: threads come in powers of two.
func (n *Need) own() {
	cpus := n.Resources.CPUMilli / 1000
	n.Own = true
	n.Resources = n.Resources.Add(Resources{Devices: []Device{{borgpb.ExclusiveCPU, cpus * wholeDevice}}})
	n.Task = constrained(n.Task, &borgpb.Constraint{
		Key: borgpb.CoreThreads, Relation: borgpb.Relation_RELATION_LESS_THAN_EQUAL, Value: strconv.Itoa(1 << bits.TrailingZeros64(uint64(cpus))),
	})
}

// bought is what the need is charged for: its processors are there as cpu.
func (n *Need) bought() *Resources {
	if bytes := volumesCharged(n.Task.GetVolumes()); bytes > 0 {
		alone := *n
		alone.Task = nil
		r := *alone.bought()
		r.DiskBytes += bytes
		return &r
	}
	if !n.Own {
		return &n.Resources
	}
	r := n.Resources.Sub(Resources{Devices: []Device{{borgpb.ExclusiveCPU, n.Resources.Device(borgpb.ExclusiveCPU)}}})
	return &r
}

// Fixed tells that the copy reserves its limit whatever it uses: its owner wants it so, or
// nobody else can have what it leaves.
func (p *Copy) Fixed() bool {
	need := p.spec.Need(p.index)
	return need.Own || need.Task.NoEstimation
}
