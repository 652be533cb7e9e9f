package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"borg/cli"
)

// faultyMasters is a cell that does not run yet, of three masters whose disks hang and
// fail when told.
func faultyMasters(t *testing.T) (*Cell, *disks, []*ownDisk) {
	t.Helper()
	// The journals have to be few blocks, and all of it one group of them.
	const bytes = 120 << 20
	all := newDisks(t)
	c := newChaosCell(t, 3, 1)
	each := make([]*ownDisk, c.Masters+1)
	for i := 1; i <= c.Masters; i++ {
		each[i] = all.faulty(t, c.masterDir(i), bytes)
	}
	c.startAll(t)
	return c, all, each
}

// steppedDown waits until another master than one is elected, and returns how long
// after a moment that was.
func (c *Cell) steppedDown(t *testing.T, one int, since time.Time) time.Duration {
	t.Helper()
	err := until(shortly(t), "another master is elected", func(ctx context.Context) error {
		for i := 1; i <= c.Masters; i++ {
			if i == one {
				continue
			}
			if state, err := c.Ask(ctx, i); err == nil && state.Elected == uint64(i) {
				return nil
			}
		}
		return errors.New("none is")
	})
	if err != nil {
		t.Fatal(err)
	}
	return time.Since(since)
}

// canBeElected has a master elected, if it is not.
func (c *Cell) canBeElected(t *testing.T, i int) {
	t.Helper()
	waitFor(t, fmt.Sprintf("master %d is elected again", i), func() string {
		out, code := c.master(t, "transfer", fmt.Sprint(i))
		if code != cli.OK {
			return out
		}
		return ""
	})
	if elected, err := c.electedNow(shortly(t)); err != nil || elected != i {
		t.Errorf("master %d is elected, %v; want %d", elected, err, i)
	}
}

// The elected master's disk hangs: another one takes over at once, what the cell does
// goes on, and when the disk goes on the master follows, and can be elected.
func TestMastersDiskStalls(t *testing.T) {
	alongside(t)
	c, _, disks := faultyMasters(t)
	before := c.run(t, "web", sleepers(size(3, 20)))
	l, endLoad := c.underLoad(t, size(50, 200))
	var stepped, gaps []time.Duration
	for round := range size(1, 5) {
		l.goesOn(t, 20)
		elected, err := c.electedNow(shortly(t))
		if err != nil {
			t.Fatal(err)
		}
		pid := c.PID(c.masterName(elected))
		hung := time.Now()
		disks[elected].fault.hang()
		stepped = append(stepped, c.steppedDown(t, elected, hung))
		gaps = append(gaps, l.ackedAgain(t, hung))
		c.run(t, fmt.Sprintf("meanwhile-%d", round), sleepers(2))
		<-time.After(time.Until(hung.Add(time.Duration(size(2, 10)) * time.Second)))
		l.goesOn(t, 20)
		disks[elected].fault.goOn()
		if err := c.caughtUp(shortly(t), elected); err != nil {
			t.Fatal(err)
		}
		if now := c.PID(c.masterName(elected)); now != pid {
			t.Errorf("master %d was process %d before its disk hung, and is %d", elected, pid, now)
		}
		c.canBeElected(t, elected)
	}
	endLoad()
	c.lostNothing(t, l, before)
	t.Logf("until another was elected: %v; until a write was acknowledged: %v", rounded(stepped), rounded(gaps))
	took(t, "master.stalled_disk.step_down_ms", "master.stalled_disk.step_down_most_ms", 1, stepped)
}

// The elected master's disk returns errors, for what is in files alone or for all that
// is written: it ends, another one takes over, and when the disk is well it comes back,
// by itself or once its file system was mounted again. It counts on nothing that the
// disk has not: it keeps what it acknowledges afterwards, also with what the kernel
// remembers gone.
func TestMastersDiskFails(t *testing.T) {
	alongside(t)
	c, all, disks := faultyMasters(t)
	before := c.run(t, "web", sleepers(size(3, 20)))
	l, endLoad := c.underLoad(t, size(50, 200))
	var stepped, gaps []time.Duration
	for round := range size(2, 6) {
		l.goesOn(t, 20)
		elected, err := c.electedNow(shortly(t))
		if err != nil {
			t.Fatal(err)
		}
		name, disk := c.masterName(elected), disks[elected]
		journal := round%2 == 1
		from := disk.filesFrom
		if journal {
			from = 0
		}
		failed := time.Now()
		disk.fault.fail(from)
		stepped = append(stepped, c.steppedDown(t, elected, failed))
		gaps = append(gaps, l.ackedAgain(t, failed))
		waitFor(t, name+" says why", func() string {
			if said := c.sup.get(name).logTail(logEndBytes); !strings.Contains(said, "input/output error") && !strings.Contains(said, "read-only file system") {
				return "it says " + said
			}
			return ""
		})
		<-time.After(time.Until(failed.Add(time.Duration(size(1, 10)) * time.Second)))
		disk.fault.heal()
		if journal {
			// The kernel lets nobody write to it any more. Whether the master runs at this
			// moment is chance: it is started again and again.
			c.sup.get(name).stop(t.Context(), stopGrace)
			all.again(t, disk)
			if err := c.StartMaster(t.Context(), elected); err != nil {
				t.Fatal(err)
			}
		}
		if err := c.caughtUp(shortly(t), elected); err != nil {
			t.Fatal(err)
		}
		c.keepsWhatItAcks(t, l, elected, func() { all.again(t, disk) })
	}
	endLoad()
	c.lostNothing(t, l, before)
	t.Logf("until another was elected: %v; until a write was acknowledged: %v", rounded(stepped), rounded(gaps))
	took(t, "master.failed_disk.step_down_ms", "master.failed_disk.step_down_most_ms", 1, stepped)
}

// lostNothing wants the cell to work, all that was acknowledged under load in it, and the
// tasks of web to be who they were.
func (c *Cell) lostNothing(t *testing.T, l *load, before snapshot) {
	t.Helper()
	if err := until(shortly(t), "the cell works again", c.ready); err != nil {
		t.Fatal(err)
	}
	c.checkAcks(t, l)
	c.stillSame(t, before, "web")
	t.Logf("%d submits acknowledged, %d not", len(l.acks), len(l.errs))
}

// keepsWhatItAcks makes one of three masters the only one that has what is acknowledged,
// after a power failure of it: what it has lost is then lost to the cell.
func (c *Cell) keepsWhatItAcks(t *testing.T, l *load, one int, powerFailure func()) {
	t.Helper()
	late, gone := one%c.Masters+1, (one+1)%c.Masters+1
	if err := c.Kill(c.masterName(late)); err != nil {
		t.Fatal(err)
	}
	l.goesOn(t, 20)
	for _, i := range []int{one, gone} {
		if err := c.Kill(c.masterName(i)); err != nil {
			t.Fatal(err)
		}
	}
	powerFailure()
	began := time.Now()
	for _, i := range []int{one, late} {
		if err := c.StartMaster(t.Context(), i); err != nil {
			t.Fatal(err)
		}
	}
	l.ackedAgain(t, began)
	if err := c.StartMaster(t.Context(), gone); err != nil {
		t.Fatal(err)
	}
	for i := 1; i <= c.Masters; i++ {
		if err := c.caughtUp(shortly(t), i); err != nil {
			t.Fatal(err)
		}
	}
}
