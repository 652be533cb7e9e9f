package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"borg/borgmaster/cell"
	"borg/cli"
)

// master runs a command of borgcfg master as the user who runs the cell.
func (c *Cell) master(t *testing.T, args ...string) (string, int) {
	t.Helper()
	return c.says(t, "borgcfg", append([]string{"--cell", strings.Join(c.masterAddrs(), ","), "master"}, args...)...)
}

// longestGap is the longest time without an acknowledged submit between two moments.
func (l *load) longestGap(from, to time.Time) time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	last, longest := from, time.Duration(0)
	for _, a := range l.acks {
		if a.ended.Before(from) || a.ended.After(to) {
			continue
		}
		longest, last = max(longest, a.ended.Sub(last)), a.ended
	}
	return longest
}

// An admin has one master after the other elected, under load: nothing
// acknowledged is lost, and each time is hardly noticed.
func TestElectionIsTransferred(t *testing.T) {
	alongside(t)
	c := chaosCell(t, 3, 1)
	l, endLoad := c.underLoad(t, size(50, 200))
	l.goesOn(t, 20)
	var gaps []time.Duration
	for round := range size(4, 100) {
		elected, err := c.electedNow(shortly(t))
		if err != nil {
			t.Fatal(err)
		}
		to := elected%c.Masters + 1
		args := []string{"transfer", fmt.Sprint(to)}
		if round%4 == 3 {
			args = args[:1]
		}
		began := time.Now()
		out, code := c.master(t, args...)
		if code != cli.OK || !strings.Contains(out, "is elected; nothing was written for") {
			t.Fatalf("master %v: exit code %d: %s", args, code, out)
		}
		if now, err := c.electedNow(shortly(t)); err != nil || len(args) > 1 && now != to {
			t.Errorf("after a transfer to master %d, %d is elected, %v", to, now, err)
		}
		l.goesOn(t, 20)
		gaps = append(gaps, l.longestGap(began, time.Now()))
	}
	if out, code := c.master(t, "transfer", "9"); code != cli.NotFound || !strings.Contains(out, "no member 9") {
		t.Errorf("transfer to nobody: exit code %d: %s", code, out)
	}
	elected, err := c.electedNow(shortly(t))
	if err != nil {
		t.Fatal(err)
	}
	if out, code := c.master(t, "transfer", fmt.Sprint(elected)); code != cli.OK || !strings.Contains(out, "elected already") {
		t.Errorf("transfer to the elected one: exit code %d: %s", code, out)
	}
	gone := elected%c.Masters + 1
	if err := c.Kill(c.masterName(gone)); err != nil {
		t.Fatal(err)
	}
	waitFor(t, "a transfer to a dead master is refused", func() string {
		if out, code := c.master(t, "transfer", fmt.Sprint(gone)); code != cli.Refused || !strings.Contains(out, "was not heard just now") {
			return fmt.Sprintf("exit code %d: %s", code, out)
		}
		return ""
	})
	endLoad()
	c.checkAcks(t, l)
	t.Logf("%d transfers, %d submits acknowledged, %d errors; longest times without an acknowledged one: %v", len(gaps), len(l.acks), len(l.errs), rounded(gaps))
	took(t, "master.transfer.median_ms", "master.transfer.most_ms", 1, gaps)
}

// knows makes masters up to n known to this test's clients, some of which may not
// be there.
func (c *Cell) knows(t *testing.T, n int) {
	t.Helper()
	c.Masters = n
	old, each := c.client, c.each
	if c.each = nil; c.dial() != nil {
		t.Fatal("no clients")
	}
	t.Cleanup(func() {
		old.Close()
		for _, one := range each {
			one.Close()
		}
	})
}

// joins starts a new replica of that number, with the commands of docs/masters.md.
func (c *Cell) joins(t *testing.T, number int) {
	t.Helper()
	elected, err := c.electedNow(shortly(t))
	if err != nil {
		t.Fatal(err)
	}
	c.must(t, "borgmaster", "init", "--join", c.masterAddr(elected), "--replica", fmt.Sprint(number), "--addr", c.masterAddr(number), "--dir", c.masterDir(number))
	if err := c.StartMaster(t.Context(), number); err != nil {
		t.Fatal(err)
	}
}

