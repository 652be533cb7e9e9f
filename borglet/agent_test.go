package borglet

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"borg/proto/borgpb"
	"borg/proto/borgrpc"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// patience bounds waits for what must come.
const patience = 5 * time.Minute

// agentUnderTest is an Agent over a Fake, and the server before it.
type agentUnderTest struct {
	t      *testing.T
	dir    string
	fake   *Fake
	agent  *Agent
	server *Server
	stop   func()
}

func startAgent(t *testing.T, dir string) *agentUnderTest {
	t.Helper()
	return startAgentWith(t, dir, func(*Config) {})
}

func startAgentWith(t *testing.T, dir string, change func(*Config)) *agentUnderTest {
	t.Helper()
	fake := NewFake()
	config := Config{
		Name: "m1", Dir: dir, Build: "test", Boot: "boot1", Runtime: fake, Log: slog.New(slog.DiscardHandler),
		Spec:    &borgpb.MachineSpec{Addr: "m1:7101", Capacity: &borgpb.Resources{CpuMilli: 1000}},
		Backoff: Backoff{FirstNs: 1, BaseNs: 1, MaxNs: 1, HealthyNs: int64(time.Hour)},
	}
	change(&config)
	agent, err := New(config)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- agent.Run(ctx) }()
	a := &agentUnderTest{t: t, dir: dir, fake: fake, agent: agent, server: NewServer(agent)}
	a.stop = func() {
		if cancel == nil {
			return
		}
		cancel()
		cancel = nil
		if err := <-done; err != nil {
			t.Errorf("Run: %v", err)
		}
	}
	t.Cleanup(a.stop)
	return a
}

func fence(epoch, term, index uint64) *borgrpc.Fence {
	return &borgrpc.Fence{CellId: "c1", Epoch: epoch, Term: term, Index: index}
}

func wanted(id ID) *borgrpc.Desired {
	return &borgrpc.Desired{
		Copy: id.wire(), User: "alice", Job: "web", Kind: borgpb.JobKind_JOB_KIND_SERVICE, Version: 1, Cell: "test",
		Spec: &borgpb.TaskSpec{Args: []string{"serve"}, Resources: &borgpb.Resources{CpuMilli: 100, MemBytes: 1 << 20}},
	}
}

func (a *agentUnderTest) poll(req *borgrpc.PollRequest) *borgrpc.PollResponse {
	a.t.Helper()
	if req.Machine == "" {
		req.Machine = "m1"
	}
	resp, err := a.server.Poll(context.Background(), req)
	if err != nil {
		a.t.Fatalf("Poll: %v", err)
	}
	return resp
}

// until polls until ok holds.
func (a *agentUnderTest) until(req *borgrpc.PollRequest, ok func(*borgrpc.PollResponse) bool) *borgrpc.PollResponse {
	a.t.Helper()
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); time.Sleep(time.Millisecond) {
		if resp := a.poll(req); ok(resp) {
			return resp
		}
	}
	a.t.Fatalf("not seen; last: %v", a.poll(req))
	return nil
}

func allIn(state borgpb.AttemptState) func(*borgrpc.PollResponse) bool {
	return func(r *borgrpc.PollResponse) bool {
		for _, t := range r.GetTasks() {
			if t.GetState() != int32(state) {
				return false
			}
		}
		return len(r.GetTasks()) > 0
	}
}

const running1 = borgpb.AttemptState_ATTEMPT_STATE_RUNNING

