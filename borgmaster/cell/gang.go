package cell

import (
	"borg/mutant"
	"borg/proto/borgpb"
)

// formatGangs is the format from which on the cell itself holds a gang together:
// before it, that was the scheduler's word.
const formatGangs = 3

// gangAt counts the assignments at the head of a batch that are of one gang; 0:
// the first one is of none.
func (c *Cell) gangAt(as []*borgpb.Assignment) (n int) {
	uid, ok := parseUID(as[0].Uid)
	if c.format < formatGangs || !ok || !c.isGang(uid) || mutant.Planted(mutant.GangSplit) {
		return 0
	}
	for n < len(as) && as[n].Uid == as[0].Uid {
		n++
	}
	return n
}

func (c *Cell) isGang(uid UID) bool {
	if j := c.jobsByUID[uid]; j != nil {
		return j.latest().Proto.Gang
	}
	s := c.setsByU[uid]
	return s != nil && s.spec.Gang
}

// assignGang places all of a gang that waits, or nothing of it, and tells of each
// assignment why.
func (c *Cell) assignGang(as []*borgpb.Assignment, tell func(i int, r *borgpb.Refusal)) {
	var do []func()
	at := 0
	refusal := guarded(func() (r *borgpb.Refusal) {
		do, at, r = c.checkGang(as)
		return r
	})
	if refusal == nil {
		for _, do := range do {
			do()
		}
		return
	}
	whose := about(c.nameOf(as[at]), refusal)
	for i, a := range as {
		if i == at {
			tell(i, whose)
			continue
		}
		tell(i, refuse(whose.Kind, c.nameOf(a), "gang", "the whole gang is refused, for %s: %s", whose.Object, whose.Message))
	}
}

// nameOf is the task or alloc of a gang that an assignment is about.
func (c *Cell) nameOf(a *borgpb.Assignment) string {
	uid, _ := parseUID(a.Uid)
	if j := c.jobsByUID[uid]; j != nil {
		return TaskID{j.key, a.Index}.String()
	}
	return TaskID{c.setsByU[uid].key, a.Index}.String()
}

// gangPlan is what the assignments of a gang that were checked already will take:
// nothing of it is done before all are.
type gangPlan struct {
	rooms    map[*room]*Overlay
	machines map[*Machine]*gangOnMachine
	domains  *occupancy
	// volumes is how many new ones they have in all.
	volumes int
}

// gangOnMachine is what they take of a machine as a whole.
type gangOnMachine struct {
	ports   []uint32
	victims []CopyID
	places  Places
}

// checkGang decides whether all assignments of a gang hold together. At is the
// one that does not.
func (c *Cell) checkGang(as []*borgpb.Assignment) (do []func(), at int, r *borgpb.Refusal) {
	plan := gangPlan{rooms: make(map[*room]*Overlay), machines: make(map[*Machine]*gangOnMachine)}
	for i, a := range as {
		if i > 0 && as[i-1].Index >= a.Index {
			return nil, i, invalid("index", "the indices of a gang do not ascend")
		}
		q, r := c.placement(a)
		p := &q
		if r == nil {
			r = c.readGrants(p, p.asker().need, a.Devices)
		}
		if r != nil {
			return nil, i, r
		}
		if i == 0 {
			plan.domains = newOccupancy(p.asker().limits)
			if n := c.offered(p); n != len(as) {
				return nil, i, refuse(borgpb.RefusalKind_REFUSAL_KIND_CONSTRAINT, p.name(), "gang",
					"%d of a gang are placed, and %d wait: all or none", len(as), n)
			}
		}
		m := plan.machine(p.Machine)
		if r := c.checkPlaces(p, m.places); r != nil {
			return nil, i, r
		}
		if r := c.checkGangVolumes(&plan, p); r != nil {
			return nil, i, about(p.name(), r)
		}
		v, r := c.checkPlace(p, plan.overlay(p))
		if r != nil {
			return nil, i, r
		}
		plan.take(p, v)
		do = append(do, c.placing(p, v))
	}
	return do, 0, nil
}

// checkGangVolumes refuses the new volumes of p if there would be too many beside those of the
// plan, on its machine or in all.
func (c *Cell) checkGangVolumes(plan *gangPlan, p *Placement) *borgpb.Refusal {
	more := p.newVolumes()
	if more == 0 || c.format < FormatPlaces {
		return nil
	}
	of, _ := p.asksVolumes()
	priority := p.asker().by.Priority
	if r := c.checkVolumesOf(of.Job.User, p.Machine, priority, plan.machine(p.Machine).places.Volumes+more); r != nil {
		return r
	}
	return c.checkVolumeBudget(of.Job.User, priority, plan.volumes+more)
}

// offered counts what waits for a place beside p and may have one now.
func (c *Cell) offered(p *Placement) (n int) {
	if p.Set != nil {
		return int(p.Set.counts[statePending])
	}
	for range c.PendingOf(p.Job) {
		n++
	}
	return n
}

func (g *gangPlan) machine(m *Machine) *gangOnMachine {
	on := g.machines[m]
	if on == nil {
		on = new(gangOnMachine)
		g.machines[m] = on
	}
	return on
}

// overlay is what the plan takes around p.
func (g *gangPlan) overlay(p *Placement) *Overlay {
	o := g.rooms[p.room()]
	if o == nil {
		o = new(Overlay)
		g.rooms[p.room()] = o
	}
	on := g.machine(p.Machine)
	o.Ports, o.Victims = on.ports, on.victims
	for kind := range NumDomainKinds {
		o.InDomain[kind] = g.domains.in(kind, p.Machine)
	}
	return o
}

// take adds p to the plan. What its victims free counts once.
func (g *gangPlan) take(p *Placement, v *victims) {
	o, on, res := g.rooms[p.room()], g.machine(p.Machine), inBoth(&p.asker().need.Resources)
	if v != nil {
		res = res.sub(v.freed.min(res))
	}
	o.Limits, o.Reserved = o.Limits.Add(res.prod), o.Reserved.Add(res.others)
	o.Devices = append(o.Devices, p.Devices...)
	on.ports = append(on.ports, p.Ports...)
	on.victims = append(on.victims, p.Victims...)
	volumes := p.newVolumes()
	on.places = on.places.Add(p.places(&VolumeSite{New: volumes}))
	g.volumes += volumes
	g.domains.add(p.Machine, 1)
}
