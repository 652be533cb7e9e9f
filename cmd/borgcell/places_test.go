package main

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"borg/fauxmaster/fleet"
	"borg/proto/borgpb"
)

// TestPlacesOfMachines fills the places of both machines of a cell with small work of the free
// band: copies, allocs, then volumes that an ended job left. Production of another user starts
// each time.
func TestPlacesOfMachines(t *testing.T) {
	alongside(t)
	c := fakeCell(t, 1, 2, fleet.Life{})
	if err := c.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	c.hasLatestFormat(t)
	waited := new(atomic.Int64)
	s := &scenarios{Cell: c, ann: c.clientOf(t, "ann", waited), bob: c.clientOf(t, "bob", waited)}
	// What starts of bob's, with a volume.
	starts := func(t *testing.T, name string) {
		t.Helper()
		spec := sleepers(1)
		spec.Task.Volumes = []*borgpb.Volume{{Name: "data", Path: "/data", DiskBytes: 1 << 20}}
		if r := s.asks(t, s.bob, "bob", name, spec); r != nil {
			t.Fatal(r)
		}
		s.until(t, "bob", name, "production starts", allStarted)
	}
	free := func(tasks int) *borgpb.JobSpec {
		spec := sleepers(tasks)
		spec.Priority, spec.Task.GraceNs = 0, 1
		spec.Task.Resources = &borgpb.Resources{CpuMilli: 1, MemBytes: 1 << 20}
		return spec
	}
	runs := func(n uint32) func(*borgpb.Job) bool {
		return func(j *borgpb.Job) bool { return j.Status.Running == n }
	}

	t.Run("copies", func(t *testing.T) {
		if r := s.asks(t, s.ann, "ann", "free", free(4200)); r != nil {
			t.Fatal(r)
		}
		s.until(t, "ann", "free", "half of the places are taken", runs(2*2048))
		starts(t, "beside-copies")
	})
	t.Run("allocs", func(t *testing.T) {
		spec := &borgpb.AllocSetSpec{Allocs: 4200, Resources: &borgpb.Resources{CpuMilli: 1, MemBytes: 1}}
		submit := &borgpb.SubmitAllocSet{User: "ann", Name: "free", Spec: encodeSpec(t, spec)}
		if _, err := s.ann.Mutate(shortly(t), &borgpb.Op{Op: &borgpb.Op_SubmitAllocSet{SubmitAllocSet: submit}}); err != nil {
			t.Fatal(err)
		}
		err := until(shortly(t), "half of the places are taken", func(context.Context) error {
			n := uint32(0)
			for _, m := range s.machines(t) {
				n += m.Status.Allocs
			}
			if n != 2*2048 {
				return fmt.Errorf("%d allocs are placed", n)
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		spec = &borgpb.AllocSetSpec{Allocs: 1, Priority: 200, Resources: &borgpb.Resources{CpuMilli: 1, MemBytes: 1 << 20}}
		submit = &borgpb.SubmitAllocSet{User: "bob", Name: "set", Spec: encodeSpec(t, spec)}
		if _, err := s.bob.Mutate(shortly(t), &borgpb.Op{Op: &borgpb.Op_SubmitAllocSet{SubmitAllocSet: submit}}); err != nil {
			t.Fatal(err)
		}
		job := sleepers(1)
		job.AllocSet = "bob/set"
		job.Task.Resources = &borgpb.Resources{CpuMilli: 1, MemBytes: 1 << 20}
		if r := s.asks(t, s.bob, "bob", "in-set", job); r != nil {
			t.Fatal(r)
		}
		s.until(t, "bob", "in-set", "production starts in an alloc", allStarted)
	})
	t.Run("volumes", func(t *testing.T) {
		spec := free(1300)
		for i := range 8 {
			name := fmt.Sprint("v", i)
			spec.Task.Volumes = append(spec.Task.Volumes, &borgpb.Volume{Name: name, Path: "/" + name, DiskBytes: 1, KeepNs: int64(time.Hour)})
		}
		if r := s.asks(t, s.ann, "ann", "volumes", spec); r != nil {
			t.Fatal(r)
		}
		// Eight are below half of what bob's jobs left each machine.
		s.until(t, "ann", "volumes", "half of the places are taken", func(j *borgpb.Job) bool { return j.Status.Running >= 2*624 })
		s.end(t, "ann", "volumes")
		starts(t, "beside-volumes")
	})
}
