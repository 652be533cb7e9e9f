package cell

import (
	"fmt"
	"strings"

	"borg/mutant"
	"borg/proto/borgpb"
)

// FormatPreemption is the format from which on bands may collapse, who takes a place
// says how long it waits and why, and tasks may ask for a notice before SIGTERM.
const FormatPreemption = 8

// preemptionPolicy is which bands collapse besides production.
type preemptionPolicy struct {
	mark
	collapse bandSet
}

// bandSet is a set of bands.
type bandSet uint8

func (s bandSet) has(b borgpb.Band) bool { return s>>b&1 != 0 }

// Collapsed are the bands within which nobody takes the place of others by priority
// alone, from low to high: those of the policy, and production.
func (c *Cell) Collapsed() (bands []borgpb.Band) {
	for _, b := range Bands {
		if b == borgpb.Band_BAND_PRODUCTION || c.preemption.collapse.has(b) {
			bands = append(bands, b)
		}
	}
	return bands
}

func (c *Cell) checkSetPreemptionPolicy(o *borgpb.SetPreemptionPolicy) (commit, *borgpb.Refusal) {
	var collapse bandSet
	for _, b := range o.Collapse {
		if r := checkBand(b); r != nil {
			r.Field = "collapse"
			return nil, r
		}
		switch {
		case b == borgpb.Band_BAND_PRODUCTION:
			return nil, invalid("collapse", "production never takes the place of production, whatever is said; leave it out")
		case collapse.has(b):
			return nil, invalid("collapse", "%s is named twice", BandName(b))
		}
		collapse |= 1 << b
	}
	return func(*borgpb.Result) {
		p := &c.preemption
		p.collapse = collapse
		c.dirty(p)
		var names []string
		for _, b := range c.Collapsed() {
			names = append(names, BandName(b))
		}
		text := "nobody takes the place of others within " + strings.Join(names, ", ")
		if c.now.reason != "" {
			text += ": " + c.now.reason
		}
		c.emit(Event{Kind: borgpb.EventKind_EVENT_KIND_PREEMPTION_POLICY, ObjectKind: borgpb.ObjectKind_OBJECT_KIND_CELL, Reason: clip(text, maxReasonBytes)})
	}, nil
}

// Preemptor is who wants a place that others hold.
type Preemptor struct {
	User     string
	Priority int32
	Mode     borgpb.Preempt
}

// Never tells that it takes nobody's place.
func (p *Preemptor) Never() bool { return p.Mode == borgpb.Preempt_PREEMPT_NEVER }

// MayTake reports whether p may preempt a user's work of some priority now. It may preempt work
// that it outranks, but not work of its own user while too much of that is stopping.
func (c *Cell) MayTake(p *Preemptor, user string, priority int32) bool {
	return c.outranks(p, user, priority) && (p.User != user || c.PreemptsOwn(user, BandOf(priority)))
}

// outranks reports whether p may preempt a user's work of some priority, whatever is stopping.
// It outranks lower priorities. Within a band that collapses it outranks only work of its own
// user, and only if its mode is PREEMPT_OWN.
func (c *Cell) outranks(p *Preemptor, user string, priority int32) bool {
	if p.Never() || !MayPreempt(p.Priority, priority) {
		return false
	}
	band := BandOf(p.Priority)
	if band != BandOf(priority) || !c.collapses(band) {
		return true
	}
	return p.Mode == borgpb.Preempt_PREEMPT_OWN && p.User == user
}

// TakesBelow returns the priority below which all work is whose place p may take; zero
// when it takes nobody's. Not all work below it need be p's to take: MayTake tells.
func (c *Cell) TakesBelow(p *Preemptor) int32 {
	band := BandOf(p.Priority)
	switch {
	case p.Never():
		return 0
	case takesItsLike():
		return p.Priority + 1
	case band == borgpb.Band_BAND_PRODUCTION:
		return productionPriority
	case p.Mode == borgpb.Preempt_PREEMPT_OWN || !c.collapses(band):
		return p.Priority
	}
	return lowestOf(band)
}

// collapses reports whether nobody takes the place of others within a band.
func (c *Cell) collapses(band borgpb.Band) bool {
	return c.preemption.collapse.has(band) && !mutant.Planted(mutant.CollapseNotAsked)
}

