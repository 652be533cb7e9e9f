package identity

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	mathrand "math/rand/v2"
	"sync"
	"time"
)

const (
	// A renewal that failed is tried again after so long, or a part of the
	// certificate's life when that is shorter: half a life holds many tries.
	maxRenewPause  = time.Minute
	minRenewPause  = 100 * time.Millisecond
	triesInOneLife = 120
	// The wall clock is looked at so often: it may be set, and a machine that slept wakes
	// up later than its timers know.
	lookPause = 10 * time.Second
	// Bound on one try.
	renewTimeout = 30 * time.Second
	// Who hears of other authorities renews within so long, and not again before:
	// thousands of machines hear of it in the same second.
	trustPause = 10 * time.Second
)

// Renew has a new key certified for whoever the source is.
type Renew func(ctx context.Context, public ed25519.PublicKey) (*Issued, error)

// Source is somebody's certificate over time. What it hands to TLS asks it
// anew at each handshake, so a renewal disturbs nobody: connections that are
// there go on, new ones use the new certificate and believe the new authorities.
type Source struct {
	// Hears of each renewal, or why it failed; set before Run. Nil: nobody.
	OnRenew func(*Credential, error)
	// Other authorities whose certificates count for who calls; set before the first
	// connection. Nil: none.
	Foreign *Foreign
	// Tells names that are not believed from who answers though their certificates
	// are good; set before the first connection. Nil: all are.
	Gone func(Name) bool
	// Hears whose certificate was shown by who answers, and from when until when that
	// counts; set before the first connection, does not block. Nil: nobody.
	Saw func(who Name, issued, expires time.Time)
	// The wall clock; set before the first use. Nil: that of this machine.
	Clock func() time.Time

	renew Renew
	save  func(*Credential) error
	// Says that wanted is another.
	news chan struct{}

	mu sync.Mutex
	// Guarded by mu; never nil.
	current *Credential
	// Mark of the authorities that the cell has by now, when they are others than
	// those of current; otherwise nil. Guarded by mu.
	wanted []byte
}

// NewSource begins with a credential. renew may be nil: it is never renewed.
// save keeps what was renewed; nil: it is not kept.
func NewSource(first *Credential, renew Renew, save func(*Credential) error) *Source {
	return &Source{current: first, renew: renew, save: save, news: make(chan struct{}, 1)}
}

// Source is that of somebody who has the authority at hand and certifies
// himself.
func (a *Authority) Source(name Name, now time.Time, life time.Duration) (*Source, error) {
	first, err := a.Certify(name, now, life)
	if err != nil {
		return nil, err
	}
	s := NewSource(first, nil, nil)
	s.renew = func(_ context.Context, public ed25519.PublicKey) (*Issued, error) {
		return a.Issue(public, name, s.now(), life)
	}
	return s, nil
}

func (s *Source) now() time.Time {
	if s.Clock != nil {
		return s.Clock()
	}
	return time.Now()
}

// wait is how long to wait until a time of the wall clock, before it is looked at again.
func (s *Source) wait(until time.Time) time.Duration { return min(until.Sub(s.now()), lookPause) }

// Name is whose it is.
func (s *Source) Name() Name { return s.Current().Name }

// Current is the newest credential.
func (s *Source) Current() *Credential {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.current
}

// TrustIs says by which mark the cell's authorities go now, as somebody of the cell
// has it. If they are others than those of the present certificate, Run renews that
// within seconds, each source at another moment. It does not block.
func (s *Source) TrustIs(mark []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(mark) == 0 || bytes.Equal(mark, s.current.Trust.Mark()) {
		s.wanted = nil
		return
	}
	if bytes.Equal(mark, s.wanted) {
		return
	}
	s.wanted = bytes.Clone(mark)
	select {
	case s.news <- struct{}{}:
	default:
	}
}

// behind says that the cell has other authorities than the present certificate
// came with.
func (s *Source) behind() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.wanted != nil
}

// Run renews at half of each life, and when it hears of other authorities, until
// ctx ends.
func (s *Source) Run(ctx context.Context) {
	if s.renew == nil {
		return
	}
	due := s.Current().RenewAt()
	// Whatever is said meanwhile, not sooner.
	earliest := s.now()
	timer := time.NewTimer(s.wait(due))
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-s.news:
			if soon := s.sometimeAfter(earliest); s.behind() && soon.Before(due) {
				due = soon
				timer.Reset(s.wait(due))
			}
			continue
		case <-timer.C:
		}
		if s.now().Before(due) {
			timer.Reset(s.wait(due))
			continue
		}
		if at := s.Current().RenewAt(); !s.behind() && s.now().Before(at) {
			// The authorities are those that it has again.
			due = at
			timer.Reset(s.wait(due))
			continue
		}
		next, err := s.RenewNow(ctx)
		if ctx.Err() != nil {
			return
		}
		if s.OnRenew != nil {
			s.OnRenew(next, err)
		}
		current, now := s.Current(), s.now()
		earliest = now.Add(hearPause(current))
		switch again := now.Add(retryPause(current)); {
		case err != nil:
			due = again
		case s.behind():
			// Whoever certified it has not heard of them either.
			due = s.sometimeAfter(earliest)
		case current.RenewAt().Before(again):
			// Never at once again, whatever the clock that issued it says.
			due = again
		default:
			due = current.RenewAt()
		}
		timer.Reset(s.wait(due))
	}
}

