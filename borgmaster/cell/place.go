package cell

import (
	"slices"
	"strings"

	"borg/mutant"
	"borg/proto/borgpb"
)

// Fit is the first test that a place failed, in the order in which they are
// made.
type Fit uint8

const (
	FitOK Fit = iota
	// It is of a daemon job, and belongs to another machine.
	FitSeat
	// Its volumes are on another machine, or something of earlier ones is there.
	FitVolume
	FitDown
	FitDraining
	// It takes nothing since the cell was restored; see Machine.Closed.
	FitRestored
	FitConstraint
	FitTaint
	// Its last copies crashed there.
	FitCrashed
	// It has a package that must not be started there.
	FitBanned
	FitAlloc
	// Bands above may have what places for copies or volumes there are.
	FitPlaces
	FitDomainLimit
	FitPorts
	FitCPU
	FitMemory
	FitDisk
	FitDevices
	// A victim that may not be named; see Placement.Victims.
	FitVictim
	NumFits
)

var fitNames = [NumFits]string{
	"fits", "seat", "volume", "down", "draining", "restored", "constraint", "taint", "crashed", "package_banned", "alloc", "places", "domain_limit",
	"ports", "cpu", "memory", "disk", "devices", "victim",
}

// String is the stable word for the test.
func (f Fit) String() string { return fitNames[f] }

// Placement is a question: may this task, or this alloc, have this place?
type Placement struct {
	// Exactly one of Job and Set, and the index of the task or alloc in it.
	Job   *Job
	Set   *AllocSet
	Index uint32

	Machine *Machine
	// The alloc on that machine, for a task of a job that runs in an alloc set.
	Alloc *Alloc

	// One per named port of the task, and the devices that are asked for. With
	// AnyPorts only that there are enough of both is tested.
	Ports    []uint32
	Devices  []DeviceGrant
	AnyPorts bool

	// Copies to be stopped (or stopping already) whose room counts as free.
	// They must hold their place in the room that is asked for. An alloc of a
	// lower priority is named by its set's uid, index and attempt. Of a copy
	// that waits for victims itself, those are inherited.
	Victims []CopyID
	// What they are told of the choice of them.
	why string
}

// Overlay is what a scheduler has promised and the cell does not know of yet.
type Overlay struct {
	// Added to what is held in the room that is asked for (the machine's, or
	// the alloc's), less what the victims of these promises free.
	Limits, Reserved Resources
	// Ports promised on the machine.
	Ports []uint32
	// Devices promised in the room that is asked for.
	Devices []DeviceGrant
	// Tasks of the same job (or allocs of the same set) promised to the domains
	// of the machine.
	InDomain [NumDomainKinds]uint32
	// Copies already named as victims; none of them may be named again.
	Victims []CopyID
	// Copies that go elsewhere before this: they may be named as victims whatever
	// their priority. InDomain counts them out.
	Leaving []*Copy
}

// asker is who asks for a place, job and alloc set alike.
type asker struct {
	need *Need
	by   Preemptor
	// Never nil.
	limits *Limits
	counts *occupancy
	// Some of the tasks of its spec have volumes, or its allocs have.
	volumes bool
}

func (p *Placement) asker() asker {
	if p.Set != nil {
		s := p.Set.spec
		return asker{p.Set.need, Preemptor{p.Set.key.User, s.Priority, s.Preempt}, p.Set.limits.orNone(), p.Set.domains, len(s.Volumes) > 0}
	}
	spec := p.Job.specOf(p.Index)
	s := spec.Proto
	return asker{spec.Need(p.Index), Preemptor{p.Job.key.User, s.Priority, s.Preempt}, spec.limits.orNone(), p.Job.domains, spec.volumes}
}

// Fit makes the test of feasibility: it is made again for each assignment that
// is applied, and by schedulers, over what they have promised already (o, may
// be nil). See CheckPlace for the same in words. Without victims it allocates
// nothing.
func (c *Cell) Fit(p *Placement, o *Overlay) Fit {
	v, r := c.victims(p, o)
	if r != nil {
		return FitVictim
	}
	return c.fit(p, o, v)
}

// CheckPlace is Fit in words: nil when the place will do. The field of the
// refusal is the name of the test that failed.
func (c *Cell) CheckPlace(p *Placement, o *Overlay) *borgpb.Refusal {
	_, r := c.checkPlace(p, o)
	return r
}

func (c *Cell) checkPlace(p *Placement, o *Overlay) (*victims, *borgpb.Refusal) {
	v, r := c.victims(p, o)
	if r != nil {
		return nil, r
	}
	if f := c.fit(p, o, v); f != FitOK {
		return nil, c.explain(p, o, v, f)
	}
	return v, nil
}

func (c *Cell) fit(p *Placement, o *Overlay, v *victims) Fit {
	m, a := p.Machine, p.asker()
	var site VolumeSite
	if a.volumes {
		site = c.site(p)
	}
	switch {
	case p.Elsewhere(m):
		return FitSeat
	case !site.Fits(m):
		return FitVolume
	case m.down:
		return FitDown
	case m.draining && !mutant.Planted(mutant.DrainingTaken):
		return FitDraining
	case m.Closed():
		return FitRestored
	case failedConstraint(a.need.Task.Constraints, m) != nil:
		return FitConstraint
	case Untolerated(a.need.Task.Tolerations, m) != nil:
		return FitTaint
	case p.Job != nil && c.crashedHere(p.Job.rows[p.Index], m):
		return FitCrashed
	case c.Banned(a.need.Task.Packages, m) != nil:
		return FitBanned
	}
	if f := fitAlloc(p); f != FitOK {
		return f
	}
	if !c.HasPlaces(m, a.by.Priority, p.places(&site), Places{}) {
		return FitPlaces
	}
	if _, _, full := fullDomain(p, &a, o, v); full {
		return FitDomainLimit
	}
	free := c.free(p, o, v)
	if f := asked(a.need, &site).shortOf(&free); f != FitOK {
		return f
	}
	if f := c.fitDevices(p, a.need, o, v); f != FitOK {
		return f
	}
	return fitPorts(p, o, v)
}

