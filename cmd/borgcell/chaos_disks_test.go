package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"borg/borgmaster/client"
	"borg/cli"
	"borg/proto/borgpb"
)

// says runs a program of the cell to its end and returns what it said and its
// exit code.
func (c *Cell) says(t testing.TB, program string, args ...string) (string, int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, c.bin(program), args...)
	cmd.Env = append(os.Environ(), "BORG_IDENTITY="+c.identityFile())
	out, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatalf("%s %s: %v", program, strings.Join(args, " "), err)
	}
	if exit != nil {
		return string(out), exit.ExitCode()
	}
	return string(out), cli.OK
}

// must is says for what has to go well.
func (c *Cell) must(t testing.TB, program string, args ...string) string {
	t.Helper()
	out, code := c.says(t, program, args...)
	if code != cli.OK {
		t.Fatalf("%s %s: exit code %d: %s", program, strings.Join(args, " "), code, out)
	}
	return out
}

// A replica that lost its disk does not come back under its number; another
// takes its place, gets the whole cell as a checkpoint, and its vote; the one
// that was taken out is not heard any more.
func TestLostDiskIsReplaced(t *testing.T) {
	alongside(t)
	c := chaosCell(t, 3, 1)
	before := c.run(t, "web", sleepers(3))
	jobs := size(100, 50_000)
	c.submitMany(t, jobs, unplaceable())
	elected, err := c.electedNow(shortly(t))
	if err != nil {
		t.Fatal(err)
	}
	lost := elected%c.Masters + 1
	// A copy of its disk from before, as of a machine that was thought dead.
	old := filepath.Join(c.dir, "old")
	if err := c.Kill(c.masterName(lost)); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(c.masterDir(lost), old); err != nil {
		t.Fatal(err)
	}
	if out, code := c.says(t, "borgmaster", "serve", "--dir", c.masterDir(lost)); code != cli.Invalid || !strings.Contains(out, "belongs to no replica yet") {
		t.Errorf("serve without a disk: exit code %d: %s", code, out)
	}
	fresh := c.replace(t, elected, lost)
	c.stillSame(t, before, "web")

	// With the others gone but one, its vote is needed and counts.
	follower := 6 - elected - lost
	if err := c.Kill(c.masterName(follower)); err != nil {
		t.Fatal(err)
	}
	if _, err := c.submit(shortly(t), "after", unplaceable()); err != nil {
		t.Fatalf("submit with the vote of the new replica: %v", err)
	}
	if err := c.StartMaster(t.Context(), follower); err != nil {
		t.Fatal(err)
	}
	c.oldDiskIsNotHeard(t, lost, old)
	if resp, err := fresh.GetCell(shortly(t)); err != nil || resp.CellId != c.CellID {
		t.Errorf("the new replica says %v, %v", resp, err)
	}
	if n := len(c.allJobs(t)); n != jobs+2 {
		t.Errorf("%d jobs after all, want %d", n, jobs+2)
	}
}

// submitMany submits jobs of one spec, many at a time.
func (c *Cell) submitMany(t *testing.T, jobs int, spec *borgpb.JobSpec) {
	t.Helper()
	raw, err := proto.Marshal(spec)
	if err != nil {
		t.Fatal(err)
	}
	c.many(t, jobs, func(name string) *borgpb.Op {
		return &borgpb.Op{Op: &borgpb.Op_SubmitJob{SubmitJob: &borgpb.SubmitJob{User: c.user, Name: name, Spec: raw}}}
	})
}

