package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	"borg/borgmaster/cell"
	"borg/fauxmaster/fleet"
	"borg/proto/borgpb"
	"borg/proto/borgrpc"
)

// Scenarios about who gives way to whom.

// cores asks for a part of a machine, with a priority.
func cores(tasks int, priority int32, cpuMilli int64) *borgpb.JobSpec {
	spec := sized(tasks, 1<<20)
	spec.Priority, spec.Task.Resources.CpuMilli = priority, cpuMilli
	return spec
}

// evictions are the tasks that the cell has told to go since an index, in order.
func (c *Cell) evictions(t *testing.T, since uint64) (gone []*borgpb.Event) {
	t.Helper()
	err := c.client.Events(shortly(t), &borgrpc.EventsRequest{FromIndex: since + 1}, func(resp *borgrpc.EventsResponse) error {
		for _, e := range resp.Events {
			if e.Kind == borgpb.EventKind_EVENT_KIND_EVICT && e.ObjectKind == borgpb.ObjectKind_OBJECT_KIND_TASK {
				gone = append(gone, e)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return gone
}

// now is the index that the cell is at.
func (c *Cell) now(t *testing.T) uint64 {
	t.Helper()
	state, err := c.client.GetCell(shortly(t))
	if err != nil {
		t.Fatal(err)
	}
	return state.AppliedIndex
}

// All machines are full of production of 120. Production of 359 waits, nobody is evicted
// for it, and why says so; monitoring of 360 takes the place of one.
func productionStays(t *testing.T, s *scenarios) {
	machines := s.machines(t)
	var least int64
	for i, name := range s.names(t) {
		capacity := machines[name].Spec.Capacity.CpuMilli
		if i == 0 || capacity < least {
			least = capacity
		}
		fills := cores(1, 120, capacity)
		fills.Task.Constraints = []*borgpb.Constraint{{Key: cell.NameAttribute, Relation: borgpb.Relation_RELATION_EQUAL, Value: name}}
		if r := s.asks(t, s.ann, "ann", "fills-"+name, fills); r != nil {
			t.Fatal(r)
		}
	}
	for name := range machines {
		s.until(t, "ann", "fills-"+name, "all machines are full", allStarted)
	}
	before := s.now(t)
	if r := s.asks(t, s.bob, "bob", "p359", cores(1, 359, least)); r != nil {
		t.Fatal(r)
	}
	s.why(t, "bob", "p359", 0, "within production nobody takes the place of others")
	if gone := s.evictions(t, before); len(gone) > 0 {
		t.Fatalf("for production gave way: %v", gone)
	}
	if r := s.asks(t, s.bob, "bob", "watch", cores(1, 360, least)); r != nil {
		t.Fatal(r)
	}
	s.until(t, "bob", "watch", "monitoring runs", allStarted)
	gone := s.evictions(t, before)
	if len(gone) != 1 || !strings.HasPrefix(gone[0].Object, "ann/fills-") || !strings.HasPrefix(gone[0].Reason, "makes room for bob/watch/0 (priority 360, monitoring): ") {
		t.Errorf("for monitoring gave way: %v", gone)
	}
}

// A machine is held by free, batch of 105, batch of 115 and production, a quarter each.
// Production that needs half of it takes the place of the first two, in that order; they
// are told why and wait, nobody else is touched, and they come back by themselves.
func cheapestGoFirst(t *testing.T, s *scenarios) {
	at := s.names(t)[6]
	quarter := s.machines(t)[at].Spec.Capacity.CpuMilli / 4
	run := func(name string, priority int32, cpuMilli int64) {
		t.Helper()
		spec := cores(1, priority, cpuMilli)
		spec.Task.Constraints = []*borgpb.Constraint{{Key: cell.NameAttribute, Relation: borgpb.Relation_RELATION_EQUAL, Value: at}}
		if r := s.asks(t, s.ann, "ann", name, spec); r != nil {
			t.Fatal(r)
		}
		s.until(t, "ann", name, "it runs", allStarted)
	}
	for _, held := range []struct {
		name     string
		priority int32
	}{{"q200", 200}, {"q115", 115}, {"q105", 105}, {"q50", 50}} {
		run(held.name, held.priority, quarter)
	}
	before := s.now(t)
	run("half", 200, 2*quarter)
	gone := s.evictions(t, before)
	if len(gone) != 2 || gone[0].Object != "ann/q50/0" || gone[1].Object != "ann/q105/0" {
		t.Fatalf("gave way: %v; want q50 and then q105", gone)
	}
	want := fmt.Sprintf("makes room for ann/half/0 (priority 200, production): nowhere is room without, and of 1 machine looked at %s costs least: 2 tasks, of priority 105 at most", at)
	for _, e := range gone {
		if e.Reason != want {
			t.Errorf("%s is told %q, want %q", e.Object, e.Reason, want)
		}
	}
	for _, name := range []string{"q50", "q105"} {
		s.until(t, "ann", name, "it waits again", func(j *borgpb.Job) bool { return j.Status.GetPending() == 1 && j.Status.GetStopping() == 0 })
		s.why(t, "ann", name, 0, "it gave way to ann/half/0")
	}
	for _, name := range []string{"q115", "q200"} {
		if is := s.tasksOf(t, "ann", name)[0].Status; is.Attempt != 1 || is.GetAttemptState() != borgpb.AttemptState_ATTEMPT_STATE_RUNNING {
			t.Errorf("%s was touched: %v", name, is)
		}
	}
	s.must(t, killOf("ann", "half"))
	for _, name := range []string{"q50", "q105"} {
		s.until(t, "ann", name, "it is back", allStarted)
		if is := s.tasksOf(t, "ann", name)[0].Status; is.Attempt != 2 || is.Machine != at {
			t.Errorf("%s is %v, want its second attempt on %s", name, is, at)
		}
	}
}

// TestScenario17 fills a hundred machines with batch of 101 to 115, and one task of
// production comes. Where batch collapses, one task gives way to it and nobody to that;
// where it does not, its victim takes the place of a lower one, and so on: the chain is
// counted.
func TestScenario17(t *testing.T) {
	alongside(t)
	c := fakeCell(t, 1, 100, fleet.Life{})
	if err := c.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	c.hasLatestFormat(t)
	s := &scenarios{Cell: c, ann: c.client}
	const slot = 16_000
	slots := 0
	for _, m := range s.machines(t) {
		slots += int(m.Spec.Capacity.CpuMilli / slot)
	}
	const lowest, highest = 101, 115
	collapse := func(bands ...borgpb.Band) {
		t.Helper()
		s.must(t, &borgpb.Op{Op: &borgpb.Op_SetPreemptionPolicy{SetPreemptionPolicy: &borgpb.SetPreemptionPolicy{Collapse: bands}}})
	}
	collapse(borgpb.Band_BAND_BATCH)
	for priority := int32(lowest); priority <= highest; priority++ {
		n := slots / (highest - lowest + 1)
		if priority == highest {
			n = slots - n*(highest-lowest)
		}
		if r := s.asks(t, s.ann, c.user, fmt.Sprint("b", priority), cores(n, priority, slot)); r != nil {
			t.Fatal(r)
		}
	}
	full := func() {
		t.Helper()
		for priority := lowest; priority <= highest; priority++ {
			s.until(t, c.user, fmt.Sprint("b", priority), "all of it runs", allStarted)
		}
	}
	// waiting is who waits, once just one task does and none is stopping.
	waiting := func(t *testing.T, ok func(priority int) bool) (priority int) {
		t.Helper()
		err := until(shortly(t), "one task waits, and none is under way", func(ctx context.Context) error {
			resp, err := c.client.ListJobs(ctx, &borgrpc.ListJobsRequest{User: c.user})
			if err != nil {
				return err
			}
			pending := 0
			for _, j := range resp.Jobs {
				if j.Status.GetStopping() > 0 || j.Status.GetStarted()+j.Status.GetPending() < j.Spec.Tasks {
					return fmt.Errorf("%s is %v", j.Meta.Name, j.Status)
				}
				if n := int(j.Status.GetPending()); n > 0 {
					pending, priority = pending+n, int(j.Spec.Priority)
				}
			}
			if pending != 1 || !ok(priority) {
				return fmt.Errorf("%d wait, the last of priority %d", pending, priority)
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		return priority
	}
	for _, q := range []struct {
		name      string
		collapses bool
	}{{"17 no cascade where batch collapses", true}, {"17 the chain where it does not", false}} {
		t.Run(q.name, func(t *testing.T) {
			full()
			if !q.collapses {
				collapse()
			}
			var chains []int
			for range 5 {
				before := c.now(t)
				if r := s.asks(t, s.ann, c.user, "prod", cores(1, 200, slot)); r != nil {
					t.Fatal(r)
				}
				s.until(t, c.user, "prod", "production runs", allStarted)
				// Without collapse whoever is not of the lowest priority finds somebody to take the place of.
				victim := fmt.Sprint("b", waiting(t, func(priority int) bool { return q.collapses || priority == lowest }))
				waits := slices.IndexFunc(s.tasksOf(t, c.user, victim), func(x *borgpb.Task) bool { return x.Status.GetState() == borgpb.State_STATE_PENDING })
				s.why(t, c.user, victim, uint32(waits), "0 of 100 machines fit")
				s.must(t, killOf(c.user, "prod"))
				full()
				gone := c.evictions(t, before)
				toProd := 0
				for _, e := range gone {
					if strings.Contains(e.Reason, "makes room for "+c.user+"/prod/0") {
						toProd++
					}
				}
				if toProd != 1 || q.collapses && len(gone) != 1 {
					t.Errorf("%d gave way to production, and %d in all: %v", toProd, len(gone), gone)
				}
				chains = append(chains, len(gone))
			}
			t.Logf("for one task of production in a cell of %d slots gave way: %v", slots, chains)
		})
	}
}

// TestScenario14 has a task whose owner was let turn estimation off beside one like it:
// while what that reserves falls to what it uses, the other reserves its limit, all its
// life long and across a fail-over.
func TestScenario14(t *testing.T) {
	alongside(t)
	c := fakeCell(t, 3, 2, fleet.Life{})
	c.alter = func(spec *processSpec) {
		if strings.HasPrefix(spec.Name, "master-") {
			spec.Args = append(spec.Args, "--reservation-hold", "1s", "--reservation-half-life", "1s")
		}
	}
	if err := c.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	c.hasLatestFormat(t)
	const use = 20
	if err := c.FakeUse(t.Context(), use); err != nil {
		t.Fatal(err)
	}
	plain, exact := sized(1, gib), sized(1, gib)
	plain.Task.Resources.CpuMilli, exact.Task.Resources.CpuMilli = 1000, 1000
	exact.Task.NoEstimation = true
	if _, err := c.client.Mutate(shortly(t), &borgpb.Op{Op: &borgpb.Op_Grant{Grant: &borgpb.Grant{User: c.user, Capability: "no-estimation"}}}); err != nil {
		t.Fatal(err)
	}
	c.run(t, "exact", exact)
	looks := 0
	atLimit := func() {
		t.Helper()
		tasks, err := c.tasks(shortly(t), "exact")
		if err != nil {
			t.Fatal(err)
		}
		st := tasks[0].Status
		if r := st.GetReservation().GetResources(); r != nil && (r.MemBytes != gib || r.CpuMilli != 1000) {
			t.Fatalf("without estimation %v is reserved, want the limit", r)
		}
		if st.Attempt != 1 {
			t.Fatalf("it was placed again: %v", st)
		}
		looks++
	}
	for round := range 2 {
		name := fmt.Sprint("plain", round)
		c.run(t, name, plain)
		err := until(shortly(t), "with estimation less is reserved", func(ctx context.Context) error {
			atLimit()
			tasks, err := c.tasks(ctx, name)
			if err != nil {
				return err
			}
			// All that is asked for is given back but for the use and a margin.
			if now := tasks[0].Status.GetReservation().GetResources().GetMemBytes(); now == 0 || now > gib/2 {
				return fmt.Errorf("%d bytes are reserved", now)
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		atLimit()
		if round > 0 {
			break
		}
		c.restartElected(t)
	}
	if _, err := c.client.Mutate(shortly(t), killOf(c.user, "exact")); err != nil {
		t.Fatal(err)
	}
	t.Logf("in %d looks it reserved its limit", looks)
}
