package main

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"google.golang.org/protobuf/proto"

	"borg/proto/borgpb"
	"borg/proto/borgrpc"
)

// TestScenario37 has a web server and who saves its logs, of two jobs, in one alloc, whose
// machine is emptied. Both run on the same other machine then, and in the sink is what was
// written before the move: what the saver had sent, and what it could not send any more
// because the sink was shut. What is written afterwards comes from the new place.
func TestScenario37(t *testing.T) {
	alongside(t)
	c := chaosCell(t, 1, 2)
	c.hasLatestFormat(t)
	must := func(op *borgpb.Op) {
		t.Helper()
		if _, err := c.client.Mutate(shortly(t), op); err != nil {
			t.Fatal(err)
		}
	}
	sink, port := newLogSink(t)
	shut := sink.open(t)
	data, err := proto.Marshal(&borgpb.AllocSetSpec{
		Allocs: 1, Priority: 200, Resources: &borgpb.Resources{CpuMilli: 300, MemBytes: 256 << 20},
		Saver: &borgpb.Saver{Task: &borgpb.TaskSpec{
			Args: []string{"/bin/bash", "-c", savesTo(port)}, Resources: &borgpb.Resources{CpuMilli: 100, MemBytes: 64 << 20},
		}},
	})
	if err != nil {
		t.Fatal(err)
	}
	must(&borgpb.Op{Op: &borgpb.Op_SubmitAllocSet{SubmitAllocSet: &borgpb.SubmitAllocSet{User: c.user, Name: "pair", Spec: data}}})
	signs := t.TempDir()
	web := sleepers(1)
	web.AllocSet = c.user + "/pair"
	web.Task.Mounts = []*borgpb.Mount{{Source: signs, Path: "/signs"}}
	// A line for each number that it is told, and then it says so.
	web.Task.Args = []string{"/bin/sh", "-c", `n=1; while :; do
		[ ! -e /signs/{{task.attempt}}.$n ] || { echo "line $n of attempt {{task.attempt}}" >> {{alloc.dir}}/log; echo "written $n."; n=$((n+1)); }
		sleep 0.02; done`}
	saver := sleepers(1)
	saver.AllocSet = c.user + "/pair"
	saver.Task.Args = []string{"/bin/bash", "-c", `while :; do sleep 0.1; (` + savesTo(port) + `); done`}
	c.run(t, "web", web)
	c.run(t, "saver", saver)
	writes := func(attempt uint64, n int) {
		t.Helper()
		sign := filepath.Join(signs, fmt.Sprintf("%d.%d", attempt, n))
		if err := os.WriteFile(sign, nil, 0o644); err != nil {
			t.Fatal(err)
		}
		c.wrote(t, "web", fmt.Sprintf("written %d.", n))
	}
	arrived := func(attempt uint64, n int) {
		t.Helper()
		line := fmt.Sprintf("line %d of attempt %d", n, attempt)
		waitFor(t, line+" is in the sink", func() string { return sink.has([]string{line}) })
	}
	at := func() (machine string, attempt uint64) {
		t.Helper()
		machines := map[string]bool{}
		for _, name := range []string{"web", "saver"} {
			tasks, err := c.tasks(shortly(t), name)
			if err != nil || len(tasks) != 1 {
				t.Fatalf("%v, %v", tasks, err)
			}
			machine, attempt = tasks[0].Status.Machine, max(attempt, tasks[0].Status.Attempt)
			machines[machine] = true
		}
		if len(machines) != 1 {
			t.Fatalf("of one alloc they are on %v", machines)
		}
		return machine, attempt
	}
	from, first := at()
	writes(first, 1)
	arrived(first, 1)
	shut()
	writes(first, 2)
	must(&borgpb.Op{Op: &borgpb.Op_DrainMachine{DrainMachine: &borgpb.DrainMachine{Name: from, Drain: true}}})
	for _, name := range []string{"web", "saver"} {
		_, err := c.jobIs(shortly(t), name, "it runs elsewhere", func(j *borgpb.Job) bool {
			tasks, err := c.tasks(shortly(t), name)
			return err == nil && started(j) && tasks[0].Status.Machine != from
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	_, then := at()
	if then == first {
		t.Errorf("it runs elsewhere, and is still attempt %d", then)
	}
	if missing := sink.has([]string{fmt.Sprintf("line 2 of attempt %d", first)}); missing == "" {
		t.Fatal("a line is in a sink that was shut")
	}
	sink.open(t)
	arrived(first, 2)
	writes(then, 1)
	arrived(then, 1)
	waitFor(t, "nothing is left to be saved", func() string {
		resp, err := c.client.ListAllocs(shortly(t), &borgrpc.ListAllocsRequest{User: c.user, Name: "pair"})
		if err != nil || len(resp.AllocSets) != 1 {
			return fmt.Sprint(resp, err)
		}
		if list := resp.AllocSets[0].Status.GetSaves(); len(list) > 0 {
			return fmt.Sprint(list)
		}
		return ""
	})
	must(&borgpb.Op{Op: &borgpb.Op_KillAllocSet{KillAllocSet: &borgpb.KillAllocSet{User: c.user, Name: "pair"}}})
}
