package cell

import (
	"fmt"
	"slices"
)

// grave names a dead job or alloc set. It holds no pointer, so that a grave still in a queue
// does not keep a forgotten object in memory.
type grave struct {
	key   JobKey
	uid   UID
	isSet bool
	// Number and cell time of its death. A job that gets another day has later ones.
	seq uint64
	ns  int64
}

// graveOf returns the grave of a dead job.
func graveOf(j *Job) grave { return grave{key: j.key, uid: j.uid, seq: j.deathSeq, ns: j.deathNs} }

// graveOfSet returns the grave of a dead alloc set.
func graveOfSet(s *AllocSet) grave {
	return grave{key: s.key, uid: s.uid, isSet: true, seq: s.deathSeq, ns: s.deathNs}
}

// graveyard remembers dead jobs and alloc sets for a day of cell time, up to a number of
// objects, tasks and bytes. The oldest deaths are forgotten first.
type graveyard struct {
	queue   []grave
	nextSeq uint64
	// Number of dead objects that are still remembered, and of their tasks and allocs.
	objects, tasks int
	// The same graves by user; derived.
	byUser map[string]*graveQueue
	// Users whose dead objects may be over budget; emptied at the end of each log entry.
	crowded []string
}

// graveQueue is the graves of one user, oldest first. The objects of some may be forgotten.
type graveQueue struct{ graves []grave }

// enqueue appends a grave to those of its user.
func (g *graveyard) enqueue(d grave) {
	q := g.byUser[d.key.User]
	if q == nil {
		q = new(graveQueue)
		g.byUser[d.key.User] = q
	}
	q.graves = append(q.graves, d)
}

// dies moves a job or alloc set that has just died to its user's budget of dead objects. was
// and now are its use of the state before and after.
func (c *Cell) dies(was, now StateUse, d grave) {
	user := d.key.User
	c.stateUse.count(user, &was, -1)
	c.stateUse.count(user, &now, 1)
	c.graveyard.enqueue(d)
	if g := &c.graveyard; len(g.crowded) == 0 || g.crowded[len(g.crowded)-1] != user {
		g.crowded = append(g.crowded, user)
	}
}

// overDead reports whether a user holds more dead objects than their budget.
func (c *Cell) overDead(user string) bool {
	u := c.stateUse.byUser[user]
	return u != nil && slices.ContainsFunc(Measures, func(m Measure) bool { return CountsDead(m) && u[m] > c.StateBudget(user, m) })
}

// followed reports whether a live job starts after this one and so needs to know how it
// ended.
func (c *Cell) followed(d grave) bool { return !d.isSet && len(c.jobRefs.followers[d.key]) > 0 }

// thinDead forgets the oldest dead objects of users who are over budget, those that a live
// job starts after last. So one user's dead objects push out another's only at the total of
// the cell.
func (c *Cell) thinDead() {
	g := &c.graveyard
	for _, user := range g.crowded {
		q := g.byUser[user]
		if q == nil {
			continue
		}
		var kept []grave
		for len(q.graves) > 0 && (c.overDead(user) || !c.liesIn(q.graves[0])) {
			d := q.graves[0]
			q.graves = q.graves[1:]
			switch {
			case !c.liesIn(d):
			case c.followed(d):
				kept = append(kept, d)
			default:
				c.bury(d.key)
			}
		}
		for len(kept) > 0 && c.overDead(user) {
			c.bury(kept[0].key)
			kept = kept[1:]
		}
		if len(kept) > 0 {
			q.graves = append(kept, q.graves...)
		}
		q.compact(c, user)
	}
	g.crowded = g.crowded[:0]
	// Graves of forgotten objects pile up behind an old one that is still remembered.
	if len(g.queue) > 2*g.objects+64 {
		g.queue = slices.DeleteFunc(g.queue, func(d grave) bool { return !c.liesIn(d) })
	}
}

// compact drops the graves of forgotten objects when they are most of the queue.
func (q *graveQueue) compact(c *Cell, user string) {
	there := 0
	if u := c.stateUse.byUser[user]; u != nil {
		there = int(u[measureDeadObjects])
	}
	if len(q.graves) > 2*there+64 {
		q.graves = slices.DeleteFunc(q.graves, func(d grave) bool { return !c.liesIn(d) })
	}
	if len(q.graves) == 0 {
		delete(c.graveyard.byUser, user)
	}
}

// addJob records the death of a job.
func (g *graveyard) addJob(c *Cell, j *Job) {
	g.nextSeq++
	j.deathSeq, j.deathNs = g.nextSeq, c.clock.cellNs
	g.add(graveOf(j), len(j.rows))
}

// addSet records the death of an alloc set.
func (g *graveyard) addSet(c *Cell, s *AllocSet) {
	g.nextSeq++
	s.deathSeq, s.deathNs = g.nextSeq, c.clock.cellNs
	g.add(graveOfSet(s), len(s.allocs))
}

func (g *graveyard) add(d grave, tasks int) {
	g.queue = append(g.queue, d)
	g.objects++
	g.tasks += tasks
}

