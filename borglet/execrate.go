package borglet

import (
	"fmt"
	"time"
)

// Starting a program beside a task takes some 40 ms of the machine's processor before the
// program runs within the limits of its task, so a user may start only so many.
const (
	// execBurst is how many programs a user may start at once after a quiet time.
	execBurst = 20
	// execEvery is the time after which the user may start one more.
	execEvery = 500 * time.Millisecond
	// maxExecRates is the number of users from which those of full bursts are dropped.
	maxExecRates = 64
)

// execRates bounds the rate of programs that each user starts.
type execRates struct {
	// full is the time at which a user's burst is full again. Nanoseconds.
	full map[string]int64
}

// take starts a program of a user, or says how long to wait before the next try. All calls
// use one clock.
func (x *execRates) take(by string, nowNs int64) (wait time.Duration) {
	if len(x.full) >= maxExecRates {
		for who, full := range x.full {
			if full <= nowNs {
				delete(x.full, who)
			}
		}
	}
	full := max(x.full[by], nowNs) + int64(execEvery)
	if over := full - nowNs - execBurst*int64(execEvery); over > 0 {
		return time.Duration(over)
	}
	if x.full == nil {
		x.full = map[string]int64{}
	}
	x.full[by] = full
	return 0
}

// execsTooFast is the refusal of a program that its user must start later.
func execsTooFast(machine, by string, wait time.Duration) error {
	wait = max(wait.Round(10*time.Millisecond), 10*time.Millisecond)
	return &execsFull{fmt.Sprintf("%s starts programs beside tasks of machine %s too fast: %d at once and then one each %v; try again in %v, or run several commands in one sh -c", by, machine, execBurst, execEvery, wait)}
}
