package borgmaster

import (
	"context"
	"time"

	"borg/borgmaster/late"
)

// What a master does again and again, first what keeps the cell alive: the log has its own
// goroutines and the schedule of its ticks; the duties and the link shard's reports come
// each 100 ms, whatever they take. Then what starts tasks; then what only counts. Polls of
// machines at rest have their own pace, in linkshard.
const (
	// Slots of cron jobs that are due: they start tasks.
	cronBudget late.Budget = 50
	// What tasks use, and what they may reserve for it.
	reclaimBudget late.Budget = 20
	// What tasks used, for people.
	usageBudget late.Budget = 20
	// The longest wait between two rounds: one that hung says nothing of the next.
	longestRest = 10 * time.Second
)

// rounds calls round each period, or less often as it would take more than its budget of
// the time, until ctx ends.
func rounds(ctx context.Context, period time.Duration, budget late.Budget, round func()) {
	timer := time.NewTimer(period)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		}
		began := time.Now()
		round()
		wait := time.Duration(budget.WaitNs(int64(period), int64(time.Since(began))))
		timer.Reset(min(wait, max(period, longestRest)))
	}
}
