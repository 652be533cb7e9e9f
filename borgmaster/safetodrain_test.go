package borgmaster_test

import (
	"context"
	"path/filepath"
	"slices"
	"testing"

	"borg/borgmaster"
	"borg/identity"
	"borg/proto/borgrpc"
	"borg/proto/door"
)

// drainJudge is a scheduler process that finds every machine safe to drain.
type drainJudge struct {
	borgrpc.UnimplementedSchedulerServiceServer
}

func (drainJudge) CheckDrain(_ context.Context, req *borgrpc.CheckDrainRequest) (*borgrpc.CheckDrainResponse, error) {
	r := &borgrpc.SafeToDrainResponse{Index: req.MinIndex}
	for _, name := range req.Machines {
		r.Verdicts = append(r.Verdicts, &borgrpc.DrainVerdict{Machine: name, Safe: true})
	}
	return &borgrpc.CheckDrainResponse{Answer: r}, nil
}

// TestSafeToDrainJudgesOnce names machines twice in a raw call. Each gets one verdict, from
// the cell alone and from the scheduler.
func TestSafeToDrainJudgesOnce(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "s")
	tc := newCell(t, 1, func(_ int, c *borgmaster.Config) { c.SchedulerSocket = socket })
	tc.addMachine(startBorglet(t, "m1"))
	tc.addMachine(startBorglet(t, "m2"))
	judged := func() (names []string, safe bool) {
		t.Helper()
		got, err := tc.client(1, "alice").SafeToDrain(t.Context(), &borgrpc.SafeToDrainRequest{Machines: []string{"m2", "m1", "m2", "m2", "m1"}})
		if err != nil {
			t.Fatal(err)
		}
		for _, v := range got.Verdicts {
			names = append(names, v.Machine)
			safe = v.Safe
		}
		return names, safe
	}
	want := []string{"m2", "m1"}
	if got, _ := judged(); !slices.Equal(got, want) {
		t.Errorf("without a scheduler %v are judged, want %v", got, want)
	}

	l, err := door.Listen("unix:" + socket)
	if err != nil {
		t.Fatal(err)
	}
	s := door.NewServer(door.Config{Identity: source(t, identity.Scheduler, "1")})
	borgrpc.RegisterSchedulerServiceServer(s, drainJudge{})
	served := make(chan struct{})
	go func() {
		defer close(served)
		s.Serve(l)
	}()
	defer func() { s.Stop(); <-served }()
	if _, err := tc.scheduling(1).Follow(t.Context(), &borgrpc.FollowRequest{}); err != nil {
		t.Fatal(err)
	}
	until(t, "the scheduler answers", func() bool { _, safe := judged(); return safe })
	if got, _ := judged(); !slices.Equal(got, want) {
		t.Errorf("the scheduler judges %v, want %v", got, want)
	}
}
