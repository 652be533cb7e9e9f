package cell

import (
	"fmt"
	"strconv"
	"strings"

	"borg/proto/borgpb"
)

// volumes reads volume=(NAME:GIB[:KEEP_SECONDS],...), of a task at /NAME.
func (s *script) volumes(paths bool) (all []*borgpb.Volume) {
	for _, text := range s.list("volume") {
		words := append(strings.Split(text, ":"), "", "")
		gib, _ := strconv.ParseInt(words[1], 10, 64)
		keep, _ := strconv.ParseInt(words[2], 10, 64)
		v := &borgpb.Volume{Name: words[0], DiskBytes: gib << 30, KeepNs: keep * second}
		if paths {
			v.Path = "/" + v.Name
		}
		all = append(all, v)
	}
	return all
}

// volumeNamed reads USER/JOB/INDEX/VOLUME.
func (s *script) volumeNamed(text string) *borgpb.VolumeName {
	cut := strings.LastIndexByte(text, '/')
	id, err := ParseTaskID(text[:max(cut, 0)])
	if err != nil {
		s.d.Fatalf(s.t, "%v", err)
	}
	return &borgpb.VolumeName{User: id.Job.User, Job: id.Job.Name, Index: id.Index, Volume: text[cut+1:]}
}

// volume reads: delete-volume VOLUME, volume-gone MACHINE VOLUME, volume-found MACHINE
// VOLUME gib=N.
func (s *script) volume() *borgpb.Op {
	if s.d.Cmd == "delete-volume" {
		n := s.volumeNamed(s.first(0))
		return &borgpb.Op{Reason: s.arg("reason", ""), Op: &borgpb.Op_DeleteVolume{DeleteVolume: &borgpb.DeleteVolume{
			User: n.User, Name: n.Job, Index: n.Index, Volume: n.Volume}}}
	}
	r := &borgpb.MachineReport{Machine: s.first(0)}
	if n := s.volumeNamed(s.first(1)); s.d.Cmd == "volume-gone" {
		r.VolumesGone = append(r.VolumesGone, n)
	} else {
		r.VolumesFound = append(r.VolumesFound, &borgpb.FoundVolume{Name: n, DiskBytes: s.num("gib", 0) << 30})
	}
	return &borgpb.Op{Op: &borgpb.Op_Reports{Reports: &borgpb.Reports{Machines: []*borgpb.MachineReport{r}}}}
}

// showVolumes shows all volumes, and what their machines hold of disk.
func (s *script) showVolumes(b *strings.Builder) {
	for v := range s.c.Volumes() {
		p := s.c.VolumeProto(v)
		fmt.Fprintf(b, "%s on %s, %d GiB: %s", v.FullName(), p.Machine, p.DiskBytes>>30, strings.ToLower(strings.TrimPrefix(p.State.String(), "VOLUME_STATE_")))
		if p.KeptNs != 0 {
			fmt.Fprintf(b, " for %d s more", p.KeptNs/second)
		}
		if p.Reason != "" {
			fmt.Fprintf(b, " (%s)", p.Reason)
		}
		b.WriteString("\n")
	}
	for m := range s.c.Machines() {
		fmt.Fprintf(b, "%s: %d of %d GiB\n", m.name, m.Held(true).DiskBytes>>30, m.Capacity().DiskBytes>>30)
	}
}
