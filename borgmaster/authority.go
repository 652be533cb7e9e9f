package borgmaster

import (
	"context"
	"crypto/rand"
	"fmt"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"borg/identity"
	"borg/proto/borgrpc"
	"borg/proto/door"
)

const (
	// How often a replica looks whether another one has a later authority: one that
	// was away while it was replaced.
	authorityPeriod = 30 * time.Second
	// How long another replica may take for it.
	authorityTimeout = 3 * time.Second
)

// authorityAPI serves AuthorityService.
type authorityAPI struct {
	borgrpc.UnimplementedAuthorityServiceServer
	m *Master
}

// ListAuthorities tells which keys this replica has.
func (a *authorityAPI) ListAuthorities(context.Context, *borgrpc.ListAuthoritiesRequest) (*borgrpc.ListAuthoritiesResponse, error) {
	if a.m.cfg.Authority == nil {
		return nil, errNoAuthority
	}
	return a.m.describeAuthority(), nil
}

func (m *Master) describeAuthority() *borgrpc.ListAuthoritiesResponse {
	resp := &borgrpc.ListAuthoritiesResponse{Replica: m.cfg.Replica, Generation: m.cfg.Authority.Version().Generation}
	for _, s := range m.cfg.Authority.Signers(time.Now()) {
		key := &borgrpc.AuthorityKey{Fingerprint: s.Fingerprint, Certificate: s.Certificate, UntilWallNs: s.Until.UnixNano(), Issues: s.Issues}
		if !s.From.IsZero() {
			key.FromWallNs = s.From.UnixNano()
		}
		resp.Keys = append(resp.Keys, key)
	}
	return resp
}

// ReplaceAuthority makes the next key.
func (a *authorityAPI) ReplaceAuthority(ctx context.Context, req *borgrpc.ReplaceAuthorityRequest) (*borgrpc.ReplaceAuthorityResponse, error) {
	behind, err := a.change(ctx, "ReplaceAuthority",
		func(now *identity.Authority) (*identity.Authority, error) {
			overlap := time.Duration(req.GetOverlapNs())
			if overlap < identity.Life {
				return nil, fmt.Errorf("an overlap of %v is too short: what the present keys have issued to masters and tasks is used for up to %v; want that or more. If a key was stolen, drop it when the new one is everywhere: borgmaster authority drop",
					overlap, identity.Life)
			}
			return now.Replaced(time.Now(), time.Duration(req.GetWaitNs()), overlap)
		},
		func(ctx context.Context, c borgrpc.AuthorityServiceClient) (changed, error) {
			resp, err := c.ReplaceAuthority(ctx, req)
			return changed{resp.GetAuthority(), resp.GetBehind()}, err
		})
	return &borgrpc.ReplaceAuthorityResponse{Authority: behind.authority, Behind: behind.behind}, err
}

// DropAuthorities makes the newest key the only one.
func (a *authorityAPI) DropAuthorities(ctx context.Context, req *borgrpc.DropAuthoritiesRequest) (*borgrpc.DropAuthoritiesResponse, error) {
	behind, err := a.change(ctx, "DropAuthorities",
		func(now *identity.Authority) (*identity.Authority, error) { return now.Alone(), nil },
		func(ctx context.Context, c borgrpc.AuthorityServiceClient) (changed, error) {
			resp, err := c.DropAuthorities(ctx, req)
			return changed{resp.GetAuthority(), resp.GetBehind()}, err
		})
	return &borgrpc.DropAuthoritiesResponse{Authority: behind.authority, Behind: behind.behind}, err
}

// changed is an authority after a change, and who has not taken it.
type changed struct {
	authority *borgrpc.ListAuthoritiesResponse
	behind    []uint64
}

// change makes an admin's change of the authority on the elected master, so that
// there is one at a time.
func (a *authorityAPI) change(ctx context.Context, verb string, next func(*identity.Authority) (*identity.Authority, error), remote func(context.Context, borgrpc.AuthorityServiceClient) (changed, error)) (changed, error) {
	m := a.m
	return onElected(ctx, m, false,
		func(ctx context.Context) (changed, error) {
			// Here, where the latest is known.
			err := m.believes(ctx)
			if err == nil {
				err = m.forAdmins(door.Caller(ctx))
			}
			if err == nil && m.cfg.Authority == nil {
				err = errNoAuthority
			}
			if err != nil {
				return changed{}, err
			}
			// It may have been away when the one before was made.
			m.lookAtAuthorities(ctx)
			later, err := next(m.cfg.Authority)
			if err != nil {
				return changed{}, status.Error(codes.FailedPrecondition, m.withoutPaths(err))
			}
			if err := m.takeAuthority(ctx, later); err != nil {
				return changed{}, m.internal(err)
			}
			m.noteDone(ctx, verb, "")
			return changed{m.describeAuthority(), m.spreadAuthority(ctx)}, nil
		},
		func(ctx context.Context, conn *grpc.ClientConn) (changed, error) {
			return remote(ctx, borgrpc.NewAuthorityServiceClient(conn))
		})
}

