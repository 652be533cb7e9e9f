package sim

import (
	"strings"
	"testing"

	"borg/history"
)

// TestHistory: a run has a history of jobs, and the run is judged by it.
func TestHistory(t *testing.T) {
	r := Run(Config{Seed: 4, DurationNs: 4 * second})
	if h := r.History; r.Violation != nil || h.Keys < 2 || h.Ops < 50 || h.Illegal+h.Unknown != 0 {
		t.Errorf("%v, history %+v", r.Violation, r.History)
	}
	w := &World{marks: map[string]int{}}
	w.truth = newTruth(w)
	w.truth.done["late"] = doneAt{index: 9, times: 1}
	w.story.refused = map[int]string{1: "late"}
	w.story.records = []history.Record{
		{Key: "u/a", Kind: history.Submit, CallNs: 1, ReturnNs: 2, Tasks: 1, Answer: history.OK, UID: "1", Version: 1},
		{Key: "u/a", Kind: history.Resize, CallNs: 3, ReturnNs: 4, Tasks: 5, Answer: history.Refused},
		{Key: "u/a", Kind: history.Read, CallNs: 5, ReturnNs: 6, Tasks: 5, Answer: history.OK, UID: "1", Version: 2},
	}
	if w.judge(); w.failure != nil {
		t.Errorf("what was refused and done by a later try: %v", w.failure)
	}
	delete(w.truth.done, "late")
	if w.judge(); w.failure == nil || !strings.Contains(w.failure.Error(), "S5: u/a: no order explains") {
		t.Errorf("a resize that was only refused shows in a read, and the run says %v", w.failure)
	}
}
