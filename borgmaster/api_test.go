package borgmaster_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"borg/borgmaster"
	"borg/borgmaster/cell"
	"borg/identity"
	"borg/proto/borgpb"
	"borg/proto/borgrpc"
)

func TestFollowersForward(t *testing.T) {
	tc := newCell(t, 3, nil)
	follower := tc.client(2, "alice")
	r := tc.must(follower, submit(t, "alice", "web", 3))
	if r.Uid == "" || r.Version != 1 || r.Index == 0 {
		t.Errorf("result of a submit through a follower is %v, want uid, version 1 and index", r)
	}
	// A linearizable read from another follower sees it at once.
	job, err := tc.client(3, "bob").GetJob(t.Context(), &borgrpc.GetJobRequest{User: "alice", Name: "web"})
	if err != nil || job.Job.Meta.Uid != r.Uid || job.Index < r.Index {
		t.Errorf("GetJob = %v, %v, want uid %s at index %d or later", job, err, r.Uid, r.Index)
	}
	// The op carries who asked, not who forwarded.
	events := readEvents(t, tc.client(1, "bob"), &borgrpc.EventsRequest{Job: "alice/web"})
	if len(events) == 0 || events[0].User != "alice" || events[0].Kind != borgpb.EventKind_EVENT_KIND_SUBMIT {
		t.Errorf("first event of the job is %v, want alice's submit", events)
	}
}

func TestRepeatedRequestsAreDoneOnce(t *testing.T) {
	tc := newCell(t, 2, nil)
	op := tc.op(submit(t, "alice", "web", 1))
	first, err := tc.client(1, "alice").Mutate(t.Context(), &borgrpc.MutateRequest{Op: op})
	if err != nil {
		t.Fatal(err)
	}
	again, err := tc.client(2, "alice").Mutate(t.Context(), &borgrpc.MutateRequest{Op: op})
	if err != nil || !again.Result.Repeated || again.Result.Uid != first.Result.Uid {
		t.Errorf("the same request again = %v, %v, want the first answer: %v", again, err, first)
	}
	op.RequestId = ""
	none, err := tc.client(1, "alice").Mutate(t.Context(), &borgrpc.MutateRequest{Op: op})
	if err != nil || none.Result.Refusal.GetField() != "request_id" {
		t.Errorf("a request without an id = %v, %v, want a refusal of request_id", none, err)
	}
}

func TestWhoMayDoWhat(t *testing.T) {
	tc := newCell(t, 1, nil)
	tc.must(tc.client(1, "alice"), submit(t, "alice", "web", 1))
	tests := []struct {
		name, who string
		op        *borgpb.Op
		want      borgpb.RefusalKind
	}{
		{"another's job", "bob", kill("alice", "web"), borgpb.RefusalKind_REFUSAL_KIND_PERMISSION},
		{"submit for another", "bob", submit(t, "alice", "x", 1), borgpb.RefusalKind_REFUSAL_KIND_PERMISSION},
		{"machines", "bob", &borgpb.Op{Op: &borgpb.Op_DrainMachine{DrainMachine: &borgpb.DrainMachine{Name: "m"}}}, borgpb.RefusalKind_REFUSAL_KIND_PERMISSION},
		{"machines as operator", "root", &borgpb.Op{Op: &borgpb.Op_DrainMachine{DrainMachine: &borgpb.DrainMachine{Name: "m"}}}, borgpb.RefusalKind_REFUSAL_KIND_NOT_FOUND},
		{"assign", "root", &borgpb.Op{Op: &borgpb.Op_Assign{Assign: &borgpb.Assign{}}}, borgpb.RefusalKind_REFUSAL_KIND_PERMISSION},
		{"moves", "root", &borgpb.Op{Op: &borgpb.Op_MoveTasks{MoveTasks: &borgpb.MoveTasks{}}}, borgpb.RefusalKind_REFUSAL_KIND_PERMISSION},
		{"reports", "root", &borgpb.Op{Op: &borgpb.Op_Reports{Reports: &borgpb.Reports{}}}, borgpb.RefusalKind_REFUSAL_KIND_PERMISSION},
		{"machine down", "root", &borgpb.Op{Op: &borgpb.Op_MachineDown{MachineDown: &borgpb.MachineDown{Name: "m"}}}, borgpb.RefusalKind_REFUSAL_KIND_PERMISSION},
		{"no op", "root", &borgpb.Op{}, borgpb.RefusalKind_REFUSAL_KIND_MALFORMED},
		{"another's job as operator", "root", kill("alice", "web"), borgpb.RefusalKind_REFUSAL_KIND_UNSPECIFIED},
	}
	for _, tt := range tests {
		resp, err := tc.client(1, tt.who).Mutate(t.Context(), &borgrpc.MutateRequest{Op: tc.op(tt.op)})
		if err != nil || resp.Result.Refusal.GetKind() != tt.want {
			t.Errorf("%s: %s gets %v, %v, want %v", tt.name, tt.who, resp, err, tt.want)
		}
	}
	// What is given as the principal is not believed.
	op := tc.op(submit(t, "alice", "y", 1))
	op.Principal = &borgpb.Principal{User: "alice", Role: borgpb.Role_ROLE_USER}
	if resp, err := tc.client(1, "bob").Mutate(t.Context(), &borgrpc.MutateRequest{Op: op}); err != nil || resp.Result.Refusal == nil {
		t.Errorf("bob calling himself alice in the op = %v, %v, want a refusal", resp, err)
	}
}

