package main

import (
	"errors"
	"strings"

	"google.golang.org/protobuf/proto"

	borgcell "borg/borgmaster/cell"
	"borg/borgmaster/client"
	"borg/cfg"
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

// checkMissing asks the masters, before the first of several changes, whether each secret and
// file is there that the steps name, and tells of all that are not. Other refusals are left to
// the changes themselves: an earlier one may make room that a trial does not know of.
func (s *session) checkMissing(steps []*step) error {
	ops, err := s.ops(steps)
	if err != nil || len(ops) < 2 {
		return err
	}
	var first *client.RefusedError
	for n := askable(ops); n > 0; n = askable(ops) {
		err := s.client.Validate(s.ctx, ops[:n])
		var refused *client.RefusedError
		switch {
		case err == nil:
			ops = ops[n:]
			continue
		case !errors.As(err, &refused):
			return err
		}
		ops = ops[refused.At+1:]
		r := refused.Refusal
		missing := r.Kind == borgpb.RefusalKind_REFUSAL_KIND_NOT_FOUND && strings.HasPrefix(r.Field, "spec.task.")
		switch {
		case !missing:
		case first == nil:
			first = refused
		default:
			first.Refusal.Message += "\n" + refused.Error()
		}
	}
	if first != nil {
		return first
	}
	return nil
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
