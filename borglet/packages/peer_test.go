package packages

import (
	"bytes"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"borg/borglet"
)

// anybody asks whoever answers: who may is decided elsewhere.
func anybody(t testing.TB) *http.Client {
	transport := &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport}
}

// machine is a store that serves, and asks others.
type machine struct {
	*Store
	server *httptest.Server
	addr   string
	// What comes before its answers; may be nil.
	around atomic.Pointer[http.HandlerFunc]
}

func newMachine(t testing.TB, dir string, source string, patience time.Duration) *machine {
	t.Helper()
	cfg := Config{Dir: dir, LimitBytes: 1 << 30, Peers: anybody(t), Patience: patience, Log: slog.New(slog.DiscardHandler)}
	if source != "" {
		from, err := ParseSource(source, "")
		if err != nil {
			t.Fatal(err)
		}
		cfg.Sources = []Source{from}
	}
	s, err := Open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	m := &machine{Store: s}
	handler := s.Handler()
	m.server = httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if f := m.around.Load(); f != nil {
			(*f)(w, r)
			return
		}
		handler.ServeHTTP(w, r)
	}))
	t.Cleanup(m.server.Close)
	m.addr = m.server.Listener.Addr().String()
	return m
}

func (m *machine) advise(d Digest, origin bool, peers ...*machine) {
	a := borglet.PackageAdvice{Origin: origin}
	for _, p := range peers {
		a.Peers = append(a.Peers, p.addr)
	}
	m.Advise(map[string]borglet.PackageAdvice{string(d): a})
}

// counting is a source that counts what it is asked for and gives.
type counting struct {
	bytes atomic.Int64
	asked atomic.Int64
}

func (c *counting) around(inner http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c.asked.Add(1)
		inner.ServeHTTP(&countingWriter{w, &c.bytes}, r)
	})
}

type countingWriter struct {
	http.ResponseWriter
	n *atomic.Int64
}

func (w *countingWriter) Write(p []byte) (int, error) {
	w.n.Add(int64(len(p)))
	return w.ResponseWriter.Write(p)
}