func TestDoorsAreForRoles(t *testing.T) {
	tc := newCell(t, 1, nil)
	_, err := borgrpc.NewSchedulingServiceClient(tc.conn(1, identity.User, "root")).Assign(t.Context(), &borgrpc.AssignRequest{})
	if status.Code(err) != codes.PermissionDenied {
		t.Errorf("a user calls Assign: %v, want PermissionDenied", err)
	}
	_, err = borgrpc.NewReplicaServiceClient(tc.conn(1, identity.User, "root")).Report(t.Context(), &borgrpc.ReportRequest{})
	if status.Code(err) != codes.PermissionDenied {
		t.Errorf("a user calls Report: %v, want PermissionDenied", err)
	}
	save, err := borgrpc.NewCheckpointServiceClient(tc.conn(1, identity.User, "bob")).SaveCheckpoint(t.Context(), &borgrpc.SaveCheckpointRequest{})
	if err == nil {
		_, err = save.Recv()
	}
	if status.Code(err) != codes.PermissionDenied || !strings.Contains(err.Error(), "capability admin") {
		t.Errorf("bob asks for a checkpoint: %v, want PermissionDenied", err)
	}
	_, err = borgrpc.NewMemberServiceClient(tc.conn(1, identity.User, "bob")).RemoveMember(t.Context(), &borgrpc.RemoveMemberRequest{Id: 1})
	if status.Code(err) != codes.PermissionDenied {
		t.Errorf("bob removes a member: %v, want PermissionDenied", err)
	}
	_, err = borgrpc.NewReplicaServiceClient(tc.conn(1, identity.Master, "2")).Report(t.Context(), &borgrpc.ReportRequest{Replica: 3, CellId: testCellID})
	if status.Code(err) != codes.PermissionDenied || !strings.Contains(err.Error(), "master 2 reports for replica 3") {
		t.Errorf("replica 2 reports for replica 3: %v, want PermissionDenied", err)
	}
}

func TestNobodyElected(t *testing.T) {
	tc := newCell(t, 3, nil)
	tc.must(tc.client(1, "alice"), submit(t, "alice", "web", 1))
	tc.group.Elect(0)
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	if _, err := tc.client(2, "alice").GetJob(ctx, &borgrpc.GetJobRequest{User: "alice", Name: "web"}); status.Code(err) != codes.DeadlineExceeded {
		t.Errorf("linearizable read with nobody elected: %v, want it to wait", err)
	}
	stale := &borgrpc.GetJobRequest{User: "alice", Name: "web", Mode: borgrpc.ReadMode_READ_MODE_STALE}
	if _, err := tc.client(2, "alice").GetJob(t.Context(), stale); err != nil {
		t.Errorf("stale read with nobody elected: %v", err)
	}
	is, err := tc.client(2, "alice").GetCell(t.Context(), &borgrpc.GetCellRequest{})
	if err != nil || is.Elected != 0 || is.Replica != 2 || is.CellId != testCellID || len(is.Members) != 3 || is.Jobs != 1 {
		t.Errorf("GetCell with nobody elected = %v, %v", is, err)
	}
	// A mutation waits for the election.
	done := make(chan error, 1)
	go func() {
		_, err := tc.client(2, "alice").Mutate(context.Background(), &borgrpc.MutateRequest{Op: tc.op(kill("alice", "web"))})
		done <- err
	}()
	tc.group.Elect(3)
	if err := <-done; err != nil {
		t.Errorf("mutation during an election: %v", err)
	}
}

