package admission

const (
	// MaxReadNs is a user's budget of time in turns of reads at a replica, for each turn that there
	// is at a time.
	MaxReadNs = 2e9
	// readTimePart is the part of the time that passes which comes back: a fifth. So a user who reads
	// without end has a fifth of what all readers have, though nobody else reads.
	readTimePart = 5
)

// readNs is how long so much of the budget takes to come back.
func (c *Core[W]) readNs(ns int64) int64 { return readTimePart * ns / c.cfg.ReadPlaces }

// ReadsIn returns how long a user waits before the next turn: the budget is used up until then.
func (c *Core[W]) ReadsIn(now int64, name string) (waitNs int64) {
	u := c.known(name)
	if u == nil {
		return 0
	}
	return max(int64(u.readTime)-now-readTimePart*MaxReadNs, 0)
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
