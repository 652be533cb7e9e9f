package admission

const (
	// MaxWork is what one user may ask the elected master to do at once, in tasks and allocs that it makes,
	// changes or ends: as many as a user may have, so one large job can always begin.
	MaxWork = 200_000
	// So much of it comes back in a second.
	workPerS = 10_000
)

// FreeWork is the work of an op that is free: the log itself costs more.
const FreeWork = 16

// worked is the time at which a user's budget of work will be whole again.
type worked int64

// workCost is what of an op's work counts: more than the whole budget does not.
func workCost(work int) int64 { return int64(min(max(work-FreeWork, 0), MaxWork)) }

func workNs(cost int64) int64 { return cost * (1e9 / workPerS) }

// Work takes the work of an op, or of several that are asked about together, from its user's
// budget. Otherwise it says when there will be enough. Small changes go on meanwhile.
func (c *Core[W]) Work(now int64, name string, work int) *Refusal {
	cost := workCost(work)
	if cost == 0 {
		return nil
	}
	u := c.of(now, name)
	whole := max(int64(u.work), now) + workNs(cost)
	if wait := whole - now - workNs(MaxWork); wait > 0 {
		r := refuse(name, wait, "docs/limits.md: MaxWork", "asks replica %d for a change of %d tasks and allocs, of which a user may change %d at once and %d more each second", c.cfg.Replica, work, MaxWork, workPerS)
		c.noWork(now, u, r)
		return r
	}
	u.work = worked(whole)
	return nil
}

// RefusedWork notes that the elected master has no room for a change of a user's that is not
// small.
func (c *Core[W]) RefusedWork(now int64, name string, why *Refusal) {
	c.noWork(now, c.of(now, name), why)
}

// noWork counts a refusal. Who is told to come back later and does not heed it, again and again,
// has all changes refused, unheard: to hear them takes time, too.
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
	if u := c.users[name]; u != nil {
		return c.away(now, u)
	}
	return nil
}

// NotWorked gives back what Work took for an op that was turned away after it.
func (c *Core[W]) NotWorked(name string, work int) {
	u := c.users[name]
	if u == nil {
		// It was counted with those above the bound.
		u = c.users[""]
	}
	if u != nil {
		u.work = max(u.work-worked(workNs(workCost(work))), 0)
	}
}