// lowestOf is the lowest priority of a band.
func lowestOf(b borgpb.Band) int32 {
	switch b {
	case borgpb.Band_BAND_MONITORING:
		return monitoringPriority
	case borgpb.Band_BAND_PRODUCTION:
		return productionPriority
	case borgpb.Band_BAND_MID:
		return midPriority
	case borgpb.Band_BAND_BATCH:
		return batchPriority
	}
	return 0
}

// taking is who takes the place of victims, as they are told.
type taking struct {
	name func() string
	by   Preemptor
	// How long it waits for them at most, in all.
	waitNs int64
	// What its scheduler says of the choice.
	why string
}

// reason is what victims are told.
func (c *Cell) reason(by *taking) string {
	text := RoomFor(by.name())
	if c.format < FormatPreemption {
		return text
	}
	text += fmt.Sprintf(" (priority %d, %s)", by.by.Priority, BandName(BandOf(by.by.Priority)))
	if by.why != "" {
		text += ": " + by.why
	}
	return text
}

const roomFor = "makes room for "

// RoomFor begins the reason that the victims of a task or alloc are told.
func RoomFor(name string) string { return roomFor + name }

// GaveWayTo comes before the name of the task or alloc that took a place, where its victim
// is explained.
const GaveWayTo = "gave way to "

// TakenBy names the task or alloc that took a place, by the reason that its victim was
// told; ok is false for reasons of another kind.
func TakenBy(reason string) (name string, ok bool) {
	if name, ok = strings.CutPrefix(reason, roomFor); ok {
		name, _, _ = strings.Cut(name, " (")
	}
	return name, ok
}

// waitOf is how long work waits at most for those whose place it takes.
func (c *Cell) waitOf(waitNs int64, priority int32) int64 {
	switch {
	case c.format < FormatPreemption:
		return preemptionGraceNs
	case waitNs != 0:
		return waitNs
	case isProd(priority):
		return preemptionGraceNs
	}
	return lowPreemptionGraceNs
}

// preempt evicts a copy for somebody who waits so long at most. SIGTERM comes first:
// what is left beyond the grace goes to the notice.
func (c *Cell) preempt(p *Copy, reason string, waitNs int64) {
	graceNs := p.grace()
	if !mutant.Planted(mutant.PreemptWaitNotKept) {
		graceNs = min(graceNs, waitNs)
	}
	noticeNs := min(p.noticeNs(), waitNs-graceNs)
	c.evict(p.row(), edgeEvict, statePending, borgpb.StopCause_STOP_CAUSE_PREEMPTION, reason, graceNs)
	p.stop.noticeNs = max(noticeNs, 0)
}

// hasten shortens the time of a copy that stops already, for whatever reason, when
// somebody who may take its place comes to wait for its room. The borglet counts the new
// time from the poll that brings it, and keeps whichever end is earlier.
func (c *Cell) hasten(p *Copy, by *Preemptor, waitNs int64) {
	if p.state != attemptStopping || mutant.Planted(mutant.StopNotHastened) || !c.outranks(by, p.job.key.User, p.priority) {
		return
	}
	s := p.stop
	if s.noticeNs+s.graceNs <= waitNs {
		return
	}
	s.graceNs = min(s.graceNs, waitNs)
	s.noticeNs = min(s.noticeNs, waitNs-s.graceNs)
	c.dirtyCopy(p)
}

// MayAwait reports whether somebody may wait for the room of a copy that stops: he may
// take its place, or it ends soon anyway. Otherwise a long grace would hold up others for
// whom there is room elsewhere before it is over.
func (c *Cell) MayAwait(p *Copy, by *Preemptor) bool {
	return p.stop == nil || p.stop.noticeNs+p.stop.graceNs <= maxAwaitedStopNs || c.outranks(by, p.job.key.User, p.priority)
}

// noticed are the causes for which the cell stops tasks of its own accord, and with
// which nobody waits for an end in a hurry: they leave a task all the notice that it
// asks for. Preemption leaves what its preemptor grants.
func noticed(cause borgpb.StopCause) bool {
	switch cause {
	case borgpb.StopCause_STOP_CAUSE_UPDATE, borgpb.StopCause_STOP_CAUSE_DRAIN, borgpb.StopCause_STOP_CAUSE_TAINT,
		borgpb.StopCause_STOP_CAUSE_MOVE, borgpb.StopCause_STOP_CAUSE_UNMATCHED, borgpb.StopCause_STOP_CAUSE_CRASHED:
		return true
	}
	return false
}

