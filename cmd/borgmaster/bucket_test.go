package main

import (
	"bytes"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/xml"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"sort"
	"strconv"
	"strings"
	"sync"
	"testing"
)

const (
	storeKey    = "AKIDEXAMPLE"
	storeSecret = "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY"
)

// fakeStore is as much of a store that speaks the protocol of S3 as one needs to put
// an object, whole or in parts. It takes nothing that is not signed with the key.
type fakeStore struct {
	t  *testing.T
	mu sync.Mutex
	// Guarded by mu, as is all that follows.
	objects map[string][]byte
	parts   map[int][]byte
	// So many requests are answered with an error first.
	failures int
}

func (s *fakeStore) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	body, err := io.ReadAll(r.Body)
	refuse := func(status int, code string) {
		w.WriteHeader(status)
		fmt.Fprintf(w, "<Error><Code>%s</Code><Message>%s</Message></Error>", code, code)
	}
	if err != nil {
		// The client broke off.
		refuse(http.StatusBadRequest, "IncompleteBody")
		return
	}
	if !signedWell(r, storeSecret) {
		refuse(http.StatusForbidden, "SignatureDoesNotMatch")
		return
	}
	if s.failures > 0 {
		s.failures--
		refuse(http.StatusServiceUnavailable, "SlowDown")
		return
	}
	if strings.HasPrefix(r.Header.Get("X-Amz-Content-Sha256"), "STREAMING-") {
		if body, err = unchunk(body); err != nil {
			s.t.Error(err)
		}
	}
	query := r.URL.Query()
	switch {
	case r.Method == http.MethodPut && query.Has("partNumber"):
		n, _ := strconv.Atoi(query.Get("partNumber"))
		s.parts[n] = body
		w.Header().Set("ETag", fmt.Sprintf("%q", fmt.Sprint("part-", n)))
	case r.Method == http.MethodPut:
		s.objects[r.URL.Path] = body
		w.Header().Set("ETag", `"whole"`)
	case r.Method == http.MethodPost && query.Has("uploads"):
		s.parts = make(map[int][]byte)
		_ = xml.NewEncoder(w).Encode(struct {
			XMLName  xml.Name `xml:"InitiateMultipartUploadResult"`
			UploadId string
		}{UploadId: "upload"})
	case r.Method == http.MethodPost && query.Get("uploadId") == "upload":
		var whole []byte
		for n := 1; n <= len(s.parts); n++ {
			whole = append(whole, s.parts[n]...)
		}
		s.objects[r.URL.Path] = whole
		_ = xml.NewEncoder(w).Encode(struct {
			XMLName           xml.Name `xml:"CompleteMultipartUploadResult"`
			Bucket, Key, ETag string
		}{Bucket: "backups", Key: r.URL.Path, ETag: "whole"})
	case r.Method == http.MethodDelete:
		w.WriteHeader(http.StatusNoContent)
	default:
		s.t.Errorf("%s %s was not expected", r.Method, r.URL)
		refuse(http.StatusNotImplemented, "NotImplemented")
	}
}

