package borgmaster_test

import (
	"crypto/ed25519"
	"crypto/rand"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"borg/borgmaster"
	"borg/borgmaster/cell"
	"borg/identity"
	"borg/proto/borgpb"
	"borg/proto/borgrpc"
	"borg/proto/door"
)

func (tc *testCell) identities(replica int, who *identity.Source) borgrpc.IdentityServiceClient {
	tc.t.Helper()
	conn, err := door.Dial(tc.addrs[replica-1], who, door.AnyMaster(who))
	if err != nil {
		tc.t.Fatal(err)
	}
	tc.t.Cleanup(func() { conn.Close() })
	return borgrpc.NewIdentityServiceClient(conn)
}

// hasUsers waits until the cell is of a format that knows users, and has its
// first admin.
func (tc *testCell) hasUsers() {
	tc.t.Helper()
	until(tc.t, "the cell has an admin", func() bool {
		n := 0
		tc.group.Replica(1).View(func(c *cell.Cell) { n = c.NumAdmins() })
		return n > 0
	})
}

// invite returns who holds a token.
func (tc *testCell) invite(admin, name string) (*identity.Source, error) {
	tc.t.Helper()
	public, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		tc.t.Fatal(err)
	}
	resp, err := tc.identities(2, source(tc.t, identity.User, admin)).Invite(tc.t.Context(), &borgrpc.InviteRequest{Name: name, PublicKey: public})
	if err != nil {
		return nil, err
	}
	c, err := identity.NewCredential(key, &identity.Issued{Certificate: resp.Certificate.Certificate, Authorities: resp.Certificate.Authorities})
	if err != nil {
		tc.t.Fatal(err)
	}
	return identity.NewSource(c, nil, nil), nil
}

// TestACellThatKnowsNoTokens: a replica of an older build keeps the cell at a format
// that knows none, and who invites is told so, and not that he asks for nonsense.
func TestACellThatKnowsNoTokens(t *testing.T) {
	tc := newCell(t, 2, func(_ int, c *borgmaster.Config) { c.MaxFormat = 1 })
	if _, err := tc.invite("root", "borglet/m7"); status.Code(err) != codes.FailedPrecondition || !strings.Contains(err.Error(), "of format 1, and remembers tokens from format 2 on") {
		t.Errorf("an invitation into a cell of format 1: %v, want FailedPrecondition and why", err)
	}
}

func TestTokensAreUsedOnce(t *testing.T) {
	tc := newCell(t, 2, nil)
	tc.hasUsers()
	if _, err := tc.invite("alice", "user/bob"); status.Code(err) != codes.PermissionDenied || !strings.Contains(err.Error(), "it can be granted by root") {
		t.Errorf("alice invites: %v, want PermissionDenied and who can grant", err)
	}
	for _, odd := range []string{"master/1", "user/..", "borglet/M1", "user/a/b", ""} {
		if _, err := tc.invite("root", odd); status.Code(err) != codes.InvalidArgument {
			t.Errorf("a token for %q: %v, want InvalidArgument", odd, err)
		}
	}
	token, err := tc.invite("root", "borglet/m7")
	if err != nil {
		t.Fatal(err)
	}
	public, key, _ := ed25519.GenerateKey(rand.Reader)
	join := func(who *identity.Source, replica int, public ed25519.PublicKey) (*borgrpc.JoinResponse, error) {
		return tc.identities(replica, who).Join(t.Context(), &borgrpc.JoinRequest{PublicKey: public, Spec: &borgpb.MachineSpec{
			Addr: "10.0.0.7:7101", Capacity: &borgpb.Resources{CpuMilli: 1000, MemBytes: 1 << 30},
		}})
	}
	// Through a replica that is not elected.
	resp, err := join(token, 2, public)
	if err != nil {
		t.Fatal(err)
	}
	got, err := identity.NewCredential(key, &identity.Issued{Certificate: resp.Certificate.Certificate, Authorities: resp.Certificate.Authorities})
	if err != nil || got.Name != (identity.Name{Cell: "test", Role: identity.Borglet, ID: "m7"}) || len(resp.Certificate.Masters) != 2 {
		t.Errorf("Join = %v, %v, want a certificate of machine m7 and two masters", resp, err)
	}
	machines, err := tc.client(1, "alice").ListMachines(t.Context(), &borgrpc.ListMachinesRequest{})
	if err != nil || len(machines.Machines) != 1 || machines.Machines[0].Meta.Name != "m7" || machines.Machines[0].Spec.Addr != "10.0.0.7:7101" {
		t.Errorf("machines are %v, %v, want m7 where it listens", machines, err)
	}
	// No answer came, so the same key asks again.
	if _, err := join(token, 1, public); err != nil {
		t.Errorf("the same key joins again: %v", err)
	}
	// Somebody else who saw the token.
	other, _, _ := ed25519.GenerateKey(rand.Reader)
	if _, err := join(token, 1, other); status.Code(err) != codes.PermissionDenied || !strings.Contains(err.Error(), "used already") {
		t.Errorf("a token is replayed: %v, want PermissionDenied", err)
	}
	// One that the cell was never told of.
	forged, err := ca.Source(identity.Name{Cell: "test", Role: identity.Join, ID: "borglet/m8"}, time.Now(), identity.TokenLife)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := join(forged, 1, other); status.Code(err) != codes.PermissionDenied {
		t.Errorf("a token that was never made: %v, want PermissionDenied", err)
	}
}

