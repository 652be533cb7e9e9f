package process_test

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"borg/borgmaster/cell"
	"borg/identity"
	"borg/proto/borgpb"
	"borg/proto/borgrpc"
	"borg/proto/door"
	"borg/scheduler/process"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// start runs a scheduler process until the test ends, and returns what stops
// it and waits for it.
func start(t *testing.T, cfg process.Config) (stop func()) {
	t.Helper()
	cfg.RetryMin, cfg.RetryMax = time.Millisecond, 20*time.Millisecond
	if os.Getenv("BORG_TEST_LOG") != "" {
		cfg.Logger = slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelDebug}))
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- process.Run(ctx, cfg) }()
	stopped := false
	stop = func() {
		if stopped {
			return
		}
		stopped = true
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run: %v", err)
		}
	}
	t.Cleanup(stop)
	return stop
}

// eventually waits for a condition; the bound is only there so that a broken
// program does not hang the test.
func eventually(t *testing.T, what string, yes func() bool) {
	t.Helper()
	deadline := time.Now().Add(5 * time.Minute)
	for !yes() {
		if time.Now().After(deadline) {
			t.Fatalf("waited in vain: %s", what)
		}
		time.Sleep(2 * time.Millisecond)
	}
}

func (m *master) running(job string) (n int) {
	m.view(func(c *cell.Cell) {
		if j := c.Job(cell.JobKey{User: "ann", Name: job}); j != nil {
			_, running, _ := j.Counts()
			n = int(running)
		}
	})
	return n
}

func (m *master) must(t *testing.T, op *borgpb.Op) *borgpb.Result {
	t.Helper()
	r := m.do(op)
	if r.GetRefusal() != nil {
		t.Fatalf("%v: refused: %v", op, r.GetRefusal())
	}
	return r
}

// TestPlaces follows a master from an empty cell on.
func TestPlaces(t *testing.T) {
	m := newMaster(t)
	start(t, process.Config{Identity: source(t, identity.Scheduler, "1"), Master: m.addr})
	for i := range 10 {
		m.must(t, addMachine(fmt.Sprintf("m%d", i), 100_000))
	}
	m.must(t, submitJob("web", 5000, 100))
	eventually(t, "5000 tasks run", func() bool { return m.running("web") == 5000 })
	m.must(t, submitJob("more", 1000, 1000))
	eventually(t, "the machines are full", func() bool { return m.running("more") == 500 })
	m.view(func(c *cell.Cell) {
		if err := c.Check(); err != nil {
			t.Error(err)
		}
		if m.refused > 0 {
			t.Errorf("%d assignments were refused although nobody else places", m.refused)
		}
	})
}

// TestReconnects loses the master again and again while jobs arrive.
func TestReconnects(t *testing.T) {
	m := newMaster(t)
	start(t, process.Config{Identity: source(t, identity.Scheduler, "1"), Master: m.addr})
	m.must(t, addMachine("m1", 1_000_000))
	for i := range 10 {
		job := fmt.Sprintf("job%d", i)
		followed := m.followed()
		m.must(t, submitJob(job, 50, 100))
		m.cut()
		if i == 5 {
			addr := m.addr
			m.stop()
			m.listen(t, addr)
		}
		eventually(t, job+" runs", func() bool { return m.running(job) == 50 })
		// It may have been placed just before the cut; the next one must meet a
		// connection.
		eventually(t, "the master is followed again", func() bool { return m.followed() > followed })
	}
	m.view(func(c *cell.Cell) {
		if m.follows < 10 {
			t.Errorf("followed %d times and was cut off 11 times", m.follows)
		}
		for j := range c.Jobs() {
			for i, task := range j.Tasks() {
				if task.Attempt() != 1 {
					t.Errorf("%s/%d was placed %d times", j.Key(), i, task.Attempt())
				}
			}
		}
	})
}