// masterOK is master for what has to go well in the end: an election may come
// between, and then the command is given again.
func (c *Cell) masterOK(t *testing.T, args ...string) string {
	t.Helper()
	out, code := c.master(t, args...)
	for range 5 {
		if code == cli.OK {
			return out
		}
		t.Logf("master %v: exit code %d: %s", args, code, out)
		out, code = c.master(t, args...)
	}
	t.Fatalf("master %v: exit code %d: %s", args, code, out)
	return ""
}

// A cell grows from one master to five and shrinks to one again, under load, and
// its first one is none of the last: nothing acknowledged is lost.
func TestMastersGrowAndShrink(t *testing.T) {
	alongside(t)
	c := chaosCell(t, 1, 1)
	before := c.run(t, "web", sleepers(2))
	c.knows(t, 5)
	l, endLoad := c.underLoad(t, size(30, 200))
	l.goesOn(t, 20)
	if out, code := c.master(t, "grow", c.masterAddr(2)); code != cli.Refused || !strings.Contains(out, "no replica of this cell has joined at") || !strings.Contains(out, "--replica 2 --addr") {
		t.Errorf("grow by a master that is not there: exit code %d: %s", code, out)
	}
	for _, pair := range [][2]int{{2, 3}, {4, 5}} {
		c.joins(t, pair[0])
		c.joins(t, pair[1])
		c.masterOK(t, "grow", c.masterAddr(pair[0]), c.masterAddr(pair[1]))
		l.goesOn(t, 20)
	}
	// The first one is elected, most likely, and goes first.
	for _, goes := range [][]string{{"1", "2"}, {"3", "4"}} {
		if out := c.masterOK(t, append([]string{"shrink"}, goes...)...); !strings.Contains(out, "masters: ") {
			t.Errorf("shrink by %v says %s", goes, out)
		}
		for _, number := range goes {
			var i int
			fmt.Sscan(number, &i)
			// It has ended, and is started in vain, or is about to be.
			_ = c.Kill(c.masterName(i))
		}
		l.goesOn(t, 20)
	}
	endLoad()
	// Advice about the addresses that the cell file still names comes behind.
	if out := c.masterOK(t, "list", "-o", "name"); !strings.HasPrefix(out, "5\n-") && out != "5\n" {
		t.Errorf("the masters are %q, want 5 alone", out)
	}
	if out, code := c.master(t, "shrink", "5"); code != cli.Refused || !strings.Contains(out, "nobody would be left") {
		t.Errorf("shrink to nobody: exit code %d: %s", code, out)
	}
	c.stillSame(t, before, "web")
	c.checkAcks(t, l)
	t.Logf("%d submits acknowledged, %d errors", len(l.acks), len(l.errs))
}

