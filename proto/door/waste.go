package door

import (
	"sync"
	"time"
)

// What a caller has sent or was answered, and what then is thrown away because its connection was
// closed or its call reset, is garbage until the next collection. A caller that begins messages
// without an end, is closed for them and comes back would otherwise make as much garbage as its
// line carries, beside every bound of what it holds.

const (
	// wastedAtOnce is how many bytes of a user and its tasks may be thrown away without any rest.
	wastedAtOnce = 8 << 20
	// wastedPerS is how many bytes each second may be on top of that. While there were more, nothing
	// is read from the connections of the user.
	wastedPerS = 16 << 20
)

// waste says how long nothing is read from the connections of a user, for what was thrown away.
type waste struct {
	mu sync.Mutex
	// When all of it is paid for, less wastedAtOnce. Guarded by mu.
	until time.Time
}

// add counts bytes that were thrown away.
func (w *waste) add(bytes int64) {
	if bytes <= 0 {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	now := time.Now()
	if free := now.Add(-timeOf(wastedAtOnce)); w.until.Before(free) {
		w.until = free
	}
	w.until = w.until.Add(timeOf(bytes))
	// A longer silence would end the connections.
	if most := now.Add(restLimit); w.until.After(most) {
		w.until = most
	}
}

// rest returns how long nothing is read from now on.
func (w *waste) rest() time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	return max(time.Until(w.until), 0)
}

// owed returns how long it takes until nothing of what was thrown away counts any more.
func (w *waste) owed() time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	return max(time.Until(w.until.Add(timeOf(wastedAtOnce))), 0)
}

func timeOf(bytes int64) time.Duration {
	return time.Duration(float64(bytes) / wastedPerS * float64(time.Second))
}
