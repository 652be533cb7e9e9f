package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"borg/fauxmaster/fleet"
	"borg/proto/borgpb"
	"borg/proto/borgrpc"
	"borg/scheduler/reservation"
)

// What tasks reserve and do not use is given to others, who give way when it is wanted
// back (paper §5.5, §6.2).
func TestReclaimedAndSqueezed(t *testing.T) {
	alongside(t)
	t.Run("reclaimed", reclaimed)
	t.Run("squeezed", squeezed)
}

const gib = 1 << 30

// reclaimed: a task of 10 GiB that uses 2 reserves its limit for a while and then falls
// to its use and the margin, never faster than it should and never back up, although
// the elected master is killed on the way; and it has what it uses as soon as it uses
// more. In full size with the times that are shipped.
func reclaimed(t *testing.T) {
	alongside(t)
	const limit, quiet = 10 * gib, 2 * gib
	with := reservation.Medium.Config()
	aim := float64(quiet) * float64(1000+with.MarginPermille) / 1000
	// It is in the log when it has moved by more than a twentieth.
	done, busy := aim*1.06, 6*gib
	hold, half := 2*time.Second, 2500*time.Millisecond
	full := size(1, 0) == 0
	c := fakeCell(t, 5, 3, fleet.Life{})
	c.alter = func(spec *processSpec) {
		if strings.HasPrefix(spec.Name, "master-") && !full {
			spec.Args = append(spec.Args, "--reservation-hold", hold.String(), "--reservation-half-life", half.String())
		}
	}
	if full {
		hold, half = time.Duration(with.HoldNs), time.Duration(with.HalfLifeNs)
		// All the way takes an hour.
		done, busy = 7*gib, 9*gib
	}
	if err := c.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	c.hasLatestFormat(t)
	if err := c.FakeUse(t.Context(), 100*quiet/limit); err != nil {
		t.Fatal(err)
	}
	spec := sleepers(1)
	spec.Task.Resources.MemBytes = limit
	c.run(t, "big", spec)

	f := &fall{t: t, c: c, limit: limit, aim: aim, hold: hold, half: half, last: limit}
	f.below(0.88 * limit)
	killed, before := f.killElected(), f.last
	// By the next one.
	c.uses(t, "big", quiet)
	f.below(done)
	t.Logf("master %d was killed at %.2f GiB; %.2f GiB are reserved after %s", killed, before/gib, f.last/gib, time.Since(f.started).Round(time.Millisecond))
	if now, err := c.Elected(shortly(t)); err != nil || now == killed {
		t.Errorf("elected is %d, %v; want another one than %d", now, err, killed)
	}

	if err := c.FakeUse(t.Context(), 100*busy/limit); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	err := until(shortly(t), "what is used is reserved", func(ctx context.Context) error {
		now, _, err := f.reserves(ctx)
		if err == nil && now < float64(busy) {
			err = fmt.Errorf("%.2f GiB are reserved", now/gib)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("what is used was reserved %s after it rose", time.Since(began).Round(time.Millisecond))
}

// fall is a reservation that falls.
type fall struct {
	t          *testing.T
	c          *Cell
	limit, aim float64
	hold, half time.Duration
	// When the process of the task started, and what was reserved last.
	started time.Time
	last    float64
}

// reserves is how much memory the task reserves, and since when its process runs.
func (f *fall) reserves(ctx context.Context) (bytes float64, started time.Time, err error) {
	tasks, err := f.c.tasks(ctx, "big")
	if err != nil {
		return 0, started, err
	}
	if len(tasks) != 1 || tasks[0].Status.State != borgpb.State_STATE_RUNNING {
		return 0, started, fmt.Errorf("the job has %d tasks: %v", len(tasks), tasks)
	}
	st := tasks[0].Status
	return float64(st.GetReservation().GetResources().GetMemBytes()), time.Unix(0, st.StartedWallNs), nil
}

// below looks on until it has fallen so far, and holds it to the curve.
func (f *fall) below(bytes float64) {
	f.t.Helper()
	// Use is told every 5 s, and a master is elected meanwhile, perhaps.
	const word = 10 * time.Second
	ctx, cancel := context.WithTimeout(f.t.Context(), f.hold+10*f.half+2*time.Minute)
	defer cancel()
	for first := true; first || f.last > bytes; {
		// In a cell at rest time goes on in steps of seconds.
		_, err := f.c.client.Mutate(ctx, &borgpb.Op{Op: &borgpb.Op_SetMachine{SetMachine: &borgpb.SetMachine{
			Name: f.c.machineName(1), SetAttributes: map[string]string{"looked": time.Now().Format("05")},
		}}})
		now, started, err2 := f.reserves(ctx)
		err = errors.Join(err, err2)
		if ctx.Err() != nil {
			f.t.Fatalf("%.2f GiB are reserved, want at most %.2f: %v", f.last/gib, bytes/gib, err)
		}
		if err != nil {
			// Nobody is elected.
			<-time.After(20 * time.Millisecond)
			continue
		}
		if f.started.IsZero() {
			f.started = started
		}
		fell := time.Since(f.started) - f.hold
		least := f.aim + (f.limit-f.aim)*math.Exp2(-max(0, (fell+word).Seconds()/f.half.Seconds()))
		switch {
		case !started.Equal(f.started):
			f.t.Fatal("the task was started anew")
		case now < f.limit && fell < 0:
			f.t.Fatalf("%.2f GiB are reserved %s before the limit is let go", now/gib, -fell)
		case now > f.last:
			f.t.Fatalf("%.2f GiB were reserved, and now %.2f", f.last/gib, now/gib)
		case now < least*0.95:
			f.t.Fatalf("%.2f GiB are reserved after %s of falling, want %.2f at least", now/gib, fell, least/gib)
		case now < f.last:
			f.t.Logf("after %s: %.2f GiB", time.Since(f.started).Round(time.Millisecond), now/gib)
		}
		f.last, first = now, false
		<-time.After(min(f.half/50, time.Second))
	}
}

// killElected kills whoever is elected.
func (f *fall) killElected() (number int) {
	f.t.Helper()
	number, err := f.c.electedNow(shortly(f.t))
	if err == nil {
		err = f.c.Kill(f.c.masterName(number))
	}
	if err != nil {
		f.t.Fatal(err)
	}
	return number
}

// What the tasks of squeezed ask for and use. The machine has room for production by
// its limits, and for all others in what production does not use.
const (
	squeezedMachine                = 232 << 20
	productionLimit, productionUse = 80 << 20, 68 << 20
	otherLimit, otherUse           = 64 << 20, 54 << 20
	keepsMemory                    = "{ head -c %d /dev/zero; exec sleep 1000000; } | tail"
)

// squeezed: tasks of low priority fill what production has and does not use. When
// production wants it, they end, the lowest priority first, and no more than must;
// production goes on as it was.
func squeezed(t *testing.T) {
	alongside(t)
	c := newChaosCell(t, 3, 1)
	c.Capacity = fmt.Sprintf("cpu=4,mem=%d,disk=1GiB", squeezedMachine)
	c.alter = func(spec *processSpec) {
		if strings.HasPrefix(spec.Name, "master-") {
			spec.Args = append(spec.Args, "--reservations", "aggressive", "--reservation-hold", "1s", "--reservation-half-life", "1s")
		}
	}
	c.startAll(t)
	if text, err := c.runtimes(t.Context()); err != nil || !strings.Contains(text, "container") {
		t.Skipf("nothing holds tasks to their memory here: %s, %v", text, err)
	}
	c.hasLatestFormat(t)

	production := c.run(t, "production", surging(2))
	c.reserveLess(t, "production", productionLimit/4)
	others := map[string]snapshot{}
	priorities := map[string]int32{"low": 10, "middle": 50, "high": 100}
	for _, name := range []string{"high", "middle", "low"} {
		others[name] = c.run(t, name, filling(priorities[name]))
		c.uses(t, name, otherUse)
	}

	order := []string{"low", "middle", "high"}
	for i, gives := range order[:2] {
		tasks, err := c.tasks(shortly(t), "production")
		if err != nil {
			t.Fatal(err)
		}
		if err := syscall.Kill(int(tasks[i].Status.Pid), syscall.SIGUSR1); err != nil {
			t.Fatal(err)
		}
		c.gaveWay(t, gives)
		c.uses(t, "production", int64(i+1)*productionUse)
		for _, stays := range order[i+1:] {
			c.stillSame(t, others[stays], stays)
		}
	}
	c.stillSame(t, production, "production")
	for _, task := range production {
		c.untouched(t, int(task.pid))
	}
}

// surging is production that uses next to nothing until it gets a signal.
func surging(tasks int) *borgpb.JobSpec {
	spec := sleepers(tasks)
	spec.Task.Args = []string{"/bin/sh", "-c", "trap go=1 USR1; until [ -n \"$go\" ]; do sleep 0.1; done; " + fmt.Sprintf(keepsMemory, productionUse)}
	spec.Task.Resources.MemBytes = productionLimit
	return spec
}

// filling is a batch job of one task that uses as much as it asks for, nearly.
func filling(priority int32) *borgpb.JobSpec {
	spec := sleepers(1)
	spec.Kind, spec.Priority, spec.MaxFailures = borgpb.JobKind_JOB_KIND_BATCH, priority, 1000
	spec.Task.Args = []string{"/bin/sh", "-c", fmt.Sprintf(keepsMemory, otherUse)}
	spec.Task.Resources.MemBytes = otherLimit
	return spec
}

// reserveLess waits until no task of a job reserves more than so much.
func (c *Cell) reserveLess(t *testing.T, job string, bytes int64) {
	t.Helper()
	err := until(shortly(t), "what is not used is not reserved", func(ctx context.Context) error {
		tasks, err := c.tasks(ctx, job)
		for _, task := range tasks {
			if now := task.Status.GetReservation().GetResources().GetMemBytes(); now > bytes {
				err = errors.Join(err, fmt.Errorf("%s reserves %d bytes", taskName(task), now))
			}
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

// uses waits until the tasks of a job use so much together.
func (c *Cell) uses(t *testing.T, job string, bytes int64) {
	t.Helper()
	err := until(shortly(t), "its tasks use what they are to", func(ctx context.Context) error {
		resp, err := c.client.ListAllTasks(ctx, &borgrpc.ListTasksRequest{User: c.user, Name: job, Used: true}, 0)
		if err != nil {
			return err
		}
		sum := int64(0)
		for _, task := range resp.Tasks {
			sum += task.Status.GetUsed().GetMemBytes()
		}
		if sum < bytes {
			return fmt.Errorf("%s uses %d bytes, want %d", job, sum, bytes)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// gaveWay waits until the one task of a job has ended for want of memory.
func (c *Cell) gaveWay(t *testing.T, job string) {
	t.Helper()
	err := until(shortly(t), job+" gives way", func(ctx context.Context) error {
		resp, err := c.client.ListAllTasks(ctx, &borgrpc.ListTasksRequest{User: c.user, Name: job, Attempts: true}, 0)
		if err != nil {
			return err
		}
		squeezed := func(a *borgpb.Attempt) bool { return a.GetExit().GetOom() }
		if len(resp.Tasks) != 1 || !slices.ContainsFunc(resp.Tasks[0].Status.Attempts, squeezed) {
			return fmt.Errorf("%s is %v", job, resp.Tasks)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// untouched fails unless the kernel has neither ended nor held back anything in the
// cgroups of a process.
func (c *Cell) untouched(t *testing.T, pid int) {
	t.Helper()
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid))
	if err != nil {
		t.Fatal(err)
	}
	looked := 0
	for line := range strings.Lines(string(data)) {
		parts := strings.SplitN(strings.TrimSpace(line), ":", 3)
		for _, file := range []string{"cpu.stat", "memory.oom_control", "memory.events"} {
			// The controllers' own directories, or the one of all.
			said, err := os.ReadFile(filepath.Join("/sys/fs/cgroup", parts[1], parts[2], file))
			if err != nil {
				continue
			}
			looked++
			for field := range strings.Lines(string(said)) {
				switch name, value, _ := strings.Cut(strings.TrimSpace(field), " "); name {
				case "nr_throttled", "oom_kill", "oom":
					if value != "0" {
						t.Errorf("process %d: %s of %s is %s, want 0", pid, name, file, value)
					}
				}
			}
		}
	}
	if looked == 0 {
		t.Errorf("process %d: nothing is known of its cgroups:\n%s", pid, data)
	}
}
