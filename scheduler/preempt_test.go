package scheduler_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"borg/borgmaster/cell"
	"borg/proto/borgpb"
	"borg/scheduler"
)

// TestNoVictimIsNeedless lets production take the place of many small tasks, more
// than all sets of are tried: every victim is needed, and none is of a higher band
// than it takes.
func TestNoVictimIsNeedless(t *testing.T) {
	first, last := moveSeeds(t, 300)
	named := 0
	for seed := first; seed <= last; seed++ {
		r := rand.New(rand.NewPCG(seed, 3))
		w := newWorld(t, scheduler.Config{Seed: seed})
		w.must(t, addMachine("m1", machineSpec(20_000, 40<<30)))
		for i := range 8 {
			spec := service(uint32(2+r.IntN(6)), []int32{0, 25, 50, 99, 100, 110, 119, 200}[i], int64(1+r.IntN(6))*200, int64(1+r.IntN(8))<<28)
			w.must(t, submitJob("ann", fmt.Sprintf("j%d", i), spec))
		}
		w.settleAll(t)
		w.must(t, submitJob("bob", "prod", service(1, 240, int64(2+r.IntN(16))*1000, int64(1+r.IntN(30))<<30)))
		w.catchUp()
		b := w.s.Pass(w.copy)
		for _, a := range b.Assign.GetAssignments() {
			if len(a.Victims) == 0 {
				continue
			}
			named += len(a.Victims)
			if problem := needless(w.cell, a); problem != "" {
				t.Fatalf("%s\n\trepeat with: BORG_MOVE_SEED=%d go test ./scheduler -run %s", problem, seed, t.Name())
			}
		}
	}
	if named < 300 && first != last {
		t.Errorf("%d victims were named in all", named)
	}
	t.Logf("%d victims", named)
}

// needless names a victim of an assignment that could stay.
func needless(c *cell.Cell, a *borgpb.Assignment) string {
	uid, _ := cell.ParseUID(a.Uid)
	m := c.Machine(a.Machine)
	fits := func(ids []cell.CopyID) bool {
		return c.Fit(&cell.Placement{Job: c.JobByUID(uid), Index: a.Index, Machine: m, AnyPorts: true, Victims: ids}, nil) == cell.FitOK
	}
	var ids []cell.CopyID
	highest := 0
	for _, v := range a.Victims {
		job, _ := cell.ParseUID(v.JobUid)
		id := cell.CopyID{Job: job, Index: v.Index, Attempt: v.Attempt}
		ids = append(ids, id)
		highest = max(highest, bandOf(int(m.Copy(id).Priority())))
	}
	if !fits(ids) {
		return fmt.Sprintf("%v does not fit", a)
	}
	for i, id := range ids {
		if fits(slices.Delete(slices.Clone(ids), i, i+1)) {
			return fmt.Sprintf("%v: %v is needless", a, id)
		}
	}
	var lower []cell.CopyID
	for p := range m.Copies() {
		if bandOf(int(p.Priority())) < highest {
			lower = append(lower, p.ID())
		}
	}
	if fits(lower) {
		return fmt.Sprintf("%v: those of lower bands would do", a)
	}
	return ""
}

