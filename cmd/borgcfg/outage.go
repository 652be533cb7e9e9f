package main

import (
	"fmt"
	"time"

	ucli "github.com/urfave/cli/v2"

	"borg/borgmaster/client"
	"borg/cli"
	"borg/proto/borgpb"
	"borg/proto/borgrpc"
)

func outageCommands(con *console) *ucli.Command {
	return group("outage", "what becomes of tasks when most machines cannot be reached",
		command(con, "status", "say how many machines answer, and whether others are called down", "", 0, 0, outageStatus, outputFlag()),
		command(con, "go", "believe that machines which cannot be reached are lost, however many: their tasks are started elsewhere", "", 0, 0, outageGo, reasonFlag(),
			&ucli.DurationFlag{Name: "for", Value: time.Hour, Usage: "so much `TIME`, up to 168h"}),
		command(con, "stop", "do not believe it any more", "", 0, 0, outageStop, reasonFlag()),
	)
}

func outageStatus(s *session) error {
	m, err := s.master()
	if err != nil {
		return err
	}
	c, err := s.elected(m)
	if err != nil {
		return err
	}
	if s.out.machine() {
		return list(s.out, []*borgrpc.Reach{c.Reach})
	}
	for _, line := range reachLines(c) {
		s.say("%s", line)
	}
	return nil
}

// elected is the cell as the elected master sees it.
func (s *session) elected(m *client.Client) (*borgrpc.GetCellResponse, error) {
	for _, v := range m.Survey(s.ctx) {
		if v.Cell.GetReach() != nil {
			return v.Cell, nil
		}
	}
	return nil, cli.Errorf(cli.Unreachable, "no master that answers is elected").Hint("see them: borgcfg status -o wide")
}

// reachLines says how much of the cell answers, and what follows.
func reachLines(c *borgrpc.GetCellResponse) []string {
	r := c.Reach
	lines := []string{fmt.Sprintf("%d of %s cannot be reached", r.Unreachable, plural(r.Machines, "machine"))}
	if r.Stopped {
		lines = append(lines,
			fmt.Sprintf("that is more than %d %%: it is more likely that the masters are cut off, so no more machines are called down, and their tasks stay where they are", r.StopPercent),
			"if they are lost: borgcfg outage go --reason WHY")
	}
	if c.LostDeclaredForNs > 0 {
		lines = append(lines, fmt.Sprintf("machines that cannot be reached are declared lost, however many, for %v yet: borgcfg outage stop ends it", time.Duration(c.LostDeclaredForNs).Round(time.Second)))
	}
	return lines
}

func outageGo(s *session) error {
	d := s.flag.Duration("for")
	if d <= 0 {
		return cli.Errorf(cli.Usage, "--for %v: want more than zero", d).Hint("to end it: borgcfg outage stop")
	}
	return s.change(&borgpb.Op{Op: &borgpb.Op_DeclareLost{DeclareLost: &borgpb.DeclareLost{ForNs: int64(d)}}},
		"machines that cannot be reached are lost, however many, for %v", d)
}

func outageStop(s *session) error {
	return s.change(&borgpb.Op{Op: &borgpb.Op_DeclareLost{DeclareLost: &borgpb.DeclareLost{}}}, "only as many machines are believed to be lost as --stop-downs says")
}