// TestServes: what is whole is served by its digest, to be read and in parts; nothing
// else has a name.
func TestServes(t *testing.T) {
	i := simple(t, 1, 300_000)
	m := newMachine(t, t.TempDir(), writeLayout(t, i), 0)
	m.mustHold(t, "copy", i.digest)
	layer := i.layers[0]
	half := digestOf([]byte("half"))
	if err := os.WriteFile(filepath.Join(m.root, partialDir, half.hex()), []byte("ha"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		method, path, bytes string
		code                int
		body                []byte
	}{
		{"GET", "/v2/any/name/blobs/" + string(layer), "", 200, i.blobs[layer]},
		{"GET", "/v2/x/blobs/" + string(layer), "bytes=100-199", 206, i.blobs[layer][100:200]},
		{"GET", "/v2/x/blobs/" + string(layer), "bytes=200000-", 206, i.blobs[layer][200_000:]},
		{"GET", "/v2/x/blobs/" + string(layer), "bytes=9999999-", 416, nil},
		{"HEAD", "/v2/x/blobs/" + string(layer), "", 200, []byte{}},
		{"GET", "/v2/x/manifests/" + string(i.digest), "", 200, i.blobs[i.digest]},
		{"GET", "/v2/x/manifests/" + string(layer), "", 404, nil},
		{"GET", "/v2/x/manifests/latest", "", 404, nil},
		{"GET", "/v2/x/blobs/" + string(half), "", 404, nil},
		{"GET", "/v2/x/blobs/" + string(digestOf(nil)), "", 404, nil},
		{"GET", "/v2/x/blobs/sha256:../../refs/copy", "", 404, nil},
		{"GET", "/v2/x/blobs/", "", 404, nil},
		{"GET", "/v2/x/tags/list", "", 404, nil},
		{"GET", "/v2/_catalog", "", 404, nil},
		{"GET", "/", "", 404, nil},
		{"PUT", "/v2/x/blobs/" + string(layer), "", 405, nil},
		{"DELETE", "/v2/x/blobs/" + string(layer), "", 405, nil},
		{"POST", "/v2/x/blobs/uploads/", "", 405, nil},
	} {
		req, err := http.NewRequest(c.method, m.server.URL+c.path, nil)
		if err != nil {
			t.Fatal(err)
		}
		if c.bytes != "" {
			req.Header.Set("Range", c.bytes)
		}
		resp, err := m.cfg.Peers.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		if err != nil || resp.StatusCode != c.code || c.body != nil && !bytes.Equal(body, c.body) {
			t.Errorf("%s %s %s: %d with %d bytes (%v), want %d with %d", c.method, c.path, c.bytes, resp.StatusCode, len(body), err, c.code, len(c.body))
		}
	}
}

// TestServesSoMany: who is one too many is told to ask elsewhere, and asks again.
func TestServesSoMany(t *testing.T) {
	i := simple(t, 2, 300_000)
	has := newMachine(t, t.TempDir(), writeLayout(t, i), 0)
	has.mustHold(t, "copy", i.digest)
	v := has.Handler().(*server)
	f := http.HandlerFunc(v.ServeHTTP)
	has.around.Store(&f)
	for range maxServed {
		v.places <- struct{}{}
	}
	resp, err := has.cfg.Peers.Get(has.server.URL + "/v2/x/blobs/" + string(i.layers[0]))
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if resp.StatusCode != http.StatusServiceUnavailable {
		t.Errorf("one more than may: %s", resp.Status)
	}
	var origin counting
	wants := newMachine(t, t.TempDir(), serveRegistry(t, i, origin.around), time.Hour)
	wants.advise(i.digest, false, has)
	done := make(chan error)
	go func() {
		_, err := wants.Hold(context.Background(), borglet.Turn{}, "copy", texts([]Digest{i.digest}), nil)
		done <- err
	}()
	for lacks := true; lacks; {
		at, _ := wants.shunned.until(has.addr, i.digest)
		lacks = at.IsZero()
	}
	for range maxServed {
		<-v.places
	}
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if n := origin.asked.Load(); n != 0 {
		t.Errorf("where it comes from was asked %d times although a machine has it", n)
	}
	if st := wants.State(); st.PeerBytes == 0 || st.PeerBytes != st.FetchedBytes {
		t.Errorf("state %+v", st)
	}
}

// TestWrongPeer: bytes that are not what was asked for are thrown away, whoever sent
// them, and he is not asked again.
func TestWrongPeer(t *testing.T) {
	i := simple(t, 3, 300_000)
	layer := i.layers[0]
	has := newMachine(t, t.TempDir(), writeLayout(t, i), 0)
	has.mustHold(t, "copy", i.digest)
	for name, lie := range map[string]func(w http.ResponseWriter, content []byte){
		"others":     func(w http.ResponseWriter, content []byte) { w.Write(bytes.Repeat([]byte("x"), len(content))) },
		"more":       func(w http.ResponseWriter, content []byte) { w.Write(append(bytes.Clone(content), "more"...)) },
		"fewer":      func(w http.ResponseWriter, content []byte) { w.Write(content[:len(content)/2]) },
		"wrong half": func(w http.ResponseWriter, content []byte) { w.Write(bytes.Repeat([]byte("x"), len(content)/2)) },
		"an error":   func(w http.ResponseWriter, _ []byte) { w.WriteHeader(500) },
		"a redirect": func(w http.ResponseWriter, _ []byte) {
			w.Header().Set("Location", "https://"+has.addr+"/elsewhere")
			w.WriteHeader(302)
		},
	} {
		t.Run(name, func(t *testing.T) {
			var asked atomic.Int64
			liar := newMachine(t, t.TempDir(), "", 0)
			f := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				asked.Add(1)
				_, d, _ := strings.Cut(r.URL.Path, "/blobs/")
				if d != string(layer) {
					w.Write(i.blobs[Digest(d)])
					return
				}
				lie(w, i.blobs[layer])
			})
			liar.around.Store(&f)
			var origin counting
			wants := newMachine(t, t.TempDir(), serveRegistry(t, i, origin.around), time.Hour)
			wants.advise(i.digest, false, liar, has)
			wants.mustHold(t, "copy", i.digest)
			if at, _ := wants.shunned.until(liar.addr, i.digest); at.IsZero() {
				t.Error("who lies would be asked again")
			}
			if n := origin.asked.Load(); n != 0 {
				t.Errorf("where it comes from was asked %d times", n)
			}
			// Manifest, configuration and layer.
			if n := asked.Load(); n != 3 {
				t.Errorf("who lies was asked %d times, want 3", n)
			}
		})
	}
}

