package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"borg/proto/borgpb"
	"borg/proto/borgrpc"
)

// program is one that a test runs beside a task.
type program struct {
	t      testing.TB
	stream borgrpc.BorgletService_ExecCopyClient
	hangUp context.CancelFunc
	// What it has written, and how it ended.
	stdout, stderr strings.Builder
	exit           *borgpb.Exit
	err            error
}

func (m *machine) exec(id *borgrpc.CopyID, p *borgrpc.ExecProgram) *program {
	m.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	m.t.Cleanup(cancel)
	stream, err := m.client.ExecCopy(ctx)
	if err == nil {
		err = stream.Send(&borgrpc.ExecCopyRequest{Copy: id, Program: p, By: "alice"})
	}
	if err != nil {
		m.t.Fatal(err)
	}
	return &program{t: m.t, stream: stream, hangUp: cancel}
}

// next takes in one message; false: it was the last.
func (p *program) next() bool {
	resp, err := p.stream.Recv()
	if err != nil {
		if !errors.Is(err, io.EOF) {
			p.err = err
		}
		return false
	}
	if resp.GetStream() == borgrpc.LogStream_LOG_STREAM_STDERR {
		p.stderr.Write(resp.GetData())
	} else {
		p.stdout.Write(resp.GetData())
	}
	if resp.GetExit() != nil {
		p.exit = resp.GetExit()
	}
	return true
}

func (p *program) end() {
	for p.next() {
	}
}

// says waits until it has written something.
func (p *program) says(text string) {
	p.t.Helper()
	for !strings.Contains(p.stdout.String(), text) {
		if !p.next() {
			p.t.Fatalf("it ended with %v, %v and said %q, not %q", p.exit, p.err, p.stdout.String(), text)
		}
	}
}

func (p *program) send(in *borgrpc.ExecInput) {
	p.t.Helper()
	if err := p.stream.Send(&borgrpc.ExecCopyRequest{Input: in}); err != nil {
		p.t.Fatal(err)
	}
}

// gone waits until a process does not run any more.
func gone(t testing.TB, pid int) {
	t.Helper()
	for deadline := time.Now().Add(patience); alive(pid); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("process %d still runs", pid)
		}
	}
}

func eachRuntime(t *testing.T, f func(t *testing.T, m *machine), flags ...string) {
	for _, runtime := range []string{"container", "process"} {
		t.Run(runtime, func(t *testing.T) { f(t, newMachine(t, runtime, flags...)) })
	}
}

// TestExec: a program runs with the environment, directory and limits of the task, its
// output and exit code come back, and its input reaches it.
func TestExec(t *testing.T) {
	eachRuntime(t, func(t *testing.T, m *machine) {
		id := m.want(service, &borgpb.TaskSpec{
			Args: []string{"/bin/sh", "-c", "cat /proc/self/cgroup >cgroup; exec sleep 3600"}, Env: map[string]string{"COLOUR": "green"},
		})
		before := m.untilState(id, running)
		for deadline := time.Now().Add(patience); !exists(m.file(id, "task/cgroup")); time.Sleep(10 * time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatal("the task does not come to write its cgroup")
			}
		}
		p := m.exec(id, &borgrpc.ExecProgram{Args: []string{"sh", "-c", `
			echo $COLOUR $BORG_TASK; [ "$(pwd -P)" = "$(cd $BORG_TASK_DIR; pwd -P)" ] && echo at home
			cat /proc/self/cgroup | diff - cgroup && echo same cgroup
			grep -E '^(CapEff|CapBnd|NoNewPrivs)' /proc/self/status | tr -d '\t'
			echo oh >&2; cat; exit 7`}, Stdin: true})
		p.send(&borgrpc.ExecInput{Data: []byte("one\n")})
		p.send(&borgrpc.ExecInput{Data: []byte("two\n"), End: true})
		p.end()
		if p.err != nil || p.exit.GetCode() != 7 || p.exit.GetSignal() != 0 || p.stderr.String() != "oh\n" {
			t.Errorf("it ended with %v, %v and said %q, want code 7 and oh", p.exit, p.err, p.stderr.String())
		}
		out := p.stdout.String()
		wants := []string{"green alice/web/0\n", "at home\n", "same cgroup\n", "one\ntwo\n"}
		if m.runtime == "container" {
			wants = append(wants, "CapEff:0000000000000000\n", "CapBnd:0000000000000000\n", "NoNewPrivs:1\n")
		}
		for _, want := range wants {
			if !strings.Contains(out, want) {
				t.Errorf("it said %q, without %q", out, want)
			}
		}
		p = m.exec(id, &borgrpc.ExecProgram{Args: []string{"/bin/absent"}})
		p.end()
		if p.err != nil || p.exit.GetCode() != 127 || !strings.Contains(p.exit.GetError(), "absent") {
			t.Errorf("a program that is not there: %v, %v; want code 127 and its name", p.exit, p.err)
		}
		p = m.exec(id, &borgrpc.ExecProgram{Args: []string{"sh", "-c", "kill -9 $$"}})
		p.end()
		if p.err != nil || p.exit.GetSignal() != 9 {
			t.Errorf("a program that was killed: %v, %v; want signal 9", p.exit, p.err)
		}
		if r := m.untilState(id, running); r.GetPid() != before.GetPid() || r.GetRestarts() != 0 {
			t.Errorf("afterwards the task is %v, before %v", r, before)
		}
	})
}