// TestWhatABorgletMayDo tries every call that a master serves with the
// certificate of a borglet: it gets its own machine's certificate, those of the
// tasks on it (TestCertificatesOfTasks), and nothing else.
func TestWhatABorgletMayDo(t *testing.T) {
	tc := newCell(t, 1, nil)
	tc.addMachine(startBorglet(t, "m1"))
	public, _, _ := ed25519.GenerateKey(rand.Reader)
	renew := func(machine string) (*borgrpc.RenewResponse, error) {
		return tc.identities(1, source(t, identity.Borglet, machine)).Renew(t.Context(), &borgrpc.RenewRequest{PublicKey: public})
	}
	resp, err := renew("m1")
	if err != nil || !strings.Contains(string(resp.Certificate.Certificate), "spiffe://test/borglet/m1") {
		t.Errorf("machine m1 renews its certificate: %v, %v", resp, err)
	}
	if _, err := renew("m2"); status.Code(err) != codes.PermissionDenied || !strings.Contains(err.Error(), "not in cell") {
		t.Errorf("a machine that is not in the cell renews: %v, want PermissionDenied", err)
	}
	allowed := 0
	for method, roles := range door.Access() {
		for _, r := range roles {
			if r == identity.Borglet {
				allowed++
				if method != "/borgrpc.IdentityService/Renew" && method != "/borgrpc.IdentityService/CertifyTask" {
					t.Errorf("a borglet may call %s", method)
				}
			}
		}
	}
	if allowed != 2 {
		t.Errorf("a borglet may make %d calls, want two", allowed)
	}
}

