package main

import (
	"google.golang.org/protobuf/proto"

	borgcell "borg/borgmaster/cell"
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
	var ops []*borgpb.Op
	for _, st := range steps {
		if st.action == nothing {
			continue
		}
		op, err := st.op()
		if err != nil {
			return err
		}
		ops = append(ops, s.op(op))
	}
	for _, v := range ends {
		ops = append(ops, s.op(v.op()))
	}
	n, bytes, work := 0, 0, 0
	for n < len(ops) && n < maxValidated {
		bytes, work = bytes+proto.Size(ops[n]), work+borgcell.ReadWork(ops[n])
		if bytes > maxValidatedBytes || work > maxValidatedWork {
			break
		}
		n++
	}
	if n < len(ops) {
		s.progress("the masters were asked about the first %d of %d changes", n, len(ops))
	}
	if n == 0 {
		return nil
	}
	return s.client.Validate(s.ctx, ops[:n])
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
