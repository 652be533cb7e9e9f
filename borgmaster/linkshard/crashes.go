package linkshard

import (
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

// within leaves of a machine's reports those that are within the budgets of their jobs.
// What is left out is not lost: the next polls find it again, with what happened since.
func (b *crashBudget) within(now int64, tasks []*borgpb.TaskReport) []*borgpb.TaskReport {
	kept := tasks[:0:0]
	for _, t := range tasks {
		if !crash(t) || b.spend(now, t.JobUid) {
			kept = append(kept, t)
		}
	}
	return kept
}

// crash tells the reports of a copy that has crashed and is to go on. The end of one that
// was told to stop, or is done, is none: its room waits for that.
func crash(t *borgpb.TaskReport) bool {
	switch state := borgpb.AttemptState(t.State); state {
	case borgpb.AttemptState_ATTEMPT_STATE_BACKOFF, borgpb.AttemptState_ATTEMPT_STATE_FAILED:
		return true
	default:
		return t.Restarts > 0 && !terminal(t.State)
	}
}

func (b *crashBudget) spend(now int64, job string) bool {
	uid, err := cell.ParseUID(job)
	if err != nil || mutant.Planted(mutant.CrashesUnbudgeted) {
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
