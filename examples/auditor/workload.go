package main

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"borg/proto/borgpb"
	"borg/proto/borgrpc"
)

const (
	maxJobs  = 6 // that live of one client
	maxTasks = 5 // of one job

	askPatience = 60 * time.Second // an ask without an answer for so long stays open
	tryPause    = 50 * time.Millisecond

	taskCPUMilli = 4
	taskMemBytes = 16 << 20
	// The cell remembers a request id for 15 minutes.
	tooOld = 16 * time.Minute
)

// client is one user of the cell, who does one thing after another. It alone
// touches its jobs, so it knows what they must be.
type client struct {
	*masters
	user     string
	others   string // another user, whose jobs are not ours to touch
	rng      *rand.Rand
	jobs     []*job
	nextName int
	done     []*borgpb.Op // some mutations that were acknowledged
	// racks are values of the attribute "rack" of the machines.
	racks []string
}

// job is what a client knows of a job of its own.
type job struct {
	name    string
	plan    plan
	spec    *borgpb.JobSpec
	version uint64
	labels  map[string]string
	dead    bool
}

// requestID is 26 letters and digits, from the seed and the run, so that it is
// never made again.
func (c *client) requestID() string {
	const letters = "0123456789abcdefghjkmnpqrstvwxyz"
	id := fmt.Appendf(nil, "%010x", uint64(time.Now().UnixMilli()))[:10]
	for len(id) < 26 {
		id = append(id, letters[c.rng.IntN(len(letters))])
	}
	return string(id)
}

func (c *client) someReplica() int { return c.rng.IntN(len(c.replica)) }

// try asks one replica once. An error of which the page says that the call may
// be tried again is no answer; neither is one that we ended.
func (c *client) try(ctx context.Context, i int, op *borgpb.Op, timeout time.Duration) (*borgpb.Result, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	resp, err := c.replica[i].Mutate(ctx, &borgrpc.MutateRequest{Op: op})
	if err != nil {
		c.failed(i, "Mutate", err)
		return nil, err
	}
	c.witness.note(told(op.GetRequestId(), resp.GetResult()))
	return resp.GetResult(), nil
}

// tryOther asks one replica for something else under the id of a request that was done.
func (c *client) tryOther(ctx context.Context, i int, op *borgpb.Op) {
	ctx, cancel := context.WithTimeout(ctx, tryTimeout)
	defer cancel()
	resp, err := c.replica[i].Mutate(ctx, &borgrpc.MutateRequest{Op: op})
	if err != nil {
		c.failed(i, "Mutate", err)
		return
	}
	r := told(op.GetRequestId(), resp.GetResult())
	r.Other = true
	c.witness.note(r)
}

// tryAgain may mend an error.
func tryAgain(err error) bool {
	switch status.Code(err) {
	case codes.Unavailable, codes.ResourceExhausted, codes.DeadlineExceeded, codes.Canceled:
		return true
	}
	return false
}

// ask has an op done, with one request id however often it must be tried. Nil:
// there was no answer in time, and both outcomes are possible. wants are the
// refusals one of which must come; none: it must be done.
func (c *client) ask(ctx context.Context, op *borgpb.Op, rec record, tests string, wants ...borgpb.RefusalKind) *borgpb.Result {
	if op.GetRequestId() == "" {
		op.RequestId = c.requestID()
	}
	if op.GetRequestWallNs() == 0 {
		op.RequestWallNs = time.Now().UnixNano()
	}
	rec.Kind, rec.ID, rec.Tests = recordAsk, op.GetRequestId(), tests
	for _, k := range wants {
		rec.Wants = append(rec.Wants, k.String())
	}
	if len(wants) == 0 {
		rec.Wants = []string{done}
	}
	c.witness.note(rec)

	switch manner := c.rng.IntN(10); {
	case manner == 0: // go away in the middle, and ask again
		_, _ = c.try(ctx, c.someReplica(), op, time.Duration(c.rng.IntN(5_000))*time.Microsecond)
	case manner == 1: // ask two replicas at once
		var both sync.WaitGroup
		for range 2 {
			i := c.someReplica()
			both.Go(func() { _, _ = c.try(ctx, i, op, tryTimeout) })
		}
		both.Wait()
	}
	until := time.Now().Add(askPatience)
	for ctx.Err() == nil && time.Now().Before(until) {
		r, err := c.try(ctx, c.someReplica(), op, tryTimeout)
		if err == nil {
			if r.GetRefusal() == nil {
				c.remember(op)
			}
			return r
		}
		if !tryAgain(err) {
			return nil
		}
		pause(ctx, tryPause)
	}
	return nil
}

