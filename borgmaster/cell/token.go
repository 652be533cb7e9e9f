package cell

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"slices"
	"strings"

	"borg/proto/borgpb"
)

type tokenHash [sha256.Size]byte

// token is the memory of a token that was made and not used. The token itself is
// a secret that the cell never sees.
type token struct {
	mark
	hash tokenHash
	// Whom its holder becomes: "user/<name>", "borglet/<machine>".
	name          string
	expiresWallNs int64
	gone          bool
}

type tokens struct {
	byHash map[tokenHash]*token
	// Sorted by hash.
	list []*token
}

// validTokenName tells "user/<name>" and "borglet/<machine>".
func validTokenName(name string) bool {
	role, id, ok := strings.Cut(name, "/")
	return ok && (role == "user" || role == "borglet") && validName(id)
}

func checkToken(hash []byte, name string) *borgpb.Refusal {
	if len(hash) != len(tokenHash{}) {
		return invalid("hash", "%d bytes; want %d", len(hash), len(tokenHash{}))
	}
	if !validTokenName(name) {
		return invalid("name", "%q is neither user/NAME nor borglet/MACHINE", clip(name, 80))
	}
	return nil
}

func (c *Cell) checkAddToken(o *borgpb.AddToken) (commit, *borgpb.Refusal) {
	if r := checkToken(o.Hash, o.Name); r != nil {
		return nil, r
	}
	hash := tokenHash(o.Hash)
	switch wall := c.clock.wallNs; {
	case c.tokens.byHash[hash] != nil:
		return nil, refuse(borgpb.RefusalKind_REFUSAL_KIND_ALREADY_EXISTS, o.Name, "hash", "there is such a token")
	case o.ExpiresWallNs <= wall || o.ExpiresWallNs > wall+maxTokenNs:
		return nil, about(o.Name, invalid("expires_wall_ns", "a token must run out within a day"))
	case c.liveTokens() >= maxTokens:
		return nil, limit("", "%d tokens wait to be used", maxTokens)
	}
	return func(*borgpb.Result) {
		c.dropTokens()
		t := &token{hash: hash, name: o.Name, expiresWallNs: o.ExpiresWallNs}
		c.tokens.add(t)
		c.dirty(t)
		c.emit(userEvent(borgpb.EventKind_EVENT_KIND_INVITE, o.Name, "a token was made", c.now.reason))
	}, nil
}

// checkUseToken gives no reason why a token is worth nothing: whoever asks is a
// stranger.
func (c *Cell) checkUseToken(o *borgpb.UseToken) (commit, *borgpb.Refusal) {
	if r := checkToken(o.Hash, o.Name); r != nil {
		return nil, r
	}
	t := c.tokens.byHash[tokenHash(o.Hash)]
	if t == nil || t.name != o.Name || t.expiresWallNs < c.clock.wallNs {
		return nil, refuse(borgpb.RefusalKind_REFUSAL_KIND_PERMISSION, o.Name, "hash",
			"the token was used already, has expired, or was never made here; an admin can make another one")
	}
	return func(*borgpb.Result) {
		c.dropToken(t)
		c.dropTokens()
		c.emit(userEvent(borgpb.EventKind_EVENT_KIND_JOIN, o.Name, "its token was used", c.now.reason))
	}, nil
}

func (c *Cell) liveTokens() int {
	n := 0
	for _, t := range c.tokens.list {
		if t.expiresWallNs >= c.clock.wallNs {
			n++
		}
	}
	return n
}

// dropTokens forgets those whose time is over.
func (c *Cell) dropTokens() {
	for _, t := range slices.Clone(c.tokens.list) {
		if t.expiresWallNs < c.clock.wallNs {
			c.dropToken(t)
		}
	}
}

func (c *Cell) dropToken(t *token) {
	delete(c.tokens.byHash, t.hash)
	at, _ := slices.BinarySearchFunc(c.tokens.list, t.hash, compareToken)
	c.tokens.list = slices.Delete(c.tokens.list, at, at+1)
	t.gone = true
	c.dirty(t)
}

func (s *tokens) check() error {
	for i, t := range s.list {
		if s.byHash[t.hash] != t || t.gone || (i > 0 && compareToken(s.list[i-1], t.hash) >= 0) {
			return fmt.Errorf("the token of %s is out of order", t.name)
		}
	}
	if len(s.byHash) != len(s.list) {
		return fmt.Errorf("%d tokens are counted as %d", len(s.list), len(s.byHash))
	}
	return nil
}

func compareToken(t *token, hash tokenHash) int { return bytes.Compare(t.hash[:], hash[:]) }

func (s *tokens) add(t *token) {
	s.byHash[t.hash] = t
	at, _ := slices.BinarySearchFunc(s.list, t.hash, compareToken)
	s.list = slices.Insert(s.list, at, t)
}

func (t *token) appendKey(b []byte) []byte { return append(append(b, kindToken), t.hash[:]...) }
func (t *token) exists() bool              { return !t.gone }

func (t *token) appendValue(b []byte) []byte {
	e := encoder{append(b, recordLayout)}
	e.str(t.name)
	e.int(t.expiresWallNs)
	return e.b
}

func (l *loader) token(hash []byte, d *decoder) error {
	t := &token{name: d.str(), expiresWallNs: d.int()}
	if err := d.done(); err != nil {
		return err
	}
	if l.c.format < FormatGrants || checkToken(hash, t.name) != nil || t.expiresWallNs < 0 || t.expiresWallNs > maxTimeNs {
		return errOdd
	}
	t.hash = tokenHash(hash)
	l.c.tokens.add(t)
	return nil
}
