package borgmaster

import (
	"context"
	"encoding/hex"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"borg/borgmaster/cell"
	"borg/borgmaster/selector"
	"borg/identity"
	"borg/proto/borgpb"
	"borg/proto/borgrpc"
	"borg/proto/door"
)

const (
	// Tasks in one answer: when the asker does not say, and at most.
	tasksPerPage    = 1_000
	maxTasksPerPage = 10_000
	// A page ends early once it has so many bytes.
	maxPageBytes = 4 << 20
	// A list that has no pages may have so many bytes: the wire takes 8 MiB.
	maxAnswerBytes = 7 << 20
)

// whole returns a list unless it is too long for the wire.
func whole[R proto.Message](resp R, what string) (R, error) {
	if n := proto.Size(resp); n > maxAnswerBytes {
		var none R
		return none, status.Errorf(codes.FailedPrecondition, "the list of %s has %d MiB, more than one answer may have; narrow it by a name or a selector", what, n>>20)
	}
	return resp, nil
}

// fresh waits until this replica may answer a read of that mode.
func (m *Master) fresh(ctx context.Context, mode borgrpc.ReadMode) error {
	if mode == borgrpc.ReadMode_READ_MODE_STALE {
		return nil
	}
	return m.readIndex(ctx)
}

func (a *masterAPI) GetJob(ctx context.Context, req *borgrpc.GetJobRequest) (*borgrpc.GetJobResponse, error) {
	if err := a.m.fresh(ctx, req.GetMode()); err != nil {
		return nil, err
	}
	key := cell.JobKey{User: req.GetUser(), Name: req.GetName()}
	resp := &borgrpc.GetJobResponse{}
	// A task looks at what is its user's; of others it sees where tasks run.
	if caller := door.Caller(ctx); caller.Role == identity.Task && caller.User() != key.User {
		return nil, status.Errorf(codes.PermissionDenied, "you are %s: a task may look at jobs of its own user, not at %s; where tasks of others run, ListTasks tells", caller.Words(), key)
	}
	a.m.cfg.Log.View(func(c *cell.Cell) {
		resp.Index = c.Index()
		if j := c.Job(key); j != nil {
			resp.Job, resp.Update = c.JobProto(j), c.UpdateProto(j)
		}
	})
	if resp.Job == nil {
		return nil, noJob(key)
	}
	return resp, nil
}

func noJob(key cell.JobKey) error {
	return status.Errorf(codes.NotFound, "there is no job %s", key)
}

func (a *masterAPI) ListJobs(ctx context.Context, req *borgrpc.ListJobsRequest) (*borgrpc.ListJobsResponse, error) {
	pick, err := selector.Parse(req.GetSelector())
	if err != nil {
		return nil, status.Error(codes.InvalidArgument, err.Error())
	}
	if err := a.m.fresh(ctx, req.GetMode()); err != nil {
		return nil, err
	}
	resp := &borgrpc.ListJobsResponse{}
	a.m.cfg.Log.View(func(c *cell.Cell) {
		resp.Index = c.Index()
		for j := range c.Jobs() {
			if (req.GetUser() == "" || j.Key().User == req.GetUser()) &&
				(req.GetDead() || j.State() != borgpb.State_STATE_DEAD) && pick.Matches(j.Labels()) {
				resp.Jobs = append(resp.Jobs, c.JobProto(j))
			}
		}
	})
	return whole(resp, "jobs")
}

// ListTasks is answered by any replica, but by the elected master who is asked
// what tasks use, which it alone knows.
func (a *masterAPI) ListTasks(ctx context.Context, req *borgrpc.ListTasksRequest) (*borgrpc.ListTasksResponse, error) {
	list := func(ctx context.Context) (*borgrpc.ListTasksResponse, error) { return a.m.listTasks(ctx, req) }
	if !req.GetUsed() || req.GetMode() == borgrpc.ReadMode_READ_MODE_STALE {
		return list(ctx)
	}
	return onElected(ctx, a.m, true, list,
		func(ctx context.Context, conn *grpc.ClientConn) (*borgrpc.ListTasksResponse, error) {
			return borgrpc.NewMasterServiceClient(conn).ListTasks(ctx, req)
		})
}

func (m *Master) listTasks(ctx context.Context, req *borgrpc.ListTasksRequest) (*borgrpc.ListTasksResponse, error) {
	q, err := newTaskQuery(req)
	if err != nil {
		return nil, err
	}
	if err := m.fresh(ctx, req.GetMode()); err != nil {
		return nil, err
	}
	m.cfg.Log.View(func(c *cell.Cell) {
		if err = q.run(c); err == nil && req.GetUsed() {
			m.reclaim.fillTasks(c, q.resp.Tasks)
		}
	})
	if err != nil {
		return nil, err
	}
	if caller := door.Caller(ctx); caller.Role == identity.Task {
		forTask(q.resp.Tasks, caller.User())
	}
	return q.resp, nil
}