// liesIn reports whether the object of a grave is still remembered and died at that time.
func (c *Cell) liesIn(d grave) bool {
	if d.isSet {
		s := c.setsByU[d.uid]
		return s != nil && s.deathSeq == d.seq
	}
	j := c.jobsByUID[d.uid]
	return j != nil && j.deathSeq == d.seq
}

// expireDead forgets what has been dead for a day, and the oldest while there is too much.
func (c *Cell) expireDead() {
	c.thinDead()
	g := &c.graveyard
	for len(g.queue) > 0 && (!c.liesIn(g.queue[0]) || c.clock.cellNs-g.queue[0].ns > deadMemoryNs) {
		switch d := g.queue[0]; {
		case !c.liesIn(d):
			g.queue = g.queue[1:]
		case c.followed(d):
			// It is a day until this is asked again, so the loop ends.
			c.postpone(d)
		default:
			c.bury(d.key)
		}
	}
	c.thinAll()
}

// overTotals reports whether the cell remembers more dead objects than it may.
func (c *Cell) overTotals() bool {
	g := &c.graveyard
	return g.objects > maxDeadObjects || g.tasks > maxDeadTasks || c.stateUse.cell[measureDeadBytes] > maxDeadBytes
}

// thinAll forgets the oldest dead objects of all users beyond the totals of the cell, those that a
// live job starts after last. Those stay where they are in the queue: nothing is written of them.
func (c *Cell) thinAll() {
	g := &c.graveyard
	kept, looked := 0, 0
	for ; looked < len(g.queue) && c.overTotals(); looked++ {
		switch d := g.queue[looked]; {
		case !c.liesIn(d):
		case c.followed(d):
			g.queue[kept] = d
			kept++
		default:
			c.bury(d.key)
		}
	}
	copy(g.queue[looked-kept:looked], g.queue[:kept])
	g.queue = g.queue[looked-kept:]
	for len(g.queue) > 0 && c.overTotals() {
		if d := g.queue[0]; c.liesIn(d) {
			c.bury(d.key)
		}
		g.queue = g.queue[1:]
	}
}

// postpone gives a dead job another day because a live one starts after it.
func (c *Cell) postpone(d grave) {
	g, j := &c.graveyard, c.jobsByUID[d.uid]
	g.queue = g.queue[1:]
	g.objects--
	g.tasks -= len(j.rows)
	g.addJob(c, j)
	g.enqueue(graveOf(j))
	c.dirty(j)
}

// bury removes a dead job or alloc set from the cell. Copies that have not stopped stay with
// their machine as orphans.
func (c *Cell) bury(key JobKey) {
	if j := c.Job(key); j != nil {
		u := j.stateUse()
		c.stateUse.count(key.User, &u, -1)
		c.graveyard.objects--
		c.graveyard.tasks -= len(j.rows)
		c.uncountJob(j)
		delete(c.jobsByUID, j.uid)
		c.jobs.remove(key)
		j.gone = true
		c.dirty(j)
		for _, s := range j.specs {
			s.gone = true
			c.dirty(s)
		}
		if j.update != nil {
			c.dirty(j.update)
		}
		if j.cron != nil {
			c.dirty(j.cron)
		}
		for _, t := range j.rows {
			c.abandon(t)
			if t.recorded() {
				c.dirty(t)
			}
		}
	}
	if s := c.sets[key]; s != nil {
		u := s.stateUse()
		c.stateUse.count(key.User, &u, -1)
		c.graveyard.objects--
		c.graveyard.tasks -= len(s.allocs)
		delete(c.sets, key)
		delete(c.setsByU, s.uid)
		at, _ := slices.BinarySearchFunc(c.setList, key, compareSet)
		c.setList = slices.Delete(c.setList, at, at+1)
		s.gone = true
		c.dirty(s)
		for _, a := range s.allocs {
			if a.recorded() {
				c.dirty(a)
			}
		}
	}
	if u := c.stateUse.byUser[key.User]; u == nil || u[measureDeadObjects] == 0 {
		// What is left there are graves of forgotten objects.
		delete(c.graveyard.byUser, key.User)
	}
}

// checkGraves verifies that each user's queue has the graves of all their dead objects.
func (c *Cell) checkGraves() error {
	dead := make(map[string]int)
	for user, q := range c.graveyard.byUser {
		last := uint64(0)
		for _, d := range q.graves {
			if !c.liesIn(d) {
				continue
			}
			if dead[user]++; d.key.User != user || d.seq <= last {
				return fmt.Errorf("graveyard: the grave of %v is out of place in the queue of user %s", d.key, user)
			}
			last = d.seq
		}
		if dead[user] == 0 {
			return fmt.Errorf("graveyard: user %s has a queue and no dead object", user)
		}
	}
	for user, u := range c.stateUse.byUser {
		if int64(dead[user]) != u[measureDeadObjects] {
			return fmt.Errorf("graveyard: user %s has %d dead objects, and %d in the queue", user, u[measureDeadObjects], dead[user])
		}
	}
	return nil
}

func compareSet(s *AllocSet, k JobKey) int { return s.key.Compare(k) }