// TestExecTerminal: a program has a terminal of the size that is said, is told when that
// changes, and Ctrl-C interrupts it alone.
func TestExecTerminal(t *testing.T) {
	eachRuntime(t, func(t *testing.T, m *machine) {
		id := m.service("sleep", "3600")
		before := m.untilState(id, running)
		p := m.exec(id, &borgrpc.ExecProgram{Args: []string{"sh"}, Terminal: true, Term: "vt220", Size: &borgrpc.TerminalSize{Rows: 11, Columns: 77}})
		p.send(&borgrpc.ExecInput{Data: []byte("tty; echo t=$TERM; echo size=$(stty size)=\n")})
		p.says("t=vt220")
		p.says("size=11 77=")
		if !strings.Contains(p.stdout.String(), "/dev/pts/") {
			t.Errorf("it said %q, without the name of a terminal", p.stdout.String())
		}
		p.send(&borgrpc.ExecInput{Size: &borgrpc.TerminalSize{Rows: 22, Columns: 88}})
		p.send(&borgrpc.ExecInput{Data: []byte("echo now=$(stty size)=\n")})
		p.says("now=22 88=")
		p.send(&borgrpc.ExecInput{Data: []byte("echo be'gins'; sleep 3600\n")})
		p.says("begins")
		// Typed until it is sleep that hears it.
		stop := make(chan struct{})
		typed := make(chan struct{})
		go func() {
			defer close(typed)
			for {
				select {
				case <-stop:
					return
				case <-time.After(50 * time.Millisecond):
					_ = p.stream.Send(&borgrpc.ExecCopyRequest{Input: &borgrpc.ExecInput{Data: []byte("\x03echo inter'rupted'\n")}})
				}
			}
		}()
		p.says("interrupted")
		close(stop)
		<-typed
		p.send(&borgrpc.ExecInput{Data: []byte("exit 3\n")})
		p.end()
		if p.err != nil || p.exit.GetCode() != 3 {
			t.Errorf("it ended with %v, %v; want code 3", p.exit, p.err)
		}
		if r := m.untilState(id, running); r.GetPid() != before.GetPid() {
			t.Errorf("afterwards the task is %v, before %v", r, before)
		}
	})
}

// TestExecEnds: whoever hangs up ends the program with all that it has started, and so
// does the end of the task, and a borglet that is killed; only that of the program does
// not touch the task.
func TestExecEnds(t *testing.T) {
	eachRuntime(t, func(t *testing.T, m *machine) {
		id := m.service("sleep", "3600")
		before := m.untilState(id, running)
		// The pids as this machine has them: the program is no child of the test.
		begin := func(mark string) (p *program, pids []int) {
			t.Helper()
			p = m.exec(id, &borgrpc.ExecProgram{Args: []string{"sh", "-c", "trap '' HUP; sleep 3" + mark + " & sleep 3" + mark + " & echo up; wait"}, Stdin: true})
			p.says("up")
			for deadline := time.Now().Add(patience); len(pids) < 2; time.Sleep(10 * time.Millisecond) {
				if time.Now().After(deadline) {
					t.Fatal("it does not start what it should")
				}
				pids = sleepers("3" + mark)
			}
			return p, pids
		}
		mark := strconv.Itoa(os.Getpid())
		p, pids := begin(mark + "1")
		p.hangUp()
		for _, pid := range pids {
			gone(t, pid)
		}
		if r := m.untilState(id, running); r.GetPid() != before.GetPid() || r.GetRestarts() != 0 {
			t.Errorf("after the caller hung up the task is %v, before %v", r, before)
		}
		_, pids = begin(mark + "2")
		m.kill()
		for _, pid := range pids {
			gone(t, pid)
		}
		m.start()
		if r := m.untilState(id, running); r.GetPid() != before.GetPid() || r.GetRestarts() != 0 {
			t.Errorf("after the borglet was killed the task is %v, before %v", r, before)
		}
		p, pids = begin(mark + "3")
		m.stop(id, 0)
		m.untilState(id, stopped)
		for _, pid := range pids {
			gone(t, pid)
		}
		p.end()
		p = m.exec(id, &borgrpc.ExecProgram{Args: []string{"true"}})
		p.end()
		if status.Code(p.err) != codes.FailedPrecondition || !strings.Contains(p.err.Error(), "does not run") {
			t.Errorf("in a copy that has ended: %v, %v; want that it does not run", p.exit, p.err)
		}
	})
}

// sleepers are the processes of this machine that sleep so long.
func sleepers(seconds string) (pids []int) {
	lines, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, path := range lines {
		if text, _ := os.ReadFile(path); string(text) == "sleep\x00"+seconds+"\x00" {
			pid, _ := strconv.Atoi(strings.Split(path, "/")[2])
			pids = append(pids, pid)
		}
	}
	return pids
}

// TestExecsBounded: one user may run so many programs, and who ends one makes room.
func TestExecsBounded(t *testing.T) {
	m := newMachine(t, "process")
	id := m.service("sleep", "3600")
	m.untilState(id, running)
	var running []*program
	for i := range 8 {
		p := m.exec(id, &borgrpc.ExecProgram{Args: []string{"sh", "-c", fmt.Sprintf("echo up %d; cat", i)}, Stdin: true})
		p.says("up")
		running = append(running, p)
	}
	p := m.exec(id, &borgrpc.ExecProgram{Args: []string{"true"}})
	if p.end(); status.Code(p.err) != codes.ResourceExhausted || !strings.Contains(p.err.Error(), "at most 32 and 8") {
		t.Errorf("the ninth: %v, %v; want that it is too many", p.exit, p.err)
	}
	running[0].send(&borgrpc.ExecInput{End: true})
	running[0].end()
	p = m.exec(id, &borgrpc.ExecProgram{Args: []string{"true"}})
	if p.end(); p.err != nil || p.exit.GetCode() != 0 {
		t.Errorf("after one has ended: %v, %v", p.exit, p.err)
	}
}
