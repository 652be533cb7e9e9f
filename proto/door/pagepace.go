package door

import (
	"fmt"
	"net/http"
	"sync"
	"time"

	"golang.org/x/time/rate"
)

const (
	// pagesPerSecond is how many requests for pages a caller may make at one listener, and
	// maxPagesAtOnce those at once. What a request costs is mostly its reading: answers are shared.
	pagesPerSecond = 100
	maxPagesAtOnce = 300
	// The same for all callers together.
	allPagesPerSecond = 400
	allPagesAtOnce    = 800
	// maxPaced is how many callers are told apart. Beyond it those who have asked for little are
	// forgotten; new ones share one budget if nobody has.
	maxPaced = 1_024
	// A request that is refused is answered after pageHold, so that a client that asks again at once
	// costs little. Of more than maxPagesHeld the connection is closed.
	pageHold     = time.Second
	maxPagesHeld = 256
)

// pagePace is the budgets of requests at one listener for pages.
type pagePace struct {
	held chan struct{}
	all  *rate.Limiter
	mu   sync.Mutex
	// callers are by address, user or name. Guarded by mu.
	callers map[string]*rate.Limiter
	rest    *rate.Limiter
}

func newPagePace() *pagePace {
	return &pagePace{
		held:    make(chan struct{}, maxPagesHeld),
		all:     rate.NewLimiter(allPagesPerSecond, allPagesAtOnce),
		callers: map[string]*rate.Limiter{},
		rest:    rate.NewLimiter(pagesPerSecond, maxPagesAtOnce),
	}
}

// allow takes a request from the budgets and reports whether they had room for it.
func (p *pagePace) allow(caller string) bool {
	now := time.Now()
	return p.of(caller, now).AllowN(now, 1) && p.all.AllowN(now, 1)
}

func (p *pagePace) of(caller string, now time.Time) *rate.Limiter {
	p.mu.Lock()
	defer p.mu.Unlock()
	if l := p.callers[caller]; l != nil {
		return l
	}
	if len(p.callers) >= maxPaced {
		for name, l := range p.callers {
			if l.TokensAt(now) >= maxPagesAtOnce {
				delete(p.callers, name)
			}
		}
	}
	if len(p.callers) >= maxPaced {
		return p.rest
	}
	l := rate.NewLimiter(pagesPerSecond, maxPagesAtOnce)
	p.callers[caller] = l
	return l
}

// refuse answers a request that no budget has room for, after a while.
func (p *pagePace) refuse(w http.ResponseWriter, r *http.Request, caller string) {
	select {
	case p.held <- struct{}{}:
		defer func() { <-p.held }()
	default:
		panic(http.ErrAbortHandler)
	}
	hold := time.NewTimer(pageHold)
	defer hold.Stop()
	select {
	case <-hold.C:
	case <-r.Context().Done():
		return
	}
	w.Header().Set("Retry-After", "1")
	http.Error(w, fmt.Sprintf("too many requests: %s may make %d a second here, and all together %d (docs/limits.md: pagesPerSecond); try again in a second",
		caller, pagesPerSecond, allPagesPerSecond), http.StatusTooManyRequests)
}
