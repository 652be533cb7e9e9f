package main

import (
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"

	ucli "github.com/urfave/cli/v2"

	"borg/borgmaster/client"
	"borg/borgmaster/roster"
	"borg/cli"
	"borg/proto/borgrpc"
)

func masterCommands(con *console) *ucli.Command {
	dryRun := &ucli.BoolFlag{DisableDefaultText: true, Name: "dry-run", Usage: "say what would be done first, or why it is refused, and do nothing"}
	return group("master", "the replicas of the cell's master",
		command(con, "list", "list the masters as the elected one sees them", "", 0, 0, masterList, outputFlag()),
		command(con, "transfer", "have another master elected, now; without a number the one that has most of the log", "[NUMBER]", 0, 1, masterTransfer),
		command(con, "replace", "have a master that has joined at an address take the place of another one", "NUMBER ADDRESS", 2, 2, masterReplace, dryRun),
		command(con, "grow", "wait until masters that have joined at these addresses vote", "ADDRESS...", 1, -1, masterGrow, dryRun),
		command(con, "shrink", "take masters out, for good", "NUMBER...", 1, -1, masterShrink, dryRun,
			&ucli.BoolFlag{DisableDefaultText: true, Name: "force", Usage: "even if an even number of masters is left"}))
}

// heardWithin is how long ago the elected master heard a replica that is heard.
const heardWithin = 2 * time.Second

// rosterOf is what the planner wants to know of an answer.
func rosterOf(resp *borgrpc.ListMembersResponse) roster.Roster {
	r := roster.Roster{Removed: resp.Removed, NextID: resp.NextId}
	for _, m := range resp.Members {
		r.Replicas = append(r.Replicas, roster.Replica{
			ID: m.GetMember().GetId(), Addr: m.GetMember().GetAddr(), Learner: m.Learner, Elected: m.Elected,
			Heard: m.Elected || m.HeardNs > 0 && time.Duration(m.HeardNs) < heardWithin || m.Current, Current: m.Current, Behind: m.Behind,
		})
	}
	return r
}

func masterList(s *session) error {
	m, err := s.master()
	if err != nil {
		return err
	}
	resp, err := m.ListMembers(s.ctx)
	if err != nil {
		return err
	}
	if s.out.machine() {
		return list(s.out, resp.Members)
	}
	var names []string
	t := &table{}
	t.head("MASTER", "ADDRESS", "ROLE", "HEARD", "BEHIND", "COUNTS")
	for _, x := range resp.Members {
		names = append(names, fmt.Sprint(x.GetMember().GetId()))
		role, heard, behind, counts := "voter", time.Duration(x.HeardNs).Round(time.Millisecond).String()+" ago", fmt.Sprint(x.Behind), cell{"yes", good}
		if x.HeardNs < 0 {
			heard, behind = "never", "?"
		}
		switch {
		case x.Elected:
			role, heard = "elected", "-"
		case x.Learner:
			role = "learner"
		}
		switch {
		case x.Learner:
			counts = cell{"no vote yet", waiting}
		case !x.Current:
			counts = cell{"no", bad}
		}
		t.add(x.GetMember().GetId(), x.GetMember().GetAddr(), role, heard, behind, counts)
	}
	if s.out.format == "name" {
		return s.out.names(names)
	}
	if err := t.write(s.out, ""); err != nil {
		return err
	}
	s.tellLoss(rosterOf(resp))
	return nil
}

// tellLoss says what the cell stands.
func (s *session) tellLoss(r roster.Roster) {
	voters := r.Voters()
	current := 0
	for _, x := range voters {
		if x.Current {
			current++
		}
	}
	n, spare := len(voters), current-roster.Majority(len(voters))
	s.progress("of %s %d count, a majority is %d: the cell stands the loss of %d more", plural(n, "voter"), current, roster.Majority(n), max(spare, 0))
	if n > 1 && n%2 == 0 {
		s.progress("%d masters stand no more than %d: one more, or one fewer, is better", n, n-1)
	}
}

func masterNumber(text string) (uint64, error) {
	id, err := strconv.ParseUint(text, 10, 32)
	if err != nil || id == 0 {
		return 0, cli.Errorf(cli.Usage, "%q is not the number of a master, from 1", text).Hint("see them: borgcfg master list")
	}
	return id, nil
}

