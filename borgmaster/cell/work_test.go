package cell

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"

	"google.golang.org/protobuf/proto"

	"borg/proto/borgpb"
)

// merging is a spec of n overrides over a task with so many variables. Nested: each run of
// indices needs the merge of many.
func merging(n, env int, nested bool) *borgpb.JobSpec {
	spec := service(1, 0, 1, 1)
	spec.Task.Env = make(map[string]string)
	for i := range env {
		spec.Task.Env[fmt.Sprint("V", i)] = "x"
	}
	for i := range n {
		o := &borgpb.TaskOverride{First: uint32(i), Last: uint32(i), Spec: &borgpb.TaskSpec{Env: map[string]string{"S": fmt.Sprint(i)}}}
		if nested {
			o.Last = uint32(10*n - i)
		}
		spec.Overrides = append(spec.Overrides, o)
	}
	return spec
}

// TestWorkCountsTasks: an op counts as what it makes, changes or ends, whatever its bytes are.
func TestWorkCountsTasks(t *testing.T) {
	l := budgetLog(t)
	resize := func(tasks uint32) *borgpb.Op {
		return &borgpb.Op{Op: &borgpb.Op_ResizeJob{ResizeJob: &borgpb.ResizeJob{User: "u", Name: "j", Tasks: tasks}}}
	}
	label := func(kind borgpb.Labelled, name string) *borgpb.Op {
		return &borgpb.Op{Op: &borgpb.Op_SetLabels{SetLabels: &borgpb.SetLabels{Kind: kind, User: "u", Name: name, SetLabels: map[string]string{"a": "b"}}}}
	}
	update := func(spec *borgpb.JobSpec) *borgpb.Op {
		data, err := proto.Marshal(spec)
		if err != nil {
			t.Fatal(err)
		}
		return &borgpb.Op{Op: &borgpb.Op_UpdateJob{UpdateJob: &borgpb.UpdateJob{User: "u", Name: "j", Spec: data}}}
	}
	killJob := &borgpb.Op{Op: &borgpb.Op_KillJob{KillJob: &borgpb.KillJob{User: "u", Name: "j"}}}
	killSet := &borgpb.Op{Op: &borgpb.Op_KillAllocSet{KillAllocSet: &borgpb.KillAllocSet{User: "u", Name: "s"}}}
	wants := func(op *borgpb.Op, want int) {
		t.Helper()
		// To read a small spec is next to nothing.
		if got := l.c.Work(op); got < want || got > want+10 {
			t.Errorf("%v counts as %d, want %d", op, got, want)
		}
	}
	cron := service(70_000, 0, 1, 1)
	cron.Kind = borgpb.JobKind_JOB_KIND_CRON
	for _, op := range []*borgpb.Op{resize(50_000), killJob, killSet, label(borgpb.Labelled_LABELLED_MACHINE, "m")} {
		if op.GetResizeJob() != nil {
			wants(op, 50_000)
		} else {
			wants(op, 0)
		}
	}
	wants(submitBy(t, "u", "c", cron), 0)
	wants(submitBy(t, "u", "j", service(1<<32-1, 0, 1, 1)), maxTasksPerJob)
	wants(submitBy(t, "u", "j", service(60_000, 0, 1, 1)), 60_000)
	l.do(submitBy(t, "u", "j", service(60_000, 0, 1, 1)))
	wants(resize(1), 60_000)
	wants(resize(90_000), 90_000)
	wants(update(service(3, 0, 1, 1)), 60_000)
	wants(update(service(80_000, 0, 1, 1)), 80_000)
	wants(killJob, 60_000)
	wants(label(borgpb.Labelled_LABELLED_JOB, "j"), 60_000)
	wants(submitSetBy(t, "u", "s", 5_000), 5_000)
	l.do(submitSetBy(t, "u", "s", 5_000))
	wants(killSet, 5_000)
	wants(label(borgpb.Labelled_LABELLED_ALLOC_SET, "s"), 5_000)
	wants(&borgpb.Op{Op: &borgpb.Op_ResizeAllocSet{ResizeAllocSet: &borgpb.ResizeAllocSet{User: "u", Name: "s", Allocs: 1}}}, 5_000)
	wants(&borgpb.Op{}, 0)

	for i := range 100 {
		l.do(submitBy(t, "u", fmt.Sprint("small-", i), service(1, 0, 1, 1)))
	}
	jobs := l.c.NumJobs()
	wants(enforce(true), jobs)
	l.do(enforce(true))
	wants(enforce(true), 0)
	wants(enforce(false), jobs)
	l.do(enforce(false))

	again := resize(100_000)
	again.RequestId, again.RequestWallNs = "again", l.wallNs
	wants(again, 100_000)
	l.do(again)
	wants(again, 0)
}

// TestWorkOfMerging: the work of merging is told from the encoded spec as the check tells it
// from the decoded one. Repeat with BORG_WALK_SEED.
func TestWorkOfMerging(t *testing.T) {
	seed := uint64(envInt(t, "BORG_WALK_SEED", 1))
	r := rand.New(rand.NewPCG(seed, 5))
	for range 300 {
		spec := merging(r.IntN(20), r.IntN(30), r.IntN(2) == 0)
		for range r.IntN(4) {
			spec.Task.Args = append(spec.Task.Args, "x")
			first := r.Uint32N(50)
			spec.Overrides = append(spec.Overrides, &borgpb.TaskOverride{First: first, Last: first + r.Uint32N(1<<31), Spec: &borgpb.TaskSpec{Args: []string{"y", "z"}}})
		}
		data, err := proto.Marshal(spec)
		if err != nil {
			t.Fatal(err)
		}
		overrides := overrideSizes(spec)
		want := mergeWork(cutsOf(overrides), len(spec.Task.Env), len(spec.Task.Args), overrides)
		s := sizesOf(data)
		if got := mergeWork(cutsOf(s.overrides), s.env, s.args, s.overrides); got != want {
			t.Fatalf("seed %d: %d, want %d: %v", seed, got, want, spec)
		}
	}
	const most = maxMergeWork / mergedPerWork
	for _, spec := range []*borgpb.JobSpec{merging(1_000, 1_000, false), merging(900, 1, true)} {
		if got := ReadWork(submitBy(t, "u", "j", spec)); got < most || got > most+maxSpecElements/elementsPerWork {
			t.Errorf("what is too much to merge counts as %d, want %d", got, most)
		}
	}
}

// TestTrialsTogether: trials look at one cell at the same time, and leave it as it is: also
// what it remembers of specs.
func TestTrialsTogether(t *testing.T) {
	l := budgetLog(t)
	l.do(submitBy(t, "u", "first", service(1, 0, 1, 1)))
	had := len(l.c.readings.byBytes)
	var running sync.WaitGroup
	for i := range 8 {
		running.Go(func() {
			for n := range 100 {
				if r := new(Trial).Check(l.c, submitBy(t, "u", "next", service(uint32(2+100*i+n), 0, 1, 1))); r != nil {
					t.Error(r)
				}
			}
		})
	}
	running.Wait()
	if got := len(l.c.readings.byBytes); got != had {
		t.Errorf("%d specs are remembered, %d were before the trials", got, had)
	}
}
