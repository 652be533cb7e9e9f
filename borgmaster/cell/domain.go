package cell

import (
	"maps"
	"slices"

	"borg/mutant"
	"borg/proto/borgpb"
)

// formatLimits is the format from which on specs limit tasks per value of an
// attribute, and constraints know a machine's name.
const formatLimits = 4

// NameAttribute is the key under which constraints find the name of a machine.
const NameAttribute = "machine"

// DomainKind is a kind of failure domain. From DomainAttribute on it is the
// machines with one value of an attribute that a spec limits, and which attribute
// that is differs from spec to spec.
type DomainKind uint8

const (
	DomainMachine DomainKind = iota
	DomainRack
	DomainPower
	DomainAttribute
	// NumDomainKinds counts them with as many attributes as a spec may limit.
	NumDomainKinds = DomainAttribute + maxAttributeLimits
)

// domain is one failure domain. A machine that does not say its rack is a rack
// of its own.
type domain struct {
	kind DomainKind
	own  bool
	name string
}

// Limits are how many tasks of a job, or allocs of a set, may share a failure
// domain.
type Limits struct {
	// Most of each kind; zero: any number.
	Most [NumDomainKinds]uint32
	// Keys of the attributes from DomainAttribute on, sorted; empty: no more.
	Keys [maxAttributeLimits]string
}

// noLimits is who limits nothing.
var noLimits Limits

// limitsOf are those of a spec; nil: it has none.
func limitsOf(s interface {
	GetMaxPerMachine() uint32
	GetMaxPerRack() uint32
	GetMaxPerPower() uint32
	GetMaxPer() map[string]uint32
}) *Limits {
	l := Limits{Most: [NumDomainKinds]uint32{s.GetMaxPerMachine(), s.GetMaxPerRack(), s.GetMaxPerPower()}}
	for i, key := range sortedKeys(s.GetMaxPer()) {
		l.Keys[i], l.Most[int(DomainAttribute)+i] = key, s.GetMaxPer()[key]
	}
	if l == noLimits {
		return nil
	}
	return &l
}

// Any tells whether anything is limited.
func (l *Limits) Any() bool { return *l != noLimits }

// orNone is never nil.
func (l *Limits) orNone() *Limits {
	if l == nil {
		return &noLimits
	}
	return l
}

// checkMaxPer range-checks the attributes that a spec limits.
func checkMaxPer(most map[string]uint32) *borgpb.Refusal {
	if len(most) > maxAttributeLimits {
		return limit("spec.max_per", "%d attributes; at most %d", len(most), maxAttributeLimits)
	}
	for _, key := range sortedKeys(most) {
		switch {
		case len(key) == 0 || len(key) > maxLabelKeyBytes:
			return invalid("spec.max_per", "%q: want a key of 1 to %d bytes", clip(key, 64), maxLabelKeyBytes)
		case slices.Contains([]string{NameAttribute, "rack", "power"}, key):
			return invalid("spec.max_per", "%s: use max_per_%s", key, key)
		case most[key] == 0:
			return invalid("spec.max_per", "%s: want at least 1; leave it out for no limit", key)
		}
	}
	return nil
}

// domain is the failure domain of a kind that a machine is in; ok is false for an
// attribute that is not limited.
func (l *Limits) domain(kind DomainKind, m *Machine) (d domain, ok bool) {
	if kind < DomainAttribute {
		return m.domains[kind], true
	}
	key := l.Keys[kind-DomainAttribute]
	if key == "" {
		return domain{}, false
	}
	return m.outer(kind, key), true
}

// Same tells whether two machines share a failure domain of that kind.
func (l *Limits) Same(kind DomainKind, a, b *Machine) bool {
	if kind < DomainAttribute {
		return a.domains[kind] == b.domains[kind]
	}
	d, ok := l.domain(kind, a)
	o, _ := l.domain(kind, b)
	return ok && d == o
}

// Word names a kind for people: "rack", "gen".
func (l *Limits) Word(kind DomainKind) string {
	if kind < DomainAttribute {
		return [DomainAttribute]string{"machine", "rack", "power domain"}[kind]
	}
	return l.Keys[kind-DomainAttribute]
}

// Field names a limit as job files do: "max_per_rack", "max_per gen".
func (l *Limits) Field(kind DomainKind) string {
	if kind < DomainAttribute {
		return [DomainAttribute]string{"max_per_machine", "max_per_rack", "max_per_power"}[kind]
	}
	return "max_per " + l.Keys[kind-DomainAttribute]
}

// words names a domain for people: "rack r2", "gen 3", "machine m3".
func (l *Limits) words(d domain) string {
	word := l.Word(d.kind)
	if d.own && d.kind != DomainMachine {
		return "machine " + d.name + " (which names no " + word + ")"
	}
	return word + " " + d.name
}

// DomainWords names the failure domain of a kind that a machine is in, for people.
func (l *Limits) DomainWords(kind DomainKind, m *Machine) string {
	d, _ := l.domain(kind, m)
	return l.words(d)
}

// occupancy counts the running tasks of a job, or allocs of a set, by failure
// domain. Nil: its spec limits none.
type occupancy struct {
	limits *Limits
	counts map[domain]uint32
}

// newOccupancy counts nothing yet.
func newOccupancy(l *Limits) *occupancy {
	if l == nil {
		return nil
	}
	return &occupancy{l, make(map[domain]uint32)}
}

// add counts n more, or fewer, on a machine.
func (o *occupancy) add(m *Machine, n int) {
	if o == nil {
		return
	}
	for kind := range NumDomainKinds {
		d, ok := o.limits.domain(kind, m)
		if !ok {
			break
		}
		if o.counts[d] += uint32(n); o.counts[d] == 0 {
			delete(o.counts, d)
		}
	}
}

// in counts those in the failure domain of a kind that m is in.
func (o *occupancy) in(kind DomainKind, m *Machine) uint32 {
	if o == nil {
		return 0
	}
	d, ok := o.limits.domain(kind, m)
	if !ok {
		return 0
	}
	return o.counts[d]
}

// fullDomain finds the first failure domain of the machine that has as many
// running tasks of the asker as the spec allows.
func fullDomain(p *Placement, a *asker, o *Overlay, v *victims) (d domain, n uint32, full bool) {
	if !a.limits.Any() {
		return domain{}, 0, false
	}
	for kind := range NumDomainKinds {
		most := a.limits.Most[kind]
		if most == 0 || kind >= DomainAttribute && mutant.Planted(mutant.AttributeLimitNotAsked) {
			continue
		}
		n = a.counts.in(kind, p.Machine) + v.inDomain(p, a.limits, kind)
		if o != nil {
			n += o.InDomain[kind]
		}
		if n >= most {
			d, _ = a.limits.domain(kind, p.Machine)
			return d, n, true
		}
	}
	return domain{}, 0, false
}

// equal tells whether the same is limited and counted.
func (o *occupancy) equal(other *occupancy) bool {
	if o == nil || other == nil {
		return o == other
	}
	return *o.limits == *other.limits && maps.Equal(o.counts, other.counts)
}
