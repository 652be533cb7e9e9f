package main

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"borg/proto/borgpb"
	"borg/proto/borgrpc"
	"borg/proto/door"
)

// fakeCell is a cell of one process that does at once what it is asked for,
// and that lies in one way if it is told to. Its lie is the name of the promise
// that it breaks.
type fakeCell struct {
	borgrpc.UnimplementedMasterServiceServer
	mu       sync.Mutex // guards what follows
	lie      string
	lies     int // times it was asked where it lies
	index    uint64
	jobs     map[string]*fakeJob
	machines []*fakeMachine
	requests map[string]*borgpb.Result
	asked    map[string]*borgpb.Op
	events   []*borgpb.Event
	nextPort uint32
	nextPID  int64
}

type fakeJob struct {
	user, name, uid string
	labels          map[string]string
	spec            *borgpb.JobSpec
	given           []byte
	version         uint64
	tasks           []*borgpb.Task
	cut             uint64 // highest attempt of a task that a resize ended
	dead            bool
}

type fakeMachine struct {
	name     string
	draining bool
}

const fakeCapacity = 1 << 40

func newFakeCell(lie string) *fakeCell {
	f := &fakeCell{lie: lie, index: 1, jobs: make(map[string]*fakeJob), requests: make(map[string]*borgpb.Result), asked: make(map[string]*borgpb.Op), nextPort: 20_000}
	for n := range 3 {
		f.machines = append(f.machines, &fakeMachine{name: fmt.Sprintf("m%d", n)})
	}
	return f
}

// breaks tells whether the cell lies about this promise, now.
func (f *fakeCell) breaks(promise string) bool {
	if f.lie != promise {
		return false
	}
	f.lies++
	return true
}

func (f *fakeCell) tell(e *borgpb.Event) {
	e.Index = f.index
	if n := len(f.events); n > 0 && f.events[n-1].GetIndex() == f.index {
		e.N = f.events[n-1].GetN() + 1
	}
	if f.breaks("events") && f.lies%7 == 0 {
		e.N++
	}
	f.events = append(f.events, e)
}

func (f *fakeCell) Mutate(ctx context.Context, req *borgrpc.MutateRequest) (*borgrpc.MutateResponse, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	op := req.GetOp()
	if r := f.notAllowed(door.Caller(ctx).ID, op); r != nil {
		return &borgrpc.MutateResponse{Result: r}, nil
	}
	if old := f.requests[op.GetRequestId()]; old != nil && !f.breaks("once") {
		if !proto.Equal(f.asked[op.GetRequestId()], op) {
			r := &borgpb.Result{Index: f.index}
			refuse(r, borgpb.RefusalKind_REFUSAL_KIND_INVALID)
			return &borgrpc.MutateResponse{Result: r}, nil
		}
		r := proto.CloneOf(old)
		r.Repeated = true
		return &borgrpc.MutateResponse{Result: r}, nil
	}
	f.index++
	r := &borgpb.Result{Index: f.index}
	f.do(op, r)
	if r.GetRefusal() == nil {
		f.requests[op.GetRequestId()], f.asked[op.GetRequestId()] = r, proto.CloneOf(op)
		f.place()
		if f.breaks("order") {
			r.Index -= min(r.Index, 9)
		}
	}
	return &borgrpc.MutateResponse{Result: proto.CloneOf(r)}, nil
}

func refuse(r *borgpb.Result, kind borgpb.RefusalKind) {
	r.Refusal = &borgpb.Refusal{Kind: kind, Message: "no"}
}

func (f *fakeCell) notAllowed(user string, op *borgpb.Op) *borgpb.Result {
	owner := user
	switch x := op.GetOp().(type) {
	case *borgpb.Op_SubmitJob:
		owner = x.SubmitJob.GetUser()
	case *borgpb.Op_DrainMachine:
		owner = "root"
	case *borgpb.Op_Assign:
		owner = "nobody"
	}
	if user == owner || f.breaks("permission") {
		return nil
	}
	r := &borgpb.Result{}
	refuse(r, borgpb.RefusalKind_REFUSAL_KIND_PERMISSION)
	return r
}

