package main

import (
	"errors"
	"slices"
	"strings"

	"borg/borgmaster/client"
	"borg/cli"
	"borg/proto/borgpb"
	"borg/proto/borgrpc"
)

// tellUnknown warns of a job or machine that the cell does not have, where that is no
// error: what happened to it may be told for weeks.
func (s *session) tellUnknown(job, machine string) error {
	if job != "" {
		n, err := s.job(job)
		if err != nil {
			return err
		}
		if err := s.tellMissed(s.missesJob(n)); err != nil {
			return err
		}
	}
	if machine == "" {
		return nil
	}
	return s.tellMissed(s.missesMachine(machine))
}

// missesJob is an error if the cell has no job or alloc set of that name.
func (s *session) missesJob(n jobName) error {
	_, err := s.find(n)
	return err
}

func (s *session) missesMachine(name string) error {
	m, err := s.master()
	if err != nil {
		return err
	}
	resp, err := m.ListMachines(s.ctx, &borgrpc.ListMachinesRequest{})
	if err != nil || slices.ContainsFunc(resp.Machines, func(m *borgpb.Machine) bool { return m.GetMeta().GetName() == name }) {
		return err
	}
	return s.noSuchMachine(name)
}

// tellMissed says that something is not there, and passes other errors on.
func (s *session) tellMissed(err error) error {
	var missing *cli.Error
	if !errors.As(err, &missing) || missing.Code != cli.NotFound {
		var hidden *client.NotAllowedError
		if errors.As(err, &hidden) {
			return nil
		}
		return err
	}
	s.progress("%s", missing.What)
	if missing.Next != "" {
		s.progress("  %s", missing.Next)
	}
	return nil
}

// tellUnknownUser warns of a user of whom the cell has nothing.
func (s *session) tellUnknownUser(user string) error {
	if user == "" {
		return nil
	}
	h, err := s.holder(user)
	if err != nil || h.known {
		return nil
	}
	if h.near != "" {
		s.progress("the cell has nothing of user %s; did you mean %s?", user, h.near)
		return nil
	}
	s.progress("the cell has nothing of user %s", user)
	return nil
}

// strangers are the users other than the caller whom an up would give their first job or
// alloc set.
func (s *session) strangers(steps []*step) (all []*holder) {
	seen := make(map[string]bool)
	for _, st := range steps {
		if seen[st.User] || st.action != create || st.User == s.source.Name().User() {
			continue
		}
		seen[st.User] = true
		// Who may not ask is told by the cell's answer to the change itself.
		if h, err := s.holder(st.User); err == nil && !h.known {
			all = append(all, h)
		}
	}
	return all
}

// missingHint is what to type when the cell does not have what a change is about.
func (s *session) missingHint(r *borgpb.Refusal) string {
	const otherwise = "see what there is: borgcfg status"
	says := func(text string) bool { return strings.Contains(r.Message, text) }
	switch {
	case says("such machine") && s.client != nil:
		return nextOf(s.noSuchMachine(r.Object), otherwise)
	case (says("such job") || says("such alloc set")) && s.client != nil:
		if user, name, ok := strings.Cut(r.Object, "/"); ok {
			return nextOf(s.noSuchJob(jobName{user, name}), otherwise)
		}
	case says("no quota"):
		return "see what there is: borgcfg quota list"
	case says("capability"):
		return "see who has which: borgcfg user list"
	case says("such secret"):
		return "see what there is: borgcfg secret list"
	case says("such file"):
		return "see what there is: borgcfg file ls"
	}
	return otherwise
}

func nextOf(err error, otherwise string) string {
	var e *cli.Error
	if errors.As(err, &e) && e.Next != "" {
		return e.Next
	}
	return otherwise
}
