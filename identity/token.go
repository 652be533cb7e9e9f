package identity

import (
	"crypto/ed25519"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
)

// tokenPrefix begins each token, so that one can be told in a text, and looked
// for where it must not be.
const tokenPrefix = "borg-join-"

const (
	tokenVersion  = 1
	maxTokenBytes = 8 << 10
)

// Token lets who holds it become one user, or the borglet of one machine, once
// and soon. It is a certificate of the role join with its key, and what one must
// know to find the cell. The cell keeps its fingerprint alone.
type Token struct {
	Credential *Credential
	// host:port of masters; may be empty.
	Masters []string
}

// Text is the token as it is handed on: a secret.
func (t *Token) Text() string {
	c := t.Credential
	b := []byte{tokenVersion}
	put := func(part []byte) {
		b = binary.AppendUvarint(b, uint64(len(part)))
		b = append(b, part...)
	}
	// A token is made by a cell, whose keys are of one kind.
	put(c.key.signer().(ed25519.PrivateKey).Seed())
	put(c.leaf.Raw)
	put([]byte(strings.Join(t.Masters, ",")))
	for _, root := range c.Trust.roots {
		put(root.Raw)
	}
	return tokenPrefix + base64.RawURLEncoding.EncodeToString(b)
}

// IsToken tells a token from the path of a file that holds one.
func IsToken(s string) bool { return strings.HasPrefix(s, tokenPrefix) }

// ParseToken reads what Text wrote. The error never holds any of it.
func ParseToken(s string) (*Token, error) {
	bad := errors.New("this is not a token of a cell, or a part of it is missing")
	text, ok := strings.CutPrefix(strings.TrimSpace(s), tokenPrefix)
	if !ok || len(text) > maxTokenBytes {
		return nil, bad
	}
	b, err := base64.RawURLEncoding.DecodeString(text)
	if err != nil || len(b) == 0 {
		return nil, bad
	}
	if b[0] != tokenVersion {
		return nil, fmt.Errorf("a token of version %d; this program knows version %d", b[0], tokenVersion)
	}
	var parts [][]byte
	for b = b[1:]; len(b) > 0; {
		n, size := binary.Uvarint(b)
		if size <= 0 || n > uint64(len(b)-size) {
			return nil, bad
		}
		parts = append(parts, b[size:size+int(n)])
		b = b[size+int(n):]
	}
	if len(parts) < 4 || len(parts[0]) != ed25519.SeedSize {
		return nil, bad
	}
	c, err := NewCredential(ed25519.NewKeyFromSeed(parts[0]), &Issued{Certificate: parts[1], Authorities: parts[3:]})
	if err != nil || c.Name.Role != Join {
		return nil, bad
	}
	t := &Token{Credential: c}
	if len(parts[2]) > 0 {
		t.Masters = strings.Split(string(parts[2]), ",")
	}
	return t, nil
}