func (f *fakeCell) do(op *borgpb.Op, r *borgpb.Result) {
	if time.Now().UnixNano()-op.GetRequestWallNs() > int64(15*time.Minute) {
		refuse(r, borgpb.RefusalKind_REFUSAL_KIND_TOO_OLD)
		return
	}
	switch x := op.GetOp().(type) {
	case *borgpb.Op_SubmitJob:
		f.submit(x.SubmitJob, r)
	case *borgpb.Op_UpdateJob:
		spec := new(borgpb.JobSpec)
		if err := proto.Unmarshal(x.UpdateJob.GetSpec(), spec); err != nil {
			panic(err)
		}
		if j := f.find(x.UpdateJob.GetUser(), x.UpdateJob.GetName(), x.UpdateJob.GetExpectVersion(), r); j != nil {
			f.update(j, x.UpdateJob.GetSpec(), spec, r)
		}
	case *borgpb.Op_ResizeJob:
		if j := f.find(x.ResizeJob.GetUser(), x.ResizeJob.GetName(), x.ResizeJob.GetExpectVersion(), r); j != nil {
			spec := proto.CloneOf(j.spec)
			spec.Tasks = x.ResizeJob.GetTasks()
			f.update(j, j.given, spec, r)
		}
	case *borgpb.Op_KillJob:
		if j := f.find(x.KillJob.GetUser(), x.KillJob.GetName(), x.KillJob.GetExpectVersion(), r); j != nil {
			r.Uid, r.Version = j.uid, j.version
			f.kill(j)
		}
	case *borgpb.Op_DrainMachine:
		f.drain(x.DrainMachine, r)
	}
}

