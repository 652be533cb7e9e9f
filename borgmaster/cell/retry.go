package cell

import "fmt"

// FormatRetries is the format in which tasks began to wait longer and longer between attempts
// that fail.
const FormatRetries = 12

// retryRow delays the next attempt of a task whose last attempts failed. Its borglet delays the
// restarts of a service, which are one attempt; this is for what the cell places again.
type retryRow struct {
	// Version of the spec that failed. An attempt with another one does not wait.
	version uint64
	// Attempts that failed in a row, none of which ran for retryHealthyNs; at most
	// maxRetriesCounted.
	failures uint32
	// Cell time before which there is no next attempt.
	readyNs int64
}

// retryDelayNs returns the wait after so many failures in a row. The first one is retried at
// once: most tasks that fail once succeed the second time.
func retryDelayNs(failures uint32) int64 {
	if failures < 2 {
		return 0
	}
	return min(int64(retryBaseNs)<<(failures-2), maxRetryNs)
}

// retryRow of a task; nil if there is none.
func (t *Task) retryRow() *retryRow {
	if t.few == nil || t.few.retry.failures == 0 {
		return nil
	}
	return &t.few.retry
}

// countRetry notes that the current copy of a task failed, and returns how long its next attempt
// waits.
func (c *Cell) countRetry(t *Task, p *Copy) (delayNs int64) {
	if c.format < FormatRetries || t.job.saving != nil {
		return 0
	}
	next := retryRow{version: p.version, failures: 1}
	if r := t.retryRow(); r != nil && r.version == p.version && !p.ranWell() {
		next.failures = min(r.failures+1, maxRetriesCounted)
	}
	delayNs = retryDelayNs(next.failures)
	next.readyNs = min(c.clock.cellNs+delayNs, maxTimeNs)
	t.setRetry(next)
	return delayNs
}

// setRetry replaces the retryRow of a task; the zero row removes it.
func (t *Task) setRetry(r retryRow) {
	if t.retryRow() != nil {
		t.job.retrying--
	}
	if r.failures > 0 {
		t.job.retrying++
		t.rare()
	}
	if t.few != nil {
		t.few.retry = r
	}
}

// ranWell reports whether the process of a copy that ended had run long enough to count as
// healthy. Both times are of its machine's clock.
func (p *Copy) ranWell() bool {
	return p.exit != nil && p.startedWallNs != 0 && p.exit.EndedWallNs-p.startedWallNs >= retryHealthyNs
}

// retryNs returns the cell time before which a task that waits is not placed, because its last
// attempts failed; zero if it may be placed now.
func (c *Cell) retryNs(t *Task) int64 {
	r := t.retryRow()
	if r == nil || c.clock.cellNs >= r.readyNs || r.version != t.job.specOf(t.index).Version {
		return 0
	}
	return r.readyNs
}

// RetryNs returns the cell time at which the next one of the tasks of a job that wait after
// failures may be placed; zero if none waits for that. A gang waits for all of them.
func (c *Cell) RetryNs(j *Job) (ns int64) {
	if j.retrying == 0 {
		return 0
	}
	gang := j.latest().Proto.Gang
	for i := range j.waiting.all() {
		if at := c.retryNs(j.rows[i]); at != 0 && (ns == 0 || at < ns != gang) {
			ns = at
		}
	}
	return ns
}

// RetryWords says why task index of j waits for its next attempt, and how long; empty if it does
// not.
func (c *Cell) RetryWords(j *Job, index uint32) string {
	t := j.Task(index)
	if t == nil || t.state != statePending || j.retrying == 0 {
		return ""
	}
	if at := c.retryNs(t); at != 0 {
		return fmt.Sprintf("its last attempts failed, %s in a row; the next one is in %s", timesWords(int(t.retryRow().failures)), c.leftWords(at))
	}
	if at := c.RetryNs(j); at != 0 && j.latest().Proto.Gang {
		return "other tasks of the gang failed; the next attempt is in " + c.leftWords(at)
	}
	return ""
}

// leftWords writes the time until a cell time, rounded up to seconds.
func (c *Cell) leftWords(ns int64) string {
	return spanWords((ns - c.clock.cellNs + second - 1) / second * second)
}

// allRetry reports whether every task of a job that waits does so because attempts failed.
func (c *Cell) allRetry(j *Job) bool {
	if j.pending == 0 || j.retrying == 0 {
		return false
	}
	for range c.mayTry(j) {
		return false
	}
	return true
}

// mayTry yields the tasks of a job that wait, without those whose attempts failed too recently.
// Of a gang it yields all or none.
func (c *Cell) mayTry(j *Job) func(yield func(uint32) bool) {
	return func(yield func(uint32) bool) {
		if j.retrying > 0 && j.latest().Proto.Gang && c.RetryNs(j) != 0 {
			return
		}
		for i := range j.waiting.all() {
			if j.retrying > 0 && c.retryNs(j.rows[i]) != 0 {
				continue
			}
			if !yield(i) {
				return
			}
		}
	}
}

// checkRetry is the invariant of what delays the next attempt of a task.
func (c *Cell) checkRetry(t *Task) error {
	r := t.retryRow()
	switch {
	case r == nil:
		return nil
	case c.format < FormatRetries:
		return fmt.Errorf("retries of a later format are remembered: %+v", *r)
	case r.failures > maxRetriesCounted || r.version == 0 || r.version > t.job.version || r.readyNs < 0 || r.readyNs > c.clock.cellNs+maxRetryNs:
		return fmt.Errorf("its retries are odd: %+v, and it is %d", *r, c.clock.cellNs)
	}
	return nil
}

// retries writes what delays the next attempt of a task, if anything does.
func (e *encoder) retries(r *retryRow) {
	if r == nil {
		return
	}
	e.byte(tagRetries)
	e.uint(r.version)
	e.uint(uint64(r.failures))
	e.int(r.readyNs)
}

func (l *loader) retries(d *decoder, t *Task) error {
	if l.c.format < FormatRetries || !d.tagged(tagRetries) {
		return nil
	}
	t.setRetry(retryRow{version: d.uint(), failures: d.uint32(), readyNs: d.int()})
	if t.retryRow() == nil {
		return errOdd
	}
	return nil
}