// fitAlloc: tasks of a job that names an alloc set run in its allocs, or in the one of
// their index, all others on machines.
func fitAlloc(p *Placement) Fit {
	if p.Job == nil {
		return FitOK
	}
	if !p.Job.latest().takes(p.Index, p.Alloc) || p.Alloc != nil && (p.Alloc.state != stateRunning || p.Alloc.machine != p.Machine) {
		return FitAlloc
	}
	return FitOK
}

// free is the room left for the placement, its victims gone.
func (c *Cell) free(p *Placement, o *Overlay, v *victims) Resources {
	r := p.room()
	prod := isProd(p.asker().by.Priority)
	free := r.capacity.Sub(r.held(prod))
	if o != nil {
		if prod {
			free = free.Sub(o.Limits)
		} else {
			free = free.Sub(o.Reserved)
		}
	}
	if v != nil {
		free = free.Add(v.freed.of(prod))
	}
	return free
}

func (p *Placement) room() *room {
	if p.Alloc != nil {
		return &p.Alloc.room
	}
	return &p.Machine.room
}

// fitPorts tests the ports one by one.
func fitPorts(p *Placement, o *Overlay, v *victims) Fit {
	if p.AnyPorts || p.Job == nil {
		return FitOK
	}
	for i, n := range p.Ports {
		if badPort(p, o, v, i, n) {
			return FitPorts
		}
	}
	return FitOK
}

func badPort(p *Placement, o *Overlay, v *victims, i int, n uint32) bool {
	m := p.Machine
	if n == 0 || n < uint32(m.portFirst) || n > uint32(m.portLast) || slices.Contains(p.Ports[:i], n) {
		return true
	}
	if o != nil && slices.Contains(o.Ports, n) {
		return true
	}
	port := uint16(n)
	if m.HeldByOther(port) {
		return true
	}
	at, ok := slices.BinarySearch(m.ports, port)
	if !ok {
		return false
	}
	// Held more than once: by a victim and by the one who waits for it.
	holders := 0
	for ; at < len(m.ports) && m.ports[at] == port; at++ {
		holders++
	}
	return holders > v.holding(port)
}

// failedConstraint returns the first hard constraint that does not hold.
func failedConstraint(cs []*borgpb.Constraint, m *Machine) *borgpb.Constraint {
	for _, k := range cs {
		if !k.Soft && !Holds(k, m) {
			return k
		}
	}
	return nil
}

// Holds tells whether a constraint, hard or soft, holds on a machine.
func Holds(k *borgpb.Constraint, m *Machine) bool {
	v, ok := m.Attribute(k.Key)
	return Meets(k, v, ok)
}

// Meets reports whether the value of an attribute, which is there if ok, meets a
// constraint.
func Meets(k *borgpb.Constraint, v string, ok bool) bool {
	switch k.Relation {
	case borgpb.Relation_RELATION_EQUAL:
		return ok && v == k.Value
	case borgpb.Relation_RELATION_NOT_EQUAL:
		return !ok || v != k.Value
	case borgpb.Relation_RELATION_PRESENT:
		return ok
	case borgpb.Relation_RELATION_NOT_PRESENT:
		return !ok
	}
	have, isNumber := parseInt(v)
	want, wantNumber := parseInt(k.Value)
	if !ok || !isNumber || !wantNumber {
		return false
	}
	switch k.Relation {
	case borgpb.Relation_RELATION_LESS_THAN:
		return have < want
	case borgpb.Relation_RELATION_GREATER_THAN:
		return have > want
	case borgpb.Relation_RELATION_LESS_THAN_EQUAL:
		return have <= want
	case borgpb.Relation_RELATION_GREATER_THAN_EQUAL:
		return have >= want
	default:
		return false
	}
}

// relationWords are for people.
var relationWords = map[borgpb.Relation]string{
	borgpb.Relation_RELATION_EQUAL: "=", borgpb.Relation_RELATION_NOT_EQUAL: "!=",
	borgpb.Relation_RELATION_LESS_THAN: "<", borgpb.Relation_RELATION_GREATER_THAN: ">",
	borgpb.Relation_RELATION_LESS_THAN_EQUAL: "<=", borgpb.Relation_RELATION_GREATER_THAN_EQUAL: ">=",
}

// ConstraintWords says a constraint as people write it: "arch=arm", "kernel>=6".
func ConstraintWords(k *borgpb.Constraint) string {
	switch k.Relation {
	case borgpb.Relation_RELATION_PRESENT:
		return k.Key + " present"
	case borgpb.Relation_RELATION_NOT_PRESENT:
		return k.Key + " not present"
	}
	return strings.Join([]string{k.Key, relationWords[k.Relation], k.Value}, "")
}