func masterAddr(text string) error {
	host, port, err := net.SplitHostPort(text)
	if n, e := strconv.Atoi(port); err != nil || host == "" || e != nil || n < 1 || n > 65535 {
		return cli.Errorf(cli.Usage, "%q is not an address HOST:PORT of a master", text)
	}
	return nil
}

func masterTransfer(s *session) error {
	var to uint64
	var err error
	if len(s.args) > 0 {
		if to, err = masterNumber(s.args[0]); err != nil {
			return err
		}
	}
	m, err := s.master()
	if err != nil {
		return err
	}
	// Who was just elected has not heard from all yet.
	for refused := (time.Time{}); ; {
		err := s.transfer(m, to)
		if err == nil {
			return nil
		}
		if refused, err = s.believe(refused, roster.Roster{}, err); err != nil {
			return err
		}
	}
}

func (s *session) transfer(m *client.Client, to uint64) error {
	resp, err := m.TransferElection(s.ctx, to)
	if err != nil {
		return err
	}
	if resp.GapNs == 0 {
		s.say("master %d is elected already", resp.Elected)
		return nil
	}
	s.say("master %d is elected; nothing was written for %v", resp.Elected, time.Duration(resp.GapNs).Round(100*time.Microsecond))
	return nil
}

func masterReplace(s *session) error {
	id, err := masterNumber(s.args[0])
	if err != nil {
		return err
	}
	if err := masterAddr(s.args[1]); err != nil {
		return err
	}
	return s.reach(roster.Goal{Out: []uint64{id}, In: s.args[1:]})
}

func masterGrow(s *session) error {
	for _, addr := range s.args {
		if err := masterAddr(addr); err != nil {
			return err
		}
	}
	return s.reach(roster.Goal{In: s.args})
}

func masterShrink(s *session) error {
	var goal roster.Goal
	for _, arg := range s.args {
		id, err := masterNumber(arg)
		if err != nil {
			return err
		}
		if !slices.Contains(goal.Out, id) {
			goal.Out = append(goal.Out, id)
		}
	}
	return s.reach(goal)
}

const (
	// lookAgain is the pause between two looks while something is waited for.
	lookAgain = 200 * time.Millisecond
	// refusedFor is how long a change has to be refused to be given up: who was just
	// elected has not heard from all yet.
	refusedFor = 1500 * time.Millisecond
)

// reach takes one step after the other until the masters are as they are to be.
// Who they are is asked before each: nothing is kept here that could be lost.
func (s *session) reach(goal roster.Goal) error {
	m, err := s.master()
	if err != nil {
		return err
	}
	said, begun := "", false
	var refused time.Time
	for {
		resp, err := m.ListMembers(s.ctx)
		if err != nil {
			return err
		}
		r := rosterOf(resp)
		var step roster.Step
		if !begun {
			if err = goal.Check(r); err == nil {
				err = s.notWasted(goal, r)
			}
		}
		if err == nil {
			step, err = goal.Next(r)
		}
		switch {
		case err != nil:
		case s.flag.Bool("dry-run"):
			s.say("%s", stepWords(step))
			return nil
		case step.Kind == roster.Done:
			s.doneRoster(goal, r)
			return nil
		default:
			begun = true
			if words := stepWords(step); words != said {
				said = words
				s.progress("%s", words)
				if step.Kind == roster.Join {
					s.progress("%s", joinHint(r, step.ID, step.Addr))
				}
			}
			err = s.take(m, step)
		}
		if refused, err = s.believe(refused, r, err); err != nil {
			return err
		}
	}
}

// notWasted refuses, without --force, to leave an even number of masters. The masters themselves cannot:
// they are asked to take out one after the other.
func (s *session) notWasted(goal roster.Goal, r roster.Roster) error {
	left, wastes := goal.Wastes(r)
	if !wastes || s.flag.Bool("force") {
		return nil
	}
	return cli.Errorf(cli.Refused, "%d masters would be left, which stand the loss of no more than %d", left, left-1).
		Hint("name one more to take out, or if that is meant: --force")
}

