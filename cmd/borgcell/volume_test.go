package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"borg/cli"
	"borg/proto/borgpb"
	"borg/proto/borgrpc"
)

// volumeJobs are job files: a task that adds a line to what its volume keeps.
const volumeJobs = `
job(name = param("name"), kind = "service", priority = 200,
    task = task(args = ["/bin/sh", "-c", "echo ran >> {{volume.data}}/log; exec sleep 1000000"], grace = "1s",
        resources = resources(cpu = 0.1, mem = "16MiB"),
        volumes = [volume(name = "data", path = "/data", disk = "64MiB", keep = param("keep"))]))
`

// volumes are those of a job, as the masters have them.
func (c *Cell) volumes(t *testing.T, job string) []*borgpb.VolumeStatus {
	t.Helper()
	all, err := c.client.ListVolumes(shortly(t), &borgrpc.ListVolumesRequest{User: c.user, Job: job})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// TestVolumeIsKeptAndDeleted takes volumes through a whole cell: what a task wrote is
// kept when its job has ended, and found by the next job of that name; in use it is not
// deleted; what is given up, by its user or as nobody worked in it for long enough, goes
// from the machine's disk and then from the cell, and the next job begins with nothing.
func TestVolumeIsKeptAndDeleted(t *testing.T) {
	alongside(t)
	c := newChaosCell(t, 3, 1)
	c.startAll(t)
	c.hasLatestFormat(t)
	file := filepath.Join(t.TempDir(), "keeper.borg")
	if err := os.WriteFile(file, []byte(volumeJobs), 0o600); err != nil {
		t.Fatal(err)
	}
	dir := func(job string) string {
		return filepath.Join(c.layout.borgletDir(1), "volumes", c.user+"."+job+".0.data")
	}
	up := func(job, keep string) {
		t.Helper()
		c.must(t, "borgcfg", "--cell", c.cellFile(), "up", file, "--set", "name="+job, "--set", "keep="+keep, "--wait", "--timeout", "50s")
	}
	down := func(job string) {
		t.Helper()
		c.must(t, "borgcfg", "--cell", c.cellFile(), "down", job, "--wait", "--timeout", "50s")
	}
	lines := func(job string, want int) {
		t.Helper()
		waitFor(t, fmt.Sprintf("the volume of %s has %d lines", job, want), func() string {
			text, err := os.ReadFile(filepath.Join(dir(job), "data", "log"))
			if string(text) != strings.Repeat("ran\n", want) {
				return fmt.Sprintf("%q, %v", text, err)
			}
			return ""
		})
	}
	state := func(job string, want borgpb.VolumeState) {
		t.Helper()
		waitFor(t, fmt.Sprintf("the volume of %s is %v", job, want), func() string {
			if all := c.volumes(t, job); len(all) != 1 || all[0].State != want || all[0].Machine != c.machineName(1) {
				return fmt.Sprint(all)
			}
			return ""
		})
	}
	gone := func(job string) {
		t.Helper()
		waitFor(t, "the volume of "+job+" is gone", func() string {
			if _, err := os.Stat(dir(job)); !os.IsNotExist(err) {
				return fmt.Sprintf("%s is there: %v", dir(job), err)
			}
			if all := c.volumes(t, job); len(all) > 0 {
				return fmt.Sprint(all)
			}
			return ""
		})
	}

	up("kept", "1h")
	lines("kept", 1)
	state("kept", borgpb.VolumeState_VOLUME_STATE_USED)
	if out, code := c.says(t, "borgcfg", "--cell", c.cellFile(), "volume", "delete", "kept/0/data"); code == cli.OK || !strings.Contains(out, "somebody works in it") {
		t.Errorf("volume delete of one in use: exit code %d: %s", code, out)
	}
	down("kept")
	state("kept", borgpb.VolumeState_VOLUME_STATE_KEPT)
	if out := c.must(t, "borgcfg", "--cell", c.cellFile(), "volume", "list"); !strings.Contains(out, "kept/0/data") || !strings.Contains(out, "kept") {
		t.Errorf("volume list: %s", out)
	}
	up("kept", "1h")
	lines("kept", 2)
	down("kept")
	state("kept", borgpb.VolumeState_VOLUME_STATE_KEPT)
	c.must(t, "borgcfg", "--cell", c.cellFile(), "volume", "delete", "kept/0/data", "--reason", "it is tested")
	gone("kept")
	up("kept", "1h")
	lines("kept", 1)

	up("brief", "1s")
	lines("brief", 1)
	down("brief")
	gone("brief")
	state("kept", borgpb.VolumeState_VOLUME_STATE_USED)
	lines("kept", 1)
}
