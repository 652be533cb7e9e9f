package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"borg/borglet/container"
	"borg/cli"
	"borg/proto/borgpb"
	"borg/proto/borgrpc"
)

// TestEndsOnSignal: a borglet that is told to end does, well, and its tasks go
// on.
func TestEndsOnSignal(t *testing.T) {
	alongside(t)
	for _, runtime := range []string{"container", "process"} {
		t.Run(runtime, func(t *testing.T) {
			m := newMachine(t, runtime)
			id := m.service("sleep", "3600")
			pid := m.untilState(id, running).GetPid()
			if err := m.cmd.Process.Signal(unix.SIGTERM); err != nil {
				t.Fatal(err)
			}
			if err := m.cmd.Wait(); err != nil {
				t.Errorf("borglet ended with %v, want 0", err)
			}
			if !alive(int(pid)) {
				t.Error("its task ended with it")
			}
			m.start()
			if r := m.untilState(id, running); r.GetPid() != pid {
				t.Errorf("adopted: got %v, want pid %d", r, pid)
			}
			// With the last task stopped, a borglet that ends leaves nothing.
			m.stop(id, time.Hour)
			m.untilState(id, stopped)
			m.stops, m.forget = nil, []*borgrpc.CopyID{id}
			m.poll()
			if err := m.cmd.Process.Signal(unix.SIGTERM); err != nil {
				t.Fatal(err)
			}
			if err := m.cmd.Wait(); err != nil {
				t.Errorf("borglet ended with %v, want 0", err)
			}
			m.cmd = nil
			swept, err := container.Sweep(t.Context(), container.SweepConfig{Name: m.name, Dir: m.dir, RunDir: m.runDir})
			if err != nil || swept != (container.Swept{}) {
				t.Errorf("there was something to sweep: %v (%v)", swept, err)
			}
			if left, _ := os.ReadDir(filepath.Join(m.dir, "tasks")); len(left) > 0 {
				t.Errorf("directories left: %v", left)
			}
		})
	}
}

// TestDescribe: what the machine says of itself.
func TestDescribe(t *testing.T) {
	m := newMachine(t, "process", "--capacity", "cpu=1.5,mem=2GiB", "--attr", "rack=r1", "--attr", "os=plan9", "--task-ports", "30000-30999", "--advertise", "m1:7101")
	d, err := m.client.Describe(context.Background(), &borgrpc.DescribeRequest{})
	if err != nil {
		t.Fatal(err)
	}
	s := d.GetSpec()
	if d.GetName() != m.name || s.GetAddr() != "m1:7101" || s.GetPortFirst() != 30000 || s.GetPortLast() != 30999 || d.GetCellId() != "" {
		t.Errorf("Describe = %v", d)
	}
	if c := s.GetCapacity(); c.GetCpuMilli() != 1500 || c.GetMemBytes() != 2<<30 || c.GetDiskBytes() <= 0 {
		t.Errorf("capacity = %v", c)
	}
	for key, want := range map[string]string{"runtime": "process", "cgroup": "none", "rack": "r1", "os": "plan9"} {
		if got := s.GetAttributes()[key]; got != want {
			t.Errorf("attribute %s = %q, want %q", key, got, want)
		}
	}
	for _, key := range []string{"arch", "kernel", "hostname"} {
		if s.GetAttributes()[key] == "" {
			t.Errorf("no attribute %s", key)
		}
	}
}

