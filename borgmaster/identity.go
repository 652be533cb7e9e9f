package borgmaster

import (
	"context"
	"strconv"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"borg/identity"
	"borg/proto/borgrpc"
	"borg/proto/door"
)

// identityAPI serves IdentityService. Each replica has the cell's authority and
// answers by itself; what must be remembered of it goes into the log.
type identityAPI struct {
	borgrpc.UnimplementedIdentityServiceServer
	m *Master
}

// Renew certifies a new key under the caller's own name, whatever that is: a
// borglet gets its own machine, a user himself.
func (a *identityAPI) Renew(ctx context.Context, req *borgrpc.RenewRequest) (*borgrpc.RenewResponse, error) {
	cert, err := a.m.issue(req.GetPublicKey(), door.Caller(ctx))
	return &borgrpc.RenewResponse{Certificate: cert}, err
}

// CertifyMaster certifies the key of a member. It becomes a master with it, and
// can then ask for the authority: an admin never sees that.
func (a *identityAPI) CertifyMaster(ctx context.Context, req *borgrpc.CertifyMasterRequest) (*borgrpc.CertifyMasterResponse, error) {
	if err := a.m.forAdmins(door.Caller(ctx)); err != nil {
		return nil, err
	}
	// This replica may not have heard yet that the member was added.
	if err := a.m.readIndex(ctx); err != nil {
		return nil, err
	}
	if !a.m.isMember(req.GetReplica()) {
		return nil, status.Errorf(codes.FailedPrecondition, "replica %d is not a member of this cell; add it first", req.GetReplica())
	}
	cert, err := a.m.issue(req.GetPublicKey(), a.m.conns.named(identity.Master, strconv.FormatUint(req.GetReplica(), 10)))
	return &borgrpc.CertifyMasterResponse{Certificate: cert}, err
}

// GetAuthority gives a member what makes it a whole master.
func (a *identityAPI) GetAuthority(ctx context.Context, _ *borgrpc.GetAuthorityRequest) (*borgrpc.GetAuthorityResponse, error) {
	who := door.Caller(ctx)
	if !a.m.isMember(who.Replica()) {
		return nil, status.Errorf(codes.PermissionDenied, "%s is not a member of this cell any more", who.Words())
	}
	if a.m.cfg.Authority == nil {
		return nil, errNoAuthority
	}
	data, err := a.m.cfg.Authority.Encode()
	if err != nil {
		return nil, status.Error(codes.Internal, err.Error())
	}
	a.m.cfg.Logger.Info("authority handed to a member", "to", who.ID)
	return &borgrpc.GetAuthorityResponse{Authority: data}, nil
}

var errNoAuthority = status.Error(codes.Unimplemented, "this replica has no authority to issue certificates with")

// isMember says whether a replica is a member, as far as this one knows.
func (m *Master) isMember(replica uint64) bool {
	for _, member := range m.cfg.Members.Members() {
		if member.Id == replica {
			return true
		}
	}
	return false
}

// issue certifies a key for as long as names of that role are.
func (m *Master) issue(public []byte, name identity.Name) (*borgrpc.Certificate, error) {
	if m.cfg.Authority == nil {
		return nil, errNoAuthority
	}
	issued, err := m.cfg.Authority.Issue(public, name, time.Now(), identity.LifeOf(name.Role))
	if err != nil {
		return nil, status.Error(codes.InvalidArgument, err.Error())
	}
	m.cfg.Logger.Debug("certificate issued", "to", name.String())
	cert := &borgrpc.Certificate{Certificate: issued.Certificate, Authorities: issued.Authorities}
	for _, member := range m.cfg.Members.Members() {
		cert.Masters = append(cert.Masters, member.Addr)
	}
	return cert, nil
}
