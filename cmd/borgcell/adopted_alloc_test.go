package main

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	"borg/proto/borgpb"
	"borg/proto/borgrpc"
)

// TestAdoptedJobHasItsAllocsByIndex restores a cell from a checkpoint of before a job whose
// tasks have the allocs of their index. Only its machines know of it: from what they run it
// is made again, in the same processes, and bound to its allocs as it was.
func TestAdoptedJobHasItsAllocsByIndex(t *testing.T) {
	alongside(t)
	c := chaosCell(t, 3, 2)
	c.hasLatestFormat(t)
	set, err := proto.Marshal(&borgpb.AllocSetSpec{Allocs: 3, Priority: 200, Resources: &borgpb.Resources{CpuMilli: 100, MemBytes: 64 << 20}})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.client.Mutate(shortly(t), &borgpb.Op{Op: &borgpb.Op_SubmitAllocSet{SubmitAllocSet: &borgpb.SubmitAllocSet{User: c.user, Name: "pool", Spec: set}}}); err != nil {
		t.Fatal(err)
	}
	waitFor(t, "the allocs have their machines", func() string {
		resp, err := c.client.ListAllocs(shortly(t), &borgrpc.ListAllocsRequest{User: c.user, Name: "pool"})
		if err != nil || len(resp.AllocSets) != 1 || resp.AllocSets[0].Status.GetRunning() != 3 {
			return fmt.Sprint(resp, err)
		}
		return ""
	})
	elected, err := c.electedNow(shortly(t))
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(c.dir, "cell.ckpt")
	c.must(t, "borgmaster", "checkpoint", "save", "--force", "--from", c.masterAddr(elected), file)
	authority := c.keepPapers(t)

	inside := func(byIndex bool) *borgpb.JobSpec {
		spec := sleepers(3)
		spec.AllocSet, spec.AllocByIndex = c.user+"/pool", byIndex
		return spec
	}
	c.run(t, "bound", inside(true))
	c.run(t, "loose", inside(false))
	before, err := c.snap(shortly(t), "bound", "loose")
	if err != nil {
		t.Fatal(err)
	}
	c.loseDisks(t)
	c.restoreMasters(t, file, authority)
	c.machinesHeard(t)
	c.must(t, "borgcfg", "--cell", c.cellFile(), "restore", "adopt", "--all")
	for name, byIndex := range map[string]bool{"bound": true, "loose": false} {
		job, err := c.jobIs(shortly(t), name, "all tasks run", started)
		if err != nil {
			t.Fatal(err)
		}
		if job.Spec.AllocSet != c.user+"/pool" || job.Spec.AllocByIndex != byIndex {
			t.Errorf("%s is in allocs of %q, by index: %v; want %v", name, job.Spec.AllocSet, job.Spec.AllocByIndex, byIndex)
		}
	}
	c.stillSame(t, before, "bound", "loose")
	// A task more than there are allocs waits for its own, however much room there is.
	if _, err := c.client.Mutate(shortly(t), &borgpb.Op{Op: &borgpb.Op_ResizeJob{ResizeJob: &borgpb.ResizeJob{User: c.user, Name: "bound", Tasks: 4}}}); err != nil {
		t.Fatal(err)
	}
	waitFor(t, "it waits for alloc 3", func() string {
		out, _ := c.says(t, "borgcfg", "--cell", c.cellFile(), "why", "bound/3")
		if !strings.Contains(out, "there is no alloc 3 for task 3") {
			return out
		}
		return ""
	})
}
