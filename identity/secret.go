package identity

import (
	"crypto"
	"crypto/ed25519"
	"fmt"
	"io"
	"log/slog"
)

// privateKey is a key that can be used and not be shown. What package fmt finds in
// fields that are not exported it writes as it lies in memory, without asking, and
// with some verbs what pointers point to; into a function nobody looks.
type privateKey struct{ signer func() crypto.Signer }

// hide keeps a key from being shown; no key is nil.
func hide(key ed25519.PrivateKey) *privateKey {
	if key == nil {
		return nil
	}
	return hideSigner(key)
}

func hideSigner(key crypto.Signer) *privateKey {
	return &privateKey{func() crypto.Signer { return key }}
}

// Public implements crypto.Signer.
func (k *privateKey) Public() crypto.PublicKey { return k.signer().Public() }

// Sign implements crypto.Signer.
func (k *privateKey) Sign(rand io.Reader, digest []byte, opts crypto.SignerOpts) ([]byte, error) {
	return k.signer().Sign(rand, digest, opts)
}

const keyWords = "a private key"

// Format implements fmt.Formatter for all verbs.
func (k *privateKey) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, keyWords) }

// LogValue implements slog.LogValuer.
func (k *privateKey) LogValue() slog.Value { return slog.StringValue(keyWords) }

// String says whose the credential is, and nothing of its key.
func (c *Credential) String() string {
	if c == nil || c.leaf == nil {
		return "no credential"
	}
	return fmt.Sprintf("the credential of %s until %s", c.Name, c.leaf.NotAfter.UTC().Format("2006-01-02T15:04:05Z"))
}

// Format implements fmt.Formatter for all verbs.
func (c *Credential) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, c.String()) }

// LogValue implements slog.LogValuer.
func (c *Credential) LogValue() slog.Value { return slog.StringValue(c.String()) }

// String says whose authority it is, and nothing of its keys.
func (a *Authority) String() string {
	if a == nil {
		return "no authority"
	}
	return fmt.Sprintf("the authority of cell %s, generation %d", a.cell, a.Version().Generation)
}

// Format implements fmt.Formatter for all verbs.
func (a *Authority) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, a.String()) }

// LogValue implements slog.LogValuer.
func (a *Authority) LogValue() slog.Value { return slog.StringValue(a.String()) }

// String says whose the source is, and nothing of its key.
func (s *Source) String() string {
	if s == nil {
		return "no credential"
	}
	return s.Current().String()
}

// Format implements fmt.Formatter for all verbs.
func (s *Source) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, s.String()) }

// LogValue implements slog.LogValuer.
func (s *Source) LogValue() slog.Value { return slog.StringValue(s.String()) }

// String says for whom the token is. Text is the token.
func (t *Token) String() string {
	if t == nil || t.Credential == nil {
		return "no token"
	}
	return fmt.Sprintf("a token for %s", t.Credential.Name)
}

// Format implements fmt.Formatter for all verbs.
func (t *Token) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, t.String()) }

// LogValue implements slog.LogValuer.
func (t *Token) LogValue() slog.Value { return slog.StringValue(t.String()) }
