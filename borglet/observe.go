package borglet

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"

	"borg/mutant"
	"borg/proto/borgpb"
)

// recover takes over what an earlier borglet left. Nothing pretends to run: a
// copy that was begun in an earlier boot has ended, whatever its record says.
func (c *Core) recover(ev Recovered) {
	found := slices.Clone(ev.Copies)
	slices.SortFunc(found, func(a, b Found) int { return compareIDs(a.Record.ID, b.Record.ID) })
	for _, f := range found {
		t := &task{Record: f.Record, addr: f.Observed.Addr}
		if t.Desired == nil && t.Ended == 0 && t.Run == 0 {
			// Its maker was killed while it took it in; the master sends it again.
			c.emit(Remove{t.ID})
			continue
		}
		c.add(t)
		switch {
		case t.Ended != 0:
			t.phase, t.kept = ended, true
			c.emit(Destroy{t.ID, t.Run, t.phase == ended})
		case t.Run == 0:
			t.phase = waiting
		case t.RunEnded:
			// The end was counted when it was seen.
			t.Failures = max(t.Failures, 1) - 1
			c.backOff(t, t.Text)
		case f.Observed.Kind != Exited && t.Boot != c.cfg.Boot && !mutant.Planted(mutant.RebootForgotten):
			c.exited(t, &borgpb.Exit{Unknown: true, EndedWallNs: c.now.WallNs}, "the machine was restarted")
		default:
			c.adopt(t, f.Observed)
		}
	}
	if c.cfg.HoldNs > 0 && len(found) > 0 {
		c.holdNs = c.now.MonoNs + c.cfg.HoldNs
	}
}

// adopt goes on with a run of this boot.
func (c *Core) adopt(t *task, o Observed) {
	t.phase = starting
	if t.Stop != nil {
		// Notice and grace begin anew: when they began is not known any more.
		t.dueNs = c.now.MonoNs + t.Stop.endNs()
		c.setTerm(t, true)
	}
	o.Run = t.Run
	if mutant.Planted(mutant.ZombieAdopted) && o.Kind == Exited {
		o.Kind, o.Pid = Running, 1
	}
	c.seen(t, o)
}

// observe takes in what the runtime saw. What is said of another run than the
// present one is old.
func (c *Core) observe(o Observed) {
	t := c.copies[o.ID]
	if t == nil || t.Run != o.Run || (t.phase != starting && t.phase != running) {
		return
	}
	c.seen(t, o)
}

func (c *Core) seen(t *task, o Observed) {
	t.addr = o.Addr
	switch o.Kind {
	case Absent:
		c.notStarted(t, "the borglet was restarted before the task was started", borgpb.ExitReason_EXIT_REASON_NOT_STARTED)
	case Starting:
		if t.phase == starting && t.Stop == nil {
			t.dueNs = c.now.MonoNs + startNs
		}
	case Running:
		t.phase, t.pid, t.StartedWallNs = running, o.Pid, o.StartedWallNs
		if t.Stop == nil && t.health.ended == "" && t.squeezed == "" {
			t.dueNs, t.Clear = 0, false
		}
		if o.ShimLost {
			t.ShimLost = true
			t.note = "its shim died; its exit code may stay unknown"
		}
		if t.Stop == nil && t.RunVersion != t.Desired.GetVersion() {
			c.update(t)
		} else {
			c.emit(Save{t.Record})
		}
		if t.Stop != nil {
			c.terminate(t)
		}
		c.beginChecks(t)
	case Exited:
		c.exited(t, o.Exit, "")
	case NotStarted:
		c.notStarted(t, o.Text, borgpb.ExitReason_EXIT_REASON_NOT_STARTED)
	}
}

// exited decides what becomes of a copy whose process has ended.
func (c *Core) exited(t *task, exit *borgpb.Exit, text string) {
	switch {
	case exit == nil:
		exit = &borgpb.Exit{Unknown: true, EndedWallNs: c.now.WallNs}
	case len(exit.GetError()) > maxTextBytes:
		exit = proto.CloneOf(exit)
		exit.Error = bounded(exit.Error)
	}
	// Why it was made to end, unless somebody ordered it.
	var why string
	if t.squeezed == "" {
		// A borglet before this one had begun to end it, and has not.
		t.Clear = false
	} else {
		exit, why = t.gaveWay(exit)
	}
	healthy := t.StartedWallNs != 0 && exit.GetEndedWallNs()-t.StartedWallNs >= c.cfg.Backoff.HealthyNs
	t.pid = 0
	unhealthy, overran := t.health.ended, t.health.overran
	t.health, t.readiness, t.overNs = health{}, readiness{}, 0
	if why = cmp.Or(why, unhealthy); why != "" && t.Stop == nil {
		exit = proto.CloneOf(exit)
		exit.Reason = bounded(why)
		exit.ReasonCode = cmp.Or(t.fault, borgpb.ExitReason_EXIT_REASON_GAVE_WAY)
		if why == unhealthy {
			exit.ReasonCode = borgpb.ExitReason_EXIT_REASON_UNHEALTHY
		}
		if why == unhealthy && overran {
			exit.ReasonCode = borgpb.ExitReason_EXIT_REASON_MAX_RUNTIME
		}
	} else if exit.GetSignal() == 9 && exit.GetReasonCode() == 0 && t.Stop == nil {
		exit = proto.CloneOf(exit)
		exit.ReasonCode = borgpb.ExitReason_EXIT_REASON_KILLED
	}
	t.Exit = exit
	text = bounded(cmp.Or(text, why, ExitText(exit)))
	switch {
	case t.Stop != nil:
		c.end(t, borgpb.AttemptState_ATTEMPT_STATE_STOPPED, "")
	case t.batch() && (succeeded(exit) && unhealthy == "" || overran && t.Desired.GetSpec().GetMaxRuntimeFinishes()):
		c.end(t, borgpb.AttemptState_ATTEMPT_STATE_FINISHED, "")
	case t.batch():
		c.end(t, borgpb.AttemptState_ATTEMPT_STATE_FAILED, text)
	default:
		if healthy {
			t.Failures = 0
		}
		c.backOff(t, text)
	}
	if t.Clear {
		c.emit(Clear{t.ID, t.Run})
	}
}