// TestPeerDiesInBetween: what came of a machine that died is gone on with from the next.
func TestPeerDiesInBetween(t *testing.T) {
	i := simple(t, 4, 1<<20)
	layer := i.layers[0]
	size := len(i.blobs[layer])
	has := newMachine(t, t.TempDir(), writeLayout(t, i), 0)
	has.mustHold(t, "copy", i.digest)
	dies := newMachine(t, t.TempDir(), writeLayout(t, i), 0)
	dies.mustHold(t, "copy", i.digest)
	handler := dies.Handler()
	f := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !strings.HasSuffix(r.URL.Path, string(layer)) {
			handler.ServeHTTP(w, r)
			return
		}
		w.Header().Set("Content-Length", fmt.Sprint(size))
		w.Write(i.blobs[layer][:size/2])
		w.(http.Flusher).Flush()
		panic(http.ErrAbortHandler)
	})
	dies.around.Store(&f)
	wants := newMachine(t, t.TempDir(), "", time.Hour)
	wants.advise(i.digest, false, dies, has)
	wants.mustHold(t, "copy", i.digest)
	if st := wants.State(); st.Resumed != 1 {
		t.Errorf("state %+v: want one download that was gone on with", st)
	}
	if at, _ := wants.shunned.until(dies.addr, i.digest); at.IsZero() {
		t.Error("who broke off would be asked again at once")
	}
}

// TestPatience: a machine waits for one that has it, until masters say otherwise, until
// those who should have it say that they have not, or until it has waited for long.
func TestPatience(t *testing.T) {
	i := simple(t, 5, 1000)
	for name, c := range map[string]struct {
		patience time.Duration
		// What it is told while it waits.
		then func(m, without *machine)
	}{
		"its turn":         {time.Hour, func(m, _ *machine) { m.advise(i.digest, true) }},
		"no word any more": {time.Hour, func(m, _ *machine) { m.Advise(nil) }},
		"they have it not": {time.Hour, func(m, without *machine) { m.advise(i.digest, false, without) }},
		"long enough":      {10 * time.Millisecond, func(*machine, *machine) {}},
	} {
		t.Run(name, func(t *testing.T) {
			var origin counting
			m := newMachine(t, t.TempDir(), serveRegistry(t, i, origin.around), c.patience)
			m.advise(i.digest, false)
			done := make(chan error)
			go func() {
				_, err := m.Hold(context.Background(), borglet.Turn{}, "copy", texts([]Digest{i.digest}), nil)
				done <- err
			}()
			c.then(m, newMachine(t, t.TempDir(), "", 0))
			if err := <-done; err != nil {
				t.Fatal(err)
			}
			if origin.asked.Load() == 0 {
				t.Error("it has it from nowhere")
			}
		})
	}
	t.Run("told to stop", func(t *testing.T) {
		m := newMachine(t, t.TempDir(), "", time.Hour)
		m.advise(i.digest, false)
		ctx, cancel := context.WithCancel(context.Background())
		var wait sync.WaitGroup
		wait.Go(func() {
			if _, err := m.Hold(ctx, borglet.Turn{}, "copy", texts([]Digest{i.digest}), nil); err == nil {
				t.Error("it has it from nowhere")
			}
		})
		cancel()
		wait.Wait()
	})
}

// TestWhole: the list of what is here is the same slice for as long as it is the same,
// and has what was wanted last.
func TestWhole(t *testing.T) {
	images := []*testImage{simple(t, 6, 10), simple(t, 7, 10), simple(t, 8, 10)}
	s := openStore(t, t.TempDir(), 1<<30, writeLayout(t, images...))
	if got := s.Whole(2); len(got) != 0 {
		t.Errorf("of nothing: %v", got)
	}
	for n, i := range images {
		s.mustHold(t, "copy", i.digest)
		if got, want := s.Whole(2), min(n+1, 2); len(got) != want {
			t.Errorf("after %d: %v", n+1, got)
		}
	}
	first := s.Whole(2)
	if second := s.Whole(2); &first[0] != &second[0] {
		t.Error("the same list is another slice")
	}
	for _, d := range first {
		if d == string(images[0].digest) {
			t.Error("it lists what was wanted before the others")
		}
	}
	s.mustHold(t, "copy", images[0].digest)
	found := false
	for _, d := range s.Whole(2) {
		found = found || d == string(images[0].digest)
	}
	if !found {
		t.Error("it does not list what was wanted last")
	}
}
