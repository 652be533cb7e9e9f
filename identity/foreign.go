package identity

import (
	"crypto"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
)

// Foreign is other authorities than the cell's own, whose certificates make of who
// calls a user of the cell, and nothing else: never a master, a machine, or one who
// answers. Each has its own way to name users; a certificate is looked at by the
// one whose way its name is, and by no other.
type Foreign struct {
	cell  string
	rules []foreignRule
}

// ForeignRule is one authority, as an operator gives it.
type ForeignRule struct {
	// PEM certificates of it; keys of any kind.
	Certificates []byte
	// The URI in its certificates, with one * where the user's name is. A name that
	// is no DNS label is refused.
	Users string
	// Users who may be named; empty: all.
	Only []string
}

type foreignRule struct {
	roots          *x509.CertPool
	prefix, suffix string
	only           []string
}

// NewForeign checks the rules.
func NewForeign(cell string, rules []ForeignRule) (*Foreign, error) {
	f := &Foreign{cell: cell}
	for i, r := range rules {
		bad := func(format string, args ...any) (*Foreign, error) {
			return nil, fmt.Errorf("authority %d: %s", i+1, fmt.Sprintf(format, args...))
		}
		certs, err := parseChain(r.Certificates)
		if err != nil {
			return bad("%v", err)
		}
		if len(certs) == 0 {
			return bad("it has no certificate")
		}
		prefix, suffix, ok := strings.Cut(r.Users, "*")
		switch {
		case !ok || strings.Contains(suffix, "*") || !strings.Contains(prefix, "://"):
			return bad("users: %q: want the URI of its users with one * for the name, such as spiffe://corp.example/people/*", clip(r.Users))
		case strings.HasPrefix(prefix, scheme+cell+"/") || strings.HasPrefix(scheme+cell+"/", prefix):
			return bad("users: %q: names in this cell are its own authority's to give", clip(r.Users))
		}
		rule := foreignRule{roots: x509.NewCertPool(), prefix: prefix, suffix: suffix, only: r.Only}
		for _, c := range certs {
			if !c.IsCA {
				return bad("the certificate %q is not one of an authority", clip(c.Subject.CommonName))
			}
			rule.roots.AddCert(c)
		}
		for _, other := range f.rules {
			if strings.HasPrefix(prefix, other.prefix) || strings.HasPrefix(other.prefix, prefix) {
				return bad("users: %q: a name could be another authority's too", clip(r.Users))
			}
		}
		for _, user := range r.Only {
			if !isLabel(user) {
				return bad("only: %q is no name of a user", clip(user))
			}
		}
		f.rules = append(f.rules, rule)
	}
	return f, nil
}

// rule is the one whose names a certificate has; nil: none.
func (f *Foreign) rule(leaf *x509.Certificate) (*foreignRule, string) {
	uri, _, err := uriOf(leaf)
	if err != nil || len(uri) > maxNameBytes {
		return nil, ""
	}
	for i := range f.rules {
		if r := &f.rules[i]; strings.HasPrefix(uri, r.prefix) {
			return r, uri
		}
	}
	return nil, ""
}

// claims says whether certificates are for another authority to vouch for.
func (f *Foreign) claims(certs []*x509.Certificate) bool {
	if f == nil || len(certs) == 0 {
		return false
	}
	r, _ := f.rule(certs[0])
	return r != nil
}

// Verify says which user a certificate makes of who calls with it, if it is valid
// now, give or take Tolerance.
func (f *Foreign) Verify(certs []*x509.Certificate, now time.Time) (Name, error) {
	if len(certs) == 0 {
		return Name{}, &BadCertificateError{Why: "no certificate was shown"}
	}
	leaf := certs[0]
	r, uri := f.rule(leaf)
	if r == nil {
		return Name{}, &BadCertificateError{Why: "no authority that the cell believes gives such names"}
	}
	bad := func(format string, args ...any) (Name, error) {
		return Name{}, &BadCertificateError{Why: fmt.Sprintf("the certificate of %q ", clip(uri)) + fmt.Sprintf(format, args...)}
	}
	user, ok := strings.CutSuffix(strings.TrimPrefix(uri, r.prefix), r.suffix)
	if !ok || !isLabel(user) {
		return bad("names no user: want a DNS label between %q and %q", r.prefix, r.suffix)
	}
	if len(r.only) > 0 && !slices.Contains(r.only, user) {
		return bad("names user %s, who is not among those that its authority may name here", user)
	}
	if err := f.verify(r, certs, now); err != nil {
		return bad("%v", err)
	}
	return Name{Cell: f.cell, Role: User, ID: user}, nil
}

