package main

import (
	"fmt"
	"strconv"
	"strings"

	"borg/cli"
	"borg/identity"
	"borg/proto/borgpb"
)

// setNote is run by a task: it says something of itself, in place of what it said
// before.
func setNote(s *session) error {
	m, err := s.master()
	if err != nil {
		return err
	}
	who := s.source.Name()
	if who.Role != identity.Task {
		return cli.Errorf(cli.Usage, "a note is what a task says of itself, and you are %s", who.Words()).
			Hint("run it in a task: there $BORG_CELL_FILE names the cell and the task's certificate")
	}
	parts := strings.Split(who.ID, "/")
	index, err := strconv.ParseUint(parts[2], 10, 32)
	if err != nil {
		return cli.Errorf(cli.Failed, "the certificate is that of %s", who)
	}
	attempt, err := strconv.ParseUint(s.env("BORG_ATTEMPT"), 10, 64)
	if err != nil {
		return cli.Errorf(cli.Usage, "which copy of the task? $BORG_ATTEMPT is %q", s.env("BORG_ATTEMPT")).Hint("it is set for each task; pass it on")
	}
	note := &borgpb.SetTaskNote{User: parts[0], Job: parts[1], Index: uint32(index), Attempt: attempt}
	if len(s.args) == 1 {
		note.Text = s.args[0]
	}
	for _, pair := range s.flag.StringSlice("annotation") {
		key, value, ok := strings.Cut(pair, "=")
		if !ok || key == "" {
			return cli.Errorf(cli.Usage, "--annotation %q: want KEY=VALUE", pair)
		}
		if note.Annotations == nil {
			note.Annotations = make(map[string]string)
		}
		note.Annotations[key] = value
	}
	if _, err := m.Mutate(s.ctx, s.op(&borgpb.Op{Op: &borgpb.Op_SetTaskNote{SetTaskNote: note}})); err != nil {
		return err
	}
	fmt.Fprintf(s.stdout, "task %s: noted\n", who.ID)
	return nil
}
