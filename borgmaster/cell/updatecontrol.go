package cell

import (
	"strings"

	"borg/proto/borgpb"
)

// checkControlUpdate decides whether the update of a job is in a state for what it is
// told.
func (c *Cell) checkControlUpdate(o *borgpb.ControlUpdate) (commit, *borgpb.Refusal) {
	j, r := c.checkLive(JobKey{o.User, o.Name}, 0)
	if r != nil {
		return nil, r
	}
	u := j.update
	if u == nil {
		return nil, badState(j.key.String(), "no update of it has begun")
	}
	if o.UpdateUid != "" && o.UpdateUid != u.uid.String() {
		return nil, refuse(borgpb.RefusalKind_REFUSAL_KIND_CONFLICT, j.key.String(), "update_uid",
			"its update is %v, not %s", u.uid, clip(o.UpdateUid, 64))
	}
	do, r := c.controlling(j, o.Verb)
	if r != nil {
		return nil, about(j.key.String(), r)
	}
	return func(res *borgpb.Result) {
		do()
		c.review(j)
		res.Uid, res.Version, res.UpdateUid = j.uid.String(), j.version, j.update.uid.String()
	}, nil
}

// controlling is what a verb does to the update of a job.
func (c *Cell) controlling(j *Job, verb borgpb.UpdateVerb) (func(), *borgpb.Refusal) {
	u := j.update
	paused := u.state == borgpb.UpdateState_UPDATE_STATE_PAUSED
	not := func(format string, args ...any) (func(), *borgpb.Refusal) {
		return nil, badState("", "its update "+format, args...)
	}
	switch verb {
	case borgpb.UpdateVerb_UPDATE_VERB_PROMOTE:
		switch {
		case !u.Rolling() || !u.canarying():
			return not("has no canaries that wait to be promoted: it is %s", u.stateWords())
		case paused:
			return not("is paused; resume it first")
		case u.state != borgpb.UpdateState_UPDATE_STATE_CANARY:
			return not("cannot be promoted before its canaries are healthy")
		}
		return func() { c.promote(j, "promoted"+c.because()) }, nil
	case borgpb.UpdateVerb_UPDATE_VERB_PAUSE:
		if !u.Rolling() || paused {
			return not("does not roll: it is %s", u.stateWords())
		}
		return func() { c.setUpdateState(u, borgpb.UpdateState_UPDATE_STATE_PAUSED, "paused") }, nil
	case borgpb.UpdateVerb_UPDATE_VERB_RESUME:
		if !paused {
			return not("is not paused: it is %s", u.stateWords())
		}
		return func() { c.setUpdateState(u, u.rollsAs(), "resumed") }, nil
	case borgpb.UpdateVerb_UPDATE_VERB_ABORT:
		if !u.Rolling() {
			return not("does not roll: it is %s", u.stateWords())
		}
		return func() {
			c.endUpdate(j, borgpb.UpdateState_UPDATE_STATE_ABORTED, "aborted"+c.because())
			c.letBe(j)
		}, nil
	case borgpb.UpdateVerb_UPDATE_VERB_ROLLBACK:
		return c.rollingBack(j)
	case borgpb.UpdateVerb_UPDATE_VERB_CLOSE:
		switch {
		case u.Rolling():
			return not("is under way: it is %s", u.stateWords())
		case !u.Open():
			return not("is closed already")
		case u.canarying():
			return not("left all but its canaries with the old spec, which must be kept for them; roll it back, or update the job")
		}
		return func() { c.closeUpdate(j, "closed"+c.because()) }, nil
	case borgpb.UpdateVerb_UPDATE_VERB_PULSE:
		if !u.Rolling() || u.policy.pulseNs == 0 {
			return not("waits for no pulse")
		}
		return func() {
			if c.lapsed(u) {
				// It stood still for want of this.
				u.progressNs = c.clock.cellNs
				u.gate.forget()
			}
			u.pulsedNs = max(c.clock.cellNs, 1)
			c.dirty(u)
		}, nil
	}
	return nil, invalid("verb", "want promote, pause, resume, abort, rollback, close or pulse")
}

