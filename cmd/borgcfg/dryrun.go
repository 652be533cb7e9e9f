package main

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"

	borgcell "borg/borgmaster/cell"
	"borg/borgmaster/client"
	"borg/cfg"
	"borg/cli"
	"borg/proto/borgpb"
)

const (
	// maxValidated, maxValidatedBytes and maxValidatedWork bound what the masters are asked at a
	// time.
	maxValidated      = 256
	maxValidatedBytes = 1800 << 10
	maxValidatedWork  = 200_000
)

// validate asks the masters whether they would do the steps and ends. The refusal is
// that with which `up` would end.
func (s *session) validate(steps []*step, ends []victim) error {
	ops, err := s.ops(steps)
	if err != nil {
		return err
	}
	for _, v := range ends {
		ops = append(ops, s.op(v.op()))
	}
	n := askable(ops)
	if n < len(ops) {
		s.progress("the masters were asked about the first %d of %d changes", n, len(ops))
	}
	if n == 0 {
		return nil
	}
	return s.client.Validate(s.ctx, ops[:n])
}

// ops are the mutations that do the steps.
func (s *session) ops(steps []*step) ([]*borgpb.Op, error) {
	var ops []*borgpb.Op
	for _, st := range steps {
		if st.action == nothing {
			continue
		}
		op, err := st.op()
		if err != nil {
			return nil, err
		}
		ops = append(ops, s.op(op))
	}
	return ops, nil
}

// askable is how many of the ops, from the first on, the masters may be asked about at once.
func askable(ops []*borgpb.Op) int {
	n, bytes, work := 0, 0, 0
	for n < len(ops) && n < maxValidated {
		bytes, work = bytes+proto.Size(ops[n]), work+borgcell.ReadWork(ops[n])
		if bytes > maxValidatedBytes || work > maxValidatedWork {
			break
		}
		n++
	}
	return n
}

// checkAll asks the masters, before the first of several changes, whether they would do all of
// them. If not, nothing is done: it tells of all secrets and files that are missing, or else of
// the first refusal, with the place of its object.
func (s *session) checkAll(steps []*step) error {
	steps = slices.DeleteFunc(slices.Clone(steps), func(st *step) bool { return st.action == nothing })
	ops, err := s.ops(steps)
	if err != nil || len(ops) < 2 {
		return err
	}
	var first *client.RefusedError
	var lines []string
	// A trial knows the changes before: all those that it was asked about are new objects.
	exact := true
	for n := askable(ops); n > 0; n = askable(ops) {
		err := s.client.Validate(s.ctx, ops[:n])
		var refused *client.RefusedError
		if err != nil && !errors.As(err, &refused) {
			return err
		}
		asked := n
		if refused != nil {
			asked = refused.At
		}
		for _, st := range steps[:asked] {
			exact = exact && st.action == create
		}
		if refused == nil {
			ops, steps, exact = ops[n:], steps[n:], false
			continue
		}
		st := steps[asked]
		missing := isMissing(refused.Refusal)
		if missing || first == nil && (exact || st.certain(refused.Refusal)) {
			first = cmp.Or(first, refused)
			lines = append(lines, fmt.Sprintf("%s: %v", st.Pos(), refused))
		}
		if first != nil && !missing {
			break
		}
		ops, steps, exact = ops[asked+1:], steps[asked+1:], false
	}
	if first == nil {
		return nil
	}
	return &cli.Error{
		Code: refusalCode(first.Refusal.Kind), What: strings.Join(lines, "\n") + "\nnothing of the files was done", Err: first, Next: s.refusalHint(first.Refusal),
	}
}

// isMissing reports whether a spec was refused for secrets or files that are not there.
func isMissing(r *borgpb.Refusal) bool {
	return r.Kind == borgpb.RefusalKind_REFUSAL_KIND_NOT_FOUND && strings.HasPrefix(r.Field, "spec.task.")
}

// certain reports whether a refusal holds whatever updates come before it. A trial forgets what
// those end, shrink or grow, so a quota, a limit or an alloc set may have room by then.
func (st *step) certain(r *borgpb.Refusal) bool {
	switch r.Kind {
	case borgpb.RefusalKind_REFUSAL_KIND_MALFORMED, borgpb.RefusalKind_REFUSAL_KIND_PERMISSION:
		return true
	case borgpb.RefusalKind_REFUSAL_KIND_INVALID:
		return st.Job.GetAllocSet() == ""
	}
	return false
}

// op is the mutation that does a step.
func (st *step) op() (*borgpb.Op, error) {
	switch {
	case st.action == create:
		return st.submit()
	case st.Kind == cfg.KindJob:
		return st.update()
	case st.given != nil:
		return st.updateSet()
	}
	return st.relabelTo(st.allocs.GetMeta()), nil
}
