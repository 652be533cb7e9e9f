package identity_test

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net/url"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"borg/identity"
)

// corp is an authority that is not a cell's.
type corp struct {
	t    *testing.T
	key  crypto.Signer
	cert *x509.Certificate
}

func newCorp(t *testing.T, key crypto.Signer) *corp {
	t.Helper()
	c := &corp{t: t, key: key}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "corp"}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign}
	c.cert = c.sign(template, template, key.Public())
	return c
}

func (c *corp) sign(template, parent *x509.Certificate, public crypto.PublicKey) *x509.Certificate {
	c.t.Helper()
	der, err := x509.CreateCertificate(rand.Reader, template, parent, public, c.key)
	if err != nil {
		c.t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		c.t.Fatal(err)
	}
	return cert
}

func certPEM(c *x509.Certificate) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: c.Raw})
}

// issue returns the PEM of a certificate and its key.
func (c *corp) issue(uri string, change func(*x509.Certificate)) (chain, key []byte) {
	c.t.Helper()
	own, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		c.t.Fatal(err)
	}
	u, err := url.Parse(uri)
	if err != nil {
		c.t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(2), NotBefore: time.Now().Add(-time.Minute), NotAfter: time.Now().Add(time.Hour),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth},
		URIs: []*url.URL{u}, EmailAddresses: []string{"a@corp.example"}}
	if change != nil {
		change(template)
	}
	der, err := x509.MarshalPKCS8PrivateKey(own)
	if err != nil {
		c.t.Fatal(err)
	}
	return certPEM(c.sign(template, c.cert, own.Public())), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})
}

