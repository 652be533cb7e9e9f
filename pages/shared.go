package pages

import (
	"context"
	"errors"
	"net/http"
	"sync"
	"time"

	"golang.org/x/time/rate"
)

const (
	// renderEvery is the age until which an answer is sent to everybody who asks for it. An answer
	// that takes long to render is kept for renderPart times as long, so that its rendering uses at
	// most that part of a processor, but not longer than renderMost: the time includes waiting. An
	// error is kept for renderEvery, since its cause may be gone then.
	renderEvery = time.Second
	renderPart  = 20
	renderMost  = 10 * time.Second
	// maxRendering is how many answers are rendered at one time.
	maxRendering = 8
	// rendersPerSecond bounds the rendering of all answers, and maxRenders those at once. In a private
	// cell each reader has a page of their own.
	rendersPerSecond = 20
	maxRenders       = 40
	// maxShared is how many answers are kept.
	maxShared = 64
)

// errRenders refuses an answer that nobody has rendered yet.
var errRenders = errors.New("too many different pages are asked for; try again in a second")

// answer is what is sent for a page. Its fields are set once done is closed.
type answer struct {
	done  chan struct{}
	code  int
	kind  string
	body  []byte
	until time.Time
}

// fresh reports whether the answer may be sent, now or when it is rendered.
func (a *answer) fresh(now time.Time) bool {
	select {
	case <-a.done:
		return now.Before(a.until)
	default:
		return true
	}
}

// shared renders each answer once in a while and gives it to everybody who asks meanwhile.
type shared struct {
	rendering chan struct{}
	pace      *rate.Limiter
	mu        sync.Mutex
	// answers are by what is asked for and what the asker may see. Guarded by mu.
	answers map[string]*answer
}

func newShared() *shared {
	return &shared{
		rendering: make(chan struct{}, maxRendering),
		pace:      rate.NewLimiter(rendersPerSecond, maxRenders),
		answers:   map[string]*answer{},
	}
}

// get returns the answer for key. render makes it; its context ends with no caller, since others may
// wait for the same answer.
func (s *shared) get(ctx context.Context, key string, render func(context.Context) (code int, kind string, body []byte)) (*answer, error) {
	a, own, err := s.find(key)
	if err != nil {
		return nil, err
	}
	if own {
		s.render(context.WithoutCancel(ctx), a, render)
	}
	select {
	case <-a.done:
		return a, nil
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// find returns the answer for key, and whether the caller must render it.
func (s *shared) find(key string) (a *answer, own bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	if a := s.answers[key]; a != nil && a.fresh(now) {
		return a, false, nil
	}
	for k, a := range s.answers {
		if !a.fresh(now) {
			delete(s.answers, k)
		}
	}
	if len(s.answers) >= maxShared {
		return nil, false, errRenders
	}
	select {
	case s.rendering <- struct{}{}:
	default:
		return nil, false, errRenders
	}
	if !s.pace.AllowN(now, 1) {
		<-s.rendering
		return nil, false, errRenders
	}
	a = &answer{done: make(chan struct{}), code: http.StatusInternalServerError, kind: plainText, body: []byte("the page could not be made\n")}
	s.answers[key] = a
	return a, true, nil
}

func (s *shared) render(ctx context.Context, a *answer, render func(context.Context) (int, string, []byte)) {
	began := time.Now()
	// A rendering that panics leaves an answer that says so, and nobody waiting.
	defer func() {
		now := time.Now()
		keep := renderEvery
		if a.code == http.StatusOK {
			keep = min(max(keep, renderPart*now.Sub(began)), renderMost)
		}
		a.until = now.Add(keep)
		close(a.done)
		<-s.rendering
	}()
	a.code, a.kind, a.body = render(ctx)
}
