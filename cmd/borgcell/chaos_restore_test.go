package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"borg/cli"
)

// The disks of all masters are gone. The operator has a checkpoint from before, the
// authority and the cell keys, and does what docs/restore.md says: the cell serves
// again from new disks, no task has noticed, and what is newer than the checkpoint
// comes back with one command.
func TestCellIsRestored(t *testing.T) {
	alongside(t)
	c := chaosCell(t, 5, 2)
	c.hasLatestFormat(t)
	c.run(t, "web", sleepers(size(6, 80)))
	elected, err := c.electedNow(shortly(t))
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(c.dir, "cell.ckpt")
	c.must(t, "borgmaster", "checkpoint", "save", "--force", "--from", c.masterAddr(elected), file)
	authority := c.keepPapers(t)

	// The cell goes on: tasks move, and there is a job more.
	c.must(t, "borgcfg", "--cell", c.cellFile(), "machine", "drain", c.machineName(1))
	if _, err := c.jobIs(shortly(t), "web", "all tasks run elsewhere", started); err != nil {
		t.Fatal(err)
	}
	c.must(t, "borgcfg", "--cell", c.cellFile(), "machine", "undrain", c.machineName(1))
	c.run(t, "late", sleepers(size(4, 20)))
	before, err := c.snap(shortly(t), "web", "late")
	if err != nil {
		t.Fatal(err)
	}
	if full := time.Duration(size(0, 10)) * time.Minute; full > 0 {
		t.Logf("the checkpoint gets %v old", full)
		<-time.After(full)
	}
	c.loseDisks(t)

	began := time.Now()
	c.restoreMasters(t, file, authority)
	if _, err := c.submit(shortly(t), "after", unplaceable()); err != nil {
		t.Fatalf("submit after the restore: %v", err)
	}
	figure(t, "restore.serving_ms", float64(time.Since(began).Milliseconds()))

	c.machinesHeard(t)
	figure(t, "restore.heard_ms", float64(time.Since(began).Milliseconds()))
	if out := c.must(t, "borgcfg", "--cell", c.cellFile(), "restore", "unknown"); strings.Count(out, "late/") != size(4, 20) || strings.Contains(out, "web/") {
		t.Errorf("what the cell does not know is listed as: %s", out)
	}
	c.must(t, "borgcfg", "--cell", c.cellFile(), "restore", "adopt", "--all")
	if _, err := c.jobIs(shortly(t), "late", "all tasks run", started); err != nil {
		t.Fatal(err)
	}
	if _, err := c.jobIs(shortly(t), "web", "all tasks run", started); err != nil {
		t.Fatal(err)
	}
	c.stillSame(t, before, "web", "late")
	figure(t, "restore.pids_changed", float64(len(before)-before.alive()))
	c.oneEach(t, "web", "late")
	// Both machines take tasks again.
	c.run(t, "new", sleepers(4))
	c.attemptsAreNew(t)
	c.otherCheckpointIsRefused(t, file, authority)
}

// machinesHeard waits until a restored cell has heard all its machines, and found what it does
// not know.
func (c *Cell) machinesHeard(t *testing.T) {
	t.Helper()
	if err := until(shortly(t), "all machines were heard", func(ctx context.Context) error {
		r, err := c.client.GetRestore(ctx)
		if err == nil && (!r.Restored || r.Held || r.Heard < r.Machines || len(r.Unknown) == 0) {
			err = fmt.Errorf("%v", r)
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
}

// keepPapers copies what an operator keeps beside the checkpoints.
func (c *Cell) keepPapers(t testing.TB) (authority string) {
	t.Helper()
	dir := filepath.Join(c.dir, "papers")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"authority.pem", "cell-keys.json"} {
		data, err := os.ReadFile(filepath.Join(c.masterDir(1), name))
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return filepath.Join(dir, "authority.pem")
}

// loseDisks ends all masters and everything that they had.
func (c *Cell) loseDisks(t *testing.T) {
	t.Helper()
	for i := 1; i <= c.Masters; i++ {
		if err := c.Kill(c.masterName(i)); err != nil {
			t.Fatal(err)
		}
	}
	for i := 1; i <= c.Masters; i++ {
		if err := os.RemoveAll(c.masterDir(i)); err != nil {
			t.Fatal(err)
		}
	}
}

func (c *Cell) restoreArgs(i int, file, authority string, more ...string) []string {
	var members []string
	for j := 1; j <= c.Masters; j++ {
		members = append(members, fmt.Sprintf("%d=%s", j, c.masterAddr(j)))
	}
	return append([]string{"checkpoint", "restore", "--from", file, "--replica", fmt.Sprint(i), "--members", strings.Join(members, ","),
		"--authority", authority, "--dir", c.masterDir(i)}, more...)
}

// restoreMasters does it with the commands of docs/restore.md.
func (c *Cell) restoreMasters(t *testing.T, file, authority string) {
	t.Helper()
	if out := c.must(t, "borgmaster", c.restoreArgs(1, file, authority)...); !strings.Contains(out, "nothing was done") {
		t.Errorf("without --yes: %s", out)
	}
	for i := 1; i <= c.Masters; i++ {
		c.must(t, "borgmaster", c.restoreArgs(i, file, authority, "--yes")...)
	}
	if err := c.StartMasters(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// attemptsAreNew: a task that is placed anew does not get the number of a copy that
// the cell has forgotten.
func (c *Cell) attemptsAreNew(t *testing.T) {
	t.Helper()
	was, err := c.tasks(shortly(t), "web")
	if err != nil {
		t.Fatal(err)
	}
	c.must(t, "borgcfg", "--cell", c.cellFile(), "machine", "drain", c.machineName(2))
	defer c.must(t, "borgcfg", "--cell", c.cellFile(), "machine", "undrain", c.machineName(2))
	if _, err := c.jobIs(shortly(t), "web", "all tasks run elsewhere", started); err != nil {
		t.Fatal(err)
	}
	now, err := c.tasks(shortly(t), "web")
	if err != nil {
		t.Fatal(err)
	}
	moved := 0
	for i, task := range now {
		if task.Status.GetAttempt() == was[i].Status.GetAttempt() {
			continue
		}
		if moved++; task.Status.Attempt < 1_000_000_000 {
			t.Errorf("task %s was attempt %d and is attempt %d: the earlier epoch may have given that out", taskName(task), was[i].Status.Attempt, task.Status.Attempt)
		}
	}
	if moved == 0 {
		t.Error("no task has moved")
	}
}

// otherCheckpointIsRefused: a directory that holds something is left as it is.
func (c *Cell) otherCheckpointIsRefused(t *testing.T, file, authority string) {
	t.Helper()
	if out, code := c.says(t, "borgmaster", c.restoreArgs(1, file, authority, "--yes")...); code != cli.Conflict || !strings.Contains(out, "already belongs to replica 1") {
		t.Errorf("restore over a replica: exit code %d: %s", code, out)
	}
	bad := filepath.Join(c.dir, "bad.ckpt")
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	data[len(data)/2] ^= 1
	if err := os.WriteFile(bad, data, 0o600); err != nil {
		t.Fatal(err)
	}
	args := append(c.restoreArgs(1, bad, authority, "--yes"), "--dir", filepath.Join(c.dir, "elsewhere"))
	if out, code := c.says(t, "borgmaster", args...); code != cli.Invalid || !strings.Contains(out, "damaged") {
		t.Errorf("restore from a checkpoint with a wrong byte: exit code %d: %s", code, out)
	}
}
