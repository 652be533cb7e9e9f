package cell

import (
	"slices"

	"borg/mutant"
	"borg/proto/borgpb"
)

// formatTaints is the format from which on taints can be changed, some of them
// make who is there leave, and others only advise against a machine.
const formatTaints = 3

// Taint keeps work without a matching toleration away from a machine.
type Taint struct {
	Key, Value string
	// Evict: who is there leaves too. PreferNot: nobody is kept away.
	Evict, PreferNot bool
	// Cell time at which one that evicts appeared, or began to mean it.
	SinceNs int64
	// It evicts, and the format knows it; derived.
	acts bool
}

// same tells whether nothing differs but what is derived.
func (t Taint) same(o Taint) bool {
	t.acts, o.acts = false, false
	return t == o
}

func (t *Taint) matches(o *borgpb.Toleration) bool {
	return o.Key == t.Key && (o.Value == "" || o.Value == t.Value)
}

// tolerated tells whether work with these tolerations may be placed. One that
// forgives for a while lets nobody in: he would have to leave again.
func (t *Taint) tolerated(ts []*borgpb.Toleration) bool {
	return slices.ContainsFunc(ts, func(o *borgpb.Toleration) bool {
		return t.matches(o) && !(t.acts && o.ForgivenessNs > 0)
	})
}

// Untolerated returns the first taint of a machine that keeps away who has these
// tolerations; nil when none does.
func Untolerated(ts []*borgpb.Toleration, m *Machine) *Taint {
	for i := range m.taints {
		if t := &m.taints[i]; !t.PreferNot && !t.tolerated(ts) && !mutant.Planted(mutant.TaintNotAsked) {
			return t
		}
	}
	return nil
}

// Shunned tells whether a machine has a taint that advises against it, and that
// these tolerations do not name.
func Shunned(ts []*borgpb.Toleration, m *Machine) bool {
	return slices.ContainsFunc(m.taints, func(t Taint) bool { return t.PreferNot && !t.tolerated(ts) })
}

// Words names a taint for people: "dedicated=db".
func (t *Taint) Words() string {
	if t.Value == "" {
		return t.Key
	}
	return t.Key + "=" + t.Value
}

// leavesNs is the cell time at which who has these tolerations has to leave a
// machine, and for which taint; nil: he may stay.
func (m *Machine) leavesNs(ts []*borgpb.Toleration) (atNs int64, taint *Taint) {
	for i := range m.taints {
		t := &m.taints[i]
		if !t.acts || t.tolerated(ts) {
			continue
		}
		forgiven := int64(0)
		for _, o := range ts {
			if t.matches(o) {
				forgiven = max(forgiven, o.ForgivenessNs)
			}
		}
		if forgiven > 0 && mutant.Planted(mutant.ForgivenForEver) {
			continue
		}
		if at := min(t.SinceNs+forgiven, maxTimeNs); taint == nil || at < atNs {
			atNs, taint = at, t
		}
	}
	return atNs, taint
}

// evicts tells whether any taint of the machine makes anybody leave.
func (m *Machine) evicts() bool {
	return slices.ContainsFunc(m.taints, func(t Taint) bool { return t.acts })
}

// actTaints derives which taints evict in this format.
func (c *Cell) actTaints(m *Machine) {
	for i := range m.taints {
		m.taints[i].acts = m.taints[i].Evict && c.format >= formatTaints
	}
}

// beginTaints makes old taints mean what they say, when the format begins that
// knows it.
func (c *Cell) beginTaints() {
	for _, m := range c.machineList {
		c.actTaints(m)
		for i := range m.taints {
			if m.taints[i].acts {
				m.taints[i].SinceNs = c.clock.cellNs
				c.dirty(m)
			}
		}
	}
	c.leaveTainted()
}

// newTaint is a taint as it appears.
func (c *Cell) newTaint(t *borgpb.Taint) Taint {
	n := Taint{Key: t.Key, Value: t.Value, Evict: t.Evict, PreferNot: t.PreferNot}
	if t.Evict && c.format >= formatTaints {
		n.SinceNs = c.clock.cellNs
	}
	return n
}

// changedTaints are the taints of a machine after a change of them.
func (c *Cell) changedTaints(m *Machine, o *borgpb.SetMachine) []Taint {
	taints := slices.Clone(m.taints)
	for _, key := range o.RemoveTaints {
		taints = slices.DeleteFunc(taints, func(t Taint) bool { return t.Key == key })
	}
	for _, t := range o.SetTaints {
		n := c.newTaint(t)
		at := slices.IndexFunc(taints, func(t Taint) bool { return t.Key == n.Key })
		switch {
		case at < 0:
			taints = append(taints, n)
		case taints[at].Value != n.Value || taints[at].Evict != n.Evict || taints[at].PreferNot != n.PreferNot:
			// One that is as it was goes on from when it appeared.
			taints[at] = n
		}
	}
	return taints
}

// leaveTainted makes those leave whose time on a tainted machine is over. It
// looks only at what is; until leaveDueNs there is nothing to find.
func (c *Cell) leaveTainted() {
	now := c.clock.cellNs
	if now < c.leaveDueNs || c.format < formatTaints {
		return
	}
	c.leaveDueNs = maxTimeNs
	// due tells whether the time has come, and remembers when it will have.
	due := func(m *Machine, ts []*borgpb.Toleration) (reason string, now bool) {
		at, t := m.leavesNs(ts)
		if t == nil {
			return "", false
		}
		if at > c.clock.cellNs {
			c.leaveDueNs = min(c.leaveDueNs, at)
			return "", false
		}
		return "the taint " + t.Words() + " of " + m.name, true
	}
	const cause = borgpb.StopCause_STOP_CAUSE_TAINT
	for _, m := range c.machineList {
		if m.down || !m.evicts() {
			continue
		}
		for _, a := range slices.Clone(m.allocs) {
			if a.machine != m {
				continue
			}
			if reason, now := due(m, a.set.spec.Tolerations); now {
				c.evictAlloc(a, edgeEvict, statePending, cause, reason, -1)
			}
		}
		for _, p := range m.copies {
			if !p.state.current() || p.job.saving != nil {
				continue
			}
			if reason, now := due(m, p.spec.Need(p.index).Task.Tolerations); now {
				c.evict(p.row(), edgeEvict, statePending, cause, reason, p.grace())
			}
		}
	}
}

// checkTaints range-checks what is said of the taints of a machine.
func (c *Cell) checkTaints(taints []*borgpb.Taint, field string) *borgpb.Refusal {
	if len(taints) > maxTaints {
		return limit(field, "%d taints; at most %d", len(taints), maxTaints)
	}
	for i, t := range taints {
		if len(t.Key) == 0 || len(t.Key) > maxLabelKeyBytes || len(t.Value) > maxLabelValueBytes {
			return invalid(field, "taint %d: want a key of 1 to %d bytes and a value of at most %d",
				i, maxLabelKeyBytes, maxLabelValueBytes)
		}
		if c.format < formatTaints {
			continue
		}
		if t.Evict && t.PreferNot {
			return invalid(field, "taint %s: it makes work leave, or only advises against the machine, not both", t.Key)
		}
		if slices.ContainsFunc(taints[:i], func(o *borgpb.Taint) bool { return o.Key == t.Key }) {
			return invalid(field, "%s is named twice", t.Key)
		}
	}
	return nil
}
