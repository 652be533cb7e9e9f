package borglet

import "borg/proto/borgpb"

// readiness is how the check of readiness of the present run stands. What it came to
// last is in the record, so that a borglet which is restarted says the same.
type readiness struct {
	// dueNs is when the next check begins; zero: none is to.
	dueNs int64
	// checking: the answer of one is awaited, which began at begunNs.
	checking bool
	begunNs  int64
	// pauseNs is the time to the next check while it is not ready.
	pauseNs int64
	// failures in a row.
	failures uint32
	// text is what is said of it, and changes as that of health.
	text string
}

const notYetReady = "not ready yet"

// readyCheckOf is a task's check of readiness with all that it leaves open; nil: it has
// none.
func readyCheckOf(spec *borgpb.TaskSpec) *borgpb.HealthCheck { return filledIn(spec.GetReady(), spec) }

// beginReady is beginChecks for readiness.
func (c *Core) beginReady(t *task) {
	if readyCheckOf(t.Desired.GetSpec()) == nil || t.Stop != nil || t.readiness.dueNs != 0 || t.readiness.checking {
		return
	}
	t.readiness = readiness{pauseNs: firstCheckNs, dueNs: c.now.MonoNs + firstCheckNs}
	if !t.Ready {
		t.readiness.text = notYetReady
	}
}

// checkReady orders the check that is due.
func (c *Core) checkReady(t *task) {
	t.readiness.dueNs = 0
	if t.phase != running || t.Stop != nil || readyCheckOf(t.Desired.GetSpec()) == nil {
		return
	}
	t.readiness.checking, t.readiness.begunNs = true, c.now.MonoNs
	c.emit(Check{Record: t.Record, Addr: t.addr, Ready: true})
}

// checkedReady takes in what came of one. A task is ready with the first check that it
// passes, and not any more after enough failures in a row. Nothing else comes of it.
func (c *Core) checkedReady(t *task, ev Checked) {
	if t == nil || t.Run != ev.Run || t.phase != running || !t.readiness.checking {
		return
	}
	h, s := readyCheckOf(t.Desired.GetSpec()), &t.readiness
	s.checking = false
	if h == nil || t.Stop != nil {
		return
	}
	was := t.Ready
	switch {
	case ev.Undecided:
	case ev.Failure == "":
		t.Ready, s.failures, s.text = true, 0, ""
	default:
		s.failures++
		switch failure := bounded(ev.Failure); {
		case t.Ready && s.failures >= h.Failures:
			t.Ready, s.pauseNs = false, firstCheckNs
			s.text = "not ready: " + failure
		case !t.Ready && s.text == notYetReady:
			s.text = notYetReady + ": " + failure
		}
	}
	pause := h.PeriodNs
	if !t.Ready {
		// Who is not ready is to be found ready soon.
		pause, s.pauseNs = min(pause, s.pauseNs), min(2*s.pauseNs, slowCheckNs)
	}
	s.dueNs = max(s.begunNs+pause, c.now.MonoNs)
	if t.Ready != was {
		c.emit(Save{t.Record})
	}
}
