package identity

import (
	"bytes"
	"crypto/ed25519"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net/url"
	"time"
)

// How long certificates live.
const (
	// Of programs: renewed at half of it, by themselves.
	Life = time.Hour
	// Of borglets. Masters renew them, and an outage of all masters must not make
	// strangers of all machines. What a borglet's is good for, the cell decides at
	// each use: whether that machine is one of its own.
	BorgletLife = 7 * 24 * time.Hour
	// Of people: a working day. borgcfg renews it while it is used.
	UserLife = 16 * time.Hour
	// Of a token, from when it is made until it must have been used.
	TokenLife = time.Hour
	// Of an authority.
	authorityLife = 10 * 365 * 24 * time.Hour
	// An authority counts from a little earlier than it was made, so that a
	// machine whose clock is behind believes it.
	authorityHeadStart = time.Hour
)

// LifeOf is how long a certificate of a role lives.
func LifeOf(r Role) time.Duration {
	switch r {
	case User:
		return UserLife
	case Borglet:
		return BorgletLife
	case Join:
		return TokenLife
	}
	return Life
}

// Authority is a cell's own: it issues the certificates of that cell and of no
// other. It is a secret that the masters alone have.
type Authority struct {
	cell string
	key  ed25519.PrivateKey
	// The first is the one that belongs to key. Others are trusted too: the one
	// before it, whose certificates have not all run out, or the next one.
	certs []*x509.Certificate
	rand  io.Reader
}

// NewAuthority makes the authority of a new cell.
func NewAuthority(cell string, now time.Time, rand io.Reader) (*Authority, error) {
	if !isLabel(cell) {
		return nil, fmt.Errorf("make the authority of cell %q: want a DNS label", clip(cell))
	}
	a := &Authority{cell: cell, rand: rand}
	if err := a.sign(now); err != nil {
		return nil, fmt.Errorf("make the authority of cell %s: %w", cell, err)
	}
	return a, nil
}

// Successor is an authority with a new key that trusts this one's certificates
// too. Everybody must have heard of it before it issues any.
func (a *Authority) Successor(now time.Time) (*Authority, error) {
	next := &Authority{cell: a.cell, rand: a.rand}
	if err := next.sign(now); err != nil {
		return nil, fmt.Errorf("make the next authority of cell %s: %w", a.cell, err)
	}
	next.certs = append(next.certs, a.certs...)
	return next, nil
}

// Trusting is the same authority that trusts those of another one as well.
func (a *Authority) Trusting(other *Authority) *Authority {
	both := *a
	both.certs = append(append([]*x509.Certificate{}, a.certs...), other.certs...)
	return &both
}

// Alone is the same authority that trusts no other.
func (a *Authority) Alone() *Authority {
	alone := *a
	alone.certs = a.certs[:1]
	return &alone
}

// sign makes the key and the certificate that vouches for itself.
func (a *Authority) sign(now time.Time) error {
	public, key, err := ed25519.GenerateKey(a.rand)
	if err != nil {
		return err
	}
	serial, err := a.serial()
	if err != nil {
		return err
	}
	cert := &x509.Certificate{
		SerialNumber: serial, Subject: pkix.Name{CommonName: "authority of cell " + a.cell},
		NotBefore: now.Add(-authorityHeadStart), NotAfter: now.Add(authorityLife),
		IsCA: true, BasicConstraintsValid: true, MaxPathLenZero: true,
		KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(a.rand, cert, cert, public, key)
	if err != nil {
		return err
	}
	signed, err := x509.ParseCertificate(der)
	if err != nil {
		return err
	}
	a.key, a.certs = key, []*x509.Certificate{signed}
	return nil
}

func (a *Authority) serial() (*big.Int, error) {
	var b [16]byte
	if _, err := io.ReadFull(a.rand, b[:]); err != nil {
		return nil, err
	}
	// Positive, and never shorter than it looks.
	b[0] = b[0]&0x7f | 0x40
	return new(big.Int).SetBytes(b[:]), nil
}

// Cell is whose authority it is.
func (a *Authority) Cell() string { return a.cell }

// Trust is what everybody of the cell needs to verify its certificates.
func (a *Authority) Trust() *Trust { return &Trust{cell: a.cell, roots: a.certs} }

// Issue certifies that whoever has the key of public is name.
func (a *Authority) Issue(public ed25519.PublicKey, name Name, now time.Time, life time.Duration) (*Issued, error) {
	if err := name.Check(); err != nil {
		return nil, fmt.Errorf("issue a certificate: %w", err)
	}
	if name.Cell != a.cell {
		return nil, fmt.Errorf("issue a certificate for %s: this is the authority of cell %s", name, a.cell)
	}
	if len(public) != ed25519.PublicKeySize {
		return nil, fmt.Errorf("issue a certificate for %s: the public key has %d bytes, want the %d of an Ed25519 key", name, len(public), ed25519.PublicKeySize)
	}
	serial, err := a.serial()
	if err != nil {
		return nil, fmt.Errorf("issue a certificate for %s: %w", name, err)
	}
	cert := &x509.Certificate{
		SerialNumber: serial, NotBefore: now.UTC(), NotAfter: now.Add(life).UTC(),
		KeyUsage: x509.KeyUsageDigitalSignature, BasicConstraintsValid: true,
		ExtKeyUsage: usages(name.Role), URIs: []*url.URL{{Scheme: "spiffe", Host: name.Cell, Path: "/" + string(name.Role) + "/" + name.ID}},
	}
	der, err := x509.CreateCertificate(a.rand, cert, a.certs[0], public, a.key)
	if err != nil {
		return nil, fmt.Errorf("issue a certificate for %s: %w", name, err)
	}
	issued := &Issued{Certificate: der}
	for _, c := range a.certs {
		issued.Authorities = append(issued.Authorities, c.Raw)
	}
	return issued, nil
}

// usages: only those who listen may answer as a server.
func usages(r Role) []x509.ExtKeyUsage {
	if r == Master || r == Borglet {
		return []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}
	}
	return []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}
}

