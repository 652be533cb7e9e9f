package identity_test

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"log/slog"
	"math/big"
	"strings"
	"testing"
	"time"

	"borg/identity"
)

// keyForms are a key in the forms in which programs write bytes.
func keyForms(t *testing.T, der []byte) (forms []string) {
	t.Helper()
	parsed, err := x509.ParsePKCS8PrivateKey(der)
	if err != nil {
		t.Fatal(err)
	}
	var raw []byte
	switch key := parsed.(type) {
	case ed25519.PrivateKey:
		raw = key.Seed()
	case *ecdsa.PrivateKey:
		if raw, err = key.Bytes(); err != nil {
			t.Fatal(err)
		}
		forms = append(forms, new(big.Int).SetBytes(raw).String())
	default:
		t.Fatalf("a key of type %T", parsed)
	}
	// A piece of it is enough to look for: what is around it may differ.
	piece := raw[3:24]
	return append(forms, string(piece), hex.EncodeToString(piece), strings.ToUpper(hex.EncodeToString(piece)), strings.Trim(fmt.Sprint(piece), "[]"),
		base64.StdEncoding.EncodeToString(piece), strings.TrimSuffix(strings.TrimPrefix(fmt.Sprintf("%#v", piece), "[]byte{"), "}"), fmt.Sprintf("%q", piece))
}

// keysIn are the private keys of a PEM file.
func keysIn(t *testing.T, data []byte) (forms []string) {
	t.Helper()
	for {
		var block *pem.Block
		if block, data = pem.Decode(data); block == nil {
			return forms
		}
		if block.Type == "PRIVATE KEY" {
			forms = append(forms, keyForms(t, block.Bytes)...)
		}
	}
}

// foreignCredential is one that another authority issued, with a key of another
// kind.
func foreignCredential(t *testing.T, ca *identity.Authority) *identity.Credential {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{NotBefore: time.Now(), NotAfter: time.Now().Add(time.Hour), SerialNumber: big.NewInt(1)}
	cert, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	_, _, authorities, err := certify(t, ca, name(identity.User, "bob"), time.Now(), time.Hour).Parts()
	if err != nil {
		t.Fatal(err)
	}
	c, err := identity.NewForeignCredential(name(identity.User, "bob"), pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert}),
		pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}), authorities)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// TestKeysAreNotShown prints everything that holds a key, in all ways in which Go
// prints, and where it lies in structures of others: no key is in it, and of the
// same key in a slice of bytes the search finds each form.
func TestKeysAreNotShown(t *testing.T) {
	ca := authority(t, "test")
	next, err := ca.Replaced(time.Now(), 0, time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	own := certify(t, ca, name(identity.User, "alice"), time.Now(), identity.UserLife)
	foreign := foreignCredential(t, ca)
	token := &identity.Token{Credential: own, Masters: []string{"a:1"}}
	var forms []string
	for _, encode := range []func() ([]byte, error){next.Encode, own.Encode, foreign.Encode} {
		data, err := encode()
		if err != nil {
			t.Fatal(err)
		}
		forms = append(forms, keysIn(t, data)...)
	}
	data, err := own.Encode()
	if err != nil {
		t.Fatal(err)
	}
	block, _ := pem.Decode(data)
	key, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	shows := func(text string) bool {
		for _, form := range forms {
			if strings.Contains(text, form) {
				return true
			}
		}
		return strings.Contains(text, token.Text()[:40])
	}
	verbs := []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%X", "%d", "%o", "%c", "%T %v"}
	ways := func(v any) (said []string) {
		for _, verb := range verbs {
			said = append(said, fmt.Sprintf(verb, v))
		}
		text, _ := json.Marshal(v)
		var log bytes.Buffer
		for _, h := range []slog.Handler{slog.NewTextHandler(&log, nil), slog.NewJSONHandler(&log, nil)} {
			slog.New(h).Info("holds a key", "it", v)
		}
		return append(said, string(text), fmt.Sprint(v), log.String())
	}

	// The search sees: the bare key shows in most of these ways.
	seen := 0
	for _, text := range ways(key.(ed25519.PrivateKey).Seed()) {
		if shows(text) {
			seen++
		}
	}
	if seen < 8 {
		t.Fatalf("the search finds a bare key in %d ways of printing it", seen)
	}

	type exported struct {
		Credential *identity.Credential
		Value      identity.Credential
		Authority  *identity.Authority
		Source     *identity.Source
		Token      *identity.Token
		Any        any
	}
	type hidden struct {
		credential *identity.Credential
		value      identity.Credential
		authority  *identity.Authority
		source     *identity.Source
		token      identity.Token
		list       []*identity.Credential
		named      map[string]identity.Credential
		any        any
	}
	who := identity.NewSource(own, nil, nil)
	for what, v := range map[string]any{
		"a credential": own, "one of another authority": foreign, "a copy of a credential": *own, "what TLS has": own.TLS(), "a copy of what TLS has": *own.TLS(),
		"what TLS has of another authority": foreign.TLS(), "a configuration of TLS": who.ClientTLS(name(identity.Master, "")),
		"an authority": next, "a source": who, "a token": token, "a copy of a token": *token, "many": []any{own, next, token},
		"fields":            exported{own, *own, next, who, token, *own},
		"pointer to fields": &exported{own, *foreign, next, who, token, own.TLS()},
		"hidden fields":     hidden{own, *own, next, who, *token, []*identity.Credential{own}, map[string]identity.Credential{"a": *foreign}, *own.TLS()},
		"an error":          fmt.Errorf("it is %v", own),
	} {
		for i, text := range ways(v) {
			if shows(text) {
				t.Errorf("%s shows a key, in way %d of printing it: %.300s", what, i, text)
			}
		}
	}
	if got := fmt.Sprint(own); !strings.Contains(got, "spiffe://test/user/alice") {
		t.Errorf("a credential prints as %q, want its name in it", got)
	}
	// What is not shown can be used: each of them still makes a connection.
	master := source(t, next, name(identity.Master, "1"))
	if a, b := shake(identity.NewSource(certify(t, next, name(identity.User, "alice"), time.Now(), time.Hour), nil, nil).ClientTLS(name(identity.Master, "1")), master.ServerTLS()); a != nil || b != nil {
		t.Errorf("a connection: %v, %v", a, b)
	}
}
