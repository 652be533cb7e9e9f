package main

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"borg/proto/borgpb"
)

// fill leaves no byte free beside dir, and returns what makes room again.
func fill(t *testing.T, dir string) (empty func()) {
	t.Helper()
	path := filepath.Join(dir, "ballast")
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for chunk := 1 << 20; chunk > 0; chunk /= 2 {
		for err = nil; err == nil; {
			_, err = f.Write(make([]byte, chunk))
		}
		if !errors.Is(err, syscall.ENOSPC) {
			t.Fatal(err)
		}
	}
	return func() {
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
	}
}

// The elected master's disk is full: it says so and stops, another one takes
// over, and once there is room it comes back, with everything.
func TestMastersDiskIsFull(t *testing.T) {
	alongside(t)
	disks := newDisks(t)
	c := newChaosCell(t, 3, 1)
	for i := 1; i <= c.Masters; i++ {
		disks.plain(t, c.masterDir(i), 256<<20)
	}
	c.startAll(t)
	before := c.run(t, "web", sleepers(size(3, 20)))
	if _, err := c.submit(shortly(t), "large", unplaceable()); err != nil {
		t.Fatal(err)
	}
	l, endLoad := c.underLoad(t, size(50, 200))
	var stepped []time.Duration
	for round := range size(1, 5) {
		l.goesOn(t, 20)
		full, err := c.electedNow(shortly(t))
		if err != nil {
			t.Fatal(err)
		}
		name := c.masterName(full)
		filled := time.Now()
		empty := fill(t, c.masterDir(full))
		for n := 0; ; n++ {
			// The room that the log had taken before is used up first.
			tried := time.Now()
			c.writeLarge(t, fmt.Sprintf("%d-%d", round, n))
			took := time.Since(tried)
			if now, err := c.electedNow(shortly(t)); err == nil && now != full {
				stepped = append(stepped, took)
				break
			}
		}
		t.Logf("%s gave up %v after its disk was full; the write for which there was no room took %v, and was done by another", name, time.Since(filled).Round(time.Millisecond), stepped[round].Round(time.Millisecond))
		l.goesOn(t, size(50, 500))
		waitFor(t, name+" says why", func() string {
			if said := c.sup.get(name).logTail(logEndBytes); !strings.Contains(said, "no space left on device") {
				return "it says " + said
			}
			return ""
		})
		empty()
		if err := c.caughtUp(shortly(t), full); err != nil {
			t.Fatal(err)
		}
	}
	endLoad()
	c.lostNothing(t, l, before)
	took(t, "master.full_disk.step_down_ms", "master.full_disk.step_down_most_ms", 1, stepped)
}

// writeLarge gives a job another spec, of about as many bytes as one may have.
func (c *Cell) writeLarge(t *testing.T, mark string) {
	t.Helper()
	if err := c.tryWriteLarge(shortly(t), mark); err != nil {
		t.Fatal(err)
	}
}

func (c *Cell) tryWriteLarge(ctx context.Context, mark string) error {
	large := unplaceable()
	// What can be made smaller would fill no disk.
	chance := make([]byte, 150<<10)
	rand.Read(chance)
	large.Task.Args = append(large.Task.Args, mark, base64.StdEncoding.EncodeToString(chance))
	raw, err := proto.Marshal(large)
	if err == nil {
		_, err = c.client.Mutate(ctx, &borgpb.Op{Op: &borgpb.Op_UpdateJob{UpdateJob: &borgpb.UpdateJob{User: c.user, Name: "large", Spec: raw}}})
	}
	return err
}

