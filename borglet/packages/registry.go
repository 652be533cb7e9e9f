package packages

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/remote/transport"
)

// registry is a repository of a registry. Names and logins are the library's
// business; blobs are asked for here, since a broken download is gone on with.
type registry struct {
	text string
	repo name.Repository
	base http.RoundTripper
	who  authn.Keychain

	mu sync.Mutex
	// client has logged in. Guarded by mu.
	client *http.Client
}

func newRegistry(text string, who Credentials) (*registry, error) {
	u, err := url.Parse(text)
	if err != nil {
		return nil, err
	}
	if u.Host == "" || strings.Trim(u.Path, "/") == "" || u.RawQuery != "" || u.Fragment != "" || u.User != nil {
		return nil, fmt.Errorf("%q: want https://HOST/REPOSITORY", u.Redacted())
	}
	options := []name.Option{name.StrictValidation}
	if u.Scheme == "http" {
		options = append(options, name.Insecure)
	}
	repo, err := name.NewRepository(u.Host+"/"+strings.Trim(u.Path, "/"), options...)
	if err != nil {
		return nil, err
	}
	base := http.DefaultTransport.(*http.Transport).Clone()
	base.ResponseHeaderTimeout = stallTimeout
	base.MaxResponseHeaderBytes = maxAnswerHeaderBytes
	// What is compressed is meant so: digests are of the bytes as they are.
	base.DisableCompression = true
	return &registry{text: text, repo: repo, base: base, who: who}, nil
}

// as is the same registry, to which somebody else is shown; what he has not is the
// machine's own.
func (r *registry) as(who authn.Keychain) *registry {
	return &registry{text: r.text, repo: r.repo, base: r.base, who: authn.NewMultiKeychain(who, r.who)}
}

func (r *registry) String() string { return "registry " + r.text }

// login asks the registry what it wants to see, once. It is asked anew
// once it refuses who this machine was: that may be somebody else by now.
func (r *registry) login(ctx context.Context) (*http.Client, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.client != nil {
		return r.client, nil
	}
	who, err := r.who.Resolve(r.repo)
	if err != nil {
		return nil, fmt.Errorf("find credentials: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, stallTimeout)
	defer cancel()
	t, err := transport.NewWithContext(ctx, r.repo.Registry, who, r.base, []string{r.repo.Scope(transport.PullScope)})
	if err != nil {
		return nil, err
	}
	r.client = &http.Client{Transport: t}
	return r.client, nil
}

func (r *registry) Open(ctx context.Context, of content, offset int64) (io.ReadCloser, int64, error) {
	return openStalling(ctx, func(ctx context.Context) (io.ReadCloser, int64, error) { return r.open(ctx, of, offset) })
}

func (r *registry) open(ctx context.Context, of content, offset int64) (io.ReadCloser, int64, error) {
	client, err := r.login(ctx)
	if err != nil {
		return nil, 0, err
	}
	where, accept := "blobs", ""
	if of.manifest {
		where, accept = "manifests", strings.Join(manifestTypes, ", ")
	}
	u := url.URL{Scheme: r.repo.Scheme(), Host: r.repo.RegistryStr(), Path: "/v2/" + r.repo.RepositoryStr() + "/" + where + "/" + string(of.Digest)}
	resp, err := askFor(ctx, client, u, of, offset, accept)
	if err != nil {
		// Where tokens come from may refuse it too.
		if said := new(transport.Error); errors.As(err, &said) && refusedLogin(said.StatusCode) {
			r.logout()
		}
		return nil, 0, err
	}
	body, from, err := bodyOf(resp, offset)
	if body != nil || err != nil {
		return body, from, err
	}
	defer resp.Body.Close()
	err = transport.CheckError(resp, http.StatusOK)
	switch {
	case resp.StatusCode == http.StatusNotFound:
		err = errors.Join(errAbsent, err)
	case refusedLogin(resp.StatusCode):
		r.logout()
	}
	return nil, 0, err
}

func refusedLogin(code int) bool {
	return code == http.StatusUnauthorized || code == http.StatusForbidden
}

// logout has the next one who asks log in.
func (r *registry) logout() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.client = nil
}

// askFor asks for a blob from offset on.
func askFor(ctx context.Context, client *http.Client, u url.URL, of content, offset int64, accept string) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, u.String(), nil)
	if err != nil {
		return nil, err
	}
	if accept != "" {
		req.Header.Set("Accept", accept)
	}
	if offset > 0 {
		req.Header.Set("Range", fmt.Sprintf("bytes=%d-%d", offset, of.Bytes-1))
	}
	return client.Do(req)
}

// bodyOf is what an answer brings, and at which byte it begins. Nil without an error:
// the answer is a refusal, and not closed.
func bodyOf(resp *http.Response, offset int64) (io.ReadCloser, int64, error) {
	switch resp.StatusCode {
	case http.StatusOK:
		return resp.Body, 0, nil
	case http.StatusPartialContent:
		var first int64
		if _, err := fmt.Sscanf(resp.Header.Get("Content-Range"), "bytes %d-", &first); err == nil && first == offset {
			return resp.Body, offset, nil
		}
		resp.Body.Close()
		return nil, 0, fmt.Errorf("it was asked for the bytes from %d on, and answers with %q", offset, resp.Header.Get("Content-Range"))
	}
	return nil, 0, nil
}

// openStalling opens what ends when it brings nothing for long.
func openStalling(ctx context.Context, open func(context.Context) (io.ReadCloser, int64, error)) (io.ReadCloser, int64, error) {
	ctx, cancel := context.WithCancel(ctx)
	body, from, err := open(ctx)
	if err != nil {
		cancel()
		return nil, 0, err
	}
	return newStalling(body, cancel), from, nil
}

// stalling ends a read that brings nothing for long.
type stalling struct {
	io.ReadCloser
	cancel  context.CancelFunc
	timer   *time.Timer
	stalled atomic.Bool
}

func newStalling(r io.ReadCloser, cancel context.CancelFunc) *stalling {
	s := &stalling{ReadCloser: r, cancel: cancel}
	s.timer = time.AfterFunc(stallTimeout, func() {
		s.stalled.Store(true)
		cancel()
	})
	s.timer.Stop()
	return s
}

func (s *stalling) Read(p []byte) (int, error) {
	s.timer.Reset(stallTimeout)
	n, err := s.ReadCloser.Read(p)
	s.timer.Stop()
	if err != nil && s.stalled.Load() {
		err = fmt.Errorf("nothing came for %s: %w", stallTimeout, err)
	}
	return n, err
}

func (s *stalling) Close() error {
	s.timer.Stop()
	s.cancel()
	return s.ReadCloser.Close()
}