// TestFollow: a followed log comes as it is written, and ends with the copy.
func TestFollow(t *testing.T) {
	m := newMachine(t, "process")
	id := m.batch("/bin/sh", "-c", "echo one; while [ ! -e go ]; do sleep 0.05; done; echo two; echo oh >&2")
	m.untilState(id, running)
	stream, err := m.client.ReadLog(context.Background(), &borgrpc.ReadLogRequest{Copy: id, Follow: true})
	if err != nil {
		t.Fatal(err)
	}
	first, err := stream.Recv()
	if err != nil || string(first.GetData()) != "one\n" || first.GetStream() != borgrpc.LogStream_LOG_STREAM_STDOUT {
		t.Fatalf("first = %v, %v", first, err)
	}
	if err := os.WriteFile(m.file(id, "task/go"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	var rest strings.Builder
	for {
		resp, err := stream.Recv()
		if err != nil {
			break
		}
		rest.WriteString(resp.GetStream().String() + " " + string(resp.GetData()))
	}
	if got := rest.String(); !strings.Contains(got, "STDOUT two\n") || !strings.Contains(got, "STDERR oh\n") {
		t.Errorf("then %q", got)
	}
	m.untilState(id, finished)
	missing := &borgrpc.CopyID{JobUid: "1-99-0", Attempt: 1}
	stream, err = m.client.ReadLog(context.Background(), &borgrpc.ReadLogRequest{Copy: missing})
	if err == nil {
		_, err = stream.Recv()
	}
	if err == nil || !strings.Contains(err.Error(), "NotFound") {
		t.Errorf("log of a copy that never was: %v, want NotFound", err)
	}
}

// TestFollowOverTurns: a log that is followed goes on over many turns of its file, in order
// and without a hole, as long as the task waits for its reader now and then.
func TestFollowOverTurns(t *testing.T) {
	alongside(t)
	eachRuntime(t, func(t *testing.T, m *machine) {
		const rounds, linesEach = 24, 65536
		id := m.service("/bin/sh", "-c", fmt.Sprintf(
			"for i in $(seq 0 %d); do while [ ! -e go.$i ]; do sleep 0.02; done; seq -f '%%015.0f' $((i * %d)) $((i * %d + %d)); done; sleep 3600",
			rounds-1, linesEach, linesEach, linesEach-1))
		m.untilState(id, running)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		stream, err := m.client.ReadLog(ctx, &borgrpc.ReadLogRequest{Copy: id, Stream: borgrpc.LogStream_LOG_STREAM_STDOUT, Follow: true})
		if err != nil {
			t.Fatal(err)
		}
		at := int64(0)
		for round := range int64(rounds) {
			if err := os.WriteFile(m.file(id, fmt.Sprintf("task/go.%d", round)), nil, 0o644); err != nil {
				t.Fatal(err)
			}
			for at < (round+1)*linesEach*16 {
				resp, err := stream.Recv()
				if err != nil || resp.GetLostBytes() > 0 {
					t.Fatalf("at byte %d: %d bytes lost, %v", at, resp.GetLostBytes(), err)
				}
				if want := countedLines(at, len(resp.GetData())); string(resp.GetData()) != want {
					t.Fatalf("from byte %d the log is %q, want %q", at, resp.GetData(), want)
				}
				at += int64(len(resp.GetData()))
			}
		}
		pieces, err := filepath.Glob(m.file(id, "stdout.*"))
		if err != nil || len(pieces) == 0 {
			t.Errorf("pieces of the log: %v, %v; want the file to have turned", pieces, err)
		}
	}, "--log-keep", "4MiB")
}

// TestLogOfRunBefore: what each run wrote is known, across a kill of the borglet, and
// when; asking for more says what there is.
func TestLogOfRunBefore(t *testing.T) {
	for _, runtime := range []string{"process", "container"} {
		t.Run(runtime, func(t *testing.T) {
			m := newMachine(t, runtime)
			id := m.want(service, &borgpb.TaskSpec{
				Args:      []string{"/bin/sh", "-c", "test -e ran && echo two && exec sleep 3600; echo one; touch ran; exit 1"},
				Resources: &borgpb.Resources{CpuMilli: 100, MemBytes: 64 << 20},
			})
			began := time.Now()
			m.until(id, "in its second run", func(r *borgpb.TaskReport) bool {
				return r.GetRestarts() > 0 && r.GetState() == int32(running)
			})
			read := func(run uint32, since time.Time) (text string, err error) {
				stream, err := m.client.ReadLog(t.Context(), &borgrpc.ReadLogRequest{Copy: id, Run: run, SinceWallNs: since.UnixNano(), Stream: borgrpc.LogStream_LOG_STREAM_STDOUT})
				for err == nil {
					var resp *borgrpc.ReadLogResponse
					if resp, err = stream.Recv(); err == nil {
						text += string(resp.GetData())
					}
				}
				if errors.Is(err, io.EOF) {
					err = nil
				}
				return text, err
			}
			check := func() {
				t.Helper()
				m.until(id, "heard of", func(*borgpb.TaskReport) bool {
					text, err := read(1, began.Add(-time.Minute))
					return err == nil && text == "two\n"
				})
				if text, err := read(2, began.Add(-time.Minute)); err != nil || text != "one\n" {
					t.Errorf("the run before wrote %q, %v", text, err)
				}
				if text, err := read(0, time.Now().Add(time.Minute)); err != nil || text != "" {
					t.Errorf("since later: %q, %v", text, err)
				}
				if text, err := read(3, began); status.Code(err) != codes.OutOfRange || !strings.Contains(err.Error(), "2 runs are known") {
					t.Errorf("a run that never was: %q, %v", text, err)
				}
			}
			check()
			m.kill()
			m.start()
			check()
		})
	}
}

// TestPlantedFiles: a plain task that puts pipes and links in the place of the borglet's
// own files of it holds up neither the borglet nor who reads its log, and nobody sees
// through them.
func TestPlantedFiles(t *testing.T) {
	for _, plant := range []string{"mkfifo ../$f", "ln -s /etc/passwd ../$f", "mkdir ../$f"} {
		t.Run(plant, func(t *testing.T) {
			m := newMachine(t, "process")
			id := m.batch("/bin/sh", "-c", "for f in stdout log.times pid.json status lock launch.json intent; do rm -f ../$f; "+plant+"; done; touch done; while [ ! -e go ]; do sleep 0.05; done")
			m.until(id, "done", func(*borgpb.TaskReport) bool {
				_, err := os.Stat(m.file(id, "task/done"))
				return err == nil
			})
			stream, err := m.client.ReadLog(t.Context(), &borgrpc.ReadLogRequest{Copy: id, Times: true})
			if err == nil {
				var resp *borgrpc.ReadLogResponse
				if resp, err = stream.Recv(); err == nil {
					t.Errorf("the log is %q, want an error", resp.GetData())
				}
			}
			if !strings.Contains(err.Error(), "plain file") {
				t.Errorf("the log: %v, want that it is no plain file", err)
			}
			m.kill()
			m.start()
			other := m.batch("/bin/sh", "-c", "echo fine")
			m.untilState(other, finished)
			if text := m.read(other, "stdout"); text != "fine\n" {
				t.Errorf("another task wrote %q", text)
			}
			if err := os.WriteFile(m.file(id, "task/go"), nil, 0o644); err != nil {
				t.Fatal(err)
			}
		})
	}
}

// TestVictims: a new task starts when the ones it takes the place of have gone.
func TestVictims(t *testing.T) {
	m := newMachine(t, "process")
	victim := m.service("/bin/sh", "-c", `trap "" TERM; while :; do sleep 0.1; done`)
	m.untilState(victim, running)
	m.stop(victim, 300*time.Millisecond)
	next := m.service("sleep", "3600")
	m.desired[0].After = []*borgrpc.CopyID{victim}
	m.until(next, "waiting", func(r *borgpb.TaskReport) bool {
		return r.GetState() == int32(borgpb.AttemptState_ATTEMPT_STATE_STARTING) && strings.Contains(r.GetText(), "alice/web/0")
	})
	r := m.untilState(next, running)
	gone := m.untilState(victim, stopped)
	if r.GetStartedWallNs() < gone.GetExit().GetEndedWallNs() {
		t.Errorf("started at %d, before the victim had gone at %d", r.GetStartedWallNs(), gone.GetExit().GetEndedWallNs())
	}
}

// TestCommandLine: wrong words are refused with what to type instead.
func TestCommandLine(t *testing.T) {
	dir := t.TempDir()
	inUse := filepath.Join(dir, "used")
	if err := os.Mkdir(inUse, 0o755); err != nil {
		t.Fatal(err)
	}
	unlock, err := lockDir(t.Context(), "--dir", inUse)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(unlock)
	t.Cleanup(func() {
		if _, err := os.Stat(filepath.Join(dir, "new")); !os.IsNotExist(err) {
			t.Errorf("a wrong flag left a directory behind: %v", err)
		}
	})
	for _, c := range []struct {
		args string
		code int
		want string
	}{
		{"serve extra", cli.Usage, "takes no arguments"},
		{"serve --runtime vm --dir " + dir + "/new", cli.Usage, "auto, container or process"},
		{"serve --listen here --dir " + dir + "/new", cli.Usage, "--listen \"here\": want an address HOST:PORT"},
		{"serve --listen 127.0.0.1:99999 --dir " + dir + "/new", cli.Usage, "--listen \"127.0.0.1:99999\""},
		{"serve --advertise :7101 --dir " + dir + "/new", cli.Usage, "that others reach"},
		{"serve --log-level loud --dir " + dir + "/new", cli.Usage, "debug, info, warn or error"},
		{"serve --config " + dir + "/none.yaml", cli.Invalid, "none.yaml"},
		{"serve --protected-ports 0 --dir " + dir + "/new", cli.Usage, "want ports"},
		{"serve --dir " + dir + "/c --run-dir " + inUse, cli.Failed, "choose another directory with --run-dir"},
		{"serve --dir " + inUse + " --run-dir " + dir + "/d", cli.Failed, "choose another directory with --dir"},
		{"serve --dir /proc/none", cli.Failed, "choose others with --dir and --run-dir"},
		{"serve --capacity cpu=none", cli.Usage, "want cores"},
		{"serve --capacity mem=4XiB", cli.Usage, "want bytes"},
		{"serve --capacity gpu=1", cli.Usage, "cpu, mem or disk"},
		{"serve --task-ports 5-4", cli.Usage, "FIRST-LAST"},
		{"serve --attr rack", cli.Usage, "KEY=VALUE"},
		{"serve --backoff 0s", cli.Usage, "more than zero"},
		{"serve --name Not_A_Name --dir " + dir + "/new", cli.Usage, "--name not-a-name"},
		{"serve --writable-mounts data", cli.Usage, "absolute"},
		{"sweep --dir " + dir + "/none", cli.NotFound, "no borglet directory"},
		{"sweep more", cli.Usage, "takes no arguments"},
		{"shim", cli.Usage, "one directory"},
		{"swep", cli.Usage, "swep"},
	} {
		t.Run(c.args, func(t *testing.T) {
			// What is in use is tried for some seconds.
			t.Parallel()
			var stdout, stderr bytes.Buffer
			code := cli.Run(t.Context(), app(), append([]string{"borglet"}, strings.Fields(c.args)...), &stdout, &stderr)
			if code != c.code || !strings.Contains(stderr.String(), c.want) {
				t.Errorf("borglet %s: exit code %d, said %q, want %d and %q", c.args, code, &stderr, c.code, c.want)
			}
		})
	}
}

func TestParse(t *testing.T) {
	for text, want := range map[string]int64{"0": 0, "1024": 1024, "1.5KiB": 1536, "4GiB": 4 << 30, "2MB": 2e6, "3B": 3, "1 TiB": 1 << 40} {
		if got, err := cli.ParseBytes(text); err != nil || got != want {
			t.Errorf("cli.ParseBytes(%q) = %d, %v, want %d", text, got, err, want)
		}
	}
	for _, text := range []string{"", "-1", "x", "1e30", "NaN", "4GiBs", "1e10GiB"} {
		if got, err := cli.ParseBytes(text); err == nil {
			t.Errorf("cli.ParseBytes(%q) = %d, want an error", text, got)
		}
	}
	for text, want := range map[string]int64{"2": 2000, "0.5": 500, "250m": 250} {
		if got, err := parseCPU(text); err != nil || got != want {
			t.Errorf("parseCPU(%q) = %d, %v, want %d", text, got, err, want)
		}
	}
	for _, text := range []string{"", "0", "-1", "0m", "1.5m", "NaN", "1e9"} {
		if got, err := parseCPU(text); err == nil {
			t.Errorf("parseCPU(%q) = %d, want an error", text, got)
		}
	}
}
