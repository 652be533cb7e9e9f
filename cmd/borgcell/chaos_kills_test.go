package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"syscall"
	"testing"

	"borg/proto/borgpb"
)

// chance is a source of random choices; the log of the test has its seed.
func chance(t *testing.T) *rand.Rand {
	seed := rand.Uint64()
	t.Logf("seed %d (the choices repeat with it, the timing does not)", seed)
	return rand.New(rand.NewPCG(seed, 0))
}

// schedulers are the scheduler processes of all masters.
func (c *Cell) schedulers(t *testing.T) []processID {
	t.Helper()
	found, err := c.marks().find()
	if err != nil {
		t.Fatal(err)
	}
	var ids []processID
	for _, p := range found {
		if words := strings.Fields(p.command); len(words) > 1 && words[0] == c.bin("borgmaster") && words[1] == "scheduler" {
			ids = append(ids, p.processID)
		}
	}
	return ids
}

// again kills a process of the cell with SIGKILL and starts the next one.
func (c *Cell) again(ctx context.Context, name string, start func(context.Context) error) error {
	if err := c.Kill(name); err != nil {
		return err
	}
	return start(ctx)
}

// Every part of a cell is killed, many times and in all orders, while jobs come
// and go: no task dies of it, nothing acknowledged is lost, and nothing is left
// at the end.
func TestEveryPartIsKilled(t *testing.T) {
	alongside(t)
	rounds := size(4, 100)
	c := chaosCell(t, 5, 2)
	random := chance(t)
	before := c.run(t, "web", sleepers(size(8, 100)))
	tasks, err := c.tasks(shortly(t), "web")
	if err != nil {
		t.Fatal(err)
	}
	l, endLoad := c.underLoad(t, 50)
	killed := make(map[string]int)
	for round := range rounds {
		kills := []func(){
			func() {
				i := 1 + random.IntN(c.Masters)
				if err := c.again(t.Context(), c.masterName(i), func(ctx context.Context) error { return c.StartMaster(ctx, i) }); err != nil {
					t.Fatal(err)
				}
				killed["masters"]++
			},
			func() {
				waitFor(t, "a scheduler is killed", func() string {
					for _, id := range c.schedulers(t) {
						// One may have ended with its master meanwhile.
						if id.signal(syscall.SIGKILL) == nil {
							killed["schedulers"]++
							return ""
						}
					}
					return "there is none"
				})
			},
			func() {
				k := 1 + random.IntN(c.Machines)
				if err := c.again(t.Context(), c.machineName(k), func(ctx context.Context) error { return c.StartBorglet(ctx, k) }); err != nil {
					t.Fatal(err)
				}
				killed["borglets"]++
			},
			func() {
				if err := c.shimOf(t, tasks[round%len(tasks)]).signal(syscall.SIGKILL); err != nil {
					t.Fatal(err)
				}
				killed["shims"]++
			},
			// Some are just starting, and some just stopping, when something dies.
			func() { c.churn(t, round) },
		}
		random.Shuffle(len(kills), func(i, j int) { kills[i], kills[j] = kills[j], kills[i] })
		for _, kill := range kills {
			kill()
		}
		l.goesOn(t, size(5, 25))
	}
	endLoad()
	if err := until(shortly(t), "the cell works again", c.ready); err != nil {
		t.Fatal(err)
	}
	c.checkAcks(t, l)
	c.stillSame(t, before, "web")
	last := fmt.Sprintf("churn-%d", rounds-1)
	if _, err := c.jobIs(shortly(t), last, "all tasks run", started); err != nil {
		t.Error(err)
	}
	c.oneEach(t, "web", last)
	if seen, err := c.orphans(); err != nil || len(seen) < len(before) {
		t.Errorf("the look for orphans, which comes when all jobs are dead, sees only %d things of %d tasks that run, %v", len(seen), len(before), err)
	}
	t.Logf("killed: %v; %d submits acknowledged, %d not", killed, len(l.acks), len(l.errs))
	for part, n := range killed {
		if n != rounds {
			t.Errorf("%d %s were killed in %d rounds", n, part, rounds)
		}
	}
}

// churn starts a small job and kills that of the round before.
func (c *Cell) churn(t *testing.T, round int) {
	t.Helper()
	if _, err := c.submit(shortly(t), fmt.Sprintf("churn-%d", round), sleepers(2)); err != nil {
		t.Fatal(err)
	}
	if round == 0 {
		return
	}
	kill := &borgpb.KillJob{User: c.user, Name: fmt.Sprintf("churn-%d", round-1)}
	if _, err := c.client.Mutate(shortly(t), &borgpb.Op{Op: &borgpb.Op_KillJob{KillJob: kill}}); err != nil {
		t.Fatal(err)
	}
}

// oneEach waits until exactly the tasks of some jobs run, each as the one
// process that the cell names.
func (c *Cell) oneEach(t *testing.T, jobs ...string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	err := until(ctx, "each task runs once and nothing else does", func(ctx context.Context) error {
		want, err := c.snap(ctx, jobs...)
		if err != nil {
			return err
		}
		is, err := c.runningTasks()
		if err != nil {
			return err
		}
		for name, pids := range is {
			// In a container the cell knows the init.
			if w, ok := want[name]; !ok || len(pids) != 1 || int64(pids[0]) != w.pid && int64(parentOf(pids[0])) != w.pid {
				return fmt.Errorf("%s runs as %v, the cell knows of %d", name, pids, w.pid)
			}
		}
		if len(is) != len(want) {
			return fmt.Errorf("%d tasks run, the cell knows of %d", len(is), len(want))
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}