// forTask leaves, of tasks of other users, where they run and under which names of
// ports: a task may find whom it talks to, and need not know what they were told.
func forTask(tasks []*borgpb.Task, user string) {
	for i, t := range tasks {
		if t.Meta.GetUser() == user {
			continue
		}
		tasks[i] = &borgpb.Task{
			Meta: &borgpb.Meta{User: t.Meta.GetUser(), Name: t.Meta.GetName(), Uid: t.Meta.GetUid(), Version: t.Meta.GetVersion()}, Index: t.Index,
			Spec: &borgpb.TaskSpec{Ports: t.Spec.GetPorts()},
			Status: &borgpb.TaskStatus{
				State: t.Status.GetState(), Attempt: t.Status.GetAttempt(), AttemptState: t.Status.GetAttemptState(),
				Machine: t.Status.GetMachine(), Ports: t.Status.GetPorts(),
			},
		}
	}
}

// taskQuery collects one page of tasks, by job and index.
type taskQuery struct {
	req *borgrpc.ListTasksRequest
	// Tasks after this one, when hasAfter.
	after    cell.TaskID
	hasAfter bool
	limit    int
	bytes    int
	resp     *borgrpc.ListTasksResponse
}

func newTaskQuery(req *borgrpc.ListTasksRequest) (*taskQuery, error) {
	q := &taskQuery{req: req, limit: int(req.GetLimit()), resp: &borgrpc.ListTasksResponse{}}
	if q.limit == 0 {
		q.limit = tasksPerPage
	}
	q.limit = min(q.limit, maxTasksPerPage)
	if req.GetAfter() != "" {
		id, err := cell.ParseTaskID(req.GetAfter())
		if err != nil {
			return nil, status.Errorf(codes.InvalidArgument, "after: %v", err)
		}
		q.after, q.hasAfter = id, true
	}
	if req.GetName() != "" && req.GetUser() == "" {
		return nil, status.Errorf(codes.InvalidArgument, "job %q: the user is missing", req.GetName())
	}
	return q, nil
}

func (q *taskQuery) run(c *cell.Cell) error {
	q.resp.Index = c.Index()
	key := cell.JobKey{User: q.req.GetUser(), Name: q.req.GetName()}
	if key.Name != "" {
		j := c.Job(key)
		if j == nil {
			return noJob(key)
		}
		if q.req.GetHasIndex() && j.Task(q.req.GetIndex()) == nil {
			return status.Errorf(codes.NotFound, "job %s has %d tasks; there is no task %d", key, j.NumTasks(), q.req.GetIndex())
		}
		q.job(c, j)
		return nil
	}
	if name := q.req.GetMachine(); name != "" && c.Machine(name) == nil {
		return status.Errorf(codes.NotFound, "there is no machine %s", name)
	}
	for j := range c.Jobs() {
		if (key.User == "" || j.Key().User == key.User) && !q.job(c, j) {
			return nil
		}
	}
	return nil
}

// job adds the tasks of a job; false: the page is full.
func (q *taskQuery) job(c *cell.Cell, j *cell.Job) bool {
	if q.hasAfter && j.Key().Compare(q.after.Job) < 0 {
		return true
	}
	for index, t := range j.Tasks() {
		if q.hasAfter && j.Key() == q.after.Job && index <= q.after.Index || !q.wants(t, index) {
			continue
		}
		if n := len(q.resp.Tasks); n == q.limit || q.bytes > maxPageBytes {
			last := q.resp.Tasks[n-1]
			q.resp.NextAfter = cell.TaskID{Job: cell.JobKey{User: last.Meta.User, Name: last.Meta.Name}, Index: last.Index}.String()
			return false
		}
		task := c.TaskProto(j, index, q.req.GetAttempts())
		q.bytes += proto.Size(task)
		q.resp.Tasks = append(q.resp.Tasks, task)
	}
	return true
}

func (q *taskQuery) wants(t *cell.Task, index uint32) bool {
	if q.req.GetHasIndex() && index != q.req.GetIndex() {
		return false
	}
	if q.req.GetMachine() != "" {
		return t.Current() != nil && t.Current().Machine().Name() == q.req.GetMachine() || q.req.GetAttempts() && pastOn(t, q.req.GetMachine())
	}
	// Without a job: only what has been placed or is dead.
	return q.req.GetName() != "" || t.Attempt() > 0 || t.State() == borgpb.State_STATE_DEAD
}