func TestGrants(t *testing.T) {
	tc := newCell(t, 2, nil)
	tc.hasUsers()
	whoami := func(name string) *borgrpc.WhoAmIResponse {
		t.Helper()
		resp, err := tc.identities(1, source(t, identity.User, name)).WhoAmI(t.Context(), &borgrpc.WhoAmIRequest{})
		if err != nil {
			t.Fatal(err)
		}
		return resp
	}
	if is := whoami("alice"); is.Name != "spiffe://test/user/alice" || len(is.Capabilities) != 0 || len(is.Admins) != 1 || is.Admins[0] != "root" {
		t.Errorf("alice is %v", is)
	}
	leave := &borgpb.Op{Op: &borgpb.Op_Revoke{Revoke: &borgpb.Revoke{User: "root", Capability: "admin"}}}
	drain := &borgpb.Op{Op: &borgpb.Op_DrainMachine{DrainMachine: &borgpb.DrainMachine{Name: "m"}}}
	kind := func(who string, op *borgpb.Op) borgpb.RefusalKind {
		t.Helper()
		resp, err := tc.client(2, who).Mutate(t.Context(), &borgrpc.MutateRequest{Op: tc.op(op)})
		if err != nil {
			t.Fatal(err)
		}
		return resp.Result.Refusal.GetKind()
	}
	grant := &borgpb.Op{Op: &borgpb.Op_Grant{Grant: &borgpb.Grant{User: "alice", Capability: "admin"}}}
	if got := kind("alice", grant); got != borgpb.RefusalKind_REFUSAL_KIND_PERMISSION {
		t.Errorf("alice grants herself admin: %v", got)
	}
	tc.must(tc.client(2, "root"), grant)
	if got := kind("alice", drain); got != borgpb.RefusalKind_REFUSAL_KIND_NOT_FOUND {
		t.Errorf("alice, an admin, drains a machine that is not there: %v", got)
	}
	tc.must(tc.client(1, "root"), &borgpb.Op{Op: &borgpb.Op_Revoke{Revoke: &borgpb.Revoke{User: "alice", Capability: "admin"}}})
	if got := kind("alice", drain); got != borgpb.RefusalKind_REFUSAL_KIND_PERMISSION {
		t.Errorf("alice, who was an admin, drains a machine: %v", got)
	}
	if got := kind("root", leave); got != borgpb.RefusalKind_REFUSAL_KIND_STATE {
		t.Errorf("the last admin gives up: %v", got)
	}
	if got := kind("root", &borgpb.Op{Op: &borgpb.Op_UseToken{UseToken: &borgpb.UseToken{Hash: make([]byte, 32), Name: "user/root"}}}); got != borgpb.RefusalKind_REFUSAL_KIND_PERMISSION {
		t.Errorf("an admin uses up a token: %v", got)
	}
}

// TestTheLastAdminWhoExists: an admin cannot leave the cell to a name that nobody may
// hold, and can once somebody has shown to hold it.
func TestTheLastAdminWhoExists(t *testing.T) {
	tc := newCell(t, 1, nil)
	tc.hasUsers()
	refused := func(who string, op *borgpb.Op) *borgpb.Refusal {
		t.Helper()
		resp, err := tc.client(1, who).Mutate(t.Context(), &borgrpc.MutateRequest{Op: tc.op(op)})
		if err != nil {
			t.Fatal(err)
		}
		return resp.Result.Refusal
	}
	grant := func(user string) *borgpb.Op {
		return &borgpb.Op{Op: &borgpb.Op_Grant{Grant: &borgpb.Grant{User: user, Capability: "admin"}}}
	}
	revoke := func(user string, certificates int64) *borgpb.Op {
		r := &borgpb.Revoke{User: user, Capability: "admin", CertificatesWallNs: certificates}
		return &borgpb.Op{Op: &borgpb.Op_Revoke{Revoke: r}}
	}
	tc.must(tc.client(1, "root"), grant("caroll"))
	tc.must(tc.client(1, "root"), grant("alice"))
	for _, certificates := range []int64{0, time.Now().Add(-time.Minute).UnixNano()} {
		r := refused("root", revoke("root", certificates))
		if r.GetKind() != borgpb.RefusalKind_REFUSAL_KIND_STATE || !strings.Contains(r.GetMessage(), "no other admin (alice, caroll)") {
			t.Fatalf("root leaves the cell to caroll: %v", r)
		}
	}
	// Alice exists: her own revocation says so.
	tc.must(tc.client(1, "alice"), revoke("root", 0))
	if r := refused("alice", revoke("alice", 0)); r.GetKind() != borgpb.RefusalKind_REFUSAL_KIND_STATE {
		t.Errorf("alice leaves the cell to caroll: %v", r)
	}
	tc.must(tc.client(1, "alice"), grant("root"))
	tc.must(tc.client(1, "root"), revoke("caroll", 0))
	tc.must(tc.client(1, "root"), revoke("root", 0))
	// It is no more so when her certificates do not count any more.
	tc.must(tc.client(1, "alice"), grant("root"))
	tc.must(tc.client(1, "root"), &borgpb.Op{Op: &borgpb.Op_Revoke{Revoke: &borgpb.Revoke{User: "alice", CertificatesWallNs: time.Now().Add(-time.Second).UnixNano()}}})
	if r := refused("root", revoke("root", 0)); r.GetKind() != borgpb.RefusalKind_REFUSAL_KIND_STATE {
		t.Errorf("root leaves the cell to alice, whose certificates were revoked: %v", r)
	}
}

