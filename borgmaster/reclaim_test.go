package borgmaster_test

import (
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"borg/borgmaster"
	"borg/borgmaster/reclaim"
	"borg/proto/borgpb"
	"borg/proto/borgrpc"
)

// TestBatchRunsInWhatProductionDoesNotUse fills a machine with production that uses a
// quarter of its limit: batch work waits, until its reservation has fallen; more
// production goes on waiting; another elected master goes on from there; and what
// is used, reserved and allowed is told by every replica.
func TestBatchRunsInWhatProductionDoesNotUse(t *testing.T) {
	tc := newCellAt(t, 100, 2, func(_ int, c *borgmaster.Config) { c.PollPeriod = 2 * time.Second })
	tc.runScheduler()
	user := tc.client(1, "alice")
	job := func(name string, priority int32, cpuMilli int64) {
		spec, err := proto.Marshal(&borgpb.JobSpec{
			Kind: borgpb.JobKind_JOB_KIND_SERVICE, Tasks: 1, Priority: priority,
			Task: &borgpb.TaskSpec{Resources: &borgpb.Resources{CpuMilli: cpuMilli, MemBytes: 2 << 30}, Args: []string{"/bin/sleep", "1000"}},
		})
		if err != nil {
			t.Fatal(err)
		}
		tc.must(user, &borgpb.Op{Op: &borgpb.Op_SubmitJob{SubmitJob: &borgpb.SubmitJob{User: "alice", Name: name, Spec: spec}}})
	}
	task := func(replica int, name string) *borgpb.TaskStatus {
		t.Helper()
		resp, err := tc.client(replica, "alice").ListTasks(t.Context(), &borgrpc.ListTasksRequest{User: "alice", Name: name, Used: true})
		if err != nil {
			t.Fatal(err)
		}
		return resp.Tasks[0].Status
	}
	b := startBorglet(t, "m1")
	b.change(func() { b.uses = &borgrpc.Usage{CpuMilliMean: 1000, MemBytesPeak: 512 << 20} })
	tc.addMachine(b)
	job("web", 200, 4000)
	until(t, "web runs", func() bool { return task(1, "web").AttemptState == borgpb.AttemptState_ATTEMPT_STATE_RUNNING })
	job("batch", 100, 1000)
	job("more", 200, 1000)
	if st := task(1, "batch"); st.State != borgpb.State_STATE_PENDING {
		t.Fatalf("batch is %v before anything was reclaimed", st)
	}
	until(t, "batch runs in what was reclaimed", func() bool {
		return task(1, "batch").AttemptState == borgpb.AttemptState_ATTEMPT_STATE_RUNNING
	})
	if st := task(1, "more"); st.State != borgpb.State_STATE_PENDING {
		t.Errorf("more is %v: production runs in what was reclaimed", st)
	}
	for replica := 1; replica <= 2; replica++ {
		st := task(replica, "web")
		reserved := st.GetReservation().GetResources()
		if reserved.GetCpuMilli() > 3000 || reserved.GetCpuMilli() < 1000 || st.GetUsed().GetCpuMilli() != 1000 || st.GetUsed().GetMemBytes() != 512<<20 {
			t.Errorf("replica %d says that web reserves %v and uses %v", replica, reserved, st.GetUsed())
		}
	}
	until(t, "the machine's use is told", func() bool {
		st := tc.machine("m1").Status
		return st.GetUsed().GetCpuMilli() == 2000 && st.GetReserved().GetCpuMilli() < 4000 && st.GetLimits().GetCpuMilli() == 5000
	})
	at := task(1, "web").GetReservation()
	tc.group.Elect(2)
	until(t, "the next master is told what web uses", func() bool { return task(1, "web").GetUsed() != nil })
	if now := task(1, "web").GetReservation(); now.GetResources().GetCpuMilli() > at.GetResources().GetCpuMilli() {
		t.Errorf("after another was elected web reserves %v, before it was %v", now, at)
	}
	b.change(func() { b.uses.CpuMilliMean = 3800 })
	until(t, "a spike is followed", func() bool { return task(2, "web").GetReservation().GetResources().GetCpuMilli() >= 3800 })
}

// TestReservationsSwitchedOff has tasks keep their limits, and tells what they use.
func TestReservationsSwitchedOff(t *testing.T) {
	tc := newCellAt(t, 100, 1, func(_ int, c *borgmaster.Config) {
		c.PollPeriod, c.Reservations = 2*time.Second, reclaim.Config{Off: true}
	})
	b := startBorglet(t, "m1")
	b.change(func() { b.uses = &borgrpc.Usage{CpuMilliMean: 10, MemBytesPeak: 1} })
	tc.addMachine(b)
	tc.must(tc.client(1, "alice"), submit(t, "alice", "web", 1))
	tc.place("alice", "web", "m1")
	until(t, "what it uses is told", func() bool { return tc.machine("m1").Status.Used.GetCpuMilli() == 10 })
	// The hold, and half a half-life.
	began := tc.cellTimeNs()
	until(t, "cell time passes", func() bool { return tc.cellTimeNs()-began > 600e9 })
	if r := tc.tasks("alice", "web")[0].Status.Reservation; r.GetSetCellNs() != 0 || r.GetResources().GetCpuMilli() != 100 {
		t.Errorf("web reserves %v, want its limit", r)
	}
}

func (tc *testCell) cellTimeNs() int64 {
	tc.t.Helper()
	resp, err := tc.client(1, "alice").GetCell(tc.t.Context(), &borgrpc.GetCellRequest{})
	if err != nil {
		tc.t.Fatal(err)
	}
	return resp.CellTimeNs
}