func TestForwardedCallsAreNotForwardedAgain(t *testing.T) {
	tc := newCell(t, 2, nil)
	ctx := metadata.AppendToOutgoingContext(t.Context(), "borg-forwarded", "1")
	_, err := tc.client(2, "alice").Mutate(ctx, &borgrpc.MutateRequest{Op: tc.op(submit(t, "alice", "web", 1))})
	if status.Code(err) != codes.Unavailable || !strings.Contains(err.Error(), "not elected") {
		t.Errorf("a forwarded call at a follower: %v, want Unavailable", err)
	}
}

func TestReads(t *testing.T) {
	tc := newCell(t, 1, nil)
	c := tc.client(1, "alice")
	web := submit(t, "alice", "web", 5)
	web.GetSubmitJob().Labels = map[string]string{"tier": "front"}
	tc.must(c, web)
	tc.must(c, submit(t, "alice", "db", 2))
	tc.must(tc.client(1, "bob"), submit(t, "bob", "web", 1))
	tc.must(tc.client(1, "bob"), kill("bob", "web"))

	jobs := func(req *borgrpc.ListJobsRequest) string {
		resp, err := c.ListJobs(t.Context(), req)
		if err != nil {
			return status.Code(err).String()
		}
		var names []string
		for _, j := range resp.Jobs {
			names = append(names, j.Meta.User+"/"+j.Meta.Name)
		}
		return strings.Join(names, " ")
	}
	tests := []struct {
		req  *borgrpc.ListJobsRequest
		want string
	}{
		{&borgrpc.ListJobsRequest{}, "alice/db alice/web"},
		{&borgrpc.ListJobsRequest{Dead: true}, "alice/db alice/web bob/web"},
		{&borgrpc.ListJobsRequest{User: "bob", Dead: true}, "bob/web"},
		{&borgrpc.ListJobsRequest{Selector: "tier=front"}, "alice/web"},
		{&borgrpc.ListJobsRequest{Selector: "tier!=front"}, "alice/db"},
		{&borgrpc.ListJobsRequest{Selector: "tier in (back"}, "InvalidArgument"},
	}
	for _, tt := range tests {
		if got := jobs(tt.req); got != tt.want {
			t.Errorf("ListJobs(%v) = %q, want %q", tt.req, got, tt.want)
		}
	}
	page, err := c.ListTasks(t.Context(), &borgrpc.ListTasksRequest{User: "alice", Name: "web", Limit: 3})
	if err != nil || len(page.Tasks) != 3 || page.NextAfter != "alice/web/2" {
		t.Fatalf("first page of tasks = %v, %v, want 3 and more after alice/web/2", page, err)
	}
	page, err = c.ListTasks(t.Context(), &borgrpc.ListTasksRequest{User: "alice", Name: "web", Limit: 3, After: page.NextAfter})
	if err != nil || len(page.Tasks) != 2 || page.Tasks[0].Index != 3 || page.NextAfter != "" {
		t.Errorf("second page of tasks = %v, %v, want tasks 3 and 4 and no more", page, err)
	}
	for _, err := range []error{
		second(c.GetJob(t.Context(), &borgrpc.GetJobRequest{User: "alice", Name: "no"})),
		second(c.ListTasks(t.Context(), &borgrpc.ListTasksRequest{User: "alice", Name: "web", HasIndex: true, Index: 9})),
		second(c.ListMachines(t.Context(), &borgrpc.ListMachinesRequest{Name: "no"})),
		second(c.ListAllocs(t.Context(), &borgrpc.ListAllocsRequest{User: "alice", Name: "no"})),
		second(c.Why(t.Context(), &borgrpc.WhyRequest{User: "alice", Name: "no"})),
	} {
		if status.Code(err) != codes.NotFound {
			t.Errorf("something that is not there: %v, want NotFound", err)
		}
	}
}

func TestListsThatAreTooLong(t *testing.T) {
	tc := newCell(t, 1, nil)
	big := make([]byte, 60<<10)
	for i := range big {
		big[i] = 'x'
	}
	for i := range 130 {
		op := submit(t, "alice", fmt.Sprint("j", i), 1)
		op.GetSubmitJob().Annotations = map[string]string{"note": string(big)}
		tc.must(tc.client(1, "alice"), op)
	}
	jobs, req := 0, &borgrpc.ListJobsRequest{}
	for {
		resp, err := tc.client(1, "alice").ListJobs(t.Context(), req)
		if err != nil {
			t.Fatal(err)
		}
		if jobs += len(resp.Jobs); resp.NextAfter == "" {
			break
		}
		req = &borgrpc.ListJobsRequest{After: resp.NextAfter}
	}
	if req.After == "" || jobs != 130 {
		t.Errorf("a list of 7.6 MiB has %d jobs, the last page after %q; want 130 in more than one", jobs, req.After)
	}
	if _, err := tc.client(1, "alice").ListJobs(t.Context(), &borgrpc.ListJobsRequest{User: "bob"}); err != nil {
		t.Errorf("the list narrowed: %v", err)
	}
}