func (c *Cell) rollingBack(j *Job) (func(), *borgpb.Refusal) {
	u := j.update
	switch {
	case u.rollback && u.Rolling():
		return nil, badState("", "it is rolled back already")
	case u.rollback:
		return nil, badState("", "its last update was a rollback, which cannot be undone; update it to another spec")
	case !u.Open():
		return nil, badState("", "its last update is closed and cannot be rolled back; update it to the old spec")
	}
	spec, tasks, r := c.checkRollback(j)
	if r != nil {
		return nil, r
	}
	return func() { c.rollBack(j, spec, tasks, "asked for"+c.because()) }, nil
}

// setUpdateState is for updates that stay under way.
func (c *Cell) setUpdateState(u *Update, to borgpb.UpdateState, words string) {
	u.state, u.canaryNs, u.progressNs = to, 0, c.clock.cellNs
	u.gate.forget()
	c.dirty(u)
	c.tellUpdate(u, words+c.because())
}

// rollsAs is the state of an update that rolls.
func (u *Update) rollsAs() borgpb.UpdateState {
	if u.rollback {
		return borgpb.UpdateState_UPDATE_STATE_ROLLING_BACK
	}
	return borgpb.UpdateState_UPDATE_STATE_ROLLING
}

// because is the reason that was given for the op at hand.
func (c *Cell) because() string {
	if c.now.reason == "" {
		return ""
	}
	return ": " + clip(c.now.reason, maxReasonBytes)
}

func (u *Update) stateWords() string {
	return strings.ReplaceAll(strings.ToLower(strings.TrimPrefix(u.state.String(), "UPDATE_STATE_")), "_", " ")
}

// rollout writes what format 7 added to an update.
func (e *encoder) rollout(r *rollout) {
	if *r == (rollout{}) {
		return
	}
	e.byte(tagRollout)
	p := &r.policy
	e.uint(uint64(p.order))
	e.int(p.watchNs)
	e.uint(uint64(p.failsAt))
	e.int(p.deadlineNs)
	e.uint(uint64(p.canaries))
	e.int(p.canaryWatchNs)
	e.bool(p.autoRollback)
	e.int(p.closeAfterNs)
	e.int(p.pulseNs)
	e.bool(p.apart)
	e.uint(r.stable)
	e.uint(uint64(r.stableTasks))
	e.bool(r.rollback)
	e.bool(r.promoted)
	e.uint(uint64(r.failures))
	e.int(r.progressNs)
	e.int(r.canaryNs)
	e.int(r.closeNs)
	e.int(r.pulsedNs)
}

func (l *loader) rollout(d *decoder, u *Update) error {
	if l.c.format < FormatUpdates || !d.tagged(tagRollout) {
		return nil
	}
	u.rollout = rollout{
		policy: rollPolicy{
			order: borgpb.UpdateOrder(d.uint32()), watchNs: d.int(), failsAt: d.uint32(), deadlineNs: d.int(), canaries: d.uint32(),
			canaryWatchNs: d.int(), autoRollback: d.bool(), closeAfterNs: d.int(), pulseNs: d.int(), apart: d.bool(),
		},
		stable: d.uint(), stableTasks: d.uint32(), rollback: d.bool(), promoted: d.bool(), failures: d.uint32(),
		progressNs: d.int(), canaryNs: d.int(), closeNs: d.int(), pulsedNs: d.int(),
	}
	for _, ns := range []int64{u.progressNs, u.canaryNs, u.closeNs, u.pulsedNs, u.policy.watchNs, u.policy.deadlineNs, u.policy.canaryWatchNs, u.policy.pulseNs} {
		if ns < 0 || ns > maxTimeNs {
			return errOdd
		}
	}
	if u.rollout == (rollout{}) {
		return errOdd
	}
	return nil
}

// watched writes since when a copy is watched and when it was last known to be well, if
// it is watched or was as a canary.
func (e *encoder) watched(p *Copy) {
	if p.upNs() != 0 || p.wellNs() != 0 {
		e.byte(tagUpSince)
		e.int(p.few.upNs)
		e.int(p.few.wellNs)
	}
}

func (l *loader) watched(d *decoder, p *Copy) error {
	if l.c.format < FormatUpdates || !d.tagged(tagUpSince) {
		return nil
	}
	few := p.rare()
	few.upNs, few.wellNs = d.int(), d.int()
	if min(few.upNs, few.wellNs) < 0 || max(few.upNs, few.wellNs) > maxTimeNs || few.upNs == 0 && few.wellNs == 0 {
		return errOdd
	}
	return nil
}
