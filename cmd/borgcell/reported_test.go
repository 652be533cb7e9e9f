package main

import (
	"bytes"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"borg/cli"
	"borg/proto/borgpb"
	"borg/proto/borgrpc"
)

// reportedJobs is the job file of TestReported. The health check of web leaves a child
// behind, and fails for a program whose arguments say that it is sick.
const reportedJobs = `
def of(kind, cmd, **more):
    return task(args = ["/bin/sh", "-c", cmd], grace = "1s", resources = resources(cpu = 0.05, mem = "64MiB"), **more)

what = param("what")
if what == "cron":
    job(name = param("name"), kind = "cron", cron = cron(schedule = param("schedule"), time_zone = param("zone")),
        task = task(args = ["/bin/true"], resources = resources(cpu = 0.05, mem = "16MiB")))
elif what == "box":
    job(name = "box", task = of("service", "exec sleep 100000",
        health = health(command = ["/bin/sh", "-c", "sleep 300 & exit 0"], period = "1s", timeout = "3s", failures = 2)))
elif what == "long":
    job(name = "long", kind = "batch", max_failures = 0, task = of("batch", "trap '' TERM; sleep 100000"))
elif what == "web":
    job(name = "web", tasks = 3, update = update(batch = 1, watch = "1s"), task = of("service", param("cmd", "sleep 100000"),
        health = health(command = ["/bin/sh", "-c", "! tr '\\0' ' ' </proc/1/cmdline | grep -q sick"], period = "1s")))
`

// reported is the cell of TestReported, and its job file.
type reported struct {
	*Cell
	file string
}

// cfg runs borgcfg with this cell.
func (r reported) cfg(t *testing.T, args ...string) (string, int) {
	t.Helper()
	return r.says(t, "borgcfg", append([]string{"--cell", r.cellFile()}, args...)...)
}

// pushed pushes a part of the job file and waits until it runs.
func (r reported) pushed(t *testing.T, what string, more ...string) {
	t.Helper()
	r.must(t, "borgcfg", append([]string{"--cell", r.cellFile(), "up", r.file, "--set", "what=" + what, "--wait", "--timeout", "55s"}, more...)...)
}

// exec runs a program beside task 0 of box.
func (r reported) exec(t *testing.T, args ...string) *exec.Cmd {
	t.Helper()
	cmd := exec.CommandContext(shortly(t), r.bin("borgcfg"), append([]string{"--cell", r.cellFile(), "exec"}, args...)...)
	cmd.Env = append(os.Environ(), "BORG_IDENTITY="+r.identityFile())
	return cmd
}

// TestReported does what people reported to go wrong in systems like this one.
func TestReported(t *testing.T) {
	alongside(t)
	r := reported{newChaosCell(t, 1, 3), filepath.Join(t.TempDir(), "reported.borg")}
	if err := os.WriteFile(r.file, []byte(reportedJobs), 0o600); err != nil {
		t.Fatal(err)
	}
	r.startAll(t)
	r.hasLatestFormat(t)
	t.Run("cron names", r.cronNames)
	t.Run("a schedule that never comes", r.noSlots)
	t.Run("a master at a wrong address", r.wrongMaster)
	t.Run("streams of exec", r.execStreams)
	t.Run("a broken version", r.brokenVersions)
	t.Run("drains", r.drains)
}

// cronNames: a cron job whose runs could have no name is refused at once, by the file and
// by a master that is asked without one.
func (r reported) cronNames(t *testing.T) {
	for _, n := range []int{1, 48, 49, 63} {
		name := strings.Repeat("a", n)
		out, code := r.cfg(t, "up", r.file, "--set", "what=cron", "--set", "name="+name, "--set", "schedule=0 0 1 1 *", "--set", "zone=UTC")
		if (code == cli.OK) != (n <= 48) {
			t.Errorf("up of a name of %d bytes ends with %d: %s", n, code, out)
		}
	}
	spec := sleepers(1)
	spec.Kind, spec.Cron = borgpb.JobKind_JOB_KIND_CRON, &borgpb.CronSpec{Schedule: "0 0 1 1 *"}
	op := &borgpb.Op{Op: &borgpb.Op_SubmitJob{SubmitJob: &borgpb.SubmitJob{User: r.user, Name: strings.Repeat("b", 49), Spec: encodeSpec(t, spec)}}}
	if _, err := r.client.Mutate(shortly(t), op); err == nil {
		t.Error("a master takes a cron job with a name of 49 bytes")
	}
}

