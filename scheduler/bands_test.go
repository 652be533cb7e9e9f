package scheduler_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"borg/borgmaster/cell"
	"borg/proto/borgpb"
	"borg/scheduler"
)

func collapse(bands ...borgpb.Band) *borgpb.Op {
	return asUser("admin", &borgpb.Op{Op: &borgpb.Op_SetPreemptionPolicy{SetPreemptionPolicy: &borgpb.SetPreemptionPolicy{Collapse: bands}}})
}

// evictions makes passes until nothing is decided any more, without that anybody who is
// told to stop has stopped yet, and returns who gave way, in order.
func (w *world) evictions(t *testing.T) (gone []cell.Event) {
	t.Helper()
	for range 1000 {
		w.catchUp()
		b := w.s.Pass(w.copy)
		if b.ID == 0 && !b.More {
			return gone
		}
		if b.ID == 0 {
			continue
		}
		e := w.entry(assign(b.Assign))
		w.log = append(w.log, entry{w.cell.Index() + 1, e})
		results, events := w.cell.Apply(w.cell.Index()+1, 1, e)
		if refused := w.s.Settle(w.copy, b.ID, results[len(results)-1]); refused.Count > 0 {
			t.Fatalf("refused: %v", refused.First)
		}
		for _, e := range events {
			if e.Kind == borgpb.EventKind_EVENT_KIND_EVICT && e.ObjectKind == borgpb.ObjectKind_OBJECT_KIND_TASK {
				gone = append(gone, e)
			}
		}
	}
	t.Fatal("it goes on and on")
	return nil
}

func (w *world) why(t *testing.T, name string) string {
	t.Helper()
	why, err := w.s.Explain(w.copy, cell.JobKey{User: "ann", Name: name}, 0)
	if err != nil {
		t.Fatal(err)
	}
	return why.Summary
}

// TestScenario15: production of 359 waits behind production of 120, with nobody
// evicted, and why says so; monitoring takes its place.
func TestScenario15(t *testing.T) {
	w := newWorld(t, scheduler.Config{Seed: 1})
	for i := range 4 {
		w.must(t, addMachine(fmt.Sprintf("m%d", i), machineSpec(1000, 8<<30)))
	}
	w.must(t, submitJob("ann", "p120", service(4, 120, 1000, 1<<30)))
	w.settleAll(t)
	w.must(t, submitJob("ann", "p359", service(1, 359, 1000, 1<<30)))
	if gone := w.evictions(t); len(gone) != 0 || w.cell.Job(cell.JobKey{User: "ann", Name: "p359"}).Task(0).Current() != nil {
		t.Fatalf("production gave way to production: %v", gone)
	}
	if why := w.why(t, "p359"); !strings.Contains(why, "4 tasks of lower priority run there and stay: within production nobody takes the place of others") {
		t.Errorf("why says: %s", why)
	}
	w.must(t, submitJob("ann", "watch", service(1, 360, 1000, 1<<30)))
	gone := w.evictions(t)
	if len(gone) != 1 || gone[0].Key.Name != "p120" || !strings.HasPrefix(gone[0].Reason, "makes room for ann/watch/0 (priority 360, monitoring): ") {
		t.Errorf("for monitoring gave way: %+v", gone)
	}
}

