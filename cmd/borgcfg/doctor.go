package main

import (
	"fmt"
	"slices"

	"google.golang.org/protobuf/proto"

	"borg/cli"
	"borg/proto/borgrpc"
)

// doctor asks every replica what is wrong and prints it, the worst first. It fails if
// something does not work; what somebody should look at is no failure.
func doctor(s *session) error {
	m, err := s.master()
	if err != nil {
		return err
	}
	type told struct {
		replica string
		finding *borgrpc.Finding
	}
	var all []told
	var answers []proto.Message
	fault := func(replica, next, format string, args ...any) {
		f := &borgrpc.Finding{Severity: borgrpc.Severity_SEVERITY_FAULT, Text: fmt.Sprintf(format, args...), Next: next}
		all = append(all, told{replica, f})
	}
	silent := 0
	views := m.Examine(s.ctx)
	for _, v := range views {
		if v.Err != nil {
			silent++
			fault(v.Addr, "see its log; borgcfg master list", "The replica does not answer: %v.", v.Err)
			continue
		}
		answers = append(answers, v.Found)
		name := fmt.Sprint(v.Found.Replica)
		if v.Found.Elected {
			name += " (elected)"
		}
		for _, f := range v.Found.Findings {
			all = append(all, told{name, f})
		}
	}
	slices.SortStableFunc(all, func(a, b told) int { return int(b.finding.Severity) - int(a.finding.Severity) })
	faults := 0
	var t table
	t.head("SEVERITY", "REPLICA", "WHAT", "NEXT")
	for _, x := range all {
		severity := cell{"warning", plainStyle}
		if x.finding.Severity == borgrpc.Severity_SEVERITY_FAULT {
			faults++
			severity = cell{"fault", bad}
		}
		t.add(severity, x.replica, x.finding.Text, x.finding.Next)
	}
	switch {
	case s.out.machine():
		err = s.out.parts(part{"replicas", answers, true})
	case len(all) == 0:
		s.say("nothing is wrong: %s asked", plural(len(views), "replica"))
	default:
		err = t.write(s.out, "")
	}
	if err == nil && silent == len(views) {
		return cli.Errorf(cli.Unreachable, "no replica answers")
	}
	if err == nil && faults > 0 {
		return cli.Errorf(cli.Failed, "%s", plural(faults, "fault"))
	}
	return err
}
