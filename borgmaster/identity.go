package borgmaster

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strconv"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"borg/borgmaster/cell"
	"borg/identity"
	"borg/proto/borgpb"
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
	who := door.Caller(ctx)
	if door.Foreign(ctx) {
		return nil, status.Errorf(codes.PermissionDenied, "the certificate of %s was issued by another authority, which renews it", who.Words())
	}
	// This replica may not have heard yet that the caller was revoked, or the
	// machine removed.
	if err := a.m.readIndex(ctx); err != nil {
		return nil, err
	}
	if who.Role == identity.Borglet && !a.m.hasMachine(who.ID) {
		return nil, status.Errorf(codes.PermissionDenied, "machine %s is not in cell %s any more", who.ID, a.m.cfg.CellName)
	}
	leave, err := a.m.readTurn(ctx)
	if err != nil {
		return nil, err
	}
	defer leave()
	cert, err := a.m.issue(req.GetPublicKey(), who)
	return &borgrpc.RenewResponse{Certificate: cert}, err
}

// Invite makes a token's certificate and has the cell remember its fingerprint.
func (a *identityAPI) Invite(ctx context.Context, req *borgrpc.InviteRequest) (*borgrpc.InviteResponse, error) {
	if err := a.m.forAdmins(door.Caller(ctx)); err != nil {
		return nil, err
	}
	if err := a.m.remembersTokens(ctx); err != nil {
		return nil, err
	}
	name, err := identity.ParseName("spiffe://" + a.m.conns.who.Name().Cell + "/join/" + req.GetName())
	if err != nil {
		return nil, status.Error(codes.InvalidArgument, err.Error())
	}
	cert, err := a.m.issue(req.GetPublicKey(), name)
	if err != nil {
		return nil, err
	}
	hash := identity.Fingerprint(cert.Certificate)
	op := &borgpb.Op{RequestId: "invite-" + hex.EncodeToString(hash[:20]), RequestWallNs: time.Now().UnixNano(), Command: req.GetCommand(), Reason: req.GetReason()}
	op.Op = &borgpb.Op_AddToken{AddToken: &borgpb.AddToken{
		Hash: hash, Name: req.GetName(), ExpiresWallNs: time.Now().Add(identity.TokenLife).UnixNano(),
	}}
	if err := a.m.done(ctx, op); err != nil {
		return nil, err
	}
	return &borgrpc.InviteResponse{Certificate: cert}, nil
}

// formatWait bounds the wait for a new cell to come to a format: its replicas say
// what they know within a moment.
const formatWait = 3 * time.Second

// remembersTokens waits until the cell is of a format that knows tokens. One that has
// just begun is not for a moment.
func (m *Master) remembersTokens(ctx context.Context) error {
	soon, cancel := context.WithTimeout(ctx, formatWait)
	defer cancel()
	for {
		applied := m.applied.Wait()
		var format uint32
		m.cfg.Log.View(func(c *cell.Cell) { format = c.Format() })
		if format >= cell.FormatGrants {
			return nil
		}
		select {
		case <-applied:
		case <-soon.Done():
			if ctx.Err() != nil {
				return status.FromContextError(ctx.Err()).Err()
			}
			return status.Errorf(codes.FailedPrecondition, "the cell is of format %d, and remembers tokens from format %d on: it is raised when all replicas have said that they know that; try again in a moment", format, cell.FormatGrants)
		}
	}
}