// many does the same to many jobs, some at a time.
func (c *Cell) many(t *testing.T, jobs int, op func(name string) *borgpb.Op) {
	t.Helper()
	const atOnce = 20
	errs := make(chan error, atOnce)
	for worker := range atOnce {
		go func() {
			for n := worker; n < jobs; n += atOnce {
				if _, err := c.client.Mutate(context.Background(), op(fmt.Sprintf("many-%d", n))); err != nil {
					errs <- err
					return
				}
			}
			errs <- nil
		}()
	}
	var err error
	for range atOnce {
		err = errors.Join(err, <-errs)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// replace puts a new replica in the place of a lost one, with the commands that
// docs/run-a-real-cell.md names, and returns when it has its vote and its copy
// of the cell.
func (c *Cell) replace(t *testing.T, elected, lost int) *client.Client {
	t.Helper()
	number := c.Masters + 1
	ask, dir := c.masterAddr(elected), c.masterDir(number)
	c.must(t, "borgmaster", "member", "remove", fmt.Sprint(lost), "--master", ask)
	if out, code := c.says(t, "borgmaster", "init", "--join", ask, "--replica", fmt.Sprint(lost), "--addr", c.masterAddr(lost), "--dir", dir); code == cli.OK || !strings.Contains(out, "take a new number") {
		t.Errorf("join under a number that was used: exit code %d: %s", code, out)
	}
	c.must(t, "borgmaster", "init", "--join", ask, "--replica", fmt.Sprint(number), "--addr", c.masterAddr(number), "--dir", dir)
	began := time.Now()
	if err := c.StartMaster(t.Context(), number); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Kill(c.masterName(number)) })
	waitFor(t, "the new replica is a voter", func() string {
		out := c.must(t, "borgmaster", "member", "list", "--master", ask)
		for line := range strings.Lines(out) {
			if f := strings.Fields(line); f[0] == fmt.Sprint(number) && (f[2] == "voter" || f[2] == "elected") {
				return ""
			}
		}
		return out
	})
	fresh, err := client.New(client.Config{Masters: []string{c.masterAddr(number)}, Identity: c.source, Timeout: askWait, Log: c.log})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { fresh.Close() })
	goal, err := c.Ask(shortly(t), elected)
	if err != nil {
		t.Fatal(err)
	}
	waitFor(t, "the new replica has the whole cell", func() string {
		state, err := fresh.GetCell(t.Context())
		if err != nil || state.AppliedIndex < goal.AppliedIndex {
			return fmt.Sprintf("it is at %d of %d, %v", state.GetAppliedIndex(), goal.AppliedIndex, err)
		}
		return ""
	})
	figure(t, "master.rejoin_ms", float64(time.Since(began).Milliseconds()))
	return fresh
}

// oldDiskIsNotHeard starts a replica that was taken out on its disk of before:
// it is told so, or hears nobody, and it makes no master step down.
func (c *Cell) oldDiskIsNotHeard(t *testing.T, lost int, old string) {
	t.Helper()
	elected, err := c.electedNow(shortly(t))
	if err != nil {
		t.Fatal(err)
	}
	was, err := c.Ask(shortly(t), elected)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
	defer cancel()
	cmd := exec.CommandContext(ctx, c.bin("borgmaster"), "serve", "--dir", old, "--run-dir", c.runOf("old"), "--listen", c.masterAddr(lost))
	cmd.Env = append(os.Environ(), c.envMark())
	var said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &said, &said
	err = cmd.Run()
	t.Logf("the replica that was taken out: %v: %s", err, said.String())
	now, err := c.Ask(shortly(t), elected)
	if err != nil || now.Term != was.Term || now.Elected != was.Elected {
		t.Errorf("after a replica that was taken out came back: term %d, elected %d, %v; before: term %d, elected %d",
			now.GetTerm(), now.GetElected(), err, was.Term, was.Elected)
	}
	if slices.Contains(strings.Fields(c.must(t, "borgmaster", "member", "list", "--master", c.masterAddr(elected))), c.masterAddr(lost)) {
		t.Error("it is a member again")
	}
}

