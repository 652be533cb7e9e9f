package linkshard

import (
	"slices"

	"borg/borgmaster/cell"
	"borg/mutant"
	"borg/proto/borgpb"
)

const (
	// Changes of state that tasks of one job make by crashing, a second, and at once
	// after a rest, that one replica passes on. A job whose tasks crash again and again
	// must not fill the log for others; borglets start such tasks later and later, and
	// this bounds what thousands of them do together.
	crashesPerS = 20
	crashBurst  = 100
	// Jobs that are remembered; above it those are forgotten that have all of theirs.
	maxCrashingJobs = 10_000
)

// crashBudget bounds the reports of crashes by job. For each job it keeps the time at
// which all of its budget will be there again.
type crashBudget struct {
	fullNs map[cell.UID]int64
	// Reports that were left for later.
	held uint64
}

// withinBudgets leaves of a machine's reports those that are within the budgets of their
// jobs. What is left out is not lost: the next poll finds it again, with what happened
// since.
func (s *Station) withinBudgets(machine string, tasks []*borgpb.TaskReport) []*borgpb.TaskReport {
	if !slices.ContainsFunc(tasks, crash) {
		return tasks
	}
	now, known := s.cfg.NowNs(), s.known[machine]
	kept := tasks[:0:0]
	s.cfg.Log.View(func(c *cell.Cell) {
		m := c.Machine(machine)
		for _, t := range tasks {
			id, ok := idOf(t)
			if !ok || m == nil || !crash(t) || awaited(m.Copy(id)) || s.crashes.spend(now, id.Job) {
				kept = append(kept, t)
			} else if known != nil {
				delete(known.told, id)
			}
		}
	})
	return kept
}

// crash tells the reports of a copy that has crashed.
func crash(t *borgpb.TaskReport) bool {
	switch borgpb.AttemptState(t.State) {
	case borgpb.AttemptState_ATTEMPT_STATE_BACKOFF, borgpb.AttemptState_ATTEMPT_STATE_FAILED:
		return true
	default:
		return t.Restarts > 0 && !terminal(t.State)
	}
}

// awaited: a copy was told to stop, and its room waits for its end.
func awaited(p *cell.Copy) bool {
	return p != nil && p.State() == borgpb.AttemptState_ATTEMPT_STATE_STOPPING
}

func (b *crashBudget) spend(now int64, uid cell.UID) bool {
	if mutant.Planted(mutant.CrashesUnbudgeted) {
		return true
	}
	full, each := max(b.fullNs[uid], now), int64(1e9/crashesPerS)
	if full-now > (crashBurst-1)*each {
		b.held++
		return false
	}
	if b.fullNs == nil {
		b.fullNs = map[cell.UID]int64{}
	}
	if len(b.fullNs) >= maxCrashingJobs {
		for uid, at := range b.fullNs {
			if at <= now {
				delete(b.fullNs, uid)
			}
		}
		if len(b.fullNs) >= maxCrashingJobs {
			return true
		}
	}
	b.fullNs[uid] = full + each
	return true
}