// TestScenario16: of free, batch 105, batch 115 and production, a quarter of the machine
// each, exactly the first two give way to production that needs half of it, in that
// order, are told why, and wait again.
func TestScenario16(t *testing.T) {
	w := newWorld(t, scheduler.Config{Seed: 1})
	w.must(t, addMachine("m1", machineSpec(1000, 8<<30)))
	for _, j := range []struct {
		name     string
		priority int32
	}{{"held", 200}, {"high", 115}, {"low", 105}, {"free", 50}} {
		w.must(t, submitJob("ann", j.name, service(1, j.priority, 250, 1<<30)))
		w.settleAll(t)
	}
	w.must(t, submitJob("ann", "prod", service(1, 200, 500, 1<<30)))
	gone := w.evictions(t)
	if len(gone) != 2 || gone[0].Key.Name != "free" || gone[1].Key.Name != "low" {
		t.Fatalf("gave way: %+v", gone)
	}
	const want = "makes room for ann/prod/0 (priority 200, production): nowhere is room without, and of 1 machine looked at m1 costs least: 2 tasks, of priority 105 at most"
	for _, e := range gone {
		if e.Reason != want {
			t.Errorf("%s is told %q, want %q", e.Object(), e.Reason, want)
		}
		if task := w.cell.Job(e.Key).Task(0); task.State() != borgpb.State_STATE_PENDING {
			t.Errorf("%s is %v", e.Object(), task.State())
		}
		if why := w.why(t, e.Key.Name); !strings.Contains(why, "it gave way to ann/prod/0") {
			t.Errorf("why %s says: %s", e.Object(), why)
		}
	}
	for _, name := range []string{"high", "held"} {
		if p := w.cell.Job(cell.JobKey{User: "ann", Name: name}).Task(0).Current(); p == nil || p.Attempt() != 1 {
			t.Errorf("%s was touched", name)
		}
	}
	// A scheduler that knows nothing of it has what they were told.
	s, err := scheduler.New(scheduler.Config{Seed: 2})
	if err != nil {
		t.Fatal(err)
	}
	w.s = s
	if why := w.why(t, "low"); !strings.Contains(why, "it gave way to ann/prod/0 (priority 200, production): nowhere") {
		t.Errorf("another scheduler says: %s", why)
	}
}

// TestScenario17: a hundred machines full of batch of 101 to 115, and one task of
// production comes. Where batch collapses nobody gives way but to it; where it does not,
// its victim takes a lower one's place, and so on: the chain is counted.
func TestScenario17(t *testing.T) {
	chains := map[bool][]int{}
	for _, collapses := range []bool{true, false} {
		for seed := uint64(1); seed <= 10; seed++ {
			w := newWorld(t, scheduler.Config{Seed: seed})
			if collapses {
				w.must(t, collapse(borgpb.Band_BAND_BATCH))
			}
			for i := range 100 {
				w.must(t, addMachine(fmt.Sprintf("m%02d", i), machineSpec(1000, 8<<30)))
			}
			// From high to low, or it would be no full cell where batch preempts batch.
			for p := int32(115); p >= 101; p-- {
				w.must(t, submitJob("ann", fmt.Sprintf("b%d", p), service(20, p, 333, 1<<28)))
				w.settleAll(t)
			}
			w.must(t, submitJob("ann", "prod", service(1, 200, 333, 1<<28)))
			var gone []cell.Event
			for {
				more := w.evictions(t)
				gone = append(gone, more...)
				before := w.cell.Index()
				w.endStopping()
				if w.cell.Index() == before && len(more) == 0 {
					break
				}
			}
			if p := w.cell.Job(cell.JobKey{User: "ann", Name: "prod"}).Task(0).Current(); p == nil {
				t.Fatal("production was not placed")
			}
			toProd := 0
			for _, e := range gone {
				if by, _ := cell.TakenBy(e.Reason); by == "ann/prod/0" {
					toProd++
				}
			}
			if toProd != 1 || collapses && len(gone) != 1 {
				t.Errorf("seed %d, batch collapses %v: %d gave way to production, %d in all", seed, collapses, toProd, len(gone))
			}
			chains[collapses] = append(chains[collapses], len(gone))
		}
	}
	t.Logf("evictions for one task of production, of ten seeds: where batch collapses %v, where it does not %v", chains[true], chains[false])
	if slices.Max(chains[false]) < 2 {
		t.Errorf("without collapse there is no chain: the test shows nothing")
	}
}

