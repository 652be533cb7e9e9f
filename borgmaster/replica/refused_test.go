package replica

import (
	"errors"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"borg/identity"
	"borg/proto/door"
)

// refusals is what a transport tells its replica of those that do not let it in.
type refusals struct {
	Inbound
	said error
}

func (r *refusals) Refused(err error) { r.said = err }

// A replica ends, and drops its keys, when it is told that it was removed, whoever says
// so first; of nobody else's refusal it makes anything.
func TestRefused(t *testing.T) {
	own := source(t, identity.Master, "3")
	name := func(id string) identity.Name { return identity.Name{Cell: "test", Role: identity.Master, ID: id} }
	for _, tt := range []struct {
		err, want error
	}{
		{status.Error(codes.FailedPrecondition, refusedRemoved), ErrRemoved},
		{status.Error(codes.FailedPrecondition, refusedIncarnation), ErrIncarnation},
		{door.Revoked(name("3")), ErrRemoved},
		{door.Revoked(name("2")), nil},
		{status.Error(codes.Unauthenticated, "who is that?"), nil},
		{status.Error(codes.Unavailable, refusedRemoved), nil},
		{errors.New(refusedRemoved), nil},
	} {
		in := &refusals{}
		p := &peer{t: &grpcTransport{in: in, own: own}}
		p.refused(tt.err)
		if in.said != tt.want {
			t.Errorf("%v: the replica hears %v, want %v", tt.err, in.said, tt.want)
		}
	}
}