// remember keeps some mutations that were done, to ask for them again later.
func (c *client) remember(op *borgpb.Op) {
	if len(c.done) < 50 {
		c.done = append(c.done, op)
		return
	}
	c.done[c.rng.IntN(len(c.done))] = op
}

// work does one thing after another until working is done, or steps times.
// What it has begun by then it ends, so that it knows what became of it.
func (c *client) work(ctx, working context.Context, steps int, gap time.Duration) {
	c.begin(ctx)
	for n := 0; working.Err() == nil && (steps == 0 || n < steps); n++ {
		c.step(ctx)
		if gap > 0 {
			pause(working, time.Duration(c.rng.Int64N(2*int64(gap))))
		}
	}
}

// begin wants some jobs that nobody touches afterwards, so that there are some
// of each plan that are in the end to be as they were in the beginning.
func (c *client) begin(ctx context.Context) {
	for _, p := range []plan{planService, planBatch, planFailing, planUnfit} {
		j := &job{name: "first-" + string(p), plan: p, spec: c.newSpec(p)}
		if p == planService {
			j.spec.Tasks, j.spec.Task.Ports = maxTasks, []string{"a", "b"}
			if len(c.racks) > 0 {
				j.spec.Task.Constraints = []*borgpb.Constraint{{Key: "rack", Relation: borgpb.Relation_RELATION_NOT_EQUAL, Value: c.racks[0]}}
			}
		}
		if c.submitJob(ctx, j, "") {
			c.forget(j)
		}
		if p == planUnfit {
			c.why(ctx, c.someReplica(), c.user, j.name)
		}
	}
}

func (c *client) step(ctx context.Context) {
	mode := borgrpc.ReadMode(c.rng.IntN(2))
	switch c.rng.IntN(20) {
	case 0, 1, 2, 3:
		c.submit(ctx)
	case 4, 5:
		c.update(ctx)
	case 6, 7:
		c.resize(ctx)
	case 8:
		c.kill(ctx)
	case 9, 10:
		if j := c.some(func(*job) bool { return true }); j != nil {
			c.getJob(ctx, c.someReplica(), c.user, j.name, mode)
		}
	case 11:
		req := &borgrpc.ListJobsRequest{User: c.user, Mode: mode, Dead: c.rng.IntN(2) == 0}
		if c.rng.IntN(3) == 0 {
			req.Selector = "plan=" + string(planService)
		}
		_, _, _ = c.listJobs(ctx, c.someReplica(), req)
	case 12:
		_, _, _ = c.listTasks(ctx, c.someReplica(), &borgrpc.ListTasksRequest{User: c.user, Mode: mode, Attempts: true, Limit: uint32(c.rng.IntN(8))})
	case 13:
		_, _, _ = c.listMachines(ctx, c.someReplica(), mode)
	case 14:
		if j := c.some(func(j *job) bool { return j.plan == planUnfit && !j.dead }); j != nil {
			c.why(ctx, c.someReplica(), c.user, j.name)
		}
	case 15:
		if len(c.done) > 0 {
			c.again(ctx, c.done[c.rng.IntN(len(c.done))])
		}
	case 16, 17:
		c.beRefused(ctx)
	case 18:
		c.trespass(ctx)
	case 19:
		c.reachLimits(ctx)
	}
}

// again asks once more for what was done, or for something else under its id.
func (c *client) again(ctx context.Context, op *borgpb.Op) {
	if c.rng.IntN(2) == 0 {
		_, _ = c.try(ctx, c.someReplica(), op, tryTimeout)
		return
	}
	name := c.newName("reused")
	c.witness.see(func(b *book) { b.spare[key(c.user, name)] = true })
	other := &borgpb.Op{RequestId: op.GetRequestId(), RequestWallNs: op.GetRequestWallNs(),
		Op: &borgpb.Op_SubmitJob{SubmitJob: &borgpb.SubmitJob{User: c.user, Name: name, Spec: marshal(c.newSpec(planService))}}}
	c.tryOther(ctx, c.someReplica(), other)
	c.getJob(ctx, c.someReplica(), c.user, name, borgrpc.ReadMode_READ_MODE_UNSPECIFIED)
}