// mayTake says again who may take whose place.
func mayTake(w *world, by, victim *cell.Job) bool {
	p, v := by.Priority(), victim.Priority()
	band := cell.BandOf(p)
	switch {
	case by.Spec().GetPreempt() == borgpb.Preempt_PREEMPT_NEVER || v >= p:
		return false
	case band != cell.BandOf(v):
		return true
	case band == borgpb.Band_BAND_PRODUCTION:
		return false
	}
	return !slices.Contains(w.cell.Collapsed(), band) || by.Spec().GetPreempt() == borgpb.Preempt_PREEMPT_OWN && by.Key().User == victim.Key().User
}

// victimsOf reads whom an assignment names.
func victimsOf(a *borgpb.Assignment) (ids []cell.CopyID) {
	for _, v := range a.Victims {
		uid, _ := cell.ParseUID(v.JobUid)
		ids = append(ids, cell.CopyID{Job: uid, Index: v.Index, Attempt: v.Attempt})
	}
	return ids
}

// hurts tells whether giving way would be more than churn for some job.
func hurts(ids []cell.CopyID, before map[cell.UID]int, churn int) bool {
	if churn == 0 {
		return false
	}
	now := maps.Clone(before)
	for _, id := range ids {
		if now[id.Job]++; now[id.Job] > churn {
			return true
		}
	}
	return false
}

// bestVictims tries all sets of those who may be named on all machines: the least toll of
// those with which no job is hurt beyond churn, or, for production alone, of all.
func (w *world) bestVictims(by *cell.Job, index uint32, before map[cell.UID]int, churn int) (least toll, spares, ok bool) {
	p := plain{c: w.cell}
	for _, at := range p.spots(by) {
		ids := slices.DeleteFunc(mayGiveWay(at), func(id cell.CopyID) bool { return !mayTake(w, by, w.cell.JobByUID(id.Job)) })
		for set := 1; set < 1<<len(ids); set++ {
			var victims []cell.CopyID
			for i, id := range ids {
				if set&(1<<i) != 0 {
					victims = append(victims, id)
				}
			}
			over := hurts(victims, before, churn)
			if over && (spares || by.Priority() < 120) {
				continue
			}
			q := cell.Placement{Job: by, Index: index, Machine: at.m, AnyPorts: true, Victims: victims}
			if w.cell.Fit(&q, nil) != cell.FitOK {
				continue
			}
			if t := p.toll(victims); !ok || !over && !spares || slices.Compare(t[:], least[:]) < 0 {
				least, spares, ok = t, !over, true
			}
		}
	}
	return least, spares, ok
}

// TestBandRules fills random cells of up to twenty machines, with bands that collapse and
// jobs that may, may not, or may only take the place of their own; then it looks at one
// placement after another. Whom it names may be named, and costs no more than the best of
// all sets on all machines; who waits has no such set. With a bound on churn no job is
// hurt beyond it if there is a set without, and only production passes it.
func TestBandRules(t *testing.T) {
	first, last := moveSeeds(t, 150)
	seen := map[string]int{}
	for seed := first; seed <= last; seed++ {
		if problem := bandRules(t, seed, seen); problem != "" {
			t.Fatalf("%s\n\trepeat with: BORG_MOVE_SEED=%d go test ./scheduler -run %s", problem, seed, t.Name())
		}
	}
	t.Log(seen)
	for _, what := range []string{"victims", "victims for one who takes his own", "victims within a band", "churn kept", "churn passed by production", "waits"} {
		if seen[what] == 0 && first != last {
			t.Errorf("no cell showed: %s", what)
		}
	}
}

