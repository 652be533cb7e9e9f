package scheduler

import (
	"slices"

	"borg/borgmaster/cell"
	"borg/proto/borgpb"
)

// factKey is what a constraint says.
type factKey struct {
	key      string
	relation borgpb.Relation
	value    string
}

// fact is where one constraint holds, or where one package is.
type fact struct {
	// Nil: it is about the package of that digest.
	constraint *borgpb.Constraint
	digest     string
	holds      bitset
}

func (f *fact) at(m *cell.Machine) bool {
	if f.constraint == nil {
		return m.HasPackage(f.digest)
	}
	return cell.Holds(f.constraint, m)
}

// isPackage stands for the relation of facts about packages.
const isPackage borgpb.Relation = -1

// packageFact returns where a package is.
func (g *grid) packageFact(digest string) *fact {
	key := factKey{digest, isPackage, ""}
	f := g.facts[key]
	if f == nil {
		f = &fact{digest: digest, holds: newBitset(len(g.sites.walk))}
		for i, t := range g.sites.walk {
			f.holds.set(int32(i), t.machine.HasPackage(digest))
		}
		g.facts[key] = f
	}
	return f
}

// stock takes over which packages a machine has.
func (g *grid) stock(t *site) {
	changed := false
	for _, f := range g.facts {
		if f.constraint != nil {
			continue
		}
		if has := t.machine.HasPackage(f.digest); has != f.holds.has(t.slot) {
			f.holds.set(t.slot, has)
			changed = true
		}
	}
	if changed {
		g.bump(t.slot)
	}
}

// fact returns where k holds. Attributes have few values, so each value is
// tested once. A constraint on an attribute that no machine has is not kept: users may
// name any number of them.
func (g *grid) fact(k *borgpb.Constraint) *fact {
	if !g.attributes[k.GetKey()] {
		if cell.Meets(k, "", false) {
			return g.everywhere
		}
		return g.nowhere
	}
	key := factKey{k.GetKey(), k.GetRelation(), k.GetValue()}
	if f := g.facts[key]; f != nil {
		return f
	}
	g.survey([]string{k.GetKey()})
	f, said := &fact{constraint: k, holds: newBitset(len(g.sites.walk))}, g.said[k.GetKey()]
	holds := make([]bool, len(said.examples))
	for n, t := range said.examples {
		holds[n] = cell.Holds(k, t.machine)
	}
	for i, n := range said.numbers {
		if holds[n] {
			f.holds.set(int32(i), true)
		}
	}
	g.facts[key] = f
	return f
}

// names notes the attributes of a machine and reports whether one of them is new.
func (g *grid) names(m *cell.Machine) (isNew bool) {
	for key := range m.Attributes() {
		if !g.attributes[key] {
			g.attributes[key], isNew = true, true
		}
	}
	return isNew
}

// factsNowhere makes the facts of constraints on attributes that no machine has.
func (g *grid) factsNowhere() {
	n := len(g.sites.walk)
	g.everywhere, g.nowhere = &fact{holds: newBitset(n)}, &fact{holds: newBitset(n)}
	g.all(g.everywhere.holds)
	g.noColumn = &column{of: make([]int32, n)}
	g.attributes = map[string]bool{cell.NameAttribute: true}
	for _, t := range g.sites.walk {
		g.names(t.machine)
	}
}

// saying is what all machines say of one attribute.
type saying struct {
	// numbers stand for values, by slot.
	numbers []int32
	// examples are by number: one of the machines that say so.
	examples []*site
}

// survey asks the machines what they say of attributes, each for all of them at
// once, as nearly all of its time goes into reaching a machine in memory.
func (g *grid) survey(keys []string) {
	keys = slices.DeleteFunc(keys, func(key string) bool { return g.said[key] != nil })
	if len(keys) == 0 {
		return
	}
	all := make([]*saying, len(keys))
	split(min(partsOf(g.threads, len(g.sites.walk)), len(keys)), len(keys), func(_, low, high int) {
		known, absent := make([]map[string]int32, high-low), make([]int32, high-low)
		for k := range known {
			known[k], absent[k] = make(map[string]int32), -1
			all[low+k] = &saying{numbers: make([]int32, len(g.sites.walk))}
		}
		for i, t := range g.sites.walk {
			for k, key := range keys[low:high] {
				value, ok := t.machine.Attribute(key)
				n, seen := absent[k], absent[k] >= 0
				if ok {
					n, seen = known[k][value]
				}
				if said := all[low+k]; !seen {
					n = int32(len(said.examples))
					said.examples = append(said.examples, t)
				}
				if ok {
					known[k][value] = n
				} else {
					absent[k] = n
				}
				all[low+k].numbers[i] = n
			}
		}
	})
	if g.said == nil {
		g.said = make(map[string]*saying)
	}
	for k, key := range keys {
		g.said[key] = all[k]
	}
}

// static is what a task asks of machines that does not change with what runs
// on them.
type static struct {
	hard        []*borgpb.Constraint
	tolerations []*borgpb.Toleration
	// away are the machines that a task is kept away from.
	away cell.Away
	// bans keep it away from a machine, or from all.
	bans []*cell.Ban
	// volumes say where it can be.
	volumes cell.VolumeSite
	fits    bitset
	// shunned are the slots whose taints advise against them; nil: none.
	shunned bitset
}

// meets makes the test of s on one machine.
func (g *grid) meets(s *static, t *site) bool {
	for _, k := range s.hard {
		if !cell.Holds(k, t.machine) {
			return false
		}
	}
	return !s.away.From(t.name) && s.volumes.Fits(t.machine) && cell.Untolerated(s.tolerations, t.machine) == nil && !s.banned(t.name)
}

// banned reports whether a package must not be started on a machine.
func (s *static) banned(machine string) bool {
	return slices.ContainsFunc(s.bans, func(b *cell.Ban) bool { return b.Machine() == "" || b.Machine() == machine })
}

// advise notes whether the taints of a machine advise against it.
func (s *static) advise(t *site, slots int) {
	is := cell.Shunned(s.tolerations, t.machine)
	if s.shunned == nil && is {
		s.shunned = newBitset(slots)
	}
	if s.shunned != nil {
		s.shunned.set(t.slot, is)
	}
}

// static returns where w's hard constraints hold and its tolerations suffice;
// key is their content.
func (g *grid) static(key []byte, w *want, hard []*borgpb.Constraint) *static {
	if s := g.statics[string(key)]; s != nil {
		return s
	}
	s := &static{hard: hard, tolerations: w.tolerations(), away: w.away, bans: w.bans, volumes: w.volumes, fits: newBitset(len(g.sites.walk))}
	g.all(s.fits)
	for _, k := range hard {
		for i, word := range g.fact(k).holds {
			s.fits[i] &= word
		}
	}
	for r := pair(s.fits, g.tainted, 0); ; {
		i := r.next()
		if i < 0 {
			break
		}
		t := g.sites.walk[i]
		s.fits.set(i, cell.Untolerated(s.tolerations, t.machine) == nil)
		s.advise(t, len(g.sites.walk))
	}
	for _, name := range [...]string{s.away.Crashed, s.away.Kept} {
		if t := g.sites.byName[name]; t != nil && t.slot >= 0 {
			s.fits.set(t.slot, false)
		}
	}
	for _, b := range s.bans {
		if b.Machine() == "" {
			clear(s.fits)
		} else if t := g.sites.byName[b.Machine()]; t != nil && t.slot >= 0 {
			s.fits.set(t.slot, false)
		}
	}
	g.bound(s.fits, &s.volumes)
	g.statics[string(key)] = s
	return s
}
