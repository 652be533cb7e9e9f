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

// savesAlone wants no copy that was placed in the alloc of a saver to stop on its machine when
// the saver is started. Those that were told to stop in the same entry came later.
func (w *walk) savesAlone(e Event) {
	j, m := w.c.jobsByUID[e.UID], w.c.machines[e.Machine]
	if j == nil || m == nil || j.saving == nil || e.Kind != borgpb.EventKind_EVENT_KIND_SCHEDULE {
		return
	}
	alloc := TaskID{j.saving.set, j.saving.index}.String()
	for _, p := range m.copies {
		if p.state == attemptStopping && w.placedIn[p.ID()] == alloc && p.stop.index < w.c.Index() {
			w.t.Fatalf("%s starts on %s, and %v, which ran in %s, still stops there", e.Object(), m.name, p.ID(), alloc)
		}
	}
	w.edges["a saver starts"]++
}
