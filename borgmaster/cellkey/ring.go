// Package cellkey seals the secrets of a cell with keys that are in no log and
// no checkpoint of it: each replica keeps them in a file of its own.
//
// A value is sealed as one version of one secret of one user, and opens as
// nothing else: whoever can write the log cannot move a value to where another
// may read it. Sealing is AES-256-GCM of the standard library, with a random
// nonce, and what the value is sealed as is authenticated with it.
package cellkey

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"strings"
	"sync"
)

const (
	keyBytes = 32
	// ringFormat is that of the file.
	ringFormat = 1
	// MaxKeys that a cell may have at once: what is in use, what is sealed anew
	// from, and some that a rotation left that could not go on.
	MaxKeys = 8
)

// Of is what a value is sealed as.
type Of struct {
	User, Name string
	Version    uint64
}

// bytes are authenticated with the value. The lengths keep "a/b" from "ab/".
func (o Of) bytes() []byte {
	b := binary.AppendUvarint([]byte("borg secret 1"), uint64(len(o.User)))
	b = append(b, o.User...)
	b = binary.AppendUvarint(b, uint64(len(o.Name)))
	b = append(b, o.Name...)
	return binary.BigEndian.AppendUint64(b, o.Version)
}

// Key seals and opens. It can be used and not be shown.
type Key struct {
	// Functions, because package fmt writes what lies in fields that are not
	// exported, and what they point to; into a function nobody looks.
	raw  func() [keyBytes]byte
	aead func() cipher.AEAD
}

// String names the key and says nothing of it.
func (k *Key) String() string { return "cell key " + k.ID() }

// Format implements fmt.Formatter for all verbs.
func (k *Key) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, k.String()) }

// LogValue implements slog.LogValuer.
func (k *Key) LogValue() slog.Value { return slog.StringValue(k.String()) }

// NewKey makes a key.
func NewKey() (*Key, error) {
	var raw [keyBytes]byte
	if _, err := rand.Read(raw[:]); err != nil {
		return nil, fmt.Errorf("make a cell key: %w", err)
	}
	return keyOf(raw)
}

func keyOf(raw [keyBytes]byte) (*Key, error) {
	block, err := aes.NewCipher(raw[:])
	if err != nil {
		return nil, err
	}
	aead, err := cipher.NewGCMWithRandomNonce(block)
	if err != nil {
		return nil, err
	}
	return &Key{raw: func() [keyBytes]byte { return raw }, aead: func() cipher.AEAD { return aead }}, nil
}

// ID names the key and says nothing of it.
func (k *Key) ID() string {
	raw := k.raw()
	sum := sha256.Sum256(append([]byte("borg cell key "), raw[:]...))
	return hex.EncodeToString(sum[:8])
}

// Ring is the keys of a cell, as one replica has them. Its methods may be called
// from several goroutines.
type Ring struct {
	// Keeps what Encode yields; nil: it is not kept.
	save func([]byte) error

	mu sync.Mutex
	// Oldest first. Guarded by mu.
	keys []*Key
}

// String names the keys and says nothing of them.
func (r *Ring) String() string { return "cell keys " + strings.Join(r.IDs(), ", ") }

// Format implements fmt.Formatter for all verbs.
func (r *Ring) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, r.String()) }

// LogValue implements slog.LogValuer.
func (r *Ring) LogValue() slog.Value { return slog.StringValue(r.String()) }

// NewRing is a ring without keys, or with some. save keeps what it becomes;
// nil: it is not kept.
func NewRing(save func([]byte) error, keys ...*Key) *Ring { return &Ring{save: save, keys: keys} }

// UnknownKeyError says that a key is not on the ring.
type UnknownKeyError struct {
	// Empty: any key would do, and there is none.
	ID string
}

func (e *UnknownKeyError) Error() string {
	if e.ID == "" {
		return "this replica has no cell key"
	}
	return fmt.Sprintf("this replica does not have cell key %s", e.ID)
}