func pastOn(t *cell.Task, machine string) bool {
	for p := range t.Past() {
		if p.Live() && p.Machine().Name() == machine {
			return true
		}
	}
	return false
}

func (a *masterAPI) ListAllocs(ctx context.Context, req *borgrpc.ListAllocsRequest) (*borgrpc.ListAllocsResponse, error) {
	if err := a.m.fresh(ctx, req.GetMode()); err != nil {
		return nil, err
	}
	resp := &borgrpc.ListAllocsResponse{}
	key := cell.JobKey{User: req.GetUser(), Name: req.GetName()}
	var err error
	a.m.cfg.Log.View(func(c *cell.Cell) {
		resp.Index = c.Index()
		for s := range c.AllocSets() {
			if (key.User == "" || s.Key().User == key.User) && (key.Name == "" || s.Key().Name == key.Name) {
				resp.AllocSets = append(resp.AllocSets, c.AllocSetProto(s))
			}
		}
		if key.Name == "" {
			return
		}
		s := c.AllocSet(key)
		if s == nil {
			err = status.Errorf(codes.NotFound, "there is no alloc set %s", key)
			return
		}
		for alloc := range s.Allocs() {
			resp.Allocs = append(resp.Allocs, c.AllocProto(alloc))
		}
	})
	if err != nil {
		return nil, err
	}
	return whole(resp, "allocs")
}

// ListMachines is answered by the elected master, which alone knows of copies
// that the cell does not know, and what copies use; a stale read does without.
func (a *masterAPI) ListMachines(ctx context.Context, req *borgrpc.ListMachinesRequest) (*borgrpc.ListMachinesResponse, error) {
	pick, err := selector.Parse(req.GetSelector())
	if err != nil {
		return nil, status.Error(codes.InvalidArgument, err.Error())
	}
	list := func(ctx context.Context) (*borgrpc.ListMachinesResponse, error) {
		return a.m.listMachines(req.GetName(), pick)
	}
	if req.GetMode() == borgrpc.ReadMode_READ_MODE_STALE {
		return list(ctx)
	}
	return onElected(ctx, a.m, true,
		func(ctx context.Context) (*borgrpc.ListMachinesResponse, error) {
			if err := a.m.readIndex(ctx); err != nil {
				return nil, err
			}
			return list(ctx)
		},
		func(ctx context.Context, conn *grpc.ClientConn) (*borgrpc.ListMachinesResponse, error) {
			return borgrpc.NewMasterServiceClient(conn).ListMachines(ctx, req)
		})
}

func (m *Master) listMachines(name string, pick selector.Selector) (*borgrpc.ListMachinesResponse, error) {
	resp := &borgrpc.ListMachinesResponse{}
	m.cfg.Log.View(func(c *cell.Cell) {
		resp.Index = c.Index()
		for machine := range c.Machines() {
			if (name == "" || machine.Name() == name) && pick.Matches(machine.SelectorLabels()) {
				resp.Machines = append(resp.Machines, c.MachineProto(machine))
			}
		}
		m.reclaim.fillMachines(c, resp.Machines)
	})
	if name != "" && len(resp.Machines) == 0 {
		return nil, status.Errorf(codes.NotFound, "there is no machine %s", name)
	}
	for _, machine := range resp.Machines {
		machine.Status.UnknownTasks = m.unknownOn(machine.Meta.Name)
	}
	return whole(resp, "machines")
}

// describeCell fills in what is read from the cell itself.
func describeCell(resp *borgrpc.GetCellResponse, c *cell.Cell) {
	resp.CellId, resp.Epoch, resp.Format = c.ID(), c.Epoch(), c.Format()
	resp.CellTimeNs, resp.WallTimeNs, resp.WallSuspect = c.TimeNs(), c.WallNs(), c.WallSuspect()
	resp.LostDeclaredForNs = c.LostDeclared()
	for j := range c.Jobs() {
		if j.State() != borgpb.State_STATE_DEAD {
			resp.Jobs++
		}
		pending, running, dead := j.Counts()
		resp.TasksPending += pending
		resp.TasksRunning += running
		resp.TasksDead += dead
	}
	for machine := range c.Machines() {
		if machine.Up() {
			resp.MachinesUp++
		} else {
			resp.MachinesDown++
		}
	}
	resp.DigestIndex = c.Index() / digestEvery * digestEvery
	if digest, ok := c.DigestAt(resp.DigestIndex); ok {
		resp.Digest = hex.EncodeToString(digest[:])
	} else {
		resp.DigestIndex = 0
	}
}

// digestEvery is how often the cell remembers its digest, in log entries.
const digestEvery = 1024
