package cell

import (
	"slices"

	"borg/proto/borgpb"
)

// victims is what a placement may count on: copies and allocs that go away for
// it. A nil one is nobody.
type victims struct {
	// Named, in order, then inherited from those that wait themselves.
	copies []*Copy
	allocs []*Alloc
	// What the room that is asked for gains.
	freed   byView
	devices []DeviceGrant
	// As in Overlay.
	leaving []*Copy
}

func (v *victims) all() []*Copy {
	if v == nil {
		return nil
	}
	return v.copies
}

// inDomain is how many of the asker's own running tasks the victims are, as a
// negative number in two's complement: they leave the domain with it.
func (v *victims) inDomain(p *Placement, l *Limits, kind DomainKind) uint32 {
	var n uint32
	for _, o := range v.all() {
		if o.state.current() && o.job == p.Job && l.Same(kind, o.machine, p.Machine) && !slices.Contains(v.leaving, o) {
			n--
		}
	}
	return n
}

// holding counts the victims that hold a port.
func (v *victims) holding(port uint16) int {
	n := 0
	for _, o := range v.all() {
		if slices.Contains(o.ports, port) {
			n++
		}
	}
	return n
}

// victims looks up and checks those that a placement names.
func (c *Cell) victims(p *Placement, o *Overlay) (*victims, *borgpb.Refusal) {
	if len(p.Victims) == 0 {
		v := c.addOwn(nil, p)
		if v == nil {
			return nil, nil
		}
		return v, v.close(p)
	}
	if len(p.Victims) > maxVictims {
		return nil, about(p.name(), limit("victims", "%d victims; at most %d", len(p.Victims), maxVictims))
	}
	v := new(victims)
	if o != nil {
		v.leaving = o.Leaving
	}
	for i, id := range p.Victims {
		if slices.Contains(p.Victims[:i], id) {
			return nil, about(p.name(), invalid("victims", "%v is named twice", id))
		}
		if o != nil && slices.Contains(o.Victims, id) {
			return nil, stale(p.name(), "the room of %v is promised to another", id)
		}
		var r *borgpb.Refusal
		if set := c.setsByU[id.Job]; set != nil {
			r = c.addAlloc(v, p, set.Alloc(id.Index), id)
		} else {
			r = c.addCopy(v, p, p.Machine.find(id), id)
		}
		if r != nil {
			return nil, r
		}
	}
	v = c.addOwn(v, p)
	return v, v.close(p)
}

func (c *Cell) addCopy(v *victims, p *Placement, o *Copy, id CopyID) *borgpb.Refusal {
	a := p.asker()
	switch {
	case o == nil || o.state == attemptUnreachable:
		return stale(p.name(), "the victim %v holds no place on %s", id, p.Machine.name)
	case o.room() != p.room():
		return about(p.name(), invalid("victims", "%v (%v) does not hold its place there", o.TaskID(), id))
	case o.state.stays() && (a.by.Never() || !c.MayTake(&a.by, o.job.key.User, o.priority) && !slices.Contains(v.leaving, o)):
		return c.notTaken(p, &a, o.TaskID().String(), o.priority, "")
	case !c.MayAwait(o, &a.by):
		return refuse(borgpb.RefusalKind_REFUSAL_KIND_CONSTRAINT, p.name(), FitVictim.String(),
			"%s of priority %d stops within %s, and priority %d may not take its place", o.TaskID(), o.priority, spanWords(o.stop.noticeNs+o.stop.graceNs), a.by.Priority)
	}
	v.copies = append(v.copies, o)
	v.freed = v.freed.add(o.held())
	v.devices = append(v.devices, o.Devices()...)
	return nil
}

