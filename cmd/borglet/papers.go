package main

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"borg/borglet"
	"borg/borgmaster/client"
	"borg/identity"
	"borg/proto/borgrpc"
	"borg/proto/door"
)

// issueTry bounds one try with one master.
const issueTry = 2 * time.Second

// issuer asks the masters for the papers of tasks. It keeps a connection: many
// tasks may start at once.
type issuer struct {
	source *identity.Source

	mu sync.Mutex
	// host:port of masters; the one that answered last comes first. Guarded by mu,
	// as is the rest.
	masters []string
	// To the first of them; nil: none was made yet.
	conn *grpc.ClientConn
}

// Issue makes a key and has it certified for a copy.
func (i *issuer) Issue(ctx context.Context, id borglet.ID) (*borglet.Papers, error) {
	public, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("make a key: %w", err)
	}
	resp, err := i.ask(ctx, &borgrpc.CertifyTaskRequest{
		Copy: wireOf(id), PublicKey: public,
	})
	if err != nil {
		return nil, err
	}
	cert := resp.GetCertificate()
	c, err := identity.NewCredential(key, &identity.Issued{Certificate: cert.GetCertificate(), Authorities: cert.GetAuthorities()})
	if err != nil {
		return nil, err
	}
	i.know(cert.GetMasters())
	files, err := papersOf(c, cert.GetMasters())
	if err != nil {
		return nil, err
	}
	for _, s := range resp.GetSecrets() {
		files[filepath.Join(borglet.SecretPapers, s.GetName())] = s.GetValue()
	}
	return &borglet.Papers{Files: files, RenewAt: c.RenewAt(), Expires: c.Expires()}, nil
}

// Files asks for the small files that a copy's spec names.
func (i *issuer) Files(ctx context.Context, id borglet.ID) ([]*borgrpc.TaskFile, error) {
	resp, err := i.ask(ctx, &borgrpc.CertifyTaskRequest{Copy: wireOf(id), Files: true})
	return resp.GetFiles(), err
}

// PackageCredentials asks for the secrets with which a copy's packages are brought.
func (i *issuer) PackageCredentials(ctx context.Context, id borglet.ID) (map[string][]byte, error) {
	resp, err := i.ask(ctx, &borgrpc.CertifyTaskRequest{Copy: wireOf(id), PackageCredentials: true})
	if err != nil {
		return nil, err
	}
	named := make(map[string][]byte, len(resp.GetSecrets()))
	for _, s := range resp.GetSecrets() {
		named[s.GetName()] = s.GetValue()
	}
	return named, nil
}

func wireOf(id borglet.ID) *borgrpc.CopyID {
	return &borgrpc.CopyID{JobUid: id.JobUID, Index: id.Index, Attempt: id.Attempt}
}

func papersOf(c *identity.Credential, masters []string) (map[string][]byte, error) {
	whole, err := c.Encode()
	if err != nil {
		return nil, err
	}
	key, cert, authorities, err := c.Parts()
	if err != nil {
		return nil, err
	}
	cell, err := (&client.CellFile{Cell: c.Name.Cell, Masters: masters, Identity: borglet.IdentityPaper}).Encode()
	if err != nil {
		return nil, err
	}
	return map[string][]byte{
		borglet.IdentityPaper: whole, borglet.KeyPaper: key, borglet.CertPaper: cert, borglet.CAPaper: authorities, borglet.CellPaper: cell,
	}, nil
}

// ask asks one master after the other, until one says yes or no.
func (i *issuer) ask(ctx context.Context, req *borgrpc.CertifyTaskRequest) (*borgrpc.CertifyTaskResponse, error) {
	failed := errors.New("no address of a master is known")
	for range len(i.known()) {
		conn, addr, err := i.first()
		if err != nil {
			return nil, err
		}
		try, cancel := context.WithTimeout(ctx, issueTry)
		resp, err := borgrpc.NewIdentityServiceClient(conn).CertifyTask(try, req)
		cancel()
		if err == nil {
			return resp, nil
		}
		failed = fmt.Errorf("%s: %s", addr, door.Reason(err))
		if code := status.Code(err); ctx.Err() != nil || (code != codes.Unavailable && code != codes.DeadlineExceeded) {
			return nil, failed
		}
		i.another(addr)
	}
	return nil, failed
}

func (i *issuer) known() []string {
	i.mu.Lock()
	defer i.mu.Unlock()
	return slices.Clone(i.masters)
}

// first is the connection to the master that is asked first.
func (i *issuer) first() (*grpc.ClientConn, string, error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.conn == nil {
		conn, err := door.Dial(i.masters[0], i.source, door.AnyMaster(i.source))
		if err != nil {
			return nil, "", err
		}
		i.conn = conn
	}
	return i.conn, i.masters[0], nil
}

// another makes the next master the first one, unless somebody else did.
func (i *issuer) another(addr string) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.masters[0] != addr {
		return
	}
	i.masters = append(slices.Clone(i.masters[1:]), addr)
	i.hangUp()
}

// know takes in where the masters are by now.
func (i *issuer) know(masters []string) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if len(masters) == 0 {
		return
	}
	if at := slices.Index(masters, i.masters[0]); at >= 0 {
		i.masters = slices.Concat(masters[at:], masters[:at])
		return
	}
	i.masters = slices.Clone(masters)
	i.hangUp()
}

// hangUp closes the connection. The caller holds mu.
func (i *issuer) hangUp() {
	if i.conn != nil {
		i.conn.Close()
		i.conn = nil
	}
}

func (i *issuer) close() {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.hangUp()
}