// Join makes of the holder of a token whom the token names. The same key may ask
// again when no answer came; another one finds the token used.
func (a *identityAPI) Join(ctx context.Context, req *borgrpc.JoinRequest) (*borgrpc.JoinResponse, error) {
	m := a.m
	shown := door.Shown(ctx)
	becomes := door.Caller(ctx).Becomes()
	if becomes == (identity.Name{}) || shown == nil {
		return nil, status.Error(codes.PermissionDenied, "this is not the certificate of a token")
	}
	// From here on it is this master that asks: a stranger has no say.
	ctx = door.As(ctx, m.cfg.Identity.Name())
	key := sha256.Sum256(append(shown, req.GetPublicKey()...))
	op := func(what string) *borgpb.Op {
		return &borgpb.Op{RequestId: what + hex.EncodeToString(key[:20]), RequestWallNs: time.Now().UnixNano(), Reason: "its token was shown"}
	}
	use := op("join-")
	use.Op = &borgpb.Op_UseToken{UseToken: &borgpb.UseToken{Hash: shown, Name: string(becomes.Role) + "/" + becomes.ID}}
	if err := m.done(ctx, use); err != nil {
		return nil, err
	}
	// The certificate begins at the cell's time as this replica has it.
	if err := m.readIndex(ctx); err != nil {
		return nil, err
	}
	if becomes.Role == identity.Borglet {
		if err := m.takeIn(ctx, becomes.ID, req.GetSpec(), op); err != nil {
			return nil, err
		}
	}
	cert, err := m.issue(req.GetPublicKey(), becomes)
	if err != nil {
		return nil, err
	}
	m.cfg.Logger.Info("a token was used", "by", becomes.String())
	return &borgrpc.JoinResponse{Certificate: cert}, nil
}

// takeIn makes a machine of the cell of one that has joined, unless it is one
// already: then it comes back, perhaps at another address.
func (m *Master) takeIn(ctx context.Context, machine string, spec *borgpb.MachineSpec, op func(string) *borgpb.Op) error {
	addr, known := "", false
	m.cfg.Log.View(func(c *cell.Cell) {
		if machine := c.Machine(machine); machine != nil {
			addr, known = machine.Addr(), true
		}
	})
	switch {
	case !known:
		add := op("add-")
		add.Op = &borgpb.Op_AddMachine{AddMachine: &borgpb.AddMachine{Name: machine, Spec: spec}}
		return m.done(ctx, add)
	case addr != spec.GetAddr() && spec.GetAddr() != "":
		set := op("set-")
		// It may come back with another address and the same key.
		at := sha256.Sum256([]byte(set.RequestId + spec.Addr))
		set.RequestId = "set-" + hex.EncodeToString(at[:20])
		set.Op = &borgpb.Op_SetMachine{SetMachine: &borgpb.SetMachine{Name: machine, Addr: spec.Addr}}
		return m.done(ctx, set)
	}
	return nil
}

// done makes a mutation; a refusal is an error.
func (m *Master) done(ctx context.Context, op *borgpb.Op) error {
	result, err := m.mutate(ctx, op)
	if err != nil {
		return err
	}
	return refusalError(result.GetRefusal())
}

// WhoAmI tells a user what he is to the cell. A task has no capabilities.
func (a *identityAPI) WhoAmI(ctx context.Context, _ *borgrpc.WhoAmIRequest) (*borgrpc.WhoAmIResponse, error) {
	who := door.Caller(ctx)
	resp := &borgrpc.WhoAmIResponse{Name: who.String(), Admins: a.m.admins()}
	a.m.cfg.Log.View(func(c *cell.Cell) {
		if u := c.User(who.ID); u != nil && who.Role == identity.User {
			for _, has := range u.Capabilities() {
				resp.Capabilities = append(resp.Capabilities, string(has))
			}
		}
	})
	if len(resp.Capabilities) == 0 && a.m.isAdmin(who) {
		resp.Capabilities = []string{string(cell.Admin)}
	}
	return resp, nil
}

