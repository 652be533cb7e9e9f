package main

import (
	"google.golang.org/protobuf/proto"

	"borg/cfg"
	"borg/proto/borgpb"
)

const (
	// maxValidated and maxValidatedBytes bound what the masters are asked at a time.
	maxValidated      = 256
	maxValidatedBytes = 1800 << 10
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
	n, bytes := 0, 0
	for n < len(ops) && n < maxValidated && bytes+proto.Size(ops[n]) <= maxValidatedBytes {
		bytes += proto.Size(ops[n])
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