// TestForeignUsers shows certificates of another authority to a master that lets it
// name users: they are users of the cell, and nothing else.
func TestForeignUsers(t *testing.T) {
	ca := authority(t, "test")
	ecKey, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	_, edKey, _ := ed25519.GenerateKey(rand.Reader)
	ours, other := newCorp(t, ecKey), newCorp(t, edKey)
	foreign, err := identity.NewForeign("test", []identity.ForeignRule{
		{Certificates: certPEM(ours.cert), Users: "spiffe://corp.example/people/*"},
		{Certificates: certPEM(other.cert), Users: "https://partner.example/*/id", Only: []string{"zoe"}},
	})
	if err != nil {
		t.Fatal(err)
	}
	master := source(t, ca, name(identity.Master, "1"))
	master.Foreign = foreign
	// The certificates of the cell's authority, as people have them.
	var authorities []byte
	for _, s := range ca.Signers(time.Now()) {
		authorities = append(authorities, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate})...)
	}
	for _, tt := range []struct {
		what   string
		by     *corp
		uri    string
		change func(*x509.Certificate)
		user   string
		hears  string
	}{
		{"a user", ours, "spiffe://corp.example/people/alice", nil, "alice", ""},
		{"one of the partner's", other, "https://partner.example/zoe/id", nil, "zoe", ""},
		{"one whom the partner may not name", other, "https://partner.example/alice/id", nil, "", "not among those"},
		{"another's name", other, "spiffe://corp.example/people/alice", nil, "", "was not issued by"},
		{"an admin of the cell", ours, "spiffe://test/user/root", nil, "", "a name that is not a URI"},
		{"a master of the cell", ours, "spiffe://test/master/1", func(c *x509.Certificate) { c.EmailAddresses = nil }, "", "key; a cell's are Ed25519|was not issued by|unknown authority"},
		{"nobody's name", ours, "spiffe://corp.example/robots/r2", nil, "", "a name that is not a URI"},
		{"no label", ours, "spiffe://corp.example/people/Alice", nil, "", "names no user"},
		{"more than a name", ours, "spiffe://corp.example/people/alice/admin", nil, "", "names no user"},
		{"escaped", ours, "spiffe://corp.example/people/%61lice", nil, "", "names no user"},
		{"expired", ours, "spiffe://corp.example/people/alice", func(c *x509.Certificate) { c.NotAfter = time.Now().Add(-6 * time.Minute) }, "", "expired"},
		{"early", ours, "spiffe://corp.example/people/alice", func(c *x509.Certificate) { c.NotBefore = time.Now().Add(6 * time.Minute) }, "", "not valid before"},
		{"not to call with", ours, "spiffe://corp.example/people/alice", func(c *x509.Certificate) { c.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageCodeSigning} }, "", "was not issued by"},
		{"an authority", ours, "spiffe://corp.example/people/alice", func(c *x509.Certificate) { c.IsCA, c.BasicConstraintsValid = true, true }, "", "is one of an authority"},
		{"two names", ours, "spiffe://corp.example/people/alice", func(c *x509.Certificate) { c.URIs = append(c.URIs, c.URIs[0]) }, "", "want one URI alone"},
	} {
		chain, key := tt.by.issue(tt.uri, tt.change)
		c, err := identity.NewForeignCredential(name(identity.User, "whoever"), chain, key, authorities)
		if err != nil {
			t.Fatalf("%s: %v", tt.what, err)
		}
		client := identity.NewSource(c, nil, nil)
		var shown []*x509.Certificate
		server := master.ServerTLS()
		verify := server.VerifyConnection
		server.VerifyConnection = func(cs tls.ConnectionState) error { shown = cs.PeerCertificates; return verify(cs) }
		clientErr, serverErr := shake(client.ClientTLS(name(identity.Master, "1")), server)
		if tt.user == "" {
			heard := false
			for want := range strings.SplitSeq(tt.hears, "|") {
				heard = heard || serverErr != nil && strings.Contains(serverErr.Error(), want)
			}
			if !heard || clientErr == nil {
				t.Errorf("%s: server says %v, client %v, want %q", tt.what, serverErr, clientErr, tt.hears)
			}
			continue
		}
		if clientErr != nil || serverErr != nil {
			t.Errorf("%s: %v, %v", tt.what, clientErr, serverErr)
			continue
		}
		if who, isForeign, err := master.WhoCalls(shown, time.Now()); who != name(identity.User, tt.user) || !isForeign || err != nil {
			t.Errorf("%s is %v (foreign: %v), %v, want user %s", tt.what, who, isForeign, err, tt.user)
		}
		// A master without that word does not believe it, and nobody believes it of
		// who answers.
		if _, err := shake(client.ClientTLS(name(identity.Master, "1")), source(t, ca, name(identity.Master, "1")).ServerTLS()); err == nil {
			t.Errorf("%s is believed by a master that was told nothing of it", tt.what)
		}
		if err, _ := shake(master.ClientTLS(name(identity.User, tt.user)), client.ServerTLS()); err == nil {
			t.Errorf("%s answers", tt.what)
		}
		// It is kept in a file, and is the same afterwards.
		path := filepath.Join(t.TempDir(), "c.pem")
		if err := identity.WriteCredential(path, c.As(name(identity.User, tt.user))); err != nil {
			t.Fatal(err)
		}
		again, err := identity.ReadCredential(path)
		if err != nil || again.Name != name(identity.User, tt.user) || !again.Foreign() {
			t.Fatalf("%s, written down and read again: %v, %v", tt.what, again, err)
		}
		if clientErr, serverErr := shake(identity.NewSource(again, nil, nil).ClientTLS(name(identity.Master, "1")), master.ServerTLS()); clientErr != nil || serverErr != nil {
			t.Errorf("%s, read again: %v, %v", tt.what, clientErr, serverErr)
		}
	}
	// The cell's own are what they were.
	if who, isForeign, err := master.WhoCalls([]*x509.Certificate{source(t, ca, name(identity.User, "bob")).Current().TLS().Leaf}, time.Now()); who != name(identity.User, "bob") || isForeign || err != nil {
		t.Errorf("bob of the cell is %v (foreign: %v), %v", who, isForeign, err)
	}
}

func TestForeignRulesAreChecked(t *testing.T) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	c := newCorp(t, key)
	leaf, _ := c.issue("spiffe://corp.example/people/alice", nil)
	good := identity.ForeignRule{Certificates: certPEM(c.cert), Users: "spiffe://corp.example/people/*"}
	for _, tt := range []struct {
		rule identity.ForeignRule
		want string
	}{
		{identity.ForeignRule{Users: good.Users}, "no certificate"},
		{identity.ForeignRule{Certificates: leaf, Users: good.Users}, "not one of an authority"},
		{identity.ForeignRule{Certificates: good.Certificates, Users: "spiffe://test/user/*"}, "its own authority's"},
		{identity.ForeignRule{Certificates: good.Certificates, Users: "spiffe://*"}, "its own authority's"},
		{identity.ForeignRule{Certificates: good.Certificates, Users: "*"}, "with one *"},
		{identity.ForeignRule{Certificates: good.Certificates, Users: "spiffe://corp.example/people"}, "with one *"},
		{identity.ForeignRule{Certificates: good.Certificates, Users: "spiffe://a/*/b/*"}, "with one *"},
		{identity.ForeignRule{Certificates: good.Certificates, Users: "spiffe://b/*", Only: []string{"Root"}}, "no name of a user"},
		{good, "another authority's too"},
	} {
		if _, err := identity.NewForeign("test", []identity.ForeignRule{good, tt.rule}); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%+v: %v, want %q", tt.rule.Users, err, tt.want)
		}
	}
}
