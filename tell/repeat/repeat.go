package repeat

import (
	"sync"
	"time"
)

const (
	// Every is the minimum time between two lines of one kind.
	Every = time.Minute
	// maxKinds bounds the kinds that are counted separately; all others count as one kind.
	maxKinds = 64
)

// Limiter decides which lines are logged. The zero value is ready to use, by any number of
// goroutines.
type Limiter struct {
	mu sync.Mutex
	// Guarded by mu.
	kinds map[string]*kind
}

// kind is one kind of line.
type kind struct {
	loggedAt time.Time
	// Number of lines left out since.
	suppressed int
}

// Allow reports whether to log a line of a kind now, and if so how many were left out since
// the last one.
func (l *Limiter) Allow(name string, now time.Time) (suppressed int, ok bool) {
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
		l.kinds[name] = &kind{loggedAt: now}
		return 0, true
	}
	if now.Sub(k.loggedAt) < Every {
		k.suppressed++
		return 0, false
	}
	suppressed = k.suppressed
	*k = kind{loggedAt: now}
	return suppressed, true
}
