package borgmaster_test

import (
	"context"
	"net"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"borg/borgmaster"
	"borg/identity"
	"borg/proto/borgpb"
	"borg/proto/borgrpc"
	"borg/proto/door"
)

// explainer is a scheduler process that only explains.
type explainer struct {
	borgrpc.UnimplementedSchedulerServiceServer
	asked chan *borgrpc.ExplainRequest
}

func (e explainer) Explain(_ context.Context, req *borgrpc.ExplainRequest) (*borgrpc.ExplainResponse, error) {
	e.asked <- req
	return &borgrpc.ExplainResponse{Why: &borgrpc.WhyResponse{Summary: "no machine has 9 cpu", Index: req.MinIndex}}, nil
}

func TestWhy(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "s")
	tc := newCell(t, 2, func(_ int, c *borgmaster.Config) { c.SchedulerSocket = socket })
	big, small := startBorglet(t, "big"), startBorglet(t, "small")
	small.change(func() { small.spec.Capacity.CpuMilli = 50 })
	tc.addMachine(big)
	tc.addMachine(small)
	r := tc.must(tc.client(1, "alice"), submit(t, "alice", "web", 1))

	// Without a scheduler the cell's own tests are told; they add up.
	ask := &borgrpc.WhyRequest{User: "alice", Name: "web"}
	why, err := tc.client(2, "alice").Why(t.Context(), ask)
	if err != nil || !strings.Contains(why.Summary, "nothing is placed at the moment") {
		t.Fatalf("Why without a scheduler = %v, %v", why, err)
	}
	reasons := map[string]uint32{}
	for _, reason := range why.Reasons {
		reasons[reason.Test] = reason.Machines
	}
	if why.Machines != 2 || reasons["fits"] != 1 || reasons["cpu"] != 1 || len(reasons) != 2 {
		t.Errorf("of %d machines the tests say %v, want one that fits and one without cpu", why.Machines, reasons)
	}

	// With one, it is asked, once its copy has come as far as the cell.
	l, err := door.Listen("unix:" + socket)
	if err != nil {
		t.Fatal(err)
	}
	e := explainer{asked: make(chan *borgrpc.ExplainRequest, 1)}
	s := door.NewServer(door.Config{Identity: source(t, identity.Scheduler, "1")})
	borgrpc.RegisterSchedulerServiceServer(s, e)
	served := make(chan struct{})
	go func() {
		defer close(served)
		s.Serve(l)
	}()
	defer func() { s.Stop(); <-served }()
	if _, err := tc.scheduling(1).Follow(t.Context(), &borgrpc.FollowRequest{}); err != nil {
		t.Fatal(err)
	}
	until(t, "the scheduler is connected", func() bool {
		is, err := tc.client(1, "alice").GetCell(t.Context(), &borgrpc.GetCellRequest{})
		return err == nil && is.SchedulerConnected
	})
	why, err = tc.client(2, "alice").Why(t.Context(), ask)
	if err != nil || why.Summary != "no machine has 9 cpu" || why.Task.GetStatus().GetState() != borgpb.State_STATE_PENDING {
		t.Errorf("Why with a scheduler = %v, %v, want its words and the task", why, err)
	}
	if req := <-e.asked; req.Name != "web" || req.MinIndex < r.Index {
		t.Errorf("the scheduler was asked %v, want min_index %d or later", req, r.Index)
	}
}

// TestHungMasterIsGivenUp: the elected master takes calls and answers none,
// like a process that is stopped. A follower must not wait for it once somebody
// else is elected.
func TestHungMasterIsGivenUp(t *testing.T) {
	tc := newCell(t, 2, nil)
	tc.stop[0]()
	l, err := net.Listen("tcp", tc.addrs[0])
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	called := make(chan struct{})
	go func() {
		conn, err := l.Accept()
		if err != nil {
			return
		}
		close(called)
		defer conn.Close()
		<-t.Context().Done()
	}()
	done := make(chan error, 1)
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	go func() {
		_, err := tc.client(2, "alice").Mutate(ctx, &borgrpc.MutateRequest{Op: tc.op(submit(t, "alice", "web", 1))})
		done <- err
	}()
	<-called
	tc.group.Elect(2)
	if err := <-done; err != nil {
		t.Errorf("mutation while the elected master hangs: %v", err)
	}
	if n := len(tc.tasksAt(2, "alice", "web")); n != 1 {
		t.Errorf("the job has %d tasks, want 1", n)
	}
}
