package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"

	served "github.com/google/go-containerregistry/pkg/registry"

	"borg/proto/borgpb"
)

// imageWith puts an image with one file into a registry and returns its digest.
func imageWith(t *testing.T, into http.Handler, name, text string) string {
	t.Helper()
	put := func(method, path, contentType string, content []byte) {
		t.Helper()
		req := httptest.NewRequest(method, path, bytes.NewReader(content))
		req.Header.Set("Content-Type", contentType)
		w := httptest.NewRecorder()
		into.ServeHTTP(w, req)
		if w.Code != http.StatusCreated {
			t.Fatalf("%s: %d %s", path, w.Code, w.Body)
		}
	}
	digest := func(content []byte) string { return fmt.Sprintf("sha256:%x", sha256.Sum256(content)) }
	blob := func(content []byte) string {
		put(http.MethodPost, "/v2/a/tool/blobs/uploads/?digest="+digest(content), "", content)
		return fmt.Sprintf(`"digest": %q, "size": %d`, digest(content), len(content))
	}
	var layer bytes.Buffer
	zip := gzip.NewWriter(&layer)
	pack := tar.NewWriter(zip)
	err := pack.WriteHeader(&tar.Header{Name: name, Typeflag: tar.TypeReg, Mode: 0o644, Size: int64(len(text))})
	if err == nil {
		_, err = pack.Write([]byte(text))
	}
	if err == nil {
		err = pack.Close()
	}
	if err == nil {
		err = zip.Close()
	}
	if err != nil {
		t.Fatal(err)
	}
	const kind = "application/vnd.oci.image."
	manifest := fmt.Appendf(nil, `{"schemaVersion": 2, "mediaType": "%[1]smanifest.v1+json", "config": {"mediaType": "%[1]sconfig.v1+json", %[2]s},
		"layers": [{"mediaType": "%[1]slayer.v1.tar+gzip", %[3]s}]}`,
		kind, blob(fmt.Appendf(nil, `{"architecture": %q, "os": "linux"}`, runtime.GOARCH)), blob(layer.Bytes()))
	put(http.MethodPut, "/v2/a/tool/manifests/"+digest(manifest), kind+"manifest.v1+json", manifest)
	return digest(manifest)
}

// lockedRegistry lets in who has the password of the user "cell", or a token that he
// fetched with it. let counts requests that it let in.
func lockedRegistry(inner http.Handler, bearer bool, password, token string, let *atomic.Int64) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		user, given, said := r.BasicAuth()
		known := said && user == "cell" && given == password
		if bearer && r.URL.Path == "/token" && known {
			fmt.Fprintf(w, `{"token": %q}`, token)
			return
		}
		challenge := `Basic realm="registry"`
		if bearer {
			challenge = fmt.Sprintf(`Bearer realm="http://%s/token",service="registry"`, r.Host)
			known = r.Header.Get("Authorization") == "Bearer "+token
		}
		if !known {
			w.Header().Set("WWW-Authenticate", challenge)
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		let.Add(1)
		inner.ServeHTTP(w, r)
	})
}

// TestPackageCredentials: a job's package is brought from a registry that asks who one is,
// by a password or by tokens, with a secret of the job's owner. A wrong one is told where
// people look; when it is right the task runs; and neither of them is in anything that
// the cell writes, says or keeps.
func TestPackageCredentials(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("packages at a path need containers, and containers need root")
	}
	for name, bearer := range map[string]bool{"basic": false, "bearer": true} {
		t.Run(name, func(t *testing.T) { packageCredentials(t, bearer) })
	}
}

func packageCredentials(t *testing.T, bearer bool) {
	alongside(t)
	random := func() string {
		var b [36]byte
		rand.Read(b[:])
		return base64.RawURLEncoding.EncodeToString(b[:])
	}
	wrong, right, token, open := random(), random(), random(), random()
	needles := []needle{newNeedle("control", []byte(open))}
	for name, value := range map[string]string{"wrong password": wrong, "password": right, "token": token} {
		needles = append(needles, newNeedle(name, []byte(value)), newNeedle(name+" as shown", []byte(base64.StdEncoding.EncodeToString([]byte("cell:"+value)))))
	}
	inner := served.New(served.Logger(slog.NewLogLogger(slog.DiscardHandler, 0)))
	digest := imageWith(t, inner, "name", "brought "+name(bearer)+"\n")
	var let atomic.Int64
	registry := httptest.NewServer(lockedRegistry(inner, bearer, right, token, &let))
	t.Cleanup(registry.Close)

	c := newChaosCell(t, 1, 1)
	c.alter = func(spec *processSpec) {
		if spec.Name == c.machineName(1) {
			spec.Args = append(spec.Args, "--package-source", registry.URL+"/a/tool")
		}
	}
	c.startAll(t)
	c.hasLatestFormat(t)
	h := &haystack{t: t, found: map[string][]string{}}
	set := func(password string) {
		t.Helper()
		h.run(c, fmt.Appendf(nil, `{"username": "cell", "password": %q}`, password), needles, "borgcfg", "-v", "secret", "set", "registry")
	}
	set(wrong)
	spec := sleepers(1)
	spec.Task.Env = map[string]string{"CONTROL": open}
	spec.Task.Args = []string{"/bin/sh", "-c", "env; cat /opt/tool/name; exec sleep 1000000"}
	spec.Task.Packages = []*borgpb.Package{{Name: "tool", Digest: digest, Path: "/opt/tool", Credentials: "registry"}}
	if _, err := c.submit(shortly(t), "canary", spec); err != nil {
		t.Fatal(err)
	}
	for _, verb := range [][]string{{"why", "canary/0"}, {"tasks", "canary", "-o", "wide"}} {
		waitFor(t, strings.Join(verb, " ")+" tells that the registry lets nobody in", func() string {
			if out := h.run(c, nil, needles, "borgcfg", verb...); !strings.Contains(out, "401") {
				return fmt.Sprintf("it says %q", out)
			}
			return ""
		})
	}
	if n := let.Load(); n != 0 {
		t.Errorf("the registry let %d requests in that had the wrong password", n)
	}
	set(right)
	if _, err := c.jobIs(shortly(t), "canary", "all tasks run", started); err != nil {
		t.Fatal(err)
	}
	waitFor(t, "the task has read what was brought", func() string {
		if out := c.output(t, "canary"); !strings.Contains(out, "brought "+name(bearer)) {
			return fmt.Sprintf("it has said %q", out)
		}
		return ""
	})
	if let.Load() == 0 {
		t.Error("the package did not come from the registry")
	}
	for _, verb := range canaryVerbs {
		h.run(c, nil, needles, "borgcfg", verb...)
	}
	h.lookAtCheckpoint(c, needles)
	h.lookAtProcesses(c.layout, needles)
	h.lookAtPages(c, needles)
	h.lookBelow(c.dir, needles)
	h.lookBelow(c.RunDir, needles)
	t.Logf("looked at %d files, outputs and records, %d MiB", h.files, h.bytes>>20)
	if len(h.found["control"]) == 0 {
		t.Error("the search does not see even what is open")
	}
	for what, at := range h.found {
		if what != "control" {
			t.Errorf("the %s is in %s", what, strings.Join(at, "\n"))
		}
	}
}

// name of a way to say who one is.
func name(bearer bool) string {
	if bearer {
		return "by a token"
	}
	return "by a password"
}