// TestNoCascade lets production come to full cells. Whoever gives way does so to one
// of higher priority and never to production if it is production itself, and all comes
// to rest. That somebody gives way to production again, after it was placed anew, is
// rare; of the first 300 seeds only 63 shows it. On m4 the victims of a first
// task of production leave more than that needs. A second one finds no place: what they
// leave is nobody's until they have stopped, and without it all that could give way on
// m4 is not enough. Meanwhile a victim of production elsewhere, of a higher band than
// what runs on m4, takes the place of some of that. When all have stopped, what is over
// and what is on m4 now, the newcomer among it, are enough for the second one. To keep
// the newcomer away, nothing below production could be placed where anybody stops as
// long as production waits, though it has room there and though the one that waits may
// never come: whatever has room is placed.
func TestNoCascade(t *testing.T) {
	first, last := moveSeeds(t, 300)
	evicted, again := 0, 0
	for seed := first; seed <= last; seed++ {
		r := rand.New(rand.NewPCG(seed, 4))
		w := newWorld(t, scheduler.Config{Seed: seed, Enough: []int{0, 1, 4}[r.IntN(3)]})
		machines := 2 + r.IntN(8)
		for i := range machines {
			w.must(t, addMachine(fmt.Sprintf("m%d", i), machineSpec(int64(4+r.IntN(9))*1000, int64(8+r.IntN(25))<<30)))
		}
		for i := range 2 * machines {
			spec := service(uint32(1+r.IntN(6)), []int32{0, 25, 50, 105, 110, 119}[r.IntN(6)], int64(1+r.IntN(8))*250, int64(1+r.IntN(8))<<29)
			if r.IntN(2) == 0 {
				spec.Kind = borgpb.JobKind_JOB_KIND_BATCH
			}
			w.must(t, submitJob("ann", fmt.Sprintf("j%d", i), spec))
		}
		w.settleAll(t)
		for i := range 1 + r.IntN(4) {
			w.must(t, submitJob("bob", fmt.Sprintf("prod%d", i), service(uint32(1+r.IntN(4)), []int32{120, 200, 359}[r.IntN(3)], int64(1+r.IntN(20))*250, int64(1+r.IntN(16))<<29)))
		}
		fights, problem := w.fights()
		toProduction := make(map[cell.TaskID]bool)
		for _, f := range fights {
			victim, by := w.cell.Job(f.victim.Job).Priority(), w.cell.Job(f.by.Job).Priority()
			switch {
			case victim >= 120 || victim >= by:
				problem = fmt.Sprintf("%v of priority %d gave way to %v of priority %d", f.victim, victim, f.by, by)
			case by >= 120 && toProduction[f.victim]:
				again++
			}
			toProduction[f.victim] = toProduction[f.victim] || by >= 120
		}
		evicted += len(fights)
		if problem != "" {
			t.Fatalf("%s\n\trepeat with: BORG_MOVE_SEED=%d go test ./scheduler -run %s", problem, seed, t.Name())
		}
	}
	if first != last && (evicted < 1000 || 500*again > evicted) {
		t.Errorf("%d gave way, %d of them to production for a second time; want at least 1000, and at most one in 500", evicted, again)
	}
	t.Logf("%d gave way, %d of them to production for a second time", evicted, again)
}

// fight is that one running task gave way to another.
type fight struct{ victim, by cell.TaskID }

// fights makes passes until nothing is decided and nothing stops any more, and says
// who gave way to whom, in order.
func (w *world) fights() (all []fight, problem string) {
	for range 1000 {
		w.catchUp()
		b := w.s.Pass(w.copy)
		for _, a := range b.Assign.GetAssignments() {
			uid, _ := cell.ParseUID(a.Uid)
			by := cell.TaskID{Job: w.cell.JobByUID(uid).Key(), Index: a.Index}
			for _, v := range a.Victims {
				uid, _ := cell.ParseUID(v.JobUid)
				j := w.cell.JobByUID(uid)
				if p := j.Task(v.Index).Current(); p != nil && p.Attempt() == v.Attempt {
					all = append(all, fight{cell.TaskID{Job: j.Key(), Index: v.Index}, by})
				}
			}
		}
		if b.ID != 0 {
			if refused := w.s.Settle(w.copy, b.ID, w.do(assign(b.Assign))); refused.Count > 0 {
				return all, fmt.Sprintf("refused: %v", refused.First)
			}
			continue
		}
		before := w.cell.Index()
		if w.endStopping(); w.cell.Index() == before && !b.More {
			return all, ""
		}
	}
	return all, "it goes on and on"
}