// noSlots: status says of a schedule that never comes that it does not, and up warns. What
// cannot be read is refused, also by a master that is asked without a file. Which local times
// come is tested beside the schedule.
func (r reported) noSlots(t *testing.T) {
	out, code := r.cfg(t, "up", r.file, "--set", "what=cron", "--set", "name=never", "--set", "schedule=0 0 31 2 *", "--set", "zone=UTC")
	if code != cli.OK || !strings.Contains(out, "never comes") {
		t.Errorf("up ends with %d: %s", code, out)
	}
	waitFor(t, "status says that no slot comes", func() string {
		if out, _ := r.cfg(t, "status", "never"); !strings.Contains(out, "no slot comes") {
			return out
		}
		return ""
	})
	for _, bad := range []*borgpb.CronSpec{{Schedule: "99 * * * *"}, {Schedule: "@daily", TimeZone: "Europe/Zurik"}, {Schedule: "@daily", TimeZone: "Local"}} {
		spec := sleepers(1)
		spec.Kind, spec.Cron = borgpb.JobKind_JOB_KIND_CRON, bad
		op := &borgpb.Op{Op: &borgpb.Op_SubmitJob{SubmitJob: &borgpb.SubmitJob{User: r.user, Name: "unread", Spec: encodeSpec(t, spec)}}}
		if _, err := r.client.Mutate(shortly(t), op); err == nil {
			t.Errorf("a master takes a cron job at %v", bad)
		}
	}
}

// wrongMaster: a cell of one master refuses another one where nobody answers, and goes on.
func (r reported) wrongMaster(t *testing.T) {
	for _, addr := range []string{"127.0.0.1:9", "127.0.0.1:1"} {
		if out, code := r.cfg(t, "master", "grow", addr); code != cli.Refused {
			t.Errorf("grow at %s ends with %d: %s", addr, code, out)
		}
	}
	if out := r.must(t, "borgcfg", "--cell", r.cellFile(), "master", "list", "-o", "name"); strings.Count(out, "\n") != 1 {
		t.Errorf("masters are %q, want one", out)
	}
	r.pushed(t, "box")
}

// execStreams: much output and input comes through, with the exit code, also when the
// reader is slow and when a child is left behind that has the streams open; children of
// health checks do not stay.
func (r reported) execStreams(t *testing.T) {
	out, err := r.exec(t, "box/0", "--", "/bin/sh", "-c", "seq 1 500000; exit 7").Output()
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.ExitCode() != 7 || !bytes.HasSuffix(out, []byte("\n500000\n")) {
		t.Errorf("%d bytes, %v; want all lines and exit code 7", len(out), err)
	}
	sent := make([]byte, 40<<20)
	_, _ = rand.Read(sent)
	cmd := r.exec(t, "-i", "box/0", "--", "cat")
	cmd.Stdin = bytes.NewReader(sent)
	if out, err := cmd.Output(); err != nil || sha256.Sum256(out) != sha256.Sum256(sent) {
		t.Errorf("%d of %d bytes come back, or others: %v", len(out), len(sent), err)
	}
	// The child outlives the test's patience: exec must not wait for it.
	if out, err := r.exec(t, "box/0", "--", "/bin/sh", "-c", "sleep 3600 & echo left").Output(); err != nil || string(out) != "left\n" {
		t.Errorf("with a child that is left behind: %q, %v", out, err)
	}
	if err := r.exec(t, "box/0", "--", "/bin/sh", "-c", "kill -9 $$").Run(); !errors.As(err, &exit) || exit.ExitCode() != 137 {
		t.Errorf("killed by SIGKILL: %v, want exit code 137", err)
	}
	r.slowReader(t)
	resp, err := r.client.ListTasks(shortly(t), &borgrpc.ListTasksRequest{User: r.user, Name: "box"})
	if err != nil || len(resp.Tasks) != 1 || resp.Tasks[0].Status.Restarts != 0 {
		t.Errorf("box is %v, %v; want the task that was started first", resp, err)
	}
	waitFor(t, "children of health checks go", func() string {
		out, err := r.exec(t, "box/0", "--", "/bin/sh", "-c", "ls -d /proc/[0-9]*").Output()
		if n := bytes.Count(out, []byte("\n")); err != nil || n >= 12 {
			return fmt.Sprintf("%d processes, %v", n, err)
		}
		return ""
	})
}

