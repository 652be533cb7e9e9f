package sim

import (
	"strings"

	"borg/borgmaster/cell"
	"borg/proto/borgpb"
)

// The scheduler's bound on how many tasks of one job give way within its window.
const (
	churnMost     = 4
	churnWindowNs = 2 * second
)

// churnModel is how often tasks of each job gave way, by the events. A scheduler has seen
// what came since it began, and no other; what one before it had sent may still come.
type churnModel struct {
	times map[cell.UID][]int64
	// Cell time from which on there is but one scheduler to be judged.
	fromNs int64
}

// schedulerBegins: what it has not seen it cannot keep to.
func (t *truth) schedulerBegins() { t.churned.fromNs = t.cell.TimeNs() + 2*churnWindowNs }

// churns, S38: no more tasks of one job than may give way within the window to others than
// production. Production takes what it finds nowhere else, and that counts.
func (t *truth) churns(events []cell.Event) {
	m, now := &t.churned, t.cell.TimeNs()
	if !t.w.swarm.bands {
		return
	}
	if m.times == nil {
		m.times = map[cell.UID][]int64{}
	}
	for i := range events {
		ev := &events[i]
		if ev.Kind != borgpb.EventKind_EVENT_KIND_EVICT || ev.Cause != borgpb.StopCause_STOP_CAUSE_PREEMPTION || ev.ObjectKind != borgpb.ObjectKind_OBJECT_KIND_TASK {
			continue
		}
		times := m.times[ev.UID]
		for len(times) > 0 && times[0] <= now-churnWindowNs {
			times = times[1:]
		}
		times = append(times, now)
		m.times[ev.UID] = times
		if len(times) == churnMost {
			t.w.mark("job spared")
		}
		if by, ok := t.takerOf(ev.Reason); ok && now >= m.fromNs {
			t.spares(ev, by, len(times))
		}
	}
}

// spares judges one that gave way, as the last of so many tasks of its job.
func (t *truth) spares(ev *cell.Event, by int32, times int) {
	if by < 120 && times > churnMost {
		t.w.fail("S38: %s gives way at index %d to priority %d, and %d tasks of its job did within the %d ms before; %d may in all", ev.Object(), ev.Index, by, times-1, churnWindowNs/millisecond, churnMost)
	}
}

// takerOf is the priority of whom a task gave way to, in the words of the event.
func (t *truth) takerOf(reason string) (priority int32, ok bool) {
	name, ok := strings.CutPrefix(reason, "makes room for ")
	name, _, _ = strings.Cut(name, " (")
	id, err := cell.ParseTaskID(name)
	if !ok || err != nil {
		return 0, false
	}
	if j := t.cell.Job(id.Job); j != nil {
		return j.Priority(), true
	}
	if set := t.cell.AllocSet(id.Job); set != nil {
		return set.Priority(), true
	}
	return 0, false
}
