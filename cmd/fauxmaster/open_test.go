package main

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"borg/cli"
)

// programs returns a directory with all programs; BORG_BIN names one.
func programs(t *testing.T) string {
	t.Helper()
	if testing.Short() {
		t.Skip("starts real processes: make e2e")
	}
	if dir := os.Getenv("BORG_BIN"); dir != "" {
		return dir
	}
	dir := t.TempDir()
	if out, err := exec.Command("go", "build", "-o", dir, "borg/cmd/...").CombinedOutput(); err != nil {
		t.Fatalf("go build: %v\n%s", err, out)
	}
	return dir
}

// process is a program that runs until it is told to end.
type process struct {
	cmd    *exec.Cmd
	stdout *bufio.Reader
	stderr bytes.Buffer
}

func start(t *testing.T, name string, args ...string) *process {
	t.Helper()
	p := &process{cmd: exec.Command(name, args...)}
	p.cmd.Stderr = &p.stderr
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	p.stdout = bufio.NewReader(out)
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.end() })
	return p
}

// end tells the process to end, and waits until it has.
func (p *process) end() error {
	if p.cmd.ProcessState != nil {
		return nil
	}
	_ = p.cmd.Process.Signal(syscall.SIGTERM)
	_, _ = p.stdout.WriteTo(&bytes.Buffer{})
	if err := p.cmd.Wait(); err != nil {
		return fmt.Errorf("%w: %s", err, p.stderr.String())
	}
	return nil
}

// shell runs other programs.
type shell struct {
	t   *testing.T
	bin string
	env []string
}

func (s *shell) try(program string, args ...string) (code int, stdout, stderr string) {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, filepath.Join(s.bin, program), args...)
	cmd.Env = append(os.Environ(), s.env...)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	err := cmd.Run()
	var exit *exec.ExitError
	switch {
	case err == nil:
	case errors.As(err, &exit):
		code = exit.ExitCode()
	default:
		s.t.Fatal(err)
	}
	return code, out.String(), errs.String()
}

// must runs a program that is to succeed, and returns what it prints.
func (s *shell) must(program string, args ...string) string {
	s.t.Helper()
	code, out, errs := s.try(program, args...)
	if code != cli.OK {
		s.t.Fatalf("%s %s: exit %d\n%s%s", program, strings.Join(args, " "), code, out, errs)
	}
	return out
}

// freePorts finds a base of ports for a cell that nobody listens on.
func freePorts(t *testing.T) int {
	t.Helper()
	for base := 25000 + os.Getpid()%40*20; base < 29000; base += 200 {
		free := true
		for _, port := range []int{base + 1, base + 101, base + 102} {
			l, err := net.Listen("tcp", "127.0.0.1:"+strconv.Itoa(port))
			if err != nil {
				free = false
				break
			}
			l.Close()
		}
		if free {
			return base
		}
	}
	t.Fatal("no free ports from 25000 to 29000")
	return 0
}

const webJob = `
job(
    name = "web",
    kind = "service",
    tasks = 3,
    band = "production",
    task = task(args = ["/bin/sleep", "1000000"], resources = resources(cpu = 0.1, mem = "16MiB")),
)
`

