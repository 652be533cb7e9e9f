package packages

import (
	"context"
	"encoding/base64"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"

	"github.com/klauspost/compress/zstd"

	"borg/borglet"
)

// guarded is a registry with a login.
type guarded struct {
	// manifests that the registry behind it does not have.
	manifests map[string][]byte

	mu sync.Mutex
	// Guarded by mu. password is that of the user "cell".
	password string
	// token is good for so many requests more; zero: another has to be fetched.
	token  string
	good   int
	tokens int
}

func (g *guarded) known(r *http.Request) bool {
	user, password, ok := r.BasicAuth()
	return ok && user == "cell" && password == g.password
}

// around lets in who is known: by his password, or by a token that he fetched with it.
func (g *guarded) around(bearer bool) func(http.Handler) http.Handler {
	return func(inner http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			g.mu.Lock()
			defer g.mu.Unlock()
			challenge := `Basic realm="registry"`
			if bearer {
				challenge = fmt.Sprintf(`Bearer realm="http://%s/token",service="registry"`, r.Host)
			}
			ok := !bearer && g.known(r)
			if r.URL.Path == "/token" {
				if !g.known(r) {
					w.WriteHeader(http.StatusUnauthorized)
					return
				}
				g.tokens++
				g.token, g.good = fmt.Sprint("token-", g.tokens), 2
				fmt.Fprintf(w, `{"token": %q}`, g.token)
				return
			}
			if bearer && g.good > 0 && r.Header.Get("Authorization") == "Bearer "+g.token {
				ok = true
				g.good--
			}
			if !ok {
				w.Header().Set("WWW-Authenticate", challenge)
				w.WriteHeader(http.StatusUnauthorized)
				return
			}
			if text := g.manifests[filepath.Base(r.URL.Path)]; text != nil {
				w.Write(text)
				return
			}
			inner.ServeHTTP(w, r)
		})
	}
}

func zstdOf(t testing.TB, plain []byte) []byte {
	t.Helper()
	w, err := zstd.NewWriter(nil)
	if err != nil {
		t.Fatal(err)
	}
	return w.EncodeAll(plain, nil)
}

// zstdImage is one whose layer says that it is packed so.
func zstdImage(t testing.TB, text string) *testImage {
	i := imageOf(t, runtime.GOARCH, zstdOf(t, tarOf(t, file("name", text))))
	manifest := strings.ReplaceAll(string(i.blobs[i.digest]), "tar+gzip", "tar+zstd")
	delete(i.blobs, i.digest)
	i.digest = Digest(i.add([]byte(manifest)).Digest)
	return i
}

