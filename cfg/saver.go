package cfg

import "borg/proto/borgpb"

// saver checks what saves what the allocs of a set leave behind. It works in the directory and in
// the room that an alloc has left.
func (c check) saver(v *borgpb.Saver, alloc *borgpb.Resources) {
	if v == nil {
		return
	}
	if v.TimeNs < 0 || v.TimeNs > maxSaveNs {
		c.bad("saver.time_ns", `leave it out for time = "24h"`, "a saver is tried for at most 72 hours")
	}
	if v.Task == nil {
		c.bad("saver", `add task = task(args = ["/bin/save", "{{alloc.dir}}"], resources = resources(cpu = 0.1, mem = "64MiB"))`, "the saver has no task")
		return
	}
	c.task("saver.task", v.Task, true)
	c.resources("saver.task.resources", v.Task.Resources, false)
	if v.Task.ExclusiveCores {
		c.bad("saver.task.exclusive_cores", "leave it out", "a saver has no cores of its own: it works beside whatever runs there")
	}
	if len(v.Task.Ports) > 0 || len(v.Task.Secrets) > 0 || len(v.Task.Resources.GetDevices()) > 0 {
		c.bad("saver.task", "", "a saver has no ports, secrets or devices")
	}
	cpu, mem := v.Task.Resources.GetCpuMilli(), v.Task.Resources.GetMemBytes()
	switch {
	case cpu > maxSaverCPUMilli || mem > maxSaverMemBytes:
		c.bad("saver.task.resources", `write resources = resources(cpu = 0.1, mem = "64MiB")`, "a saver asks for at most 1 core and 1GiB")
	case alloc.GetCpuMilli() == 0 || alloc.GetMemBytes() == 0:
		// That is said of the alloc.
	case cpu > alloc.GetCpuMilli() || mem > alloc.GetMemBytes():
		c.bad("saver.task.resources", "", "a saver asks for at most the cpu and memory of its alloc")
	}
	if v.Task.Resources.GetDiskBytes() > maxSaverDiskBytes || v.Task.Resources.GetDiskBytesPerS() > maxSaverDiskBytesPerS {
		c.bad("saver.task.resources", "leave disk and disk_per_s out", "a saver asks for at most 1GiB of disk and 100MiB/s")
	}
}