// believe lets a change that is refused be tried again for a moment. It returns
// since when it is refused.
func (s *session) believe(since time.Time, r roster.Roster, err error) (time.Time, error) {
	var byPlan *roster.Refused
	var byMaster *client.StateError
	// The replica that told the roster may lag behind, and show a member that is gone.
	var gone *client.NotFoundError
	switch {
	case err == nil:
		return time.Time{}, nil
	case !errors.As(err, &byPlan) && !errors.As(err, &byMaster) && !errors.As(err, &gone):
		return since, err
	case since.IsZero():
		since = time.Now()
	case time.Since(since) > refusedFor:
		return since, refusedRoster(r, err)
	}
	return since, s.pause()
}

// pause lets a moment pass.
func (s *session) pause() error {
	timer := time.NewTimer(lookAgain)
	defer timer.Stop()
	select {
	case <-s.ctx.Done():
		return s.ctx.Err()
	case <-timer.C:
		return nil
	}
}

// take takes one step, or lets a moment pass.
func (s *session) take(m *client.Client, step roster.Step) error {
	switch step.Kind {
	case roster.Transfer:
		return s.transfer(m, step.ID)
	case roster.Remove:
		err := m.RemoveMember(s.ctx, step.ID)
		var state *client.StateError
		if errors.As(err, &state) && strings.Contains(err.Error(), "there is no member") {
			// A try that was not answered was done.
			return nil
		}
		if err == nil {
			s.say("master %d at %s is out, and its number is not used again", step.ID, step.Addr)
		}
		return err
	}
	if err := s.pause(); err != nil {
		return fmt.Errorf("waiting: %s: %w", step.Why, err)
	}
	return nil
}

func stepWords(step roster.Step) string {
	switch step.Kind {
	case roster.Done:
		return "the masters are as they are to be"
	case roster.Transfer:
		return fmt.Sprintf("have master %d elected: %s", step.ID, step.Why)
	case roster.Remove:
		return fmt.Sprintf("take master %d out: %s", step.ID, step.Why)
	default:
		return "wait: " + step.Why
	}
}

func (s *session) doneRoster(goal roster.Goal, r roster.Roster) {
	var names []string
	for _, x := range r.Voters() {
		names = append(names, fmt.Sprintf("%d at %s", x.ID, x.Addr))
	}
	s.say("masters: %s", strings.Join(names, ", "))
	s.tellLoss(r)
	for _, id := range goal.Out {
		if slices.Contains(r.Removed, id) {
			s.progress("what master %d kept may be deleted when it has ended", id)
		}
	}
	var known []string
	for _, x := range r.Replicas {
		known = append(known, x.Addr)
	}
	if slices.ContainsFunc(known, func(a string) bool { return !slices.Contains(s.place.Masters, a) }) || len(known) != len(s.place.Masters) {
		s.progress("where the masters are is known from %s, which names others; it should name: %s", s.place.Origin, strings.Join(known, ","))
	}
}

// joinHint is what to type where a replica is to be started.
func joinHint(r roster.Roster, id uint64, addr string) string {
	to := "MASTER"
	for _, x := range r.Replicas {
		if x.Elected {
			to = x.Addr
		}
	}
	return fmt.Sprintf("on the machine of %s:\n  borgmaster init --join %s --replica %d --addr %s\n  borgmaster serve --cell NAME --replica %d", addr, to, id, addr, id)
}

// refusedRoster gives a refusal its exit code and a hint.
func refusedRoster(r roster.Roster, err error) error {
	var refused *roster.Refused
	if !errors.As(err, &refused) {
		return err
	}
	e := cli.Errorf(cli.Refused, "%s", refused.What)
	if refused.Missing {
		e.Code = cli.NotFound
	}
	switch {
	case refused.Addr != "":
		return e.Hint("%s\nthen this again", joinHint(r, refused.ID, refused.Addr))
	case refused.Next != "":
		return e.Hint("%s", refused.Next)
	}
	return e
}

// tellMoved says that the place where the cell is named names somebody who is none of its
// masters any more.
func (s *session) tellMoved() {
	if s.ctx.Err() != nil || s.client == nil || !s.client.Silent() {
		return
	}
	if are, gone := s.client.Moved(s.ctx); len(gone) > 0 {
		s.progress("%s names %s, where no master of the cell is any more; it should name: %s", s.place.Origin, strings.Join(gone, ", "), strings.Join(are, ","))
	}
}
