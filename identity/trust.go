package identity

import (
	"crypto/sha256"
	"crypto/x509"
	"encoding/asn1"
	"fmt"
	"time"
)

// Tolerance is how far apart the clocks of two machines may be.
const Tolerance = 5 * time.Minute

// Trust is whom a cell believes: its authorities.
type Trust struct {
	cell  string
	roots []*x509.Certificate
}

// NewTrust is trust in the authorities of a cell, DER.
func NewTrust(cell string, authorities [][]byte) (*Trust, error) {
	if !isLabel(cell) {
		return nil, fmt.Errorf("the cell %q is not a DNS label", clip(cell))
	}
	t := &Trust{cell: cell}
	for _, der := range authorities {
		c, err := parseCertificate(der)
		if err != nil {
			return nil, err
		}
		if !c.IsCA {
			return nil, fmt.Errorf("the certificate %q is not one of an authority", c.Subject.CommonName)
		}
		t.roots = append(t.roots, c)
	}
	if len(t.roots) == 0 {
		return nil, fmt.Errorf("cell %s has no authority", cell)
	}
	return t, nil
}

// Mark tells these authorities, in this order, from any others: a master and who
// was certified by it compare theirs.
func (t *Trust) Mark() []byte { return markOf(t.roots) }

// markBytes is enough that nobody finds another list with the same mark by chance;
// nothing is believed because of it.
const markBytes = 16

func markOf(certs []*x509.Certificate) []byte {
	h := sha256.New()
	for _, c := range certs {
		h.Write(Fingerprint(c.Raw))
	}
	return h.Sum(nil)[:markBytes]
}

// Cell is whose certificates are believed.
func (t *Trust) Cell() string { return t.cell }

// Use is what a certificate is shown for.
type Use int

// A certificate is shown by who calls, or by who answers.
const (
	ToCall Use = iota
	ToAnswer
)

// BadCertificateError says why a certificate is not believed.
type BadCertificateError struct {
	// Whom it names; zero: it names nobody, or too many.
	Name Name
	Why  string
}

func (e *BadCertificateError) Error() string {
	if e.Name == (Name{}) {
		return e.Why
	}
	return fmt.Sprintf("the certificate of %s %s", e.Name, e.Why)
}

// Verify says whom a certificate names, if it was issued by the cell, is valid
// now, give or take Tolerance, and is meant for this use.
func (t *Trust) Verify(certs []*x509.Certificate, use Use, now time.Time) (Name, error) {
	if len(certs) == 0 {
		return Name{}, &BadCertificateError{Why: "no certificate was shown"}
	}
	leaf := certs[0]
	name, err := NameOf(leaf)
	if err != nil {
		return Name{}, &BadCertificateError{Why: err.Error()}
	}
	bad := func(format string, args ...any) (Name, error) {
		return Name{}, &BadCertificateError{Name: name, Why: fmt.Sprintf(format, args...)}
	}
	clock := func(t time.Time) string { return t.UTC().Format(time.RFC3339) }
	switch {
	case name.Cell != t.cell:
		return bad("is of another cell than %s", t.cell)
	case now.Before(leaf.NotBefore.Add(-Tolerance)):
		return bad("is not valid before %s, and here it is %s: is a clock wrong?", clock(leaf.NotBefore), clock(now))
	case now.After(leaf.NotAfter.Add(Tolerance)):
		return bad("expired at %s, and here it is %s", clock(leaf.NotAfter), clock(now))
	}
	want := x509.ExtKeyUsageClientAuth
	if use == ToAnswer {
		want = x509.ExtKeyUsageServerAuth
	}
	roots := x509.NewCertPool()
	for _, c := range t.roots {
		roots.AddCert(c)
	}
	// Within the tolerance the certificate's own time is the right one.
	at := now
	if at.Before(leaf.NotBefore) {
		at = leaf.NotBefore
	}
	if at.After(leaf.NotAfter) {
		at = leaf.NotAfter
	}
	_, err = leaf.Verify(x509.VerifyOptions{Roots: roots, CurrentTime: at, KeyUsages: []x509.ExtKeyUsage{want}})
	if err != nil {
		if _, ok := err.(x509.CertificateInvalidError); ok && !hasUsage(leaf, want) {
			if use == ToAnswer {
				return bad("is not one to answer calls with")
			}
			return bad("is not one to make calls with")
		}
		if end := t.endOf(leaf); at.After(end) {
			return bad("was issued by an authority of cell %s that ended at %s, and here it is %s", t.cell, clock(end), clock(now))
		}
		return bad("was not issued by the authority of cell %s: %v", t.cell, err)
	}
	if leaf.IsCA {
		return bad("is one of an authority, which calls nobody")
	}
	return name, nil
}

// endOf is when a certificate is not believed any more: at its end, or at that of the
// authority that issued it.
func (t *Trust) endOf(leaf *x509.Certificate) time.Time {
	for _, root := range t.roots {
		if root.NotAfter.Before(leaf.NotAfter) && leaf.CheckSignatureFrom(root) == nil {
			return root.NotAfter
		}
	}
	return leaf.NotAfter
}

func hasUsage(c *x509.Certificate, want x509.ExtKeyUsage) bool {
	for _, u := range c.ExtKeyUsage {
		if u == want || u == x509.ExtKeyUsageAny {
			return true
		}
	}
	return false
}

// oidSubjectAltName is the extension in which a certificate names its subject.
var oidSubjectAltName = asn1.ObjectIdentifier{2, 5, 29, 17}

// tagURI is the choice of a subject's alternative name that is a URI.
const tagURI = 6

// NameOf reads the one name of a certificate: exactly one URI, no other kind of
// name. The bytes are read as they were signed: a parser of URLs would undo
// escapes.
func NameOf(c *x509.Certificate) (Name, error) {
	uri, others, err := uriOf(c)
	if err != nil {
		return Name{}, err
	}
	if others {
		return Name{}, fmt.Errorf("the certificate has a name that is not a URI; want one URI alone")
	}
	return ParseName(uri)
}

// uriOf reads the one URI of a certificate, and whether it has names of other
// kinds.
func uriOf(c *x509.Certificate) (uri string, others bool, err error) {
	var uris []string
	for _, ext := range c.Extensions {
		if !ext.Id.Equal(oidSubjectAltName) {
			continue
		}
		var names asn1.RawValue
		rest, err := asn1.Unmarshal(ext.Value, &names)
		if err != nil || len(rest) > 0 || names.Tag != asn1.TagSequence {
			return "", false, fmt.Errorf("the certificate's names cannot be read")
		}
		for rest = names.Bytes; len(rest) > 0; {
			var one asn1.RawValue
			if rest, err = asn1.Unmarshal(rest, &one); err != nil {
				return "", false, fmt.Errorf("the certificate's names cannot be read")
			}
			if one.Class != asn1.ClassContextSpecific || one.Tag != tagURI {
				others = true
				continue
			}
			uris = append(uris, string(one.Bytes))
		}
	}
	if len(uris) != 1 && !others {
		return "", others, fmt.Errorf("the certificate has %d URIs; want exactly one", len(uris))
	}
	if len(uris) != 1 {
		return "", others, fmt.Errorf("the certificate has a name that is not a URI; want one URI alone")
	}
	return uris[0], others, nil
}