// notStarted tries again what the machine could not begin. No process of the
// task has run, so it is no restart.
func (c *Core) notStarted(t *task, text string, way borgpb.ExitReason) {
	text = bounded(text)
	if t.Exit != nil && t.Restarts > 0 {
		t.Restarts--
	}
	switch {
	case t.Stop != nil:
		c.end(t, borgpb.AttemptState_ATTEMPT_STATE_STOPPED, "")
	case t.batch() && t.Failures+1 >= maxStartTries:
		t.Exit = &borgpb.Exit{Code: 127, Error: text, ReasonCode: way, EndedWallNs: c.now.WallNs}
		c.end(t, borgpb.AttemptState_ATTEMPT_STATE_FAILED, text)
	default:
		c.backOff(t, text)
	}
}

func (c *Core) backOff(t *task, text string) {
	delay := c.cfg.Backoff.delayNs(t.Failures)
	t.Failures++
	t.phase, t.RunEnded = backoff, true
	t.pid, t.StartedWallNs, t.updateNs, t.updateNote, t.health, t.readiness = 0, 0, 0, "", health{}, readiness{}
	t.oomKills, t.oomText = 0, ""
	t.dueNs = c.now.MonoNs + delay
	t.Text = text
	t.note = "starts again " + time.Duration(delay).String() + " after that"
	if t.Quarantined {
		t.dueNs, t.note = 0, quarantineNote
	}
	c.emit(Save{t.Record})
	c.emit(Destroy{t.ID, t.Run, t.phase == ended})
}

// fail takes in that an effect could not be done.
func (c *Core) fail(f Failed) {
	if f.Op == OpRemove {
		if len(c.leaving) < maxCopies && !mutant.Planted(mutant.RemovalNotRetried) {
			c.leaving[f.ID] = c.now.MonoNs + retryNs
		}
		return
	}
	t := c.copies[f.ID]
	if t == nil || t.Run != f.Run {
		return
	}
	switch f.Op {
	case OpStart:
		if t.phase == starting {
			c.notStarted(t, f.Text, f.Way)
		}
	case OpUpdate:
		if t.phase == running {
			t.updateNs = c.now.MonoNs + retryNs
			t.updateNote = bounded("limits not yet changed: " + f.Text)
		}
	case OpSave:
		if t.phase == ended && !t.kept {
			t.saveNs = c.now.MonoNs + retryNs
		}
	case OpDestroy:
		if t.phase == ended {
			t.destroyNs = c.now.MonoNs + retryNs
		}
	case OpWarn, OpTerminate, OpKill:
		// Either it has just ended, and that will be observed, or the timer of
		// the stop kills, again and again.
		if t.phase == starting || t.phase == running {
			t.note = bounded(f.Text)
		}
	}
}

// maxTextBytes bounds what one report says to people, since it goes into the
// log of the cell.
const maxTextBytes = 600

func bounded(text string) string { return cut(text, maxTextBytes) }

func cut(text string, most int) string {
	if len(text) <= most {
		return text
	}
	return strings.ToValidUTF8(text[:most], "") + "..."
}

func succeeded(e *borgpb.Exit) bool {
	return e.GetCode() == 0 && e.GetSignal() == 0 && !e.GetUnknown() && e.GetError() == ""
}

// ExitText says how a process ended, for people.
func ExitText(e *borgpb.Exit) string {
	var text string
	switch {
	case e == nil:
		return ""
	case e.GetError() != "":
		return e.GetError()
	case e.GetUnknown():
		text = "exit code unknown"
	case e.GetSignal() != 0:
		text = fmt.Sprintf("ended by signal %d", e.GetSignal())
	default:
		text = fmt.Sprintf("exit code %d", e.GetCode())
	}
	switch {
	case e.GetOom():
		text += ", out of memory: at its limit, or because its machine had none left" + oomText(e)
	case e.GetReasonCode() == borgpb.ExitReason_EXIT_REASON_KILLED:
		text += ": neither its borglet nor the kernel killed it for want of memory, so somebody else did, or it did itself"
	}
	return text
}

// oomText names the process that the kernel killed, if it is known.
func oomText(e *borgpb.Exit) string {
	if e.GetOomProcess() == "" {
		return ""
	}
	return fmt.Sprintf("; the kernel killed its process %s, which held %s", e.GetOomProcess(), mib(e.GetOomBytes()))
}