// some is one of the client's jobs that is fit for something.
func (c *client) some(fit func(*job) bool) *job {
	var all []*job
	for _, j := range c.jobs {
		if fit(j) {
			all = append(all, j)
		}
	}
	if len(all) == 0 {
		return nil
	}
	return all[c.rng.IntN(len(all))]
}

func (c *client) newName(prefix string) string {
	c.nextName++
	return fmt.Sprintf("%s%d", prefix, c.nextName)
}

// forget takes a job of which we do not know what it is out of the game.
func (c *client) forget(j *job) {
	c.jobs = slices.DeleteFunc(c.jobs, func(x *job) bool { return x == j })
}

func (c *client) submit(ctx context.Context) {
	alive := 0
	for _, j := range c.jobs {
		if !j.dead {
			alive++
		}
	}
	if alive >= maxJobs {
		return
	}
	plans := []plan{planService, planService, planService, planBatch, planBatch, planFailing, planUnfit}
	j := &job{plan: plans[c.rng.IntN(len(plans))]}
	// The name of a dead job may be taken again.
	if old := c.some(func(j *job) bool { return j.dead }); old != nil && c.rng.IntN(2) == 0 {
		c.forget(old)
		j.name = old.name
	} else {
		j.name = c.newName("j")
	}
	j.spec = c.newSpec(j.plan)
	c.submitJob(ctx, j, "")
}

func (c *client) submitJob(ctx context.Context, j *job, tests string) bool {
	spec := marshal(j.spec)
	if j.labels == nil {
		j.labels = map[string]string{"plan": string(j.plan)}
	}
	op := &borgpb.Op{Reason: "auditor", Op: &borgpb.Op_SubmitJob{SubmitJob: &borgpb.SubmitJob{User: c.user, Name: j.name, Labels: j.labels, Spec: spec}}}
	r := c.ask(ctx, op, record{What: "submit", User: c.user, Name: j.name, Spec: spec, Plan: j.plan}, tests)
	if r == nil || r.GetRefusal() != nil {
		return false
	}
	j.version = r.GetVersion()
	c.jobs = append(c.jobs, j)
	return true
}

func marshal(m proto.Message) []byte {
	data, err := proto.Marshal(m)
	if err != nil {
		panic(err) // of our own making
	}
	return data
}

func (c *client) newSpec(p plan) *borgpb.JobSpec {
	task := &borgpb.TaskSpec{
		Args:      []string{"/bin/sleep", fmt.Sprint(100_000 + c.rng.IntN(1000))},
		Resources: &borgpb.Resources{CpuMilli: taskCPUMilli, MemBytes: taskMemBytes},
		GraceNs:   int64(time.Second),
	}
	spec := &borgpb.JobSpec{Kind: borgpb.JobKind_JOB_KIND_SERVICE, Tasks: 1 + uint32(c.rng.IntN(maxTasks)), Priority: 200, Task: task}
	for n := c.rng.IntN(3); n > 0; n-- {
		task.Ports = append(task.Ports, fmt.Sprintf("p%d", n))
	}
	if len(c.racks) > 0 && c.rng.IntN(3) == 0 {
		relation := []borgpb.Relation{borgpb.Relation_RELATION_EQUAL, borgpb.Relation_RELATION_NOT_EQUAL}[c.rng.IntN(2)]
		task.Constraints = append(task.Constraints, &borgpb.Constraint{Key: "rack", Relation: relation, Value: c.racks[c.rng.IntN(len(c.racks))]})
	}
	switch p {
	case planBatch:
		spec.Kind, spec.Priority, spec.MaxFailures = borgpb.JobKind_JOB_KIND_BATCH, 110, 3
		task.Args = []string{"/bin/sh", "-c", "echo {{job.name}} {{task.index}} {{task.attempt}}; sleep 0." + fmt.Sprint(c.rng.IntN(10))}
		if c.rng.IntN(2) == 0 {
			spec.MaxRunning = 2
		}
	case planFailing:
		spec.Kind, spec.Priority, spec.MaxFailures = borgpb.JobKind_JOB_KIND_BATCH, 110, uint32(c.rng.IntN(3))
		task.Args = []string{"/bin/sh", "-c", fmt.Sprintf("exit %d", failingCode)}
	case planUnfit:
		switch c.rng.IntN(3) {
		case 0:
			task.Resources.CpuMilli = 1_000_000_000
		case 1:
			task.Resources.MemBytes = 1 << 50
		case 2:
			task.Constraints = append(task.Constraints, &borgpb.Constraint{Key: "auditor", Relation: borgpb.Relation_RELATION_EQUAL, Value: "nowhere"})
		}
	case planService:
		if len(task.Constraints) == 0 && c.rng.IntN(4) == 0 {
			spec.MaxPerMachine = maxTasks
		}
		spec.Update = &borgpb.UpdatePolicy{BatchSize: 1 + uint32(c.rng.IntN(maxTasks))}
	}
	return spec
}

