package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"borg/cli"
	"borg/fauxmaster/fleet"
	"borg/proto/borgpb"
	"borg/proto/borgrpc"
)

// aloneJobs are job files: one task on everybody's processors, and two that want a core
// each.
const aloneJobs = `
def sleeper(name, **more):
    job(name = name, kind = "service", priority = 200,
        task = task(args = ["/bin/sh", "-c", "exec sleep 1000000"], grace = "1s", **more))

if param("what") == "beside":
    sleeper("beside", resources = resources(cpu = 0.1, mem = "16MiB"))
else:
    sleeper(param("what"), exclusive_cores = True, resources = resources(cpu = param("cpu", 1.0), mem = "16MiB"))
`

// up submits one of aloneJobs as a user does.
func (c *Cell) up(t *testing.T, file, what string, more ...string) (out string, code int) {
	t.Helper()
	return c.says(t, "borgcfg", append([]string{"--cell", c.cellFile(), "up", file, "--set", "what=" + what}, more...)...)
}

// cpusOf is where the only task of a job may run, as the kernel says it of its process.
func (c *Cell) cpusOf(t *testing.T, job string) (cpus string, pid int64) {
	t.Helper()
	resp, err := c.client.ListTasks(shortly(t), &borgrpc.ListTasksRequest{User: c.user, Name: job})
	if err != nil || len(resp.Tasks) != 1 || resp.Tasks[0].Status.Pid == 0 {
		return fmt.Sprintf("%s does not run: %v, %v", job, resp, err), 0
	}
	pid = resp.Tasks[0].Status.Pid
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return err.Error(), pid
	}
	_, rest, _ := strings.Cut(string(text), "Cpus_allowed_list:\t")
	cpus, _, _ = strings.Cut(rest, "\n")
	return cpus, pid
}

// TestExclusiveCores takes a job file through a whole cell: a task gets a core of its own,
// its neighbour and who comes later run on the rest, who finds none left waits and is told
// why; the next borglet leaves it as it is; and when it has ended, the core is everybody's
// and then the next one's.
func TestExclusiveCores(t *testing.T) {
	alongside(t)
	c := newChaosCell(t, 3, 1)
	c.startAll(t)
	c.hasLatestFormat(t)
	resp, err := c.client.ListMachines(shortly(t), &borgrpc.ListMachinesRequest{})
	if err != nil || len(resp.Machines) != 1 {
		t.Fatalf("%v, %v", resp, err)
	}
	spec := resp.Machines[0].Spec
	if spec.Attributes["runtime"] != "container" || spec.Attributes["cgroup"] == "none" {
		t.Skip("needs root and cgroups: tasks are plain processes here")
	}
	own := spec.Capacity.Devices[borgpb.ExclusiveCPU]
	if own != 1 || spec.Attributes[borgpb.CoreThreads] != "1" {
		t.Skipf("written for two cores of one thread; tasks may have %d processors alone, %s a core", own, spec.Attributes[borgpb.CoreThreads])
	}
	file := filepath.Join(t.TempDir(), "alone.borg")
	if err := os.WriteFile(file, []byte(aloneJobs), 0o600); err != nil {
		t.Fatal(err)
	}
	run := func(what string) {
		t.Helper()
		if out, code := c.up(t, file, what, "--wait", "--timeout", "50s"); code != cli.OK {
			t.Fatalf("up %s: exit code %d: %s", what, code, out)
		}
	}
	on := func(when, job, want string) (pid int64) {
		t.Helper()
		waitFor(t, fmt.Sprintf("%s runs on processors %s %s", job, want, when), func() (wrong string) {
			var got string
			if got, pid = c.cpusOf(t, job); got != want {
				return got
			}
			return ""
		})
		return pid
	}
	run("beside")
	on("alone in the cell", "beside", "0-1")
	run("first")
	pid := on("alone", "first", "1")
	on("that was there", "beside", "0")

	if out, code := c.up(t, file, "half", "--set", "cpu=1.5"); code == cli.OK || !strings.Contains(out, "cores are whole") {
		t.Errorf("a core and a half: exit code %d: %s", code, out)
	}
	if out, code := c.up(t, file, "second"); code != cli.OK {
		t.Fatalf("up: exit code %d: %s", code, out)
	}
	waitFor(t, "why says that no core is left", func() string {
		out, _ := c.says(t, "borgcfg", "--cell", c.cellFile(), "why", "second/0")
		if !strings.Contains(out, "it waits") || !strings.Contains(out, "devices") {
			return fmt.Sprintf("it says %q", out)
		}
		return ""
	})

	killed := c.PID(c.machineName(1))
	if err := c.Crash(c.machineName(1)); err != nil {
		t.Fatal(err)
	}
	waitFor(t, "the next borglet works", func() string {
		if now := c.PID(c.machineName(1)); now == killed || now == 0 {
			return fmt.Sprintf("its process is %d, that was killed was %d", now, killed)
		}
		state, err := c.client.ListMachines(shortly(t), &borgrpc.ListMachinesRequest{})
		if err != nil || state.Machines[0].Status.State != borgpb.MachineState_MACHINE_STATE_UP {
			return fmt.Sprintf("%v, %v", state, err)
		}
		return ""
	})
	if now := on("after kill -9 of the borglet", "first", "1"); now != pid {
		t.Errorf("its process was %d and is %d", pid, now)
	}
	on("after kill -9 of the borglet", "beside", "0")

	c.must(t, "borgcfg", "--cell", c.cellFile(), "down", "first", "--wait", "--timeout", "50s")
	on("when the first one has ended", "second", "1")
	on("beside the second", "beside", "0")
	c.must(t, "borgcfg", "--cell", c.cellFile(), "down", "second", "--wait", "--timeout", "50s")
	on("when nobody has a core alone", "beside", "0-1")
}

