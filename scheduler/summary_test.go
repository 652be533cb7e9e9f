package scheduler

import (
	"strings"
	"testing"

	"borg/borgmaster/cell"
	"borg/proto/borgpb"
)

// TestTheSentenceNamesEveryTest: a machine that any test refuses is counted in the
// sentence about a task that waits.
func TestTheSentenceNamesEveryTest(t *testing.T) {
	anything := &want{line: new(line), need: &cell.Need{Task: new(borgpb.TaskSpec)}, limits: new(cell.Limits)}
	for fit := cell.FitOK + 1; fit < cell.NumFits; fit++ {
		e := &explanation{want: anything}
		e.counts[fit] = 3
		if got, want := e.refusedBy(), "3 "+fit.String(); got != want || strings.TrimSpace(fit.String()) == "" {
			t.Errorf("three machines refused by test %d: %q, want %q", fit, got, want)
		}
	}
}
