package cell

import (
	"unicode/utf8"

	"google.golang.org/protobuf/encoding/protowire"

	"borg/proto/borgpb"
)

// submitOp is room for an op that submits a job.
type submitOp struct {
	op        borgpb.Op
	kind      borgpb.Op_SubmitJob
	submit    borgpb.SubmitJob
	principal borgpb.Principal
}

// decodeSubmit reads an op that submits a job as proto.Unmarshal does, in a third of the
// time: each replica does that with each submit, and so does the scheduler. False: it is
// something else, or has fields that few such ops have. The spec lies in data, the op in o.
func decodeSubmit(data []byte, o *submitOp) (*borgpb.Op, bool) {
	const requestID, requestWall, principal, submitJob = 1, 2, 3, 20
	*o = submitOp{}
	o.kind.SubmitJob = &o.submit
	o.op.Op = &o.kind
	var hasPrincipal, hasSubmit bool
	ok := EachField(data, func(field protowire.Number, number uint64, value []byte) (ok bool) {
		switch {
		case field == requestID && value != nil:
			o.op.RequestId, ok = text(value)
		case field == requestWall && value == nil:
			o.op.RequestWallNs, ok = int64(number), true
		case field == principal && value != nil && !hasPrincipal:
			o.op.Principal, hasPrincipal = &o.principal, true
			ok = decodeAsker(&o.principal, value)
		case field == submitJob && value != nil && !hasSubmit:
			hasSubmit = true
			ok = decodeSubmitJob(&o.submit, value, o.principal.User)
		}
		return ok
	})
	return &o.op, ok && hasSubmit
}

// decodeAsker reads a principal that is a user, or a program of the cell.
func decodeAsker(p *borgpb.Principal, data []byte) bool {
	const user, role = 1, 2
	return EachField(data, func(field protowire.Number, number uint64, value []byte) (ok bool) {
		switch {
		case field == user && value != nil:
			p.User, ok = text(value)
		case field == role && value == nil:
			p.Role = borgpb.Role(int32(number))
			_, ok = borgpb.Role_name[int32(p.Role)]
		}
		return ok
	})
}

// decodeSubmitJob reads a submit without labels. It is mostly who asks whose job it is.
func decodeSubmitJob(s *borgpb.SubmitJob, data []byte, asker string) bool {
	const user, name, spec = 1, 2, 5
	return EachField(data, func(field protowire.Number, _ uint64, value []byte) (ok bool) {
		switch {
		case value == nil:
		case field == user && string(value) == asker:
			s.User, ok = asker, true
		case field == user:
			s.User, ok = text(value)
		case field == name:
			s.Name, ok = text(value)
		case field == spec:
			s.Spec, ok = value[:len(value):len(value)], true
		}
		return ok
	})
}

func text(value []byte) (string, bool) { return string(value), utf8.Valid(value) }