// A machine's disk is full: what runs there goes on, what is to stop stops, what
// is to start waits and says why, and starts once there is room; also with a
// borglet that was killed meanwhile.
func TestMachinesDiskIsFull(t *testing.T) {
	alongside(t)
	disks := newDisks(t)
	c := newChaosCell(t, 1, 1)
	disks.plain(t, c.borgletDir(1), 64<<20)
	c.startAll(t)
	before := c.run(t, "web", sleepers(3))
	for round := range size(1, 6) {
		doomed, later := fmt.Sprintf("doomed-%d", round), fmt.Sprintf("later-%d", round)
		c.run(t, doomed, sleepers(2))
		empty := fill(t, c.borgletDir(1))
		if _, err := c.submit(shortly(t), later, sleepers(2)); err != nil {
			t.Fatal(err)
		}
		if round%2 == 0 {
			if err := c.again(t.Context(), c.machineName(1), func(ctx context.Context) error { return c.StartBorglet(ctx, 1) }); err != nil {
				t.Fatal(err)
			}
		}
		waitFor(t, "the tasks that do not start say why", func() string {
			tasks, err := c.tasks(t.Context(), later)
			if err != nil || len(tasks) == 0 {
				return fmt.Sprintf("%v, %v", tasks, err)
			}
			for _, task := range tasks {
				if !strings.Contains(task.Status.GetReason(), "is full") {
					return "a task is " + task.Status.String()
				}
			}
			return ""
		})
		kill := &borgpb.KillJob{User: c.user, Name: doomed}
		if _, err := c.client.Mutate(shortly(t), &borgpb.Op{Op: &borgpb.Op_KillJob{KillJob: kill}}); err != nil {
			t.Fatal(err)
		}
		if _, err := c.jobIs(shortly(t), doomed, "what was killed has stopped", func(j *borgpb.Job) bool { return j.Status.GetStopping() == 0 }); err != nil {
			t.Error(err)
		}
		if n, err := c.runningOf(doomed); err != nil || n > 0 {
			t.Errorf("%d processes of a job that was killed, %v", n, err)
		}
		c.stillSame(t, before, "web")
		empty()
		if _, err := c.jobIs(shortly(t), later, "all tasks run", started); err != nil {
			t.Error(err)
		}
		c.stillSame(t, before, "web")
	}
}

// Masters on file systems of 64 MiB fill them by what they write themselves, until
// nobody can write any more. Nothing that was acknowledged is lost, and with larger
// ones all of them come back, by themselves where a file system grows in use.
func TestSmallDisksFill(t *testing.T) {
	alongside(t)
	disks := newDisks(t)
	const small, large = 64 << 20, 1 << 30
	c := newChaosCell(t, 3, 1)
	var filled []*ownDisk
	for i := 1; i <= c.Masters; i++ {
		filled = append(filled, disks.plain(t, c.masterDir(i), small))
	}
	c.startAll(t)
	before := c.run(t, "web", sleepers(2))
	if _, err := c.submit(shortly(t), "large", unplaceable()); err != nil {
		t.Fatal(err)
	}
	l, endLoad := c.underLoad(t, size(20, 50))
	l.goesOn(t, 20)
	// The log alone has that many bytes long before.
	const most = 4 * small / (200 << 10)
	written := 0
	for ; written < most; written++ {
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		err := c.tryWriteLarge(ctx, fmt.Sprint(written))
		cancel()
		if err != nil {
			t.Logf("after %d large writes: %v", written, err)
			break
		}
	}
	if written == most {
		t.Fatalf("%d MiB were written to %d MiB", most*200>>10, small>>20)
	}
	var stopped []int
	for i, disk := range filled {
		disks.grow(t, disk, large, func() {
			// One that waits for room while it starts stops too.
			if c.sup.get(c.masterName(i+1)).stop(t.Context(), 30*time.Second) {
				t.Errorf("%s does not stop when it is told to", c.masterName(i+1))
			}
			stopped = append(stopped, i+1)
		})
	}
	for _, i := range stopped {
		if err := c.StartMaster(shortly(t), i); err != nil {
			t.Fatal(err)
		}
	}
	began := time.Now()
	t.Logf("an acknowledged write %v after there was room", l.ackedAgain(t, began).Round(time.Millisecond))
	for i := 1; i <= c.Masters; i++ {
		if err := c.caughtUp(shortly(t), i); err != nil {
			t.Error(err)
		}
	}
	l.goesOn(t, 20)
	endLoad()
	c.lostNothing(t, l, before)
}
