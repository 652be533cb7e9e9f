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
	// graceCheckNs is the time between checks in the grace of a start, if the period is
	// longer: who waits for the task to be ready does not wait for a period.
	graceCheckNs = int64(time.Second)
)

// Checked is what came of a health check.
type Checked struct {
	ID  ID
	Run uint32
	// Failure is what was wrong, for people; empty: it passed.
	Failure string
	// Undecided: the machine could not make it. It counts neither way.
	Undecided bool
}

// Check makes one health check of the running process, and answers with Checked.
type Check struct{ Record Record }

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
	// graceNs is until when no failure counts.
	graceNs int64
	// failures in a row that count.
	failures uint32
	// text is what is said of it; it changes when the state does and not with each
	// failure, since it goes into the log of the cell.
	text string
	// ended is why the present run was told to end; empty: it was not.
	ended string
}

const notYetHealthy = "no health check has passed yet"

// checkOf is a task's health check with all that it leaves open; nil: it has none.
func checkOf(spec *borgpb.TaskSpec) *borgpb.HealthCheck {
	h := spec.GetHealth()
	if h == nil || (h.HttpPath == "" && len(h.Command) == 0 && len(spec.Ports) == 0) {
		return nil
	}
	return &borgpb.HealthCheck{
		HttpPath: h.HttpPath, Port: h.Port, Command: h.Command,
		PeriodNs:     max(cmp.Or(h.PeriodNs, defaultCheckPeriodNs), minCheckPeriodNs),
		TimeoutNs:    cmp.Or(h.TimeoutNs, defaultCheckTimeoutNs),
		Failures:     cmp.Or(h.Failures, defaultCheckFailures),
		StartGraceNs: h.StartGraceNs,
	}
}

// beginChecks is done when a process runs that has just been started, or that an
// earlier borglet left. Its grace goes by when it was started.
func (c *Core) beginChecks(t *task) {
	h := checkOf(t.Desired.GetSpec())
	if h == nil || t.Stop != nil || t.health.ended != "" || t.health.dueNs != 0 || t.health.checking {
		return
	}
	ran := max(c.now.WallNs-t.StartedWallNs, 0)
	t.health = health{graceNs: c.now.MonoNs + max(h.StartGraceNs-ran, 0)}
	if !t.Passed {
		t.health.text = notYetHealthy
	}
	t.health.dueNs = c.now.MonoNs + min(h.PeriodNs, graceCheckNs)
	if t.health.graceNs <= c.now.MonoNs && ran < h.PeriodNs {
		t.health.dueNs = c.now.MonoNs + h.PeriodNs - ran
	}
}

// check orders the check that is due.
func (c *Core) check(t *task) {
	t.health.dueNs = 0
	if t.phase != running || t.Stop != nil || t.health.ended != "" || checkOf(t.Desired.GetSpec()) == nil {
		return
	}
	t.health.checking, t.health.begunNs = true, c.now.MonoNs
	c.emit(Check{t.Record})
}

// checked takes in what came of a check. Enough failures in a row end the run, and it
// is started again as if it had ended by itself.
func (c *Core) checked(ev Checked) {
	t := c.copies[ev.ID]
	if t == nil || t.Run != ev.Run || t.phase != running || !t.health.checking {
		return
	}
	h, s := checkOf(t.Desired.GetSpec()), &t.health
	s.checking = false
	if h == nil || t.Stop != nil || s.ended != "" {
		return
	}
	period := h.PeriodNs
	inGrace := s.begunNs < s.graceNs
	if inGrace {
		period = min(period, graceCheckNs)
	}
	s.dueNs = max(s.begunNs+period, c.now.MonoNs)
	if ev.Undecided {
		return
	}
	if ev.Failure == "" {
		s.failures, s.text = 0, ""
		if !t.Passed {
			t.Passed = true
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
	if inGrace {
		return
	}
	if s.failures++; s.failures < h.Failures {
		return
	}
	s.ended, s.dueNs = bounded("unhealthy: "+failure), 0
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
