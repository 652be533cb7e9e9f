package main

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"borg/borgmaster/cell"
	"borg/checkpoint"
	"borg/fauxmaster/fleet"
	"borg/proto/borgpb"
	"borg/proto/borgrpc"
)

// TestLiveChangesRestartNobody labels, annotates and resizes a job in containers with
// borgcfg, and puts one of its tasks into quarantine: all other processes stay the same.
func TestLiveChangesRestartNobody(t *testing.T) {
	alongside(t)
	c := chaosCell(t, 1, 2)
	c.hasLatestFormat(t)
	before := c.run(t, "web", sleepers(2))
	name := c.user + "/web"
	do := func(args ...string) {
		t.Helper()
		c.must(t, "borgcfg", append([]string{"--cell", c.cellFile()}, args...)...)
		c.stillSame(t, before, "web")
	}
	runs := func(n uint32) {
		t.Helper()
		if _, err := c.jobIs(shortly(t), "web", fmt.Sprintf("%d tasks run", n), func(j *borgpb.Job) bool {
			return j.Status.GetStarted() == n && j.Status.GetStopping() == 0
		}); err != nil {
			t.Fatal(err)
		}
		c.stillSame(t, before, "web")
	}
	do("label", "job", name, "tier=front")
	do("annotate", "job", name, "note=seen")
	do("label", "machine", c.machineName(1), "room=7")
	do("resize", name, "4")
	runs(4)
	do("quarantine", name+"/3", "--reason", "odd answers")
	runs(4)
	do("release", name+"/3")
	do("resize", name, "2")
	runs(2)
	resp, err := c.client.GetJob(shortly(t), &borgrpc.GetJobRequest{User: c.user, Name: "web"})
	if err != nil {
		t.Fatal(err)
	}
	if m := resp.Job.Meta; m.Labels["tier"] != "front" || m.Annotations["note"] != "seen" || resp.Job.Status.GetStarted() != 2 {
		t.Errorf("the job is %v", resp.Job)
	}
}

// TestExtensionsComeBack gives a job what automation keeps with it: whatever bytes those
// are, they come back the same from the cell, after a resize, an update, a pushed file and a
// fail-over, and out of a checkpoint; and to change them restarts nobody.
func TestExtensionsComeBack(t *testing.T) {
	alongside(t)
	c := fakeCell(t, 3, 2, fleet.Life{})
	if err := c.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	c.hasLatestFormat(t)
	all := make([]byte, 256)
	for i := range all {
		all[i] = byte(i)
	}
	spec := sleepers(2)
	spec.Extensions = map[string][]byte{"scaler.example/state": all, "zeros": make([]byte, 1000), "empty": {}}
	c.run(t, "kept", spec)
	same := func(when string, got, want map[string][]byte) {
		t.Helper()
		if !maps.EqualFunc(got, want, slices.Equal) {
			t.Errorf("%s they are %q, want %q", when, got, want)
		}
	}
	job := func(name string) *borgpb.Job {
		t.Helper()
		resp, err := c.client.GetJob(shortly(t), &borgrpc.GetJobRequest{User: c.user, Name: name})
		if err != nil {
			t.Fatal(err)
		}
		return resp.Job
	}
	update := func(change func(*borgpb.JobSpec)) {
		t.Helper()
		// As automation does it: what it reads, with one thing another.
		next := job("kept").Spec
		change(next)
		op := &borgpb.Op{Op: &borgpb.Op_UpdateJob{UpdateJob: &borgpb.UpdateJob{User: c.user, Name: "kept", Spec: encodeSpec(t, next)}}}
		if _, err := c.client.Mutate(shortly(t), op); err != nil {
			t.Fatal(err)
		}
		if _, err := c.jobIs(shortly(t), "kept", "all tasks run", started); err != nil {
			t.Fatal(err)
		}
	}
	same("at first", job("kept").Spec.Extensions, spec.Extensions)
	update(func(s *borgpb.JobSpec) { s.Extensions["scaler.example/state"] = slices.Concat(all, all) })
	spec.Extensions["scaler.example/state"] = slices.Concat(all, all)
	same("changed alone", job("kept").Spec.Extensions, spec.Extensions)
	tasks, err := c.tasks(shortly(t), "kept")
	if err != nil {
		t.Fatal(err)
	}
	for _, x := range tasks {
		if x.Status.Attempt != 1 {
			t.Errorf("task %d was restarted for an extension: %v", x.Index, x.Status)
		}
	}
	if _, err := c.client.Mutate(shortly(t), &borgpb.Op{Op: &borgpb.Op_ResizeJob{ResizeJob: &borgpb.ResizeJob{User: c.user, Name: "kept", Tasks: 3}}}); err != nil {
		t.Fatal(err)
	}
	update(func(s *borgpb.JobSpec) { s.Priority = 210; s.Tasks = 3 })
	same("after an update of something else", job("kept").Spec.Extensions, spec.Extensions)

	// A file says them in its own words, and pushing it again is nothing new.
	dir := t.TempDir()
	file := filepath.Join(dir, "kept.borg")
	text := `job(name = "file", task = task(args = ["/bin/x", param("flag", "a")], resources = resources(cpu = 0.1, mem = "16MiB")),
    extensions = {"scaler.example/state": b"\x00\x01\xfe\xff", "text": b"\xe2\x82\xac"})`
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	wrote := map[string][]byte{"scaler.example/state": {0, 1, 0xfe, 0xff}, "text": []byte("€")}
	up := func(verb string, args ...string) string {
		t.Helper()
		return c.must(t, "borgcfg", append([]string{"--cell", c.cellFile(), verb, file}, args...)...)
	}
	up("up", "--wait")
	same("from a file", job("file").Spec.Extensions, wrote)
	if out := up("up"); !strings.Contains(out, "unchanged") {
		t.Errorf("the same file again: %s", out)
	}
	up("update", "--set", "flag=b", "--wait")
	same("after a flag was changed", job("file").Spec.Extensions, wrote)

	elected := c.restartElected(t)
	same("after a fail-over", job("kept").Spec.Extensions, spec.Extensions)
	path := filepath.Join(dir, "kept.ckpt")
	c.must(t, "borgmaster", "checkpoint", "save", "--force", "--from", c.masterAddr(elected), path)
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	r, err := checkpoint.NewReader(strings.NewReader(string(data)))
	if err != nil {
		t.Fatal(err)
	}
	loaded, err := cell.Load(r.Records())
	if err == nil {
		err = r.Err()
	}
	if err != nil {
		t.Fatal(err)
	}
	same("in a checkpoint", loaded.Job(cell.JobKey{User: c.user, Name: "kept"}).Spec().GetExtensions(), spec.Extensions)
	same("in a checkpoint, from a file", loaded.Job(cell.JobKey{User: c.user, Name: "file"}).Spec().GetExtensions(), wrote)
}
