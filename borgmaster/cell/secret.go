package cell

import (
	"fmt"
	"iter"
	"slices"
	"strings"

	"borg/proto/borgpb"
)

// FormatSecrets is the format in which secrets began.
const FormatSecrets = 3

// Secret is what a user has the cell keep for his tasks. The cell holds it sealed
// and has no key: masters keep those in files of their own.
type Secret struct {
	mark
	// "<user>/<name>".
	key  string
	user string
	name string
	// Counts how often it was set, from 1.
	version uint64
	// Names the key that it is sealed with, for people and for rotation.
	keyID string
	// The value, sealed so that it opens as this version of this secret alone.
	sealed        []byte
	changedWallNs int64
	gone          bool
}

// User whose it is.
func (s *Secret) User() string { return s.user }

// Name among the secrets of its user.
func (s *Secret) Name() string { return s.name }

// Version counts how often it was set, from 1.
func (s *Secret) Version() uint64 { return s.version }

// KeyID names the key that it is sealed with.
func (s *Secret) KeyID() string { return s.keyID }

// Sealed is the value, sealed. Must not be changed.
func (s *Secret) Sealed() []byte { return s.sealed }

// ChangedWallNs is when it was set last.
func (s *Secret) ChangedWallNs() int64 { return s.changedWallNs }

type secrets struct {
	byKey map[string]*Secret
	// Sorted by key.
	list []*Secret
	// Bytes of all that are sealed; derived.
	bytes int
	// The key with which secrets are sealed from now on. Empty: none was ever
	// named, masters take the first that they have.
	keyID cellKey
}

// cellKey is the record of which key is in use.
type cellKey struct {
	mark
	id string
}

func secretKey(user, name string) string { return user + "/" + name }

// Secret returns a user's secret; nil when there is none of that name.
func (c *Cell) Secret(user, name string) *Secret { return c.secrets.byKey[secretKey(user, name)] }

// Secrets yields all secrets, by user and name as one text.
func (c *Cell) Secrets() iter.Seq[*Secret] { return slices.Values(c.secrets.list) }

// CellKey names the key with which secrets are sealed from now on; empty: none
// was named.
func (c *Cell) CellKey() string { return c.secrets.keyID.id }

// validKeyID: 16 hexadecimal digits.
func validKeyID(id string) bool {
	return len(id) == keyIDBytes && strings.Trim(id, "0123456789abcdef") == ""
}

func checkSealed(keyID string, sealed []byte) *borgpb.Refusal {
	if !validKeyID(keyID) {
		return invalid("key_id", "%q is not the id of a key: want %d hexadecimal digits", clip(keyID, 64), keyIDBytes)
	}
	if n := len(sealed); n < sealBytes || n > MaxSecretBytes+sealBytes {
		return invalid("sealed", "%d bytes; a secret has 0 to %d, and %d more when it is sealed", n, MaxSecretBytes, sealBytes)
	}
	return nil
}

func checkSecretName(user, name string) *borgpb.Refusal {
	if r := checkUserName(user); r != nil {
		return r
	}
	if !validName(name) {
		return invalid("name", "%q is not a name: want 1 to 63 of a-z, 0-9 and -, not - at an end", clip(name, 64))
	}
	return nil
}

func noSecret(user, name string) *borgpb.Refusal {
	return notFound(secretKey(user, name), "there is no such secret")
}

