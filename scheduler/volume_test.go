package scheduler_test

import (
	"pgregory.net/rapid"

	"borg/borgmaster/cell"
	"borg/proto/borgpb"
)

// randomVolumes draws volumes of a task, or none.
func randomVolumes(t *rapid.T) (all []*borgpb.Volume) {
	for _, name := range []string{"data", "logs"}[:rapid.SampledFrom([]int{0, 0, 0, 1, 2}).Draw(t, "volumes")] {
		all = append(all, &borgpb.Volume{Name: name, Path: "/" + name, DiskBytes: rapid.Int64Range(1, 2).Draw(t, "volume disk") << 30, KeepNs: 1e9})
	}
	return all
}

// randomVolumeChange deletes a volume, or has a machine say that one is gone.
func randomVolumeChange(t *rapid.T, w *world) {
	var all []*cell.Volume
	for v := range w.cell.Volumes() {
		all = append(all, v)
	}
	if len(all) == 0 {
		return
	}
	v := rapid.SampledFrom(all).Draw(t, "volume")
	n := v.NameProto()
	if v.GivenUp() {
		w.do(&borgpb.Op{Op: &borgpb.Op_Reports{Reports: &borgpb.Reports{Machines: []*borgpb.MachineReport{{Machine: v.Machine().Name(), VolumesGone: []*borgpb.VolumeName{n}}}}}})
		return
	}
	w.do(asUser("ann", &borgpb.Op{Op: &borgpb.Op_DeleteVolume{DeleteVolume: &borgpb.DeleteVolume{User: n.User, Name: n.Job, Index: n.Index, Volume: n.Volume}}}))
}
