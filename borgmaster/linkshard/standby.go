package linkshard

import (
	"time"

	"borg/borgmaster/cell"
)

// A share that moves goes to those who come next for its machines. Each replica keeps
// connections to the machines for which it is next, so that a thousand handshakes need
// not be made at the moment when every second counts, and so that its word on a machine
// that another one misses costs none.

const (
	// At most one connection is begun in so long, and only while polls begin in time and
	// the interval between them is what it should be.
	standByPause = 15 * time.Millisecond
	standByLagNs = 5e6
	// So many of them are looked at meanwhile.
	standByLooks = 100
	// Once a look at all of them began nothing, the next one begins so much later.
	standByRest = 5 * time.Second
	// Machines come and go; who is next for them is worked out again after so long.
	standByAgainNs = 10e9
)

// Nexts are the machines for which this replica is next.
func (c *Core) Nexts() (names []string) {
	for name := range c.machines {
		if Next(name, c.live) == c.cfg.Replica {
			names = append(names, name)
		}
	}
	return names
}

// workOutNexts does so when the machines or who shares them have changed.
func (l *loop) workOutNexts() {
	now := l.cfg.NowNs()
	if !l.nextsStale || now < l.nextsDueNs {
		return
	}
	l.nextsStale, l.nextsDueNs = false, now+standByAgainNs
	names := l.station.core.Nexts()
	l.nexts.Store(&names)
}

// standBy keeps connections to the machines for which this replica is next.
func (l *loop) standBy() {
	ticker := time.NewTicker(standByPause)
	defer ticker.Stop()
	var of *[]string
	at, idle := 0, 0
	for {
		select {
		case <-l.ctx.Done():
			return
		case <-ticker.C:
		}
		names := l.nexts.Load()
		if names == nil || len(*names) == 0 || l.lagNs.Load() > standByLagNs || l.intervalNs.Load() > l.station.cfg.Core.withDefaults().PeriodNs {
			continue
		}
		switch {
		case names != of:
			of, idle = names, 0
		case idle >= len(*names):
			idle = 0
			select {
			case <-l.ctx.Done():
				return
			case <-time.After(standByRest):
			}
		}
		for range min(standByLooks, len(*names)) {
			at, idle = (at+1)%len(*names), idle+1
			name, addr := (*names)[at], ""
			l.cfg.Log.View(func(c *cell.Cell) {
				if m := c.Machine(name); m != nil && m.Up() {
					addr = m.Addr()
				}
			})
			if addr != "" && l.cfg.Borglets.StandBy(name, addr) {
				idle = 0
				break
			}
		}
	}
}
