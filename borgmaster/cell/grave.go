package cell

import "slices"

// grave names a dead job or alloc set. It holds no pointer: an object that was
// forgotten is freed although its graves wait for their turn in the queues.
type grave struct {
	key   JobKey
	uid   UID
	isSet bool
	// Number and cell time of its death. A job that was given another day has another one.
	seq uint64
	ns  int64
}

// graveOf returns the grave of a dead job.
func graveOf(j *Job) grave { return grave{key: j.key, uid: j.uid, seq: j.deathSeq, ns: j.deathNs} }

// graveOfSet returns that of a dead alloc set.
func graveOfSet(s *AllocSet) grave {
	return grave{key: s.key, uid: s.uid, isSet: true, seq: s.deathSeq, ns: s.deathNs}
}

// graveyard keeps what is dead for a day of cell time, and not more than so
// much of it; the oldest deaths go first.
type graveyard struct {
	queue   []grave
	nextSeq uint64
	// Of those in the queue that are still there.
	objects, tasks int
	// The same graves by user; derived.
	byUser map[string]*graveQueue
	// Users whose dead objects may be over their budget, until the entry ends.
	crowded []string
}

// graveQueue is the graves of one user, oldest first; some may be gone.
type graveQueue struct{ graves []grave }

// enqueue puts a grave behind those of its user.
func (g *graveyard) enqueue(d grave) {
	q := g.byUser[d.key.User]
	if q == nil {
		q = new(graveQueue)
		g.byUser[d.key.User] = q
	}
	q.graves = append(q.graves, d)
}

// dies counts a job or alloc set that has just died as dead. was and now are what it held
// before and holds since.
func (c *Cell) dies(was, now StateUse, d grave) {
	user := d.key.User
	c.stateUse.count(user, &was, -1)
	c.stateUse.count(user, &now, 1)
	c.graveyard.enqueue(d)
	c.graveyard.crowded = append(c.graveyard.crowded, user)
}

// overDead reports whether a user holds more dead objects than their budget.
func (c *Cell) overDead(user string) bool {
	u := c.stateUse.byUser[user]
	return u != nil && slices.ContainsFunc(Measures, func(m Measure) bool { return MeasuresDead(m) && u[m] > c.StateBudget(user, m) })
}

// followed reports whether a live job starts after it, which then has to know how it
// ended.
func (c *Cell) followed(d grave) bool { return !d.isSet && len(c.links.followers[d.key]) > 0 }

// thinDead forgets the oldest dead objects of users who hold more than their budget. Within
// the cell's total, what one user leaves behind pushes out nothing of others. Those that a live job starts after
// go last.
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
		q.graves = append(kept, q.graves...)
		q.compact(c, user)
	}
	g.crowded = g.crowded[:0]
	// Names that die again and again leave graves that are gone behind an old one.
	if len(g.queue) > 2*g.objects+64 {
		g.queue = slices.DeleteFunc(g.queue, func(d grave) bool { return !c.liesIn(d) })
	}
}

// compact drops what is gone when it is most of the queue.
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

// addJob notes the death of a job.
func (g *graveyard) addJob(c *Cell, j *Job) {
	g.nextSeq++
	j.deathSeq, j.deathNs = g.nextSeq, c.clock.cellNs
	g.add(graveOf(j), len(j.rows))
}

// addSet notes the death of an alloc set.
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

// liesIn reports whether the grave's object is still remembered, and as dead since then.
func (c *Cell) liesIn(d grave) bool {
	if d.isSet {
		s := c.setsByU[d.uid]
		return s != nil && s.deathSeq == d.seq
	}
	j := c.jobsByUID[d.uid]
	return j != nil && j.deathSeq == d.seq
}

// expireDead forgets what has been dead for long enough.
func (c *Cell) expireDead() {
	c.thinDead()
	g := &c.graveyard
	// Each is spared once, so that there is an end.
	for spare := len(g.queue); len(g.queue) > 0; spare-- {
		d := g.queue[0]
		if c.liesIn(d) {
			if c.clock.cellNs-d.ns <= deadMemoryNs && g.objects <= maxDeadObjects && g.tasks <= maxDeadTasks && c.stateUse.cell[measureDeadBytes] <= maxDeadBytes {
				return
			}
			if c.followed(d) && spare > 0 {
				c.postpone(d)
				continue
			}
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

// bury takes a dead job or alloc set out of the cell. Copies that still hold a
// place stay with their machine as orphans until they have stopped.
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
}

func compareSet(s *AllocSet, k JobKey) int { return s.key.Compare(k) }

// links is who names whom.
type links struct {
	// Live jobs by the parent that they name, in the order of their uids.
	children map[JobKey][]*Job
	// Live jobs that start after a job, in the order of their uids.
	followers map[JobKey][]*Job
}

func (l *links) add(j *Job) {
	s := j.latest().Proto
	if s.Parent != "" {
		name(l.children, s.Parent, j)
	}
	for _, before := range s.StartAfter {
		name(l.followers, before, j)
	}
}

// name notes that j names a job.
func name(by map[JobKey][]*Job, job string, j *Job) {
	k, _ := ParseJobKey(job)
	at, there := slices.BinarySearchFunc(by[k], j.uid, func(o *Job, u UID) int { return o.uid.Compare(u) })
	if !there {
		by[k] = slices.Insert(by[k], at, j)
	}
}

// unname forgets that j names a job.
func unname(by map[JobKey][]*Job, job string, j *Job) {
	k, _ := ParseJobKey(job)
	by[k] = slices.DeleteFunc(by[k], func(o *Job) bool { return o == j })
	if len(by[k]) == 0 {
		delete(by, k)
	}
}

func (l *links) remove(j *Job) {
	s := j.latest().Proto
	if s.Parent != "" {
		unname(l.children, s.Parent, j)
	}
	for _, before := range s.StartAfter {
		unname(l.followers, before, j)
	}
}
