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
	// checkBurst is how many commands of health checks the tasks of a user may start at once
	// after a quiet time. Later ones wait until checkEvery has passed for each.
	checkBurst = 20
	checkEvery = 200 * time.Millisecond
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
	full, wait := x.next(by, nowNs, execBurst, execEvery)
	if wait == 0 {
		x.full[by] = full
	}
	return wait
}

// reserve starts the command of a health check of a user, and says how long it must wait.
func (x *execRates) reserve(by string, nowNs int64) (wait time.Duration) {
	full, wait := x.next(by, nowNs, checkBurst, checkEvery)
	x.full[by] = full
	return wait
}

// next returns when the burst of a user is full again if one more program starts, and how
// long that program must wait.
func (x *execRates) next(by string, nowNs int64, burst int64, every time.Duration) (full int64, wait time.Duration) {
	if x.full == nil {
		x.full = map[string]int64{}
	}
	if len(x.full) >= maxExecRates {
		for who, full := range x.full {
			if full <= nowNs {
				delete(x.full, who)
			}
		}
	}
	full = max(x.full[by], nowNs) + int64(every)
	return full, time.Duration(max(full-nowNs-burst*int64(every), 0))
}

// execsTooFast is the refusal of a program that its user must start later.
func execsTooFast(machine, by string, wait time.Duration) error {
	wait = max(wait.Round(10*time.Millisecond), 10*time.Millisecond)
	return &execsFull{fmt.Sprintf("%s starts programs beside tasks of machine %s too fast: %d at once and then one each %v; try again in %v, or run several commands in one sh -c", by, machine, execBurst, execEvery, wait)}
}
