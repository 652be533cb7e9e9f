package checkpoint

import (
	"log/slog"
	"sync"
	"time"
)

const (
	// What the database fails to do in the background it waits for so long after, longer
	// each time, unless it was well for a while.
	firstTroubleWait, mostTroubleWait = time.Millisecond, 100 * time.Millisecond
	troubleOver                       = time.Second
	// So often it is told at most.
	troubleEvery = 10 * time.Second
)

// trouble hears of what the database fails to do in the background. It tries that again at
// once: while a disk is full a flush fails a thousand times a second, as long as somebody
// waits for it.
type trouble struct {
	log *slog.Logger
	// Nil: nothing waits.
	sleep func(time.Duration)
	now   func() time.Time

	mu sync.Mutex
	// Guarded by mu, as is all that follows: when it failed last, and for how long it had
	// to wait then.
	at   time.Time
	wait time.Duration
	// When that was told last, and how often it was not since.
	toldAt time.Time
	untold int
}

func newTrouble(log *slog.Logger, sleep func(time.Duration)) *trouble {
	return &trouble{log: log, sleep: sleep, now: time.Now}
}

// heard is called by the goroutine that failed, which holds what the database's own
// work needs.
func (t *trouble) heard(err error) {
	if wait := t.note(err); t.sleep != nil {
		t.sleep(wait)
	}
}

func (t *trouble) note(err error) (wait time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	now := t.now()
	if now.Sub(t.at) > troubleOver {
		t.wait = 0
	}
	t.at, t.wait = now, min(max(2*t.wait, firstTroubleWait), mostTroubleWait)
	if now.Sub(t.toldAt) < troubleEvery {
		t.untold++
		return t.wait
	}
	t.log.Error("the database cannot write what it has in memory; it tries again", "err", err.Error(), "others", t.untold)
	t.toldAt, t.untold = now, 0
	return t.wait
}
