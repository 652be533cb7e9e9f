package admission

import (
	"slices"

	"borg/mutant"
)

// Enter asks for a place in the log for a write. It is placed, or waits, or is
// refused; after it Step must be called. A write that is placed or waits must call Leave.
func (c *Core[W]) Enter(now int64, name string, bytes int, who W) (*Place[W], *Refusal) {
	if mutant.Planted(mutant.OneBucketForAll) {
		name = ""
	}
	u := c.of(now, name)
	if r := c.away(now, u); r != nil {
		return nil, r
	}
	if r := c.room(now, u, name, bytes); r != nil {
		c.stats.WritesRefused++
		return nil, r
	}
	p := &Place[W]{Who: who, user: u, cost: costOf(bytes), bytes: bytes, sinceNs: now}
	c.turn(now)
	if p.light = c.light(now, u); p.light {
		// A user who asks for little does not wait for users who ask for much.
		if c.heavy > 0 {
			c.lightComes(u)
		}
		if p.outOfTurn = c.win.full(p.cost); len(u.queue) == 0 && (!p.outOfTurn || c.outOfTurn < maxOutOfTurn) {
			c.place(now, p)
			return p, nil
		}
		p.outOfTurn = false
	} else if c.waiting == 0 && !c.win.full(p.cost) && !c.paused(now) {
		c.pause(now)
		c.place(now, p)
		return p, nil
	}
	c.win.limited = true
	if !p.light {
		c.heavyComes(now, u)
	}
	c.stats.WritesWaited++
	u.queue = append(u.queue, p)
	u.bytes += bytes
	u.cost += p.cost
	c.waiting++
	c.waitingBytes += bytes
	if !u.turns {
		u.turns, u.joined = true, c.win.epochs
		c.ring = append(c.ring, u)
	}
	return p, nil
}

// light reports whether a user asks for little, and has done so for a while. A user turned away
// lately does not count: there the limit is the reason. Repeating a write that waits is not asking
// for much, nor is being one of many that all ask for as much, until they have to wait.
func (c *Core[W]) light(now int64, u *user[W]) bool {
	was := (now-u.heavyNs > heavyForNs || mutant.Planted(mutant.MuchForgotten)) && !u.awayLately(now)
	if len(u.queue)+u.placed < lightPlaces {
		return was
	}
	if was && len(u.queue) == 0 && int64(u.placed)*lightShare < c.win.used {
		return true
	}
	c.heavyComes(now, u)
	return false
}

// lightComes hears of each write of somebody who asks for little beside somebody who asks
// for much.
func (c *Core[W]) lightComes(u *user[W]) {
	if len(c.lights) == 0 {
		c.win.lightComes()
	}
	c.lights[u] = c.win.epochs
}

// heavyComes marks a user as one that asks for much, for whom the window is not kept small. A
// user that begins with much counts as light until the first of it has come.
func (c *Core[W]) heavyComes(now int64, u *user[W]) {
	u.heavyNs = now
	c.notLight(u)
}

func (c *Core[W]) notLight(u *user[W]) {
	if _, is := c.lights[u]; is {
		if delete(c.lights, u); len(c.lights) == 0 {
			c.win.lightsGone()
		}
	}
}

// turn ends the epoch, if it is time.
func (c *Core[W]) turn(now int64) {
	if !c.win.turn(now, len(c.lights) > 0, len(c.ring)) {
		return
	}
	for u, lastAt := range c.lights {
		if c.win.epochs-lastAt > lightEpochs {
			c.notLight(u)
		}
	}
}

// room says whether a user's write may wait.
func (c *Core[W]) room(now int64, u *user[W], name string, bytes int) *Refusal {
	wait := u.waitNs(c.win.epochs)
	full := len(u.queue) >= maxWaitingOf || u.bytes+bytes > maxWaitingBytesOf
	comes := c.win.epochs-u.joined < 2 && !u.awayLately(now)
	if !full && (len(u.queue) < minWaiting || wait <= maxWaitNs || comes) {
		return nil
	}
	r := refuse(name, min(wait/2, maxWaitNs), "the share of one user among all who ask; docs/overload.md",
		"has %d changes waiting at replica %d, which does about %d a second for this user at the moment", len(u.queue), c.cfg.Replica, u.rate*(1e9/epochNs))
	c.close(now, u, r)
	return r
}

// waitNs is how long what waits for a user will take, by what was done for the
// user lately; 0: nothing is known.
func (u *user[W]) waitNs(epoch int64) int64 {
	u.age(epoch)
	if u.rate == 0 {
		return 0
	}
	return u.cost * epochNs / u.rate
}

// age brings the average of what a user got up to an epoch.
func (u *user[W]) age(epoch int64) {
	for ; u.epoch < epoch; u.epoch++ {
		if epoch-u.epoch > 50 {
			u.rate, u.granted, u.epoch = 0, 0, epoch
			return
		}
		u.rate = (3*u.rate + u.granted) / 4
		if u.rate == 0 {
			u.rate = u.granted
		}
		u.granted = 0
	}
}