var dnsLabel = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$`)

func (f *fakeCell) submit(s *borgpb.SubmitJob, r *borgpb.Result) {
	spec, k := new(borgpb.JobSpec), key(s.GetUser(), s.GetName())
	if err := proto.Unmarshal(s.GetSpec(), spec); err != nil {
		refuse(r, borgpb.RefusalKind_REFUSAL_KIND_MALFORMED)
		return
	}
	if spec.GetKind() == borgpb.JobKind_JOB_KIND_CRON {
		refuse(r, borgpb.RefusalKind_REFUSAL_KIND_INVALID)
		return
	}
	if !inLimits(s, spec) && (spec.GetTasks() > 100 || !f.breaks("limits")) {
		refuse(r, borgpb.RefusalKind_REFUSAL_KIND_LIMIT)
		return
	}
	if old := f.jobs[k]; old != nil && !old.dead {
		refuse(r, borgpb.RefusalKind_REFUSAL_KIND_ALREADY_EXISTS)
		return
	}
	j := &fakeJob{user: s.GetUser(), name: s.GetName(), uid: fmt.Sprintf("1-%d-0", f.index), labels: s.GetLabels(), spec: spec, given: s.GetSpec(), version: 1}
	if f.breaks("uid") {
		j.uid = "1-7-0"
	}
	r.Uid, r.Version = j.uid, 1
	if f.breaks("acknowledged") && f.lies%3 == 0 {
		return
	}
	f.jobs[k] = j
	j.resize()
	if !f.breaks("told") {
		f.tell(&borgpb.Event{Kind: borgpb.EventKind_EVENT_KIND_SUBMIT, ObjectKind: borgpb.ObjectKind_OBJECT_KIND_JOB, Object: k, Uid: j.uid, To: borgpb.State_STATE_PENDING})
	}
}

func inLimits(s *borgpb.SubmitJob, spec *borgpb.JobSpec) bool {
	t := spec.GetTask()
	res := t.GetResources()
	notes := 0
	for k, v := range s.GetAnnotations() {
		notes += len(k) + len(v)
	}
	ok := len(s.GetSpec()) <= 256<<10 && len(s.GetLabels()) <= 64 && notes <= 64<<10 && dnsLabel.MatchString(s.GetName()) &&
		spec.GetTasks() >= 1 && spec.GetTasks() <= 100_000 && spec.GetPriority() >= 0 && spec.GetPriority() <= 450 && spec.GetMaxFailures() <= 1_000_000 &&
		res.GetCpuMilli() >= 0 && res.GetCpuMilli() <= 1_000_000_000 && res.GetMemBytes() <= 1<<50 && t.GetGraceNs() <= int64(24*time.Hour) &&
		len(t.GetCwd()) <= 4096 && len(t.GetPorts()) <= 16 && len(t.GetConstraints()) <= 32 && len(spec.GetStartAfter()) <= 32
	for k, v := range s.GetLabels() {
		ok = ok && len(k) <= 63 && len(v) <= 255
	}
	for _, c := range t.GetConstraints() {
		ok = ok && len(c.GetKey()) <= 63
	}
	ports := slices.Sorted(slices.Values(t.GetPorts()))
	return ok && len(slices.Compact(ports)) == len(t.GetPorts())
}

func (f *fakeCell) find(user, name string, version uint64, r *borgpb.Result) *fakeJob {
	j := f.jobs[key(user, name)]
	switch {
	case j == nil:
		refuse(r, borgpb.RefusalKind_REFUSAL_KIND_NOT_FOUND)
	case j.dead:
		refuse(r, borgpb.RefusalKind_REFUSAL_KIND_STATE)
	case version != 0 && version != j.version && !f.breaks("refused"):
		refuse(r, borgpb.RefusalKind_REFUSAL_KIND_CONFLICT)
	default:
		return j
	}
	return nil
}

func (f *fakeCell) update(j *fakeJob, given []byte, spec *borgpb.JobSpec, r *borgpb.Result) {
	if spec.GetKind() != j.spec.GetKind() {
		refuse(r, borgpb.RefusalKind_REFUSAL_KIND_INVALID)
		return
	}
	if !slices.Equal(given, j.given) || spec.GetTasks() != j.spec.GetTasks() {
		if !f.breaks("version") {
			j.version++
		}
		restart := !proto.Equal(j.spec.GetTask(), spec.GetTask())
		j.given, j.spec = given, spec
		j.resize()
		for _, t := range j.tasks {
			if restart && t.GetStatus().GetState() == borgpb.State_STATE_RUNNING {
				f.stop(t, borgpb.StopCause_STOP_CAUSE_UPDATE, borgpb.State_STATE_PENDING)
			}
			if t.GetStatus().GetState() == borgpb.State_STATE_PENDING {
				t.Spec = spec.GetTask()
			}
			t.Meta.Version = j.version
		}
	}
	r.Uid, r.Version = j.uid, j.version
}

func (j *fakeJob) resize() {
	n := int(j.spec.GetTasks())
	for len(j.tasks) > n {
		last := j.tasks[len(j.tasks)-1]
		j.cut = max(j.cut, last.GetStatus().GetAttempt())
		j.tasks = j.tasks[:len(j.tasks)-1]
	}
	for len(j.tasks) < n {
		j.tasks = append(j.tasks, &borgpb.Task{
			Meta:  &borgpb.Meta{User: j.user, Name: j.name, Uid: j.uid, Version: j.version},
			Index: uint32(len(j.tasks)), Spec: j.spec.GetTask(), Status: &borgpb.TaskStatus{State: borgpb.State_STATE_PENDING, Attempt: j.cut},
		})
	}
}

// stop ends the copy of a running task at once.
func (f *fakeCell) stop(t *borgpb.Task, cause borgpb.StopCause, to borgpb.State) {
	s := t.GetStatus()
	if f.breaks("cause") {
		cause = borgpb.StopCause_STOP_CAUSE_UNSPECIFIED
	}
	a := &borgpb.Attempt{Attempt: s.GetAttempt(), Machine: s.GetMachine(), Ports: s.GetPorts(), State: borgpb.AttemptState_ATTEMPT_STATE_STOPPED, Cause: cause, StopIndex: f.index}
	s.Attempts = append([]*borgpb.Attempt{a}, s.GetAttempts()...)
	s.Attempts = s.Attempts[:min(3, len(s.Attempts))]
	s.State, s.Machine, s.Ports, s.Pid, s.AttemptState = to, "", nil, 0, borgpb.AttemptState_ATTEMPT_STATE_STOPPED
}

func (f *fakeCell) kill(j *fakeJob) {
	for _, t := range j.tasks {
		if t.GetStatus().GetState() == borgpb.State_STATE_RUNNING {
			f.stop(t, borgpb.StopCause_STOP_CAUSE_KILL, borgpb.State_STATE_DEAD)
		}
		t.Status.State = borgpb.State_STATE_DEAD
	}
	j.dead = !f.breaks("dead")
	if !j.dead {
		for _, t := range j.tasks {
			t.Status.State = borgpb.State_STATE_PENDING
		}
	}
	f.tell(&borgpb.Event{Kind: borgpb.EventKind_EVENT_KIND_KILL, ObjectKind: borgpb.ObjectKind_OBJECT_KIND_JOB, Object: key(j.user, j.name), Uid: j.uid, To: borgpb.State_STATE_DEAD})
}

func (f *fakeCell) drain(d *borgpb.DrainMachine, r *borgpb.Result) {
	i := slices.IndexFunc(f.machines, func(m *fakeMachine) bool { return m.name == d.GetName() })
	if i < 0 {
		refuse(r, borgpb.RefusalKind_REFUSAL_KIND_NOT_FOUND)
		return
	}
	f.machines[i].draining = d.GetDrain()
	kind := borgpb.EventKind_EVENT_KIND_MACHINE_UNDRAIN
	if d.GetDrain() {
		kind = borgpb.EventKind_EVENT_KIND_MACHINE_DRAIN
	}
	f.tell(&borgpb.Event{Kind: kind, ObjectKind: borgpb.ObjectKind_OBJECT_KIND_MACHINE, Object: d.GetName(), Machine: d.GetName()})
	for _, j := range f.jobs {
		for _, t := range j.tasks {
			if d.GetDrain() && t.GetStatus().GetMachine() == d.GetName() && t.GetStatus().GetState() == borgpb.State_STATE_RUNNING {
				f.stop(t, borgpb.StopCause_STOP_CAUSE_DRAIN, borgpb.State_STATE_PENDING)
			}
		}
	}
}

// place finds places for all that waits, and ends the batch tasks that have
// one, until nothing changes.
func (f *fakeCell) place() {
	for changed := true; changed; {
		changed = false
		f.index++
		for _, k := range slices.Sorted(maps.Keys(f.jobs)) {
			j := f.jobs[k]
			running := uint32(0)
			for _, t := range j.tasks {
				if t.GetStatus().GetState() == borgpb.State_STATE_PENDING && !j.dead && (j.spec.GetMaxRunning() == 0 || running < j.spec.GetMaxRunning() || f.breaks("spread")) {
					changed = f.placeTask(t) || changed
				}
				if t.GetStatus().GetState() == borgpb.State_STATE_RUNNING {
					running++
				}
			}
		}
		// What the lie shows is looked at while the tasks run.
		if f.lie == "spread" {
			continue
		}
		f.index++
		for _, j := range f.jobs {
			for _, t := range j.tasks {
				if j.spec.GetKind() == borgpb.JobKind_JOB_KIND_BATCH && t.GetStatus().GetState() == borgpb.State_STATE_RUNNING {
					f.end(j, t)
					changed = true
				}
			}
		}
	}
}

func (f *fakeCell) placeTask(t *borgpb.Task) bool {
	for i := range f.machines {
		m := f.machines[(int(f.nextPort)+i)%len(f.machines)]
		fits := t.GetSpec().GetResources().GetCpuMilli() < 1_000_000 && t.GetSpec().GetResources().GetMemBytes() < fakeCapacity
		for _, c := range t.GetSpec().GetConstraints() {
			fits = fits && (holds(c, m.attributes()) || f.lie == "constraints" && c.GetKey() == "rack")
		}
		if !fits || m.draining && !f.breaks("drain") {
			continue
		}
		s := t.GetStatus()
		f.nextPID++
		s.State, s.AttemptState, s.Attempt, s.Machine, s.Pid = borgpb.State_STATE_RUNNING, borgpb.AttemptState_ATTEMPT_STATE_RUNNING, s.GetAttempt()+1, m.name, f.nextPID
		if f.breaks("attempts") && s.Attempt > 1 {
			s.Attempt--
		}
		s.Ports = nil
		for range t.GetSpec().GetPorts() {
			if !f.breaks("ports") {
				f.nextPort++
			}
			s.Ports = append(s.Ports, f.nextPort)
		}
		f.tell(&borgpb.Event{Kind: borgpb.EventKind_EVENT_KIND_SCHEDULE, ObjectKind: borgpb.ObjectKind_OBJECT_KIND_TASK, Object: taskName(t), Uid: t.GetMeta().GetUid(),
			Attempt: s.GetAttempt(), Machine: m.name, From: borgpb.State_STATE_PENDING, To: borgpb.State_STATE_RUNNING})
		return true
	}
	return false
}

func (m *fakeMachine) attributes() map[string]string { return map[string]string{"rack": "r-" + m.name} }

// end ends a batch task as it is meant to.
func (f *fakeCell) end(j *fakeJob, t *borgpb.Task) {
	s := t.GetStatus()
	a := &borgpb.Attempt{Attempt: s.GetAttempt(), Machine: s.GetMachine(), Ports: s.GetPorts(), State: borgpb.AttemptState_ATTEMPT_STATE_FINISHED}
	s.State, s.Pid, s.Ports = borgpb.State_STATE_DEAD, 0, nil
	s.AttemptState, s.LastExit = borgpb.AttemptState_ATTEMPT_STATE_FINISHED, &borgpb.Exit{}
	if f.breaks("exits") {
		s.LastExit = &borgpb.Exit{Unknown: true}
	}
	if !strings.HasPrefix(t.GetSpec().GetArgs()[2], "exit") {
		return
	}
	s.AttemptState, s.LastExit = borgpb.AttemptState_ATTEMPT_STATE_FAILED, &borgpb.Exit{Code: failingCode}
	a.State = s.AttemptState
	s.Failures++
	s.Attempts = []*borgpb.Attempt{a}
	if s.GetFailures() <= j.spec.GetMaxFailures() {
		s.State, s.Machine = borgpb.State_STATE_PENDING, ""
	}
}

func (f *fakeCell) shown(j *fakeJob) *borgpb.Job {
	s := &borgpb.JobStatus{}
	for _, t := range j.tasks {
		switch t.GetStatus().GetState() {
		case borgpb.State_STATE_PENDING:
			s.Pending++
		case borgpb.State_STATE_RUNNING:
			s.Running++
			if !f.breaks("settles") {
				s.Started++
			}
		case borgpb.State_STATE_DEAD:
			s.Dead++
			if t.GetStatus().GetAttemptState() == borgpb.AttemptState_ATTEMPT_STATE_FINISHED {
				s.Finished++
			}
		}
	}
	s.State = stateOf(s)
	j.dead = s.State == borgpb.State_STATE_DEAD
	if f.breaks("counts") {
		s.Running++
	}
	if f.breaks("same-log") {
		s.Reason = fmt.Sprint("reason ", f.lies)
	}
	if j.dead && f.breaks("ended") {
		s.Stopping = 1
	}
	return &borgpb.Job{Meta: &borgpb.Meta{User: j.user, Name: j.name, Uid: j.uid, Version: j.version, Labels: j.labels}, Spec: j.spec, Status: s}
}

// asOf is the index that an answer is given.
func (f *fakeCell) asOf() uint64 {
	if f.breaks("fresh") {
		return f.index - 1
	}
	return f.index
}

func (f *fakeCell) GetJob(_ context.Context, req *borgrpc.GetJobRequest) (*borgrpc.GetJobResponse, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	j := f.jobs[key(req.GetUser(), req.GetName())]
	if f.breaks("errors") {
		return nil, status.Error(codes.Internal, "oh")
	}
	if j == nil {
		return nil, status.Error(codes.NotFound, "no such job")
	}
	return proto.CloneOf(&borgrpc.GetJobResponse{Job: f.shown(j), Index: f.asOf()}), nil
}

// fakePage is the number of jobs, and of machines, in a page of the fake cell.
const fakePage = 2

// sorted are the jobs as lists have them.
func (f *fakeCell) sorted() []*fakeJob {
	return slices.SortedFunc(maps.Values(f.jobs), func(a, b *fakeJob) int {
		return cmp.Or(strings.Compare(a.user, b.user), strings.Compare(a.name, b.name))
	})
}

func (f *fakeCell) ListJobs(_ context.Context, req *borgrpc.ListJobsRequest) (*borgrpc.ListJobsResponse, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	resp := &borgrpc.ListJobsResponse{Index: f.asOf()}
	_, plan, byPlan := strings.Cut(req.GetSelector(), "=")
	for _, j := range f.sorted() {
		job := f.shown(j)
		name := key(j.user, j.name)
		if req.GetUser() != "" && req.GetUser() != j.user || j.dead && !req.GetDead() || byPlan && j.labels["plan"] != plan || req.GetAfter() != "" && !before(req.GetAfter(), name) {
			continue
		}
		if n := len(resp.Jobs); n == fakePage {
			last := resp.Jobs[n-1].GetMeta()
			resp.NextAfter = key(last.GetUser(), last.GetName())
			return proto.CloneOf(resp), nil
		}
		if !f.breaks("lists") || f.lies%3 > 0 {
			resp.Jobs = append(resp.Jobs, job)
		}
	}
	return proto.CloneOf(resp), nil
}

func (f *fakeCell) ListTasks(_ context.Context, req *borgrpc.ListTasksRequest) (*borgrpc.ListTasksResponse, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	resp := &borgrpc.ListTasksResponse{Index: f.asOf()}
	limit := int(cmp.Or(req.GetLimit(), 1_000))
	for _, j := range f.sorted() {
		for _, t := range j.tasks {
			name := taskName(t)
			never := t.GetStatus().GetAttempt() == 0 && t.GetStatus().GetState() == borgpb.State_STATE_PENDING
			if req.GetUser() != "" && req.GetUser() != j.user || req.GetUser() == "" && never || req.GetAfter() != "" && compareTasks(name, req.GetAfter()) <= 0 {
				continue
			}
			if len(resp.Tasks) == limit {
				resp.NextAfter = taskName(resp.GetTasks()[limit-1])
				return proto.CloneOf(resp), nil
			}
			shown := proto.CloneOf(t)
			if !req.GetAttempts() {
				shown.Status.Attempts = nil
			}
			if shown.GetStatus().GetState() == borgpb.State_STATE_RUNNING && f.breaks("undisturbed") {
				shown.Status.Restarts = 1
			}
			if shown.GetStatus().GetState() == borgpb.State_STATE_RUNNING && f.breaks("copy") {
				shown.Status.Pid += int64(f.lies)
			}
			if shown.GetStatus().GetState() == borgpb.State_STATE_RUNNING && f.breaks("one-place") {
				shown.Status.Machine = ""
			}
			resp.Tasks = append(resp.Tasks, shown)
		}
	}
	return proto.CloneOf(resp), nil
}

func (f *fakeCell) ListMachines(_ context.Context, req *borgrpc.ListMachinesRequest) (*borgrpc.ListMachinesResponse, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	resp := &borgrpc.ListMachinesResponse{Index: f.asOf()}
	for _, m := range f.machines {
		if m.name <= req.GetAfter() {
			continue
		}
		if n := len(resp.Machines); n == fakePage {
			resp.NextAfter = resp.Machines[n-1].GetMeta().GetName()
			return proto.CloneOf(resp), nil
		}
		h := &heldPlace{}
		for _, j := range f.jobs {
			for _, t := range j.tasks {
				if t.GetStatus().GetState() == borgpb.State_STATE_RUNNING && t.GetStatus().GetMachine() == m.name {
					h.add(t)
				}
			}
		}
		capacity := &borgpb.Resources{CpuMilli: 1_000_000, MemBytes: fakeCapacity, Ports: 60_000}
		if f.breaks("capacity") {
			capacity.CpuMilli = h.limits.GetCpuMilli() - 1
		}
		if f.breaks("sums") {
			h.copies++
		}
		resp.Machines = append(resp.Machines, &borgpb.Machine{
			Meta: &borgpb.Meta{Name: m.name}, Spec: &borgpb.MachineSpec{Capacity: capacity, Attributes: m.attributes(), PortFirst: 20_000, PortLast: 65_535},
			Status: &borgpb.MachineStatus{State: borgpb.MachineState_MACHINE_STATE_UP, Draining: m.draining, Limits: &h.limits, Tasks: h.copies},
		})
	}
	return proto.CloneOf(resp), nil
}

func (f *fakeCell) GetCell(context.Context, *borgrpc.GetCellRequest) (*borgrpc.GetCellResponse, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	c := &borgrpc.GetCellResponse{
		CellName: "fake", CellId: "f1", Epoch: 1, Format: 1, Replica: 1, Elected: 1, Term: 2, AppliedIndex: f.index, CommitIndex: f.index,
		Members: []*borgpb.Member{{Id: 1}, {Id: 2}}, MachinesUp: 3, CellTimeNs: int64(f.index),
	}
	if f.breaks("elected") {
		c.Elected = uint64(1 + f.lies%2)
	}
	if f.breaks("figures") {
		c.WallTimeNs = int64(f.lies)
	}
	if f.breaks("time") {
		c.CellTimeNs = -c.CellTimeNs
	}
	for _, j := range f.jobs {
		s := f.shown(j).GetStatus()
		if s.GetState() != borgpb.State_STATE_DEAD {
			c.Jobs++
		}
		c.TasksPending, c.TasksRunning, c.TasksDead = c.TasksPending+s.GetPending(), c.TasksRunning+s.GetRunning(), c.TasksDead+s.GetDead()
	}
	return c, nil
}

func (f *fakeCell) Why(context.Context, *borgrpc.WhyRequest) (*borgrpc.WhyResponse, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	resp := &borgrpc.WhyResponse{Machines: 3, Reasons: []*borgrpc.WhyReason{{Test: "cpu", Machines: 3}}}
	if f.breaks("unfit") {
		resp.Machines++
	}
	return resp, nil
}

func (f *fakeCell) Events(req *borgrpc.EventsRequest, answers borgrpc.MasterService_EventsServer) error {
	for sent := 0; ; {
		f.mu.Lock()
		resp := &borgrpc.EventsResponse{}
		for sent < len(f.events) && len(resp.GetEvents()) < maxEventsInAnswer {
			if e := f.events[sent]; e.GetIndex() >= req.GetFromIndex() {
				resp.Events = append(resp.Events, proto.CloneOf(e))
			}
			sent++
		}
		done := sent == len(f.events) && !req.GetFollow()
		f.mu.Unlock()
		if err := answers.Send(resp); err != nil || done {
			return err
		}
		pause(answers.Context(), 5*time.Millisecond)
		if answers.Context().Err() != nil {
			return answers.Context().Err()
		}
	}
}

func (f *fakeCell) Logs(req *borgrpc.LogsRequest, answers borgrpc.MasterService_LogsServer) error {
	f.mu.Lock()
	t := f.jobs[key(req.GetUser(), req.GetName())].tasks[req.GetIndex()]
	text := fmt.Sprintf("%s %d %d\n", req.GetName(), req.GetIndex(), t.GetStatus().GetAttempt())
	if f.breaks("output") {
		text += "more\n"
	}
	f.mu.Unlock()
	return answers.Send(&borgrpc.LogsResponse{Data: []byte(text), Stream: borgrpc.LogStream_LOG_STREAM_STDOUT})
}