// TestFence: what an older master says is not done, across a restart of the
// borglet too.
func TestFence(t *testing.T) {
	a := startAgent(t, t.TempDir())
	id := ID{"1-5-0", 0, 1}
	a.until(&borgrpc.PollRequest{Fence: fence(1, 4, 100), Desired: []*borgrpc.Desired{wanted(id)}}, allIn(running1))

	kill := []*borgrpc.Stop{{Copy: id.wire()}}
	for _, old := range []*borgrpc.Fence{fence(1, 4, 99), fence(1, 3, 500), fence(0, 9, 900)} {
		resp := a.poll(&borgrpc.PollRequest{Fence: old, Stops: kill})
		if !resp.GetFenced() || resp.GetHighest().GetIndex() != 100 || resp.GetHighest().GetTerm() != 4 || len(resp.GetTasks()) != 0 {
			t.Errorf("Poll(%v) = %v, want fenced by 1/4/100", old, resp)
		}
	}
	a.stop()
	a = startAgent(t, a.dir)
	if resp := a.poll(&borgrpc.PollRequest{Fence: fence(1, 4, 99), Stops: kill}); !resp.GetFenced() {
		t.Errorf("after a restart: Poll = %v, want fenced", resp)
	}
	if got := a.agent.Describe().GetCellId(); got != "c1" {
		t.Errorf("Describe: cell %q, want c1", got)
	}
	other := fence(9, 9, 9)
	other.CellId = "c2"
	if _, err := a.server.Poll(context.Background(), &borgrpc.PollRequest{Fence: other, Machine: "m1", Stops: kill}); status.Code(err) != codes.FailedPrecondition {
		t.Errorf("Poll of another cell: %v, want FailedPrecondition", err)
	}
	if _, err := a.server.Poll(context.Background(), &borgrpc.PollRequest{Fence: fence(1, 5, 1), Machine: "m2", Stops: kill}); status.Code(err) != codes.FailedPrecondition {
		t.Errorf("Poll as another machine: %v, want FailedPrecondition", err)
	}
	if _, err := a.server.Poll(context.Background(), &borgrpc.PollRequest{}); status.Code(err) != codes.InvalidArgument {
		t.Errorf("Poll without a fence: %v, want InvalidArgument", err)
	}
	bad := &borgrpc.PollRequest{Fence: fence(1, 5, 1), Machine: "m1", Stops: []*borgrpc.Stop{{Copy: &borgrpc.CopyID{JobUid: "../x", Attempt: 1}}}}
	if _, err := a.server.Poll(context.Background(), bad); status.Code(err) != codes.InvalidArgument {
		t.Errorf("Poll with a bad id: %v, want InvalidArgument", err)
	}
	outside := wanted(ID{"1-6-0", 0, 1})
	outside.Alloc = "../../../0"
	bad = &borgrpc.PollRequest{Fence: fence(1, 5, 1), Machine: "m1", Desired: []*borgrpc.Desired{outside}}
	if _, err := a.server.Poll(context.Background(), bad); status.Code(err) != codes.InvalidArgument {
		t.Errorf("Poll with a bad alloc: %v, want InvalidArgument", err)
	}
	// Nothing of all this stopped the copy; the present master may.
	a.until(&borgrpc.PollRequest{Fence: fence(1, 4, 100)}, allIn(running1))
	a.until(&borgrpc.PollRequest{Fence: fence(1, 4, 101), Stops: kill}, allIn(borgpb.AttemptState_ATTEMPT_STATE_STOPPED))
}

// TestWhomToBelieve: what a poll says of whom to believe counts when the poll is
// obeyed, and a restart of the borglet changes nothing.
func TestWhomToBelieve(t *testing.T) {
	var marks []string
	hear := func(c *Config) { c.TrustIs = func(mark []byte) { marks = append(marks, string(mark)) } }
	a := startAgentWith(t, t.TempDir(), hear)
	if a.agent.Removed(3) {
		t.Error("a replica is not believed before anything was said")
	}
	a.poll(&borgrpc.PollRequest{Fence: fence(1, 4, 100), Belief: &borgrpc.Belief{Removed: []uint64{3}, Authorities: []byte("one")}})
	a.poll(&borgrpc.PollRequest{Fence: fence(1, 3, 999), Belief: &borgrpc.Belief{Removed: []uint64{1, 2}, Authorities: []byte("of the past")}})
	a.poll(&borgrpc.PollRequest{Fence: fence(1, 4, 101), Belief: &borgrpc.Belief{Authorities: []byte("two")}})
	a.poll(&borgrpc.PollRequest{Fence: fence(1, 4, 102)})
	check := func(when string) {
		t.Helper()
		for replica, want := range map[uint64]bool{1: false, 2: false, 3: true, 4: false} {
			if got := a.agent.Removed(replica); got != want {
				t.Errorf("%s: Removed(%d) = %v, want %v", when, replica, got, want)
			}
		}
	}
	check("told")
	a.stop()
	if want := []string{"one", "two"}; !slices.Equal(marks, want) {
		t.Errorf("it has heard of the authorities %q, want %q", marks, want)
	}
	a = startAgentWith(t, a.dir, hear)
	check("after a restart")
}

