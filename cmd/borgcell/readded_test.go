package main

import (
	"fmt"
	"strings"
	"syscall"
	"testing"

	"borg/cli"
	"borg/proto/borgrpc"
)

// TestReadded: a machine is silent until its tasks are started elsewhere, is removed, and is
// added again. What it has still is ended, so that each task runs once, and the commands say
// meanwhile what may run on there.
func TestReadded(t *testing.T) {
	const tasks = 4
	c := newChaosCell(t, 1, 2)
	c.startAll(t)
	c.hasLatestFormat(t)
	before := c.run(t, "web", sleepers(tasks))
	silent, other := c.machineName(1), c.machineName(2)
	there, err := c.on(shortly(t), "web", silent)
	if err != nil || there == 0 {
		t.Fatalf("%d of %d tasks are on %s, %v: want some", there, tasks, silent, err)
	}
	cfg := func(args ...string) (string, int) {
		return c.says(t, "borgcfg", append([]string{"--cell", c.cellFile()}, args...)...)
	}
	listed, err := c.client.ListMachines(shortly(t), &borgrpc.ListMachinesRequest{Name: silent})
	if err != nil || len(listed.Machines) != 1 {
		t.Fatal(listed, err)
	}
	if err := syscall.Kill(c.PID(silent), syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	waitFor(t, "all tasks run on the other machine", func() string {
		if n, err := c.on(t.Context(), "web", other); err != nil || n < tasks {
			return fmt.Sprintf("%d of %d, %v", n, tasks, err)
		}
		return ""
	})
	if out, code := cfg("machine", "remove", silent); code != cli.Refused || !strings.Contains(out, fmt.Sprintf("the end of %d copies", there)) {
		t.Errorf("a machine that is silent and has copies is removed, %d: %s", code, out)
	}
	if out, code := cfg("machine", "remove", silent, "--force"); code != cli.OK || !strings.Contains(out, fmt.Sprintf("%d tasks may run on there", there)) {
		t.Errorf("remove --force ends with %d: %s", code, out)
	}
	if n := before.alive(); n != tasks {
		t.Errorf("%d of the %d first processes run while the machine is silent", n, tasks)
	}
	if err := syscall.Kill(c.PID(silent), syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	if out, code := cfg("machine", "add", listed.Machines[0].Spec.Addr); code != cli.OK {
		t.Fatalf("machine add ends with %d: %s", code, out)
	}
	waitFor(t, "what the machine had is ended", func() string {
		if n := before.alive(); n != tasks-there {
			return fmt.Sprintf("%d of the first processes run, want %d", n, tasks-there)
		}
		return ""
	})
	waitFor(t, "nothing holds a place there", func() string {
		if out, code := cfg("machine", "remove", silent); code != cli.OK {
			return out
		}
		return ""
	})
	if n, err := c.on(shortly(t), "web", other); err != nil || n != tasks {
		t.Errorf("%d of %d tasks run on %s, %v", n, tasks, other, err)
	}
}
