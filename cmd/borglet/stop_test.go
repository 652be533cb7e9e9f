package main

import (
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"borg/proto/borgpb"
)

// TestStop: SIGTERM ends a program that does not handle it at once, although
// it is alone in its container; one that handles it ends as it likes; one that
// ignores it is killed after its grace.
func TestStop(t *testing.T) {
	alongside(t)
	for _, runtime := range []string{"container", "process"} {
		t.Run(runtime, func(t *testing.T) {
			m := newMachine(t, runtime)
			plain := m.service("sleep", "3600")
			handler := m.service("/bin/sh", "-c", `trap "echo bye; exit 42" TERM; echo ready; while :; do sleep 0.1; done`)
			deaf := m.service("/bin/sh", "-c", `trap "" TERM; echo ready; sleep 3600; sleep 3600`)
			now := m.service("/bin/sh", "-c", `trap "" TERM; echo ready; sleep 3600; sleep 3600`)
			m.untilState(plain, running)
			ready := func(r *borgpb.TaskReport) bool { return r.GetState() == int32(running) }
			for _, id := range m.desired[1:] {
				m.until(id.GetCopy(), "running", ready)
				for !strings.Contains(m.read(id.GetCopy(), "stdout"), "ready") {
					time.Sleep(10 * time.Millisecond)
				}
			}
			m.stop(plain, time.Hour)
			m.stop(handler, time.Hour)
			m.stop(deaf, 300*time.Millisecond)
			m.stop(now, 0)
			if r := m.untilState(plain, stopped); r.GetExit().GetSignal() != int32(unix.SIGTERM) {
				t.Errorf("without a handler: got %v, want signal 15", r)
			}
			if r := m.untilState(handler, stopped); r.GetExit().GetCode() != 42 || r.GetExit().GetSignal() != 0 {
				t.Errorf("with a handler: got %v, want code 42", r)
			}
			if out := m.read(handler, "stdout"); !strings.Contains(out, "bye") {
				t.Errorf("with a handler: it wrote %q", out)
			}
			if r := m.untilState(deaf, stopped); r.GetExit().GetSignal() != int32(unix.SIGKILL) || r.GetPid() != 0 {
				t.Errorf("deaf: got %v, want signal 9", r)
			}
			if r := m.untilState(now, stopped); r.GetExit().GetSignal() != int32(unix.SIGKILL) {
				t.Errorf("without grace: got %v, want signal 9", r)
			}
			// Forgotten copies are no longer reported, and their directories go.
			for _, s := range m.stops {
				m.forget = append(m.forget, s.GetCopy())
			}
			m.stops = nil
			if tasks := m.poll().GetTasks(); len(tasks) != 0 {
				t.Errorf("after forget: %v", tasks)
			}
			deadline := time.Now().Add(patience)
			for _, id := range m.forget {
				for exists(m.file(id, "")) && time.Now().Before(deadline) {
					time.Sleep(10 * time.Millisecond)
				}
				if exists(m.file(id, "")) {
					t.Errorf("directory of %v is still there", id)
				}
			}
		})
	}
}

// TestStopUnknown: a stop of a copy that never came here is confirmed, and the
// copy never starts afterwards.
func TestStopUnknown(t *testing.T) {
	m := newMachine(t, "process")
	id := m.service("sleep", "3600")
	late := m.desired
	m.stop(id, time.Second)
	m.untilState(id, stopped)
	m.desired = late
	r := m.untilState(id, stopped)
	if exists(m.file(id, "stdout")) {
		t.Errorf("it was started: %v", r)
	}
}

// TestDirtyEnd: what a task leaves running behind it ends with it.
func TestDirtyEnd(t *testing.T) {
	alongside(t)
	for _, runtime := range []string{"container", "process"} {
		t.Run(runtime, func(t *testing.T) {
			m := newMachine(t, runtime)
			id := m.batch("/bin/sh", "-c", `sleep 4321 & setsid sleep 4321 & echo $!; sleep 0.2; exit 3`)
			if r := m.untilState(id, failed); r.GetExit().GetCode() != 3 {
				t.Errorf("got %v, want code 3", r)
			}
			if left := processes("sleep\x004321"); len(left) > 0 {
				t.Errorf("left running: %v", left)
			}
		})
	}
}