func (c *Core[W]) place(now int64, p *Place[W]) {
	p.state, p.placedNs = placed, now
	c.win.used += p.cost
	if p.outOfTurn {
		c.outOfTurn++
	}
	p.user.age(c.win.epochs)
	p.user.placed++
	c.placed++
	if !p.light {
		c.heavy++
		c.win.heavy = true
	}
	p.user.granted += p.cost
	c.stats.Writes++
}

// Leave ends a write: it is done, or failed, or nobody waits for it any more. Step must
// be called after it.
func (c *Core[W]) Leave(now int64, p *Place[W], done bool) {
	switch p.state {
	case waits:
		u := p.user
		if i := slices.Index(u.queue, p); i >= 0 {
			u.queue = slices.Delete(u.queue, i, i+1)
			c.unqueued(p)
		}
	case placed:
		c.win.used -= p.cost
		p.user.placed--
		c.placed--
		if !p.light {
			c.heavy--
		}
		if p.outOfTurn {
			c.outOfTurn--
		}
		if done {
			c.win.done(now-p.placedNs, p.light && p.user.heavyNs < p.placedNs)
		}
		c.turn(now)
	}
	p.state = left
}

func (c *Core[W]) unqueued(p *Place[W]) {
	p.user.bytes -= p.bytes
	p.user.cost -= p.cost
	c.waiting--
	c.waitingBytes -= p.bytes
}

// Step gives places to waiting writes, user by user, and returns those that waited too long or
// are too many. Granted places have their state set.
func (c *Core[W]) Step(now int64) (granted []*Place[W], late []Late[W]) {
	c.turn(now)
	late = c.expire(now)
	for len(c.ring) > 0 && !c.paused(now) {
		u := c.ring[0]
		if len(u.queue) == 0 {
			c.ring = c.ring[1:]
			u.turns, u.credit = false, 0
			continue
		}
		p := u.queue[0]
		if c.win.full(p.cost) {
			c.win.limited = true
			break
		}
		if u.credit < p.cost {
			u.credit += turnCost
			if u.credit < p.cost {
				c.ring = append(c.ring[1:], u)
				continue
			}
		}
		u.credit -= p.cost
		u.queue = u.queue[1:]
		c.unqueued(p)
		c.place(now, p)
		granted = append(granted, p)
		if u.credit <= 0 {
			c.ring = append(c.ring[1:], u)
		}
	}
	if slices.ContainsFunc(granted, func(p *Place[W]) bool { return !p.light }) {
		c.pause(now)
	}
	return granted, append(late, c.shed(now)...)
}

// paused: beside somebody who asks for little the others have their turns together, and
// then none for a while. Each entry of the log is a sync of every replica's disk, and
// single writes one after the other would keep the disks busy without end.
func (c *Core[W]) paused(now int64) bool { return now < c.pausedNs }

func (c *Core[W]) pause(now int64) {
	if len(c.lights) > 0 && !c.paused(now) {
		c.pausedNs = now + pauseNs
	}
}

// expire turns away the writes that waited too long.
func (c *Core[W]) expire(now int64) (late []Late[W]) {
	for _, u := range c.ring {
		for len(u.queue) > 0 && now-u.queue[0].sinceNs >= maxWaitNs {
			late = append(late, c.turnAway(now, u, 0, "waited %d ms at replica %d for its turn", int64(maxWaitNs/1e6), c.cfg.Replica))
			c.stats.WritesExpired++
		}
	}
	return late
}

// shed turns away the newest writes of the user with most waiting, until what waits is within
// its bounds.
func (c *Core[W]) shed(now int64) (late []Late[W]) {
	for c.waiting > maxWaiting || c.waitingBytes > maxWaitingBytes {
		u := c.ring[0]
		for _, other := range c.ring {
			if other.cost > u.cost {
				u = other
			}
		}
		late = append(late, c.turnAway(now, u, len(u.queue)-1, "has most of the %d changes that wait at replica %d", c.waiting, c.cfg.Replica))
		c.stats.WritesRefused++
	}
	return late
}

func (c *Core[W]) turnAway(now int64, u *user[W], i int, why string, args ...any) Late[W] {
	p := u.queue[i]
	u.queue = slices.Delete(u.queue, i, i+1)
	c.unqueued(p)
	p.state = left
	r := refuse(u.name, max(u.waitNs(c.win.epochs), maxWaitNs/2), "the share of one user among all who ask; docs/overload.md", why, args...)
	c.close(now, u, r)
	return Late[W]{p, r}
}

// NextNs is when Step is wanted again at the latest, if anybody waits.
func (c *Core[W]) NextNs(now int64) (ns int64, ok bool) {
	if c.waiting == 0 {
		return 0, false
	}
	first := c.ring[0].firstNs()
	for _, u := range c.ring {
		first = min(first, u.firstNs())
	}
	first += maxWaitNs
	if c.paused(now) {
		first = min(first, c.pausedNs)
	}
	return first, true
}

func (u *user[W]) firstNs() int64 {
	if len(u.queue) == 0 {
		return 1<<62 - maxWaitNs
	}
	return u.queue[0].sinceNs
}