func (f *Foreign) verify(r *foreignRule, certs []*x509.Certificate, now time.Time) error {
	leaf := certs[0]
	switch {
	case now.Before(leaf.NotBefore.Add(-Tolerance)):
		return fmt.Errorf("is not valid before %s, and here it is %s: is a clock wrong?", leaf.NotBefore.UTC().Format(time.RFC3339), now.UTC().Format(time.RFC3339))
	case now.After(leaf.NotAfter.Add(Tolerance)):
		return fmt.Errorf("expired at %s, and here it is %s", leaf.NotAfter.UTC().Format(time.RFC3339), now.UTC().Format(time.RFC3339))
	case leaf.IsCA:
		return errors.New("is one of an authority, which calls nobody")
	}
	between := x509.NewCertPool()
	for _, c := range certs[1:] {
		between.AddCert(c)
	}
	at := now
	if at.Before(leaf.NotBefore) {
		at = leaf.NotBefore
	}
	if at.After(leaf.NotAfter) {
		at = leaf.NotAfter
	}
	_, err := leaf.Verify(x509.VerifyOptions{Roots: r.roots, Intermediates: between, CurrentTime: at, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}})
	if err != nil {
		return fmt.Errorf("was not issued by the authority of such names: %w", err)
	}
	return nil
}

// parseChain reads PEM certificates with keys of any kind.
func parseChain(data []byte) (certs []*x509.Certificate, err error) {
	if len(data) > maxPEMBytes {
		return nil, fmt.Errorf("%d bytes; at most %d", len(data), maxPEMBytes)
	}
	for {
		var block *pem.Block
		if block, data = pem.Decode(data); block == nil {
			return certs, nil
		}
		if block.Type != certBlock {
			continue
		}
		c, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil, fmt.Errorf("a certificate that cannot be read: %w", err)
		}
		certs = append(certs, c)
	}
}

// What the file of a credential that another authority issued says beside its
// certificates.
const (
	nameHeader  = "Name"
	chainHeader = "Chain"
)

// NewForeignCredential is who somebody is by what another authority issued: the
// PEM of a certificate with what leads up to it, and of its key. The masters are
// believed by the authorities of their cell, PEM too.
func NewForeignCredential(name Name, chain, key, authorities []byte) (*Credential, error) {
	pair, err := tls.X509KeyPair(chain, key)
	if err != nil {
		return nil, fmt.Errorf("the certificate and its key: %w", err)
	}
	signer, ok := pair.PrivateKey.(crypto.Signer)
	if !ok {
		return nil, errors.New("the key is not one to sign with")
	}
	hidden := hideSigner(signer)
	pair.PrivateKey = hidden
	certs, err := parseChain(authorities)
	if err != nil {
		return nil, fmt.Errorf("the authorities of cell %s: %w", name.Cell, err)
	}
	var issued [][]byte
	for _, c := range certs {
		issued = append(issued, c.Raw)
	}
	trust, err := NewTrust(name.Cell, issued)
	if err != nil {
		return nil, err
	}
	return &Credential{Name: name, Trust: trust, key: hidden, leaf: pair.Leaf, expires: pair.Leaf.NotAfter, tls: &pair, foreign: true}, nil
}

// As is the same credential of whom the masters say it is.
func (c *Credential) As(name Name) *Credential {
	named := *c
	named.Name = name
	return &named
}

func (c *Credential) encodeForeign() ([]byte, error) {
	der, err := x509.MarshalPKCS8PrivateKey(c.key.signer())
	if err != nil {
		return nil, err
	}
	data := pem.EncodeToMemory(&pem.Block{Type: keyBlock, Bytes: der})
	for i, der := range c.tls.Certificate {
		headers := map[string]string{chainHeader: "yes"}
		if i == 0 {
			headers = map[string]string{nameHeader: c.Name.String()}
		}
		data = append(data, pem.EncodeToMemory(&pem.Block{Type: certBlock, Headers: headers, Bytes: der})...)
	}
	for _, root := range c.Trust.roots {
		data = append(data, pem.EncodeToMemory(&pem.Block{Type: certBlock, Bytes: root.Raw})...)
	}
	return data, nil
}

// isForeign tells the file of a credential that another authority issued.
func isForeign(data []byte) bool {
	for {
		var block *pem.Block
		if block, data = pem.Decode(data); block == nil {
			return false
		}
		if block.Headers[nameHeader] != "" {
			return true
		}
	}
}

func decodeForeign(data []byte) (*Credential, error) {
	if len(data) > maxPEMBytes {
		return nil, fmt.Errorf("%d bytes; at most %d", len(data), maxPEMBytes)
	}
	var name Name
	var key, chain, authorities []byte
	for {
		var block *pem.Block
		if block, data = pem.Decode(data); block == nil {
			break
		}
		headers := block.Headers
		block.Headers = nil
		text := pem.EncodeToMemory(block)
		switch {
		case block.Type == keyBlock:
			key = append(key, text...)
		case headers[nameHeader] != "":
			var err error
			if name, err = ParseName(headers[nameHeader]); err != nil {
				return nil, err
			}
			chain = append(chain, text...)
		case headers[chainHeader] != "":
			chain = append(chain, text...)
		default:
			authorities = append(authorities, text...)
		}
	}
	return NewForeignCredential(name, chain, key, authorities)
}

// CellOf says of which cell the certificates of an authority are, PEM.
func CellOf(authorities []byte) (string, error) {
	certs, err := parseChain(authorities)
	if err != nil {
		return "", err
	}
	for _, c := range certs {
		if cell, ok := strings.CutPrefix(c.Subject.CommonName, "authority of cell "); ok && c.IsCA && isLabel(cell) {
			return cell, nil
		}
	}
	return "", errors.New("it holds no certificate of a cell's authority")
}