// TestUnchanged: the state is not repeated to who has it, and its hash covers
// what is reported.
func TestUnchanged(t *testing.T) {
	a := startAgent(t, t.TempDir())
	id := ID{"1-5-0", 3, 2}
	resp := a.until(&borgrpc.PollRequest{Fence: fence(1, 1, 1), Desired: []*borgrpc.Desired{wanted(id)}}, allIn(running1))
	if len(resp.GetVersions()) != 1 || resp.GetVersions()[0] != 1 || resp.GetIncarnation() == "" || resp.GetSpec().GetAddr() != "m1:7101" {
		t.Errorf("Poll = %v", resp)
	}
	again := a.poll(&borgrpc.PollRequest{Fence: fence(1, 1, 1), KnownHash: resp.GetHash()})
	if !again.GetUnchanged() || len(again.GetTasks()) != 0 || string(again.GetHash()) != string(resp.GetHash()) {
		t.Errorf("Poll with the known hash = %v, want unchanged", again)
	}
	a.fake.End(id, &borgpb.Exit{Code: 1})
	a.until(&borgrpc.PollRequest{Fence: fence(1, 1, 1), KnownHash: resp.GetHash()}, func(r *borgrpc.PollResponse) bool {
		return !r.GetUnchanged() && len(r.GetTasks()) == 1 && r.GetTasks()[0].GetRestarts() == 1
	})
}

// TestRefusedSpec: a spec that cannot be bound is the task's own fault and is
// said in its exit.
func TestRefusedSpec(t *testing.T) {
	a := startAgent(t, t.TempDir())
	d := wanted(ID{"1-5-0", 0, 1})
	d.Kind = borgpb.JobKind_JOB_KIND_BATCH
	d.Spec.Args = []string{"serve", "--port={{port.http}}"}
	resp := a.until(&borgrpc.PollRequest{Fence: fence(1, 1, 1), Desired: []*borgrpc.Desired{d}}, allIn(borgpb.AttemptState_ATTEMPT_STATE_FAILED))
	if text := resp.GetTasks()[0].GetExit().GetError(); !strings.Contains(text, "{{port.http}}") {
		t.Errorf("exit error %q does not name the port", text)
	}
}

// TestMachineTrouble: what the machine cannot start is tried again.
func TestMachineTrouble(t *testing.T) {
	a := startAgent(t, t.TempDir())
	tries := 0
	a.fake.Refuse = func(*Launch) error {
		if tries++; tries < 4 {
			return errors.New("no more processes")
		}
		return nil
	}
	resp := a.until(&borgrpc.PollRequest{Fence: fence(1, 1, 1), Desired: []*borgrpc.Desired{wanted(ID{"1-5-0", 0, 1})}}, allIn(running1))
	if got := resp.GetTasks()[0].GetRestarts(); got != 0 {
		t.Errorf("restarts = %d, want 0: no process of it had run", got)
	}
}

// TestMany: a thousand copies at once, stopped and forgotten, leave nothing.
func TestMany(t *testing.T) {
	a := startAgent(t, t.TempDir())
	const n = 300
	req := &borgrpc.PollRequest{Fence: fence(1, 1, 1)}
	for i := range uint32(n) {
		req.Desired = append(req.Desired, wanted(ID{"1-5-0", i, 1}))
	}
	resp := a.until(req, allIn(running1))
	for i, task := range resp.GetTasks() {
		if task.GetIndex() != uint32(i) {
			t.Fatalf("task %d of the report has index %d", i, task.GetIndex())
		}
	}
	end := &borgrpc.PollRequest{Fence: fence(1, 1, 2)}
	for _, d := range req.Desired {
		end.Stops = append(end.Stops, &borgrpc.Stop{Copy: d.GetCopy(), GraceNs: int64(time.Hour)})
	}
	a.until(end, allIn(borgpb.AttemptState_ATTEMPT_STATE_STOPPED))
	forget := &borgrpc.PollRequest{Fence: fence(1, 1, 3)}
	for _, d := range req.Desired {
		forget.Forget = append(forget.Forget, d.GetCopy())
	}
	if resp := a.poll(forget); len(resp.GetTasks()) != 0 {
		t.Errorf("%d tasks after forget", len(resp.GetTasks()))
	}
	a.stop()
	left, err := filepath.Glob(filepath.Join(a.dir, "*", "*"))
	if err != nil || len(left) != 0 {
		t.Errorf("left on disk: %v (%v)", left, err)
	}
	if live := a.fake.Live(); len(live) != 0 {
		t.Errorf("left running: %v", live)
	}
}