func bandRules(t *testing.T, seed uint64, seen map[string]int) (problem string) {
	r := rand.New(rand.NewPCG(seed, 9))
	cfg := scheduler.Config{Seed: seed, Enough: 1000, BatchCount: 1, Churn: r.IntN(3)}
	w := newWorld(t, cfg)
	var bands []borgpb.Band
	for _, b := range []borgpb.Band{borgpb.Band_BAND_FREE, borgpb.Band_BAND_BATCH, borgpb.Band_BAND_MID, borgpb.Band_BAND_MONITORING} {
		if r.IntN(2) == 0 {
			bands = append(bands, b)
		}
	}
	w.must(t, collapse(bands...))
	for i := range 1 + r.IntN([]int{5, 5, 5, 20}[r.IntN(4)]) {
		w.must(t, addMachine(fmt.Sprintf("m%02d", i), machineSpec(int64(2+r.IntN(3))*500, 8<<30)))
	}
	submit := func(name string) {
		priorities := []int32{0, 20, 50, 101, 105, 110, 117, 119, 150, 200, 380, 400}
		spec := service(uint32(1+r.IntN(6)), priorities[r.IntN(len(priorities))], int64(1+r.IntN(3))*250, int64(1+r.IntN(4))<<28)
		spec.Preempt = []borgpb.Preempt{0, 0, borgpb.Preempt_PREEMPT_OWN, borgpb.Preempt_PREEMPT_NEVER}[r.IntN(4)]
		w.must(t, submitJob([]string{"ann", "bob"}[r.IntN(2)], name, spec))
	}
	for i := range 8 {
		submit(fmt.Sprintf("early%d", i))
		w.settleAll(t)
		w.endStopping()
	}
	// From here on a scheduler that has seen nobody give way.
	w.catchUp()
	w.s, _ = scheduler.New(cfg)
	before := map[cell.UID]int{}
	for i := range 6 {
		submit(fmt.Sprintf("late%d", i))
		for {
			w.catchUp()
			b := w.s.Pass(w.copy)
			if b.ID == 0 && !b.More {
				break
			} else if b.ID == 0 {
				continue
			}
			if problem := w.judge(b.Assign.Assignments[0], before, cfg.Churn, seen); problem != "" {
				return problem
			}
			if refused := w.s.Settle(w.copy, b.ID, w.do(assign(b.Assign))); refused.Count > 0 {
				return fmt.Sprintf("refused: %v", refused.First)
			}
			w.endStopping()
		}
		for j := range w.cell.Jobs() {
			for index := range w.cell.PendingOf(j) {
				if best, _, ok := w.bestVictims(j, index, before, cfg.Churn); ok {
					return fmt.Sprintf("%s/%d of priority %d waits, and there are victims for it (%v, at most %d of a job); %v collapse", j.Key(), index, j.Priority(), best, cfg.Churn, bands)
				}
				seen["waits"]++
			}
		}
	}
	return ""
}

// judge looks at one placement before the cell has done it.
func (w *world) judge(a *borgpb.Assignment, before map[cell.UID]int, churn int, seen map[string]int) (problem string) {
	victims := victimsOf(a)
	if len(victims) == 0 {
		return ""
	}
	seen["victims"]++
	uid, _ := cell.ParseUID(a.Uid)
	by := w.cell.JobByUID(uid)
	got, over := plain{c: w.cell}.toll(victims), hurts(victims, before, churn)
	best, spares, ok := w.bestVictims(by, a.Index, before, churn)
	switch {
	case !ok:
		return fmt.Sprintf("%v names victims, and no set may be named", a)
	case over && (spares || by.Priority() < 120):
		return fmt.Sprintf("%v of priority %d hurts a job more than it may", a, by.Priority())
	case got != best:
		return fmt.Sprintf("%v costs %v, the best %v", a, got, best)
	case over:
		seen["churn passed by production"]++
	case churn > 0:
		seen["churn kept"]++
	}
	for _, id := range victims {
		j := w.cell.JobByUID(id.Job)
		if !mayTake(w, by, j) {
			return fmt.Sprintf("%s of priority %d takes the place of %s of priority %d; %v collapse", by.Key(), by.Priority(), j.Key(), j.Priority(), w.cell.Collapsed())
		}
		if band := cell.BandOf(by.Priority()); band == cell.BandOf(j.Priority()) {
			seen["victims within a band"]++
			if slices.Contains(w.cell.Collapsed(), band) {
				seen["victims for one who takes his own"]++
			}
		}
		before[id.Job]++
	}
	return ""
}