// noticeNs is how long before SIGTERM a copy asks to be told; zero when it is not
// bound to its spec.
func (p *Copy) noticeNs() int64 {
	if p.spec == nil {
		return 0
	}
	return p.spec.Need(p.index).Task.NoticeNs
}

// NoticeNs bounds the time between the notice and SIGTERM; zero: there is none.
func (p *Copy) NoticeNs() int64 {
	if p.stop == nil {
		return 0
	}
	return p.stop.noticeNs
}

// checkNotice range-checks what a task says of its end.
func checkNotice(t *borgpb.TaskSpec, field string) *borgpb.Refusal {
	switch {
	case t.NoticeNs < 0 || t.NoticeNs > maxGraceNs:
		return outOfSpan(field+".notice_ns", t.NoticeNs, 0, maxGraceNs)
	case t.NoticeSignal && t.NoticeNs == 0:
		return invalid(field+".notice_signal", "there is no notice to send it with: want notice_ns too")
	}
	return nil
}

// checkPreemptWait range-checks how long work waits for victims.
func checkPreemptWait(waitNs int64, mode borgpb.Preempt) *borgpb.Refusal {
	switch {
	case waitNs < 0 || waitNs > maxPreemptWaitNs:
		return outOfSpan("spec.preempt_wait_ns", waitNs, 0, maxPreemptWaitNs)
	case waitNs != 0 && mode == borgpb.Preempt_PREEMPT_NEVER:
		return invalid("spec.preempt_wait_ns", "work with preempt never takes nobody's place: leave one of them out")
	}
	return nil
}

// checkVictimsWhy checks what is said of the choice of victims.
func checkVictimsWhy(a *borgpb.Assignment) *borgpb.Refusal {
	switch {
	case len(a.VictimsWhy) > maxVictimsWhyBytes:
		return limit("victims_why", "%d bytes; at most %d", len(a.VictimsWhy), maxVictimsWhyBytes)
	case a.VictimsWhy != "" && len(a.Victims) == 0:
		return invalid("victims_why", "there are no victims to tell")
	}
	return nil
}

func (p *preemptionPolicy) appendKey(to []byte) []byte { return append(to, kindPreemption) }

func (p *preemptionPolicy) exists() bool { return p.collapse != 0 }

func (p *preemptionPolicy) appendValue(to []byte) []byte {
	e := encoder{append(to, recordLayout)}
	e.byte(byte(p.collapse))
	return e.b
}

func (l *loader) preemption(d *decoder) error {
	p := &l.c.preemption
	p.collapse = bandSet(d.byte())
	if err := d.done(); err != nil {
		return err
	}
	if !p.exists() {
		return errOdd
	}
	return p.check(l.c.format)
}

func (p *preemptionPolicy) check(format uint32) error {
	var known bandSet
	for _, b := range Bands {
		if b != borgpb.Band_BAND_PRODUCTION {
			known |= 1 << b
		}
	}
	if p.exists() && format < FormatPreemption || p.collapse&^known != 0 {
		return fmt.Errorf("the policy of preemption is %#x at format %d", p.collapse, format)
	}
	return nil
}

// notice writes how long before SIGTERM a copy that stops is told.
func (e *encoder) notice(p *Copy) {
	if ns := p.NoticeNs(); ns != 0 {
		e.byte(tagNotice)
		e.int(ns)
	}
}

// ownStop writes whether a copy makes room for work of its own user.
func (e *encoder) ownStop(p *Copy) {
	if p.stop != nil && p.stop.own {
		e.byte(tagOwnStop)
	}
}

func (l *loader) ownStop(d *decoder, p *Copy) error {
	if !d.tagged(tagOwnStop) {
		return nil
	}
	if p.stop == nil || p.stop.cause != borgpb.StopCause_STOP_CAUSE_PREEMPTION {
		return errOdd
	}
	p.stop.own = true
	return nil
}

func (l *loader) notice(d *decoder, p *Copy) error {
	if l.c.format < FormatPreemption || !d.tagged(tagNotice) {
		return nil
	}
	ns := d.int()
	if p.stop == nil || ns <= 0 || ns > maxGraceNs {
		return errOdd
	}
	p.stop.noticeNs = ns
	return nil
}
