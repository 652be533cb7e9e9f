package scheduler

import (
	"slices"

	"borg/borgmaster/cell"
	"borg/mutant"
	"borg/proto/borgpb"
)

// churn is how often tasks of each job gave way of late. Jobs of which Config.Churn
// tasks did within the window are spared: others give way, or nobody does, unless who
// asks is production and finds no other place. It is kept by the scheduler alone: the
// cell lets any preemption through that the bands allow, and a scheduler that begins
// anew has seen none.
type churn struct {
	// times are the cell times, by job, ascending; at most Config.Churn of each.
	times map[cell.UID][]int64
	// promised counts the tasks that are named as victims and run in the copy still.
	promised map[cell.UID]int
	// dueNs is when the first of those who were spared need be no longer; zero: nobody
	// was.
	dueNs int64
}

// gaveWay takes in that a task of a job gave way.
func (s *Scheduler) gaveWay(c *cell.Cell, e *cell.Event) {
	if s.cfg.Churn == 0 || e.Kind != borgpb.EventKind_EVENT_KIND_EVICT || e.Cause != borgpb.StopCause_STOP_CAUSE_PREEMPTION || e.ObjectKind != borgpb.ObjectKind_OBJECT_KIND_TASK {
		return
	}
	h := &s.churn
	if h.times == nil {
		h.times = make(map[cell.UID][]int64)
	}
	if len(h.times) >= maxRemembered {
		for uid := range h.times {
			if s.recent(c, uid) == 0 {
				delete(h.times, uid)
			}
		}
		if len(h.times) >= maxRemembered {
			clear(h.times)
		}
	}
	list := append(h.times[e.UID], c.TimeNs())
	h.times[e.UID] = list[max(0, len(list)-s.cfg.Churn):]
}

// recent counts the tasks of a job that gave way within the window.
func (s *Scheduler) recent(c *cell.Cell, job cell.UID) int {
	list := s.churn.times[job]
	since, _ := slices.BinarySearch(list, c.TimeNs()-s.cfg.ChurnWindowNs+1)
	return len(list) - since
}

// promiseChurn counts the tasks that a promise names as victims.
func (s *Scheduler) promiseChurn(p *promise) {
	if len(p.hurts) > 0 && s.churn.promised == nil {
		s.churn.promised = make(map[cell.UID]int)
	}
	for _, uid := range p.hurts {
		s.churn.promised[uid]++
	}
}

// drop takes a promise back; it reports false when that was done before.
func (s *Scheduler) drop(p *promise) bool {
	if !s.overlay.drop(p) {
		return false
	}
	for _, uid := range p.hurts {
		if s.churn.promised[uid]--; s.churn.promised[uid] == 0 {
			delete(s.churn.promised, uid)
		}
	}
	return true
}

// mayHurt is how many tasks of a job may still give way.
func (f *search) mayHurt(job cell.UID) int {
	s := f.s
	left := s.cfg.Churn - s.recent(f.c, job)
	if !mutant.Planted(mutant.PromisedNotCounted) {
		left -= s.churn.promised[job]
	}
	return max(left, 0)
}

// spares tells whether some jobs are hurt more than they may be.
func (f *search) spares(units []unit) bool {
	if !f.sparing || mutant.Planted(mutant.NobodySpared) {
		return false
	}
	hurt := make(map[cell.UID]int)
	for i := range units {
		for _, uid := range units[i].hurts {
			if hurt[uid]++; hurt[uid] > f.mayHurt(uid) {
				f.note(uid)
				return true
			}
		}
	}
	return false
}

// note remembers that a job was spared, and when that ends.
func (f *search) note(job cell.UID) {
	f.spared = true
	s := f.s
	dueNs := f.c.TimeNs() + 1
	if list := s.churn.times[job]; len(list) > 0 {
		since, _ := slices.BinarySearch(list, f.c.TimeNs()-s.cfg.ChurnWindowNs+1)
		if since < len(list) {
			dueNs = list[since] + s.cfg.ChurnWindowNs
		}
	}
	if s.churn.dueNs == 0 || dueNs < s.churn.dueNs {
		s.churn.dueNs = dueNs
	}
}

// spareNoLonger has everything looked at again when the time of those who were spared
// has come.
func (s *Scheduler) spareNoLonger(c *cell.Cell) {
	if s.churn.dueNs != 0 && c.TimeNs() >= s.churn.dueNs {
		s.churn.dueNs = 0
		s.changes.all()
		s.stirred = true
	}
}

// cap leaves of each job no more units than may give way, the first of them: where so
// many may that not all sets of them are tried.
func (f *search) cap(units []unit) []unit {
	if !f.sparing {
		return units
	}
	kept := make([]unit, 0, len(units))
	for i := range units {
		if !f.spares(append(kept, units[i])) {
			kept = append(kept, units[i])
		}
	}
	return kept
}

// preempt looks for a place for which others give way: the fewest, of the lowest band,
// and none of a job that did so often of late. Production finds one among those too
// when there is no other. It is asked when there is no place without.
func (f *search) preempt(w *want, index uint32) (at spot, victims []unit, ok bool) {
	f.sparing, f.spared = f.s.cfg.Churn > 0, false
	at, victims, ok = f.displace(w, index)
	if !ok && f.spared && (w.class.priority >= prodPriority || mutant.Planted(mutant.AllTakeTheSpared)) {
		f.sparing = false
		at, victims, ok = f.displace(w, index)
	}
	f.sparing = false
	return at, victims, ok
}
