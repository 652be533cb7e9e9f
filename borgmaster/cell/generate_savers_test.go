package cell

import "borg/proto/borgpb"

// saver saves what the allocs of a set leave behind, for half of the sets.
func (g *generator) saver() *borgpb.Saver {
	if g.c.format < FormatSavers || g.one(2) {
		return nil
	}
	v := &borgpb.Saver{
		Task:   &borgpb.TaskSpec{Args: []string{"save"}, Resources: &borgpb.Resources{CpuMilli: int64(g.r.IntN(maxSaverCPUMilli)), MemBytes: 64 << 20}},
		TimeNs: int64(g.r.IntN(60)) * second,
	}
	switch {
	case g.one(40):
		v.TimeNs = maxSaveNs + 1
	case g.one(40):
		v.Task = nil
	case g.one(40):
		v.Task.Resources.CpuMilli = maxSaverCPUMilli + 1
	case g.one(40):
		v.Task.Ports = []string{"http"}
	}
	return v
}
