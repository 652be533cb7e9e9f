package main

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"borg/cli"
)

// master runs a command of borgcfg master as the user who runs the cell.
func (c *Cell) master(t *testing.T, args ...string) (string, int) {
	t.Helper()
	return c.says(t, "borgcfg", append([]string{"--cell", strings.Join(c.masterAddrs(), ","), "master"}, args...)...)
}

// gaps are the longest times without an acknowledged submit between two moments.
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
	if out, code := c.master(t, "transfer", "9"); code != cli.Refused || !strings.Contains(out, "no member 9") {
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
}