// TestRevokedUsers: what was issued before does nothing any more, on connections
// that are there too; what is issued later does.
func TestRevokedUsers(t *testing.T) {
	tc := newCell(t, 1, nil)
	tc.hasUsers()
	mallory, err := ca.Source(identity.Name{Cell: "test", Role: identity.User, ID: "mallory"}, time.Now().Add(-time.Minute), identity.UserLife)
	if err != nil {
		t.Fatal(err)
	}
	conn, err := door.Dial(tc.addrs[0], mallory, door.AnyMaster(mallory))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	ask := func() error {
		_, err := borgrpc.NewMasterServiceClient(conn).GetCell(t.Context(), &borgrpc.GetCellRequest{})
		return err
	}
	if err := ask(); err != nil {
		t.Fatal(err)
	}
	tc.must(tc.client(1, "root"), &borgpb.Op{Op: &borgpb.Op_Revoke{Revoke: &borgpb.Revoke{User: "mallory", CertificatesWallNs: time.Now().Add(-30 * time.Second).UnixNano()}}})
	if err := ask(); status.Code(err) != codes.Unauthenticated || !strings.Contains(err.Error(), "was revoked") {
		t.Errorf("a call on a connection of somebody who was revoked: %v, want Unauthenticated", err)
	}
	public, _, _ := ed25519.GenerateKey(rand.Reader)
	if _, err := tc.identities(1, mallory).Renew(t.Context(), &borgrpc.RenewRequest{PublicKey: public}); status.Code(err) != codes.Unauthenticated {
		t.Errorf("somebody who was revoked renews: %v, want Unauthenticated", err)
	}
	if _, err := tc.client(1, "mallory").GetCell(t.Context(), &borgrpc.GetCellRequest{}); err != nil {
		t.Errorf("a certificate that was issued later: %v", err)
	}
}

// TestRevokedByTheCellsClock: what counts is when the cell has the revocation, not
// what the clocks of admins and of those who issue say.
func TestRevokedByTheCellsClock(t *testing.T) {
	tc := newCell(t, 2, nil)
	tc.hasUsers()
	renew := func(who *identity.Source) (*identity.Credential, error) {
		public, key, _ := ed25519.GenerateKey(rand.Reader)
		resp, err := tc.identities(2, who).Renew(t.Context(), &borgrpc.RenewRequest{PublicKey: public})
		if err != nil {
			return nil, err
		}
		return identity.NewCredential(key, &identity.Issued{Certificate: resp.Certificate.Certificate, Authorities: resp.Certificate.Authorities})
	}
	ask := func(c *identity.Credential) codes.Code {
		conn, err := door.Dial(tc.addrs[0], identity.NewSource(c, nil, nil), identity.Name{Cell: "test", Role: identity.Master})
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		_, err = borgrpc.NewMasterServiceClient(conn).GetCell(t.Context(), &borgrpc.GetCellRequest{})
		return status.Code(err)
	}
	fresh, err := renew(source(t, identity.User, "mallory"))
	if err != nil {
		t.Fatal(err)
	}
	tc.group.Replica(2).View(func(c *cell.Cell) {
		if wall := time.Unix(0, c.WallNs()); fresh.IssuedAt().After(wall) {
			t.Errorf("a certificate counts from %v on, and the cell is at %v", fresh.IssuedAt(), wall)
		}
	})
	token, err := tc.invite("root", "user/mallory")
	if err != nil {
		t.Fatal(err)
	}
	if code := ask(fresh); code != codes.OK {
		t.Fatalf("before the revocation: %v", code)
	}
	// An admin whose clock is far ahead.
	tc.must(tc.client(2, "root"), &borgpb.Op{Op: &borgpb.Op_Revoke{Revoke: &borgpb.Revoke{User: "mallory", CertificatesWallNs: time.Now().Add(time.Hour).UnixNano()}}})
	if code := ask(fresh); code != codes.Unauthenticated {
		t.Errorf("a certificate of a moment ago: %v, want Unauthenticated", code)
	}
	if _, err := renew(identity.NewSource(fresh, nil, nil)); status.Code(err) != codes.Unauthenticated {
		t.Errorf("it is renewed: %v, want Unauthenticated", err)
	}
	public, _, _ := ed25519.GenerateKey(rand.Reader)
	if _, err := tc.identities(1, token).Join(t.Context(), &borgrpc.JoinRequest{PublicKey: public}); status.Code(err) != codes.Unauthenticated {
		t.Errorf("a token from before is used: %v, want Unauthenticated", err)
	}
	// Let in again; what was revoked reaches a little ahead.
	until(t, "mallory is let in again", func() bool {
		token, err := tc.invite("root", "user/mallory")
		if err != nil {
			t.Fatal(err)
		}
		public, key, _ := ed25519.GenerateKey(rand.Reader)
		resp, err := tc.identities(1, token).Join(t.Context(), &borgrpc.JoinRequest{PublicKey: public})
		if status.Code(err) == codes.Unauthenticated {
			return false
		} else if err != nil {
			t.Fatal(err)
		}
		c, err := identity.NewCredential(key, &identity.Issued{Certificate: resp.Certificate.Certificate, Authorities: resp.Certificate.Authorities})
		if err != nil {
			t.Fatal(err)
		}
		return ask(c) == codes.OK
	})
}