// A follower that was away for so long that the log it needs was compacted is
// sent a checkpoint, and the cell is the same on all replicas after a restart of
// all.
func TestLogIsCompacted(t *testing.T) {
	alongside(t)
	if size(0, 1) == 0 {
		t.Skip("writes more than a replica keeps of its log; set BORG_CHAOS=full")
	}
	const jobs, specBytes = 400, 240 << 10
	c := chaosCell(t, 5, 1)
	before := c.run(t, "web", sleepers(3))
	away, err := c.follower(shortly(t))
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Kill(c.masterName(away)); err != nil {
		t.Fatal(err)
	}
	large := unplaceable()
	large.Task.Args = append(large.Task.Args, strings.Repeat("x", specBytes))
	c.submitMany(t, jobs, large)
	if err := c.StartMaster(t.Context(), away); err != nil {
		t.Fatal(err)
	}
	if err := c.caughtUp(shortly(t), away); err != nil {
		t.Fatal(err)
	}
	said, err := os.ReadFile(c.logPath(c.masterName(away)))
	if err != nil || !strings.Contains(string(said), "checkpoint installed") {
		t.Errorf("the follower caught up without a checkpoint (%v); it said:\n%s", err, said)
	}
	for i := 1; i <= c.Masters; i++ {
		if err := c.Kill(c.masterName(i)); err != nil {
			t.Fatal(err)
		}
	}
	if err := c.StartMasters(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := until(shortly(t), "the cell works again", c.ready); err != nil {
		t.Fatal(err)
	}
	for i := 1; i <= c.Masters; i++ {
		if err := c.caughtUp(shortly(t), i); err != nil {
			t.Error(err)
		}
		state, err := c.Ask(shortly(t), i)
		if err != nil || state.Jobs != jobs+1 {
			t.Errorf("replica %d has %d jobs, %v, want %d", i, state.GetJobs(), err, jobs+1)
		}
	}
	c.stillSame(t, before, "web")
	// All of them at once are more than one answer may hold, at the end too.
	c.many(t, jobs, func(name string) *borgpb.Op {
		return &borgpb.Op{Op: &borgpb.Op_KillJob{KillJob: &borgpb.KillJob{User: c.user, Name: name}}}
	})
}

// A checkpoint of a running replica and of a stopped one are the same cell to
// those who open them, and a file with one wrong byte is refused by all.
func TestCheckpointsOfACell(t *testing.T) {
	alongside(t)
	c := chaosCell(t, 3, 1)
	c.run(t, "web", sleepers(2))
	c.submitMany(t, size(20, 1000), unplaceable())
	elected, err := c.electedNow(shortly(t))
	if err != nil {
		t.Fatal(err)
	}
	follower := elected%c.Masters + 1
	live, offline := filepath.Join(c.dir, "live.checkpoint"), filepath.Join(c.dir, "offline.checkpoint")
	c.must(t, "borgmaster", "checkpoint", "save", "--from", c.masterAddr(follower), live)
	if out, code := c.says(t, "borgmaster", "checkpoint", "save", c.masterDir(follower), offline); code != cli.Failed || !strings.Contains(out, "a replica that is running") {
		t.Errorf("save from the directory of a running replica: exit code %d: %s", code, out)
	}
	// Stopped in order, it has written down all that it has applied.
	if c.sup.get(c.masterName(follower)).stop(t.Context(), stopGrace) {
		t.Error("the follower had to be killed")
	}
	if out := c.must(t, "borgmaster", "checkpoint", "save", c.masterDir(follower), offline); strings.Contains(out, "was killed") {
		t.Errorf("save after an orderly stop: %s", out)
	}
	for _, path := range []string{live, offline} {
		c.must(t, "borgmaster", "checkpoint", "verify", path)
		if out := c.must(t, "borgmaster", "checkpoint", "inspect", path); !strings.Contains(out, c.CellID) {
			t.Errorf("inspect %s: %s", path, out)
		}
		if out := c.must(t, "fauxmaster", "show", path); !strings.Contains(out, "web") {
			t.Errorf("show %s does not tell of the job: %s", path, out)
		}
	}
	whole, err := os.ReadFile(live)
	if err != nil {
		t.Fatal(err)
	}
	bad := filepath.Join(c.dir, "bad.checkpoint")
	for _, at := range []int{0, 20, len(whole) / 2, len(whole) - 1} {
		broken := bytes.Clone(whole)
		broken[at] ^= 0x10
		if err := os.WriteFile(bad, broken, 0o600); err != nil {
			t.Fatal(err)
		}
		for _, args := range [][]string{{"borgmaster", "checkpoint", "verify", bad}, {"fauxmaster", "show", bad}} {
			if out, code := c.says(t, args[0], args[1:]...); code != cli.Invalid {
				t.Errorf("%v with byte %d flipped: exit code %d: %s", args, at, code, out)
			}
		}
	}
}
