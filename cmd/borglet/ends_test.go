package main

import (
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"borg/proto/borgpb"
)

// TestEnds: each way to end is reported as what it was, by both runtimes.
func TestEnds(t *testing.T) {
	for _, runtime := range []string{"container", "process"} {
		t.Run(runtime, func(t *testing.T) {
			m := newMachine(t, runtime)
			ok := m.batch("/bin/sh", "-c", "echo out; echo err >&2")
			code := m.batch("sh", "-c", "exit 7")
			term := m.batch("/bin/sh", "-c", "kill -TERM $$; sleep 60")
			kill := m.batch("/bin/sh", "-c", "kill -KILL $$; sleep 60")
			none := m.batch("/no/such/program")
			nopath := m.batch("no-such-program")

			r := m.untilState(ok, finished)
			if r.GetExit().GetCode() != 0 || r.GetExit().GetEndedWallNs() == 0 || r.GetStartedWallNs() == 0 {
				t.Errorf("exit 0: got %v", r)
			}
			if out, err := m.read(ok, "stdout"), m.read(ok, "stderr"); out != "out\n" || err != "err\n" {
				t.Errorf("output: got %q and %q", out, err)
			}
			if r := m.untilState(code, failed); r.GetExit().GetCode() != 7 {
				t.Errorf("exit 7: got %v", r)
			}
			if r := m.untilState(term, failed); r.GetExit().GetSignal() != int32(unix.SIGTERM) {
				t.Errorf("SIGTERM to itself: got %v", r)
			}
			if r := m.untilState(kill, failed); r.GetExit().GetSignal() != int32(unix.SIGKILL) || r.GetExit().GetOom() {
				t.Errorf("SIGKILL to itself: got %v", r)
			}
			for id, program := range map[string]*borgpb.TaskReport{
				"/no/such/program": m.untilState(none, failed),
				"no-such-program":  m.untilState(nopath, failed),
			} {
				if text := program.GetExit().GetError(); !strings.Contains(text, id) || !strings.Contains(text, "no such") {
					t.Errorf("no such program: got %v", program)
				}
			}
		})
	}
}
