package borglet

import (
	"cmp"
	"time"

	"borg/proto/borgpb"
)

const (
	// What a health check means that does not say otherwise.
	defaultCheckPeriodNs  = int64(10 * time.Second)
	defaultCheckTimeoutNs = int64(5 * time.Second)
	defaultCheckFailures  = 3
	// minCheckPeriodNs bounds how often one task is checked, whatever its spec says.
	minCheckPeriodNs = int64(time.Second)
	// Until the first check of a run has passed, the next one comes after firstCheckNs,
	// doubling up to slowCheckNs: others wait for the task to be ready, and do not wait
	// for a period.
	firstCheckNs = int64(100 * time.Millisecond)
	slowCheckNs  = int64(time.Second)
)

// Checked is what came of a health check.
type Checked struct {
	ID  ID
	Run uint32
	// Failure is what was wrong, for people; empty: it passed.
	Failure string
	// Undecided: the machine could not make it. It counts neither way.
	Undecided bool
	// As in Check.
	Ready bool
}

// Check makes one health check of the running process, and answers with Checked.
type Check struct {
	Record Record
	// Addr is where it is to be reached; empty: on the machine's own address.
	Addr string
	// Ready: whether it is ready is asked, and not whether it works.
	Ready bool
}

func (Checked) event() {}

// Copy is whose it is.
func (e Check) Copy() ID { return e.Record.ID }

// health is how the checks of the present run stand. That they have passed is in the
// record, so that a borglet which is restarted does not say otherwise of its tasks.
type health struct {
	// dueNs is when the next check begins; zero: none is to.
	dueNs int64
	// checking: the answer of one is awaited, which began at begunNs.
	checking bool
	begunNs  int64
	// pauseNs is the time to the next check while none has passed.
	pauseNs int64
	// countNs is until when no failure counts: in the grace of a start, and of those that
	// come sooner than a period after one that did.
	countNs int64
	// failures in a row that count.
	failures uint32
	// text is what is said of it; it changes when the state does and not with each
	// failure, since it goes into the log of the cell.
	text string
	// ended is why the present run was told to end; empty: it was not. overran: it took
	// longer than its max_runtime.
	ended   string
	overran bool
}

const notYetHealthy = "no health check has passed yet"

// checkOf is a task's health check with all that it leaves open; nil: it has none.
func checkOf(spec *borgpb.TaskSpec) *borgpb.HealthCheck { return filledIn(spec.GetHealth(), spec) }

func filledIn(h *borgpb.HealthCheck, spec *borgpb.TaskSpec) *borgpb.HealthCheck {
	if h == nil || (h.HttpPath == "" && len(h.Command) == 0 && len(spec.Ports) == 0) {
		return nil
	}
	return &borgpb.HealthCheck{
		HttpPath: h.HttpPath, Port: h.Port, Command: h.Command,
		PeriodNs:     max(cmp.Or(h.PeriodNs, defaultCheckPeriodNs), minCheckPeriodNs),
		TimeoutNs:    min(cmp.Or(h.TimeoutNs, defaultCheckTimeoutNs), maxCheckTimeoutNs),
		Failures:     cmp.Or(h.Failures, defaultCheckFailures),
		StartGraceNs: h.StartGraceNs,
	}
}

// beginChecks is done when a process runs that has just been started, or that an
// earlier borglet left. Its grace goes by when it was started.
func (c *Core) beginChecks(t *task) {
	c.limitRun(t)
	c.beginReady(t)
	h := checkOf(t.Desired.GetSpec())
	if h == nil || t.Quarantined || t.Stop != nil || t.health.ended != "" || t.health.dueNs != 0 || t.health.checking {
		return
	}
	ran := max(c.now.WallNs-t.StartedWallNs, 0)
	t.health = health{pauseNs: firstCheckNs, dueNs: c.now.MonoNs + firstCheckNs}
	t.health.countNs = c.now.MonoNs + max(h.StartGraceNs-ran, h.PeriodNs-ran, 0)
	if !t.Passed {
		t.health.text = notYetHealthy
	}
}

// ready tells whether others may rely on it: who has no checks is ready once he runs.
func (t *task) ready() bool {
	healthy := checkOf(t.Desired.GetSpec()) == nil || (t.Passed && t.health.ended == "")
	return healthy && (readyCheckOf(t.Desired.GetSpec()) == nil || t.Ready)
}

// check orders the check that is due.
func (c *Core) check(t *task) {
	t.health.dueNs = 0
	if t.phase != running || t.Stop != nil || t.health.ended != "" || checkOf(t.Desired.GetSpec()) == nil {
		return
	}
	t.health.checking, t.health.begunNs = true, c.now.MonoNs
	c.emit(Check{Record: t.Record, Addr: t.addr})
}

// checked takes in what came of a check. Enough failures in a row end the run, and it
// is started again as if it had ended by itself.
func (c *Core) checked(ev Checked) {
	t := c.copies[ev.ID]
	if ev.Ready {
		c.checkedReady(t, ev)
		return
	}
	if t == nil || t.Run != ev.Run || t.phase != running || !t.health.checking {
		return
	}
	h, s := checkOf(t.Desired.GetSpec()), &t.health
	s.checking = false
	if h == nil || t.Quarantined || t.Stop != nil || s.ended != "" {
		return
	}
	pause := h.PeriodNs
	if !t.Passed {
		pause, s.pauseNs = min(pause, s.pauseNs), min(2*s.pauseNs, slowCheckNs)
	}
	s.dueNs = max(s.begunNs+pause, c.now.MonoNs)
	if ev.Undecided {
		return
	}
	if ev.Failure == "" {
		s.failures, s.text = 0, ""
		if !t.Passed {
			t.Passed, s.dueNs = true, max(s.begunNs+h.PeriodNs, c.now.MonoNs)
			c.emit(Save{t.Record})
		}
		return
	}
	failure := bounded(ev.Failure)
	switch {
	case !t.Passed && s.text == notYetHealthy:
		s.text = notYetHealthy + ": " + failure
	case t.Passed && s.text == "":
		s.text = "health check fails: " + failure
	}
	if s.begunNs < s.countNs {
		return
	}
	s.countNs = s.begunNs + h.PeriodNs
	if s.failures++; s.failures < h.Failures {
		return
	}
	c.endRun(t, bounded("unhealthy: "+failure))
}

// endRun ends a run of the borglet's own accord: with notice, SIGTERM, and SIGKILL after
// its grace. why goes into its exit.
func (c *Core) endRun(t *task, why string) {
	s := &t.health
	s.ended, s.dueNs = why, 0
	s.text = s.ended
	grace := t.Desired.GetSpec().GetGraceNs()
	if grace == 0 {
		grace = defaultGraceNs
	}
	t.dueNs = c.now.MonoNs + grace
	if !t.terminated {
		t.terminated = true
		c.emit(Terminate{t.ID, t.Run, c.notice(t)})
	}
}

// defaultGraceNs is the time between SIGTERM and SIGKILL when the spec says nothing.
const defaultGraceNs = int64(30 * time.Second)
