package repeat

import (
	"sync"
	"time"
)

const (
	// Every is how often one kind is told.
	Every = time.Minute
	// maxKinds bounds the kinds that are told apart; all others are one kind.
	maxKinds = 64
)

// Limiter says what a log is told of. The zero Limiter is ready, and may be used by many
// goroutines.
type Limiter struct {
	mu sync.Mutex
	// Guarded by mu.
	kinds map[string]*kind
}

type kind struct {
	toldAt time.Time
	// Not told since.
	untold int
}

// Next reports whether one more of a kind is to be told now, and how many of it were not told
// since the last one.
func (l *Limiter) Next(name string, now time.Time) (untold int, tell bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.kinds == nil {
		l.kinds = map[string]*kind{}
	}
	k := l.kinds[name]
	if k == nil && len(l.kinds) >= maxKinds {
		name = ""
		k = l.kinds[name]
	}
	if k == nil {
		l.kinds[name] = &kind{toldAt: now}
		return 0, true
	}
	if now.Sub(k.toldAt) < Every {
		k.untold++
		return 0, false
	}
	untold = k.untold
	*k = kind{toldAt: now}
	return untold, true
}
