package fauxmaster_test

import (
	"errors"
	"io"
	"math/rand/v2"
	"testing"
	"time"

	"borg/borgmaster/cell"
	"borg/fauxmaster"
	"borg/fauxmaster/trace"
	"borg/fauxmaster/workload"
	"borg/proto/borgpb"
)

// TestWorkloadOfLive reads a workload off the archive of a live cell: what is read of
// waiting and running tasks must be what the cell had at each moment, and what arrived
// must be able to happen again.
func TestWorkloadOfLive(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	past := openPast(t, record(t, seed, 1500).dir)
	w, err := workload.Recorded(past, fauxmaster.Moment{})
	if err != nil {
		t.Fatal(err)
	}
	every := max(w.LastNs/200, 1)
	r, err := workload.Run(t.Context(), w, workload.Config{UntilNs: w.LastNs, EveryNs: every, PaceNs: every})
	if err != nil {
		t.Fatal(err)
	}
	if err := w.Cell.Check(); err != nil {
		t.Fatal(err)
	}
	if len(r.Recorded) < 150 || r.Submitted == 0 || r.Placed == 0 {
		t.Fatalf("nothing to compare: %d samples, %d submitted, %d placed", len(r.Recorded), r.Submitted, r.Placed)
	}
	tape, err := past.At(past.First())
	if err != nil {
		t.Fatal(err)
	}
	defer tape.Close()
	beganNs := tape.Cell.TimeNs()
	for _, c := range r.Recorded {
		for {
			e, err := tape.Peek()
			if errors.Is(err, io.EOF) || err == nil && e.Entry.GetCellTimeNs() > beganNs+c.AtNs {
				break
			}
			if err != nil {
				t.Fatal(err)
			}
			if _, err := tape.Step(); err != nil {
				t.Fatal(err)
			}
		}
		if pending, running := tasksOf(tape.Cell); pending != c.Pending || running != c.Running {
			t.Fatalf("at %v (index %d): %v wait and %v run, and %v and %v were read", time.Duration(c.AtNs), tape.Cell.Index(), pending, running, c.Pending, c.Running)
		}
	}
}

// tasksOf counts by band.
func tasksOf(c *cell.Cell) (pending, running workload.Bands) {
	for j := range c.Jobs() {
		for _, task := range j.Tasks() {
			switch task.State() {
			case borgpb.State_STATE_PENDING:
				pending[trace.TierOf(j.Priority())]++
			case borgpb.State_STATE_RUNNING:
				running[trace.TierOf(j.Priority())]++
			}
		}
	}
	return pending, running
}
