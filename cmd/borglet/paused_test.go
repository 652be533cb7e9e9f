package main

import (
	"os"
	"syscall"
	"testing"
	"time"

	"borg/proto/borgpb"
	"borg/proto/borgrpc"
)

// TestPaused: while a borglet stands still its tasks go on, end and write; afterwards it
// tells all of it truly, and holds the time that it was away against nobody: a task whose
// health was not looked at is not ended, and a grace that went by is over.
func TestPaused(t *testing.T) {
	alongside(t)
	eachRuntime(t, func(t *testing.T, m *machine) {
		web := m.want(service, &borgpb.TaskSpec{
			Args:   []string{"/bin/sh", "-c", "while [ ! -e go ]; do sleep 0.05; done; echo meanwhile; touch told; exec sleep 3600"},
			Health: &borgpb.HealthCheck{Command: []string{"true"}, PeriodNs: int64(time.Second), TimeoutNs: int64(time.Second), Failures: 1},
		})
		ends := m.batch("/bin/sh", "-c", "while [ ! -e go ]; do sleep 0.05; done; exit 7")
		stays := m.want(service, &borgpb.TaskSpec{
			Args: []string{"/bin/sh", "-c", "trap '' TERM; touch deaf; while :; do sleep 0.1; done"}, GraceNs: int64(time.Second),
		})
		before := m.untilState(web, running)
		m.untilState(ends, running)
		m.until(stays, "deaf to SIGTERM", func(r *borgpb.TaskReport) bool {
			return r.GetState() == int32(running) && exists(m.file(stays, "task/deaf"))
		})
		m.stop(stays, time.Second)
		m.until(stays, "stopping", func(r *borgpb.TaskReport) bool {
			return r.GetState() == int32(borgpb.AttemptState_ATTEMPT_STATE_STOPPING)
		})
		if err := m.cmd.Process.Signal(syscall.SIGSTOP); err != nil {
			t.Fatal(err)
		}
		resume := func() { _ = m.cmd.Process.Signal(syscall.SIGCONT) }
		defer resume()
		for _, id := range []*borgrpc.CopyID{web, ends} {
			if err := os.WriteFile(m.file(id, "task/go"), nil, 0o644); err != nil {
				t.Fatal(err)
			}
		}
		for _, file := range []string{m.file(web, "task/told"), m.file(ends, "exit.json")} {
			for deadline := time.Now().Add(patience); !exists(file); time.Sleep(20 * time.Millisecond) {
				if time.Now().After(deadline) {
					t.Fatalf("while the borglet stands still there comes no %s", file)
				}
			}
		}
		resume()
		if r := m.untilState(ends, failed); r.GetExit().GetCode() != 7 || r.GetExit().GetUnknown() {
			t.Errorf("who ended meanwhile: %v, want code 7", r)
		}
		m.untilState(stays, stopped)
		m.until(web, "healthy as the same process", func(r *borgpb.TaskReport) bool {
			return r.GetState() == int32(running) && r.GetPid() == before.GetPid() && r.GetRestarts() == 0
		})
		if got := m.logOf(web); got != "meanwhile\n" {
			t.Errorf("it wrote %q meanwhile", got)
		}
	})
}
