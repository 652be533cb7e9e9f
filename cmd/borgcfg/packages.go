package main

import (
	"slices"
	"strings"
	"time"

	ucli "github.com/urfave/cli/v2"

	"borg/cli"
	"borg/proto/borgpb"
	"borg/proto/borgrpc"
)

func packageCommands(con *console) *ucli.Command {
	on := func() ucli.Flag {
		return &ucli.StringFlag{Name: "machine", Usage: "only on this `MACHINE` (default: everywhere)"}
	}
	return group("package", "packages that must not be started",
		command(con, "ban", "place no task that has a package any more; what runs goes on", "NAME[@DIGEST]", 1, 1, packageBan, reasonFlag(), on(),
			&ucli.DurationFlag{Name: "for", DefaultText: "until it is lifted", Usage: "lift the ban after `DURATION`"}),
		command(con, "unban", "lift a ban", "NAME[@DIGEST]", 1, 1, packageUnban, reasonFlag(), on()),
		command(con, "list", "list the bans", "", 0, 0, packageList, outputFlag()),
	)
}

// packageName reads NAME or NAME@DIGEST.
func packageName(arg string) (name, digest string, err error) {
	name, digest, at := strings.Cut(arg, "@")
	if name == "" || at && digest == "" {
		return "", "", cli.Errorf(cli.Usage, "%q names no package", arg).Hint("write NAME, or NAME@sha256:... for one version of it")
	}
	return name, digest, nil
}

// where says of which machine a ban is.
func where(machine string) string {
	if machine == "" {
		return "everywhere"
	}
	return "on " + machine
}

func packageBan(s *session) error {
	name, digest, err := packageName(s.args[0])
	if err != nil {
		return err
	}
	ban := &borgpb.BanPackage{Name: name, Digest: digest, Machine: s.flag.String("machine")}
	until := ""
	if s.flag.IsSet("for") {
		d := s.flag.Duration("for")
		if d <= 0 {
			return cli.Errorf(cli.Usage, "--for %v is no time to come", d).Hint("such as --for 2h; without it the ban stays until it is lifted")
		}
		at := time.Now().Add(d)
		ban.ExpiresWallNs, until = at.UnixNano(), ", until "+at.Local().Format(time.DateTime)
	}
	err = s.change(&borgpb.Op{Op: &borgpb.Op_BanPackage{BanPackage: ban}}, "package %s: banned %s%s", s.args[0], where(ban.Machine), until)
	if err == nil {
		s.progress("tasks that run with it go on; end them with borgcfg down, or update their jobs")
		s.tellUnusedPackage(name)
	}
	return err
}

func packageUnban(s *session) error {
	name, digest, err := packageName(s.args[0])
	if err != nil {
		return err
	}
	unban := &borgpb.UnbanPackage{Name: name, Digest: digest, Machine: s.flag.String("machine")}
	return s.change(&borgpb.Op{Op: &borgpb.Op_UnbanPackage{UnbanPackage: unban}}, "package %s: no longer banned %s", s.args[0], where(unban.Machine))
}

func packageList(s *session) error {
	m, err := s.master()
	if err != nil {
		return err
	}
	bans, err := m.ListPackageBans(s.ctx)
	if err != nil {
		return err
	}
	var names []string
	for _, b := range bans {
		name := b.Name
		if b.Digest != "" {
			name += "@" + b.Digest
		}
		names = append(names, name)
	}
	switch {
	case s.out.format == "name":
		return s.out.names(names)
	case s.out.machine():
		return list(s.out, bans)
	case len(bans) == 0:
		s.progress("no package is banned")
		return nil
	}
	var t table
	t.head("PACKAGE", "WHERE", "BY", "SINCE", "UNTIL", "REASON")
	for i, b := range bans {
		until := "-"
		if b.ExpiresWallNs != 0 {
			until = time.Unix(0, b.ExpiresWallNs).Local().Format(time.DateTime)
		}
		t.add(names[i], where(b.Machine), b.By, ago(s.now(), b.SinceWallNs), until, b.Reason)
	}
	return t.write(s.out, "")
}

// tellUnusedPackage warns of a package that no job names.
func (s *session) tellUnusedPackage(name string) {
	resp, err := s.client.ListJobs(s.ctx, &borgrpc.ListJobsRequest{})
	if err != nil {
		return // The ban stands; this is advice.
	}
	var known []string
	for _, j := range resp.Jobs {
		for _, p := range j.GetSpec().GetTask().GetPackages() {
			known = append(known, p.GetName())
		}
	}
	switch near := cli.Nearest(name, known); {
	case slices.Contains(known, name):
	case near != "":
		s.progress("no job names package %s; did you mean %s?", name, near)
	default:
		s.progress("no job names package %s yet; is the name right?", name)
	}
}
