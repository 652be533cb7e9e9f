package borgmaster

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"borg/borgmaster/cell"
	"borg/borgmaster/cellkey"
	"borg/identity"
	"borg/proto/borgpb"
	"borg/proto/borgrpc"
	"borg/proto/door"
)

const (
	// keyShareTimeout bounds how long another replica may take to keep a key.
	keyShareTimeout = 5 * time.Second
	// keyShareTries bounds how often one that cannot be reached is tried.
	keyShareTries = 5
	// maxSealRounds bounds how often a rotation looks for secrets that were set
	// with the old key meanwhile.
	maxSealRounds = 3
)

// secretAPI serves SecretService. Values are sealed by the elected master and
// opened by whichever replica a borglet asks; neither the log nor the cell ever
// has one.
type secretAPI struct {
	borgrpc.UnimplementedSecretServiceServer
	m *Master
}

var errNoKeys = status.Error(codes.Unimplemented, "this replica keeps no cell keys, and so no secrets")

// forOwner refuses everybody but the user and admins.
func (m *Master) forOwner(caller identity.Name, user string) error {
	if caller.Role == identity.User && caller.ID == user {
		return nil
	}
	if m.isAdmin(caller) {
		return nil
	}
	return status.Errorf(codes.PermissionDenied, "the secrets of user %q are for that user and for admins: %s", user, m.needsAdmin(caller))
}

func (a *secretAPI) SetSecret(ctx context.Context, req *borgrpc.SetSecretRequest) (*borgrpc.SetSecretResponse, error) {
	m, caller := a.m, door.Caller(ctx)
	if err := m.forOwner(caller, req.GetUser()); err != nil {
		return nil, err
	}
	switch n := len(req.GetValue()); {
	case req.GetRequestId() == "":
		return nil, status.Error(codes.InvalidArgument, "a mutation needs a request id, the same for all its retries")
	case n > cell.MaxSecretBytes:
		return nil, status.Errorf(codes.InvalidArgument, "%s/%s: %d bytes; a secret has at most %d", req.GetUser(), req.GetName(), n, cell.MaxSecretBytes)
	}
	set := func() (*borgpb.Result, error) {
		resp, err := onElected(ctx, m, true,
			func(ctx context.Context) (*borgrpc.SetSecretResponse, error) {
				if err := m.believes(ctx); err != nil {
					return nil, err
				}
				result, err := m.setSecret(ctx, caller, req)
				return &borgrpc.SetSecretResponse{Result: result}, err
			},
			func(ctx context.Context, conn *grpc.ClientConn) (*borgrpc.SetSecretResponse, error) {
				resp, err := borgrpc.NewSecretServiceClient(conn).SetSecret(ctx, req)
				if status.Code(err) == codes.ResourceExhausted {
					m.admit.refusedElsewhere(caller.User(), err, false)
				}
				return resp, err
			})
		return resp.GetResult(), err
	}
	var result *borgpb.Result
	var err error
	if isForwarded(ctx) || !admitted(ctx) {
		result, err = set()
	} else {
		// Its value is the larger part of what goes into the log.
		cost := cell.Cost(&borgpb.Op{Op: &borgpb.Op_SetSecret{SetSecret: &borgpb.SetSecret{Sealed: req.GetValue()}}})
		result, err = m.admit.write(caller.User(), cost, set)
	}
	if err != nil {
		return nil, err
	}
	return &borgrpc.SetSecretResponse{Result: result}, nil
}

