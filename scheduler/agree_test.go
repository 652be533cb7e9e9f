package scheduler_test

import (
	"testing"

	"pgregory.net/rapid"

	"borg/scheduler"
)

// TestAgreement walks through random states of small cells, with promises under
// way, and wants the scheduler's arrays and the cell's own test to say the same of
// every place for all that waits. A million states:
//
//	go test ./scheduler -run TestAgreement -v -rapid.checks=10000
func TestAgreement(t *testing.T) {
	states, answers, fits := 0, 0, 0
	rapid.Check(t, func(rt *rapid.T) {
		w := randomWorld(rt, t, scheduler.Config{
			Seed: rapid.Uint64().Draw(rt, "seed"), Enough: rapid.SampledFrom([]int{1, 3, 1 << 20}).Draw(rt, "enough"), BatchCount: 3,
		})
		var sent []scheduler.Batch
		for step := range 100 {
			w.catchUp()
			n, yes, err := scheduler.CompareFeasibility(w.s, w.copy)
			if err != nil {
				rt.Fatalf("step %d: %v", step, err)
			}
			states, answers, fits = states+1, answers+n, fits+yes
			switch {
			case step%4 != 3:
				randomChange(rt, w, step)
			case len(sent) > 0 && rapid.Bool().Draw(rt, "answer"):
				w.s.Settle(w.copy, sent[0].ID, w.do(assign(sent[0].Assign)))
				sent = sent[1:]
			default:
				if b := w.s.Pass(w.copy); len(b.Assign.GetAssignments()) > 0 {
					sent = append(sent, b)
				}
			}
		}
	})
	t.Logf("%d states, %d answers compared, %d of them yes", states, answers, fits)
	if states == 0 || fits == 0 || fits == answers {
		t.Errorf("of %d answers in %d states %d are yes", answers, states, fits)
	}
}