// TestOpenARealCell takes a checkpoint of a real cell that runs a job, opens it when
// the cell is gone, and drives it on with borgcfg as if it were still there.
func TestOpenARealCell(t *testing.T) {
	bin := programs(t)
	// Not t.TempDir: its paths are too long for sockets.
	dir, err := os.MkdirTemp("", "faux-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	// Temporary files of all that is started lie here, so that what stays behind is
	// seen.
	temporary := filepath.Join(dir, "tmp")
	job := filepath.Join(dir, "web.borg")
	if err := errors.Join(os.Mkdir(temporary, 0o700), os.WriteFile(job, []byte(webJob), 0o600)); err != nil {
		t.Fatal(err)
	}
	home := filepath.Join(dir, "cell")
	live := &shell{t, bin, []string{"BORG_CELL=" + filepath.Join(home, "cell.yaml"), "XDG_CONFIG_HOME=" + dir}}
	base := freePorts(t)
	real := start(t, filepath.Join(bin, "borgcell"), "run", "--cell", fmt.Sprintf("faux%d", os.Getpid()), "--dir", home, "--run-dir", filepath.Join(dir, "run"),
		"--bin", bin, "--masters", "1", "--machines", "2", "--port-base", strconv.Itoa(base), "--runtime", "process", "--capacity", "cpu=2,mem=2GiB,disk=10GiB", "--log-level", "error")
	untilUp(t, live)
	// The replica keeps its past from its first checkpoint on.
	archive := filepath.Join(home, "masters", "1", "archive")
	eventually(t, "there is a checkpoint in "+archive, func() bool {
		kept, _ := filepath.Glob(filepath.Join(archive, "*.ckpt"))
		return len(kept) > 0
	})
	live.must("borgcfg", "up", "--wait", job)
	// The user who runs the cell, whose name is left out where he asks himself.
	owner := strings.TrimSpace(live.must("borgcfg", "whoami", "-o", "name"))
	said, index := live.must("borgcfg", "why", "web/0"), appliedIndex.FindStringSubmatch(live.must("borgcfg", "status", "-o", "json"))
	want := live.must("borgcfg", "tasks", "web", "-o", "json")
	file := filepath.Join(dir, "monday.ckpt")
	live.must("borgmaster", "checkpoint", "save", "--from", "127.0.0.1:"+strconv.Itoa(base+1), file)
	if err := real.end(); err != nil {
		t.Fatal(err)
	}
	sum := hashOf(t, file)

	// The archive of the replica tells what was decided, as it was told then.
	if _, out, errs := live.try("fauxmaster", "replay", "--decisions", filepath.Dir(archive)); !strings.Contains(out, "1 batches of decisions made again, 0 differ; 0 not made again") {
		t.Errorf("replay says\n%s%s", out, errs)
	}
	if index == nil {
		t.Fatal("status does not say at which index the cell is")
	}
	if then := live.must("fauxmaster", "why", archive, owner+"/web/0", "--at", index[1]); then != owner+"/"+said {
		t.Errorf("why said\n%s\nand says of then\n%s", said, then)
	}

	faux := exec.Command(filepath.Join(bin, "fauxmaster"), "serve", file)
	faux.Env = append(os.Environ(), "TMPDIR="+temporary)
	p := &process{cmd: faux}
	faux.Stderr = &p.stderr
	out, err := faux.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	p.stdout = bufio.NewReader(out)
	if err := faux.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.end() })
	path, err := p.stdout.ReadString('\n')
	if err != nil {
		t.Fatalf("serve prints no path: %v\n%s", err, p.stderr.String())
	}
	past := &shell{t, bin, []string{"BORG_CELL=" + strings.TrimSpace(path), "XDG_CONFIG_HOME=" + dir}}

	// As of then: the same attempts on the same machines, with the same processes.
	if got := past.must("borgcfg", "tasks", "web", "-o", "json"); attempts(got) != attempts(want) || attempts(got) == "" {
		t.Errorf("the tasks of web were\n%s\nand are\n%s", want, got)
	}
	status := past.must("borgcfg", "status")
	if !strings.Contains(status, "simulated, as of 20") || !strings.Contains(status, "machines: 2 up, 0 down; tasks: 3 running") {
		t.Errorf("status says\n%s", status)
	}
	if code, _, errs := past.try("borgcfg", "machine", "list"); code != cli.OK || !strings.Contains(errs, "is simulated, as of 20") {
		t.Errorf("machine list says %q on standard error (exit %d)", errs, code)
	}
	// And on from there. up waits until the new tasks run.
	more := filepath.Join(dir, "more.borg")
	if err := os.WriteFile(more, []byte(strings.Replace(webJob, `"web"`, `"more"`, 1)), 0o600); err != nil {
		t.Fatal(err)
	}
	past.must("borgcfg", "up", "--wait", more)
	if why := past.must("borgcfg", "why", "more/0"); !strings.Contains(why, "it has a place: attempt 1") || !strings.Contains(why, "chosen at index") {
		t.Errorf("why says\n%s", why)
	}
	giant := filepath.Join(dir, "giant.borg")
	if err := os.WriteFile(giant, []byte(strings.NewReplacer(`"web"`, `"giant"`, `cpu = 0.1`, `cpu = 64`).Replace(webJob)), 0o600); err != nil {
		t.Fatal(err)
	}
	if code, _, errs := past.try("borgcfg", "up", giant); code != cli.CannotFit {
		t.Errorf("up of a giant: exit %d, want %d: %s", code, cli.CannotFit, errs)
	}
	if why := past.must("borgcfg", "why", "giant/0"); !strings.Contains(why, "0 of 2 machines fit") || !strings.Contains(why, "needs 64.0 cpu") {
		t.Errorf("why says of a giant\n%s", why)
	}
	past.must("borgcfg", "machine", "add", "10.0.0.9:7101", "--name", "another")
	machines := past.must("borgcfg", "machine", "list", "-o", "name")
	first, _, _ := strings.Cut(machines, "\n")
	past.must("borgcfg", "machine", "drain", first, "--wait")
	past.must("borgcfg", "down", "web")
	if trail := past.must("borgcfg", "audit"); !strings.Contains(trail, "kill-job") {
		t.Errorf("the audit says\n%s", trail)
	}

	// Nothing stays behind, and nothing was written back.
	if err := p.end(); err != nil {
		t.Error(err)
	}
	if left, err := os.ReadDir(temporary); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
	if hashOf(t, file) != sum {
		t.Error("the checkpoint was changed")
	}
}

// eventually looks again and again, for a minute.
func eventually(t *testing.T, what string, so func() bool) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); !so(); {
		if time.Now().After(deadline) {
			t.Fatalf("it is not so after a minute that %s", what)
		}
	}
}

// untilUp waits until both machines of the cell are up.
func untilUp(t *testing.T, s *shell) {
	t.Helper()
	eventually(t, "both machines are up", func() bool {
		code, out, _ := s.try("borgcfg", "status")
		return code == cli.OK && strings.Contains(out, "machines: 2 up")
	})
}

var appliedIndex = regexp.MustCompile(`"applied_index": "(\d+)"`)

var attemptFacts = regexp.MustCompile(`"(machine|attempt|pid|restarts|attempt_state)": [^\n]*`)

// attempts is where tasks run and as what.
func attempts(tasks string) string { return strings.Join(attemptFacts.FindAllString(tasks, -1), "\n") }

func hashOf(t *testing.T, path string) [32]byte {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return sha256.Sum256(data)
}
