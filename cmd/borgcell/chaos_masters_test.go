package main

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/time/rate"

	"borg/proto/borgpb"
)

const (
	submitsPerSecond = 50
	// So many submits may wait for an answer at once; an election holds up
	// about submitsPerSecond of them a second.
	submitsWaiting = 200
)

// ack is a submit that the cell acknowledged.
type ack struct {
	name, uid    string
	began, ended time.Time
}

// load submits jobs at a rate until ctx is done.
type load struct {
	mu     sync.Mutex
	acks   []ack   // guarded by mu
	errs   []error // guarded by mu
	unsure []string
}

// run returns when every submit has an answer.
func (l *load) run(ctx context.Context, c *Cell) {
	limiter := rate.NewLimiter(submitsPerSecond, 1)
	waiting := make(chan struct{}, submitsWaiting)
	var submits sync.WaitGroup
	for n := 0; limiter.Wait(ctx) == nil; n++ {
		waiting <- struct{}{}
		submits.Go(func() {
			defer func() { <-waiting }()
			l.one(c, fmt.Sprintf("load-%d", n))
		})
	}
	submits.Wait()
}

// one submits one job. Its own bound is the client's, so that an end of the
// load leaves no submit in the dark.
func (l *load) one(c *Cell, name string) {
	began := time.Now()
	result, err := c.submit(context.Background(), name, unplaceable())
	l.mu.Lock()
	defer l.mu.Unlock()
	if err != nil {
		l.unsure = append(l.unsure, name)
		l.errs = append(l.errs, fmt.Errorf("submit %s: %w", name, err))
		return
	}
	l.acks = append(l.acks, ack{name: name, uid: result.Uid, began: began, ended: time.Now()})
}

func (l *load) acknowledged() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.acks)
}

// firstAckAfter is how long after a moment the first submit that began later
// was acknowledged.
func (l *load) firstAckAfter(moment time.Time) time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	first := time.Duration(-1)
	for _, a := range l.acks {
		if took := a.ended.Sub(moment); a.began.After(moment) && (first < 0 || took < first) {
			first = took
		}
	}
	return first
}

// No acknowledged submit is lost or done twice, and no task restarts, however
// often the elected master is killed.
func TestElectedMasterIsKilled(t *testing.T) {
	c := chaosCell(t, 5, 2)
	before := c.run(t, "web", sleepers(size(12, 100)))
	loadCtx, endLoad := context.WithCancel(t.Context())
	defer endLoad()
	var l load
	var loader sync.WaitGroup
	loader.Go(func() { l.run(loadCtx, c) })
	defer loader.Wait()
	defer endLoad()

	var kills []time.Time
	for range size(3, 20) {
		elected, err := c.electedNow(shortly(t))
		if err != nil {
			t.Fatal(err)
		}
		kills = append(kills, time.Now())
		if err := c.Kill(c.masterName(elected)); err != nil {
			t.Fatal(err)
		}
		killed := kills[len(kills)-1]
		waitFor(t, "a submit is acknowledged after the kill", func() string {
			if l.firstAckAfter(killed) < 0 {
				return "none yet"
			}
			return ""
		})
		if err := c.StartMaster(t.Context(), elected); err != nil {
			t.Fatal(err)
		}
		if err := c.caughtUp(shortly(t), elected); err != nil {
			t.Fatal(err)
		}
		// The next kill meets a cell that is at work again.
		goal := l.acknowledged() + size(10, 100)
		waitFor(t, "the load goes on", func() string {
			if n := l.acknowledged(); n < goal {
				return fmt.Sprintf("%d of %d submits", n, goal)
			}
			return ""
		})
	}
	endLoad()
	loader.Wait()
	c.stillSame(t, before, "web")
	c.checkAcks(t, &l)
	var took []time.Duration
	for _, k := range kills {
		took = append(took, l.firstAckAfter(k).Round(time.Millisecond))
	}
	slices.Sort(took)
	t.Logf("%d kills, %d submits acknowledged, %d errors; from the kill to the next acknowledged write: median %v, most %v, all %v",
		len(kills), len(l.acks), len(l.errs), took[len(took)/2], took[len(took)-1], took)
}

// checkAcks compares what was acknowledged with what the cell holds.
func (c *Cell) checkAcks(t *testing.T, l *load) {
	t.Helper()
	jobs := c.allJobs(t)
	for _, a := range l.acks {
		if j := jobs[a.name]; j == nil {
			t.Errorf("job %s was acknowledged and is lost", a.name)
		} else if j.Meta.Uid != a.uid {
			t.Errorf("job %s was acknowledged as %s and is %s: it was submitted twice", a.name, a.uid, j.Meta.Uid)
		}
		delete(jobs, a.name)
	}
	for _, name := range l.unsure {
		delete(jobs, name)
	}
	delete(jobs, "web")
	for name := range jobs {
		t.Errorf("job %s is in the cell and nobody submitted it", name)
	}
	for _, err := range l.errs {
		if alreadyExists(err) {
			t.Errorf("%v: the first try and a retry were both done", err)
		} else {
			t.Logf("not acknowledged: %v", err)
		}
	}
}

// electedNow waits until somebody is elected.
func (c *Cell) electedNow(ctx context.Context) (elected int, err error) {
	err = until(ctx, "a master is elected", func(ctx context.Context) (err error) {
		elected, err = c.Elected(ctx)
		return err
	})
	return elected, err
}

// Tasks outlive all masters together, and one of them its shim.
func TestAllMastersAreKilled(t *testing.T) {
	c := chaosCell(t, 5, 2)
	before := c.run(t, "web", sleepers(size(12, 100)))
	others := size(50, 1000)
	for n := range others {
		if _, err := c.submit(shortly(t), fmt.Sprintf("other-%d", n), unplaceable()); err != nil {
			t.Fatal(err)
		}
	}
	tasks, err := c.tasks(t.Context(), "web")
	if err != nil {
		t.Fatal(err)
	}
	for i := 1; i <= c.Masters; i++ {
		if err := c.Kill(c.masterName(i)); err != nil {
			t.Fatal(err)
		}
	}
	if err := c.shimOf(t, tasks[0]).signal(syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	outage := time.After(time.Duration(size(2, 60)) * time.Second)
	for over := false; !over; {
		select {
		case <-outage:
			over = true
		case <-time.After(100 * time.Millisecond):
		}
		for name, was := range before {
			if ticks, alive, err := readStat(int(was.pid)); err != nil || !alive || ticks != was.startTicks {
				t.Fatalf("task %s (process %d) is gone without masters", name, was.pid)
			}
		}
	}
	if err := c.StartMasters(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := until(shortly(t), "the cell works again", c.ready); err != nil {
		t.Fatal(err)
	}
	if jobs := c.allJobs(t); len(jobs) != others+1 {
		t.Errorf("%d jobs after the outage, want %d", len(jobs), others+1)
	}
	// What is new is placed: the scheduler and the shards go on from where they
	// were.
	c.run(t, "later", sleepers(2))
	c.stillSame(t, before, "web")
	job, err := c.jobIs(shortly(t), "web", "all tasks run", started)
	if err != nil {
		t.Fatal(err)
	}
	if got := job.Status.State; got != borgpb.State_STATE_RUNNING {
		t.Errorf("the job is %v", got)
	}
}