// setSecret seals a value as the next version of a secret. The secrets of one user are set one
// after the other, because the version is part of what is sealed.
func (m *Master) setSecret(ctx context.Context, caller identity.Name, req *borgrpc.SetSecretRequest) (*borgpb.Result, error) {
	leave, err := m.admit.enter(ctx, m.admit.sealing, req.GetUser(), true)
	if err != nil {
		return nil, err
	}
	defer leave()
	keys, err := m.keysFor()
	if err != nil {
		return nil, err
	}
	of := cellkey.Of{User: req.GetUser(), Name: req.GetName(), Version: 1}
	keyID := keys.First()
	m.cfg.Log.View(func(c *cell.Cell) {
		if s := c.Secret(of.User, of.Name); s != nil {
			of.Version = s.Version() + 1
		}
		if id := c.CellKey(); id != "" {
			keyID = id
		}
	})
	sealed, err := keys.Seal(keyID, of, req.GetValue())
	if err != nil {
		return nil, m.keyError(err)
	}
	op := &borgpb.Op{
		RequestId: req.GetRequestId(), RequestWallNs: req.GetRequestWallNs(), Command: req.GetCommand(), Reason: req.GetReason(),
		Principal: door.Principal(caller),
		Op:        &borgpb.Op_SetSecret{SetSecret: &borgpb.SetSecret{User: of.User, Name: of.Name, Version: of.Version, KeyId: keyID, Sealed: sealed}},
	}
	if r := checkTexts(op, nil); r != nil {
		return &borgpb.Result{Refusal: r}, nil
	}
	var work int
	m.cfg.Log.View(func(c *cell.Cell) { work = c.Work(op) })
	result, err := m.charged(ctx, op, work, func() (*borgpb.Result, bool, error) { return m.place(ctx, op) })
	if err == nil && result.GetRepeated() && m.otherValue(of.User, of.Name, result, req.GetValue()) {
		r := refusal(borgpb.RefusalKind_REFUSAL_KIND_INVALID, of.User+"/"+of.Name, "this id was used for another value of the secret; make a new id for each request")
		r.Field = "request_id"
		return &borgpb.Result{Refusal: r}, nil
	}
	return result, err
}

// otherValue reports whether the version of a secret that an earlier try of a request made
// has another value. False: it has the value, or is not the present version any more.
func (m *Master) otherValue(user, name string, made *borgpb.Result, value []byte) bool {
	var keyID string
	var sealed []byte
	m.cfg.Log.View(func(c *cell.Cell) {
		if s := c.Secret(user, name); s != nil && s.Version() == made.GetVersion() {
			keyID, sealed = s.KeyID(), s.Sealed()
		}
	})
	if sealed == nil {
		return false
	}
	has, err := m.cfg.Keys.Open(keyID, cellkey.Of{User: user, Name: name, Version: made.GetVersion()}, sealed)
	return err == nil && !bytes.Equal(has, value)
}

// keysFor are this replica's keys, in a cell that can keep secrets.
func (m *Master) keysFor() (*cellkey.Ring, error) {
	if m.cfg.Keys == nil {
		return nil, errNoKeys
	}
	var format uint32
	m.cfg.Log.View(func(c *cell.Cell) { format = c.Format() })
	if format < cell.FormatSecrets && m.duty.raises(format) {
		return nil, aboutToRaise(format)
	}
	if format < cell.FormatSecrets {
		return nil, status.Errorf(codes.FailedPrecondition, "the cell is of format %d, and keeps secrets from format %d on: it is raised when all replicas run a build that knows that", format, cell.FormatSecrets)
	}
	return m.cfg.Keys, nil
}

// keyError tells an admin what to do about a replica that lacks a key.
func (m *Master) keyError(err error) error {
	var unknown *cellkey.UnknownKeyError
	if errors.As(err, &unknown) {
		return status.Errorf(codes.FailedPrecondition, "replica %d: %v; an admin can mend that: borgcfg secret rotate-key", m.cfg.Replica, err)
	}
	return m.internal(err)
}

// open yields the values of a user's secrets.
func (m *Master) open(user string, names []string) ([]*borgrpc.Secret, error) {
	if len(names) == 0 {
		return nil, nil
	}
	keys, err := m.keysFor()
	if err != nil {
		return nil, err
	}
	type sealedAs struct {
		of     cellkey.Of
		keyID  string
		sealed []byte
	}
	var list []sealedAs
	missing := ""
	m.cfg.Log.View(func(c *cell.Cell) {
		for _, name := range names {
			if s := c.Secret(user, name); s != nil {
				list = append(list, sealedAs{cellkey.Of{User: user, Name: name, Version: s.Version()}, s.KeyID(), s.Sealed()})
			} else {
				missing = name
			}
		}
	})
	if missing != "" {
		return nil, status.Errorf(codes.FailedPrecondition, "user %s has no secret %q; set it: borgcfg secret set %s", user, missing, missing)
	}
	var opened []*borgrpc.Secret
	for _, s := range list {
		value, err := keys.Open(s.keyID, s.of, s.sealed)
		var unknown *cellkey.UnknownKeyError
		if errors.As(err, &unknown) {
			return nil, status.Errorf(codes.Unavailable, "replica %d: %v; another one may", m.cfg.Replica, err)
		}
		if err != nil {
			return nil, m.keyError(err)
		}
		opened = append(opened, &borgrpc.Secret{Name: s.of.Name, Value: value})
	}
	return opened, nil
}

