package identity_test

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"io"
	"math/big"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"borg/identity"
)

func name(role identity.Role, id string) identity.Name {
	return identity.Name{Cell: "test", Role: role, ID: id}
}

func authority(t testing.TB, cell string) *identity.Authority {
	t.Helper()
	a, err := identity.NewAuthority(cell, time.Now(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func certify(t testing.TB, a *identity.Authority, n identity.Name, at time.Time, life time.Duration) *identity.Credential {
	t.Helper()
	c, err := a.Certify(n, at, life)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func source(t testing.TB, a *identity.Authority, n identity.Name) *identity.Source {
	t.Helper()
	s, err := a.Source(n, time.Now(), identity.Life)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// shake makes a connection and sends a byte each way: in TLS 1.3 a client only
// hears with its first read that it was refused.
func shake(client, server *tls.Config) (clientErr, serverErr error) {
	a, b := newWires()
	defer a.Close()
	defer b.Close()
	var wait sync.WaitGroup
	wait.Go(func() {
		s := tls.Server(b, server)
		defer b.Close()
		if serverErr = s.Handshake(); serverErr == nil {
			_, serverErr = s.Write([]byte{1})
		}
	})
	c := tls.Client(a, client)
	if clientErr = c.Handshake(); clientErr == nil {
		_, clientErr = io.ReadFull(c, make([]byte, 1))
	}
	a.Close()
	wait.Wait()
	return clientErr, serverErr
}

// forge makes a credential with a certificate that the authority of these tests
// would never issue.
func forge(t *testing.T, caPEM []byte, change func(*x509.Certificate)) tls.Certificate {
	t.Helper()
	keyBlock, rest := pem.Decode(caPEM)
	certBlock, _ := pem.Decode(rest)
	caKey, err := x509.ParsePKCS8PrivateKey(keyBlock.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	ca, err := x509.ParseCertificate(certBlock.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	public, key, _ := ed25519.GenerateKey(rand.Reader)
	c := &x509.Certificate{
		SerialNumber: big.NewInt(7), NotBefore: time.Now().Add(-50 * time.Minute), NotAfter: time.Now().Add(time.Hour),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth},
		URIs: []*url.URL{{Scheme: "spiffe", Host: "test", Path: "/master/1"}},
	}
	change(c)
	der, err := x509.CreateCertificate(rand.Reader, c, ca, public, caKey)
	if err != nil {
		t.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}

func TestBadCertificatesAreRefused(t *testing.T) {
	ca, other := authority(t, "test"), authority(t, "test")
	pemOf, err := ca.Encode()
	if err != nil {
		t.Fatal(err)
	}
	uri := func(s string) *url.URL { u, _ := url.Parse(s); return u }
	otherPEM, _ := other.Encode()
	now := time.Now()
	tests := []struct {
		name  string
		cert  tls.Certificate
		hears string
	}{
		{"no certificate", tls.Certificate{}, "no certificate"},
		{"right", forge(t, pemOf, func(*x509.Certificate) {}), ""},
		{"expired", forge(t, pemOf, func(c *x509.Certificate) { c.NotAfter = now.Add(-6 * time.Minute) }), "expired"},
		{"expired within the tolerance", forge(t, pemOf, func(c *x509.Certificate) { c.NotAfter = now.Add(-4 * time.Minute) }), ""},
		{"not yet valid", forge(t, pemOf, func(c *x509.Certificate) { c.NotBefore = now.Add(6 * time.Minute) }), "not valid before"},
		{"not yet valid within the tolerance", forge(t, pemOf, func(c *x509.Certificate) { c.NotBefore = now.Add(4 * time.Minute) }), ""},
		{"other authority", forge(t, otherPEM, func(*x509.Certificate) {}), "was not issued by"},
		{"no use", forge(t, pemOf, func(c *x509.Certificate) { c.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageCodeSigning} }), "is not one to"},
		{"no URI", forge(t, pemOf, func(c *x509.Certificate) { c.URIs = nil; c.Subject = pkix.Name{CommonName: "master"} }), "0 URIs"},
		{"two URIs", forge(t, pemOf, func(c *x509.Certificate) { c.URIs = append(c.URIs, uri("spiffe://test/user/root")) }), "2 URIs"},
		{"a DNS name too", forge(t, pemOf, func(c *x509.Certificate) { c.DNSNames = []string{"test"} }), "not a URI"},
		{"escaped URI", forge(t, pemOf, func(c *x509.Certificate) { c.URIs = []*url.URL{uri("spiffe://test/%6daster/1")} }), "there is no role"},
		{"other cell", forge(t, pemOf, func(c *x509.Certificate) { c.URIs = []*url.URL{uri("spiffe://prod/master/1")} }), "of another cell"},
		{"an authority", forge(t, pemOf, func(c *x509.Certificate) { c.IsCA, c.BasicConstraintsValid = true, true }), "authority"},
	}
	good := source(t, ca, name(identity.Master, "2"))
	for _, tt := range tests {
		// As who calls.
		client := good.ClientTLS(name(identity.Master, ""))
		client.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &tt.cert, nil }
		clientErr, serverErr := shake(client, good.ServerTLS())
		if tt.cert.Certificate == nil {
			if serverErr == nil || clientErr == nil || !strings.Contains(serverErr.Error(), "didn't provide a certificate") {
				t.Errorf("%s: a call: %v, %v", tt.name, clientErr, serverErr)
			}
			continue
		}
		if (serverErr == nil) != (tt.hears == "") || (clientErr == nil) != (tt.hears == "") || (serverErr != nil && !strings.Contains(serverErr.Error(), tt.hears)) {
			t.Errorf("%s: a call: server says %v, client %v, want %q", tt.name, serverErr, clientErr, tt.hears)
		}
		// As who answers.
		server := good.ServerTLS()
		server.GetCertificate = func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return &tt.cert, nil }
		clientErr, _ = shake(good.ClientTLS(name(identity.Master, "1")), server)
		if (clientErr == nil) != (tt.hears == "") || (clientErr != nil && !strings.Contains(clientErr.Error(), tt.hears)) {
			t.Errorf("%s: an answer: client says %v, want %q", tt.name, clientErr, tt.hears)
		}
	}
}

func TestOnlyServersAnswer(t *testing.T) {
	ca := authority(t, "test")
	for _, n := range []identity.Name{name(identity.User, "alice"), name(identity.Scheduler, "1"), name(identity.Task, "a/b/0"), name(identity.Join, "user/a")} {
		err, _ := shake(source(t, ca, name(identity.User, "bob")).ClientTLS(n), source(t, ca, n).ServerTLS())
		if err == nil || !strings.Contains(err.Error(), "not one to answer calls with") {
			t.Errorf("%v answers: %v, want a refusal", n, err)
		}
	}
}

func TestWhoElseAnswers(t *testing.T) {
	ca := authority(t, "test")
	err, _ := shake(source(t, ca, name(identity.User, "bob")).ClientTLS(name(identity.Borglet, "m1")), source(t, ca, name(identity.Borglet, "m2")).ServerTLS())
	var wrong *identity.OtherPeerError
	if !errors.As(err, &wrong) || wrong.Got.ID != "m2" || err.Error() != "borglet m2 answers there, and borglet m1 was expected" {
		t.Errorf("another machine answers: %v", err)
	}
}

func TestOldTLSIsRefused(t *testing.T) {
	ca := authority(t, "test")
	server := source(t, ca, name(identity.Master, "1")).ServerTLS()
	client := source(t, ca, name(identity.User, "a")).ClientTLS(name(identity.Master, ""))
	client.MinVersion, client.MaxVersion = tls.VersionTLS12, tls.VersionTLS12
	if clientErr, serverErr := shake(client, server); clientErr == nil || serverErr == nil || !strings.Contains(serverErr.Error(), "unsupported version") {
		t.Errorf("TLS 1.2: %v, %v, want a refusal", clientErr, serverErr)
	}
}

// TestTwoDaysOfRenewals makes a connection each minute for 48 virtual hours
// between a server and a client who renew, while the authority is replaced on
// the way, the client's clock is 4 minutes ahead, and the authority is out of
// reach for 20 minutes. It is about 2,900 handshakes: none may fail.
func TestTwoDaysOfRenewals(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		first := authority(t, "test")
		var present atomic.Pointer[identity.Authority]
		present.Store(first)
		var renewals, failures atomic.Int64
		away := func() bool { d := time.Since(began); return d > 10*time.Hour && d < 10*time.Hour+20*time.Minute }
		start := func(n identity.Name, skew time.Duration) *identity.Source {
			renew := func(_ context.Context, public ed25519.PublicKey) (*identity.Issued, error) {
				if away() {
					return nil, errors.New("nobody is elected")
				}
				return present.Load().Issue(public, n, time.Now().Add(skew), identity.Life)
			}
			s := identity.NewSource(certify(t, first, n, began.Add(skew), identity.Life), renew, nil)
			s.OnRenew = func(_ *identity.Credential, err error) {
				if renewals.Add(1); err != nil {
					failures.Add(1)
				}
			}
			return s
		}
		ctx, cancel := context.WithCancel(t.Context())
		server, client := start(name(identity.Master, "1"), 0), start(name(identity.User, "alice"), 4*time.Minute)
		var running sync.WaitGroup
		running.Go(func() { server.Run(ctx) })
		running.Go(func() { client.Run(ctx) })
		serverTLS, clientTLS := server.ServerTLS(), client.ClientTLS(name(identity.Master, ""))
		calls, rolled := 0, 0
		for time.Since(began) < 48*time.Hour {
			if err, _ := shake(clientTLS, serverTLS); err != nil {
				t.Fatalf("after %v: %v", time.Since(began), err)
			}
			calls++
			time.Sleep(time.Minute)
			// An authority is replaced in three steps, each after all have renewed:
			// the next one is believed, it issues, the one before is forgotten.
			next := []func(*identity.Authority) (*identity.Authority, error){
				func(a *identity.Authority) (*identity.Authority, error) {
					b, err := a.Successor(time.Now())
					if err == nil {
						successor = b
						b = a.Trusting(b)
					}
					return b, err
				},
				func(*identity.Authority) (*identity.Authority, error) { return successor, nil },
				func(*identity.Authority) (*identity.Authority, error) { return successor.Alone(), nil },
			}
			if rolled < len(next) && time.Since(began) > time.Duration(20+2*rolled)*time.Hour {
				a, err := next[rolled](present.Load())
				if err != nil {
					t.Fatal(err)
				}
				present.Store(a)
				rolled++
			}
		}
		cancel()
		running.Wait()
		if rolled != 3 || failures.Load() == 0 {
			t.Errorf("the authority was replaced in %d steps, %d renewals failed; want 3 and some", rolled, failures.Load())
		}
		t.Logf("%d connections, %d renewals of which %d failed while the authority was out of reach", calls, renewals.Load(), failures.Load())
		// What the first authority issued is worth nothing any more.
		old, err := first.Source(name(identity.User, "alice"), time.Now(), identity.Life)
		if err != nil {
			t.Fatal(err)
		}
		if err, _ := shake(old.ClientTLS(name(identity.Master, "")), serverTLS); err == nil {
			t.Error("a certificate of the authority before is believed")
		}
	})
}

var successor *identity.Authority

func TestARenewalForSomebodyElseIsRefused(t *testing.T) {
	ca := authority(t, "test")
	first := certify(t, ca, name(identity.Borglet, "m1"), time.Now(), identity.Life)
	s := identity.NewSource(first, func(_ context.Context, public ed25519.PublicKey) (*identity.Issued, error) {
		return ca.Issue(public, name(identity.Borglet, "m2"), time.Now(), identity.Life)
	}, nil)
	if _, err := s.RenewNow(t.Context()); err == nil || s.Current() != first {
		t.Errorf("a renewal for another machine: %v", err)
	}
}

func TestFiles(t *testing.T) {
	ca := authority(t, "test")
	path := filepath.Join(t.TempDir(), "identity", "alice.pem")
	c := certify(t, ca, name(identity.User, "alice"), time.Now(), identity.UserLife)
	if err := identity.WriteCredential(path, c); err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(path)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Fatalf("%s has mode %v, %v, want 0600", path, info.Mode(), err)
	}
	got, err := identity.ReadCredential(path)
	if err != nil || got.Name != c.Name || !bytes.Equal(got.Fingerprint(), c.Fingerprint()) {
		t.Errorf("ReadCredential = %v, %v, want %v", got, err, c.Name)
	}
	if err := os.Chmod(path, 0o640); err != nil {
		t.Fatal(err)
	}
	if _, err := identity.ReadCredential(path); err == nil || !strings.Contains(err.Error(), "chmod 600") {
		t.Errorf("a key that others may read: %v, want what to do", err)
	}
	data, err := ca.Encode()
	if err != nil {
		t.Fatal(err)
	}
	if again, err := identity.DecodeAuthority("test", data, rand.Reader); err != nil || again.Cell() != "test" {
		t.Errorf("DecodeAuthority = %v, %v", again, err)
	}
	if _, err := identity.DecodeAuthority("prod", data, rand.Reader); err == nil {
		t.Error("the authority of cell test passes for that of cell prod")
	}
	if _, err := identity.DecodeCredential(data); err == nil {
		t.Error("an authority passes for a certificate of somebody")
	}
}

func TestTokens(t *testing.T) {
	ca := authority(t, "test")
	c := certify(t, ca, name(identity.Borglet, "m1").ToJoin(), time.Now(), identity.TokenLife)
	text := (&identity.Token{Credential: c, Masters: []string{"10.0.0.1:7001", "10.0.0.2:7002"}}).String()
	got, err := identity.ParseToken(text + "\n")
	if err != nil || got.Credential.Name != c.Name || len(got.Masters) != 2 || !bytes.Equal(got.Credential.Fingerprint(), c.Fingerprint()) {
		t.Fatalf("ParseToken = %+v, %v", got, err)
	}
	for cut := range len(text) {
		if _, err := identity.ParseToken(text[:cut]); err == nil {
			t.Errorf("a token cut off after %d of %d bytes is taken", cut, len(text))
		} else if cut > 20 && strings.Contains(err.Error(), text[len(text)/2:len(text)/2+10]) {
			t.Errorf("the error tells the token: %v", err)
		}
	}
	user := certify(t, ca, name(identity.User, "root"), time.Now(), identity.UserLife)
	if _, err := identity.ParseToken((&identity.Token{Credential: user}).String()); err == nil {
		t.Error("the certificate of a user passes for a token")
	}
}

func FuzzParseToken(f *testing.F) {
	ca := authority(f, "test")
	c := certify(f, ca, name(identity.User, "alice").ToJoin(), time.Now(), identity.TokenLife)
	f.Add((&identity.Token{Credential: c, Masters: []string{"a:1"}}).String())
	f.Add("borg-join-")
	f.Fuzz(func(t *testing.T, s string) {
		if token, err := identity.ParseToken(s); err == nil && token.String() != strings.TrimSpace(s) && token.Credential.Name.Role != identity.Join {
			t.Fatalf("ParseToken(%q) = %v", s, token)
		}
	})
}

func TestTheAuthorityIssuesForItsOwnCell(t *testing.T) {
	ca := authority(t, "test")
	if _, err := ca.Certify(identity.Name{Cell: "prod", Role: identity.User, ID: "root"}, time.Now(), time.Hour); err == nil {
		t.Error("the authority of cell test issues for cell prod")
	}
	if _, err := ca.Certify(name(identity.User, "a/../b"), time.Now(), time.Hour); err == nil {
		t.Error("a name that is none is certified")
	}
}