func second[T any](_ T, err error) error { return err }

func readEvents(t *testing.T, c borgrpc.MasterServiceClient, req *borgrpc.EventsRequest) []*borgpb.Event {
	t.Helper()
	stream, err := c.Events(t.Context(), req)
	if err != nil {
		t.Fatal(err)
	}
	var all []*borgpb.Event
	for {
		resp, err := stream.Recv()
		if err != nil {
			return all
		}
		all = append(all, resp.Events...)
	}
}

func TestEventsFollow(t *testing.T) {
	tc := newCell(t, 2, nil)
	c := tc.client(2, "alice")
	tc.must(c, submit(t, "alice", "one", 1))
	tc.must(c, submit(t, "alice", "two", 1))
	if got := readEvents(t, c, &borgrpc.EventsRequest{Last: 1}); len(got) != 1 || got[0].Object != "alice/two" {
		t.Errorf("the last event is %v, want one of alice/two", got)
	}
	stream, err := c.Events(t.Context(), &borgrpc.EventsRequest{Job: "alice/two", Follow: true})
	if err != nil {
		t.Fatal(err)
	}
	var seen []borgpb.EventKind
	tc.must(c, kill("alice", "one"))
	tc.must(c, kill("alice", "two"))
	last := uint64(0)
	for len(seen) == 0 || seen[len(seen)-1] != borgpb.EventKind_EVENT_KIND_KILL {
		resp, err := stream.Recv()
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range resp.Events {
			if !strings.HasPrefix(e.Object, "alice/two") || e.Index < last {
				t.Errorf("event %v, want those of alice/two alone, in order", e)
			}
			last = e.Index
			seen = append(seen, e.Kind)
		}
	}
	if seen[0] != borgpb.EventKind_EVENT_KIND_SUBMIT {
		t.Errorf("events of alice/two are %v, want them from the submit on", seen)
	}
}

func TestFollowAndAssign(t *testing.T) {
	tc := newCell(t, 2, nil)
	tc.must(tc.client(1, "alice"), submit(t, "alice", "before", 100))
	stream, err := tc.scheduling(1).Follow(t.Context(), &borgrpc.FollowRequest{})
	if err != nil {
		t.Fatal(err)
	}
	var keys, values [][]byte
	var copied *cell.Cell
	for copied == nil {
		resp, err := stream.Recv()
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range resp.Records {
			keys, values = append(keys, r.Key), append(values, r.Value)
		}
		if resp.RecordsEnd {
			copied, err = cell.Load(func(yield func(k, v []byte) bool) {
				for i := range keys {
					if !yield(keys[i], values[i]) {
						return
					}
				}
			})
			if err != nil || copied.Index() != resp.Index || copied.ID() != resp.CellId {
				t.Fatalf("load the cell that was sent: index %d, %v, want index %d", copied.Index(), err, resp.Index)
			}
		}
	}
	r := tc.must(tc.client(2, "alice"), submit(t, "alice", "after", 1))
	for copied.Index() < r.Index {
		resp, err := stream.Recv()
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range resp.Entries {
			if e.Index != copied.Index()+1 {
				t.Fatalf("entry %d came after %d", e.Index, copied.Index())
			}
			copied.Apply(e.Index, e.Term, e.Data)
		}
	}
	var want cell.Digest
	tc.group.Replica(1).View(func(c *cell.Cell) {
		if c.Index() == copied.Index() {
			want = c.Digest()
		}
	})
	if got := copied.Digest(); got != want {
		t.Errorf("the copy has digest %x, the cell %x", got, want)
	}
	until(t, "the follower knows of the scheduler", func() bool {
		is, err := tc.client(2, "alice").GetCell(t.Context(), &borgrpc.GetCellRequest{})
		return err == nil && is.SchedulerConnected
	})
	tc.group.Elect(2)
	if _, err := stream.Recv(); status.Code(err) != codes.Unavailable {
		for err == nil {
			_, err = stream.Recv()
		}
		if status.Code(err) != codes.Unavailable {
			t.Errorf("Follow after another election ends with %v, want Unavailable", err)
		}
	}
	if _, err := tc.scheduling(1).Assign(t.Context(), &borgrpc.AssignRequest{Assign: &borgpb.Assign{}}); status.Code(err) != codes.Unavailable {
		t.Errorf("Assign at a follower: %v, want Unavailable", err)
	}
}