func (c *client) live() *job {
	return c.some(func(j *job) bool { return !j.dead && j.plan == planService })
}

// expected is the version that we know, or none.
func (c *client) expected(j *job) uint64 {
	if c.rng.IntN(2) == 0 {
		return 0
	}
	return j.version
}

func (c *client) update(ctx context.Context) {
	j := c.live()
	if j == nil {
		return
	}
	spec := proto.CloneOf(j.spec)
	switch c.rng.IntN(5) {
	case 0: // equal: no version, and no task disturbed
	case 1:
		spec.Priority = 120 + int32(c.rng.IntN(100))
	case 2:
		spec.Task.Resources.MemBytes = taskMemBytes + int64(c.rng.IntN(16))<<20
	case 3:
		spec.Tasks = 1 + uint32(c.rng.IntN(maxTasks))
		fallthrough
	case 4:
		spec.Task.Args = []string{"/bin/sleep", fmt.Sprint(100_000 + c.rng.IntN(1000))}
	}
	data := marshal(spec)
	op := &borgpb.Op{Op: &borgpb.Op_UpdateJob{UpdateJob: &borgpb.UpdateJob{User: c.user, Name: j.name, ExpectVersion: c.expected(j), Labels: j.labels, Spec: data}}}
	r := c.ask(ctx, op, record{What: "update", User: c.user, Name: j.name, Spec: data}, "")
	if r == nil || r.GetRefusal() != nil {
		c.forget(j)
		return
	}
	j.spec, j.version = spec, r.GetVersion()
	c.look(ctx, j)
}

func (c *client) resize(ctx context.Context) {
	j := c.live()
	if j == nil {
		return
	}
	tasks := 1 + uint32(c.rng.IntN(maxTasks))
	op := &borgpb.Op{Op: &borgpb.Op_ResizeJob{ResizeJob: &borgpb.ResizeJob{User: c.user, Name: j.name, ExpectVersion: c.expected(j), Tasks: tasks}}}
	r := c.ask(ctx, op, record{What: "resize", User: c.user, Name: j.name, Tasks: tasks}, "")
	if r == nil || r.GetRefusal() != nil {
		c.forget(j)
		return
	}
	j.spec.Tasks, j.version = tasks, r.GetVersion()
	c.look(ctx, j)
}

// look reads a job that was just changed from any replica: it must show it.
func (c *client) look(ctx context.Context, j *job) {
	c.getJob(ctx, c.someReplica(), c.user, j.name, borgrpc.ReadMode_READ_MODE_UNSPECIFIED)
}

// kill ends a job that does not end by itself: one that does may be dead
// already.
func (c *client) kill(ctx context.Context) {
	if j := c.some(func(j *job) bool { return !j.dead && (j.plan == planService || j.plan == planUnfit) }); j != nil {
		c.killJob(ctx, j)
	}
}

func (c *client) killJob(ctx context.Context, j *job) {
	op := &borgpb.Op{Op: &borgpb.Op_KillJob{KillJob: &borgpb.KillJob{User: c.user, Name: j.name}}}
	r := c.ask(ctx, op, record{What: "kill", User: c.user, Name: j.name}, "")
	if r == nil || r.GetRefusal() != nil {
		c.forget(j)
		return
	}
	j.dead = true
	c.look(ctx, j)
}

