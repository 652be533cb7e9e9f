package main

import (
	"fmt"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"

	"borg/borgmaster/client"
	"borg/cli"
	"borg/proto/borgrpc"
)

// told is a finding, and who tells it.
type told struct {
	replicas []string
	finding  *borgrpc.Finding
}

// doctor asks every replica what is wrong and prints it, the worst first. What several
// say alike is printed once. The exit code tells faults from warnings, and both from none.
func doctor(s *session) error {
	m, err := s.master()
	if err != nil {
		return err
	}
	var all []told
	var answers []proto.Message
	silent := 0
	views := m.Examine(s.ctx)
	var are, gone []string
	if slices.ContainsFunc(views, func(v client.Examined) bool { return v.Err != nil }) {
		are, gone = m.Moved(s.ctx)
	}
	// unheard adds a finding of borgcfg's own about an address at which no replica answered.
	unheard := func(addr string, f *borgrpc.Finding) {
		all = append(all, told{[]string{addr}, f})
		named := proto.CloneOf(f)
		named.Text = addr + ": " + f.Text
		answers = append(answers, &borgrpc.ExamineResponse{Findings: []*borgrpc.Finding{named}})
	}
	for _, v := range views {
		switch {
		case slices.Contains(gone, v.Addr):
			unheard(v.Addr, &borgrpc.Finding{
				Severity: borgrpc.Severity_SEVERITY_WARNING, Text: "No master of the cell is there any more.",
				Next: fmt.Sprintf("name in %s: %s", s.place.Origin, strings.Join(are, ",")),
			})
			continue
		case v.Err != nil:
			silent++
			unheard(v.Addr, &borgrpc.Finding{
				Severity: borgrpc.Severity_SEVERITY_FAULT,
				Text:     fmt.Sprintf("The replica does not answer: %v.", v.Err), Next: "see its log; borgcfg master list",
			})
			continue
		}
		answers = append(answers, v.Found)
		name := fmt.Sprint(v.Found.Replica)
		if v.Found.Elected {
			name += " (elected)"
		}
		for _, f := range v.Found.Findings {
			all = append(all, told{[]string{name}, f})
		}
	}
	all = alikeOnce(all)
	faults := slices.DeleteFunc(slices.Clone(all), func(x told) bool { return x.finding.Severity != borgrpc.Severity_SEVERITY_FAULT })
	switch {
	case s.out.machine():
		err = s.out.parts(part{"replicas", answers, true})
	case len(all) == 0:
		s.say("nothing is wrong: %s asked", plural(len(views), "replica"))
	default:
		err = s.findings(all)
	}
	switch {
	case err != nil:
		return err
	case silent == len(views):
		return cli.Errorf(cli.Unreachable, "no replica answers")
	case len(faults) > 0:
		return cli.Errorf(cli.Failed, "%s", plural(len(faults), "fault"))
	case len(all) > 0:
		return cli.Errorf(cli.Warnings, "no fault, %s", plural(len(all), "warning"))
	}
	return nil
}

// alikeOnce joins findings of the same words, and puts the worst first. What to do next may
// differ between replicas, as a directory does: then each is told with its replica.
func alikeOnce(all []told) (once []told) {
	nexts := make(map[int][]string)
	for _, x := range all {
		at := slices.IndexFunc(once, func(o told) bool {
			return o.finding.Severity == x.finding.Severity && o.finding.Text == x.finding.Text
		})
		if at < 0 {
			at = len(once)
			once = append(once, told{finding: x.finding})
		}
		once[at].replicas = append(once[at].replicas, x.replicas...)
		nexts[at] = append(nexts[at], x.finding.Next)
	}
	for at, next := range nexts {
		once[at].finding = joinNexts(once[at], next)
	}
	slices.SortStableFunc(once, func(a, b told) int { return int(b.finding.Severity) - int(a.finding.Severity) })
	return once
}

// joinNexts is a finding with what its replicas say is next.
func joinNexts(x told, nexts []string) *borgrpc.Finding {
	different := slices.Compact(slices.Clone(nexts))
	if len(different) == 1 {
		return x.finding
	}
	f := proto.CloneOf(x.finding)
	var each []string
	for i, next := range nexts {
		each = append(each, fmt.Sprintf("replica %s: %s", x.replicas[i], next))
	}
	f.Next = strings.Join(each, "; ")
	return f
}

func (s *session) findings(all []told) error {
	var t table
	t.head("SEVERITY", "REPLICA", "WHAT", "NEXT")
	for _, x := range all {
		severity := cell{"warning", plainStyle}
		if x.finding.Severity == borgrpc.Severity_SEVERITY_FAULT {
			severity = cell{"fault", bad}
		}
		t.add(severity, strings.Join(x.replicas, ", "), s.typed(x.finding.Text), s.typed(x.finding.Next))
	}
	return t.write(s.out, "")
}
