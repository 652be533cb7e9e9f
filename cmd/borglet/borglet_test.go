package main

import (
	"bufio"
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"

	"borg/borglet/container"
	"borg/borgmaster/client"
	"borg/identity"
	"borg/proto/borgpb"
	"borg/proto/borgrpc"
	"borg/proto/door"
)

// mainVariable makes the test binary be the program: the tests start the real
// one, as processes that can be killed.
const mainVariable = "BORGLET_TEST_MAIN"

func TestMain(m *testing.M) {
	if os.Getenv(mainVariable) != "" || (len(os.Args) == 3 && (os.Args[1] == "shim" || os.Args[1] == container.ExecArgument)) {
		main()
		return
	}
	if len(os.Args) > 2 && os.Args[1] == takeArgument {
		if os.Args[2] == "connections" {
			queueBytes()
		}
		takeAll()
	}
	if len(os.Args) > 3 && os.Args[1] == holdArgument {
		holdForTest(os.Args[2], os.Args[3])
	}
	if len(os.Args) > 3 && os.Args[1] == squatArgument {
		squatForTest(os.Args[2], os.Args[3])
	}
	if len(os.Args) > 2 && os.Args[1] == hoardSocketsArgument {
		hoardSockets(os.Args[2])
	}
	if len(os.Args) > 2 && os.Args[1] == filtersArgument {
		filtersForTest(os.Args[2])
	}
	if len(os.Args) > 2 && os.Args[1] == listenArgument {
		listenForTest(os.Args[2:])
	}
	if len(os.Args) == 4 && os.Args[1] == hoardArgument {
		hoardMain(os.Args[2:])
		return
	}
	if d, err := time.ParseDuration(os.Getenv(patienceVariable)); err == nil {
		patience = d
	}
	os.Exit(m.Run())
}

// patience bounds each wait for something that must come; it is never a
// measure. Who wants a test to fail sets the variable, so as not to wait so long.
var patience = 5 * time.Minute

const patienceVariable = "BORGLET_TEST_PATIENCE"

// machine is a borglet under test and the master that polls it.
type machine struct {
	t       testing.TB
	name    string
	runtime string
	flags   []string
	dir     string
	runDir  string
	cmd     *exec.Cmd
	log     *syncBuffer
	client  borgrpc.BorgletServiceClient
	conn    *grpc.ClientConn
	master  *identity.Source
	fence   *borgrpc.Fence
	desired []*borgrpc.Desired
	stops   []*borgrpc.Stop
	forget  []*borgrpc.CopyID
	wanted  []*borgrpc.WantedPackage
	// allocNetworks are the allocs that have networks of their own.
	allocNetworks []string
	// keepVolumes are to stay, deleteVolumes to go.
	keepVolumes, deleteVolumes []*borgpb.VolumeName
	// next makes uids.
	next int
}

type syncBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (b *syncBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *syncBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}

// newMachine starts a borglet, and sweeps what it left when the test ends.
func newMachine(t testing.TB, runtime string, flags ...string) *machine {
	t.Helper()
	if testing.Short() {
		t.Skip("starts a borglet and its tasks: make e2e")
	}
	if runtime == "container" && os.Getuid() != 0 {
		t.Skip("containers need root")
	}
	base, err := os.MkdirTemp("", "bl")
	if err != nil {
		t.Fatal(err)
	}
	m := &machine{
		t: t, runtime: runtime, flags: flags, name: "t" + strings.ToLower(filepath.Base(base)),
		dir: filepath.Join(base, "d"), runDir: filepath.Join(base, "r"),
		fence: &borgrpc.Fence{CellId: "cell-1", Epoch: 1, Term: 1, Index: 1}, next: 9,
	}
	t.Cleanup(func() {
		if m.cmd != nil {
			m.kill()
		}
		swept, err := container.Sweep(context.Background(), container.SweepConfig{Name: m.name, Dir: m.dir, RunDir: m.runDir})
		if err != nil {
			t.Errorf("Sweep: %v", err)
		}
		t.Logf("swept: %s", swept)
		if t.Failed() {
			t.Logf("borglet said:\n%s", m.log)
			logs, _ := filepath.Glob(filepath.Join(m.dir, "tasks", "*", "shim.log"))
			for _, path := range logs {
				text, _ := os.ReadFile(path)
				t.Logf("%s:\n%s", path, text)
			}
		}
		// A process that the sweep has killed may still be ending.
		for deadline := time.Now().Add(patience); ; time.Sleep(10 * time.Millisecond) {
			if err = os.RemoveAll(base); err == nil || time.Now().After(deadline) {
				break
			}
		}
		if err != nil {
			t.Errorf("remove the borglet's directory: %v", err)
		}
	})
	m.log = &syncBuffer{}
	m.certify()
	m.start()
	return m
}