// beRefused asks for what the documentation says is refused.
func (c *client) beRefused(ctx context.Context) {
	rec := record{What: "submit", User: c.user, Name: c.newName("no")}
	spec := c.newSpec(planService)
	submit := &borgpb.SubmitJob{User: c.user, Name: rec.Name, Spec: marshal(spec)}
	op := &borgpb.Op{Op: &borgpb.Op_SubmitJob{SubmitJob: submit}}
	live, dead := c.live(), c.some(func(j *job) bool { return j.dead })
	switch n := c.rng.IntN(9); {
	case n == 0 && live != nil:
		rec.Name, submit.Name = live.name, live.name
		c.ask(ctx, op, rec, "refused", borgpb.RefusalKind_REFUSAL_KIND_ALREADY_EXISTS)
		c.look(ctx, live)
	case n == 1 && live != nil:
		other := proto.CloneOf(live.spec)
		other.Task.Args = []string{"/bin/false"}
		rec.What, rec.Name = "update", live.name
		c.ask(ctx, &borgpb.Op{Op: &borgpb.Op_UpdateJob{UpdateJob: &borgpb.UpdateJob{User: c.user, Name: live.name, ExpectVersion: live.version + 7, Spec: marshal(other)}}}, rec,
			"refused", borgpb.RefusalKind_REFUSAL_KIND_CONFLICT)
		c.look(ctx, live)
	case n == 2 && live != nil:
		other := proto.CloneOf(live.spec)
		other.Kind = borgpb.JobKind_JOB_KIND_BATCH
		rec.What, rec.Name = "update", live.name
		c.ask(ctx, &borgpb.Op{Op: &borgpb.Op_UpdateJob{UpdateJob: &borgpb.UpdateJob{User: c.user, Name: live.name, Spec: marshal(other)}}}, rec,
			"refused", borgpb.RefusalKind_REFUSAL_KIND_INVALID, borgpb.RefusalKind_REFUSAL_KIND_STATE)
		c.look(ctx, live)
	case n == 3 && live != nil:
		rec.What, rec.Name = "kill", live.name
		c.ask(ctx, &borgpb.Op{Op: &borgpb.Op_KillJob{KillJob: &borgpb.KillJob{User: c.user, Name: live.name, ExpectVersion: live.version + 7}}}, rec,
			"refused", borgpb.RefusalKind_REFUSAL_KIND_CONFLICT)
		c.look(ctx, live)
	case n == 4 && dead != nil:
		rec.What, rec.Name = "resize", dead.name
		c.ask(ctx, &borgpb.Op{Op: &borgpb.Op_ResizeJob{ResizeJob: &borgpb.ResizeJob{User: c.user, Name: dead.name, Tasks: 2}}}, rec,
			"refused", borgpb.RefusalKind_REFUSAL_KIND_STATE)
		c.look(ctx, dead)
	case n == 5:
		rec.What = "kill"
		c.ask(ctx, &borgpb.Op{Op: &borgpb.Op_KillJob{KillJob: &borgpb.KillJob{User: c.user, Name: rec.Name}}}, rec,
			"refused", borgpb.RefusalKind_REFUSAL_KIND_NOT_FOUND)
	case n == 6:
		op.RequestWallNs = time.Now().Add(-tooOld).UnixNano()
		c.ask(ctx, op, rec, "refused", borgpb.RefusalKind_REFUSAL_KIND_TOO_OLD)
		c.getJob(ctx, c.someReplica(), c.user, rec.Name, borgrpc.ReadMode_READ_MODE_UNSPECIFIED)
	case n == 7:
		submit.Spec = []byte("\xff\xff\xffnot a spec")
		c.ask(ctx, op, rec, "refused", borgpb.RefusalKind_REFUSAL_KIND_MALFORMED)
		c.getJob(ctx, c.someReplica(), c.user, rec.Name, borgrpc.ReadMode_READ_MODE_UNSPECIFIED)
	default:
		spec.Kind = borgpb.JobKind_JOB_KIND_CRON
		submit.Spec = marshal(spec)
		c.ask(ctx, op, rec, "refused", borgpb.RefusalKind_REFUSAL_KIND_INVALID)
		c.getJob(ctx, c.someReplica(), c.user, rec.Name, borgrpc.ReadMode_READ_MODE_UNSPECIFIED)
	}
}

// trespass asks for what only others may ask for.
func (c *client) trespass(ctx context.Context) {
	const no = borgpb.RefusalKind_REFUSAL_KIND_PERMISSION
	rec := record{What: "submit", User: c.others, Name: c.newName("not-mine")}
	switch c.rng.IntN(3) {
	case 0:
		c.ask(ctx, &borgpb.Op{Op: &borgpb.Op_SubmitJob{SubmitJob: &borgpb.SubmitJob{User: c.others, Name: rec.Name, Spec: marshal(c.newSpec(planService))}}}, rec, "permission", no)
		c.getJob(ctx, c.someReplica(), c.others, rec.Name, borgrpc.ReadMode_READ_MODE_UNSPECIFIED)
	case 1:
		rec = record{What: "drain", Name: "auditor"}
		c.ask(ctx, &borgpb.Op{Op: &borgpb.Op_DrainMachine{DrainMachine: &borgpb.DrainMachine{Name: rec.Name, Drain: true}}}, rec, "permission", no)
	case 2:
		rec = record{What: "assign"}
		c.ask(ctx, &borgpb.Op{Op: &borgpb.Op_Assign{Assign: &borgpb.Assign{}}}, rec, "permission", no)
	}
}

