package linkshard

import (
	"borg/borgmaster/cell"
	"borg/mutant"
	"borg/proto/borgpb"
	"borg/proto/borgrpc"
)

// volumes says which volumes a machine is to keep, and which to delete.
func volumes(c *cell.Cell, m *cell.Machine, req *borgrpc.PollRequest) {
	for v := range m.Volumes() {
		if (c.Deletable(v) || mutant.Planted(mutant.KeptVolumeDeleted) && !v.Used()) && !m.Unheard() {
			req.DeleteVolumes = append(req.DeleteVolumes, v.NameProto())
		} else {
			req.KeepVolumes = append(req.KeepVolumes, v.NameProto())
		}
	}
}

// volumes sets what a machine said of its volumes against the cell. What was told a
// moment ago is on its way.
func (cmp *Comparison) volumes(now int64, c *cell.Cell, m *cell.Machine, resp *borgrpc.PollResponse, known *Known) {
	said := &borgpb.MachineReport{Machine: m.Name(), VolumesGone: resp.GetVolumesGone(), VolumesFound: resp.GetVolumesFound()}
	deleting := false
	for v := range m.Volumes() {
		deleting = deleting || c.Deletable(v)
	}
	cmp.Busy = cmp.Busy || deleting
	if c.Format() < cell.FormatVolumes || len(said.VolumesGone)+len(said.VolumesFound) == 0 || m.Unheard() || now < known.volumesAgainNs {
		return
	}
	said.VolumesGone = said.VolumesGone[:min(len(said.VolumesGone), maxVolumesTold)]
	said.VolumesFound = said.VolumesFound[:min(len(said.VolumesFound), maxVolumesTold)]
	known.volumesAgainNs = now + tellAgainNs
	cmp.Volumes = said
}

// maxVolumesTold bounds what one message says of the volumes of one machine; the rest is
// told with later ones.
const maxVolumesTold = 500