func (a *secretAPI) ListSecrets(ctx context.Context, req *borgrpc.ListSecretsRequest) (*borgrpc.ListSecretsResponse, error) {
	if err := a.m.forOwner(door.Caller(ctx), req.GetUser()); err != nil {
		return nil, err
	}
	if err := a.m.readIndex(ctx); err != nil {
		return nil, err
	}
	resp := &borgrpc.ListSecretsResponse{}
	if err := a.m.viewMuch(ctx, func(c *cell.Cell) error {
		for s := range c.Secrets() {
			if req.GetUser() == "" || s.User() == req.GetUser() {
				resp.Secrets = append(resp.Secrets, &borgrpc.SecretStatus{
					User: s.User(), Name: s.Name(), Version: s.Version(), ChangedWallNs: s.ChangedWallNs(), KeyId: s.KeyID(),
				})
			}
		}
		return nil
	}); err != nil {
		return nil, err
	}
	return whole(resp, "secrets")
}

func (a *secretAPI) RotateCellKey(ctx context.Context, req *borgrpc.RotateCellKeyRequest) (*borgrpc.RotateCellKeyResponse, error) {
	m, caller := a.m, door.Caller(ctx)
	if err := m.forAdmins(caller); err != nil {
		return nil, err
	}
	return onElected(ctx, m, true,
		func(ctx context.Context) (*borgrpc.RotateCellKeyResponse, error) {
			if err := m.believes(ctx); err != nil {
				return nil, err
			}
			return m.rotate(ctx, caller, req)
		},
		func(ctx context.Context, conn *grpc.ClientConn) (*borgrpc.RotateCellKeyResponse, error) {
			return borgrpc.NewSecretServiceClient(conn).RotateCellKey(ctx, req)
		})
}

// rotate goes in steps, each of which can be done again: every replica has the
// new key before anything is sealed with it, and an old one is taken away when
// nothing is sealed with it any more.
func (m *Master) rotate(ctx context.Context, caller identity.Name, req *borgrpc.RotateCellKeyRequest) (*borgrpc.RotateCellKeyResponse, error) {
	select {
	case m.rotating <- struct{}{}:
		defer func() { <-m.rotating }()
	case <-ctx.Done():
		return nil, status.FromContextError(ctx.Err()).Err()
	}
	if req.GetRequestId() != "" && m.rotated.id == req.GetRequestId() {
		return m.rotated.resp, nil
	}
	keys, err := m.keysFor()
	if err != nil {
		return nil, err
	}
	propose := func(op *borgpb.Op) (*borgpb.Result, error) {
		op.Principal, op.Command, op.Reason = door.Principal(caller), req.GetCommand(), req.GetReason()
		if r := checkTexts(op, nil); r != nil {
			return &borgpb.Result{Refusal: r}, nil
		}
		return m.write(ctx, op)
	}
	current, stale := m.sealedOtherwise(keys)
	// A key that was lost is no reason to be without one.
	if len(stale) == 0 || !slices.Contains(keys.IDs(), current) {
		if current, err = m.takeNewKey(ctx, keys, current, propose); err != nil {
			return nil, err
		}
	}
	resp := &borgrpc.RotateCellKeyResponse{KeyId: current}
	for round := 0; ; round++ {
		_, stale := m.sealedOtherwise(keys)
		if len(stale) == 0 {
			break
		}
		if round == maxSealRounds {
			return nil, status.Error(codes.Unavailable, "secrets are set faster than they are sealed anew; try again")
		}
		n, err := m.sealAnew(keys, current, stale, propose)
		resp.Sealed += n
		if err != nil {
			return nil, err
		}
	}
	if err := m.dropOldKeys(ctx, keys, current, resp); err != nil {
		return nil, err
	}
	m.rotated.id, m.rotated.resp = req.GetRequestId(), resp
	return resp, nil
}

