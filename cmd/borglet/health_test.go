package main

import (
	"encoding/json"
	"net"
	"net/http"
	"os"
	"os/signal"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"borg/proto/borgpb"
)

// TestNotice: a task that gets a SIGTERM can read why, and until when it may take; the
// next run finds nothing of it.
func TestNotice(t *testing.T) {
	alongside(t)
	eachRuntime(t, func(t *testing.T, m *machine) {
		id := m.want(service, &borgpb.TaskSpec{
			Args: []string{"/bin/sh", "-c", `
				[ -e "$BORG_STOP" ] && echo found it >stale
				trap 'cat "$BORG_STOP" >why; exit 0' TERM
				touch begun; while :; do sleep 0.05; done`},
			GraceNs: int64(time.Minute),
			Health:  &borgpb.HealthCheck{Command: []string{"sh", "-c", "[ ! -e begun -o -e why ]"}, PeriodNs: int64(time.Second), Failures: 1},
		})
		read := func(cause, reason string) {
			t.Helper()
			var n struct {
				Cause, Reason string
				At, Deadline  time.Time
				Index         uint64
			}
			if err := json.Unmarshal([]byte(m.read(id, "task/why")), &n); err != nil {
				t.Fatal(err)
			}
			if n.Cause != cause || !strings.Contains(n.Reason, reason) || n.Deadline.Sub(n.At) != time.Minute || time.Since(n.At).Abs() > time.Hour {
				t.Errorf("it was told %+v, want %s, %s and a minute", n, cause, reason)
			}
		}
		m.until(id, "restarted", func(r *borgpb.TaskReport) bool { return r.GetRestarts() == 1 && r.GetPid() != 0 })
		read("unhealthy", "unhealthy: sh: exit code 1")
		m.passes("again", func() *borgpb.TaskReport { return m.poll().GetTasks()[0] })
		if exists(m.file(id, "task/stale")) {
			t.Error("a run finds the notice of the one before")
		}
		m.stop(id, time.Minute)
		m.stops[0].Cause, m.stops[0].Reason = borgpb.StopCause_STOP_CAUSE_PREEMPTION, "room for bob/batch/3"
		m.untilState(id, stopped)
		read("preemption", "room for bob/batch/3")
	})
}

// TestIgnoredHangUp: a borglet that was started with SIGHUP ignored, as by nohup, starts tasks that
// can trap it.
func TestIgnoredHangUp(t *testing.T) {
	alongside(t)
	eachRuntime(t, func(t *testing.T, m *machine) {
		m.kill()
		signal.Ignore(syscall.SIGHUP)
		defer signal.Reset(syscall.SIGHUP)
		m.start()
		id := m.batch("/bin/sh", "-c", "trap 'exit 7' HUP; kill -HUP $$; sleep 1; exit 0")
		if r := m.untilState(id, failed); r.GetExit().GetCode() != 7 {
			t.Errorf("the task: %v, want that its trap was taken", r)
		}
	})
}

// passes waits until a copy runs and nothing is wrong with it.
func (m *machine) passes(what string, ok func() *borgpb.TaskReport) *borgpb.TaskReport {
	m.t.Helper()
	deadline := time.Now().Add(patience)
	for {
		r := ok()
		if r.GetState() == int32(running) && r.GetText() == "" {
			return r
		}
		if time.Now().After(deadline) {
			m.t.Fatalf("%s: it does not pass its checks: %v", what, r)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// TestHealth: tasks that do not pass their checks are restarted with the reason, by
// network and by a command run in their container; checks go on after the borglet was
// killed.
func TestHealth(t *testing.T) {
	alongside(t)
	eachRuntime(t, func(t *testing.T, m *machine) {
		var bad atomic.Bool
		var refusals atomic.Int32
		var listener net.Listener
		// The server stands for the task's own, so that it has the port only while the task
		// runs: it gives it up with the second refusal, which ends the task.
		server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			if bad.Load() {
				if refusals.Add(1) == 2 {
					listener.Close()
				}
				http.Error(w, "no", http.StatusServiceUnavailable)
			}
		})}
		addr := "127.0.0.1:0"
		listen := func() {
			t.Helper()
			var err error
			if listener, err = net.Listen("tcp", addr); err != nil {
				t.Fatal(err)
			}
			addr = listener.Addr().String()
		}
		serve := func() {
			t.Helper()
			listen()
			go server.Serve(listener)
		}
		listen()
		listener.Close()
		defer server.Close()
		port := []uint32{uint32(listener.Addr().(*net.TCPAddr).Port)}
		second := int64(time.Second)
		page := m.want(service, &borgpb.TaskSpec{
			Args: []string{"sleep", "3600"}, Ports: []string{"http"},
			Health: &borgpb.HealthCheck{HttpPath: "/healthz", PeriodNs: second, Failures: 2},
		})
		command := m.want(service, &borgpb.TaskSpec{
			Args:   []string{"/bin/sh", "-c", "touch ok; exec sleep 3600"},
			Health: &borgpb.HealthCheck{Command: []string{"sh", "-c", "[ -e ok ] || { echo there is no ok >&2; exit 4; }"}, PeriodNs: second, Failures: 1, StartGraceNs: second},
		})
		m.desired[0].Ports = port
		report := func(i int) func() *borgpb.TaskReport {
			return func() *borgpb.TaskReport { return m.poll().GetTasks()[i] }
		}
		m.until(page, "begun", func(r *borgpb.TaskReport) bool { return r.GetPid() != 0 })
		serve()
		m.untilState(page, running)
		m.untilState(command, running)
		first := m.passes("page", report(0))
		m.passes("command", report(1))

		if err := os.Remove(m.file(command, "task/ok")); err != nil {
			t.Fatal(err)
		}
		// Reported while it lasts; and afterwards how the run has ended.
		m.until(command, "restarted", func(r *borgpb.TaskReport) bool { return r.GetRestarts() == 1 })
		if r := m.passes("command, again", report(1)); r.GetExit().GetSignal() != 15 {
			t.Errorf("it was ended so: %v, want by SIGTERM", r.GetExit())
		}
		m.kill()
		m.start()
		if r := m.passes("page, after the borglet was killed", report(0)); r.GetPid() != first.GetPid() {
			t.Errorf("the task is another one: %v, before %v", r, first)
		}
		bad.Store(true)
		m.until(page, "unhealthy", func(r *borgpb.TaskReport) bool {
			return strings.Contains(r.GetText(), "unhealthy: GET /healthz of port http: 503 Service Unavailable: no") || r.GetRestarts() > 0
		})
		m.until(page, "begun again", func(r *borgpb.TaskReport) bool { return r.GetRestarts() >= 1 && r.GetPid() != 0 })
		bad.Store(false)
		serve()
		m.untilState(page, running)
		m.passes("page, after it was restarted", report(0))
	})
}