// checkSetSecret wants the version that comes next: the value was sealed as that
// one, and opens as no other.
func (c *Cell) checkSetSecret(o *borgpb.SetSecret) (commit, *borgpb.Refusal) {
	if r := checkSecretName(o.User, o.Name); r != nil {
		return nil, r
	}
	s := c.Secret(o.User, o.Name)
	key := secretKey(o.User, o.Name)
	if r := checkSealed(o.KeyId, o.Sealed); r != nil {
		return nil, about(key, r)
	}
	version, was := uint64(0), 0
	if s != nil {
		version, was = s.version, len(s.sealed)
	}
	switch {
	case o.Version != version+1:
		return nil, stale(key, "it was sealed as version %d, and version %d comes next", o.Version, version+1)
	case s == nil && int64(c.secretsOf(o.User)) >= c.StateBudget(o.User, measureSecrets):
		n := c.secretsOf(o.User)
		return nil, about(key, limit("", "user %s has %d secrets, and may have no more; delete one first%s", o.User, n, raiseAdvice(o.User, measureSecrets, int64(n+1))))
	case s == nil && len(c.secrets.list) >= maxSecretsOfCell:
		return nil, about(key, limit("", "the cell has %d secrets", maxSecretsOfCell))
	case c.secrets.bytes-was+len(o.Sealed) > maxSecretsBytes:
		return nil, about(key, limit("sealed", "the secrets of the cell would have %d bytes; at most %d", c.secrets.bytes-was+len(o.Sealed), maxSecretsBytes))
	}
	if r := c.checkState(o.User, 0, &StateUse{measureBytes: int64(len(o.Sealed) - was)}); r != nil {
		return nil, about(key, r)
	}
	return func(res *borgpb.Result) {
		if s == nil {
			s = &Secret{key: key, user: o.User, name: o.Name}
			c.secrets.add(s)
		}
		c.secrets.bytes += len(o.Sealed) - len(s.sealed)
		c.stateUse.countOne(o.User, measureBytes, int64(len(o.Sealed)-len(s.sealed)))
		s.version, s.keyID, s.sealed, s.changedWallNs = o.Version, o.KeyId, o.Sealed, c.clock.wallNs
		c.dirty(s)
		c.emit(secretEvent(borgpb.EventKind_EVENT_KIND_SECRET_SET, key, fmt.Sprintf("version %d", s.version), c.now.reason))
		res.Version = s.version
	}, nil
}

// checkResealSecret takes the same value under another key.
func (c *Cell) checkResealSecret(o *borgpb.ResealSecret) (commit, *borgpb.Refusal) {
	if r := checkSecretName(o.User, o.Name); r != nil {
		return nil, r
	}
	s := c.Secret(o.User, o.Name)
	switch r := checkSealed(o.KeyId, o.Sealed); {
	case s == nil:
		return nil, noSecret(o.User, o.Name)
	case r != nil:
		return nil, about(s.key, r)
	case o.Version != s.version:
		return nil, stale(s.key, "it was sealed as version %d, and has version %d", o.Version, s.version)
	case o.KeyId != c.secrets.keyID.id:
		return nil, stale(s.key, "it was sealed with key %s, and the key in use is %q", o.KeyId, c.secrets.keyID.id)
	case len(o.Sealed) != len(s.sealed):
		return nil, about(s.key, invalid("sealed", "%d bytes; the same value has %d", len(o.Sealed), len(s.sealed)))
	}
	return func(res *borgpb.Result) {
		s.keyID, s.sealed = o.KeyId, o.Sealed
		c.dirty(s)
		res.Version = s.version
	}, nil
}

func (c *Cell) checkDeleteSecret(o *borgpb.DeleteSecret) (commit, *borgpb.Refusal) {
	if r := checkSecretName(o.User, o.Name); r != nil {
		return nil, r
	}
	s := c.Secret(o.User, o.Name)
	if s == nil {
		return nil, noSecret(o.User, o.Name)
	}
	if j := c.needsSecret(o.User, o.Name); j != nil {
		return nil, badState(s.key, "job %s names it; end that job, or update it, first", j.key)
	}
	return func(*borgpb.Result) {
		c.secrets.remove(s)
		c.stateUse.countOne(s.user, measureBytes, -int64(len(s.sealed)))
		c.dirty(s)
		c.emit(secretEvent(borgpb.EventKind_EVENT_KIND_SECRET_DELETE, s.key, "deleted", c.now.reason))
	}, nil
}

// needsSecret is a live job of the user with a spec that names the secret; nil:
// there is none.
func (c *Cell) needsSecret(user, name string) *Job {
	if jobs := c.jobRefs.secrets[JobKey{user, name}]; len(jobs) > 0 {
		return jobs[0]
	}
	return nil
}

// missingSecrets adds the secrets to m that a spec names and the user does not have.
func (c *Cell) missingSecrets(m *missing, s *Spec) {
	if c.format < FormatSecrets {
		return
	}
	for _, n := range s.needs {
		for _, name := range secretsNamed(n.Task) {
			if c.Secret(m.user, name) == nil {
				m.add("secret", clip(name, 64), "borgcfg secret set")
			}
		}
	}
}

