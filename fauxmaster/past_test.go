package fauxmaster_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"borg/borgmaster/cell"
	"borg/checkpoint"
	"borg/fauxmaster"
	"borg/proto/borgrpc"
	"borg/scheduler"
)

// seeds of the recorded runs; each fails by itself, with its number.
var seeds = []uint64{1, 2, 3, 4, 5, 6}

func openPast(t *testing.T, dir string) *fauxmaster.Past {
	t.Helper()
	p, err := fauxmaster.OpenPast(dir)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// TestAnyMoment goes to random indexes of recorded runs, and to the times at which
// their entries were made: the cell there is the live one, digest for digest.
func TestAnyMoment(t *testing.T) {
	for _, seed := range seeds {
		t.Run(fmt.Sprint("seed=", seed), func(t *testing.T) {
			r := record(t, seed, 1500)
			p := openPast(t, r.dir)
			first, last := p.First().Index, r.cell.Index()
			pick := rand.New(rand.NewPCG(seed, 2))
			for range 20 {
				index := first + pick.Uint64N(last-first+1)
				wall := time.Unix(0, epochWallNs+int64(index)*second/10)
				for _, m := range []fauxmaster.Moment{{Index: index}, {Epoch: 1, Index: index}, {Wall: wall}, {Wall: wall.Add(99 * time.Millisecond)}} {
					tape, err := p.At(m)
					if err != nil {
						t.Fatal(err)
					}
					if got := tape.Cell.Digest(); tape.Cell.Index() != index || got != r.digests[index] {
						t.Errorf("at %v the cell is at index %d with digest %x; it was %x at index %d", m, tape.Cell.Index(), got, r.digests[index], index)
					}
					if err := tape.Picture().Cell.Check(); err != nil {
						t.Errorf("at %v: %v", m, err)
					}
					tape.Close()
				}
			}
			if tape, err := p.At(fauxmaster.Moment{}); err != nil || tape.Cell.Index() != last {
				t.Errorf("the last moment: %v", err)
			}
			var reach *fauxmaster.OutOfReachError
			for _, m := range []fauxmaster.Moment{{Index: last + 1}, {Index: first - 1}, {Epoch: 7, Index: last}, {Wall: time.Unix(1, 0)}} {
				if _, err := p.At(m); !errors.As(err, &reach) {
					t.Errorf("At(%v) = %v, want an OutOfReachError", m, err)
				}
			}
		})
	}
}

// TestReplay applies whole runs again: every digest that the live master logged or
// put into a checkpoint is that of the replay, and the decisions of the scheduler
// come out bit for bit.
func TestReplay(t *testing.T) {
	for _, seed := range seeds {
		t.Run(fmt.Sprint("seed=", seed), func(t *testing.T) {
			r := record(t, seed, 4500)
			report, err := openPast(t, r.dir).Verify(fauxmaster.Replay{Decide: &scheduler.Config{}})
			if err != nil {
				t.Fatal(err)
			}
			made, differ := report.Compared()
			if made < 8 || differ > 0 || len(report.Gaps) > 0 {
				t.Errorf("%d digests compared, %d differ, gaps %v: %+v", made, differ, report.Gaps, report.Checks)
			}
			d := report.Decisions
			if d.Differ > 0 || d.Same < 50 || d.Skipped > d.Same/10 {
				t.Errorf("decisions: %+v", d)
			}
			// Another configuration decided otherwise, and says so.
			report, err = openPast(t, r.dir).Verify(fauxmaster.Replay{Decide: &scheduler.Config{Policy: 1}})
			if d := report.Decisions; err != nil || d.Same+d.Differ > 0 || d.Skipped == 0 || d.Why == "" {
				t.Errorf("decisions by another configuration: %+v, %v", d, err)
			}
		})
	}
}

// TestExplainAsThen asks of moments in the past what the live scheduler was asked
// then. What a place was chosen for is told when the decision is found.
func TestExplainAsThen(t *testing.T) {
	placed, waiting, said := 0, 0, 0
	for _, seed := range seeds[:3] {
		r := record(t, seed, 4500)
		p := openPast(t, r.dir)
		said += len(r.said)
		n, m := explainAgain(t, p, r.said)
		placed, waiting = placed+n, waiting+m
		var none *fauxmaster.NoTaskError
		if _, _, err := p.Explain(cell.TaskID{Job: cell.JobKey{User: "alice", Name: "never"}}, fauxmaster.Moment{}, scheduler.Config{}); !errors.As(err, &none) {
			t.Errorf("a task that never was: %v", err)
		}
	}
	if placed < 20 || waiting < 60 {
		t.Errorf("%d placed and %d waiting tasks were compared, of %d", placed, waiting, said)
	}
}

// explainAgain compares what is said now with what was said then.
func explainAgain(t *testing.T, p *fauxmaster.Past, said []explained) (placed, waiting int) {
	t.Helper()
	for _, then := range said {
		if then.resp.Index < p.First().Index {
			continue
		}
		got, at, err := p.Explain(then.id, fauxmaster.Moment{Index: then.resp.Index}, scheduler.Config{})
		if err != nil {
			t.Fatal(err)
		}
		if at.Header.Index != then.resp.Index {
			t.Fatalf("explained at index %d, want %d", at.Header.Index, then.resp.Index)
		}
		switch {
		case then.resp.Placement.GetIndex() > 0 && got.Placement.GetIndex() == 0:
			// The decision was made with something in flight of which nothing is known.
			continue
		case then.resp.Placement.GetIndex() > 0:
			placed++
		case then.resp.Placement == nil:
			waiting++
		}
		// How many were looked at depends on what the search remembered from before.
		for _, why := range []*borgrpc.WhyResponse{got, then.resp} {
			for _, fight := range []*borgrpc.WhyFight{why.Fight, why.Placement.GetFight()} {
				if fight != nil {
					fight.Looked = 0
				}
			}
			if why.Placement != nil {
				why.Placement.Looked = 0
			}
		}
		if !proto.Equal(got, then.resp) {
			t.Errorf("of %v at index %d is said\n%v\nand was said\n%v", then.id, then.resp.Index, got, then.resp)
		}
	}
	return placed, waiting
}

// TestReplayFinds what does not agree: a checkpoint that is not what the log leads
// to, and a part of the log that is missing.
func TestReplayFinds(t *testing.T) {
	t.Run("another checkpoint", func(t *testing.T) {
		r := record(t, 5, 1000)
		other := record(t, 6, 1000)
		p := openPast(t, r.dir)
		// The cell of another run at the index of a checkpoint of this one.
		var at uint64
		for _, k := range kept(t, r.dir) {
			if k.Header.Index > p.First().Index && other.digests[k.Header.Index] != (cell.Digest{}) {
				at = k.Header.Index
			}
		}
		tape, err := openPast(t, other.dir).At(fauxmaster.Moment{Index: at})
		if err != nil {
			t.Fatal(err)
		}
		defer tape.Close()
		writeCheckpoint(t, filepath.Join(r.dir, fmt.Sprintf("checkpoint-1-%012d.ckpt", at)), "past", tape.Cell)
		report, err := openPast(t, r.dir).Verify(fauxmaster.Replay{})
		if _, differ := report.Compared(); err != nil || differ != 1 {
			t.Errorf("%d differ, want 1: %v %+v", differ, err, report.Checks)
		}
	})
	t.Run("no log at all", func(t *testing.T) {
		r := record(t, 5, 1000)
		logs, err := filepath.Glob(filepath.Join(r.dir, "log-*"))
		if err != nil || len(logs) == 0 {
			t.Fatal(logs, err)
		}
		for _, name := range logs {
			if err := os.Remove(name); err != nil {
				t.Fatal(err)
			}
		}
		report, err := openPast(t, r.dir).Verify(fauxmaster.Replay{})
		if made, _ := report.Compared(); err != nil || made != 0 || report.Entries != 0 {
			t.Errorf("%d compared, %d entries, %v", made, report.Entries, err)
		}
	})
}

func kept(t *testing.T, dir string) []checkpoint.Kept {
	t.Helper()
	a, err := checkpoint.OpenArchive(nil, dir)
	if err != nil {
		t.Fatal(err)
	}
	return a.Checkpoints()
}

// TestConditions holds what until may be told.
func TestConditions(t *testing.T) {
	r := record(t, 7, 600)
	p := openPast(t, r.dir)
	tape, err := p.At(p.First())
	if err != nil {
		t.Fatal(err)
	}
	defer tape.Close()
	running, err := fauxmaster.ParseCondition([]string{"job=alice/j1", "state=running"})
	if err != nil {
		t.Fatal(err)
	}
	if running.Holds(tape.Cell) {
		t.Errorf("%v holds before there is such a job", running)
	}
	for !running.Holds(tape.Cell) {
		s, err := tape.Step()
		if err != nil {
			t.Fatalf("it never comes to %v: %v", running, err)
		}
		if len(s.Lines()) == 0 {
			t.Errorf("nothing is told of entry %d", s.Index)
		}
	}
	if j := tape.Cell.Job(cell.JobKey{User: "alice", Name: "j1"}); tape.Cell.Digest() != r.digests[tape.Cell.Index()] || j.State().String() != "STATE_RUNNING" {
		t.Errorf("at index %d job j1 is %v", tape.Cell.Index(), j.State())
	}
	for _, bad := range [][]string{{"task=alice/web"}, {"task=alice/web/1", "state=asleep"}, {"job=alice/web", "state=running", "machine=m1"}, {"state=dead"}, {"never"}, {"machine=m1", "state="}} {
		if c, err := fauxmaster.ParseCondition(bad); err == nil {
			t.Errorf("ParseCondition(%q) = %v, want an error", bad, c)
		}
	}
}