// One of five masters loses its disk and another takes its place, with a client
// that is killed in the middle; then one that lives is replaced while it is
// elected. With too few left to be a majority both are refused.
func TestMasterIsReplaced(t *testing.T) {
	alongside(t)
	c := chaosCell(t, 5, 1)
	before := c.run(t, "web", sleepers(2))
	c.knows(t, 7)
	l, endLoad := c.underLoad(t, size(30, 200))
	l.goesOn(t, 20)
	elected, err := c.electedNow(shortly(t))
	if err != nil {
		t.Fatal(err)
	}
	// Of the five that there are: the cell's directory has room for more.
	lost := elected%5 + 1
	if err := c.Kill(c.masterName(lost)); err != nil {
		t.Fatal(err)
	}
	if err := os.RemoveAll(c.masterDir(lost)); err != nil {
		t.Fatal(err)
	}
	number := fmt.Sprint(lost)
	if out, code := c.master(t, "replace", number, c.masterAddr(6)); code != cli.Refused || !strings.Contains(out, "no replica of this cell has joined at") {
		t.Errorf("replace by a master that is not there: exit code %d: %s", code, out)
	}
	// Joined and not started: nothing is taken out for it.
	if elected, err = c.electedNow(shortly(t)); err != nil {
		t.Fatal(err)
	}
	c.must(t, "borgmaster", "init", "--join", c.masterAddr(elected), "--replica", "6", "--addr", c.masterAddr(6), "--dir", c.masterDir(6))
	if out, code := c.master(t, "replace", number, c.masterAddr(6)); code != cli.Refused || !strings.Contains(out, "does not hear it") {
		t.Errorf("replace by a master that is not started: exit code %d: %s", code, out)
	}
	if out := c.masterOK(t, "list", "-o", "name"); !slices.Contains(strings.Fields(out), number) {
		t.Errorf("master %s was taken out all the same: %s", number, out)
	}
	if err := c.StartMaster(t.Context(), 6); err != nil {
		t.Fatal(err)
	}
	// The first client dies at once, wherever it is.
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	_ = exec.CommandContext(ctx, c.bin("borgcfg"), "--cell", c.masterAddr(elected), "--identity", c.identityFile(), "master", "replace", number, c.masterAddr(6)).Run()
	cancel()
	c.masterOK(t, "replace", number, c.masterAddr(6))
	c.masterOK(t, "replace", number, c.masterAddr(6))
	l.goesOn(t, 20)

	if elected, err = c.electedNow(shortly(t)); err != nil {
		t.Fatal(err)
	}
	c.joins(t, 7)
	if out := c.masterOK(t, "replace", fmt.Sprint(elected), c.masterAddr(7)); !strings.Contains(out, "7 at "+c.masterAddr(7)) {
		t.Errorf("replace says %s", out)
	}
	_ = c.Kill(c.masterName(elected))
	l.goesOn(t, 20)

	// Of five two are gone: none of the three may go.
	var there []int
	for i := 1; i <= 7; i++ {
		if i != lost && i != elected {
			there = append(there, i)
		}
	}
	for _, i := range there[:2] {
		if err := c.Kill(c.masterName(i)); err != nil {
			t.Fatal(err)
		}
	}
	waitFor(t, "it is refused to take out one of a bare majority", func() string {
		if out, code := c.master(t, "shrink", fmt.Sprint(there[2])); code != cli.Refused || !strings.Contains(out, "bring them back first") {
			return fmt.Sprintf("exit code %d: %s", code, out)
		}
		return ""
	})
	for _, i := range there[:2] {
		if err := c.StartMaster(t.Context(), i); err != nil {
			t.Fatal(err)
		}
	}
	l.goesOn(t, 20)
	endLoad()
	c.stillSame(t, before, "web")
	c.checkAcks(t, l)
	t.Logf("%d submits acknowledged, %d errors", len(l.acks), len(l.errs))
}

// All five masters are upgraded one by one under load: no submit fails, and the
// format is raised when the last one knows the next, and not before.
func TestMastersAreUpgraded(t *testing.T) {
	alongside(t)
	c := newChaosCell(t, 5, 1)
	const before = cell.BuildFormat - 1
	// What an older build does not know, a newer one does not use.
	c.alter = func(spec *processSpec) {
		if strings.HasSuffix(spec.Path, "borgmaster") {
			spec.Args = append(spec.Args, "--max-format", fmt.Sprint(before))
		}
	}
	c.startAll(t)
	tasks := c.run(t, "web", sleepers(2))
	l, endLoad := c.underLoad(t, size(30, 200))
	l.goesOn(t, 20)
	c.alter = nil
	for i := 1; i <= c.Masters; i++ {
		state, err := c.client.GetCell(shortly(t))
		if err != nil || state.Format > before {
			t.Fatalf("before master %d is upgraded the format is %d, %v, want %d at most", i, state.GetFormat(), err, before)
		}
		if c.sup.get(c.masterName(i)).stop(t.Context(), stopGrace) {
			t.Errorf("master %d had to be killed", i)
		}
		if err := c.StartMaster(t.Context(), i); err != nil {
			t.Fatal(err)
		}
		if err := c.caughtUp(shortly(t), i); err != nil {
			t.Fatal(err)
		}
		l.goesOn(t, 20)
	}
	c.hasLatestFormat(t)
	l.goesOn(t, 20)
	endLoad()
	for _, err := range l.errs {
		t.Errorf("a submit failed during the upgrade: %v", err)
	}
	c.stillSame(t, tasks, "web")
	c.checkAcks(t, l)
	t.Logf("%d submits acknowledged", len(l.acks))
}