// TestTheAuthorityIsForMembers alone.
func TestTheAuthorityIsForMembers(t *testing.T) {
	tc := newCell(t, 2, nil)
	if _, err := tc.identities(1, source(t, identity.User, "root")).GetAuthority(t.Context(), &borgrpc.GetAuthorityRequest{}); status.Code(err) != codes.PermissionDenied {
		t.Errorf("an admin asks for the authority: %v, want PermissionDenied", err)
	}
	if _, err := tc.identities(1, source(t, identity.Master, "9")).GetAuthority(t.Context(), &borgrpc.GetAuthorityRequest{}); status.Code(err) != codes.PermissionDenied {
		t.Errorf("a master that is no member asks for the authority: %v, want PermissionDenied", err)
	}
	resp, err := tc.identities(1, source(t, identity.Master, "2")).GetAuthority(t.Context(), &borgrpc.GetAuthorityRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := identity.DecodeAuthority("test", resp.Authority, rand.Reader); err != nil {
		t.Error(err)
	}
	public, _, _ := ed25519.GenerateKey(rand.Reader)
	if _, err := tc.identities(1, source(t, identity.User, "bob")).CertifyMaster(t.Context(), &borgrpc.CertifyMasterRequest{Replica: 2, PublicKey: public}); status.Code(err) != codes.PermissionDenied {
		t.Errorf("bob becomes a master: %v, want PermissionDenied", err)
	}
	if _, err := tc.identities(1, source(t, identity.User, "root")).CertifyMaster(t.Context(), &borgrpc.CertifyMasterRequest{Replica: 9, PublicKey: public}); status.Code(err) != codes.FailedPrecondition {
		t.Errorf("a certificate for a replica that is no member: %v, want FailedPrecondition", err)
	}
}

// TestCanIBoundsNames: what is asked about is no longer than a name may be.
func TestCanIBoundsNames(t *testing.T) {
	tc := newCell(t, 1, nil)
	alice := tc.identities(1, source(t, identity.User, "alice"))
	for bytes, want := range map[int]codes.Code{1<<10 - 4: codes.OK, 1<<10 - 3: codes.InvalidArgument} {
		_, err := alice.CanI(t.Context(), &borgrpc.CanIRequest{Verb: "file", Object: "alice/" + strings.Repeat("x", bytes-len("alice/"))})
		if status.Code(err) != want {
			t.Errorf("an object of %d bytes: %v, want %v", bytes, err, want)
		}
	}
}
