package borgmaster_test

import (
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"borg/proto/borgpb"
	"borg/proto/borgrpc"
)

// TestProductionGetsRoomByMoves has production wait that fits nowhere before two
// others have moved: it comes to run, the two run again elsewhere, stopped for a move,
// and nobody else was disturbed.
func TestProductionGetsRoomByMoves(t *testing.T) {
	tc := newCell(t, 2, nil)
	tc.runScheduler()
	user := tc.client(1, "alice")
	job := func(name string, tasks uint32, cpuMilli int64) {
		spec, err := proto.Marshal(&borgpb.JobSpec{
			Kind: borgpb.JobKind_JOB_KIND_SERVICE, Tasks: tasks, Priority: 200,
			Task: &borgpb.TaskSpec{
				Resources: &borgpb.Resources{CpuMilli: cpuMilli, MemBytes: 1 << 20}, Args: []string{"/bin/sleep", "1000"}, GraceNs: 1e9,
			},
		})
		if err != nil {
			t.Fatal(err)
		}
		tc.must(user, &borgpb.Op{Op: &borgpb.Op_SubmitJob{SubmitJob: &borgpb.SubmitJob{User: "alice", Name: name, Spec: spec}}})
	}
	runs := func(name string) {
		t.Helper()
		until(t, name+" runs", func() bool {
			for _, task := range tc.tasks("alice", name) {
				if task.Status.AttemptState != borgpb.AttemptState_ATTEMPT_STATE_RUNNING {
					return false
				}
			}
			return true
		})
	}
	tc.addMachine(startBorglet(t, "m1"))
	job("small", 2, 1000)
	runs("small")
	tc.addMachine(startBorglet(t, "m2"))
	tc.addMachine(startBorglet(t, "m3"))
	job("middle", 2, 3000)
	runs("middle")
	job("large", 1, 4000)
	runs("large")
	runs("small")
	runs("middle")
	if at := tc.tasks("alice", "large")[0].Status.Machine; at != "m1" {
		t.Errorf("large runs on %s, want m1", at)
	}
	where := make(map[string]bool)
	for _, task := range tc.tasks("alice", "small") {
		st := task.Status
		where[st.Machine] = true
		if st.Attempt != 2 || len(st.Attempts) != 1 || st.Attempts[0].Cause != borgpb.StopCause_STOP_CAUSE_MOVE {
			t.Errorf("small/%d: %v, want one move", task.Index, st)
		}
	}
	if !where["m2"] || !where["m3"] {
		t.Errorf("small runs on %v, want m2 and m3", where)
	}
	for _, task := range tc.tasks("alice", "middle") {
		if task.Status.Attempt != 1 {
			t.Errorf("middle/%d was disturbed: %v", task.Index, task.Status)
		}
	}
}

// TestMovesAreForTheElected proposes plans where they are not taken.
func TestMovesAreForTheElected(t *testing.T) {
	tc := newCell(t, 2, nil)
	if _, err := tc.scheduling(2).MoveTasks(t.Context(), &borgrpc.MoveTasksRequest{}); status.Code(err) != codes.Unavailable {
		t.Errorf("MoveTasks at a follower: %v, want Unavailable", err)
	}
	many := &borgpb.MoveTasks{Build: strings.Repeat("x", 2<<20)}
	resp, err := tc.scheduling(1).MoveTasks(t.Context(), &borgrpc.MoveTasksRequest{Move: many})
	if err != nil || resp.GetResult().GetRefusal().GetKind() != borgpb.RefusalKind_REFUSAL_KIND_LIMIT {
		t.Errorf("MoveTasks of 2 MiB = %v, %v, want LIMIT", resp, err)
	}
	until(t, "a plan of nothing is refused by the cell", func() bool {
		resp, err := tc.scheduling(1).MoveTasks(t.Context(), &borgrpc.MoveTasksRequest{Move: &borgpb.MoveTasks{}})
		return err == nil && resp.GetResult().GetRefusal().GetKind() == borgpb.RefusalKind_REFUSAL_KIND_INVALID
	})
}
