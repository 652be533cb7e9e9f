package main

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	ucli "github.com/urfave/cli/v2"

	"borg/cli"
	"borg/proto/borgpb"
	"borg/proto/borgrpc"
)

// volumeCommands are about what stays on the disks of machines after its task.
func volumeCommands(con *console) *ucli.Command {
	return group("volume", "what stays on the disks of machines after its task",
		command(con, "list", "list volumes, where they are and for how long they are kept", "", 0, 0, volumeList, outputFlag(),
			&ucli.StringFlag{Name: "machine", Usage: "only those on this `MACHINE`"},
			&ucli.StringFlag{Name: "job", Usage: "only those of this `JOB` or alloc set"}),
		command(con, "delete", "give volumes up in which nobody works: what is in them is lost", "VOLUME...", 1, -1, volumeDelete, reasonFlag()))
}

func volumeList(s *session) error {
	req := &borgrpc.ListVolumesRequest{Machine: s.flag.String("machine")}
	if name := s.flag.String("job"); name != "" {
		job, err := s.job(name)
		if err != nil {
			return err
		}
		req.User, req.Job = job.user, job.name
	}
	m, err := s.master()
	if err != nil {
		return err
	}
	all, err := m.ListVolumes(s.ctx, req)
	if err != nil {
		return err
	}
	switch {
	case s.out.machine():
		return list(s.out, all)
	case s.out.format == "name":
		var names []string
		for _, v := range all {
			names = append(names, s.volumeName(v))
		}
		return s.out.names(names)
	}
	if len(all) == 0 {
		s.progress("there are no volumes")
		return nil
	}
	var t table
	t.head("VOLUME", "MACHINE", "USED", "DISK", "STATE", "KEPT FOR", "REASON")
	for _, v := range all {
		kept, used := "-", "-"
		if v.GetUsedBytes() != 0 {
			used = bytesText(v.GetUsedBytes())
		}
		if v.GetKeptNs() != 0 {
			kept = span(time.Duration(v.GetKeptNs()))
		}
		t.add(s.volumeName(v), v.GetMachine(), used, bytesText(v.GetDiskBytes()), volumeWord(v), kept, v.GetReason())
	}
	return t.write(s.out, "")
}

func (s *session) volumeName(v *borgpb.VolumeStatus) string {
	return fmt.Sprintf("%s/%d/%s", s.short(v.GetUser(), v.GetJob()), v.GetIndex(), v.GetVolume())
}

func volumeWord(v *borgpb.VolumeStatus) cell {
	text := strings.ReplaceAll(word(v.GetState()), "_", " ")
	if v.GetYields() {
		// It is kept, unless production needs its disk.
		text += ", yields"
	}
	switch v.GetState() {
	case borgpb.VolumeState_VOLUME_STATE_USED:
		return cell{text: text, style: good}
	case borgpb.VolumeState_VOLUME_STATE_GIVEN_UP:
		return cell{text: text, style: waiting}
	}
	return cell{text: text}
}

// volumeDelete gives volumes up, in the order in which they are named.
func volumeDelete(s *session) error {
	var ops []*borgpb.DeleteVolume
	for _, arg := range s.args {
		o, err := s.volume(arg)
		if err != nil {
			return err
		}
		if !slices.ContainsFunc(ops, func(p *borgpb.DeleteVolume) bool {
			return p.User == o.User && p.Name == o.Name && p.Index == o.Index && p.Volume == o.Volume
		}) {
			ops = append(ops, o)
		}
	}
	for _, o := range ops {
		if err := s.mutate(&borgpb.Op{Op: &borgpb.Op_DeleteVolume{DeleteVolume: o}}); err != nil {
			return err
		}
		s.say("volume %s/%d/%s: given up; its machine deletes it", s.short(o.User, o.Name), o.Index, o.Volume)
	}
	return nil
}

// volume reads [USER/]JOB/INDEX/VOLUME.
func (s *session) volume(text string) (*borgpb.DeleteVolume, error) {
	bad := func() error {
		return cli.Errorf(cli.Usage, "%q is not a volume", text).Hint("want JOB/INDEX/VOLUME, as borgcfg volume list shows it")
	}
	parts := strings.Split(text, "/")
	if len(parts) < 3 || len(parts) > 4 {
		return nil, bad()
	}
	index, err := strconv.ParseUint(parts[len(parts)-2], 10, 32)
	if err != nil {
		return nil, bad()
	}
	job, err := s.job(strings.Join(parts[:len(parts)-2], "/"))
	if err != nil {
		return nil, err
	}
	return &borgpb.DeleteVolume{User: job.user, Name: job.name, Index: uint32(index), Volume: parts[len(parts)-1]}, nil
}
