package scheduler

import (
	"maps"
	"math/bits"
	"slices"

	"borg/borgmaster/cell"
	"borg/proto/borgpb"
)

// What only few machines offer is kept for those that need it: a machine is the
// dearer, the more of the constraints hold on it that live jobs have, and the
// fewer machines each of them holds on. A picky job finds all of its machines
// equally dear, everybody else goes elsewhere as long as there is room.
//
// The price follows from the jobs that live and from the machines alone, not
// from what was searched for.

// maxRarePoints bounds what a machine may cost more than another.
const maxRarePoints = 4096

// rarities knows what live jobs ask of machines.
type rarities struct {
	// of is by job or alloc set; only those that ask for something.
	of map[cell.UID]*rarity
	// byContent is in use: jobs is never zero.
	byContent map[string]*rarity
	// key is scratch.
	key []byte
}

// rarity is one set of hard constraints.
type rarity struct {
	key  string
	hard []*borgpb.Constraint
	jobs int
}

func newRarities() *rarities {
	return &rarities{of: make(map[cell.UID]*rarity), byContent: make(map[string]*rarity)}
}

// ask notes what a job or alloc set asks for now; nothing when it is dead.
func (s *Scheduler) ask(c *cell.Cell, uid cell.UID) {
	rs := s.rarities
	old := rs.of[uid]
	now := rs.enter(s.livingConstraints(c, uid))
	if now == old {
		return
	}
	if now != nil {
		if now.jobs++; now.jobs == 1 {
			s.price(now, 1)
		}
		rs.of[uid] = now
	} else {
		delete(rs.of, uid)
	}
	if old != nil {
		if old.jobs--; old.jobs == 0 {
			s.price(old, -1)
			delete(rs.byContent, old.key)
		}
	}
}

// price changes the prices now, or with the arrays when these are to be made
// anew.
func (s *Scheduler) price(r *rarity, sign int64) {
	if s.renumbered || s.dearer {
		s.dearer = true
		return
	}
	s.grid.price(r, sign, s.grid.bump)
}

// livingConstraints are those of the tasks of a job, or of the allocs of a set.
func (s *Scheduler) livingConstraints(c *cell.Cell, uid cell.UID) []*borgpb.Constraint {
	if j := c.JobByUID(uid); j != nil && j.State() != borgpb.State_STATE_DEAD && !s.relaxes(j) {
		return j.Need(0).Task.GetConstraints()
	}
	if set := c.AllocSetByUID(uid); set != nil && set.State() != borgpb.State_STATE_DEAD {
		return set.Need().Task.GetConstraints()
	}
	return nil
}

// enter returns the rarity of constraints; nil when none is hard.
func (rs *rarities) enter(ks []*borgpb.Constraint) *rarity {
	rs.key = rs.key[:0]
	for _, k := range ks {
		if !k.GetSoft() {
			rs.key = appendConstraint(rs.key, k)
		}
	}
	if len(rs.key) == 0 {
		return nil
	}
	r := rs.byContent[string(rs.key)]
	if r == nil {
		r = &rarity{key: string(rs.key)}
		for _, k := range ks {
			if !k.GetSoft() {
				r.hard = append(r.hard, k)
			}
		}
		rs.byContent[r.key] = r
	}
	return r
}

// askAll notes what everything in the copy asks for.
func (s *Scheduler) askAll(c *cell.Cell) {
	for j := range c.Jobs() {
		s.ask(c, j.UID())
	}
	for set := range c.AllocSets() {
		s.ask(c, set.UID())
	}
}

// price adds the price of one rarity to its machines, or takes it off, and tells
// each of them.
func (g *grid) price(r *rarity, sign int64, tell func(i int32)) {
	if len(g.rare) != (len(g.sites.walk)+63)/64 {
		g.rare = newBitset(len(g.sites.walk))
	}
	holds := g.rare
	g.all(holds)
	for _, k := range r.hard {
		for i, word := range g.fact(k).holds {
			holds[i] &= word
		}
	}
	n, of := 0, len(g.sites.walk)
	for _, word := range holds {
		n += bits.OnesCount64(word)
	}
	if n == 0 {
		return
	}
	more := sign * g.weights.Rare * int64(of-n) / int64(of)
	for w, word := range holds {
		for ; word != 0; word &= word - 1 {
			i := int32(w<<6 | bits.TrailingZeros64(word))
			g.charge(i, g.exact[i].price+more)
			if tell != nil {
				tell(i)
			}
		}
	}
}

// reprice makes all prices anew, after machines changed.
func (s *Scheduler) reprice() {
	for i := range s.grid.exact {
		s.grid.charge(int32(i), 0)
	}
	asked := make(map[string]bool)
	for _, r := range s.rarities.byContent {
		for _, k := range r.hard {
			if s.grid.attributes[k.GetKey()] {
				asked[k.GetKey()] = true
			}
		}
	}
	s.grid.survey(slices.Collect(maps.Keys(asked)))
	for _, r := range s.rarities.byContent {
		// Sums do not depend on the order.
		s.grid.price(r, 1, nil)
	}
	s.grid.favour()
	for i := range s.grid.exact {
		s.grid.bump(int32(i))
	}
	s.dearer = false
}

// favour makes preferred machines cheaper.
func (g *grid) favour() {
	if g.prefer == nil {
		return
	}
	for w, word := range g.preferred {
		for ; word != 0; word &= word - 1 {
			i := int32(w<<6 | bits.TrailingZeros64(word))
			g.charge(i, g.exact[i].price-g.weights.Prefer)
		}
	}
}