// Issued is what an authority answers. DER.
type Issued struct {
	Certificate []byte
	// All that the cell trusts.
	Authorities [][]byte
}

const (
	keyBlock  = "PRIVATE KEY"
	certBlock = "CERTIFICATE"
	// Larger files are not ours.
	maxPEMBytes = 64 << 10
)

// Encode writes the authority down, with its key.
func (a *Authority) Encode() ([]byte, error) { return encodePEM(a.key, a.certs...) }

// DecodeAuthority reads what Encode wrote.
func DecodeAuthority(cell string, data []byte, rand io.Reader) (*Authority, error) {
	key, certs, err := decodePEM(data)
	if err != nil {
		return nil, fmt.Errorf("read the authority of cell %s: %w", cell, err)
	}
	if !isLabel(cell) || len(certs) == 0 || !certs[0].IsCA || !bytes.Equal(certs[0].PublicKey.(ed25519.PublicKey), key.Public().(ed25519.PublicKey)) {
		return nil, fmt.Errorf("read the authority of cell %s: the key and the first certificate do not belong together", cell)
	}
	if want := "authority of cell " + cell; certs[0].Subject.CommonName != want {
		return nil, fmt.Errorf("read the authority of cell %s: it is the %q", cell, certs[0].Subject.CommonName)
	}
	return &Authority{cell: cell, key: key, certs: certs, rand: rand}, nil
}

func encodePEM(key ed25519.PrivateKey, certs ...*x509.Certificate) ([]byte, error) {
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, err
	}
	data := pem.EncodeToMemory(&pem.Block{Type: keyBlock, Bytes: der})
	for _, c := range certs {
		data = append(data, pem.EncodeToMemory(&pem.Block{Type: certBlock, Bytes: c.Raw})...)
	}
	return data, nil
}

// decodePEM reads one key and certificates, all Ed25519.
func decodePEM(data []byte) (ed25519.PrivateKey, []*x509.Certificate, error) {
	if len(data) > maxPEMBytes {
		return nil, nil, fmt.Errorf("%d bytes; at most %d", len(data), maxPEMBytes)
	}
	var key ed25519.PrivateKey
	var certs []*x509.Certificate
	for {
		var block *pem.Block
		if block, data = pem.Decode(data); block == nil {
			break
		}
		switch block.Type {
		case keyBlock:
			k, err := x509.ParsePKCS8PrivateKey(block.Bytes)
			own, ok := k.(ed25519.PrivateKey)
			if err != nil || !ok || key != nil {
				return nil, nil, errors.New("want one private key, Ed25519")
			}
			key = own
		case certBlock:
			c, err := parseCertificate(block.Bytes)
			if err != nil {
				return nil, nil, err
			}
			certs = append(certs, c)
		default:
			return nil, nil, fmt.Errorf("a PEM block %q", clip(block.Type))
		}
	}
	if key == nil {
		return nil, nil, errors.New("it holds no private key")
	}
	return key, certs, nil
}

// parseCertificate reads one whose key is of the one kind that a cell uses.
func parseCertificate(der []byte) (*x509.Certificate, error) {
	c, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, fmt.Errorf("a certificate that cannot be read: %w", err)
	}
	if _, ok := c.PublicKey.(ed25519.PublicKey); !ok {
		return nil, fmt.Errorf("a certificate with a %v key; a cell's are Ed25519", c.PublicKeyAlgorithm)
	}
	return c, nil
}
