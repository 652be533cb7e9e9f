package main

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"borg/proto/borgpb"
	"borg/proto/borgrpc"
)

// TestScenario18 has two tasks give way to production that waits three seconds at most.
// Both trap SIGTERM and go on: who asked for half a minute between that and SIGKILL gets
// those three seconds, who asked for one second gets it, and what is left of the three goes
// to the notice before it. Both come back by themselves.
func TestScenario18(t *testing.T) {
	alongside(t)
	c := chaosCell(t, 1, 1)
	c.hasLatestFormat(t)
	const bound, short = 3 * time.Second, time.Second
	victim := func(grace time.Duration) *borgpb.JobSpec {
		spec := sleepers(1)
		spec.Priority, spec.Task.Resources.CpuMilli = 105, 1900
		spec.Task.GraceNs, spec.Task.NoticeNs, spec.Task.NoticeSignal = int64(grace), int64(30*time.Second), true
		spec.Task.Args = []string{"/bin/sh", "-c", `
[ "$BORG_ATTEMPT" = 1 ] || exec sleep 1000000
say() { tr -d '\n' <"$BORG_STOP"; echo " $1"; }
trap 'say USR1' USR1
trap 'say TERM' TERM
echo begun
while :; do sleep 0.02; done`}
		return spec
	}
	graces := map[string]time.Duration{"long": bound, "short": short}
	c.run(t, "long", victim(30*time.Second))
	c.run(t, "short", victim(short))
	for name := range graces {
		// It traps its signals.
		c.wrote(t, name, "begun")
	}
	prod := sleepers(1)
	prod.Task.Resources.CpuMilli, prod.PreemptWaitNs = 3800, int64(bound)
	c.run(t, "prod", prod)

	for name, grace := range graces {
		resp, err := c.client.ListAllTasks(shortly(t), &borgrpc.ListTasksRequest{User: c.user, Name: name, Attempts: true}, 0)
		if err != nil || len(resp.Tasks) != 1 || len(resp.Tasks[0].Status.Attempts) != 1 {
			t.Fatalf("%s: %v, %v; want one attempt that has ended", name, resp, err)
		}
		ended := resp.Tasks[0].Status.Attempts[0]
		if ended.GetExit().GetSignal() != int32(unix.SIGKILL) {
			t.Errorf("%s ended by %v, want SIGKILL", name, ended.GetExit())
		}
		told := c.toldOf(t, name)
		term, ok := told["TERM"]
		if !ok {
			t.Fatalf("%s was told %v, and not of SIGTERM", name, told)
		}
		if !strings.Contains(term.Reason, "makes room for "+c.user+"/prod/0 (priority 200, production): nowhere is room without") || term.Cause != "preemption" {
			t.Errorf("%s was told that it goes for %s: %q", name, term.Cause, term.Reason)
		}
		// What it was told first says when all follows; that stands, however late the borglet
		// is, but for what two clocks of one machine differ by.
		const drift = time.Millisecond
		first, warned := told["USR1"]
		if warned != (grace < bound) {
			t.Errorf("%s was told ahead: %v, want it where the grace leaves some of the bound", name, told)
		}
		if !warned {
			first = term
		}
		if ahead, left := first.Sigterm.Sub(first.At), first.Deadline.Sub(first.Sigterm); ahead != bound-grace || left != grace || term.Deadline.Sub(first.Deadline).Abs() > drift {
			t.Errorf("%s was told %v ahead of SIGTERM, %v before SIGKILL, and then of SIGKILL at %v; want %v, %v and %v", name, ahead, left, term.Deadline, bound-grace, grace, first.Deadline)
		}
		if end := time.Unix(0, ended.EndedWallNs); term.Deadline.Sub(end) > drift || first.Sigterm.Sub(term.Sigterm) > drift {
			t.Errorf("%s got SIGTERM at %v and was killed at %v; it was told %v and %v", name, term.Sigterm, end, first.Sigterm, term.Deadline)
		}
	}
	if _, err := c.client.Mutate(shortly(t), killOf(c.user, "prod")); err != nil {
		t.Fatal(err)
	}
	for name := range graces {
		if _, err := c.jobIs(shortly(t), name, "it is back", started); err != nil {
			t.Fatal(err)
		}
	}
}

// stopPaper is what a task finds in the file that tells of its end.
type stopPaper struct {
	Cause, Reason         string
	At, Sigterm, Deadline time.Time
}

// toldOf is what the first copy of a task wrote of the signals that it got, by signal.
func (c *Cell) toldOf(t *testing.T, name string) map[string]stopPaper {
	t.Helper()
	var text bytes.Buffer
	err := c.client.Logs(shortly(t), &borgrpc.LogsRequest{User: c.user, Name: name, Attempt: 1}, func(r *borgrpc.LogsResponse) error {
		text.Write(r.GetData())
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	told := map[string]stopPaper{}
	for line := range strings.Lines(text.String()) {
		paper, signal, ok := strings.Cut(strings.TrimSpace(line), "} ")
		if !ok {
			continue
		}
		var p stopPaper
		if err := json.Unmarshal([]byte(paper+"}"), &p); err != nil {
			t.Fatalf("%s wrote %q: %v", name, line, err)
		}
		told[signal] = p
	}
	return told
}
