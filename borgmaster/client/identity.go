package client

import (
	"cmp"
	"context"
	"crypto/ed25519"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"time"

	"borg/identity"
	"borg/proto/borgrpc"
	"borg/proto/door"
)

// NoIdentityError says that there is no certificate to show.
type NoIdentityError struct {
	// Where the cell was found, and the file that is not there; empty: none is
	// named.
	Origin, Path string
}

func (e *NoIdentityError) Error() string {
	if e.Path == "" {
		return fmt.Sprintf("who are you? the masters want a certificate, and none is named for the cell found by %s", e.Origin)
	}
	return fmt.Sprintf("who are you? the certificate file %s, named by %s, is not there", e.Path, e.Origin)
}

// ExpiredIdentityError says that one's own certificate has run out.
type ExpiredIdentityError struct {
	Path    string
	Name    identity.Name
	Expired time.Time
}

func (e *ExpiredIdentityError) Error() string {
	return fmt.Sprintf("the certificate of %s in %s expired at %s", e.Name.Words(), e.Path, e.Expired.UTC().Format(time.RFC3339))
}

// Source opens the certificate that belongs to the place. Run renews it.
func (p *Place) Source() (*identity.Source, error) {
	if p.IdentityPath == "" {
		return nil, &NoIdentityError{Origin: p.Origin}
	}
	c, err := identity.ReadCredential(p.IdentityPath)
	if errors.Is(err, os.ErrNotExist) {
		return nil, &NoIdentityError{Origin: cmp.Or(p.IdentityOrigin, p.Origin), Path: p.IdentityPath}
	}
	if err != nil {
		return nil, err
	}
	if c.Expired(time.Now()) {
		return nil, &ExpiredIdentityError{Path: p.IdentityPath, Name: c.Name, Expired: c.Expires()}
	}
	if c.Foreign() {
		return identity.NewSource(c, nil, nil), nil
	}
	return NewSource(c, p.Masters, func(c *identity.Credential, _ []string) error {
		return identity.WriteCredential(p.IdentityPath, c)
	}), nil
}

// NewSource is a source that has its certificate renewed by the masters. save
// keeps what was renewed, and where the masters are by now; nil: it is not kept.
func NewSource(first *identity.Credential, masters []string, save func(*identity.Credential, []string) error) *identity.Source {
	r := &renewer{masters: slices.Clone(masters)}
	var keep func(*identity.Credential) error
	if save != nil {
		keep = func(c *identity.Credential) error { return save(c, r.known()) }
	}
	r.source = identity.NewSource(first, r.renew, keep)
	return r.source
}

// renewer asks one master after the other.
type renewer struct {
	source *identity.Source

	mu sync.Mutex
	// The one that answered last is the first. Guarded by mu.
	masters []string
}

func (r *renewer) known() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.masters)
}

func (r *renewer) renew(ctx context.Context, public ed25519.PublicKey) (*identity.Issued, error) {
	cert, err := AskAny(ctx, r.source, r.known(), func(ctx context.Context, c borgrpc.IdentityServiceClient) (*borgrpc.Certificate, error) {
		resp, err := c.Renew(ctx, &borgrpc.RenewRequest{PublicKey: public})
		return resp.GetCertificate(), err
	})
	if err != nil {
		return nil, err
	}
	if len(cert.GetMasters()) > 0 {
		r.mu.Lock()
		r.masters = cert.Masters
		r.mu.Unlock()
	}
	return issuedOf(cert), nil
}

func issuedOf(c *borgrpc.Certificate) *identity.Issued {
	return &identity.Issued{Certificate: c.GetCertificate(), Authorities: c.GetAuthorities()}
}

// AskAny asks the masters one after the other until one answers.
func AskAny(ctx context.Context, who *identity.Source, masters []string, ask func(context.Context, borgrpc.IdentityServiceClient) (*borgrpc.Certificate, error)) (*borgrpc.Certificate, error) {
	failed := errors.New("no address of a master is known")
	for _, addr := range masters {
		cert, err := askOne(ctx, who, addr, ask)
		if err == nil {
			return cert, nil
		}
		failed = &askError{addr, err}
		if !again(ctx, err) {
			return nil, failed
		}
	}
	return nil, failed
}

// askError is what came of asking one master.
type askError struct {
	addr string
	err  error
}

func (e *askError) Error() string { return e.addr + ": " + door.Reason(e.err) }
func (e *askError) Unwrap() error { return e.err }

func askOne(ctx context.Context, who *identity.Source, addr string, ask func(context.Context, borgrpc.IdentityServiceClient) (*borgrpc.Certificate, error)) (*borgrpc.Certificate, error) {
	conn, err := door.Dial(addr, who, door.AnyMaster(who))
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeout(ctx, tryTimeout)
	defer cancel()
	return ask(ctx, borgrpc.NewIdentityServiceClient(conn))
}

// Certify makes a key and has it certified by what ask asks of a master.
func Certify(ctx context.Context, who *identity.Source, masters []string, ask func(context.Context, borgrpc.IdentityServiceClient, ed25519.PublicKey) (*borgrpc.Certificate, error)) (*identity.Credential, []string, error) {
	public, key, err := ed25519.GenerateKey(nil)
	if err != nil {
		return nil, nil, fmt.Errorf("make a key: %w", err)
	}
	cert, err := AskAny(ctx, who, masters, func(ctx context.Context, c borgrpc.IdentityServiceClient) (*borgrpc.Certificate, error) {
		return ask(ctx, c, public)
	})
	if err != nil {
		return nil, nil, err
	}
	c, err := identity.NewCredential(key, issuedOf(cert))
	return c, cert.GetMasters(), err
}

// ReadToken reads a token, or the file that holds it.
func ReadToken(tokenOrPath string) (*identity.Token, error) {
	if identity.IsToken(tokenOrPath) {
		return identity.ParseToken(tokenOrPath)
	}
	raw, err := os.ReadFile(tokenOrPath)
	if err != nil {
		return nil, fmt.Errorf("this is neither a token nor the file of one: %w", err)
	}
	token, err := identity.ParseToken(string(raw))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", tokenOrPath, err)
	}
	return token, nil
}
