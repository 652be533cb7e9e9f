package cell

import (
	"path"
	"slices"
	"strings"

	"borg/proto/borgpb"
)

// checkVolumes range-checks the volumes of a task, or of an alloc set (paths false).
func checkVolumes(named []*borgpb.Volume, field string, paths bool) *borgpb.Refusal {
	if len(named) > maxVolumesOfTask {
		return limit(field, "%d volumes; at most %d", len(named), maxVolumesOfTask)
	}
	for i, v := range named {
		switch {
		case !validName(v.Name):
			return invalid(field, "%q is not the name of a volume: want a-z, 0-9 and -", clip(v.Name, 64))
		case namesVolume(named[:i], v.Name):
			return invalid(field, "volume %s is named twice", v.Name)
		case !paths && v.Path != "":
			return invalid(field, "volume %s of an alloc set has no path: the tasks in it say where they see it", v.Name)
		case paths && (path.Clean(v.Path) == "/" || !path.IsAbs(v.Path) || len(v.Path) > maxPathBytes || strings.ContainsRune(v.Path, 0)):
			return invalid(field, "volume %s: %q is not an absolute path below /", v.Name, clip(v.Path, 128))
		case paths && slices.ContainsFunc(named[:i], func(o *borgpb.Volume) bool { return o.Path == v.Path }):
			return invalid(field, "two volumes at %s", clip(v.Path, 128))
		case v.DiskBytes < 0 || v.DiskBytes > maxDiskBytes:
			return invalid(field, "volume %s: disk_bytes %d is not in 0 to %d", v.Name, v.DiskBytes, int64(maxDiskBytes))
		case v.KeepNs != 0 && v.KeepNs < second || v.KeepNs > maxVolumeKeepNs:
			return outOfSpan(field, v.KeepNs, second, maxVolumeKeepNs, "volume "+v.Name+": keep_ns: ")
		}
	}
	return nil
}

// checkJobVolumes checks the volumes of a run of tasks against their job.
func checkJobVolumes(job *borgpb.JobSpec, t *borgpb.TaskSpec, field string) *borgpb.Refusal {
	for _, v := range t.Volumes {
		switch {
		case job.Kind == borgpb.JobKind_JOB_KIND_CRON:
			return invalid(field+".volumes", "a cron job has none: each of its runs is a job of its own")
		case job.AllocSet != "" && (v.DiskBytes != 0 || v.KeepNs != 0):
			return invalid(field+".volumes", "volume %s of tasks in an alloc is the alloc's: say disk and keep in alloc set %s", v.Name, clip(job.AllocSet, 128))
		case job.AllocSet == "" && v.DiskBytes == 0:
			return invalid(field+".volumes", "volume %s has no disk: say how much it may keep", v.Name)
		}
	}
	return nil
}

// checkSetVolumes checks those of an alloc set.
func checkSetVolumes(s *borgpb.AllocSetSpec) *borgpb.Refusal {
	if r := checkVolumes(s.Volumes, "spec.volumes", false); r != nil {
		return r
	}
	for _, v := range s.Volumes {
		if v.DiskBytes == 0 {
			return invalid("spec.volumes", "volume %s has no disk: say how much it may keep", v.Name)
		}
	}
	return nil
}

// checkAllocVolumes wants the volumes that tasks in allocs name among those of their
// alloc set, if that is there.
func (c *Cell) checkAllocVolumes(s *Spec) *borgpb.Refusal {
	if s.Proto.AllocSet == "" {
		return nil
	}
	set := c.sets[s.allocSet]
	if made := c.liveSet(s.allocSet); made != nil {
		set = made
	}
	for _, n := range s.needs {
		for _, v := range n.Task.Volumes {
			if set != nil && !namesVolume(set.spec.Volumes, v.Name) {
				return invalid("spec.task.volumes", "alloc set %s has no volume %s", s.allocSet, v.Name)
			}
		}
	}
	return nil
}

// withVolumes is what is asked for together with the disk of volumes.
func withVolumes(r Resources, named []*borgpb.Volume) Resources {
	r.DiskBytes += volumeBytes(named)
	return r
}

// volumeBytes is the disk of volumes.
func volumeBytes(named []*borgpb.Volume) (bytes int64) {
	for _, v := range named {
		bytes += v.DiskBytes
	}
	return bytes
}

// keepOf is for how long a volume is kept after it was used last.
func keepOf(v *borgpb.Volume) int64 {
	if v.KeepNs != 0 {
		return v.KeepNs
	}
	return volumeKeepNs
}