// alongside lets a test run beside others: it mostly waits, and measures nothing that
// its neighbours change.
func alongside(t *testing.T) {
	t.Helper()
	if testing.Short() {
		t.Skip("starts a borglet and its tasks: make e2e")
	}
	t.Parallel()
}

// testAuthority is that of the cell that all machines under test are of.
var testAuthority = sync.OnceValues(func() (*identity.Authority, error) {
	return identity.NewAuthority("test", time.Now(), rand.Reader)
})

// certify gives the borglet a certificate, and the test that of a master.
func (m *machine) certify() {
	m.t.Helper()
	ca, err := testAuthority()
	if err != nil {
		m.t.Fatal(err)
	}
	if m.master, err = ca.Source(identity.Name{Cell: "test", Role: identity.Master, ID: "1"}, time.Now(), identity.Life); err != nil {
		m.t.Fatal(err)
	}
	own, err := ca.Certify(identity.Name{Cell: "test", Role: identity.Borglet, ID: m.name}, time.Now(), identity.Life)
	if err != nil {
		m.t.Fatal(err)
	}
	if err := identity.WriteCredential(filepath.Join(m.dir, "identity.pem"), own); err != nil {
		m.t.Fatal(err)
	}
	if err := client.WriteCellFile(filepath.Join(m.dir, "cell.yaml"), &client.CellFile{Cell: "test", Masters: []string{"127.0.0.1:1"}}); err != nil {
		m.t.Fatal(err)
	}
}

// start starts the borglet and waits until it serves.
func (m *machine) start() {
	m.t.Helper()
	args := append([]string{
		"serve", "--name", m.name, "--dir", m.dir, "--run-dir", m.runDir,
		"--listen", "127.0.0.1:0", "--runtime", m.runtime, "--log-format", "json", "--backoff", "100ms",
	}, m.flags...)
	cmd := exec.Command(os.Args[0], args...)
	cmd.Env = append(os.Environ(), mainVariable+"=1")
	stderr, err := cmd.StderrPipe()
	if err != nil {
		m.t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		m.t.Fatal(err)
	}
	m.cmd = cmd
	addr := make(chan string, 1)
	go func() {
		defer close(addr)
		lines := bufio.NewScanner(io.TeeReader(stderr, m.log))
		for lines.Scan() {
			var line struct{ Msg, Addr string }
			if json.Unmarshal(lines.Bytes(), &line) == nil && line.Msg == "borglet serves" {
				addr <- line.Addr
			}
		}
	}()
	select {
	case a, ok := <-addr:
		if !ok {
			m.t.Fatalf("borglet ended:\n%s", m.log)
		}
		conn, err := door.Dial(a, m.master, identity.Name{Cell: "test", Role: identity.Borglet, ID: m.name})
		if err != nil {
			m.t.Fatal(err)
		}
		m.t.Cleanup(func() { conn.Close() })
		m.client, m.conn = borgrpc.NewBorgletServiceClient(conn), conn
	case <-time.After(patience):
		m.t.Fatalf("borglet does not serve:\n%s", m.log)
	}
}

// kill ends the borglet as a crash would.
func (m *machine) kill() {
	_ = m.cmd.Process.Kill()
	_ = m.cmd.Wait()
	m.cmd = nil
}

// poll is one poll of a master.
func (m *machine) poll() *borgrpc.PollResponse {
	m.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	m.fence.Index++
	resp, err := m.client.Poll(ctx, &borgrpc.PollRequest{
		Fence: m.fence, Machine: m.name, Desired: m.desired, Stops: m.stops, Forget: m.forget, Packages: m.wanted, AllocNetworks: m.allocNetworks,
		KeepVolumes: m.keepVolumes, DeleteVolumes: m.deleteVolumes,
	})
	if err != nil {
		m.t.Fatalf("Poll: %v", err)
	}
	return resp
}