// takeAuthority makes this replica's authority what a later copy is: on disk
// first. From then on this replica's own certificate believes it.
func (m *Master) takeAuthority(ctx context.Context, later *identity.Authority) error {
	m.authorityMu.Lock()
	defer m.authorityMu.Unlock()
	if !later.Later(m.cfg.Authority) {
		return nil
	}
	if m.cfg.KeepAuthority != nil {
		data, err := later.Encode()
		if err == nil {
			err = m.cfg.KeepAuthority(data)
		}
		if err != nil {
			return err
		}
	}
	m.cfg.Authority.Adopt(later)
	m.cfg.Logger.Info("authority changed", "generation", later.Version().Generation, "keys", len(later.Signers(time.Now())))
	_, err := m.cfg.Identity.RenewNow(ctx)
	m.stateChanged.Fire()
	return err
}

// belief is what each poll tells a borglet of whom to believe, as this replica
// knows it.
func (m *Master) belief() *borgrpc.Belief {
	b := &borgrpc.Belief{Removed: m.cfg.Members.AllRemoved(), Private: m.private.Load()}
	if m.cfg.Authority != nil {
		b.Authorities = m.cfg.Authority.Mark(time.Now())
	}
	return b
}

// authorityGeneration tells whether the authority was changed meanwhile.
func (m *Master) authorityGeneration() uint64 {
	if m.cfg.Authority == nil {
		return 0
	}
	return m.cfg.Authority.Version().Generation
}

// spreadAuthority has the others look at this replica's authority, and says who has
// not taken it.
func (m *Master) spreadAuthority(ctx context.Context) (behind []uint64) {
	own := m.cfg.Authority.Version().Generation
	var mu sync.Mutex
	m.eachOther(ctx, func(ctx context.Context, id uint64, c borgrpc.AuthorityServiceClient) {
		resp, err := c.LookAtAuthorities(ctx, &borgrpc.LookAtAuthoritiesRequest{}, grpc.WaitForReady(false))
		if err != nil || resp.GetGeneration() < own {
			mu.Lock()
			defer mu.Unlock()
			behind = append(behind, id)
		}
	})
	slices.Sort(behind)
	return behind
}

// LookAtAuthorities looks at the others' authorities now.
func (a *authorityAPI) LookAtAuthorities(ctx context.Context, _ *borgrpc.LookAtAuthoritiesRequest) (*borgrpc.LookAtAuthoritiesResponse, error) {
	if a.m.cfg.Authority == nil {
		return nil, errNoAuthority
	}
	a.m.lookAtAuthorities(ctx)
	return &borgrpc.LookAtAuthoritiesResponse{Generation: a.m.cfg.Authority.Version().Generation}, nil
}

// watchAuthority takes what the other replicas have and this one has not, until ctx
// ends.
func (m *Master) watchAuthority(ctx context.Context) {
	tick := time.NewTicker(authorityPeriod)
	defer tick.Stop()
	for {
		m.lookAtAuthorities(ctx)
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// lookAtAuthorities takes the latest authority that another replica has, if it is
// later than this one's.
func (m *Master) lookAtAuthorities(ctx context.Context) {
	m.eachOther(ctx, func(ctx context.Context, id uint64, c borgrpc.AuthorityServiceClient) {
		is, err := c.ListAuthorities(ctx, &borgrpc.ListAuthoritiesRequest{}, grpc.WaitForReady(false))
		if err != nil || len(is.GetKeys()) == 0 {
			return
		}
		theirs := identity.Version{Generation: is.GetGeneration(), Newest: is.Keys[len(is.Keys)-1].GetFingerprint()}
		if !theirs.Later(m.cfg.Authority.Version()) {
			return
		}
		if err := m.fetchAuthority(ctx, id); err != nil && ctx.Err() == nil {
			m.cfg.Logger.Error("another replica has a later authority, which cannot be taken", "from", id, "err", err)
		}
	})
}

func (m *Master) fetchAuthority(ctx context.Context, id uint64) error {
	conn, err := m.replicaConn(id)
	if err != nil {
		return err
	}
	resp, err := borgrpc.NewIdentityServiceClient(conn).GetAuthority(ctx, &borgrpc.GetAuthorityRequest{}, grpc.WaitForReady(false))
	if err != nil {
		return err
	}
	later, err := identity.DecodeAuthority(m.cfg.Authority.Cell(), resp.GetAuthority(), rand.Reader)
	if err != nil {
		return err
	}
	return m.takeAuthority(ctx, later)
}

// eachOther calls f for each other member, all at once, and waits for them. They
// are called in this replica's own name.
func (m *Master) eachOther(ctx context.Context, f func(context.Context, uint64, borgrpc.AuthorityServiceClient)) {
	ctx, cancel := context.WithTimeout(ctx, authorityTimeout)
	defer cancel()
	var asking sync.WaitGroup
	for _, member := range m.cfg.Members.Members() {
		if member.Id == m.cfg.Replica {
			continue
		}
		conn, err := m.replicaConn(member.Id)
		if err != nil {
			continue
		}
		asking.Go(func() { f(ctx, member.Id, borgrpc.NewAuthorityServiceClient(conn)) })
	}
	asking.Wait()
}
