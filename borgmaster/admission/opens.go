package admission

const (
	// MaxOpens is how many streams and reads of much a user may begin at once at a replica: more than one may have
	// of all kinds together. Each takes memory and several goroutines, also when it is cancelled at once.
	MaxOpens = 384
	// opensPerS is how many more each second.
	opensPerS = 32
)

// Open takes the beginning of a stream, or of a read of much, from a user's budget.
func (c *Core[W]) Open(now int64, name string) *Refusal {
	const oneNs int64 = 1e9 / opensPerS
	u := c.of(now, name)
	if wait := u.opens.take(now, oneNs, MaxOpens*oneNs); wait > 0 {
		c.stats.ReadsRefused++
		return refuse(name, wait, "docs/limits.md: MaxOpens", "has begun %d streams or reads of much at replica %d, and may begin %d more a second", MaxOpens, c.cfg.Replica, opensPerS)
	}
	return nil
}