// signedWell works out the signature of version 4 of a request, as Amazon's
// documentation has it.
func signedWell(r *http.Request, secret string) bool {
	rest, ok := strings.CutPrefix(r.Header.Get("Authorization"), "AWS4-HMAC-SHA256 ")
	if !ok {
		return false
	}
	said := make(map[string]string)
	for field := range strings.SplitSeq(rest, ",") {
		k, v, _ := strings.Cut(strings.TrimSpace(field), "=")
		said[k] = v
	}
	scope, isKey := strings.CutPrefix(said["Credential"], storeKey+"/")
	if !isKey {
		return false
	}
	headers := strings.Split(said["SignedHeaders"], ";")
	var canonical strings.Builder
	for _, name := range headers {
		value := r.Header.Get(name)
		switch name {
		case "host":
			value = r.Host
		case "content-length":
			value = fmt.Sprint(r.ContentLength)
		}
		fmt.Fprintf(&canonical, "%s:%s\n", name, strings.TrimSpace(value))
	}
	var query []string
	for k, values := range r.URL.Query() {
		for _, v := range values {
			query = append(query, url.QueryEscape(k)+"="+url.QueryEscape(v))
		}
	}
	sort.Strings(query)
	request := strings.Join([]string{r.Method, r.URL.EscapedPath(), strings.Join(query, "&"), canonical.String(), said["SignedHeaders"], r.Header.Get("X-Amz-Content-Sha256")}, "\n")
	sum := sha256.Sum256([]byte(request))
	text := strings.Join([]string{"AWS4-HMAC-SHA256", r.Header.Get("X-Amz-Date"), scope, hex.EncodeToString(sum[:])}, "\n")
	key := []byte("AWS4" + secret)
	for part := range strings.SplitSeq(scope, "/") {
		key = hmacOf(key, part)
	}
	return slices.Contains(headers, "host") && hex.EncodeToString(hmacOf(key, text)) == said["Signature"]
}

func hmacOf(key []byte, text string) []byte {
	h := hmac.New(sha256.New, key)
	h.Write([]byte(text))
	return h.Sum(nil)
}

// unchunk takes the signed chunks of a body apart: size, signature, bytes.
func unchunk(body []byte) (out []byte, err error) {
	for {
		line, rest, ok := bytes.Cut(body, []byte("\r\n"))
		size, _, _ := strings.Cut(string(line), ";")
		n, err := strconv.ParseInt(size, 16, 64)
		if !ok || err != nil || int(n) > len(rest) {
			return nil, fmt.Errorf("a chunk begins with %q", line)
		}
		if n == 0 {
			return out, nil
		}
		out = append(out, rest[:n]...)
		body = bytes.TrimPrefix(rest[n:], []byte("\r\n"))
	}
}

// TestBucket puts checkpoints into a store, small ones whole and large ones in
// parts, through trouble that passes; with another key it is refused.
func TestBucket(t *testing.T) {
	store := &fakeStore{t: t, objects: make(map[string][]byte)}
	server := httptest.NewServer(store)
	defer server.Close()
	t.Setenv("AWS_ACCESS_KEY_ID", storeKey)
	t.Setenv("AWS_SECRET_ACCESS_KEY", storeSecret)
	to, err := destination("s3://backups/borg/cells?region=nowhere&endpoint="+server.URL, "cc")
	if err != nil {
		t.Fatal(err)
	}
	if text := to.String(); strings.Contains(text, storeSecret) || !strings.HasPrefix(text, "s3://backups/borg/cells/cc at 127.0.0.1:") {
		t.Errorf("it calls itself %q", text)
	}
	large := bytes.Repeat([]byte("0123456789abcdef"), (2*bucketPartBytes+1000)/16)
	for name, data := range map[string][]byte{"checkpoint-1-000000000010.ckpt": []byte("small"), "checkpoint-1-000000000020.ckpt": large} {
		store.mu.Lock()
		store.failures = 1
		store.mu.Unlock()
		if err := to.Put(t.Context(), name, int64(len(data)), bytes.NewReader(data)); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		store.mu.Lock()
		if got := store.objects["/backups/borg/cells/cc/"+name]; !bytes.Equal(got, data) {
			t.Errorf("%s: %d bytes are there, want %d", name, len(got), len(data))
		}
		store.mu.Unlock()
	}
	if err := to.Put(t.Context(), "short", 10, strings.NewReader("short")); err == nil {
		t.Error("a file that is too short was put")
	}

	t.Setenv("AWS_SECRET_ACCESS_KEY", "another")
	to, err = destination("s3://backups?region=nowhere&endpoint="+server.URL, "cc")
	if err != nil {
		t.Fatal(err)
	}
	if err := to.Put(t.Context(), "x", 1, strings.NewReader("x")); err == nil || strings.Contains(err.Error(), "another") {
		t.Errorf("with another secret: %v", err)
	}
}