func (c *Cell) checkUseCellKey(o *borgpb.UseCellKey) (commit, *borgpb.Refusal) {
	if !validKeyID(o.KeyId) {
		return nil, invalid("key_id", "%q is not the id of a key: want %d hexadecimal digits", clip(o.KeyId, 64), keyIDBytes)
	}
	if o.KeyId == c.secrets.keyID.id {
		return nil, refuse(borgpb.RefusalKind_REFUSAL_KIND_ALREADY_EXISTS, "cell", "key_id", "key %s is in use", o.KeyId)
	}
	return func(*borgpb.Result) {
		c.secrets.keyID.id = o.KeyId
		c.dirty(&c.secrets.keyID)
		c.emit(Event{Kind: borgpb.EventKind_EVENT_KIND_CELL_KEY, ObjectKind: borgpb.ObjectKind_OBJECT_KIND_CELL, Reason: "secrets are sealed with key " + o.KeyId + " from now on"})
	}, nil
}

// secretsOf counts those of a user.
func (c *Cell) secretsOf(user string) int {
	n := 0
	first, _ := slices.BinarySearchFunc(c.secrets.list, user+"/", compareSecret)
	for _, s := range c.secrets.list[first:] {
		if s.user != user {
			break
		}
		n++
	}
	return n
}

func (s *secrets) add(one *Secret) {
	s.byKey[one.key] = one
	at, _ := slices.BinarySearchFunc(s.list, one.key, compareSecret)
	s.list = slices.Insert(s.list, at, one)
}

func (s *secrets) remove(one *Secret) {
	delete(s.byKey, one.key)
	at, _ := slices.BinarySearchFunc(s.list, one.key, compareSecret)
	s.list = slices.Delete(s.list, at, at+1)
	s.bytes -= len(one.sealed)
	one.gone = true
}

func compareSecret(s *Secret, key string) int { return strings.Compare(s.key, key) }

// check holds the invariants of secrets.
func (s *secrets) check() error {
	bytes := 0
	for i, one := range s.list {
		if s.byKey[one.key] != one || one.gone || (i > 0 && s.list[i-1].key >= one.key) || one.version == 0 {
			return fmt.Errorf("secret %s is out of order", one.key)
		}
		bytes += len(one.sealed)
	}
	if len(s.byKey) != len(s.list) || bytes != s.bytes || bytes > maxSecretsBytes {
		return fmt.Errorf("%d secrets of %d bytes are counted as %d of %d", len(s.list), bytes, len(s.byKey), s.bytes)
	}
	return nil
}

func secretEvent(kind borgpb.EventKind, key, what, reason string) Event {
	if reason != "" {
		what += ": " + reason
	}
	return Event{Kind: kind, ObjectKind: borgpb.ObjectKind_OBJECT_KIND_SECRET, Name: key, Reason: what}
}

func (s *Secret) appendKey(b []byte) []byte { return append(append(b, kindSecret), s.key...) }
func (s *Secret) exists() bool              { return !s.gone }

func (s *Secret) appendValue(b []byte) []byte {
	e := encoder{append(b, recordLayout)}
	e.uint(s.version)
	e.str(s.keyID)
	e.bytes(s.sealed)
	e.int(s.changedWallNs)
	return e.b
}

func (k *cellKey) appendKey(b []byte) []byte { return append(b, kindCellKey) }
func (k *cellKey) exists() bool              { return k.id != "" }

func (k *cellKey) appendValue(b []byte) []byte {
	e := encoder{append(b, recordLayout)}
	e.str(k.id)
	return e.b
}

func (l *loader) secret(key string, d *decoder) error {
	user, name, _ := strings.Cut(key, "/")
	s := &Secret{key: key, user: user, name: name, version: d.uint(), keyID: d.str(), sealed: d.raw(), changedWallNs: d.int()}
	if err := d.done(); err != nil {
		return err
	}
	if l.c.format < FormatSecrets || checkSecretName(user, name) != nil || checkSealed(s.keyID, s.sealed) != nil || s.version == 0 || s.changedWallNs < 0 || s.changedWallNs > maxTimeNs {
		return errOdd
	}
	l.c.secrets.add(s)
	l.c.secrets.bytes += len(s.sealed)
	return nil
}

func (l *loader) cellKey(d *decoder) error {
	id := d.str()
	if err := d.done(); err != nil {
		return err
	}
	if l.c.format < FormatSecrets || !validKeyID(id) {
		return errOdd
	}
	l.c.secrets.keyID.id = id
	return nil
}