// TestLogin: a registry is shown who this machine is, by password or by a token, again when
// a token is good no more and when the password is another; and it is never put into words.
func TestLogin(t *testing.T) {
	for name, bearer := range map[string]bool{"basic": false, "bearer": true} {
		t.Run(name, func(t *testing.T) {
			first, second := zstdImage(t, "first"), zstdImage(t, "second")
			both := &testImage{digest: first.digest, blobs: map[Digest][]byte{}}
			for _, i := range []*testImage{first, second} {
				maps.Copy(both.blobs, i.blobs)
			}
			g := &guarded{password: "first-secret", manifests: map[string][]byte{string(second.digest): second.blobs[second.digest]}}
			source := serveRegistry(t, both, g.around(bearer))
			u, err := url.Parse(source)
			if err != nil {
				t.Fatal(err)
			}
			path := filepath.Join(t.TempDir(), "credentials.json")
			write := func(password string) {
				t.Helper()
				text := fmt.Sprintf(`{"auths": {%q: {"username": "cell", "password": %q}}}`, u.Host, password)
				if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			write("wrong-secret")
			who, err := ReadCredentials(path)
			if err != nil {
				t.Fatal(err)
			}
			from, err := ParseSource(source, who)
			if err != nil {
				t.Fatal(err)
			}
			var said strings.Builder
			s, err := Open(Config{Dir: t.TempDir(), Sources: []Source{from}, LimitBytes: 1 << 30, Log: slog.New(slog.NewTextHandler(&said, nil))})
			if err != nil {
				t.Fatal(err)
			}
			hold := func(i *testImage) error {
				_, err := s.Hold(context.Background(), borglet.Turn{}, "copy", texts([]Digest{i.digest}), nil)
				if err != nil {
					said.WriteString(err.Error())
				}
				return err
			}
			if err := hold(first); err == nil {
				t.Fatal("with a wrong password it was had")
			}
			write("first-secret")
			trees := s.mustHold(t, "copy", first.digest)
			if text, err := os.ReadFile(filepath.Join(trees[0][0], "name")); string(text) != "first" {
				t.Errorf("the layer holds %q (%v)", text, err)
			}
			if bearer && g.tokens < 2 {
				t.Errorf("%d tokens were fetched, and each is good for two requests", g.tokens)
			}
			// Another password, of which it hears by being refused.
			g.mu.Lock()
			g.password, g.good = "second-secret", 0
			g.mu.Unlock()
			write("second-secret")
			for tries := 1; hold(second) != nil; tries++ {
				if tries == 5 {
					t.Fatal("with the new password it cannot be had")
				}
			}
			for _, secret := range []string{"first-secret", "second-secret", "wrong-secret", "token-1", base64.StdEncoding.EncodeToString([]byte("cell:first-secret"))} {
				if strings.Contains(said.String()+fmt.Sprint(from), secret) {
					t.Errorf("%s was said: %s", secret, said.String())
				}
			}
		})
	}
}

// TestLoginOfASecret: a package that names a secret is brought as that says, and no other
// one; the secret is in no word, and in no file.
func TestLoginOfASecret(t *testing.T) {
	for name, bearer := range map[string]bool{"basic": false, "bearer": true} {
		t.Run(name, func(t *testing.T) {
			first, second := zstdImage(t, "first"), zstdImage(t, "second")
			both := &testImage{digest: first.digest, blobs: map[Digest][]byte{}}
			for _, i := range []*testImage{first, second} {
				maps.Copy(both.blobs, i.blobs)
			}
			g := &guarded{password: "secret-password", manifests: map[string][]byte{string(second.digest): second.blobs[second.digest]}}
			source := serveRegistry(t, both, g.around(bearer))
			u, err := url.Parse(source)
			if err != nil {
				t.Fatal(err)
			}
			var said strings.Builder
			// The machine's own is of no use.
			path := filepath.Join(t.TempDir(), "credentials.json")
			if err := os.WriteFile(path, []byte(`{"auths": {"elsewhere": {"username": "cell", "password": "x"}}}`), 0o600); err != nil {
				t.Fatal(err)
			}
			from, err := ParseSource(source, Credentials(path))
			if err != nil {
				t.Fatal(err)
			}
			dir := t.TempDir()
			s, err := Open(Config{Dir: dir, Sources: []Source{from}, LimitBytes: 1 << 30, Log: slog.New(slog.NewTextHandler(&said, nil))})
			if err != nil {
				t.Fatal(err)
			}
			asked := 0
			hold := func(i *testImage, holder, value string) error {
				_, err := s.Hold(context.Background(), borglet.Turn{}, holder, texts([]Digest{i.digest}), func(_ context.Context, digest string) ([]byte, error) {
					if asked++; digest != string(i.digest) {
						t.Errorf("a login for %s was asked for", digest)
					}
					if value == "" {
						return nil, nil
					}
					return []byte(value), nil
				})
				if err != nil {
					said.WriteString(err.Error())
				}
				return err
			}
			if hold(first, "nobody", "") == nil {
				t.Error("it was had without a login")
			}
			for _, wrong := range []string{
				`secret-password`, `{}`, `{"username": ""}`, `{"auths": {"h": {"auth": "secret-password"}}}`,
				`{"username": "cell", "password": "wrong-secret-password"}`, `{"auths": {"elsewhere": {"username": "cell", "password": "secret-password"}}}`,
			} {
				if hold(first, "wrong", wrong) == nil {
					t.Errorf("it was had with %s", wrong)
				}
			}
			if err := hold(first, "one", `{"username": "cell", "password": "secret-password"}`); err != nil {
				t.Fatal(err)
			}
			// Who has the package is asked for nothing.
			before := asked
			if err := hold(first, "two", "secret-password is not looked at"); err != nil || asked != before {
				t.Errorf("what is here: %v, asked %d times", err, asked-before)
			}
			// Nobody else is who that was.
			if hold(second, "three", "") == nil {
				t.Error("another package was had with the login of the first")
			}
			if err := hold(second, "four", fmt.Sprintf(`{"auths": {%q: {"username": "cell", "password": "secret-password"}}}`, u.Host)); err != nil {
				t.Error(err)
			}
			if strings.Contains(said.String(), "secret-password") {
				t.Errorf("the secret was said: %s", said.String())
			}
			err = filepath.WalkDir(dir, func(path string, e os.DirEntry, err error) error {
				if err != nil || !e.Type().IsRegular() {
					return err
				}
				text, err := os.ReadFile(path)
				if strings.Contains(string(text), "secret-password") {
					t.Errorf("the secret is in %s", path)
				}
				return err
			})
			if err != nil {
				t.Error(err)
			}
		})
	}
}

// TestCredentials: what cannot be used is refused, without a word of what is in it.
func TestCredentials(t *testing.T) {
	dir := t.TempDir()
	for name, c := range map[string]struct {
		mode   os.FileMode
		text   string
		reason string
	}{
		"good":        {0o600, `{"auths": {"h": {"auth": "Y2VsbDpoaWRkZW4="}}}`, ""},
		"read-only":   {0o400, `{"auths": {"h": {"username": "cell", "password": "hidden"}}}`, ""},
		"others":      {0o640, `{"auths": {"h": {"auth": "Y2VsbDpoaWRkZW4="}}}`, "chmod 600"},
		"no JSON":     {0o600, `hidden`, "want the form"},
		"nothing":     {0o600, `{}`, "want the form"},
		"no base64":   {0o600, `{"auths": {"h": {"auth": "hidden"}}}`, "h: its auth"},
		"no password": {0o600, `{"auths": {"h": {}}}`, "h: it has no username"},
		"too long":    {0o600, strings.Repeat(" ", maxCredentialsBytes+1), "at most"},
	} {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(c.text), c.mode); err != nil {
			t.Fatal(err)
		}
		_, err := ReadCredentials(path)
		switch {
		case c.reason == "" && err != nil:
			t.Errorf("%s: %v", name, err)
		case c.reason != "" && (err == nil || !strings.Contains(err.Error(), c.reason)):
			t.Errorf("%s: %v, want %q", name, err, c.reason)
		case err != nil && strings.Contains(err.Error(), "hidden"):
			t.Errorf("%s: it says what is hidden: %v", name, err)
		}
	}
	for _, path := range []string{"relative", filepath.Join(dir, "absent"), dir} {
		if _, err := ReadCredentials(path); err == nil {
			t.Errorf("%s was taken", path)
		}
	}
}