// overLimits make a spec go one beyond a figure of docs/limits.md.
var overLimits = []func(*borgpb.SubmitJob, *borgpb.JobSpec){
	func(_ *borgpb.SubmitJob, s *borgpb.JobSpec) { s.Tasks = 100_001 },
	func(_ *borgpb.SubmitJob, s *borgpb.JobSpec) { s.Tasks = 0 },
	func(_ *borgpb.SubmitJob, s *borgpb.JobSpec) { s.Priority = 451 },
	func(_ *borgpb.SubmitJob, s *borgpb.JobSpec) { s.Priority = -1 },
	func(_ *borgpb.SubmitJob, s *borgpb.JobSpec) { s.MaxFailures = 1_000_001 },
	func(_ *borgpb.SubmitJob, s *borgpb.JobSpec) { s.Task.Resources.CpuMilli = 1_000_000_001 },
	func(_ *borgpb.SubmitJob, s *borgpb.JobSpec) { s.Task.Resources.CpuMilli = -1 },
	func(_ *borgpb.SubmitJob, s *borgpb.JobSpec) { s.Task.Resources.MemBytes = 1<<50 + 1 },
	func(_ *borgpb.SubmitJob, s *borgpb.JobSpec) { s.Task.GraceNs = int64(24*time.Hour) + 1 },
	func(_ *borgpb.SubmitJob, s *borgpb.JobSpec) { s.Task.Cwd = "/" + strings.Repeat("d", 4096) },
	func(_ *borgpb.SubmitJob, s *borgpb.JobSpec) { s.Task.Ports = names(17) },
	func(_ *borgpb.SubmitJob, s *borgpb.JobSpec) { s.Task.Ports = []string{"a", "a"} },
	func(_ *borgpb.SubmitJob, s *borgpb.JobSpec) { s.Task.Constraints = constraints(33, 1) },
	func(_ *borgpb.SubmitJob, s *borgpb.JobSpec) { s.Task.Constraints = constraints(1, 64) },
	func(_ *borgpb.SubmitJob, s *borgpb.JobSpec) { s.StartAfter = names(33) },
	func(_ *borgpb.SubmitJob, s *borgpb.JobSpec) { s.Task.Args = []string{strings.Repeat("a", 256<<10)} },
	func(j *borgpb.SubmitJob, _ *borgpb.JobSpec) { j.Labels = labels(65, "v") },
	func(j *borgpb.SubmitJob, _ *borgpb.JobSpec) { j.Labels = labels(1, strings.Repeat("v", 256)) },
	func(j *borgpb.SubmitJob, _ *borgpb.JobSpec) {
		j.Labels = map[string]string{strings.Repeat("k", 64): ""}
	},
	func(j *borgpb.SubmitJob, _ *borgpb.JobSpec) { j.Name = strings.Repeat("n", 64) },
	func(j *borgpb.SubmitJob, _ *borgpb.JobSpec) { j.Name = "-" + j.Name },
	func(j *borgpb.SubmitJob, _ *borgpb.JobSpec) { j.Name = strings.ToUpper(j.Name) },
	func(j *borgpb.SubmitJob, _ *borgpb.JobSpec) {
		j.Annotations = map[string]string{"k": strings.Repeat("v", 64<<10)}
	},
}

// atLimits reach a figure of docs/limits.md.
var atLimits = []func(*job){
	func(j *job) { j.spec.Priority = 450 },
	func(j *job) { j.spec.Task.Ports = names(16) },
	func(j *job) { j.spec.Task.Constraints = constraints(32, 63) },
	func(j *job) { j.spec.Task.GraceNs = int64(24 * time.Hour) },
	func(j *job) { j.labels = labels(63, strings.Repeat("v", 255)) },
	func(j *job) { j.spec.Task.Env = map[string]string{"LONG": strings.Repeat("e", 100<<10)} },
	func(j *job) { j.name = (j.name + "-" + strings.Repeat("n", 63))[:63] },
}

