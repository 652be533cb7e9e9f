package cfg

import (
	"fmt"
	"path"
	"slices"

	"borg/proto/borgpb"
)

const (
	maxVolumes      = 8
	minVolumeKeepNs = 1e9
	maxVolumeKeepNs = 366 * 24 * 3600 * 1e9
)

// volumes checks what the tasks of a job keep on their machines.
func (c check) volumes(j *borgpb.JobSpec) {
	c.volumesOf("task.volumes", j, j.Task.GetVolumes())
	for i, o := range j.Overrides {
		c.volumesOf(fmt.Sprintf("overrides[%d].spec.volumes", i), j, o.Spec.GetVolumes())
	}
}

// volumesOf checks a list; j is nil for that of an alloc set.
func (c check) volumesOf(where string, j *borgpb.JobSpec, all []*borgpb.Volume) {
	if len(all) > maxVolumes {
		c.bad(where, "", "%d volumes; there may be %d", len(all), maxVolumes)
	}
	if j != nil && j.Kind == borgpb.JobKind_JOB_KIND_CRON && len(all) > 0 {
		c.bad(where, "write files elsewhere, or run a service", "a cron job has no volumes: each of its runs is a job of its own")
	}
	for i, v := range all {
		at := fmt.Sprintf("%s[%d]", where, i)
		c.name(join(at, "name"), "volume", v.Name)
		if slices.ContainsFunc(all[:i], func(o *borgpb.Volume) bool { return o.Name == v.Name }) {
			c.bad(join(at, "name"), "", "two volumes are called %s", quote(v.Name))
		}
		switch {
		case j == nil && v.Path != "":
			c.bad(join(at, "path"), "leave it out: the tasks in it say where they see it", "a volume of an alloc set has no path")
		case j != nil && (!path.IsAbs(v.Path) || path.Clean(v.Path) != v.Path || v.Path == "/"):
			c.bad(join(at, "path"), `write path = "/data"`, "%s is not an absolute path below /", quote(v.Path))
		case j != nil && j.AllocSet != "" && (v.DiskBytes != 0 || v.KeepNs != 0):
			c.bad(at, fmt.Sprintf("leave disk and keep out, and say them of alloc set %s", quote(j.AllocSet)), "tasks in an alloc have the volumes of the alloc")
		case (j == nil || j.AllocSet == "") && v.DiskBytes <= 0:
			c.bad(join(at, "disk"), `write disk = "10GiB"`, "a volume must say how much disk it holds")
		case v.DiskBytes > maxAmountBytes:
			c.bad(join(at, "disk"), "", "%d bytes are more than a machine has", v.DiskBytes)
		}
		if v.KeepNs != 0 && (v.KeepNs < minVolumeKeepNs || v.KeepNs > maxVolumeKeepNs) {
			c.bad(join(at, "keep"), `write keep = "72h"`, "a volume is kept for at least a second and at most 366 days")
		}
	}
}