func TestSchedulerIsSupervised(t *testing.T) {
	processes := map[int]*fakeProcess{}
	tc := newCell(t, 2, func(replica int, c *borgmaster.Config) {
		processes[replica] = &fakeProcess{die: make(chan struct{})}
		c.Scheduler, c.SchedulerSocket = processes[replica], t.TempDir()+"/s"
	})
	until(t, "the elected master starts a scheduler", func() bool { return processes[1].running() == 1 })
	processes[1].die <- struct{}{}
	until(t, "a scheduler that died is started again", func() bool { return processes[1].started.Load() == 2 && processes[1].running() == 1 })
	tc.group.Elect(2)
	until(t, "the scheduler moves with the election", func() bool { return processes[1].running() == 0 && processes[2].running() == 1 })
}

// TestMutations: a stream of mutations answers each before the next, ends with the first
// that fails, and does not keep a replica from stopping.
func TestMutations(t *testing.T) {
	tc := newCell(t, 2, nil)
	stream, err := tc.client(2, "alice").Mutations(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	ask := func(op *borgpb.Op) (*borgpb.Result, error) {
		t.Helper()
		if err := stream.Send(&borgrpc.MutateRequest{Op: op}); err != nil {
			t.Fatal(err)
		}
		resp, err := stream.Recv()
		return resp.GetResult(), err
	}
	for i := range 5 {
		if r, err := ask(tc.op(submit(t, "alice", fmt.Sprint("web-", i), 1))); err != nil || r.Uid == "" {
			t.Fatalf("submit %d: %v, %v", i, r, err)
		}
	}
	// A refusal is an answer, also for what belongs to others.
	if r, err := ask(tc.op(kill("bob", "web"))); err != nil || r.Refusal.GetKind() != borgpb.RefusalKind_REFUSAL_KIND_PERMISSION {
		t.Errorf("killing bob's job: %v, %v, want a refusal", r, err)
	}
	tc.end[1]()
	if _, err := stream.Recv(); status.Code(err) != codes.Unavailable || !strings.Contains(err.Error(), "this replica is stopping") {
		t.Errorf("an idle stream of a replica that stops ended with %v, want Unavailable", err)
	}
}

// TestRequestIDOfAnotherOp: a raw client that sends another op under the id of one that was
// answered is refused, by whichever call, and its first op stays answered.
func TestRequestIDOfAnotherOp(t *testing.T) {
	tc, _ := newSecretCell(t, 1)
	c := tc.client(1, "ann")
	first := submit(t, "ann", "web", 1)
	tc.must(c, first)
	other := submit(t, "ann", "other", 1)
	other.RequestId, other.RequestWallNs = first.RequestId, first.RequestWallNs
	resp, err := c.Mutate(t.Context(), &borgrpc.MutateRequest{Op: other})
	if err != nil || resp.Result.Repeated || resp.Result.Refusal.GetKind() != borgpb.RefusalKind_REFUSAL_KIND_INVALID || resp.Result.Refusal.Field != "request_id" {
		t.Errorf("another op under the id of the first: %v, %v", resp, err)
	}
	if resp, err := c.Mutate(t.Context(), &borgrpc.MutateRequest{Op: first}); err != nil || !resp.Result.Repeated || resp.Result.Refusal != nil {
		t.Errorf("the first op again: %v, %v", resp, err)
	}
	set := func(name, value string) *borgpb.Result {
		t.Helper()
		resp, err := tc.secrets(1, "ann").SetSecret(t.Context(), &borgrpc.SetSecretRequest{
			RequestId: "secret", RequestWallNs: first.RequestWallNs, User: "ann", Name: name, Value: []byte(value),
		})
		if err != nil {
			t.Fatal(err)
		}
		return resp.Result
	}
	if r := set("key", "one"); r.Refusal != nil {
		t.Fatal(r.Refusal)
	}
	if r := set("key", "one"); !r.Repeated || r.Refusal != nil {
		t.Errorf("the same value again: %v", r)
	}
	for _, r := range []*borgpb.Result{set("key", "two"), set("cert", "one")} {
		if r.Refusal.GetField() != "request_id" {
			t.Errorf("another secret, or another value, under the id of the first: %v", r)
		}
	}
}
