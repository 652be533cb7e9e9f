package main

import (
	"errors"
	"regexp"
	"strings"

	"borg/borgmaster/client"
	"borg/cfg"
	"borg/cli"
	"borg/proto/borgpb"
	"borg/proto/borgrpc"
)

// tellUnknown notes a job or machine that the cell does not have. That is an error only if nothing is told
// of it: what happened to it may be told for weeks.
func (s *session) tellUnknown(job, machine string) error {
	if job != "" {
		n, err := s.job(job)
		if err != nil {
			return err
		}
		if err := s.noteMissed(s.missesJob(n)); err != nil {
			return err
		}
	}
	if machine == "" {
		return nil
	}
	return s.noteMissed(s.missesMachine(machine))
}

// noteMissed keeps what is not there until it is known whether there is something to tell of it
// all the same, and passes other errors on.
func (s *session) noteMissed(err error) error {
	var missing *cli.Error
	if errors.As(err, &missing) && missing.Code == cli.NotFound {
		s.missed = missing
		return nil
	}
	return s.tellMissed(err)
}

// tellNoted returns what is not there as an error if nothing was shown of it, and otherwise warns of it.
func (s *session) tellNoted(shown int) error {
	switch {
	case s.missed == nil:
		return nil
	case shown == 0:
		return s.missed
	}
	return s.tellMissed(s.missed)
}

// tellUnknownTask notes a task that the cell does not have, or not any more.
func (s *session) tellUnknownTask(name string) error {
	if name == "" {
		return nil
	}
	n, index, err := s.task(name)
	if err != nil {
		return err
	}
	v, err := s.find(n)
	if err != nil || v.set != nil {
		return s.noteMissed(err)
	}
	if _, err = s.lookAt(s.client, &borgrpc.LogsRequest{User: n.user, Name: n.name, Index: index}); err != nil {
		var missing *client.NotFoundError
		if errors.As(err, &missing) {
			err = s.noSuchTask(n, missing)
		}
	}
	return s.noteMissed(err)
}

// tellUnwatched warns of one that a watch names and that is not there, or not yet.
func (s *session) tellUnwatched(req *borgrpc.WatchRequest) error {
	switch {
	case req.Name == "" || req.FromIndex != 0:
		return nil
	case req.Kind == borgpb.ObjectKind_OBJECT_KIND_MACHINE:
		return s.tellMissed(s.missesMachine(req.Name))
	}
	return s.tellMissed(s.missesJob(jobName{req.User, req.Name}))
}

// missesJob is an error if the cell has no job or alloc set of that name.
func (s *session) missesJob(n jobName) error {
	_, err := s.find(n)
	return err
}

func (s *session) missesMachine(name string) error {
	machine, err := s.machineThere(name)
	if err != nil || machine != nil {
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
	e := cli.Errorf(cli.NotFound, "the cell has nothing of user %s", user)
	if h.near != "" {
		e = e.Hint("did you mean %s?", h.near)
	}
	// The cell does not keep who has logged in, so the name may be right.
	return s.tellMissed(e)
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
		// If the caller may not ask, the answer to the change itself says so.
		if h, err := s.holder(st.User); err == nil && !h.known {
			all = append(all, h)
		}
	}
	return all
}

// noSuch is how masters say that something is not there, with its name.
var noSuch = regexp.MustCompile(`^there is no (job|alloc set|machine) ([a-z0-9/-]+)$`)

// missingHint is what to type when the cell does not have what a command is about: object,
// or what the message names.
func (s *session) missingHint(object, message string) string {
	const otherwise = "see what there is: borgcfg status"
	says := func(text string) bool { return strings.Contains(message, text) }
	if m := noSuch.FindStringSubmatch(message); m != nil {
		object, message = m[2], "there is no such "+m[1]
	}
	switch {
	case says("such machine") && s.client != nil:
		return nextOf(s.noSuchMachine(object), otherwise)
	case says("such alloc set") && s.client != nil:
		return s.nearSet(object)
	case says("such job") && s.client != nil:
		if user, name, ok := strings.Cut(object, "/"); ok {
			return nextOf(s.noSuchJob(jobName{user, name}), otherwise)
		}
	case says("no member "):
		return "see who there is: borgcfg master list"
	case says("such volume"):
		return "see what there is: borgcfg volume list"
	case says("not banned"):
		return "see what is: borgcfg package list"
	case says("no quota"):
		return "see what there is: borgcfg quota list"
	case says("capability"):
		return "see who has which: borgcfg user list"
	case says("no secret ") && says("no file "):
		return "see what there is: borgcfg secret list, borgcfg file ls"
	case says("such secret"), says("no secret "):
		return "see what there is: borgcfg secret list"
	case says("such file"), says("no file "):
		return "see what there is: borgcfg file ls"
	}
	return otherwise
}

// nearSet offers an alloc set with a name like the one that is not there.
func (s *session) nearSet(name string) string {
	var alive, dead []string
	if sets, err := s.client.ListAllocs(s.ctx, &borgrpc.ListAllocsRequest{}); err == nil {
		for _, a := range sets.AllocSets {
			key := a.GetMeta().GetUser() + "/" + a.GetMeta().GetName()
			if a.GetStatus().GetState() == borgpb.State_STATE_DEAD {
				dead = append(dead, key)
			} else {
				alive = append(alive, key)
			}
		}
	}
	if near := nearOf(name, alive, dead); near != "" {
		return "did you mean " + near + "?"
	}
	return "see what there is: borgcfg alloc list"
}

// nearOf is the name most like one that is not there; that of a dead thing only if no other is like it.
func nearOf(name string, alive, dead []string) string {
	if near := cli.Nearest(name, alive); near != "" {
		return near
	}
	return cli.Nearest(name, dead)
}

// checkUser is an error unless an argument can be the name of a user.
func checkUser(arg string) error {
	return checkName(arg, "is not a user: names have letters a-z, digits and dashes")
}

// checkName is an error unless an argument can be a name; wrong says what is not right.
func checkName(arg, wrong string) error {
	near := cfg.DNSLabel(arg)
	if near == arg && arg != "" {
		return nil
	}
	e := cli.Errorf(cli.Usage, "%q %s", arg, wrong)
	if near != "" {
		return e.Hint("did you mean %q?", near)
	}
	return e
}

func nextOf(err error, otherwise string) string {
	var e *cli.Error
	if errors.As(err, &e) && e.Next != "" {
		return e.Next
	}
	return otherwise
}