func (c *client) reachLimits(ctx context.Context) {
	spec := c.newSpec(planService)
	if c.rng.IntN(4) == 0 {
		j := &job{name: c.newName("edge"), plan: planService, spec: spec}
		spec.Tasks = 1
		atLimits[c.rng.IntN(len(atLimits))](j)
		if j.labels != nil {
			j.labels["plan"] = string(j.plan)
		}
		if c.submitJob(ctx, j, "limits") {
			c.killJob(ctx, j)
		}
		return
	}
	submit := &borgpb.SubmitJob{User: c.user, Name: c.newName("much")}
	overLimits[c.rng.IntN(len(overLimits))](submit, spec)
	submit.Spec = marshal(spec)
	rec := record{What: "submit", User: c.user, Name: submit.Name}
	c.ask(ctx, &borgpb.Op{Op: &borgpb.Op_SubmitJob{SubmitJob: submit}}, rec, "limits",
		borgpb.RefusalKind_REFUSAL_KIND_INVALID, borgpb.RefusalKind_REFUSAL_KIND_LIMIT)
}

func names(n int) (all []string) {
	for i := range n {
		all = append(all, fmt.Sprintf("n%d", i))
	}
	return all
}

// constraints hold on every machine; their keys have so many bytes at least.
func constraints(n, keyBytes int) (all []*borgpb.Constraint) {
	for i := range n {
		k := fmt.Sprintf("%d", i)
		if len(k) < keyBytes {
			k += strings.Repeat("x", keyBytes-len(k))
		}
		all = append(all, &borgpb.Constraint{Key: k, Relation: borgpb.Relation_RELATION_NOT_PRESENT})
	}
	return all
}

func labels(n int, value string) map[string]string {
	all := make(map[string]string)
	for i := range n {
		all[fmt.Sprintf("l%d", i)] = value
	}
	return all
}

// drainer drains one machine after another, as an operator.
func (c *client) drainer(ctx, working context.Context, rounds int, gap time.Duration) {
	for n := 0; working.Err() == nil && (rounds == 0 || n < rounds); n++ {
		machines, _, err := c.listMachines(ctx, c.someReplica(), borgrpc.ReadMode_READ_MODE_UNSPECIFIED)
		if err != nil || len(machines) == 0 {
			pause(working, watchPeriod)
			continue
		}
		name := machines[c.rng.IntN(len(machines))].GetMeta().GetName()
		if r := c.drain(ctx, name, true); r == nil {
			return
		}
		pause(working, gap)
		// Even when the run is interrupted: a machine must not be left drained.
		c.drain(context.WithoutCancel(ctx), name, false)
		pause(working, gap)
	}
}

func (c *client) drain(ctx context.Context, name string, drain bool) *borgpb.Result {
	what := "undrain"
	if drain {
		what = "drain"
	}
	op := &borgpb.Op{Reason: "auditor", Op: &borgpb.Op_DrainMachine{DrainMachine: &borgpb.DrainMachine{Name: name, Drain: drain}}}
	r := c.ask(ctx, op, record{What: what, Name: name}, "")
	if r.GetRefusal() != nil {
		return nil
	}
	return r
}

// killAll ends every job of the run that may live, as its owners.
func killAll(ctx context.Context, clients []*client) {
	var all sync.WaitGroup
	for _, c := range clients {
		all.Go(func() {
			var mine []*life
			c.witness.see(func(b *book) {
				for _, k := range slices.Sorted(maps.Keys(b.names)) {
					if l := b.last(k); l.killed == 0 && strings.HasPrefix(k, c.user+"/") {
						mine = append(mine, l)
					}
				}
			})
			for _, l := range mine {
				_, name, _ := strings.Cut(l.key, "/")
				job := c.getJob(ctx, c.someReplica(), c.user, name, borgrpc.ReadMode_READ_MODE_UNSPECIFIED)
				if job != nil && job.GetStatus().GetState() != borgpb.State_STATE_DEAD {
					op := &borgpb.Op{Op: &borgpb.Op_KillJob{KillJob: &borgpb.KillJob{User: c.user, Name: name}}}
					c.ask(ctx, op, record{What: "kill", User: c.user, Name: name}, "")
				}
			}
		})
	}
	all.Wait()
}
