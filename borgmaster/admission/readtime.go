package admission

// MaxReadNs is a user's budget of time in turns of reads at a replica, for each turn that there
// is at a time. Half of the time that passes comes back, so a user who reads without end has
// half of what all readers have, though nobody else reads.
const MaxReadNs = 10e9

// readNs is how long so much of the budget takes to come back.
func (c *Core[W]) readNs(ns int64) int64 { return 2 * ns / c.cfg.ReadPlaces }

// ReadsIn returns how long a user waits before the next turn: the budget is used up until then.
func (c *Core[W]) ReadsIn(now int64, name string) (waitNs int64) {
	u := c.known(name)
	if u == nil {
		return 0
	}
	return max(int64(u.readTime)-now-2*MaxReadNs, 0)
}

// HasRead takes the time of a turn from its user's budget.
func (c *Core[W]) HasRead(now int64, name string, ns int64) {
	u := c.of(now, name)
	u.readTime.spend(now, c.readNs(ns))
}

// ReadsTooMuch refuses a read whose turn would come too late for the budget.
func (c *Core[W]) ReadsTooMuch(name string, waitNs int64) *Refusal {
	c.stats.ReadsRefused++
	return refuse(name, waitNs, "docs/limits.md: MaxReadNs", "has had replica %d read for longer than a user's share of it", c.cfg.Replica)
}
