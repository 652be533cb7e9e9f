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

// TestTwoDaysOfRenewals makes connections each minute for 48 virtual hours between
// a server, a client and a machine who renew, while the authority is replaced on
// the way, one clock is 5 minutes ahead of the others, and the authority is out of
// reach for 20 minutes. It is about 5,700 handshakes: none may fail.
func TestTwoDaysOfRenewals(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		ca := authority(t, "test")
		first, err := ca.Encode()
		if err != nil {
			t.Fatal(err)
		}
		var renewals, failures atomic.Int64
		away := func() bool { d := time.Since(began); return d > 590*time.Minute && d < 610*time.Minute }
		start := func(n identity.Name, skew time.Duration) *identity.Source {
			renew := func(_ context.Context, public ed25519.PublicKey) (*identity.Issued, error) {
				if away() {
					return nil, errors.New("nobody is elected")
				}
				return ca.Issue(public, n, time.Now().Add(skew), identity.Life)
			}
			s := identity.NewSource(certify(t, ca, n, began.Add(skew), identity.Life), renew, nil)
			s.OnRenew = func(_ *identity.Credential, err error) {
				if renewals.Add(1); err != nil {
					failures.Add(1)
				}
			}
			return s
		}
		ctx, cancel := context.WithCancel(t.Context())
		server, client, machine := start(name(identity.Master, "1"), 0), start(name(identity.User, "alice"), 5*time.Minute), start(name(identity.Borglet, "m1"), 0)
		var running sync.WaitGroup
		for _, s := range []*identity.Source{server, client, machine} {
			running.Go(func() { s.Run(ctx) })
		}
		calls, issuers, replaced := 0, make(map[string]bool), false
		for time.Since(began) < 48*time.Hour {
			if err, _ := shake(client.ClientTLS(name(identity.Master, "")), server.ServerTLS()); err != nil {
				t.Fatalf("alice calls after %v: %v", time.Since(began), err)
			}
			if err, _ := shake(server.ClientTLS(name(identity.Borglet, "m1")), machine.ServerTLS()); err != nil {
				t.Fatalf("the master calls after %v: %v", time.Since(began), err)
			}
			calls += 2
			for _, s := range ca.Signers(time.Now()) {
				if s.Issues {
					issuers[string(s.Fingerprint)] = true
				}
			}
			time.Sleep(time.Minute)
			if !replaced && time.Since(began) > 20*time.Hour {
				next, err := ca.Replaced(time.Now(), 2*time.Hour, 3*time.Hour)
				if err != nil {
					t.Fatal(err)
				}
				// What the other masters do when they hear of it, and again: once is enough.
				if !ca.Adopt(next) || ca.Adopt(next) {
					t.Fatal("the next authority was not taken, or twice")
				}
				if _, err := ca.Replaced(time.Now(), 0, 0); err == nil || !strings.Contains(err.Error(), "being replaced already") {
					t.Errorf("it is replaced while it is being replaced: %v", err)
				}
				replaced = true
			}
		}
		cancel()
		running.Wait()
		if len(issuers) != 2 || failures.Load() == 0 {
			t.Errorf("%d authorities have issued, %d renewals failed; want 2 and some", len(issuers), failures.Load())
		}
		t.Logf("%d connections, %d renewals of which %d failed while the authority was out of reach", calls, renewals.Load(), failures.Load())
		// What the first authority issues is worth nothing any more.
		before, err := identity.DecodeAuthority("test", first, rand.Reader)
		if err != nil {
			t.Fatal(err)
		}
		old := source(t, before, name(identity.User, "alice"))
		if err, _ := shake(old.ClientTLS(name(identity.Master, "")), server.ServerTLS()); err == nil {
			t.Error("a certificate of the authority before is believed")
		}
	})
}