// sealedOtherwise says which key is in use, and which secrets are sealed with
// another one.
func (m *Master) sealedOtherwise(keys *cellkey.Ring) (current string, stale []cellkey.Of) {
	m.cfg.Log.View(func(c *cell.Cell) {
		if current = c.CellKey(); current == "" {
			current = keys.First()
		}
		for s := range c.Secrets() {
			if s.KeyID() != current {
				stale = append(stale, cellkey.Of{User: s.User(), Name: s.Name(), Version: s.Version()})
			}
		}
	})
	return current, stale
}

// takeNewKey makes a key, or takes one that an earlier rotation made and did not
// come to use, gives it to every replica and has the cell use it.
func (m *Master) takeNewKey(ctx context.Context, keys *cellkey.Ring, current string, propose func(*borgpb.Op) (*borgpb.Result, error)) (string, error) {
	ids := keys.IDs()
	next := ""
	if len(ids) > 0 && ids[len(ids)-1] != current {
		next = ids[len(ids)-1]
	} else {
		key, err := cellkey.NewKey()
		if err != nil {
			return "", m.internal(err)
		}
		if err := keys.Change(cellkey.NewRing(nil, key), nil); err != nil {
			return "", m.internal(err)
		}
		next = key.ID()
	}
	all, err := keys.Encode()
	if err != nil {
		return "", m.internal(err)
	}
	if untold := m.tellKeys(ctx, &borgrpc.ChangeCellKeysRequest{Add: all}); len(untold) > 0 {
		return "", status.Errorf(codes.FailedPrecondition, "every replica must have the new key before it is used, and some did not take it: %s; nothing has changed, try again when they answer", strings.Join(untold, "; "))
	}
	result, err := propose(&borgpb.Op{Op: &borgpb.Op_UseCellKey{UseCellKey: &borgpb.UseCellKey{KeyId: next}}})
	if err == nil {
		err = refusalError(result.GetRefusal())
	}
	return next, err
}

// sealAnew seals secrets with the key in use. One that was set or deleted
// meanwhile is left; those that cannot be opened here are an error when all
// others are done.
func (m *Master) sealAnew(keys *cellkey.Ring, current string, stale []cellkey.Of, propose func(*borgpb.Op) (*borgpb.Result, error)) (uint32, error) {
	done := uint32(0)
	var lost []string
	for _, of := range stale {
		var keyID string
		var sealed []byte
		m.cfg.Log.View(func(c *cell.Cell) {
			if s := c.Secret(of.User, of.Name); s != nil && s.Version() == of.Version {
				keyID, sealed = s.KeyID(), s.Sealed()
			}
		})
		if sealed == nil {
			continue
		}
		value, err := keys.Open(keyID, of, sealed)
		var unknown *cellkey.UnknownKeyError
		if errors.As(err, &unknown) {
			lost = append(lost, of.User+"/"+of.Name)
			continue
		}
		if err != nil {
			return done, m.keyError(err)
		}
		if sealed, err = keys.Seal(current, of, value); err != nil {
			return done, m.keyError(err)
		}
		result, err := propose(&borgpb.Op{Op: &borgpb.Op_ResealSecret{ResealSecret: &borgpb.ResealSecret{
			User: of.User, Name: of.Name, Version: of.Version, KeyId: current, Sealed: sealed,
		}}})
		if err != nil {
			return done, err
		}
		switch r := result.GetRefusal(); r.GetKind() {
		case borgpb.RefusalKind_REFUSAL_KIND_UNSPECIFIED:
			done++
		case borgpb.RefusalKind_REFUSAL_KIND_STALE, borgpb.RefusalKind_REFUSAL_KIND_NOT_FOUND:
		default:
			return done, refusalError(r)
		}
	}
	if n := len(lost); n > 0 {
		const some = 5
		words := strings.Join(lost[:min(n, some)], ", ")
		return done, status.Errorf(codes.FailedPrecondition, "secrets are kept with key %s from now on, but %d of them are sealed with keys that replica %d does not have (%s): "+
			"copy cell-keys.json from a replica that has them, start this one anew and rotate again; or set these secrets anew", current, n, m.cfg.Replica, words)
	}
	return done, nil
}

