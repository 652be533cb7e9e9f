package cell

import (
	"fmt"
	"slices"

	"borg/proto/borgpb"
)

// Volumes, for the random walk.

// volumes are some that a task or an alloc set may have.
func (g *generator) volumes(paths bool) (all []*borgpb.Volume) {
	for i := range 1 + g.r.IntN(2) {
		v := &borgpb.Volume{
			Name:      pick(g.r, [][]string{{"data", "data", "logs"}, {"cache", "data"}}[i]),
			DiskBytes: int64(1+g.r.IntN(4)) << 30, KeepNs: int64(g.r.IntN(60)) * second,
		}
		if paths {
			v.Path = fmt.Sprintf("/v%d", i)
		}
		switch {
		case g.one(60):
			v.DiskBytes = 0
		case g.one(60):
			v.KeepNs = 1
		case g.one(60):
			v.Path = "here"
		}
		all = append(all, v)
	}
	return all
}

// volumesOfJob gives a job some now and then.
func (g *generator) volumesOfJob(s *borgpb.JobSpec) {
	if g.c.format < FormatVolumes || !g.one(4) {
		return
	}
	s.Task.Volumes = g.volumes(true)
	if s.AllocSet != "" && !g.one(20) {
		for _, v := range s.Task.Volumes {
			v.DiskBytes, v.KeepNs = 0, 0
		}
	}
	if g.one(6) {
		s.Overrides = append(s.Overrides, &borgpb.TaskOverride{First: 1, Last: 2, Spec: &borgpb.TaskSpec{Volumes: s.Task.Volumes[:1]}})
	}
}

func (g *generator) volumesOfSet(s *borgpb.AllocSetSpec) {
	if g.c.format >= FormatVolumes && g.one(2) {
		s.Volumes = g.volumes(false)
	}
}

// volumeOp deletes volumes, and says of machines what became of them.
func (g *generator) volumeOp() *borgpb.Op {
	name := &borgpb.VolumeName{User: "ann", Job: pick(g.r, []string{"a", "b", "p", "q"}), Index: uint32(g.r.IntN(3)), Volume: "data"}
	machine := g.machineName()
	if v := pick(g.r, slices.Collect(g.c.Volumes())); v != nil && !g.one(6) {
		name, machine = v.NameProto(), v.machine.name
	}
	if g.one(3) {
		return g.user(&borgpb.Op{Op: &borgpb.Op_DeleteVolume{DeleteVolume: &borgpb.DeleteVolume{User: name.User, Name: name.Job, Index: name.Index, Volume: name.Volume}}})
	}
	r := &borgpb.MachineReport{Machine: machine, VolumesGone: []*borgpb.VolumeName{name}}
	for v := range g.c.Volumes() {
		if v.machine.name == machine && v.givenUp && g.one(2) {
			r.VolumesGone = append(r.VolumesGone, v.NameProto())
		}
	}
	if g.one(3) {
		if g.one(2) {
			r.Machine = g.machineName()
		}
		r.VolumesGone, r.VolumesFound = nil, []*borgpb.FoundVolume{{Name: name, DiskBytes: int64(g.r.IntN(4)-g.r.IntN(2)) << 30}}
	}
	return &borgpb.Op{Op: &borgpb.Op_Reports{Reports: &borgpb.Reports{Machines: []*borgpb.MachineReport{r}}}}
}
