package cell

import (
	"cmp"

	"borg/mutant"
	"borg/proto/borgpb"
)

// FormatAfterFailure is the format from which on a job says what becomes of it when one that
// it starts after fails.
const FormatAfterFailure = 12

// AfterFailure is what becomes of a job with that spec when one that it starts after failed
// for good or was ended.
func AfterFailure(s *borgpb.JobSpec) borgpb.AfterFailure {
	return cmp.Or(s.GetAfterFailure(), borgpb.AfterFailure_AFTER_FAILURE_WAIT)
}

// checkStartAfter checks the names of the jobs that a job starts after.
func checkStartAfter(key JobKey, s *borgpb.JobSpec) *borgpb.Refusal {
	if len(s.StartAfter) > maxStartAfter {
		return limit("spec.start_after", "%d jobs; at most %d", len(s.StartAfter), maxStartAfter)
	}
	for _, name := range s.StartAfter {
		if k, err := ParseJobKey(name); err != nil {
			return invalid("spec.start_after", "%v", err)
		} else if k == key {
			return invalid("spec.start_after", "a job cannot start after itself")
		}
	}
	if s.AfterFailure != borgpb.AfterFailure_AFTER_FAILURE_UNSPECIFIED && len(s.StartAfter) == 0 {
		return invalid("spec.after_failure", "it says what becomes of the job when one that it starts after fails; name that in start_after, or leave it out")
	}
	return nil
}

// ahead is how a job stands that another one starts after.
type ahead int

const (
	// It has not ended.
	aheadLives ahead = iota
	// All its tasks ended well.
	aheadFinished
	// It failed for good, or somebody ended it.
	aheadFailed
	// It is not there any more: forgotten.
	aheadForgotten
)

// ahead looks at a job that another one starts after.
func (c *Cell) ahead(name string) ahead {
	k, _ := ParseJobKey(name)
	switch o := c.Job(k); {
	case o == nil:
		return aheadForgotten
	case o.deathSeq == 0:
		return aheadLives
	case int(o.finished) != len(o.rows):
		return aheadFailed
	}
	return aheadFinished
}

// eligible tells whether everything that the job starts after has finished, or is not
// waited for.
func (c *Cell) eligible(j *Job) bool { return j.saving == nil && c.WaitsFor(j) == "" }

// WaitsFor names the first job that j starts after and waits for: one that has not
// finished, or failed, unless it runs then. Empty: there is none.
func (c *Cell) WaitsFor(j *Job) string {
	s := j.latest().Proto
	for _, name := range s.StartAfter {
		switch c.ahead(name) {
		case aheadFinished:
			continue
		case aheadFailed, aheadForgotten:
			if AfterFailure(s) == borgpb.AfterFailure_AFTER_FAILURE_RUN || mutant.Planted(mutant.FailureTaken) {
				continue
			}
		}
		return name
	}
	return ""
}

// AfterWords says what a job waits for that it starts after, and what becomes of it when
// that fails; empty: it waits for none.
func (c *Cell) AfterWords(j *Job) string {
	name := c.WaitsFor(j)
	if name == "" {
		return ""
	}
	switch c.ahead(name) {
	case aheadForgotten:
		return "starts after " + name + ", which is not there any more; submit that again, or end this one"
	case aheadFailed:
		return "starts after " + name + ", which has failed for good or was ended; submit that again, end this one, or have it start all the same: after_failure = \"run\""
	}
	words := "starts after " + name + ", which has not finished" + c.stuckWords(name)
	switch AfterFailure(j.latest().Proto) {
	case borgpb.AfterFailure_AFTER_FAILURE_RUN:
		return words + "; it starts as well if that fails"
	case borgpb.AfterFailure_AFTER_FAILURE_DIE:
		return words + "; it ends if that fails"
	}
	return words
}

// stuckWords says of a job that lives, and that another one starts after, that it cannot
// begin either, because one further ahead has failed; empty: it can.
func (c *Cell) stuckWords(name string) string {
	// Jobs that start after each other in a ring wait for no failure.
	for range maxStartAfter {
		k, _ := ParseJobKey(name)
		j := c.Job(k)
		// One that runs already is let be.
		if j.state() != statePending {
			return ""
		}
		first := c.WaitsFor(j)
		if first == "" {
			return ""
		}
		switch c.ahead(first) {
		case aheadFailed:
			return " and cannot: " + name + " starts after " + first + ", which has failed for good or was ended"
		case aheadForgotten:
			return " and cannot: " + name + " starts after " + first + ", which is not there any more"
		}
		name = first
	}
	return ""
}

// dieAfter ends a job of which nothing runs, because one that it starts after has failed,
// if that is what its owner wants.
func (c *Cell) dieAfter(j *Job) {
	if name := c.diesOf(j); name != "" {
		c.endAfter(j, name)
	}
}

// diesOf names the first job whose failure ends j now; empty: there is none. It ends later
// with a job whose dependents wait.
func (c *Cell) diesOf(j *Job) string {
	if j.endsAfterFailure() {
		for _, name := range j.latest().Proto.StartAfter {
			if k, _ := ParseJobKey(name); c.ahead(name) == aheadFailed && !c.endingOf(k) {
				return name
			}
		}
	}
	return ""
}