// First is the oldest key; empty: there is none.
func (r *Ring) First() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.keys) == 0 {
		return ""
	}
	return r.keys[0].ID()
}

// IDs of all keys, oldest first.
func (r *Ring) IDs() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	var ids []string
	for _, k := range r.keys {
		ids = append(ids, k.ID())
	}
	return ids
}

func (r *Ring) key(id string) (*Key, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, k := range r.keys {
		if k.ID() == id {
			return k, nil
		}
	}
	return nil, &UnknownKeyError{id}
}

// Seal seals a value with the key of that id.
func (r *Ring) Seal(id string, of Of, value []byte) ([]byte, error) {
	k, err := r.key(id)
	if err != nil {
		return nil, err
	}
	return k.aead().Seal(nil, nil, value, of.bytes()), nil
}

// Open yields the value that was sealed with the key of that id. An error never
// holds any of it.
func (r *Ring) Open(id string, of Of, sealed []byte) ([]byte, error) {
	k, err := r.key(id)
	if err != nil {
		return nil, err
	}
	value, err := k.aead().Open(nil, nil, sealed, of.bytes())
	if err != nil {
		return nil, fmt.Errorf("secret %s/%s, version %d, does not open with cell key %s: it was sealed as something else, or was changed", of.User, of.Name, of.Version, id)
	}
	return value, nil
}

// Change adds the keys of another ring that are not there, and takes those of
// some ids away; kept before it counts.
func (r *Ring) Change(add *Ring, drop []string) error {
	var more []*Key
	if add != nil {
		add.mu.Lock()
		more = slices.Clone(add.keys)
		add.mu.Unlock()
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	keys := slices.Clone(r.keys)
	for _, k := range more {
		if !slices.ContainsFunc(keys, func(has *Key) bool { return has.ID() == k.ID() }) {
			keys = append(keys, k)
		}
	}
	keys = slices.DeleteFunc(keys, func(k *Key) bool { return slices.Contains(drop, k.ID()) })
	if len(keys) > MaxKeys {
		return fmt.Errorf("%d cell keys; at most %d", len(keys), MaxKeys)
	}
	if r.save != nil {
		data, err := encode(keys)
		if err != nil {
			return err
		}
		if err := r.save(data); err != nil {
			return fmt.Errorf("keep the cell keys: %w", err)
		}
	}
	r.keys = keys
	return nil
}

type ringFile struct {
	Format int      `json:"format"`
	Keys   [][]byte `json:"keys"`
}

// Encode writes the ring down. A secret.
func (r *Ring) Encode() ([]byte, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return encode(r.keys)
}

func encode(keys []*Key) ([]byte, error) {
	f := ringFile{Format: ringFormat}
	for _, k := range keys {
		raw := k.raw()
		f.Keys = append(f.Keys, raw[:])
	}
	data, err := json.Marshal(f)
	return append(data, '\n'), err
}

// Decode reads what Encode wrote. The error never holds any of it.
func Decode(data []byte, save func([]byte) error) (*Ring, error) {
	var f ringFile
	if err := json.Unmarshal(data, &f); err != nil {
		return nil, errors.New("these are no cell keys")
	}
	if f.Format != ringFormat {
		return nil, fmt.Errorf("cell keys of format %d; this program knows format %d", f.Format, ringFormat)
	}
	if len(f.Keys) > MaxKeys {
		return nil, fmt.Errorf("%d cell keys; at most %d", len(f.Keys), MaxKeys)
	}
	r := NewRing(save)
	for _, raw := range f.Keys {
		if len(raw) != keyBytes {
			return nil, fmt.Errorf("a cell key of %d bytes; want %d", len(raw), keyBytes)
		}
		k, err := keyOf([keyBytes]byte(raw))
		if err != nil {
			return nil, err
		}
		r.keys = append(r.keys, k)
	}
	return r, nil
}
