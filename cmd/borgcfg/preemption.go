package main

import (
	"slices"
	"strings"

	ucli "github.com/urfave/cli/v2"

	"borg/cli"
	"borg/proto/borgpb"
)

func preemptionCommands(con *console) *ucli.Command {
	return group("preemption", "within which bands nobody takes the place of others",
		command(con, "show", "print the bands; production always", "", 0, 0, preemptionShow, outputFlag()),
		command(con, "set", "put others in their place", "", 0, 0, preemptionSet, reasonFlag(),
			&ucli.StringFlag{Name: "collapse", Usage: "`BANDS` with commas between them, such as free,batch; none: production alone"}))
}

func preemptionShow(s *session) error {
	m, err := s.master()
	if err != nil {
		return err
	}
	resp, err := m.GetPreemptionPolicy(s.ctx)
	if err != nil {
		return err
	}
	if s.out.machine() {
		return s.out.one(resp)
	}
	var t table
	t.head("BAND", "WITHIN IT")
	for _, name := range []string{"free", "batch", "mid", "production", "monitoring"} {
		within := "higher priorities take the place of lower ones"
		if slices.Contains(resp.Collapse, bandNames[name]) {
			within = "nobody takes the place of others"
		}
		t.add(name, within)
	}
	return t.write(s.out, "")
}

func preemptionSet(s *session) error {
	if !s.flag.IsSet("collapse") {
		return cli.Errorf(cli.Usage, "nothing is said").Hint("--collapse BANDS or --collapse none; borgcfg policy preemption show prints how it is")
	}
	o := &borgpb.SetPreemptionPolicy{}
	if text := s.flag.String("collapse"); text != "none" {
		for name := range strings.SplitSeq(text, ",") {
			band, err := readBand(name)
			if err != nil {
				return err
			}
			// It does so whatever is said.
			if band != borgpb.Band_BAND_PRODUCTION {
				o.Collapse = append(o.Collapse, band)
			}
		}
	}
	said := "production alone"
	if len(o.Collapse) > 0 {
		var names []string
		for _, b := range o.Collapse {
			names = append(names, word(b))
		}
		said = "production, " + strings.Join(names, ", ")
	}
	return s.change(&borgpb.Op{Op: &borgpb.Op_SetPreemptionPolicy{SetPreemptionPolicy: o}}, "nobody takes the place of others within %s", said)
}
