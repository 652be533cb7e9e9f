package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"testing"

	"google.golang.org/protobuf/proto"

	"borg/borgmaster/cell"
	"borg/borgmaster/client"
	"borg/proto/borgpb"
	"borg/proto/borgrpc"
)

// Scenarios about allocs.

// reserve submits an alloc set of ann, which ends with the subtest.
func (s *scenarios) reserve(t *testing.T, name string, spec *borgpb.AllocSetSpec) {
	t.Helper()
	data, err := proto.Marshal(spec)
	if err != nil {
		t.Fatal(err)
	}
	_, err = s.ann.Mutate(shortly(t), &borgpb.Op{Op: &borgpb.Op_SubmitAllocSet{SubmitAllocSet: &borgpb.SubmitAllocSet{User: "ann", Name: name, Spec: data}}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		var refused *client.RefusedError
		_, err := s.client.Mutate(ctx, &borgpb.Op{Op: &borgpb.Op_KillAllocSet{KillAllocSet: &borgpb.KillAllocSet{User: "ann", Name: name}}})
		if err != nil && !errors.As(err, &refused) {
			t.Error(err)
		}
	})
}

func (s *scenarios) allocsOf(ctx context.Context, name string) ([]*borgpb.Alloc, error) {
	resp, err := s.client.ListAllocs(ctx, &borgrpc.ListAllocsRequest{User: "ann", Name: name})
	return resp.GetAllocs(), err
}

