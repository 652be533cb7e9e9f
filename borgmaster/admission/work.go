package admission

const (
	// MaxWork is a user's budget of work at a replica: tasks and allocs that its changes make,
	// change or end at once. It is as many as a user may have, so that one large job always
	// fits.
	MaxWork = 200_000
	// workPerS is how much of the budget comes back in a second.
	workPerS = 10_000
)

// FreeWork is the work of an op that is free: the log itself costs more.
const FreeWork = 16

// wholeWorkNs is how long all of the budget takes to come back.
const wholeWorkNs = MaxWork * (1e9 / workPerS)

// workNs is how long the work of an op takes to come back. It costs all of the budget at most.
func workNs(work int) int64 { return int64(min(max(work-FreeWork, 0), MaxWork)) * (1e9 / workPerS) }

// Work takes the work of an op, or of several that one call asks about, from the user's budget.
// If the budget is too small now, it takes nothing and returns when to ask again. Small changes
// go on meanwhile.
func (c *Core[W]) Work(now int64, name string, work int) *Refusal {
	cost := workNs(work)
	if cost == 0 {
		return nil
	}
	u := c.of(now, name)
	if wait := u.work.take(now, cost, wholeWorkNs); wait > 0 {
		r := refuse(name, wait, "docs/limits.md: MaxWork", "asks replica %d for a change of %d tasks and allocs, of which a user may change %d at once and %d more each second", c.cfg.Replica, work, MaxWork, workPerS)
		c.noWork(now, u, r)
		return r
	}
	return nil
}

// RefusedWork notes that the elected master has no room for a change of a user's that is not
// small.
func (c *Core[W]) RefusedWork(now int64, name string, why *Refusal) {
	c.noWork(now, c.of(now, name), why)
}

// noWork counts a refusal. A user whose calls keep ignoring the time to come back has all changes
// refused by their heads, because reading them takes time, too.
func (c *Core[W]) noWork(now int64, u *user[W], r *Refusal) {
	c.stats.WritesRefused++
	if now >= u.workNs {
		u.workNs, u.workTold = now+r.RetryNs, 0
	}
	if u.workTold++; u.workTold > heedlessCalls {
		u.workTold = 0
		c.close(now, u, r)
	}
}

// Away refuses a question about changes by its head, if its user was turned away a moment ago.
func (c *Core[W]) Away(now int64, name string) *Refusal {
	if u := c.known(name); u != nil {
		return c.away(now, u)
	}
	return nil
}

// NotWorked gives back what Work took for an op that was turned away after it.
func (c *Core[W]) NotWorked(name string, work int) {
	if u := c.known(name); u != nil {
		u.work.giveBack(workNs(work))
	}
}
