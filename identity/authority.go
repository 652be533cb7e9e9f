package identity

import (
	"bytes"
	"crypto"
	"crypto/ed25519"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net/url"
	"slices"
	"strconv"
	"sync"
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
// other. It is a secret that the masters alone have. It may be replaced while it is
// used: everybody hears of the next one with his next certificate, then it issues,
// and after a time the one before is not believed any more. What is when is fixed
// at the beginning, so that all masters do the same without another word.
type Authority struct {
	cell string
	rand io.Reader

	mu sync.RWMutex
	// Oldest first; at least one has a key and issues. Guarded by mu; what it
	// points to is not changed.
	signers []signer
	// Counts what was done to it: of two copies the later one is right. Guarded by
	// mu.
	generation uint64
}

// signer is one key of an authority.
type signer struct {
	key  *privateKey
	cert *x509.Certificate
	// It issues from then on; zero: it always did.
	from time.Time
	// It is not believed from then on; zero: it is until it runs out.
	until time.Time
}

// NewAuthority makes the authority of a new cell.
func NewAuthority(cell string, now time.Time, rand io.Reader) (*Authority, error) {
	if !isLabel(cell) {
		return nil, fmt.Errorf("make the authority of cell %q: want a DNS label", clip(cell))
	}
	a := &Authority{cell: cell, rand: rand, generation: 1}
	first, err := a.newSigner(now)
	if err != nil {
		return nil, fmt.Errorf("make the authority of cell %s: %w", cell, err)
	}
	a.signers = []signer{first}
	return a, nil
}

// Replaced is a copy with a new key, which issues after wait; overlap later the
// present ones are not believed any more. Everybody must renew his certificate
// during wait, to hear of the new one, and again during overlap. The wait is at most
// half of what is left of the key that issues: both must live for a time.
func (a *Authority) Replaced(now time.Time, wait, overlap time.Duration) (*Authority, error) {
	a.mu.RLock()
	defer a.mu.RUnlock()
	if wait < 0 || overlap < 0 {
		return nil, fmt.Errorf("replace the authority of cell %s: a time is negative", a.cell)
	}
	next, err := a.newSigner(now)
	if err != nil {
		return nil, fmt.Errorf("make the next authority of cell %s: %w", a.cell, err)
	}
	end := a.issuer(now).end()
	if !now.Before(end) {
		return nil, &EndedError{Cell: a.cell, Ended: end}
	}
	next.from = now.Add(min(wait, end.Sub(now)/2)).UTC().Truncate(time.Second)
	until := next.from.Add(overlap)
	b := &Authority{cell: a.cell, rand: a.rand, generation: a.generation + 1}
	for _, s := range a.signers {
		if s.from.After(now) {
			return nil, fmt.Errorf("the authority of cell %s is being replaced already: the next one issues from %s on", a.cell, s.from.Format(time.RFC3339))
		}
		if !s.until.IsZero() && !s.until.After(now) {
			continue
		}
		if s.until.IsZero() || s.until.After(until) {
			s.until = until
		}
		b.signers = append(b.signers, s)
	}
	b.signers = append(b.signers, next)
	return b, nil
}

// Alone is a copy that has the newest key alone: it issues at once, and what others
// issued is not believed any more.
func (a *Authority) Alone() *Authority {
	a.mu.RLock()
	defer a.mu.RUnlock()
	last := a.signers[len(a.signers)-1]
	last.from, last.until = time.Time{}, time.Time{}
	return &Authority{cell: a.cell, rand: a.rand, generation: a.generation + 1, signers: []signer{last}}
}

// Adopt makes a what b is, if b is later; otherwise it says false.
func (a *Authority) Adopt(b *Authority) bool {
	if !b.Later(a) || a.cell != b.cell {
		return false
	}
	b.mu.RLock()
	signers, generation := b.signers, b.generation
	b.mu.RUnlock()
	a.mu.Lock()
	defer a.mu.Unlock()
	a.signers, a.generation = signers, generation
	return true
}

// Later says whether a is what b became, or may become: of two copies that were
// made of the same one, one is later, and all agree which.
func (a *Authority) Later(b *Authority) bool { return a.Version().Later(b.Version()) }

// Version tells copies of an authority apart.
type Version struct {
	Generation uint64
	// Fingerprint of the newest key's certificate.
	Newest []byte
}

// Version is the present one.
func (a *Authority) Version() Version {
	a.mu.RLock()
	defer a.mu.RUnlock()
	return Version{a.generation, Fingerprint(a.signers[len(a.signers)-1].cert.Raw)}
}

// Later says whether whoever has v need not look at w.
func (v Version) Later(w Version) bool {
	return v.Generation > w.Generation || v.Generation == w.Generation && bytes.Compare(v.Newest, w.Newest) > 0
}

// issuer is the newest that issues by now. The caller holds mu.
func (a *Authority) issuer(now time.Time) signer {
	for _, s := range slices.Backward(a.signers) {
		if s.key != nil && !s.from.After(now) {
			return s
		}
	}
	// All are of the future: a clock is wrong, and the oldest is believed longest.
	return a.signers[slices.IndexFunc(a.signers, func(s signer) bool { return s.key != nil })]
}

// believed are the certificates that are believed now, that of the issuer first.
// The caller holds mu.
func (a *Authority) believed(now time.Time) []*x509.Certificate {
	issuer := a.issuer(now)
	certs := []*x509.Certificate{issuer.cert}
	for _, s := range slices.Backward(a.signers) {
		if s.cert != issuer.cert && (s.until.IsZero() || s.until.After(now)) {
			certs = append(certs, s.cert)
		}
	}
	return certs
}

// Mark is that of the Trust which comes with what is issued now.
func (a *Authority) Mark(now time.Time) []byte {
	a.mu.RLock()
	defer a.mu.RUnlock()
	return markOf(a.believed(now))
}

// newSigner makes a key and the certificate that vouches for itself.
func (a *Authority) newSigner(now time.Time) (signer, error) {
	public, key, err := ed25519.GenerateKey(a.rand)
	if err != nil {
		return signer{}, err
	}
	serial, err := a.serial()
	if err != nil {
		return signer{}, err
	}
	cert := &x509.Certificate{
		SerialNumber: serial, Subject: pkix.Name{CommonName: "authority of cell " + a.cell},
		NotBefore: now.Add(-authorityHeadStart), NotAfter: now.Add(authorityLife),
		IsCA: true, BasicConstraintsValid: true, MaxPathLenZero: true,
		KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(a.rand, cert, cert, public, key)
	if err != nil {
		return signer{}, err
	}
	signed, err := x509.ParseCertificate(der)
	if err != nil {
		return signer{}, err
	}
	return signer{key: hide(key), cert: signed}, nil
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
	a.mu.RLock()
	by, believed := a.issuer(now), a.believed(now)
	a.mu.RUnlock()
	if end := by.end(); !now.Before(end) {
		return nil, &EndedError{Cell: a.cell, Ended: end}
	}
	der, err := x509.CreateCertificate(a.rand, cert, by.cert, public, by.key)
	if err != nil {
		return nil, fmt.Errorf("issue a certificate for %s: %w", name, err)
	}
	issued := &Issued{Certificate: der}
	for _, c := range believed {
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

// What an authority's file says of a key, beside the certificate that follows it.
const (
	fromHeader       = "Issues-From"
	untilHeader      = "Believed-Until"
	generationHeader = "Generation"
)

// Encode writes the authority down, with its keys: each before its certificate.
func (a *Authority) Encode() ([]byte, error) {
	a.mu.RLock()
	defer a.mu.RUnlock()
	var data []byte
	for i, s := range a.signers {
		if s.key != nil {
			der, err := x509.MarshalPKCS8PrivateKey(s.key.signer())
			if err != nil {
				return nil, err
			}
			data = append(data, pem.EncodeToMemory(&pem.Block{Type: keyBlock, Bytes: der})...)
		}
		headers := map[string]string{}
		if i == 0 && a.generation > 1 {
			headers[generationHeader] = strconv.FormatUint(a.generation, 10)
		}
		if !s.from.IsZero() {
			headers[fromHeader] = s.from.Format(time.RFC3339)
		}
		if !s.until.IsZero() {
			headers[untilHeader] = s.until.Format(time.RFC3339)
		}
		data = append(data, pem.EncodeToMemory(&pem.Block{Type: certBlock, Headers: headers, Bytes: s.cert.Raw})...)
	}
	return data, nil
}

// DecodeAuthority reads what Encode wrote.
func DecodeAuthority(cell string, data []byte, rand io.Reader) (*Authority, error) {
	a := &Authority{cell: cell, rand: rand, generation: 1}
	if err := a.decode(data); err != nil {
		return nil, fmt.Errorf("read the authority of cell %s: %w", clip(cell), err)
	}
	return a, nil
}

func (a *Authority) decode(data []byte) error {
	if len(data) > maxPEMBytes {
		return fmt.Errorf("%d bytes; at most %d", len(data), maxPEMBytes)
	}
	want := "authority of cell " + a.cell
	var key ed25519.PrivateKey
	keys := 0
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
				return errors.New("want private keys, Ed25519, each before its certificate")
			}
			key = own
			keys++
		case certBlock:
			cert, err := parseCertificate(block.Bytes)
			if err != nil {
				return err
			}
			s := signer{key: hide(key), cert: cert}
			key = nil
			switch {
			case !cert.IsCA || s.key != nil && !bytes.Equal(cert.PublicKey.(ed25519.PublicKey), s.key.Public().(ed25519.PublicKey)):
				return errors.New("a key and the certificate after it do not belong together")
			case cert.Subject.CommonName != want:
				return fmt.Errorf("it is the %q", cert.Subject.CommonName)
			}
			if err := s.readTimes(block.Headers); err != nil {
				return err
			}
			if text := block.Headers[generationHeader]; text != "" {
				if a.generation, err = strconv.ParseUint(text, 10, 64); err != nil {
					return fmt.Errorf("the generation %q is no number", clip(text))
				}
			}
			a.signers = append(a.signers, s)
		default:
			return fmt.Errorf("a PEM block %q", clip(block.Type))
		}
	}
	if !isLabel(a.cell) || keys == 0 || key != nil {
		return errors.New("it holds no private key with a certificate")
	}
	return nil
}

func (s *signer) readTimes(headers map[string]string) (err error) {
	for _, at := range []struct {
		header string
		t      *time.Time
	}{{fromHeader, &s.from}, {untilHeader, &s.until}} {
		if text := headers[at.header]; text != "" {
			if *at.t, err = time.Parse(time.RFC3339, text); err != nil {
				return fmt.Errorf("%s: %q is no time", at.header, clip(text))
			}
		}
	}
	return nil
}

func encodePEM(key crypto.Signer, certs ...*x509.Certificate) ([]byte, error) {
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
