package packages

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"sync"
	"time"
)

// errBusy: a machine serves as many as it may.
var errBusy = errors.New("it serves as many as it may at the moment")

// peer is another machine as a source. Its bytes are believed as little as any.
type peer struct {
	addr   string
	client *http.Client
}

func (p *peer) String() string { return "machine " + p.addr }

func (p *peer) Open(ctx context.Context, of content, offset int64) (io.ReadCloser, int64, error) {
	// Each machine serves by digest, of whatever name. A manifest is a blob to it.
	u := url.URL{Scheme: "https", Host: p.addr, Path: "/v2/package/blobs/" + string(of.Digest)}
	return openStalling(ctx, func(ctx context.Context) (io.ReadCloser, int64, error) {
		resp, err := askFor(ctx, p.client, u, of, offset, "")
		if err != nil {
			return nil, 0, err
		}
		body, from, err := bodyOf(resp, offset)
		if body != nil || err != nil {
			return body, from, err
		}
		defer resp.Body.Close()
		switch resp.StatusCode {
		case http.StatusNotFound:
			return nil, 0, errAbsent
		case http.StatusServiceUnavailable:
			return nil, 0, errBusy
		}
		text, _ := io.ReadAll(io.LimitReader(resp.Body, 200))
		return nil, 0, fmt.Errorf("it answers %s: %.200q", resp.Status, text)
	})
}

// shunned are machines that are not asked for a while, and why.
type shunned struct {
	mu sync.Mutex
	// Guarded by mu: until when.
	peers map[string]time.Time
	lacks map[lack]time.Time
}

// lack is what a machine said that it has not.
type lack struct {
	addr   string
	digest Digest
}

// note takes in how asking a machine for something of an image went wrong.
func (h *shunned) note(addr string, image Digest, err error, now time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.peers == nil || len(h.peers)+len(h.lacks) > maxShunned {
		h.peers, h.lacks = map[string]time.Time{}, map[lack]time.Time{}
	}
	switch {
	case errors.Is(err, errAbsent):
		h.lacks[lack{addr, image}] = now.Add(shunAbsent)
	case errors.Is(err, errBusy):
		h.peers[addr] = now.Add(shunBusy)
	case errors.Is(err, errWrong):
		h.peers[addr] = now.Add(shunWrong)
	default:
		if until := now.Add(shunBroken); until.After(h.peers[addr]) {
			h.peers[addr] = until
		}
	}
}

// until is when a machine may be asked again for something of an image, and whether it
// has said that it has it not.
func (h *shunned) until(addr string, image Digest) (at time.Time, lacks bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	at = h.peers[addr]
	if absent, said := h.lacks[lack{addr, image}]; said && absent.After(at) {
		return absent, true
	}
	return at, false
}
