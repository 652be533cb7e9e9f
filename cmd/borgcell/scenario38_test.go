package main

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"strings"
	"sync"
	"testing"

	"google.golang.org/protobuf/proto"

	"borg/proto/borgpb"
	"borg/proto/borgrpc"
)

// logSink takes lines in at an address that does not change.
type logSink struct {
	addr string
	mu   sync.Mutex
	// Guarded by mu.
	lines map[string]int
}

func (s *logSink) has(want []string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, line := range want {
		if s.lines[line] == 0 {
			return fmt.Sprintf("%q is not there, of %d lines", line, len(s.lines))
		}
	}
	return ""
}

// newLogSink is one that is shut; address and port stay free for it.
func newLogSink(t *testing.T) (s *logSink, port string) {
	t.Helper()
	free, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s = &logSink{addr: free.Addr().String(), lines: map[string]int{}}
	free.Close()
	_, port, _ = net.SplitHostPort(s.addr)
	return s, port
}

// savesTo is the program that sends all lines of an alloc to a sink, and succeeds when
// that says that it has them.
func savesTo(port string) string {
	return `exec 3<>/dev/tcp/127.0.0.1/` + port + ` && cat {{alloc.dir}}/* >&3 && echo end >&3 && read -r answer <&3 && test "$answer" = saved`
}

// open lets the sink answer, until it is shut or the test ends; before and after,
// connections to it are refused.
func (s *logSink) open(t *testing.T) (shut func()) {
	t.Helper()
	l, err := net.Listen("tcp", s.addr)
	if err != nil {
		t.Fatal(err)
	}
	var serving sync.WaitGroup
	shut = sync.OnceFunc(func() { l.Close(); serving.Wait() })
	t.Cleanup(shut)
	serving.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			for r := bufio.NewScanner(conn); r.Scan() && r.Text() != "end"; {
				s.mu.Lock()
				s.lines[r.Text()]++
				s.mu.Unlock()
			}
			fmt.Fprintln(conn, "saved")
			conn.Close()
		}
	})
	return shut
}

// TestScenario38 has allocs leave lines on their machines, of which one is emptied and one
// killed, while nobody takes the lines in, and kills a borglet and the elected master. In
// the end every line is in the sink.
func TestScenario38(t *testing.T) {
	alongside(t)
	c := chaosCell(t, 3, 2)
	c.hasLatestFormat(t)
	sink, port := newLogSink(t)
	spec := &borgpb.AllocSetSpec{Allocs: 2, Priority: 200, MaxPerMachine: 1, Resources: &borgpb.Resources{CpuMilli: 300, MemBytes: 256 << 20}, Saver: &borgpb.Saver{
		Task: &borgpb.TaskSpec{Args: []string{"/bin/bash", "-c", savesTo(port)}, Resources: &borgpb.Resources{CpuMilli: 100, MemBytes: 64 << 20}}}}
	data, err := proto.Marshal(spec)
	if err != nil {
		t.Fatal(err)
	}
	must := func(op *borgpb.Op) {
		t.Helper()
		if _, err := c.client.Mutate(shortly(t), op); err != nil {
			t.Fatal(err)
		}
	}
	must(&borgpb.Op{Op: &borgpb.Op_SubmitAllocSet{SubmitAllocSet: &borgpb.SubmitAllocSet{User: c.user, Name: "place", Spec: data}}})
	job := sleepers(2)
	job.AllocSet = c.user + "/place"
	job.Task.Args = []string{"/bin/sh", "-c", `for n in 1 2 3 4 5; do echo "line $n of task {{task.index}}.{{task.attempt}}" >> {{alloc.dir}}/log; done; echo written; while :; do sleep 1; done`}
	c.run(t, "web", job)
	want := func(attempt int) (lines []string) {
		for task := range 2 {
			for n := range 5 {
				lines = append(lines, fmt.Sprintf("line %d of task %d.%d", n+1, task, attempt))
			}
		}
		return lines
	}
	for i := range uint32(2) {
		waitFor(t, "the lines are written", func() string {
			var out strings.Builder
			err := c.client.Logs(shortly(t), &borgrpc.LogsRequest{User: c.user, Name: "web", Index: i}, func(r *borgrpc.LogsResponse) error {
				out.Write(r.GetData())
				return nil
			})
			if err != nil || !strings.Contains(out.String(), "written") {
				return fmt.Sprintf("%q, %v", out.String(), err)
			}
			return ""
		})
	}
	saves := func() []*borgpb.AllocSave {
		resp, err := c.client.ListAllocs(shortly(t), &borgrpc.ListAllocsRequest{User: c.user, Name: "place"})
		if err != nil || len(resp.AllocSets) != 1 {
			return nil
		}
		return resp.AllocSets[0].Status.GetSaves()
	}
	// One alloc has to leave its machine, and then both end.
	must(&borgpb.Op{Op: &borgpb.Op_DrainMachine{DrainMachine: &borgpb.DrainMachine{Name: c.machineName(1), Drain: true}}})
	failed := func(n int) {
		t.Helper()
		waitFor(t, fmt.Sprintf("savers of %d allocs have failed", n), func() string {
			list, failed := saves(), 0
			for _, v := range list {
				if v.Failures > 0 {
					failed++
				}
			}
			if failed < n {
				return fmt.Sprint(list)
			}
			return ""
		})
	}
	failed(1)
	must(&borgpb.Op{Op: &borgpb.Op_KillAllocSet{KillAllocSet: &borgpb.KillAllocSet{User: c.user, Name: "place"}}})
	failed(2)
	if err := c.Kill(c.machineName(1)); err != nil {
		t.Fatal(err)
	}
	elected, err := c.electedNow(shortly(t))
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Kill(c.masterName(elected)); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if err := c.StartMaster(ctx, elected); err != nil {
		t.Fatal(err)
	}
	if err := c.StartBorglet(ctx, 1); err != nil {
		t.Fatal(err)
	}
	sink.open(t)
	waitFor(t, "all lines are in the sink", func() string {
		if missing := sink.has(want(1)); missing != "" {
			return fmt.Sprint(missing, "; ", saves())
		}
		return ""
	})
	waitFor(t, "nothing is left to be saved", func() string {
		if list := saves(); len(list) > 0 {
			return strings.TrimSpace(fmt.Sprint(list))
		}
		return ""
	})
}
