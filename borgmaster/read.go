package borgmaster

import (
	"cmp"
	"context"
	"encoding/hex"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"borg/borgmaster/cell"
	"borg/borgmaster/selector"
	"borg/borgmaster/sight"
	"borg/identity"
	"borg/proto/borgpb"
	"borg/proto/borgrpc"
	"borg/proto/door"
)

const (
	// Objects in one answer, at most: the log waits while a page is made.
	maxPerPage = 1_000
	// A page ends early once it has so many bytes.
	maxPageBytes = 4 << 20
	// Objects that are looked at in one go: then others have their turn.
	lookedAtOnce = 20_000
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

// ownUser returns whose objects a caller asks for. A task may look at those of its
// own user alone, which are meant where it names nobody; ListTasks shows it where
// tasks of others run. kind is of what, such as "jobs".
func ownUser(ctx context.Context, user, kind string) (string, error) {
	caller := door.Caller(ctx)
	if caller.Role != identity.Task || caller.User() == user {
		return user, nil
	}
	if user == "" {
		return caller.User(), nil
	}
	return "", status.Errorf(codes.PermissionDenied, "you are %s: a task may look at %s of its own user, not at those of %s; where tasks of others run, ListTasks tells", caller.Words(), kind, user)
}

func (a *masterAPI) GetJob(ctx context.Context, req *borgrpc.GetJobRequest) (*borgrpc.GetJobResponse, error) {
	if err := a.m.fresh(ctx, req.GetMode()); err != nil {
		return nil, err
	}
	key := cell.JobKey{User: req.GetUser(), Name: req.GetName()}
	resp := &borgrpc.GetJobResponse{}
	if _, err := ownUser(ctx, key.User, "jobs"); err != nil {
		return nil, err
	}
	a.m.cfg.Log.View(func(c *cell.Cell) {
		resp.Index = c.Index()
		if j := a.m.job(ctx, c, key); j != nil {
			resp.Job, resp.Update = c.JobProto(j), c.UpdateProto(j)
			if after, ok := j.CronNext(); ok {
				resp.Job.Status.Cron.NextSlotWallNs = knowCron(j, after).nextAfter(max(after, c.WallNs()))
			}
			if c.Format() >= cell.FormatGiven {
				g := &borgrpc.Given{}
				g.Tasks, g.Labels, g.Annotations = j.Given()
				resp.Given = g
			}
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
	user, err := ownUser(ctx, req.GetUser(), "jobs")
	if err != nil {
		return nil, err
	}
	after, err := keyAfter(req.GetAfter(), user)
	if err != nil {
		return nil, err
	}
	resp := &borgrpc.ListJobsResponse{}
	p := newPage(req.GetLimit())
	err = a.m.viewPage(ctx, p, func(c *cell.Cell) error {
		resp.Index = c.Index()
		lens := a.m.lens(ctx, c)
		for j := range c.JobsAfter(after) {
			if !p.looks() {
				if n := len(resp.Jobs); n > 0 {
					resp.NextAfter = keyOf(resp.Jobs[n-1].Meta).String()
				}
				return nil
			}
			if after = j.Key(); user != "" && after.User != user {
				break
			}
			if (req.GetDead() || j.State() != borgpb.State_STATE_DEAD) && pick.Matches(j.Labels()) && lens.Job(j) {
				resp.Jobs = append(resp.Jobs, p.add(c.JobProto(j)).(*borgpb.Job))
			}
		}
		p.end()
		return nil
	})
	if err != nil {
		return nil, err
	}
	return resp, nil
}

// page is one page being made. It is of one index: once something is on it, it ends
// with the time that it may take.
type page struct {
	most, has, bytes, looked int
	// It goes on, when others have had their turn.
	more bool
}

func newPage(limit uint32) *page {
	return &page{most: int(cmp.Or(min(limit, maxPerPage), maxPerPage)), more: true}
}

// looks says whether there is room and time for another object.
func (p *page) looks() bool {
	if p.has == p.most || p.bytes > maxPageBytes {
		p.more = false
		return false
	}
	if p.looked++; p.looked > lookedAtOnce {
		p.looked, p.more = 0, p.has == 0
		return false
	}
	return true
}

func (p *page) add(m proto.Message) proto.Message {
	p.has++
	p.bytes += proto.Size(m)
	return m
}

// end: there is nothing left.
func (p *page) end() { p.more = false }

// keyOf is the key of a job or alloc set by its metadata.
func keyOf(m *borgpb.Meta) cell.JobKey { return cell.JobKey{User: m.GetUser(), Name: m.GetName()} }

// keyAfter reads behind which job or alloc set a page begins. Those of one user, if only
// his are wanted, lie side by side: it begins with them.
func keyAfter(text, user string) (after cell.JobKey, err error) {
	if text != "" {
		if after, err = cell.ParseJobKey(text); err != nil {
			return after, status.Errorf(codes.InvalidArgument, "after: %v", err)
		}
	}
	if after.User < user {
		after = cell.JobKey{User: user}
	}
	return after, nil
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
	err = m.viewPage(ctx, q.page, func(c *cell.Cell) error {
		q.lens = m.lens(ctx, c)
		err := q.run(c)
		if err == nil && req.GetUsed() {
			m.reclaim.fillTasks(c, q.resp.Tasks)
		}
		return err
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
	pick     selector.Selector
	page     *page
	resp     *borgrpc.ListTasksResponse
	// Of who asks, while the cell is looked at.
	lens *sight.Lens
}

func newTaskQuery(req *borgrpc.ListTasksRequest) (*taskQuery, error) {
	q := &taskQuery{req: req, page: newPage(req.GetLimit()), resp: &borgrpc.ListTasksResponse{}}
	var err error
	if q.pick, err = selector.Parse(req.GetSelector()); err != nil {
		return nil, status.Error(codes.InvalidArgument, err.Error())
	}
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

// run looks at tasks until the page is full, the turn is over, or there is none left.
func (q *taskQuery) run(c *cell.Cell) error {
	q.resp.Index = c.Index()
	key := cell.JobKey{User: q.req.GetUser(), Name: q.req.GetName()}
	if key.Name != "" {
		j := c.Job(key)
		if !q.lens.Job(j) || j == nil {
			return noJob(key)
		}
		if q.req.GetHasIndex() && j.Task(q.req.GetIndex()) == nil {
			return status.Errorf(codes.NotFound, "job %s has %d tasks; there is no task %d", key, j.NumTasks(), q.req.GetIndex())
		}
		if q.job(c, j) {
			q.page.end()
		}
		return nil
	}
	if name := q.req.GetMachine(); name != "" && c.Machine(name) == nil {
		return status.Errorf(codes.NotFound, "there is no machine %s", name)
	}
	if !q.hasAfter {
		q.countOthers(c)
	}
	if q.hasAfter {
		if j := c.Job(q.after.Job); j != nil && (key.User == "" || j.Key().User == key.User) && !q.job(c, j) {
			return nil
		}
	}
	for j := range c.JobsAfter(q.after.Job) {
		if (key.User == "" || j.Key().User == key.User) && !q.job(c, j) {
			return nil
		}
	}
	q.page.end()
	return nil
}

// job adds the tasks of a job; false: the page is full, or the turn over.
func (q *taskQuery) job(c *cell.Cell, j *cell.Job) bool {
	first := uint32(0)
	switch {
	case q.hasAfter && j.Key().Compare(q.after.Job) < 0, !q.pick.Matches(j.Labels()), !q.lens.Job(j):
		return true
	case q.hasAfter && j.Key() == q.after.Job:
		first = q.after.Index + 1
	}
	for index := first; index < j.NumTasks(); index++ {
		if !q.page.looks() {
			if n := len(q.resp.Tasks); n > 0 {
				last := q.resp.Tasks[n-1]
				q.resp.NextAfter = cell.TaskID{Job: keyOf(last.Meta), Index: last.Index}.String()
			}
			return false
		}
		q.after, q.hasAfter = cell.TaskID{Job: j.Key(), Index: index}, true
		if q.wants(j.Task(index), index) {
			q.resp.Tasks = append(q.resp.Tasks, q.page.add(c.TaskProto(j, index, q.req.GetAttempts())).(*borgpb.Task))
		}
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
	return true
}

func pastOn(t *cell.Task, machine string) bool {
	for p := range t.Past() {
		if p.Live() && p.Machine().Name() == machine {
			return true
		}
	}
	return false
}

// ListAllocs is answered by any replica, but by the elected master who is asked what
// allocs use.
func (a *masterAPI) ListAllocs(ctx context.Context, req *borgrpc.ListAllocsRequest) (*borgrpc.ListAllocsResponse, error) {
	list := func(ctx context.Context) (*borgrpc.ListAllocsResponse, error) { return a.listAllocSets(ctx, req) }
	if !req.GetUsed() || req.GetMode() == borgrpc.ReadMode_READ_MODE_STALE {
		return list(ctx)
	}
	return onElected(ctx, a.m, true, list,
		func(ctx context.Context, conn *grpc.ClientConn) (*borgrpc.ListAllocsResponse, error) {
			return borgrpc.NewMasterServiceClient(conn).ListAllocs(ctx, req)
		})
}

func (a *masterAPI) listAllocSets(ctx context.Context, req *borgrpc.ListAllocsRequest) (*borgrpc.ListAllocsResponse, error) {
	pick, err := selector.Parse(req.GetSelector())
	if err != nil {
		return nil, status.Error(codes.InvalidArgument, err.Error())
	}
	if err := a.m.fresh(ctx, req.GetMode()); err != nil {
		return nil, err
	}
	user, err := ownUser(ctx, req.GetUser(), "alloc sets")
	if err != nil {
		return nil, err
	}
	resp := &borgrpc.ListAllocsResponse{}
	key := cell.JobKey{User: user, Name: req.GetName()}
	if key.Name != "" {
		return resp, a.m.listAllocs(ctx, key, req, resp)
	}
	after, err := keyAfter(req.GetAfter(), user)
	if err != nil {
		return nil, err
	}
	p := newPage(req.GetLimit())
	err = a.m.viewPage(ctx, p, func(c *cell.Cell) error {
		resp.Index = c.Index()
		lens := a.m.lens(ctx, c)
		for s := range c.AllocSetsAfter(after) {
			if !p.looks() {
				if n := len(resp.AllocSets); n > 0 {
					resp.NextAfter = keyOf(resp.AllocSets[n-1].Meta).String()
				}
				return nil
			}
			if after = s.Key(); key.User != "" && after.User != key.User {
				break
			}
			if pick.Matches(s.Labels()) && lens.AllocSet(s) {
				resp.AllocSets = append(resp.AllocSets, p.add(c.AllocSetProto(s)).(*borgpb.AllocSet))
			}
		}
		p.end()
		return nil
	})
	if err != nil {
		return nil, err
	}
	return resp, nil
}

// listAllocs makes a page of the allocs of one set, with the set.
func (m *Master) listAllocs(ctx context.Context, key cell.JobKey, req *borgrpc.ListAllocsRequest, resp *borgrpc.ListAllocsResponse) error {
	first := uint32(0)
	if req.GetAfter() != "" {
		id, err := cell.ParseTaskID(req.GetAfter())
		if err != nil || id.Job != key {
			return status.Errorf(codes.InvalidArgument, "after: %q is no alloc of %s", req.GetAfter(), key)
		}
		first = id.Index + 1
	}
	p := newPage(req.GetLimit())
	return m.viewPage(ctx, p, func(c *cell.Cell) error {
		// It has a name: its page is as long as it is.
		defer p.end()
		s := m.allocSet(ctx, c, key)
		if s == nil {
			return status.Errorf(codes.NotFound, "there is no alloc set %s", key)
		}
		one := c.AllocSetProto(s)
		one.Status.Saves, one.Status.Waits = c.SavesOf(s), c.Waits(s)
		if c.Format() >= cell.FormatSetUpdates {
			g := &borgrpc.Given{}
			g.Tasks, g.Labels, g.Annotations = s.Given()
			resp.Given = g
		}
		resp.Index, resp.AllocSets = c.Index(), []*borgpb.AllocSet{one}
		if req.GetUsed() {
			defer func() { m.reclaim.fillAllocs(c, resp.Allocs) }()
		}
		for i := first; i < s.NumAllocs(); i++ {
			if !p.looks() {
				resp.NextAfter = cell.TaskID{Job: key, Index: i - 1}.String()
				return nil
			}
			resp.Allocs = append(resp.Allocs, p.add(c.AllocProto(s.Alloc(i))).(*borgpb.Alloc))
		}
		return nil
	})
}

// ListMachines is answered by the elected master, which alone knows of copies
// that the cell does not know, and what copies use; a stale read does without.
func (a *masterAPI) ListMachines(ctx context.Context, req *borgrpc.ListMachinesRequest) (*borgrpc.ListMachinesResponse, error) {
	pick, err := selector.Parse(req.GetSelector())
	if err != nil {
		return nil, status.Error(codes.InvalidArgument, err.Error())
	}
	list := func(ctx context.Context) (*borgrpc.ListMachinesResponse, error) {
		return a.m.listMachines(ctx, req, pick)
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

func (m *Master) listMachines(ctx context.Context, req *borgrpc.ListMachinesRequest, pick selector.Selector) (*borgrpc.ListMachinesResponse, error) {
	resp := &borgrpc.ListMachinesResponse{}
	name, after := req.GetName(), req.GetAfter()
	p := newPage(req.GetLimit())
	err := m.viewPage(ctx, p, func(c *cell.Cell) error {
		resp.Index = c.Index()
		defer func() { m.reclaim.fillMachines(c, resp.Machines) }()
		list := c.MachinesAfter(after)
		if name != "" {
			list = func(yield func(*cell.Machine) bool) {
				if machine := c.Machine(name); machine != nil {
					yield(machine)
				}
			}
		}
		for machine := range list {
			if !p.looks() {
				if n := len(resp.Machines); n > 0 {
					resp.NextAfter = resp.Machines[n-1].Meta.Name
				}
				return nil
			}
			if after = machine.Name(); pick.Matches(machine.SelectorLabels()) {
				resp.Machines = append(resp.Machines, p.add(c.MachineProto(machine)).(*borgpb.Machine))
			}
		}
		p.end()
		return nil
	})
	if err != nil {
		return nil, err
	}
	if name != "" && len(resp.Machines) == 0 {
		return nil, status.Errorf(codes.NotFound, "there is no machine %s", name)
	}
	m.papers.fill(time.Now(), resp.Machines)
	if !m.seesAll(door.Caller(ctx)) {
		return resp, nil
	}
	addUnknown(resp, maxPageBytes, m.unknownOn)
	return resp, nil
}

// addUnknown adds to machines the tasks that the cell does not know. The page was sized
// without them, as they are no part of the cell: it now ends before the machine with which it
// would have more bytes than that. A machine that is alone on it shows as many as fit.
func addUnknown(resp *borgrpc.ListMachinesResponse, most int, unknownOn func(machine string) []*borgpb.TaskReport) {
	bytes := 0
	for i, machine := range resp.Machines {
		bytes += proto.Size(machine)
		unknown, n := unknownOn(machine.Meta.Name), 0
		for n < len(unknown) && bytes <= most {
			bytes += proto.Size(unknown[n])
			n++
		}
		if bytes > most && i > 0 {
			resp.Machines = resp.Machines[:i]
			resp.NextAfter = resp.Machines[i-1].Meta.Name
			return
		}
		machine.Status.UnknownTasks = unknown[:n]
	}
}

// describeCell fills in what is read from the cell itself. With a lens jobs and tasks are
// those of the user.
func describeCell(resp *borgrpc.GetCellResponse, c *cell.Cell, lens *sight.Lens, user string) {
	resp.CellId, resp.Epoch, resp.Format = c.ID(), c.Epoch(), c.Format()
	resp.CellTimeNs, resp.WallTimeNs, resp.WallSuspect = c.TimeNs(), c.WallNs(), c.WallSuspect()
	resp.LostDeclaredForNs = c.LostDeclared()
	n := c.Counts()
	if lens == nil {
		resp.Jobs = uint32(n.Jobs)
		resp.TasksPending, resp.TasksRunning, resp.TasksDead = uint32(n.TasksPending), uint32(n.TasksRunning), uint32(n.TasksDead)
	} else {
		countOwn(resp, c, user)
	}
	resp.MachinesUp, resp.MachinesDraining, resp.MachinesDown = uint32(n.MachinesUp), uint32(n.MachinesDraining), uint32(n.MachinesDown)
	resp.DigestIndex = c.Index() / digestEvery * digestEvery
	if digest, ok := c.DigestAt(resp.DigestIndex); ok {
		resp.Digest = hex.EncodeToString(digest[:])
	} else {
		resp.DigestIndex = 0
	}
}

// digestEvery is how often the cell remembers its digest, in log entries.
const digestEvery = 1024
