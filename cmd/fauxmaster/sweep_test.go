package main

import (
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"borg/cli"
	"borg/fauxmaster/sim"
)

// TestSweep lets a disk fail at a few of the writes of a short run, in each role and
// way, and goes on where an earlier run was.
func TestSweep(t *testing.T) {
	state, bench := filepath.Join(t.TempDir(), "sweep"), filepath.Join(t.TempDir(), "bench.json")
	args := []string{"--disk-sweep", "--duration", "6s", "--every", "100", "--state", state}
	code, out, errs := simulateIt(t.Context(), append(args, "--bench", bench)...)
	if code != cli.OK {
		t.Fatalf("exit code %d: %s%s", code, out, errs)
	}
	values := readBench(t, bench)
	if runs := values["sim.disk_sweep.runs"]; runs < float64(len(sim.DiskRoles)*len(sim.DiskKinds)) || values["sim.disk_sweep.every_writes"] != 100 {
		t.Errorf("figures %v", values)
	}
	if failed, is := values["sim.disk_sweep.violations"]; failed != 0 || !is {
		t.Errorf("figures %v", values)
	}
	for _, role := range sim.DiskRoles {
		if !strings.Contains(out, "writes of a "+role+": ") || strings.Contains(out, "writes of a "+role+": 0\n") {
			t.Errorf("a %s writes nothing: %s", role, out)
		}
	}
	for _, kind := range sim.DiskKinds {
		if !strings.Contains(out, kind) {
			t.Errorf("nothing is said of %s: %s", kind, out)
		}
	}
	code, out, _ = simulateIt(t.Context(), args...)
	if code != cli.OK || !strings.Contains(out, "are in "+state+" already") {
		t.Errorf("a second time: exit code %d: %s", code, out)
	}
	// What is of one role only is no figure of the sweep.
	part := filepath.Join(t.TempDir(), "bench.json")
	if code, out, _ = simulateIt(t.Context(), append(args, "--role", sim.DiskRoles[0], "--bench", part)...); code != cli.OK {
		t.Errorf("one role: exit code %d: %s", code, out)
	}
	if values := readBench(t, part); len(values) > 0 {
		t.Errorf("one role: figures %v", values)
	}
	for _, wrong := range [][]string{
		{"--disk-sweep", "--role", "king"}, {"--disk-sweep", "--seeds", "2"}, {"--every", "2"}, {"--disk-sweep", "--every", "0"},
	} {
		if code, out, _ := simulateIt(t.Context(), wrong...); code != cli.Usage {
			t.Errorf("%v: exit code %d: %s", wrong, code, out)
		}
	}
}

func TestSweepItems(t *testing.T) {
	s := &sweep{roles: sim.DiskRoles, kinds: []string{"full", "torn"}, every: 2, writes: map[string]int{"leader": 3, "follower": 1}}
	var got []string
	for _, item := range s.items() {
		got = append(got, sim.DiskFaultOf(item).String())
	}
	want := []string{
		"the disk of the leader at its write 1: full", "the disk of the leader at its write 1: torn",
		"the disk of the follower at its write 1: full", "the disk of the follower at its write 1: torn",
		"the disk of the leader at its write 3: full", "the disk of the leader at its write 3: torn",
	}
	if !slices.Equal(got, want) {
		t.Errorf("the sweep is\n%s", strings.Join(got, "\n"))
	}
	for item := range uint64(500) {
		if d := sim.DiskFaultOf(item); d.Item() != item || d.Validate() != nil {
			t.Errorf("item %d is %v, which is item %d", item, d, d.Item())
		}
	}
}