// TestMissingEntry loads the cell anew when an entry did not come.
func TestMissingEntry(t *testing.T) {
	m := newMaster(t)
	start(t, process.Config{Identity: source(t, identity.Scheduler, "1"), Master: m.addr})
	m.must(t, addMachine("m1", 1_000_000))
	m.must(t, submitJob("one", 1, 100))
	eventually(t, "one runs", func() bool { return m.running("one") == 1 })
	m.mu.Lock()
	m.skip = true
	m.mu.Unlock()
	m.must(t, submitJob("two", 1, 100))
	m.must(t, submitJob("three", 1, 100))
	eventually(t, "two and three run", func() bool { return m.running("two")+m.running("three") == 2 })
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.follows < 2 {
		t.Errorf("followed %d times; the copy lacked an entry", m.follows)
	}
}

// TestStaleRefusals drains the machine under each of the first batches, and
// gives no answer to some.
func TestStaleRefusals(t *testing.T) {
	m := newMaster(t)
	m.must(t, addMachine("m1", 10_000))
	m.must(t, addMachine("m2", 10_000))
	calls := 0
	m.before = func() error {
		calls++
		switch {
		case calls <= 2:
			m.apply(drainMachine("m1", true))
			m.apply(drainMachine("m2", true))
			m.apply(addMachine(fmt.Sprintf("n%d", calls), 10_000))
		case calls <= 4:
			return status.Error(codes.ResourceExhausted, "too many mutations are waiting")
		}
		return nil
	}
	m.must(t, submitJob("web", 8, 1000))
	start(t, process.Config{Identity: source(t, identity.Scheduler, "1"), Master: m.addr})
	eventually(t, "all run elsewhere", func() bool { return m.running("web") == 8 })
	m.view(func(c *cell.Cell) {
		if m.refused == 0 {
			t.Error("nothing was refused")
		}
		for p := range c.Machine("m1").Copies() {
			t.Errorf("%s is on the drained machine", p.TaskID())
		}
	})
}

// TestUnknownOutcome loses the answers to batches that were done: nothing is
// placed twice.
func TestUnknownOutcome(t *testing.T) {
	m := newMaster(t)
	m.must(t, addMachine("m1", 1_000_000))
	calls := 0
	m.after = func() error {
		if calls++; calls%2 == 1 {
			return status.Error(codes.Unavailable, "it is not known whether the op was applied")
		}
		return nil
	}
	start(t, process.Config{Identity: source(t, identity.Scheduler, "1"), Master: m.addr})
	for i := range 6 {
		job := fmt.Sprintf("job%d", i)
		m.must(t, submitJob(job, 40, 100))
		eventually(t, job+" runs", func() bool { return m.running(job) == 40 })
	}
	m.view(func(c *cell.Cell) {
		for j := range c.Jobs() {
			for i, task := range j.Tasks() {
				if task.Attempt() != 1 {
					t.Errorf("%s/%d was placed %d times", j.Key(), i, task.Attempt())
				}
			}
		}
	})
}

// TestExplain asks over the socket.
func TestExplain(t *testing.T) {
	m := newMaster(t)
	socket := filepath.Join(t.TempDir(), "s")
	start(t, process.Config{Identity: source(t, identity.Scheduler, "1"), Master: m.addr, Socket: socket})
	m.must(t, addMachine("m1", 4000))
	r := m.must(t, submitJob("big", 1, 64_000))
	conn, err := door.Dial("unix:"+socket, source(t, identity.Master, "1"), identity.Name{Cell: "test", Role: identity.Scheduler})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	client := borgrpc.NewSchedulerServiceClient(conn)
	ask := func(index uint32, minIndex uint64) (*borgrpc.WhyResponse, error) {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
		defer cancel()
		resp, err := client.Explain(ctx, &borgrpc.ExplainRequest{User: "ann", Name: "big", Index: index, MinIndex: minIndex})
		return resp.GetWhy(), err
	}
	var why *borgrpc.WhyResponse
	eventually(t, "it follows", func() bool {
		why, err = ask(0, r.GetIndex())
		return status.Code(err) != codes.Unavailable
	})
	if err != nil {
		t.Fatal(err)
	}
	if why.GetMachines() != 1 || len(why.GetReasons()) != 1 || why.GetReasons()[0].GetTest() != "cpu" {
		t.Errorf("why = %v, want one machine that lacks cpu", why)
	}
	if len(why.GetChanges()) != 1 || why.GetChanges()[0].GetChange() != "cpu 64.0 -> 4.0" {
		t.Errorf("changes = %v, want cpu 64.0 -> 4.0", why.GetChanges())
	}
	if _, err := ask(7, 0); status.Code(err) != codes.NotFound {
		t.Errorf("a task that there is not: %v, want NotFound", err)
	}
	// A question about what is to come waits until it has come.
	answered := make(chan *borgrpc.WhyResponse, 1)
	go func() {
		why, _ := ask(0, r.GetIndex()+1)
		answered <- why
	}()
	m.must(t, addMachine("m2", 100_000))
	if why := <-answered; why.GetIndex() <= r.GetIndex() {
		t.Errorf("answered as of %d, want after %d", why.GetIndex(), r.GetIndex())
	}
}