// dropOldKeys takes away the keys that nothing is sealed with. What was sealed
// with them in the past, in old logs and checkpoints, opens no more.
func (m *Master) dropOldKeys(ctx context.Context, keys *cellkey.Ring, current string, resp *borgrpc.RotateCellKeyResponse) error {
	resp.Dropped = slices.DeleteFunc(keys.IDs(), func(id string) bool { return id == current })
	if len(resp.Dropped) == 0 {
		return nil
	}
	resp.Untold = m.tellKeys(ctx, &borgrpc.ChangeCellKeysRequest{Drop: resp.Dropped})
	if err := keys.Change(nil, resp.Dropped); err != nil {
		return m.internal(err)
	}
	m.cfg.Logger.Info("cell keys dropped", "keys", resp.Dropped)
	return nil
}

// tellKeys tells all other replicas, and says which did not do it, and why.
func (m *Master) tellKeys(ctx context.Context, req *borgrpc.ChangeCellKeysRequest) (untold []string) {
	for _, member := range m.cfg.Members.Members() {
		if member.Id == m.cfg.Replica {
			continue
		}
		if err := m.tellKeysTo(ctx, member.Id, req); err != nil {
			untold = append(untold, fmt.Sprintf("replica %d: %s", member.Id, door.Reason(err)))
		}
	}
	return untold
}

// tellKeysTo tries a few times: one that is only slow to take a connection must
// not keep the key from all.
func (m *Master) tellKeysTo(ctx context.Context, replica uint64, req *borgrpc.ChangeCellKeysRequest) (err error) {
	for range keyShareTries {
		var conn *grpc.ClientConn
		if conn, err = m.replicaConn(replica); err != nil {
			return err
		}
		call, cancel := context.WithTimeout(ctx, keyShareTimeout)
		_, err = borgrpc.NewSecretServiceClient(conn).ChangeCellKeys(call, req)
		cancel()
		if status.Code(err) != codes.Unavailable || ctx.Err() != nil {
			return err
		}
		pause := time.NewTimer(electionRetry)
		select {
		case <-pause.C:
		case <-ctx.Done():
		}
		pause.Stop()
	}
	return err
}

// ChangeCellKeys is called by the elected master. A key that anything is sealed
// with, as this replica knows the cell, is not taken away.
func (a *secretAPI) ChangeCellKeys(ctx context.Context, req *borgrpc.ChangeCellKeysRequest) (*borgrpc.ChangeCellKeysResponse, error) {
	m, who := a.m, door.Caller(ctx)
	if m.cfg.Keys == nil {
		return nil, errNoKeys
	}
	if !m.isMember(who.Replica()) {
		return nil, status.Errorf(codes.PermissionDenied, "%s is not a member of this cell any more", who.Words())
	}
	var add *cellkey.Ring
	if len(req.GetAdd()) > 0 {
		var err error
		if add, err = cellkey.Decode(req.Add, nil); err != nil {
			return nil, status.Error(codes.InvalidArgument, err.Error())
		}
	}
	if len(req.GetDrop()) > 0 {
		if err := m.readIndex(ctx); err != nil {
			return nil, err
		}
		current, _ := m.sealedOtherwise(m.cfg.Keys)
		inUse := ""
		m.cfg.Log.View(func(c *cell.Cell) {
			for s := range c.Secrets() {
				if slices.Contains(req.Drop, s.KeyID()) {
					inUse = s.KeyID()
				}
			}
		})
		if slices.Contains(req.Drop, current) {
			inUse = current
		}
		if inUse != "" {
			return nil, status.Errorf(codes.FailedPrecondition, "cell key %s is in use", inUse)
		}
	}
	if err := m.cfg.Keys.Change(add, req.GetDrop()); err != nil {
		return nil, m.internal(err)
	}
	m.cfg.Logger.Info("cell keys changed", "by", who.ID, "keys", m.cfg.Keys.IDs())
	return &borgrpc.ChangeCellKeysResponse{Ids: m.cfg.Keys.IDs()}, nil
}
