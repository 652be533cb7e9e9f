package door

import (
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// What a caller has sent or was answered, and what then is thrown away because its connection was
// closed or its call reset, is garbage until the next collection. A caller that begins messages
// without an end, is closed for them and comes back would otherwise make as much garbage as its
// line carries, beside every bound of what it holds. The same holds for messages of calls that fail.

const (
	// wastedAtOnce is how many bytes of a user and its tasks may be thrown away without any rest.
	wastedAtOnce = 8 << 20
	// wastedPerS is how many bytes each second may be on top of that. While there were more, nothing
	// is read from the connections of the user.
	wastedPerS = 16 << 20
	// wastedByRefusal is what a call counts at least that was read and then refused as too much: so a
	// user has about 500 of them a second, as of calls that are refused by their heads.
	wastedByRefusal = 32 << 10
)

// wasted counts the message of a call that failed: to receive and to read it came to nothing.
func (r *receiving) wasted(err error) {
	if r == nil || err == nil {
		return
	}
	bytes := r.wire
	if bytes <= turnBytes {
		bytes = 0
	}
	if status.Code(err) == codes.ResourceExhausted {
		bytes = max(bytes, wastedByRefusal)
	}
	r.flow.user.waste.add(bytes)
}

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
