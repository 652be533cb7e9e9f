package borgmaster

import (
	"cmp"
	"slices"
	"sync"
	"time"

	"borg/borgmaster/cell"
	"borg/proto/borgpb"
)

const (
	// The cell is counted at most so often for status pages and metrics, however many
	// ask: it takes a look at each job and machine, and none at tasks.
	tallyEvery = time.Second
	// And so many times less often than that look takes: the cell waits for it.
	tallyPart = 50
	// maxWaitingNamed bounds the jobs that a page names as waiting.
	maxWaitingNamed = 15
)

// bands are the ranges of priorities, highest first.
var bands = []struct {
	name  string
	first int32
}{{"monitoring", 360}, {"production", 120}, {"mid", 116}, {"batch", 100}, {"free", 0}}

func bandOf(priority int32) int {
	for i, b := range bands {
		if priority >= b.first {
			return i
		}
	}
	return len(bands) - 1
}

// prodBands are those of which nothing should wait.
const prodBands = 2

// tally is the cell in figures.
type tally struct {
	index        uint64
	format       uint32
	epoch        uint64
	wallSuspect  bool
	jobs         [5]int
	tasks        [5]taskCounts
	all          taskCounts
	waiting      []waitingJob
	waitingMore  int
	up, down     int
	draining     int
	capacity     cell.Resources
	limits, held cell.Resources
	allocSets    int
	restore      restoreTally
	admins       int
}

type taskCounts struct{ pending, running, dead int64 }

func (c *taskCounts) add(pending, running, dead uint32) {
	c.pending, c.running, c.dead = c.pending+int64(pending), c.running+int64(running), c.dead+int64(dead)
}

// waitingJob is a job of which tasks wait for a machine.
type waitingJob struct {
	key      cell.JobKey
	priority int32
	pending  uint32
	tasks    uint32
	// It is held back by the batch queue, which is no fault.
	queued bool
}

// restoreTally is how far a restored cell has come.
type restoreTally struct {
	restored, held bool
	heldLeft       time.Duration
	unheard        int
	unknown        int
}

// counter counts the cell for who looks, and remembers it for a moment.
type counter struct {
	mu sync.Mutex
	// Guarded by mu.
	last tally
	// When they are counted anew.
	again time.Time
}

// tally returns figures that are at most a second old, or a little more in a very
// large cell.
func (m *Master) tally() tally {
	m.counter.mu.Lock()
	defer m.counter.mu.Unlock()
	began := time.Now()
	if began.Before(m.counter.again) {
		return m.counter.last
	}
	var t tally
	m.cfg.Log.View(func(c *cell.Cell) {
		began = time.Now()
		t.count(c)
	})
	now := time.Now()
	m.counter.last, m.counter.again = t, now.Add(max(tallyEvery, tallyPart*now.Sub(began)))
	return t
}

func (t *tally) count(c *cell.Cell) {
	t.index, t.format, t.epoch, t.wallSuspect, t.admins = c.Index(), c.Format(), c.Epoch(), c.WallSuspect(), c.NumAdmins()
	for j := range c.Jobs() {
		band := bandOf(j.Priority())
		pending, running, dead := j.Counts()
		t.tasks[band].add(pending, running, dead)
		t.all.add(pending, running, dead)
		if j.State() != borgpb.State_STATE_DEAD {
			t.jobs[band]++
		}
		if pending > 0 {
			t.waits(waitingJob{key: j.Key(), priority: j.Priority(), pending: pending, tasks: j.NumTasks(), queued: c.Queued(j)})
		}
	}
	for range c.AllocSets() {
		t.allocSets++
	}
	_, _, _, t.restore.restored = c.Restored()
	leftNs, held := c.Held()
	t.restore.held, t.restore.heldLeft = held, time.Duration(leftNs)
	for m := range c.Machines() {
		switch {
		case !m.Up():
			t.down++
		default:
			t.up++
			t.capacity = t.capacity.Add(m.Capacity())
			t.limits = t.limits.Add(m.Held(true))
			t.held = t.held.Add(m.Held(false))
		}
		if m.Draining() {
			t.draining++
		}
		if m.Unheard() {
			t.restore.unheard++
		}
		t.restore.unknown += int(m.Unknown())
	}
}

// waits takes in a job that waits, and leaves those that matter most.
func (t *tally) waits(w waitingJob) {
	at, _ := slices.BinarySearchFunc(t.waiting, w, func(a, b waitingJob) int {
		return cmp.Or(cmp.Compare(b.priority, a.priority), cmp.Compare(b.pending, a.pending), a.key.Compare(b.key))
	})
	if at == maxWaitingNamed {
		t.waitingMore++
		return
	}
	if len(t.waiting) == maxWaitingNamed {
		t.waiting = t.waiting[:maxWaitingNamed-1]
		t.waitingMore++
	}
	t.waiting = slices.Insert(t.waiting, at, w)
}

// prodPending is how many tasks wait of which none should.
func (t *tally) prodPending() (n int64) {
	for i := range prodBands {
		n += t.tasks[i].pending
	}
	return n
}