// slowReader reads nothing for a moment, while far more waits than pipes hold.
func (r reported) slowReader(t *testing.T) {
	t.Helper()
	cmd := r.exec(t, "box/0", "--", "seq", "1", "2000000")
	from, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	time.Sleep(500 * time.Millisecond)
	var all bytes.Buffer
	_, err = all.ReadFrom(from)
	if err := errors.Join(err, cmd.Wait()); err != nil || !bytes.HasSuffix(all.Bytes(), []byte("\n2000000\n")) {
		t.Errorf("%d bytes, %v; want the last line to be 2000000", all.Len(), err)
	}
}

// brokenVersions: a version that cannot run is pushed, and then the former file again,
// which brings the job back without anybody's hand.
func (r reported) brokenVersions(t *testing.T) {
	r.pushed(t, "web")
	for _, how := range []string{"exit 3", "exec nosuchprogram", "exec sleep 100001 # sick"} {
		if out, code := r.cfg(t, "up", r.file, "--set", "what=web", "--set", "cmd="+how); code != cli.OK {
			t.Fatalf("push of %q ends with %d: %s", how, code, out)
		}
		waitFor(t, "the update to "+how+" touches a task", func() string {
			out, _ := r.cfg(t, "update", "status", "web")
			if !strings.Contains(out, "1 restarted") {
				return out
			}
			return ""
		})
		r.pushed(t, "web")
		resp, err := r.client.ListTasks(shortly(t), &borgrpc.ListTasksRequest{User: r.user, Name: "web"})
		if err != nil || len(resp.Tasks) != 3 {
			t.Fatalf("after %q: %v, %v", how, resp, err)
		}
	}
}

// drains: a batch task that may not fail once is drained from each machine that it comes
// to, and from all at once, and none of that is a failure.
func (r reported) drains(t *testing.T) {
	if out, code := r.cfg(t, "up", r.file, "--set", "what=long"); code != cli.OK {
		t.Fatalf("exit code %d: %s", code, out)
	}
	runs := func(but uint64) {
		t.Helper()
		waitFor(t, "long runs", func() string {
			return r.longIs(t, func(s *borgpb.TaskStatus) bool {
				return s.Attempt != but && s.AttemptState == borgpb.AttemptState_ATTEMPT_STATE_RUNNING && s.Failures == 0
			})
		})
	}
	runs(0)
	machines := []string{r.machineName(1), r.machineName(2), r.machineName(3)}
	for round := range 3 {
		resp, err := r.client.ListTasks(shortly(t), &borgrpc.ListTasksRequest{User: r.user, Name: "long"})
		if err != nil || len(resp.Tasks) != 1 {
			t.Fatalf("%v, %v", resp, err)
		}
		drained, before := []string{resp.Tasks[0].Status.Machine}, resp.Tasks[0].Status.Attempt
		if round == 2 {
			drained = machines
		}
		r.must(t, "borgcfg", append([]string{"--cell", r.cellFile(), "machine", "drain", "--now"}, drained...)...)
		waitFor(t, "long is off "+strings.Join(drained, " "), func() string {
			return r.longIs(t, func(s *borgpb.TaskStatus) bool { return s.Attempt != before || s.Machine == "" })
		})
		r.must(t, "borgcfg", append([]string{"--cell", r.cellFile(), "machine", "undrain"}, drained...)...)
		runs(before)
	}
}

// longIs returns what the only task of long is, unless that is wanted.
func (r reported) longIs(t *testing.T, wanted func(*borgpb.TaskStatus) bool) string {
	resp, err := r.client.ListTasks(shortly(t), &borgrpc.ListTasksRequest{User: r.user, Name: "long"})
	if err != nil || len(resp.Tasks) != 1 || !wanted(resp.Tasks[0].Status) {
		return fmt.Sprint(resp, err)
	}
	return ""
}
