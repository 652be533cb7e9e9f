package admission

const (
	// MaxLogBytes is a user's budget of bytes of changes, which every replica writes, keeps and
	// sends on. It is more than all small files that a user may have, so that all of them may
	// be written at once.
	MaxLogBytes = 16 << 20
	// logBytesPerS is how much of the budget comes back in a second.
	logBytesPerS = 1 << 20
	// FreeLogBytes is as many bytes of a change as are free: so many each has, and how many
	// changes there are is bounded elsewhere.
	FreeLogBytes = 512
)

// logNs is how long the bytes of an op take to come back.
func logNs(bytes int) int64 {
	return int64(min(max(bytes-FreeLogBytes, 0), MaxLogBytes)) * 1e9 / logBytesPerS
}

// LogBytes takes the bytes of an op that is to go into the log from the user's budget. If the
// budget is too small now, it takes nothing and returns when to ask again. Small changes go on
// meanwhile.
func (c *Core[W]) LogBytes(now int64, name string, bytes int) *Refusal {
	cost := logNs(bytes)
	if cost == 0 {
		return nil
	}
	u := c.of(now, name)
	if wait := u.logBytes.take(now, cost, MaxLogBytes*1e9/logBytesPerS); wait > 0 {
		r := refuse(name, wait, "docs/limits.md: MaxLogBytes", "asks replica %d for a change of %d KiB, of which a user may send %d MiB at once and %d KiB more each second", c.cfg.Replica, (bytes+1023)>>10, MaxLogBytes>>20, logBytesPerS>>10)
		c.noWork(now, u, r)
		return r
	}
	return nil
}

// NotLogged gives back what LogBytes took for an op that did not get into the log.
func (c *Core[W]) NotLogged(name string, bytes int) {
	if u := c.known(name); u != nil {
		u.logBytes.giveBack(logNs(bytes))
	}
}
