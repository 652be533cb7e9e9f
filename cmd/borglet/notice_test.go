package main

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"borg/proto/borgpb"
)

// TestScenario18Real: a task that asked for it finds a file and gets SIGUSR1 well before
// SIGTERM, and is killed when its grace is over; one that asked for the file alone is not
// sent the signal, which would end it.
func TestScenario18Real(t *testing.T) {
	alongside(t)
	eachRuntime(t, func(t *testing.T, m *machine) {
		const notice, grace = 1500 * time.Millisecond, time.Second
		told := m.want(service, &borgpb.TaskSpec{
			Args: []string{"/bin/sh", "-c", `
				trap 'cp "$BORG_STOP" ahead; date +%s%N >usr1' USR1
				trap 'cp "$BORG_STOP" then; date +%s%N >term' TERM
				touch begun; while :; do sleep 0.02; done`},
			GraceNs: int64(grace), NoticeNs: int64(notice), NoticeSignal: true,
		})
		quiet := m.want(service, &borgpb.TaskSpec{
			Args:    []string{"/bin/sh", "-c", `touch begun; while [ ! -e "$BORG_STOP" ]; do sleep 0.02; done; cp "$BORG_STOP" ahead; sleep 3600`},
			GraceNs: int64(grace), NoticeNs: int64(notice),
		})
		m.untilState(told, running)
		m.untilState(quiet, running)
		for !exists(m.file(told, "task/begun")) || !exists(m.file(quiet, "task/begun")) {
			time.Sleep(10 * time.Millisecond)
		}
		m.stop(told, grace)
		m.stop(quiet, grace)
		for _, s := range m.stops {
			s.Cause, s.Reason, s.NoticeNs = borgpb.StopCause_STOP_CAUSE_PREEMPTION, "makes room for bob/prod/0 (priority 200, production): because", int64(notice)
		}
		if r := m.untilState(told, stopped); r.GetExit().GetSignal() != int32(unix.SIGKILL) {
			t.Errorf("one that traps SIGTERM: %v, want signal 9", r)
		}
		if r := m.untilState(quiet, stopped); r.GetExit().GetSignal() != int32(unix.SIGTERM) {
			t.Errorf("one that wants no signal: %v, want signal 15", r)
		}
		type paper struct {
			Cause, Reason         string
			At, Sigterm, Deadline time.Time
		}
		read := func(file string) (n paper) {
			if err := json.Unmarshal([]byte(file), &n); err != nil {
				t.Fatalf("%v in %q", err, file)
			}
			if n.Cause != "preemption" || !strings.Contains(n.Reason, "bob/prod/0 (priority 200, production): because") {
				t.Errorf("it was told %+v", n)
			}
			return n
		}
		ahead, then := read(m.read(told, "task/ahead")), read(m.read(told, "task/then"))
		if ahead.Sigterm.Sub(ahead.At) != notice || ahead.Deadline.Sub(ahead.At) != notice+grace {
			t.Errorf("ahead it was told %+v, want SIGTERM in %v and SIGKILL in %v", ahead, notice, notice+grace)
		}
		// The clocks of the two papers are the borglet's, which may be late but not early.
		if early := ahead.Sigterm.Sub(then.At); early > time.Millisecond || !then.Sigterm.Equal(then.At) {
			t.Errorf("SIGTERM came %v early: %+v after %+v", early, then, ahead)
		}
		if n := read(m.read(quiet, "task/ahead")); n.Sigterm.Sub(n.At) != notice {
			t.Errorf("the quiet one was told %+v", n)
		}
		if usr1, term := m.read(told, "task/usr1"), m.read(told, "task/term"); strings.TrimSpace(usr1) >= strings.TrimSpace(term) {
			t.Errorf("SIGUSR1 at %s, SIGTERM at %s", usr1, term)
		}
	})
}
