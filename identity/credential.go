package identity

import (
	"bytes"
	"crypto/ed25519"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"
)

// Credential is a key, the certificate for it, and whom to trust: all that
// somebody needs to be who he is. It is not changed once made.
type Credential struct {
	Name  Name
	Trust *Trust
	key   *privateKey
	leaf  *x509.Certificate
	tls   *tls.Certificate
	// When nobody believes it any more.
	expires time.Time
	// What another authority issued, with what leads up to it: tls.Certificate. Who
	// one is then is for the masters to say; Name is what they said.
	foreign bool
}

// Foreign says that another authority issued it, which renews it too.
func (c *Credential) Foreign() bool { return c.foreign }

// NewCredential puts together a key and what an authority issued for it.
func NewCredential(key ed25519.PrivateKey, issued *Issued) (*Credential, error) {
	leaf, err := parseCertificate(issued.Certificate)
	if err != nil {
		return nil, err
	}
	name, err := NameOf(leaf)
	if err != nil {
		return nil, err
	}
	trust, err := NewTrust(name.Cell, issued.Authorities)
	if err != nil {
		return nil, err
	}
	if !bytes.Equal(leaf.PublicKey.(ed25519.PublicKey), key.Public().(ed25519.PublicKey)) {
		return nil, fmt.Errorf("the certificate of %s is for another key", name)
	}
	hidden := hide(key)
	return &Credential{
		Name: name, Trust: trust, key: hidden, leaf: leaf, expires: trust.endOf(leaf),
		tls: &tls.Certificate{Certificate: [][]byte{leaf.Raw}, PrivateKey: hidden, Leaf: leaf},
	}, nil
}

// Certify makes a key and has the authority certify it.
func (a *Authority) Certify(name Name, now time.Time, life time.Duration) (*Credential, error) {
	public, key, err := ed25519.GenerateKey(a.rand)
	if err != nil {
		return nil, fmt.Errorf("make a key for %s: %w", name, err)
	}
	issued, err := a.Issue(public, name, now, life)
	if err != nil {
		return nil, err
	}
	return NewCredential(key, issued)
}

// IssuedAt is when the certificate began.
func (c *Credential) IssuedAt() time.Time { return c.leaf.NotBefore }

// Expires is when the certificate runs out, or the authority that issued it.
func (c *Credential) Expires() time.Time { return c.expires }

// RenewAt is half its life.
func (c *Credential) RenewAt() time.Time {
	return c.leaf.NotBefore.Add(c.leaf.NotAfter.Sub(c.leaf.NotBefore) / 2)
}

// Expired says that nobody believes it any more.
func (c *Credential) Expired(now time.Time) bool { return now.After(c.expires) }

// TLS is the credential as the library takes it.
func (c *Credential) TLS() *tls.Certificate { return c.tls }

// Fingerprint tells one certificate from all others; what is stored of a token.
func (c *Credential) Fingerprint() []byte { return Fingerprint(c.leaf.Raw) }

// Encode writes the credential down, with its key.
func (c *Credential) Encode() ([]byte, error) {
	if c.foreign {
		return c.encodeForeign()
	}
	return encodePEM(c.key.signer(), append([]*x509.Certificate{c.leaf}, c.Trust.roots...)...)
}

// Parts are what Encode writes, in files of their own: the key, the certificate,
// and the authorities to believe.
func (c *Credential) Parts() (key, cert, authorities []byte, err error) {
	if key, err = encodePEM(c.key.signer()); err != nil {
		return nil, nil, nil, err
	}
	cert = pem.EncodeToMemory(&pem.Block{Type: certBlock, Bytes: c.leaf.Raw})
	for _, root := range c.Trust.roots {
		authorities = append(authorities, pem.EncodeToMemory(&pem.Block{Type: certBlock, Bytes: root.Raw})...)
	}
	return key, cert, authorities, nil
}

// DecodeCredential reads what Encode wrote.
func DecodeCredential(data []byte) (*Credential, error) {
	if isForeign(data) {
		return decodeForeign(data)
	}
	key, certs, err := decodePEM(data)
	if err != nil {
		return nil, err
	}
	if len(certs) < 2 {
		return nil, errors.New("want a certificate and the authorities of its cell")
	}
	issued := &Issued{Certificate: certs[0].Raw}
	for _, c := range certs[1:] {
		issued.Authorities = append(issued.Authorities, c.Raw)
	}
	return NewCredential(key, issued)
}

// ReadCredential reads a credential from a file that its owner alone can read.
func ReadCredential(path string) (*Credential, error) {
	data, err := ReadSecret(path)
	if err != nil {
		return nil, err
	}
	c, err := DecodeCredential(data)
	if err != nil {
		return nil, fmt.Errorf("certificate file %s: %w", path, err)
	}
	return c, nil
}

// WriteCredential writes a credential to a file, whole or not at all.
func WriteCredential(path string, c *Credential) error {
	data, err := c.Encode()
	if err != nil {
		return fmt.Errorf("certificate file %s: %w", path, err)
	}
	return WriteSecret(path, data)
}

// ReadSecret reads a file, unless others than its owner can read it too.
func ReadSecret(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if info.Mode().Perm()&0o077 != 0 {
		return nil, fmt.Errorf("%s holds a key and may be read by others than its owner (mode %04o); do: chmod 600 %s", path, info.Mode().Perm(), path)
	}
	if info.Size() > maxPEMBytes {
		return nil, fmt.Errorf("%s has %d bytes; a file of certificates has at most %d", path, info.Size(), maxPEMBytes)
	}
	data := make([]byte, info.Size())
	if _, err := f.ReadAt(data, 0); err != nil && len(data) > 0 {
		return nil, fmt.Errorf("read %s: %w", path, err)
	}
	return data, nil
}

// WriteSecret writes a file that its owner alone can read, synced, whole or not
// at all, with its directory.
func WriteSecret(path string, data []byte) error {
	dir := filepath.Dir(path)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	// A name of its own: two processes of one user may renew at the same time.
	// CreateTemp makes it 0600.
	f, err := os.CreateTemp(dir, filepath.Base(path)+".new*")
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	if err == nil {
		err = f.Sync()
	}
	if err2 := f.Close(); err == nil {
		err = err2
	}
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		os.Remove(f.Name())
		return fmt.Errorf("write %s: %w", path, err)
	}
	return nil
}