// TestReadLog: both streams, one of them, the end of one, and nothing that is
// not a log.
func TestReadLog(t *testing.T) {
	a := startAgent(t, t.TempDir())
	id := ID{"1-5-0", 0, 1}
	a.until(&borgrpc.PollRequest{Fence: fence(1, 1, 1), Desired: []*borgrpc.Desired{wanted(id)}}, allIn(running1))
	dir := a.agent.store.TaskDir(id)
	write := func(name, text string) {
		t.Helper()
		f, err := os.OpenFile(filepath.Join(dir, name), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
		if err == nil {
			_, err = f.WriteString(text)
			f.Close()
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	read := func(req *borgrpc.ReadLogRequest) (string, error) {
		var text strings.Builder
		req.Copy = id.wire()
		err := a.agent.readLog(context.Background(), id, req, func(r *borgrpc.ReadLogResponse) error {
			text.Write(r.GetData())
			return nil
		})
		return text.String(), err
	}
	write("stdout", "one\ntwo\n")
	write("stderr", "oh\n")
	for _, c := range []struct {
		req  *borgrpc.ReadLogRequest
		want string
	}{
		{&borgrpc.ReadLogRequest{}, "one\ntwo\noh\n"},
		{&borgrpc.ReadLogRequest{Stream: borgrpc.LogStream_LOG_STREAM_STDERR}, "oh\n"},
		{&borgrpc.ReadLogRequest{Stream: borgrpc.LogStream_LOG_STREAM_STDOUT, TailBytes: 4}, "two\n"},
		{&borgrpc.ReadLogRequest{Stream: borgrpc.LogStream_LOG_STREAM_STDOUT, TailBytes: 2}, "two\n"},
		{&borgrpc.ReadLogRequest{Stream: borgrpc.LogStream_LOG_STREAM_STDOUT, TailBytes: 5}, "one\ntwo\n"},
		{&borgrpc.ReadLogRequest{Stream: borgrpc.LogStream_LOG_STREAM_STDOUT, TailBytes: 400}, "one\ntwo\n"},
	} {
		if got, err := read(c.req); err != nil || got != c.want {
			t.Errorf("readLog(%v) = %q, %v, want %q", c.req, got, err, c.want)
		}
	}

	// A followed log ends with the copy, and has all that it wrote.
	followed := make(chan string, 1)
	go func() {
		text, err := read(&borgrpc.ReadLogRequest{Follow: true, Stream: borgrpc.LogStream_LOG_STREAM_STDOUT})
		if err != nil {
			t.Errorf("follow: %v", err)
		}
		followed <- text
	}()
	write("stdout", "three\n")
	a.until(&borgrpc.PollRequest{Fence: fence(1, 1, 2), Stops: []*borgrpc.Stop{{Copy: id.wire()}}}, allIn(borgpb.AttemptState_ATTEMPT_STATE_STOPPED))
	if got := <-followed; got != "one\ntwo\nthree\n" {
		t.Errorf("follow: got %q", got)
	}

	// A link in the place of a log is not followed.
	if err := os.Remove(filepath.Join(dir, "stdout")); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("/etc/passwd", filepath.Join(dir, "stdout")); err != nil {
		t.Fatal(err)
	}
	if got, err := read(&borgrpc.ReadLogRequest{Stream: borgrpc.LogStream_LOG_STREAM_STDOUT}); err == nil {
		t.Errorf("read of a link = %q, want an error", got)
	}
}
