package packages

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"os"
	"regexp"
	"slices"
	"time"

	"golang.org/x/time/rate"
)

// servedPattern: what is asked for by digest, of whatever repository. Tags, lists and
// directories have no form here.
var servedPattern = regexp.MustCompile(`^/v2/.+/(blobs|manifests)/(sha256:[0-9a-f]{64})$`)

// server answers other machines in the protocol of registries, read-only: blobs that
// are here whole and checked, and nothing else. Who may ask is decided before it.
type server struct {
	s *Store
	// A place for each answer under way.
	places chan struct{}
	pace   *rate.Limiter
}

// Handler serves what is here to other machines.
func (s *Store) Handler() http.Handler {
	pace := rate.NewLimiter(rate.Limit(s.cfg.ServeBytesPerS), paceBytes)
	if s.cfg.ServeBytesPerS == 0 {
		pace.SetLimit(rate.Inf)
	}
	return &server{s: s, places: make(chan struct{}, maxServed), pace: pace}
}

func (v *server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		w.Header().Set("Allow", "GET, HEAD")
		http.Error(w, "packages are only read here", http.StatusMethodNotAllowed)
		return
	}
	asked := servedPattern.FindStringSubmatch(r.URL.Path)
	if asked == nil {
		http.Error(w, "want /v2/NAME/blobs/DIGEST or /v2/NAME/manifests/DIGEST", http.StatusNotFound)
		return
	}
	select {
	case v.places <- struct{}{}:
		defer func() { <-v.places }()
	default:
		w.Header().Set("Retry-After", "1")
		http.Error(w, "as many as may are being served; ask another machine, or later", http.StatusServiceUnavailable)
		return
	}
	d := Digest(asked[2])
	f, err := v.s.openBlob(d)
	if err != nil {
		http.Error(w, "it is not here", http.StatusNotFound)
		return
	}
	defer f.Close()
	kind := "application/octet-stream"
	if asked[1] == "manifests" {
		if kind = manifestType(f); kind == "" {
			http.Error(w, "it is no manifest", http.StatusNotFound)
			return
		}
	}
	head := w.Header()
	head.Set("Content-Type", kind)
	head.Set("Docker-Content-Digest", string(d))
	head.Set("ETag", `"`+string(d)+`"`)
	p := &paced{ReadSeeker: f, ctx: r.Context(), pace: v.pace, to: http.NewResponseController(w)}
	// What a name stands for never changes, so no time is told.
	http.ServeContent(w, r, "", time.Time{}, p)
	v.s.mu.Lock()
	v.s.stats.servedBytes += p.bytes
	v.s.mu.Unlock()
}

// openBlob opens a blob that is whole and checked. It may be thrown away while it is
// read: then its bytes are there until it is closed.
func (s *Store) openBlob(d Digest) (*os.File, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, there := s.blobs[d]; !there {
		return nil, errAbsent
	}
	return os.Open(s.path(blobsDir, d.hex()))
}

// manifestType is what kind of manifest a blob is; empty: none.
func manifestType(f *os.File) string {
	info, err := f.Stat()
	if err != nil || info.Size() > maxManifestBytes {
		return ""
	}
	var d document
	if err := json.NewDecoder(io.NewSectionReader(f, 0, info.Size())).Decode(&d); err != nil {
		return ""
	}
	switch {
	case len(d.Manifests) > 0:
		return known(d.MediaType, manifestTypes[1])
	case d.Config != nil:
		return known(d.MediaType, manifestTypes[0])
	}
	return ""
}

// known is the kind that a manifest names, when it is one of a manifest.
func known(named, otherwise string) string {
	if slices.Contains(manifestTypes, named) {
		return named
	}
	return otherwise
}

// paced is a file that is read no faster than all of them together may be, by
// somebody who takes what he asked for.
type paced struct {
	io.ReadSeeker
	ctx   context.Context
	pace  *rate.Limiter
	to    *http.ResponseController
	bytes int64
}

func (p *paced) Read(b []byte) (int, error) {
	b = b[:min(len(b), paceBytes)]
	n, err := p.ReadSeeker.Read(b)
	if err := p.pace.WaitN(p.ctx, n); err != nil {
		return 0, err
	}
	p.bytes += int64(n)
	// The last piece must have been taken by then. Not each kind of connection can.
	_ = p.to.SetWriteDeadline(time.Now().Add(stallTimeout))
	return n, err
}