// untilAllocs waits for all allocs of a set to be as wanted.
func (s *scenarios) untilAllocs(t *testing.T, name, what string, ok func(*borgpb.Alloc) bool) (allocs []*borgpb.Alloc) {
	t.Helper()
	err := until(shortly(t), what, func(ctx context.Context) (err error) {
		if allocs, err = s.allocsOf(ctx, name); err == nil && (len(allocs) == 0 || slices.ContainsFunc(allocs, func(a *borgpb.Alloc) bool { return !ok(a) })) {
			err = fmt.Errorf("they are %v", allocs)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return allocs
}

func placed(a *borgpb.Alloc) bool { return a.Status.GetMachine() != "" }

// inside is a service of production in the allocs of a set of ann.
func inside(set string, tasks int, cpuMilli int64) *borgpb.JobSpec {
	spec := sleepers(tasks)
	spec.AllocSet, spec.Task.Resources = "ann/"+set, &borgpb.Resources{CpuMilli: cpuMilli, MemBytes: 1 << 20}
	return spec
}

// While the task of an alloc is stopped nobody else of production has its room, and the
// task starts there when it comes back.
func allocKeepsRoom(t *testing.T, s *scenarios) {
	at := s.names(t)[2]
	const cores = 4000
	here := []*borgpb.Constraint{{Key: cell.NameAttribute, Relation: borgpb.Relation_RELATION_EQUAL, Value: at}}
	s.reserve(t, "room", &borgpb.AllocSetSpec{Allocs: 1, Priority: 200, Constraints: here, Resources: &borgpb.Resources{CpuMilli: cores, MemBytes: 1 << 30}})
	before := s.untilAllocs(t, "room", "the alloc has a place", placed)[0].Status
	lives := inside("room", 1, cores)
	if r := s.asks(t, s.ann, "ann", "lives", lives); r != nil {
		t.Fatal(r)
	}
	s.until(t, "ann", "lives", "the task of the alloc runs", allStarted)
	// All else of the machine but a hundredth of a core.
	const left = 10
	only := func(cpuMilli int64, priority int32) *borgpb.JobSpec {
		spec := sized(1, 1<<20)
		spec.Priority, spec.Task.Constraints, spec.Task.Resources.CpuMilli = priority, here, cpuMilli
		return spec
	}
	if r := s.asks(t, s.ann, "ann", "filler", only(s.machines(t)[at].Spec.Capacity.CpuMilli-cores-left, 200)); r != nil {
		t.Fatal(r)
	}
	s.until(t, "ann", "filler", "the machine is full", allStarted)
	if r := s.asks(t, s.bob, "bob", "wants", only(cores, 210)); r != nil {
		t.Fatal(r)
	}
	s.why(t, "bob", "wants", 0, "cpu")
	s.must(t, killOf("ann", "lives"))
	s.until(t, "ann", "lives", "the task of the alloc has gone", func(j *borgpb.Job) bool { return j.Status.GetDead() == 1 && j.Status.GetStopping() == 0 })
	// Who comes later, is behind in the queue and does fit has a place: so a scheduler has
	// looked at both since.
	if r := s.asks(t, s.bob, "bob", "behind", only(left, 200)); r != nil {
		t.Fatal(r)
	}
	s.until(t, "bob", "behind", "who fits beside the alloc runs", allStarted)
	waits := func() {
		t.Helper()
		if j, err := s.job(shortly(t), "bob", "wants"); err != nil || j.Status.GetPending() != 1 {
			t.Fatalf("who wants the room of the alloc is %v, %v; want it to wait", j.GetStatus(), err)
		}
	}
	waits()
	if r := s.asks(t, s.ann, "ann", "lives", lives); r != nil {
		t.Fatal(r)
	}
	s.until(t, "ann", "lives", "the task runs again", allStarted)
	if on := s.tasksOf(t, "ann", "lives")[0].Status.Machine; on != at {
		t.Errorf("it runs on %s, want %s", on, at)
	}
	waits()
	if after := s.untilAllocs(t, "room", "the alloc has its place", placed)[0].Status; after.Attempt != before.Attempt || after.Machine != before.Machine {
		t.Errorf("the alloc was %v and is %v", before, after)
	}
}

// whereAll are the machines of all tasks of jobs of ann, by alloc; a task that has not
// started ends the wait with an error.
func (s *scenarios) whereAll(ctx context.Context, set string, jobs ...string) (map[uint32]map[string]string, error) {
	at := map[uint32]map[string]string{}
	allocs, err := s.allocsOf(ctx, set)
	if err != nil {
		return nil, err
	}
	in := map[string]uint32{}
	for _, a := range allocs {
		at[a.Index] = map[string]string{}
		for _, name := range a.Status.Tasks {
			in[name] = a.Index
		}
	}
	for _, job := range jobs {
		resp, err := s.client.ListAllTasks(ctx, &borgrpc.ListTasksRequest{User: "ann", Name: job}, 0)
		if err != nil {
			return nil, err
		}
		for _, x := range resp.Tasks {
			name := fmt.Sprintf("ann/%s/%d", job, x.Index)
			index, ok := in[name]
			if !ok || x.Status.GetAttemptState() != borgpb.AttemptState_ATTEMPT_STATE_RUNNING {
				return nil, fmt.Errorf("%s is %v", name, x.Status)
			}
			at[index][name] = x.Status.Machine
		}
	}
	return at, nil
}

// untilMoved waits until all tasks run and none is on the machine from.
func (s *scenarios) untilMoved(t *testing.T, from, set string, jobs ...string) (at map[uint32]map[string]string) {
	t.Helper()
	err := until(shortly(t), "all tasks run and none on "+from, func(ctx context.Context) (err error) {
		at, err = s.whereAll(ctx, set, jobs...)
		for _, tasks := range at {
			for name, on := range tasks {
				if on == from {
					err = errors.Join(err, fmt.Errorf("%s is on %s", name, on))
				}
			}
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return at
}

// A web server and who saves its logs are of two jobs in one alloc. Its machine is
// emptied, and both run on the same other one.
func allocMovesWhole(t *testing.T, s *scenarios) {
	s.reserve(t, "pair", &borgpb.AllocSetSpec{Allocs: 1, Priority: 200, Resources: &borgpb.Resources{CpuMilli: 1000, MemBytes: 1 << 30}})
	for _, name := range []string{"server", "saver"} {
		if r := s.asks(t, s.ann, "ann", name, inside("pair", 1, 500)); r != nil {
			t.Fatal(r)
		}
	}
	first := s.untilMoved(t, "", "pair", "server", "saver")[0]
	from := first["ann/server/0"]
	if first["ann/saver/0"] != from {
		t.Fatalf("of one alloc they are at %v", first)
	}
	drain := func(on bool) {
		s.must(t, &borgpb.Op{Op: &borgpb.Op_DrainMachine{DrainMachine: &borgpb.DrainMachine{Name: from, Drain: on}}})
	}
	drain(true)
	defer drain(false)
	then := s.untilMoved(t, from, "pair", "server", "saver")[0]
	if to := then["ann/server/0"]; to == "" || then["ann/saver/0"] != to {
		t.Errorf("from %s they went to %v, want one machine", from, then)
	}
}

// Each of two allocs has one task of one job and two of another. One alloc has to leave
// its machine: all in it are on one machine again, and in the other nothing is moved.
func sunitsMove(t *testing.T, s *scenarios) {
	s.reserve(t, "unit", &borgpb.AllocSetSpec{Allocs: 2, Priority: 200, MaxPerMachine: 1, Resources: &borgpb.Resources{CpuMilli: 1000, MemBytes: 1 << 30}})
	s.untilAllocs(t, "unit", "both allocs have a place", placed)
	jobs := []string{"front", "cache"}
	for i, name := range jobs {
		if r := s.asks(t, s.ann, "ann", name, inside("unit", 2*(i+1), 300)); r != nil {
			t.Fatal(r)
		}
	}
	whole := func(at map[uint32]map[string]string) (on [2]string) {
		t.Helper()
		for i := range on {
			machines := slices.Compact(slices.Sorted(maps.Values(at[uint32(i)])))
			if len(at[uint32(i)]) != 3 || len(machines) != 1 {
				t.Fatalf("alloc %d has %v; want three tasks on one machine", i, at[uint32(i)])
			}
			on[i] = machines[0]
		}
		return on
	}
	before := s.untilMoved(t, "", "unit", jobs...)
	on := whole(before)
	taint := &borgpb.SetMachine{Name: on[0], SetTaints: []*borgpb.Taint{{Key: "leak", Evict: true}}}
	s.must(t, &borgpb.Op{Op: &borgpb.Op_SetMachine{SetMachine: taint}})
	defer s.must(t, &borgpb.Op{Op: &borgpb.Op_SetMachine{SetMachine: &borgpb.SetMachine{Name: on[0], RemoveTaints: []string{"leak"}}}})
	after := s.untilMoved(t, on[0], "unit", jobs...)
	then := whole(after)
	if then[0] == on[0] || then[1] != on[1] {
		t.Errorf("the allocs were on %v and are on %v; want the first elsewhere, and the second where it was", on, then)
	}
	if !maps.Equal(after[1], before[1]) {
		t.Errorf("in the other alloc was %v and is %v", before[1], after[1])
	}
}

// Of a hundred jobs, each of which asks for all memory of the cell, one is let out of the batch queue at a
// time; each that was let out finishes, and none of its tasks is placed twice.
func batchQueueFills(t *testing.T, s *scenarios) {
	const each = 32 << 30
	tasks := int64(0)
	for _, m := range s.machines(t) {
		tasks += m.Spec.Capacity.MemBytes / each
	}
	spec := sized(int(tasks), each)
	spec.Kind, spec.BatchQueue, spec.Priority = borgpb.JobKind_JOB_KIND_BATCH, true, 110
	const jobs, enough = 100, 3
	var names []string
	for i := range jobs {
		names = append(names, fmt.Sprintf("queued-%03d", i))
		if r := s.asks(t, s.ann, "ann", names[i], spec); r != nil {
			t.Fatal(r)
		}
	}
	var done []string
	err := until(shortly(t), fmt.Sprintf("%d jobs of the queue have finished", enough), func(ctx context.Context) error {
		// All fit on one page, which is of one moment.
		resp, err := s.client.ListJobs(ctx, &borgrpc.ListJobsRequest{User: "ann", Dead: true})
		if err != nil {
			return err
		}
		done = done[:0]
		var out []string
		for _, j := range resp.Jobs {
			switch {
			case !slices.Contains(names, j.Meta.Name):
			case j.Status.GetFinished() == uint32(tasks):
				done = append(done, j.Meta.Name)
			case j.Status.GetPending() == 0 || j.Status.GetRunning() > 0 || j.Status.GetReason() != "in the batch queue until all of it fits":
				out = append(out, fmt.Sprint(j.Meta.Name, " ", j.Status))
			}
		}
		if len(out) > 1 {
			t.Fatalf("out of the queue at once are %v, each of which fills the cell", out)
		}
		if len(done) < enough {
			return fmt.Errorf("%d have; out is %v", len(done), out)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range done {
		for _, x := range s.tasksOf(t, "ann", name) {
			if x.Status.GetAttempt() != 1 {
				t.Errorf("task %d of %s was placed %d times", x.Index, name, x.Status.Attempt)
			}
		}
	}
}