// TestEndsWithParent ends when the other end of the pipe is closed, whatever it
// is doing.
func TestEndsWithParent(t *testing.T) {
	r, w := io.Pipe()
	done := make(chan error, 1)
	go func() {
		// Nobody listens there: it is busy dialing.
		done <- process.Run(context.Background(), process.Config{Identity: source(t, identity.Scheduler, "1"), Master: "127.0.0.1:1", Parent: r})
	}()
	if _, err := w.Write([]byte("not yet")); err != nil {
		t.Fatal(err)
	}
	select {
	case err := <-done:
		t.Fatalf("ended early: %v", err)
	default:
	}
	w.Close()
	if err := <-done; err != nil {
		t.Errorf("Run = %v, want nil", err)
	}
}

// TestBadConfig refuses at once.
func TestBadConfig(t *testing.T) {
	own := source(t, identity.Scheduler, "1")
	for _, cfg := range []process.Config{
		{},
		{Master: "127.0.0.1:1"},
		{Master: "127.0.0.1:1", Identity: own, RetryMin: -1},
		{Master: "127.0.0.1:1", Identity: own, Socket: "/nosuch/directory/socket"},
	} {
		if err := process.Run(context.Background(), cfg); err == nil {
			t.Errorf("Run(%+v) = nil, want an error", cfg)
		}
	}
}

// TestMoves waits for tasks to be moved for one that fits nowhere: the first plan
// gets no answer, the second one is stale when it comes to the log.
func TestMoves(t *testing.T) {
	m := newMaster(t)
	for f := uint32(2); f <= cell.BuildFormat; f++ {
		m.must(t, &borgpb.Op{Op: &borgpb.Op_RaiseFormat{RaiseFormat: &borgpb.RaiseFormat{Format: f}}})
	}
	calls := 0
	m.beforeMoves = func() error {
		switch calls++; calls {
		case 1:
			return status.Error(codes.Unavailable, "it is not known whether the op was applied")
		case 2:
			m.apply(drainMachine("m2", true))
			m.apply(addMachine("m3", 2000))
		}
		return nil
	}
	start(t, process.Config{Identity: source(t, identity.Scheduler, "1"), Master: m.addr})
	m.must(t, addMachine("m1", 4000))
	m.must(t, submitJob("small", 1, 2000))
	eventually(t, "small runs", func() bool { return m.running("small") == 1 })
	m.must(t, addMachine("m2", 2000))
	m.must(t, submitJob("large", 1, 4000))
	eventually(t, "large runs", func() bool {
		m.pass(time.Second)
		return m.running("large") == 1
	})
	m.view(func(c *cell.Cell) {
		if err := c.Check(); err != nil {
			t.Error(err)
		}
		small := c.Job(cell.JobKey{User: "ann", Name: "small"}).Task(0)
		if at := small.Current().Machine().Name(); at != "m3" || small.Attempt() != 2 {
			t.Errorf("small is on %s at attempt %d, want m3 at attempt 2", at, small.Attempt())
		}
		if m.refused != 1 || calls != 3 {
			t.Errorf("%d of %d plans were refused, want 1 of 3", m.refused, calls)
		}
	})
}