// addAlloc takes an alloc with everything in it.
func (c *Cell) addAlloc(v *victims, p *Placement, o *Alloc, id CopyID) *borgpb.Refusal {
	a := p.asker()
	switch {
	case o == nil || o.machine != p.Machine || o.attempt != id.Attempt:
		return stale(p.name(), "the victim alloc %v is not on %s", id, p.Machine.name)
	case p.Alloc != nil:
		return about(p.name(), invalid("victims", "alloc %s does not hold its place in an alloc", o.Name()))
	case !c.MayTake(&a.by, o.set.key.User, o.set.spec.Priority):
		return c.notTaken(p, &a, o.Name(), o.set.spec.Priority, "")
	}
	for _, in := range o.copies {
		if in.state.stays() && !c.MayTake(&a.by, in.job.key.User, in.priority) {
			return c.notTaken(p, &a, in.TaskID().String(), in.priority, " in "+o.Name())
		}
	}
	v.allocs = append(v.allocs, o)
	v.freed = v.freed.add(inBoth(o.res()))
	v.devices = append(v.devices, o.devices...)
	v.copies = append(v.copies, o.copies...)
	return nil
}

// notTaken refuses a victim.
func (c *Cell) notTaken(p *Placement, a *asker, victim string, priority int32, in string) *borgpb.Refusal {
	why := ""
	switch {
	case a.by.Never() || !MayPreempt(a.by.Priority, priority):
	case !c.PreemptsOwn(a.by.User, BandOf(priority)):
		why = ": what stops of user " + a.by.User + " holds as much as the quota, so its work preempts none of its own"
	default:
		why = ": within " + BandName(BandOf(priority)) + " nobody takes the place of others"
	}
	return refuse(borgpb.RefusalKind_REFUSAL_KIND_CONSTRAINT, p.name(), FitVictim.String(),
		"priority %d may not take the place of %s of priority %d%s%s", a.by.Priority, victim, priority, in, why)
}

// close inherits what victims wait for, and refuses victims that are promised
// to someone who is not one. The discounts of the claims that end are taken
// out of what is freed.
func (v *victims) close(p *Placement) *borgpb.Refusal {
	for i := 0; i < len(v.copies); i++ {
		if w := v.copies[i].wait; w != nil {
			v.inherit(p, w)
		}
	}
	for _, a := range v.allocs {
		if a.wait != nil {
			v.inherit(p, a.wait)
		}
	}
	for _, o := range v.copies {
		if o.stop == nil || o.stop.promised == nil {
			continue
		}
		w := o.stop.promised
		if !claims(v.copies, w) && !slices.ContainsFunc(v.allocs, func(q *Alloc) bool { return q.wait == w }) {
			return stale(p.name(), "the room of %v is promised to another", o.TaskID())
		}
	}
	return nil
}

// claims tells whether it is one of the copies that waits.
func claims(copies []*Copy, w *waiting) bool {
	return slices.ContainsFunc(copies, func(q *Copy) bool { return q.wait == w })
}

func (v *victims) inherit(p *Placement, w *waiting) {
	if w.room == p.room() {
		v.freed = v.freed.sub(w.discount)
	}
	for _, o := range w.victims {
		if slices.Contains(v.copies, o) {
			continue
		}
		v.copies = append(v.copies, o)
		if o.room() == p.room() {
			v.freed = v.freed.add(o.held())
			v.devices = append(v.devices, o.Devices()...)
		}
	}
}

// stopVictims tells the victims to stop. Their claims go over to the one who
// named them.
func (c *Cell) stopVictims(v *victims, by *taking) {
	if v == nil {
		return
	}
	reason := c.reason(by)
	var own []*Copy
	for _, o := range v.copies {
		if o.state.stays() && o.job.key.User == by.by.User {
			own = append(own, o)
		}
	}
	for _, a := range v.allocs {
		c.evictAlloc(a, edgeEvict, statePending, borgpb.StopCause_STOP_CAUSE_PREEMPTION, reason, by.waitNs)
	}
	for _, o := range v.copies {
		c.hasten(o, &by.by, by.waitNs)
		if o.wait != nil {
			o.wait.drop()
			o.wait = nil
			c.dirtyCopy(o)
		}
		if o.state.current() {
			c.preempt(o, reason, by.waitNs)
		} else if o.state == attemptQuarantined {
			c.letGo(o, borgpb.StopCause_STOP_CAUSE_PREEMPTION, reason, by.waitNs)
		}
	}
	for _, o := range own {
		c.preemptedByOwn(o)
	}
}