// TestAuthoritiesAreReplaced follows one through its file.
func TestAuthoritiesAreReplaced(t *testing.T) {
	now := time.Now()
	ca := authority(t, "test")
	again := func(a *identity.Authority) *identity.Authority {
		t.Helper()
		data, err := a.Encode()
		if err != nil {
			t.Fatal(err)
		}
		b, err := identity.DecodeAuthority("test", data, rand.Reader)
		if err != nil || b.Version().Generation != a.Version().Generation || !bytes.Equal(b.Version().Newest, a.Version().Newest) {
			t.Fatalf("written down and read again: %v, %v", b, err)
		}
		return b
	}
	issued := func(a *identity.Authority, at time.Time) (believed int) {
		t.Helper()
		public, _, _ := ed25519.GenerateKey(rand.Reader)
		is, err := a.Issue(public, name(identity.User, "alice"), at, time.Hour)
		if err != nil {
			t.Fatal(err)
		}
		leaf, _ := x509.ParseCertificate(is.Certificate)
		by, _ := x509.ParseCertificate(is.Authorities[0])
		if err := leaf.CheckSignatureFrom(by); err != nil {
			t.Errorf("the first authority did not issue it: %v", err)
		}
		return len(is.Authorities)
	}
	next, err := ca.Replaced(now, time.Hour, 2*time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	next = again(next)
	for _, tt := range []struct {
		after    time.Duration
		believed int
		issues   int
	}{{0, 2, 0}, {59 * time.Minute, 2, 0}, {61 * time.Minute, 2, 1}, {179 * time.Minute, 2, 1}, {181 * time.Minute, 1, 1}} {
		at := now.Add(tt.after)
		if got := issued(next, at); got != tt.believed || !next.Signers(at)[tt.issues].Issues {
			t.Errorf("after %v %d are believed, want %d, and number %d issues: %v", tt.after, got, tt.believed, tt.issues, next.Signers(at))
		}
	}
	alone := again(next.Alone())
	if issued(alone, now) != 1 || !alone.Later(next) || next.Later(alone) || !next.Later(ca) {
		t.Error("the newest alone is not alone, or not later")
	}
	// Two masters replaced the same: all agree on one of them.
	other, err := ca.Replaced(now, time.Hour, 2*time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	if other.Later(next) == next.Later(other) {
		t.Error("of two authorities none, or each, is the later one")
	}
	data, err := next.Encode()
	if err != nil {
		t.Fatal(err)
	}
	var blocks [][]byte
	for rest := data; ; {
		var block *pem.Block
		if block, rest = pem.Decode(rest); block == nil {
			break
		}
		blocks = append(blocks, pem.EncodeToMemory(block))
	}
	for _, order := range [][]int{{}, {0}, {1}, {1, 3}, {0, 2, 1, 3}, {0, 3}, {0, 1, 2}, {2, 1, 0, 3}} {
		var text []byte
		for _, i := range order {
			text = append(text, blocks[i]...)
		}
		if _, err := identity.DecodeAuthority("test", text, rand.Reader); err == nil {
			t.Errorf("an authority of the blocks %v (key, certificate, key, certificate) is taken", order)
		}
	}
}

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
	text := (&identity.Token{Credential: c, Masters: []string{"10.0.0.1:7001", "10.0.0.2:7002"}}).Text()
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
	if _, err := identity.ParseToken((&identity.Token{Credential: user}).Text()); err == nil {
		t.Error("the certificate of a user passes for a token")
	}
}

func FuzzParseToken(f *testing.F) {
	ca := authority(f, "test")
	c := certify(f, ca, name(identity.User, "alice").ToJoin(), time.Now(), identity.TokenLife)
	f.Add((&identity.Token{Credential: c, Masters: []string{"a:1"}}).Text())
	f.Add("borg-join-")
	f.Fuzz(func(t *testing.T, s string) {
		if token, err := identity.ParseToken(s); err == nil && token.Text() != strings.TrimSpace(s) && token.Credential.Name.Role != identity.Join {
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
