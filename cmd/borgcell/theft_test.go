package main

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"

	"borg/borglet"
	"borg/identity"
	"borg/proto/borgrpc"
)

// keysOf are the files of master i that hold keys.
func (c *Cell) keysOf(t *testing.T, i int) (files []string) {
	t.Helper()
	for _, dir := range []string{c.masterDir(i), c.runOf(c.masterName(i))} {
		err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
			if err != nil || !d.Type().IsRegular() {
				return nil
			}
			data, err := os.ReadFile(path)
			if err == nil && (bytes.Contains(data, []byte("PRIVATE KEY")) || d.Name() == "cell-keys.json") {
				files = append(files, path)
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return files
}

// authorityOf is the authority of master i, as it has it on its disk.
func (c *Cell) authorityOf(t *testing.T, i int) *identity.Authority {
	t.Helper()
	data, err := identity.ReadSecret(filepath.Join(c.masterDir(i), "authority.pem"))
	if err != nil {
		t.Fatal(err)
	}
	a, err := identity.DecodeAuthority(c.Name, data, rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// asked is what comes of a call by somebody who has an authority and believes
// whoever answers: nil, or why he was refused. Other errors end the test.
func (c *Cell) asked(t *testing.T, by *identity.Authority, role identity.Role, id, addr string, call func(context.Context, *grpc.ClientConn) error) error {
	t.Helper()
	who, err := by.Source(identity.Name{Cell: c.Name, Role: role, ID: id}, time.Now(), identity.Life)
	if err != nil {
		t.Fatal(err)
	}
	config := who.ClientTLS(identity.Name{Cell: c.Name, Role: identity.Master})
	config.VerifyConnection = func(tls.ConnectionState) error { return nil }
	conn, err := grpc.NewClient("passthrough:///"+addr, grpc.WithTransportCredentials(credentials.NewTLS(config)))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	err = call(ctx, conn)
	if code := status.Code(err); err == nil || code == codes.Unauthenticated || code == codes.PermissionDenied {
		return err
	}
	// Who is refused in the handshake may only see that the connection is gone.
	if !slices.ContainsFunc([]string{"tls: ", "broken pipe", "reset by peer", "server preface"}, func(sign string) bool { return strings.Contains(err.Error(), sign) }) {
		t.Fatalf("%s/%s asks %s: %v", role, id, addr, err)
	}
	return err
}

func getCell(ctx context.Context, conn *grpc.ClientConn) error {
	_, err := borgrpc.NewMasterServiceClient(conn).GetCell(ctx, &borgrpc.GetCellRequest{})
	return err
}

func describe(ctx context.Context, conn *grpc.ClientConn) error {
	_, err := borgrpc.NewBorgletServiceClient(conn).Describe(ctx, &borgrpc.DescribeRequest{})
	return err
}

func probe(ctx context.Context, conn *grpc.ClientConn) error {
	_, err := borgrpc.NewReplicaServiceClient(conn).Probe(ctx, &borgrpc.ProbeRequest{})
	return err
}

// TestMastersAreTakenAway: a replica that hears that it was removed has no key any
// more. One that never hears keeps the authority's, whoever has its disk: its own
// name is worth nothing with any master or borglet, but it can be anybody else.
// When the authority is replaced and the one before dropped, as docs/identity.md
// says, that is over within minutes, and no machine, task or job has noticed.
func TestMastersAreTakenAway(t *testing.T) {
	alongside(t)
	c := chaosCell(t, 5, 2)
	before := c.run(t, "web", sleepers(2))
	elected, err := c.electedNow(shortly(t))
	if err != nil {
		t.Fatal(err)
	}
	var others []int
	for i := 1; i <= c.Masters; i++ {
		if i != elected {
			others = append(others, i)
		}
	}
	hears, deaf, ask := others[0], others[1], c.masterAddr(elected)

	c.must(t, "borgmaster", "member", "remove", fmt.Sprint(hears), "--master", ask)
	waitFor(t, "the replica that was removed has no keys", func() string { return strings.Join(c.keysOf(t, hears), ", ") })
	// It would be started again and again.
	_ = c.Kill(c.masterName(hears))

	if err := c.Kill(c.masterName(deaf)); err != nil {
		t.Fatal(err)
	}
	c.must(t, "borgmaster", "member", "remove", fmt.Sprint(deaf), "--master", ask)
	thief := c.authorityOf(t, deaf)
	for k := 1; k <= c.Machines; k++ {
		waitFor(t, fmt.Sprintf("borglet %d has heard who was removed", k), func() string {
			fence, err := borglet.LoadFence(c.borgletDir(k))
			if err != nil || !slices.Contains(fence.Removed, uint64(hears)) || !slices.Contains(fence.Removed, uint64(deaf)) {
				return fmt.Sprintf("%v, %v", fence.Removed, err)
			}
			// It is written down before it is known.
			if c.asked(t, thief, identity.Master, strconv.Itoa(deaf), c.borgletAddr(k), describe) == nil {
				return "it still believes one of them"
			}
			return ""
		})
	}

	// In its own name, and in that of others.
	type door struct {
		what, addr string
		call       func(context.Context, *grpc.ClientConn) error
		role       identity.Role
		id         string
	}
	doors := func(master int) (all []door) {
		for k := 1; k <= c.Machines; k++ {
			all = append(all, door{"borglet " + fmt.Sprint(k), c.borgletAddr(k), describe, identity.Master, strconv.Itoa(master)})
		}
		for _, i := range append([]int{elected}, others[2:]...) {
			all = append(all, door{"master " + fmt.Sprint(i), c.masterAddr(i), probe, identity.Master, strconv.Itoa(master)})
			all = append(all, door{"master " + fmt.Sprint(i) + " as an admin", c.masterAddr(i), getCell, identity.User, c.user})
		}
		return all
	}
	for _, d := range doors(deaf) {
		if err := c.asked(t, thief, d.role, d.id, d.addr, d.call); err == nil && d.role == identity.Master {
			t.Errorf("%s believes a replica that was removed", d.what)
		} else if err != nil && d.role == identity.User {
			t.Errorf("%s: %v; whoever has the authority can be anybody, until it is replaced", d.what, err)
		}
	}
	for _, d := range doors(elected) {
		if err := c.asked(t, thief, d.role, d.id, d.addr, d.call); err != nil {
			t.Errorf("%s: %v; whoever has the authority can be anybody, until it is replaced", d.what, err)
		}
	}

	// Long enough that a borglet believes the next one before a master shows it.
	c.must(t, "borgmaster", "authority", "replace", "--wait", "30s", "--overlap", "1h", "--master", ask)
	replaced := time.Now()
	next := c.authorityOf(t, elected).Alone()
	own, err := next.Certify(identity.Name{Cell: c.Name, Role: identity.Master, ID: "1"}, time.Now(), identity.Life)
	if err != nil {
		t.Fatal(err)
	}
	issuedByNext := func(leaf *x509.Certificate) error {
		_, err := own.Trust.Verify([]*x509.Certificate{leaf}, identity.ToCall, time.Now())
		return err
	}
	borglets := func(what string, ok func(has *identity.Credential) error) {
		t.Helper()
		for k := 1; k <= c.Machines; k++ {
			waitFor(t, fmt.Sprintf("borglet %d %s", k, what), func() string {
				has, err := identity.ReadCredential(filepath.Join(c.borgletDir(k), "identity.pem"))
				if err == nil {
					err = ok(has)
				}
				if err != nil {
					return err.Error()
				}
				return ""
			})
		}
		t.Logf("all borglets %s after %v", what, time.Since(replaced).Round(time.Second))
	}
	borglets("believe the next authority", func(has *identity.Credential) error {
		_, err := has.Trust.Verify([]*x509.Certificate{own.TLS().Leaf}, identity.ToCall, time.Now())
		return err
	})
	borglets("have a certificate of the next authority", func(has *identity.Credential) error { return issuedByNext(has.TLS().Leaf) })
	c.must(t, "borgmaster", "authority", "drop", "--yes", "--master", ask)
	// What `borgmaster login` does: we are a user too.
	c.authority.Adopt(c.authorityOf(t, elected))
	if _, err := c.source.RenewNow(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, d := range doors(elected) {
		waitFor(t, d.what+" refuses what the stolen authority issues", func() string {
			if c.asked(t, thief, d.role, d.id, d.addr, d.call) == nil {
				return "it is believed"
			}
			return ""
		})
	}
	t.Logf("what was stolen is worth nothing after %v", time.Since(replaced).Round(time.Second))

	// Nobody was invited again, and tasks are who they are.
	c.stillSame(t, before, "web")
	c.run(t, "later", sleepers(2))
	for k := 1; k <= c.Machines; k++ {
		waitFor(t, fmt.Sprintf("the tasks of machine %d have papers of the next authority", k), func() string {
			certs, _ := filepath.Glob(filepath.Join(c.papersOf(k), "*", "current", "identity.pem"))
			for _, path := range certs {
				has, err := identity.ReadCredential(path)
				if err == nil {
					err = issuedByNext(has.TLS().Leaf)
				}
				if err != nil {
					return err.Error()
				}
			}
			return ""
		})
	}
}