// sometimeAfter is a moment soon after a time, or after now.
func (s *Source) sometimeAfter(at time.Time) time.Time {
	if now := s.now(); now.After(at) {
		at = now
	}
	return at.Add(mathrand.N(hearPause(s.Current())))
}

func hearPause(c *Credential) time.Duration { return min(retryPause(c), trustPause) }

func retryPause(c *Credential) time.Duration {
	return min(max(c.leaf.NotAfter.Sub(c.leaf.NotBefore)/triesInOneLife, minRenewPause), maxRenewPause)
}

// RenewNow has a new certificate issued and uses it from now on.
func (s *Source) RenewNow(ctx context.Context) (*Credential, error) {
	was := s.Current()
	if s.renew == nil {
		return nil, fmt.Errorf("the certificate of %s is not one to be renewed", was.Name)
	}
	public, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("make a key for %s: %w", was.Name, err)
	}
	ctx, cancel := context.WithTimeout(ctx, renewTimeout)
	defer cancel()
	issued, err := s.renew(ctx, public)
	if err != nil {
		return nil, fmt.Errorf("renew the certificate of %s, which runs out at %s: %w", was.Name, was.Expires().UTC().Format(time.RFC3339), err)
	}
	next, err := NewCredential(key, issued)
	if err != nil {
		return nil, fmt.Errorf("renew the certificate of %s: %w", was.Name, err)
	}
	if next.Name != was.Name {
		return nil, fmt.Errorf("renew the certificate of %s: the answer is for %s", was.Name, next.Name)
	}
	s.mu.Lock()
	s.current = next
	if bytes.Equal(s.wanted, next.Trust.Mark()) {
		s.wanted = nil
	}
	s.mu.Unlock()
	if s.save != nil {
		if err := s.save(next); err != nil {
			return nil, fmt.Errorf("keep the renewed certificate of %s: %w", was.Name, err)
		}
	}
	return next, nil
}

// nextProtos: the wire is gRPC's.
var nextProtos = []string{"h2"}

// ServerTLS is for who listens: TLS 1.3, and whoever has no certificate of the
// cell is refused in the handshake.
func (s *Source) ServerTLS() *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS13, NextProtos: nextProtos,
		ClientAuth: tls.RequireAnyClientCert,
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
			return s.Current().TLS(), nil
		},
		VerifyConnection: func(cs tls.ConnectionState) error {
			_, _, err := s.WhoCalls(cs.PeerCertificates, s.now())
			return err
		},
		// A resumed session would be believed by what was true when it began.
		SessionTicketsDisabled: true,
	}
}

// WhoCalls says whom the certificates of somebody who calls name, and whether that
// is another authority's word.
func (s *Source) WhoCalls(certs []*x509.Certificate, now time.Time) (name Name, foreign bool, err error) {
	if s.Foreign.claims(certs) {
		name, err = s.Foreign.Verify(certs, now)
		return name, true, err
	}
	name, err = s.Current().Trust.Verify(certs, ToCall, now)
	return name, false, err
}

// OtherPeerError says that somebody else answers than was expected.
type OtherPeerError struct{ Want, Got Name }

func (e *OtherPeerError) Error() string {
	return fmt.Sprintf("%s answers there, and %s was expected", e.Got.Words(), e.Want.Words())
}

// ClientTLS is for who dials and expects want, or anybody that want stands for.
func (s *Source) ClientTLS(want Name) *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS13, NextProtos: nextProtos,
		GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
			return s.Current().TLS(), nil
		},
		// The names are URIs, which the library does not look at: VerifyConnection
		// does all of it, and is called for each connection.
		InsecureSkipVerify: true,
		VerifyConnection: func(cs tls.ConnectionState) error {
			got, err := s.Current().Trust.Verify(cs.PeerCertificates, ToAnswer, s.now())
			switch {
			case err != nil:
			case !got.Is(want):
				err = &OtherPeerError{Want: want, Got: got}
			case s.Gone != nil && s.Gone(got):
				err = &BadCertificateError{Name: got, Why: "is that of a replica which was taken out of the cell"}
			}
			if err == nil && s.Saw != nil {
				leaf := cs.PeerCertificates[0]
				s.Saw(got, leaf.NotBefore, s.Current().Trust.endOf(leaf))
			}
			return err
		},
	}
}

// Fingerprint tells a certificate, DER, from all others.
func Fingerprint(der []byte) []byte {
	sum := sha256.Sum256(der)
	return sum[:]
}
