package cellkey

import (
	"bytes"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
)

func newKey(t *testing.T) *Key {
	t.Helper()
	k, err := NewKey()
	if err != nil {
		t.Fatal(err)
	}
	return k
}

// TestOpensAsNothingElse: a sealed value opens as the version of the secret that
// it was sealed as, with its key, unchanged, and in no other way.
func TestOpensAsNothingElse(t *testing.T) {
	one, two := newKey(t), newKey(t)
	r := NewRing(nil, one, two)
	of := Of{"alice", "db", 3}
	value := []byte("correct horse")
	sealed, err := r.Seal(one.ID(), of, value)
	if err != nil {
		t.Fatal(err)
	}
	if bytes.Contains(sealed, value) || len(sealed) != len(value)+28 {
		t.Errorf("sealed = %q", sealed)
	}
	if got, err := r.Open(one.ID(), of, sealed); err != nil || !bytes.Equal(got, value) {
		t.Errorf("Open = %q, %v, want what was sealed", got, err)
	}
	for _, other := range []Of{{"alice", "db", 2}, {"alice", "db2", 3}, {"bob", "db", 3}, {"alic", "edb", 3}} {
		if got, err := r.Open(one.ID(), other, sealed); err == nil {
			t.Errorf("it opens as %v: %q", other, got)
		} else if strings.Contains(err.Error(), string(value)) {
			t.Errorf("the error tells the value: %v", err)
		}
	}
	if got, err := r.Open(two.ID(), of, sealed); err == nil {
		t.Errorf("it opens with another key: %q", got)
	}
	for i := range sealed {
		changed := bytes.Clone(sealed)
		changed[i] ^= 1
		if got, err := r.Open(one.ID(), of, changed); err == nil {
			t.Errorf("it opens with byte %d changed: %q", i, got)
		}
	}
	again, err := r.Seal(one.ID(), of, value)
	if err != nil || bytes.Equal(again, sealed) {
		t.Errorf("the same value sealed twice is the same: %v", err)
	}
}

func TestRingIsKept(t *testing.T) {
	var kept []byte
	r := NewRing(func(data []byte) error { kept = data; return nil })
	if r.First() != "" {
		t.Errorf("First = %q of no keys", r.First())
	}
	one, two := newKey(t), newKey(t)
	if err := r.Change(NewRing(nil, one), nil); err != nil {
		t.Fatal(err)
	}
	if err := r.Change(NewRing(nil, one, two), nil); err != nil {
		t.Fatal(err)
	}
	read, err := Decode(kept, nil)
	if err != nil {
		t.Fatal(err)
	}
	if want := []string{one.ID(), two.ID()}; !slices.Equal(read.IDs(), want) || r.First() != one.ID() {
		t.Errorf("kept are %v, want %v", read.IDs(), want)
	}
	if err := r.Change(nil, []string{one.ID()}); err != nil {
		t.Fatal(err)
	}
	var unknown *UnknownKeyError
	if _, err := r.Seal(one.ID(), Of{"alice", "db", 1}, nil); !errors.As(err, &unknown) {
		t.Errorf("sealed with a key that was dropped: %v", err)
	}
	full := errors.New("disk full")
	r.save = func([]byte) error { return full }
	if err := r.Change(NewRing(nil, newKey(t)), nil); !errors.Is(err, full) || len(r.IDs()) != 1 {
		t.Errorf("a key counts that could not be kept: %v, %v", err, r.IDs())
	}
	for _, odd := range []string{"", "{}", `{"format":2}`, `{"format":1,"keys":["AAAA"]}`} {
		if _, err := Decode([]byte(odd), nil); err == nil {
			t.Errorf("Decode(%q) is no error", odd)
		}
	}
}

// TestKeysAreNotShown: in no way of printing a key, or what holds one, is any of it.
func TestKeysAreNotShown(t *testing.T) {
	k := newKey(t)
	r := NewRing(nil, k)
	raw := k.raw()
	piece := raw[3:24]
	forms := []string{string(piece), hex.EncodeToString(piece), strings.ToUpper(hex.EncodeToString(piece)), strings.Trim(fmt.Sprint(piece), "[]"),
		strings.TrimSuffix(strings.TrimPrefix(fmt.Sprintf("%#v", piece), "[]byte{"), "}")}
	shows := func(text string) bool {
		return slices.ContainsFunc(forms, func(form string) bool { return strings.Contains(text, form) })
	}
	verbs := []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%X", "%d"}
	seen := 0
	for _, verb := range verbs {
		if shows(fmt.Sprintf(verb, raw[:])) {
			seen++
		}
		for what, v := range map[string]any{
			"a key": k, "a copy of a key": *k, "a ring": r, "keys": []*Key{k}, "fields": struct{ Key *Key }{k}, "hidden fields": struct {
				key  Key
				ring *Ring
			}{*k, r},
		} {
			if text := fmt.Sprintf(verb, v); shows(text) {
				t.Errorf("%s shows it with %s: %.300s", what, verb, text)
			}
		}
	}
	if seen < 5 {
		t.Errorf("the search finds a bare key with %d verbs", seen)
	}
	if got := fmt.Sprint(r); got != "cell keys "+k.ID() {
		t.Errorf("a ring prints as %q", got)
	}
}
