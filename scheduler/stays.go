package scheduler

import (
	"fmt"
	"slices"

	"borg/borgmaster/cell"
	"borg/proto/borgpb"
)

// staysWords says who is of a lower priority than what waits and does not give way to
// it all the same, whatever it holds; empty: nobody is, or it has room.
func (e *explanation) staysWords() string {
	if e.counts[cell.FitOK] > 0 || e.want.seated && !e.want.volumes.Bound || e.s.promiseOf(ID{e.want.line.uid, e.index}) != nil {
		return ""
	}
	by := &e.want.class.by
	lower, within, spared, held := 0, 0, 0, 0
	band := cell.BandOf(by.Priority)
	for i, at := range e.spots {
		if !isShort(e.fits[i]) {
			continue
		}
		for p := range at.site.machine.Copies() {
			if !p.Current() || p.Alloc() != at.alloc || p.Priority() >= by.Priority {
				continue
			}
			lower++
			switch {
			case by.Never():
			case p.Key().User == by.User && !e.c.PreemptsOwn(by.User, cell.BandOf(p.Priority())):
				held++
			case !e.c.MayTake(by, p.Key().User, p.Priority()):
				within++
			case e.s.cfg.Churn > 0 && e.mayHurt(p.JobUID()) == 0:
				spared++
			}
		}
	}
	switch {
	case lower == 0:
		return ""
	case by.Never():
		return fmt.Sprintf("; %s: it takes nobody's place (preempt: never)", stay(lower))
	case held > 0:
		return fmt.Sprintf("; %s: what stops of user %s holds as much as the quota, so its work preempts none of its own until that has ended", stay(held), by.User)
	case within > 0:
		return fmt.Sprintf("; %s: within %s nobody takes the place of others", stay(within), cell.BandName(band))
	case spared > 0 && by.Priority < prodPriority:
		return fmt.Sprintf("; %s: their jobs gave way as often as they may, %d times in %d s", stay(spared), e.s.cfg.Churn, e.s.cfg.ChurnWindowNs/1e9)
	}
	return ""
}

// stay is "1 task of lower priority runs there and stays".
func stay(n int) string {
	if n == 1 {
		return "1 task of lower priority runs there and stays"
	}
	return fmt.Sprintf("%d tasks of lower priority run there and stay", n)
}

// isShort tells that a machine was refused for want of room.
func isShort(f cell.Fit) bool {
	switch f {
	case cell.FitPorts, cell.FitCPU, cell.FitMemory, cell.FitDisk, cell.FitDevices:
		return true
	}
	return false
}

// noteOwnHeld remembers that a class found no place while its user's work preempts none of
// the user's own.
func (s *Scheduler) noteOwnHeld(c *cell.Cell, by *cell.Preemptor) {
	if by.Never() || !ownHeld(c, by.User) || s.ownHeld[by.User] || len(s.ownHeld) >= maxRemembered {
		return
	}
	if s.ownHeld == nil {
		s.ownHeld = make(map[string]bool)
	}
	s.ownHeld[by.User] = true
}

// reviewOwnHeld makes all waiting work be searched for again when a user's work may preempt the
// user's own work again. That depends on what stops on any machine, not on one.
func (s *Scheduler) reviewOwnHeld(c *cell.Cell) {
	for user := range s.ownHeld {
		if !ownHeld(c, user) {
			delete(s.ownHeld, user)
			s.changes.all()
			s.stirred = true
		}
	}
}

// ownHeld reports whether work of a user may not preempt the user's own of some band.
func ownHeld(c *cell.Cell, user string) bool {
	return slices.ContainsFunc(cell.Bands[:], func(b borgpb.Band) bool { return !c.PreemptsOwn(user, b) })
}
