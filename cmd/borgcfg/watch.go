package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"borg/borgmaster/client"
	"borg/cli"
	"borg/proto/borgpb"
	"borg/proto/borgrpc"
)

// watchKinds are the words for what can be watched.
var watchKinds = []struct {
	word string
	kind borgpb.ObjectKind
}{
	{"jobs", borgpb.ObjectKind_OBJECT_KIND_JOB}, {"tasks", borgpb.ObjectKind_OBJECT_KIND_TASK}, {"machines", borgpb.ObjectKind_OBJECT_KIND_MACHINE},
	{"allocs", borgpb.ObjectKind_OBJECT_KIND_ALLOC}, {"allocsets", borgpb.ObjectKind_OBJECT_KIND_ALLOC_SET},
}

// watchObjects shows objects and what becomes of them, until it is interrupted.
func watchObjects(s *session) error {
	req, err := s.watchRequest()
	if err != nil {
		return err
	}
	m, err := s.master()
	if err != nil {
		return err
	}
	if err := s.tellUnwatched(req); err != nil {
		return err
	}
	told := req.FromIndex
	for {
		err = m.Watch(s.ctx, req, func(resp *borgrpc.WatchResponse) error {
			if err := s.printWatch(resp); err != nil {
				return err
			}
			if !resp.More {
				told = resp.Index
			}
			return nil
		})
		if at, ok := s.ctx.Deadline(); ok && time.Until(at) < deadlineSlack {
			// The stream may end by its deadline a moment before we hear of it.
			<-s.ctx.Done()
		}
		var relist *client.RelistError
		switch {
		case s.ctx.Err() != nil && errors.Is(context.Cause(s.ctx), errTimeout):
			return cli.Errorf(cli.TimedOut, "the watch ends after %v", s.flag.Duration("timeout")).Hint("to go on: %s", s.watchAgain(told))
		case s.ctx.Err() != nil:
			return cli.Errorf(cli.Interrupted, "the watch was interrupted").Hint("to go on: %s", s.watchAgain(told))
		case !errors.As(err, &relist):
			return err
		case told == s.flag.Uint64("from") && told != 0:
			return cli.Errorf(cli.Conflict, "%w", err).Hint("without --from comes first all that there is: %s", s.watchAgain(0))
		}
		s.progress("what changed after index %d is not held any more; here is all that there is now", told)
		req.FromIndex, req.Epoch = 0, 0
	}
}

// deadlineSlack is how long before the end of --timeout the master may have ended the
// stream for it.
const deadlineSlack = 50 * time.Millisecond

// watchAgain is what to type to go on behind an index.
func (s *session) watchAgain(index uint64) string {
	words := []string{"borgcfg watch", strings.Join(s.args, " ")}
	if l := s.flag.String("selector"); l != "" {
		words = append(words, fmt.Sprintf("-l '%s'", l))
	}
	if owner := s.flag.String("owner"); owner != "" {
		words = append(words, "--owner "+owner)
	}
	if index != 0 {
		words = append(words, fmt.Sprintf("--from %d", index))
	}
	return strings.Join(words, " ")
}

func (s *session) watchRequest() (*borgrpc.WatchRequest, error) {
	req := &borgrpc.WatchRequest{User: s.flag.String("owner"), Selector: s.flag.String("selector"), FromIndex: s.flag.Uint64("from")}
	var words []string
	for _, k := range watchKinds {
		words = append(words, k.word)
		if k.word == s.args[0] {
			req.Kind = k.kind
		}
	}
	if req.Kind == borgpb.ObjectKind_OBJECT_KIND_UNSPECIFIED {
		e := cli.Errorf(cli.Usage, "%q cannot be watched: want %s", s.args[0], strings.Join(words, ", "))
		if near := cli.Nearest(s.args[0], words); near != "" {
			return nil, e.Hint("did you mean: borgcfg watch %s", near)
		}
		return nil, e
	}
	if req.Kind == borgpb.ObjectKind_OBJECT_KIND_MACHINE {
		if req.User != "" {
			return nil, cli.Errorf(cli.Usage, "--owner %s: machines belong to nobody", req.User)
		}
		if len(s.args) > 1 {
			req.Name = s.args[1]
		}
		return req, nil
	}
	if len(s.args) > 1 {
		name, err := s.job(s.args[1])
		if err != nil {
			return nil, err
		}
		if req.User != "" && req.User != name.user {
			return nil, cli.Errorf(cli.Usage, "--owner %s does not go with %s", req.User, name)
		}
		req.User, req.Name = name.user, name.name
	}
	return req, nil
}

// printWatch prints a message: for programs as it came, for people a line each.
func (s *session) printWatch(resp *borgrpc.WatchResponse) error {
	if done, err := s.printMessage(resp); done {
		return err
	}
	for _, c := range resp.Changes {
		name, state := s.watched(c)
		if s.out.format == "name" {
			s.say("%s", name)
			continue
		}
		s.say("%-10d %-7s  %s  %s", resp.Index, watchWord(resp.State, c), name, state)
	}
	return nil
}

func watchWord(state bool, c *borgrpc.WatchChange) string {
	switch {
	case state:
		return "is"
	case c.Object == nil:
		return "gone"
	case c.Gone:
		return "left"
	case c.IsCreate:
		return "new"
	}
	return "changed"
}

// watched is the name of an object and how it is.
func (s *session) watched(c *borgrpc.WatchChange) (name, state string) {
	o := c.Object
	if o == nil {
		o = c.Previous
	}
	switch x := o.GetObject().(type) {
	case *borgrpc.WatchObject_Job:
		st := x.Job.GetStatus()
		return s.short(x.Job.Meta.User, x.Job.Meta.Name), fmt.Sprintf("%s, version %d: %d pending, %d running, %d dead%s", word(st.State), x.Job.Meta.Version, st.Pending, st.Running, st.Dead, because(st.Reason))
	case *borgrpc.WatchObject_Task:
		st := x.Task.GetStatus()
		return fmt.Sprintf("%s/%d", s.short(x.Task.Meta.User, x.Task.Meta.Name), x.Task.Index), word(st.State) + attemptText(st) + because(st.Reason)
	case *borgrpc.WatchObject_AllocSet:
		st := x.AllocSet.GetStatus()
		return s.short(x.AllocSet.Meta.User, x.AllocSet.Meta.Name), fmt.Sprintf("%s: %d pending, %d running, %d dead%s", word(st.State), st.Pending, st.Running, st.Dead, because(st.Reason))
	case *borgrpc.WatchObject_Alloc:
		st := x.Alloc.GetStatus()
		where := ""
		if st.Machine != "" {
			where = " on " + st.Machine
		}
		return fmt.Sprintf("%s/%d", s.short(x.Alloc.Meta.User, x.Alloc.Meta.Name), x.Alloc.Index), word(st.State) + where + because(st.Reason)
	case *borgrpc.WatchObject_Machine:
		st := x.Machine.GetStatus()
		state = word(st.State)
		if st.Draining {
			state += ", draining"
		}
		return x.Machine.Meta.Name, state + because(st.Reason)
	}
	return c.Uid, ""
}

func attemptText(st *borgpb.TaskStatus) string {
	if st.GetMachine() == "" {
		return ""
	}
	return fmt.Sprintf(", attempt %d on %s: %s", st.Attempt, st.Machine, word(st.AttemptState))
}

func because(reason string) string {
	if reason == "" {
		return ""
	}
	return ": " + cli.Visible(reason)
}