// ListUsers tells of whom the cell knows something.
func (a *identityAPI) ListUsers(ctx context.Context, _ *borgrpc.ListUsersRequest) (*borgrpc.ListUsersResponse, error) {
	if err := a.m.readIndex(ctx); err != nil {
		return nil, err
	}
	resp := &borgrpc.ListUsersResponse{}
	if err := a.m.viewMuch(ctx, func(c *cell.Cell) error {
		lens := a.m.lens(ctx, c)
		for u := range c.Users() {
			if !lens.User(u.Name()) && !c.Has(u.Name(), cell.Admin) {
				continue
			}
			is := &borgrpc.UserStatus{Name: u.Name(), RevokedWallNs: u.RevokedWallNs()}
			for _, has := range u.Capabilities() {
				is.Capabilities = append(is.Capabilities, string(has))
			}
			resp.Users = append(resp.Users, is)
		}
		return nil
	}); err != nil {
		return nil, err
	}
	return resp, nil
}

func (m *Master) hasMachine(name string) bool {
	has := false
	m.cfg.Log.View(func(c *cell.Cell) { has = c.Machine(name) != nil })
	return has
}

// CertifyMaster certifies the key of a member. It becomes a master with it, and
// can then ask for the authority: an admin never sees that.
func (a *identityAPI) CertifyMaster(ctx context.Context, req *borgrpc.CertifyMasterRequest) (*borgrpc.CertifyMasterResponse, error) {
	// This replica may not have heard yet that the member was added, or who is no
	// longer an admin.
	if err := a.m.readIndex(ctx); err != nil {
		return nil, err
	}
	if err := a.m.forAdmins(door.Caller(ctx)); err != nil {
		return nil, err
	}
	if !a.m.isMember(req.GetReplica()) {
		return nil, status.Errorf(codes.FailedPrecondition, "replica %d is not a member of this cell; add it first", req.GetReplica())
	}
	cert, err := a.m.issue(req.GetPublicKey(), a.m.conns.named(identity.Master, strconv.FormatUint(req.GetReplica(), 10)))
	if err == nil {
		a.m.noteDone(ctx, "CertifyMaster", fmt.Sprintf("replica %d", req.GetReplica()))
	}
	return &borgrpc.CertifyMasterResponse{Certificate: cert}, err
}

// GetAuthority gives a member what makes it a whole master.
func (a *identityAPI) GetAuthority(ctx context.Context, _ *borgrpc.GetAuthorityRequest) (*borgrpc.GetAuthorityResponse, error) {
	who := door.Caller(ctx)
	if err := a.m.readIndex(ctx); err != nil {
		return nil, err
	}
	if !a.m.isMember(who.Replica()) {
		return nil, status.Errorf(codes.PermissionDenied, "%s is not a member of this cell any more", who.Words())
	}
	if a.m.cfg.Authority == nil {
		return nil, errNoAuthority
	}
	data, err := a.m.cfg.Authority.Encode()
	if err != nil {
		return nil, a.m.internal(err)
	}
	resp := &borgrpc.GetAuthorityResponse{Authority: data}
	if a.m.cfg.Keys != nil {
		if resp.CellKeys, err = a.m.cfg.Keys.Encode(); err != nil {
			return nil, a.m.internal(err)
		}
	}
	a.m.cfg.Logger.Info("authority handed to a member", "to", who.ID)
	a.m.noteDone(ctx, "GetAuthority", "")
	return resp, nil
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
	begins, life := m.begins(time.Now(), identity.LifeOf(name.Role))
	issued, err := m.cfg.Authority.Issue(public, name, begins, life)
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

// begins says from when on a certificate is to count that is issued now, and for
// how long. It begins at the cell's time, as this replica has it, because that is
// what users are revoked by: whatever was issued before a revocation was in the
// log is of an earlier time, however wrong this replica's own clock is.
func (m *Master) begins(now time.Time, life time.Duration) (time.Time, time.Duration) {
	var wallNs int64
	m.cfg.Log.View(func(c *cell.Cell) { wallNs = c.WallNs() })
	begins := time.Unix(0, wallNs)
	if wallNs <= 0 || begins.After(now) {
		return now, life
	}
	return begins, life + now.Sub(begins)
}
