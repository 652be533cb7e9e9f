package packages

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io/fs"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	served "github.com/google/go-containerregistry/pkg/registry"

	"borg/borglet"
)

// image under test: blobs by digest, and the one that names it.
type testImage struct {
	digest Digest
	layers []Digest
	blobs  map[Digest][]byte
}

func (i *testImage) add(content []byte) descriptor {
	d := digestOf(content)
	i.blobs[d] = content
	return descriptor{Digest: string(d), Size: int64(len(content))}
}

// imageOf makes an image for a kind of machine.
func imageOf(t testing.TB, arch string, layers ...[]byte) *testImage {
	t.Helper()
	i := &testImage{blobs: map[Digest][]byte{}}
	config := i.add(mustJSON(t, platform{Architecture: arch, OS: "linux"}))
	d := document{SchemaVersion: 2, MediaType: manifestTypes[0], Config: &config}
	for _, l := range layers {
		layer := i.add(l)
		layer.MediaType = "application/vnd.oci.image.layer.v1.tar+gzip"
		d.Layers = append(d.Layers, layer)
		i.layers = append(i.layers, Digest(layer.Digest))
	}
	i.digest = Digest(i.add(mustJSON(t, d)).Digest)
	return i
}

func mustJSON(t testing.TB, v any) []byte {
	t.Helper()
	text, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// noise is text that does not become smaller when it is packed.
func noise(seed uint64, bytes int) string {
	r := rand.New(rand.NewPCG(seed, 1))
	text := make([]byte, bytes)
	for i := range text {
		text[i] = byte(r.Uint32())
	}
	return string(text)
}

func simple(t testing.TB, seed uint64, bytes int) *testImage {
	t.Helper()
	return imageOf(t, runtime.GOARCH, gzipped(t, tarOf(t, file("data", noise(seed, bytes)))))
}

// writeLayout makes an OCI layout of images.
func writeLayout(t testing.TB, images ...*testImage) string {
	t.Helper()
	dir := t.TempDir()
	if err := os.MkdirAll(filepath.Join(dir, "blobs/sha256"), 0o755); err != nil {
		t.Fatal(err)
	}
	write := func(name string, content []byte) {
		if err := os.WriteFile(filepath.Join(dir, name), content, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	write("oci-layout", []byte(`{"imageLayoutVersion":"1.0.0"}`))
	for _, i := range images {
		for d, content := range i.blobs {
			write("blobs/sha256/"+d.hex(), content)
		}
	}
	return dir
}

func openStore(t testing.TB, dir string, limitBytes int64, sources ...string) *Store {
	t.Helper()
	cfg := Config{Dir: dir, LimitBytes: limitBytes, Log: slog.New(slog.DiscardHandler)}
	for _, text := range sources {
		source, err := ParseSource(text, "")
		if err != nil {
			t.Fatal(err)
		}
		cfg.Sources = append(cfg.Sources, source)
	}
	s, err := Open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func (s *Store) mustHold(t testing.TB, holder string, digests ...Digest) [][]string {
	t.Helper()
	trees, err := s.Hold(context.Background(), borglet.Turn{}, holder, texts(digests), nil)
	if err != nil {
		t.Fatal(err)
	}
	return trees
}

func texts(digests []Digest) (list []string) {
	for _, d := range digests {
		list = append(list, string(d))
	}
	return list
}

// serveRegistry is a registry of the library's, behind which changes what it answers.
func serveRegistry(t testing.TB, image *testImage, around func(http.Handler) http.Handler) string {
	t.Helper()
	inner := served.New(served.Logger(slog.NewLogLogger(slog.DiscardHandler, 0)))
	put := func(path, contentType string, content []byte) {
		method := http.MethodPost
		if strings.Contains(path, "/manifests/") {
			method = http.MethodPut
		}
		req := httptest.NewRequest(method, path, bytes.NewReader(content))
		req.Header.Set("Content-Type", contentType)
		w := httptest.NewRecorder()
		inner.ServeHTTP(w, req)
		if w.Code != http.StatusCreated {
			t.Fatalf("%s: %d %s", path, w.Code, w.Body)
		}
	}
	for d, content := range image.blobs {
		if d != image.digest {
			put("/v2/a/tool/blobs/uploads/?digest="+string(d), "", content)
		}
	}
	put("/v2/a/tool/manifests/"+string(image.digest), manifestTypes[0], image.blobs[image.digest])
	if around == nil {
		around = func(h http.Handler) http.Handler { return h }
	}
	server := httptest.NewServer(around(inner))
	t.Cleanup(server.Close)
	return server.URL + "/a/tool"
}

// TestSources: the same image from a registry, a layout and an archive.
func TestSources(t *testing.T) {
	i := imageOf(t, runtime.GOARCH, gzipped(t, tarOf(t, file("low", "1"), file("both", "1"))), tarOf(t, file("high", "2"), file("both", "2")))
	dir := writeLayout(t, i)
	var entries []entry
	for d, content := range i.blobs {
		entries = append(entries, file("./blobs/sha256/"+d.hex(), string(content)))
	}
	packed := filepath.Join(t.TempDir(), "image.tar")
	if err := os.WriteFile(packed, tarOf(t, entries...), 0o644); err != nil {
		t.Fatal(err)
	}
	for name, source := range map[string]string{"layout": dir, "archive": packed, "registry": serveRegistry(t, i, nil)} {
		t.Run(name, func(t *testing.T) {
			s := openStore(t, t.TempDir(), 1<<30, source)
			trees := s.mustHold(t, "copy", i.digest)
			if len(trees) != 1 || len(trees[0]) != 2 {
				t.Fatalf("trees %v", trees)
			}
			for n, name := range []string{"low", "high"} {
				if text, err := os.ReadFile(filepath.Join(trees[0][n], name)); string(text) != fmt.Sprint(n+1) {
					t.Errorf("layer %d: %q %v", n, text, err)
				}
			}
			if got := s.State().Digests; !slices.Equal(got, []string{string(i.digest)}) {
				t.Errorf("it has %v", got)
			}
		})
	}
}

// TestRefusals: what is wrong with an image is said, and nothing of it is kept as
// if it were right.
func TestRefusals(t *testing.T) {
	layer := gzipped(t, tarOf(t, file("x", "x")))
	other := imageOf(t, "s390x", layer)
	index := func(list ...descriptor) *testImage {
		i := &testImage{blobs: map[Digest][]byte{}}
		i.digest = Digest(i.add(mustJSON(t, document{SchemaVersion: 2, Manifests: list})).Digest)
		return i
	}
	changed := imageOf(t, runtime.GOARCH, layer)
	changed.blobs[changed.layers[0]] = append([]byte{}, layer...)
	changed.blobs[changed.layers[0]][20] ^= 1
	longer := imageOf(t, runtime.GOARCH, layer)
	longer.blobs[longer.layers[0]] = append(append([]byte{}, layer...), 0)
	shorter := imageOf(t, runtime.GOARCH, layer)
	shorter.blobs[shorter.layers[0]] = layer[:len(layer)-1]
	absent := imageOf(t, runtime.GOARCH, layer)
	delete(absent.blobs, absent.layers[0])
	foreign := imageOf(t, runtime.GOARCH, layer)
	foreign.digest = Digest(foreign.add(bytes.ReplaceAll(foreign.blobs[foreign.digest], []byte("tar+gzip"), []byte("tar+lzma"))).Digest)
	devices := imageOf(t, runtime.GOARCH, tarOf(t, entry{name: "dev/sda", kind: tar.TypeBlock}))
	for name, c := range map[string]struct {
		image  *testImage
		reason string
	}{
		"another machine's":      {other, "it is for linux/s390x"},
		"an index without ours":  {index(descriptor{Digest: string(other.digest), Size: 10, Platform: &platform{OS: "linux", Architecture: "s390x"}}), "only for linux/s390x"},
		"a changed layer":        {changed, "it is thrown away"},
		"a longer layer":         {longer, "more than"},
		"a shorter layer":        {shorter, "unexpected EOF"},
		"a layer that is absent": {absent, "it is not there"},
		"a kind of layer":        {foreign, "cannot be unpacked"},
		"a device in a layer":    {devices, `layer 1 of 1`},
	} {
		t.Run(name, func(t *testing.T) {
			s := openStore(t, t.TempDir(), 1<<30, writeLayout(t, c.image))
			_, err := s.Hold(context.Background(), borglet.Turn{}, "copy", []string{string(c.image.digest)}, nil)
			if err == nil || !strings.Contains(err.Error(), c.reason) {
				t.Errorf("got %v, want %q", err, c.reason)
			}
			if st := s.State(); len(st.Digests) != 0 || st.Failed != 1 {
				t.Errorf("afterwards: %+v", st)
			}
			if left, _ := os.ReadDir(s.path(unpackingDir)); len(left) != 0 {
				t.Errorf("left over: %v", left)
			}
		})
	}
	if _, err := openStore(t, t.TempDir(), 1<<30).Hold(context.Background(), borglet.Turn{}, "copy", []string{"sha256:../../etc"}, nil); err == nil {
		t.Error("a digest that is a path was taken")
	}
}

// TestPlatformIsChosen: of an index, the manifest of this kind of machine.
func TestPlatformIsChosen(t *testing.T) {
	ours := imageOf(t, runtime.GOARCH, tarOf(t, file("ours", "")))
	theirs := imageOf(t, "s390x", tarOf(t, file("theirs", "")))
	i := &testImage{blobs: map[Digest][]byte{}}
	var list []descriptor
	for arch, of := range map[string]*testImage{runtime.GOARCH: ours, "s390x": theirs} {
		list = append(list, descriptor{Digest: string(of.digest), Size: int64(len(of.blobs[of.digest])), Platform: &platform{OS: "linux", Architecture: arch}})
	}
	i.digest = Digest(i.add(mustJSON(t, document{SchemaVersion: 2, Manifests: list})).Digest)
	s := openStore(t, t.TempDir(), 1<<30, writeLayout(t, i, ours, theirs))
	trees := s.mustHold(t, "copy", i.digest)
	if _, err := os.Stat(filepath.Join(trees[0][0], "ours")); err != nil {
		t.Error(err)
	}
}

// TestResume: a download that broke off, in a store that was killed then, is gone
// on with where it broke off.
func TestResume(t *testing.T) {
	i := simple(t, 1, 1<<20)
	size := int64(len(i.blobs[i.layers[0]]))
	var cut atomic.Bool
	var mu sync.Mutex
	var ranges []string
	cut.Store(true)
	url := serveRegistry(t, i, func(inner http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
			if !strings.HasSuffix(req.URL.Path, string(i.layers[0])) {
				inner.ServeHTTP(w, req)
				return
			}
			mu.Lock()
			ranges = append(ranges, req.Header.Get("Range"))
			mu.Unlock()
			if cut.Load() {
				w.Header().Set("Content-Length", fmt.Sprint(size))
				w.Write(i.blobs[i.layers[0]][:size/2])
				w.(http.Flusher).Flush()
				panic(http.ErrAbortHandler)
			}
			inner.ServeHTTP(w, req)
		})
	})
	dir := t.TempDir()
	s := openStore(t, dir, 1<<30, url)
	if _, err := s.Hold(context.Background(), borglet.Turn{}, "copy", texts([]Digest{i.digest}), nil); err == nil {
		t.Fatal("half of a layer was taken for all of it")
	}
	have := s.partials[i.layers[0]]
	if have != size/2 {
		t.Fatalf("%d bytes are kept, want %d", have, size/2)
	}
	cut.Store(false)
	// Nothing was closed: what is on disk is what a kill leaves.
	s = openStore(t, dir, 1<<30, url)
	s.mustHold(t, "copy", i.digest)
	if got, want := ranges[len(ranges)-1], fmt.Sprintf("bytes=%d-%d", have, size-1); got != want {
		t.Errorf("it asked for %q, want %q", got, want)
	}
	if st := s.State(); st.Resumed != 1 || st.FetchedBytes >= size {
		t.Errorf("state %+v", st)
	}
	if left, _ := os.ReadDir(s.path(partialDir)); len(left) != 0 {
		t.Errorf("left over: %v", left)
	}
}

// TestReopened: what is there is there for the next borglet, without its sources;
// what was half done is not, and references of copies that are gone end.
func TestReopened(t *testing.T) {
	i := simple(t, 2, 1000)
	dir := t.TempDir()
	openStore(t, dir, 1<<30, writeLayout(t, i)).mustHold(t, "copy-1", i.digest)
	half := filepath.Join(dir, unpackingDir, "half")
	if err := os.MkdirAll(half, 0o755); err != nil {
		t.Fatal(err)
	}
	s := openStore(t, dir, 1<<30)
	if _, err := os.Stat(half); err == nil {
		t.Error("a half unpacked layer is still there")
	}
	if st := s.State(); st.Held != 1 || len(st.Digests) != 1 {
		t.Errorf("state %+v", st)
	}
	s.mustHold(t, "copy-2", i.digest)
	if err := s.Keep([]string{"copy-2"}); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(s.path(refsDir, "copy-1")); err == nil {
		t.Error("the reference of a copy that is gone is kept")
	}
	// A layer that was lost makes its image one that is brought again.
	if err := os.RemoveAll(s.path(layersDir, i.layers[0].hex())); err != nil {
		t.Fatal(err)
	}
	if st := openStore(t, dir, 1<<30).State(); len(st.Digests) != 0 {
		t.Errorf("without its layer it has %v", st.Digests)
	}
}

// TestOnce: many copies at once bring an image once.
func TestOnce(t *testing.T) {
	i := simple(t, 3, 100_000)
	var asked atomic.Int64
	url := serveRegistry(t, i, func(inner http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
			if strings.HasSuffix(req.URL.Path, string(i.layers[0])) {
				asked.Add(1)
			}
			inner.ServeHTTP(w, req)
		})
	})
	s := openStore(t, t.TempDir(), 1<<30, url)
	var wg sync.WaitGroup
	for n := range 20 {
		wg.Go(func() {
			if _, err := s.Hold(context.Background(), borglet.Turn{}, fmt.Sprint("copy-", n), texts([]Digest{i.digest}), nil); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if n := asked.Load(); n != 1 {
		t.Errorf("its layer was asked for %d times", n)
	}
}

// TestRoom: what nobody holds goes for what is wanted, the longest unused first;
// what is held stays, and then there is no room.
func TestRoom(t *testing.T) {
	const each = 5 << 20
	var images []*testImage
	for n := range 4 {
		images = append(images, simple(t, uint64(10+n), each))
	}
	dir := t.TempDir()
	s := openStore(t, dir, 20<<20, writeLayout(t, images...))
	hold := func(n int) error {
		_, err := s.Hold(context.Background(), borglet.Turn{}, fmt.Sprint("copy-", n), texts([]Digest{images[n].digest}), nil)
		if used := diskUse(t, dir); used > 20<<20 {
			t.Errorf("after %d it takes %d bytes", n, used)
		}
		return err
	}
	for n := range 2 {
		if err := hold(n); err != nil {
			t.Fatal(err)
		}
	}
	if err := hold(2); err == nil || !strings.Contains(err.Error(), "--package-bytes") {
		t.Errorf("with two held: got %v, want no room", err)
	}
	if err := s.Drop("copy-0"); err != nil {
		t.Fatal(err)
	}
	if err := hold(2); err != nil {
		t.Errorf("with one held: %v", err)
	}
	if have := s.State().Digests; slices.Contains(have, string(images[0].digest)) || !slices.Contains(have, string(images[1].digest)) {
		t.Errorf("it has %v, want not the first and the second", have)
	}
}

func diskUse(t *testing.T, dir string) (sum int64) {
	t.Helper()
	err := filepath.WalkDir(dir, func(_ string, e fs.DirEntry, err error) error {
		if err == nil && e.Type().IsRegular() {
			var info fs.FileInfo
			if info, err = e.Info(); err == nil {
				sum += info.Size()
			}
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return sum
}

// TestCancelled: who is told to stop does not wait for a source.
func TestCancelled(t *testing.T) {
	i := simple(t, 4, 1000)
	reached := make(chan struct{})
	var once sync.Once
	url := serveRegistry(t, i, func(inner http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
			if strings.Contains(req.URL.Path, "/blobs/") {
				once.Do(func() { close(reached) })
				<-req.Context().Done()
				return
			}
			inner.ServeHTTP(w, req)
		})
	})
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		<-reached
		cancel()
	}()
	if _, err := openStore(t, t.TempDir(), 1<<30, url).Hold(ctx, borglet.Turn{}, "copy", texts([]Digest{i.digest}), nil); err == nil {
		t.Error("it was brought from a source that is silent")
	}
}