// Pretended machines offer cores of two threads, so that whoever has no large machine can
// try it.
func TestExclusiveCoresOfPretendedMachines(t *testing.T) {
	alongside(t)
	c := fakeCell(t, 1, 2, fleet.Life{StartDelay: 20 * time.Millisecond})
	c.Fake.ExclusiveCores = 2
	if err := writeJSON(c.layoutFile(), c.layout); err != nil {
		t.Fatal(err)
	}
	if err := c.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	c.hasLatestFormat(t)
	alone := func(cpus int64, tasks int) *borgpb.JobSpec {
		spec := sleepers(tasks)
		spec.Task.ExclusiveCores, spec.Task.Resources.CpuMilli = true, 1000*cpus
		return spec
	}
	if _, err := c.submit(shortly(t), "pairs", alone(2, 4)); err != nil {
		t.Fatal(err)
	}
	if _, err := c.jobIs(shortly(t), "pairs", "all tasks have a core", started); err != nil {
		t.Fatal(err)
	}
	got := map[string]bool{}
	tasks, err := c.tasks(shortly(t), "pairs")
	if err != nil {
		t.Fatal(err)
	}
	for _, task := range tasks {
		got[fmt.Sprint(task.Status.Machine, grantText(task.Status.Devices))] = true
	}
	if len(got) != 4 {
		t.Errorf("four tasks of two processors have %v", got)
	}
	for name, cpus := range map[string]int64{"more": 2, "half": 1} {
		if _, err := c.submit(shortly(t), name, alone(cpus, 1)); err != nil {
			t.Fatal(err)
		}
		want := map[string]string{"more": "devices", "half": "core_threads<=1"}[name]
		waitFor(t, name+" waits for "+want, func() string {
			if out, _ := c.says(t, "borgcfg", "--cell", c.cellFile(), "why", name+"/0"); !strings.Contains(out, want) {
				return fmt.Sprintf("it says %q", out)
			}
			return ""
		})
	}
}

// grantText is the processors of a grant.
func grantText(gs []*borgpb.DeviceGrant) string {
	var text strings.Builder
	for _, g := range gs {
		text.WriteString(fmt.Sprint(" ", g.Name, g.Numbers))
	}
	return text.String()
}