// until polls until a copy is reported as wanted.
func (m *machine) until(id *borgrpc.CopyID, what string, ok func(*borgpb.TaskReport) bool) *borgpb.TaskReport {
	m.t.Helper()
	deadline := time.Now().Add(patience)
	var last *borgpb.TaskReport
	for time.Now().Before(deadline) {
		for _, r := range m.poll().GetTasks() {
			if r.GetJobUid() == id.GetJobUid() && r.GetIndex() == id.GetIndex() && r.GetAttempt() == id.GetAttempt() {
				if last = r; ok(r) {
					return r
				}
			}
		}
		time.Sleep(20 * time.Millisecond)
	}
	m.t.Fatalf("copy %v is not %s; last: %v", id, what, last)
	return nil
}

func (m *machine) untilState(id *borgrpc.CopyID, s borgpb.AttemptState) *borgpb.TaskReport {
	m.t.Helper()
	return m.until(id, s.String(), func(r *borgpb.TaskReport) bool { return r.GetState() == int32(s) })
}

// want adds a task and returns its copy.
func (m *machine) want(kind borgpb.JobKind, spec *borgpb.TaskSpec) *borgrpc.CopyID {
	if spec.Resources == nil {
		spec.Resources = &borgpb.Resources{CpuMilli: 100, MemBytes: 64 << 20}
	}
	m.next++
	id := &borgrpc.CopyID{JobUid: fmt.Sprintf("1-%d-0", m.next), Attempt: 1}
	m.desired = append(m.desired, &borgrpc.Desired{
		Copy: id, User: "alice", Job: "web", Kind: kind, Priority: 200, Version: 1, Cell: "test", Spec: spec,
	})
	return id
}

func (m *machine) batch(args ...string) *borgrpc.CopyID {
	return m.want(borgpb.JobKind_JOB_KIND_BATCH, &borgpb.TaskSpec{Args: args})
}

func (m *machine) service(args ...string) *borgrpc.CopyID {
	return m.want(borgpb.JobKind_JOB_KIND_SERVICE, &borgpb.TaskSpec{Args: args})
}

func (m *machine) stop(id *borgrpc.CopyID, grace time.Duration) {
	m.stops = append(m.stops, &borgrpc.Stop{Copy: id, Cause: borgpb.StopCause_STOP_CAUSE_KILL, Index: m.fence.Index, GraceNs: int64(grace)})
	for i, d := range m.desired {
		if d.GetCopy() == id {
			m.desired = append(m.desired[:i:i], m.desired[i+1:]...)
		}
	}
}

// file is a file in a copy's directory.
func (m *machine) file(id *borgrpc.CopyID, name string) string {
	return filepath.Join(m.dir, "tasks", fmt.Sprintf("%s.%d.%d", id.GetJobUid(), id.GetIndex(), id.GetAttempt()), name)
}

func (m *machine) read(id *borgrpc.CopyID, name string) string {
	m.t.Helper()
	text, err := os.ReadFile(m.file(id, name))
	if err != nil {
		m.t.Fatal(err)
	}
	return string(text)
}

// shimOf is the pid of a copy's shim.
func (m *machine) shimOf(id *borgrpc.CopyID) int {
	m.t.Helper()
	var p struct{ Pid int }
	if err := json.Unmarshal([]byte(m.read(id, "lock")), &p); err != nil || p.Pid == 0 {
		m.t.Fatalf("lock of %v: %v", id, err)
	}
	return p.Pid
}

const (
	running  = borgpb.AttemptState_ATTEMPT_STATE_RUNNING
	finished = borgpb.AttemptState_ATTEMPT_STATE_FINISHED
	failed   = borgpb.AttemptState_ATTEMPT_STATE_FAILED
	stopped  = borgpb.AttemptState_ATTEMPT_STATE_STOPPED
)

// alive says whether a process runs; one that only waits to be collected does
// not.
func alive(pid int) bool {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	return err == nil && !strings.Contains(string(text), ") Z ")
}
