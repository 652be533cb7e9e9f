package borgmaster

import (
	"context"
	"fmt"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"borg/borgmaster/cell"
	"borg/identity"
	"borg/proto/borgpb"
	"borg/proto/borgrpc"
	"borg/proto/door"
)

// mostExplainNs is how much the time of the scheduler counts at most that an explanation takes: it may
// have waited for a pass.
const mostExplainNs = 5e6

// explained takes the time of the scheduler from a user's budget of reading.
func (a *admitter) explained(user string, sinceNs int64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	now := a.nowNs()
	a.core.HasRead(now, user, min(now-sinceNs, mostExplainNs))
}

// explainTimeout bounds how long the scheduler may take to catch up and
// explain.
const explainTimeout = 5 * time.Second

// Why explains why a task pends. The elected master's scheduler knows; while
// there is none the cell's own tests are told.
func (a *masterAPI) Why(ctx context.Context, req *borgrpc.WhyRequest) (*borgrpc.WhyResponse, error) {
	return onElected(ctx, a.m, true,
		func(ctx context.Context) (*borgrpc.WhyResponse, error) { return a.m.why(ctx, req) },
		func(ctx context.Context, conn *grpc.ClientConn) (*borgrpc.WhyResponse, error) {
			return borgrpc.NewMasterServiceClient(conn).Why(ctx, req)
		})
}

func (m *Master) why(ctx context.Context, req *borgrpc.WhyRequest) (*borgrpc.WhyResponse, error) {
	if _, err := ownUser(ctx, req.GetUser(), "jobs"); err != nil {
		return nil, err
	}
	if err := m.readIndex(ctx); err != nil {
		return nil, err
	}
	key := cell.JobKey{User: req.GetUser(), Name: req.GetName()}
	var own *borgrpc.WhyResponse
	err := m.viewMuch(ctx, func(c *cell.Cell) error {
		j, set := m.job(ctx, c, key), m.allocSet(ctx, c, key)
		switch {
		case j == nil && set == nil:
			return status.Errorf(codes.NotFound, "there is no job or alloc set %s", key)
		case j == nil && set.Alloc(req.GetIndex()) == nil:
			return status.Errorf(codes.NotFound, "alloc set %s has %d allocs; there is no alloc %d", key, set.NumAllocs(), req.GetIndex())
		case j == nil:
			own = whyAllocByCell(c, set.Alloc(req.GetIndex()))
		case j.Task(req.GetIndex()) == nil:
			return status.Errorf(codes.NotFound, "job %s has %d tasks; there is no task %d", key, j.NumTasks(), req.GetIndex())
		default:
			own = whyByCell(c, j, req.GetIndex())
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	if m.cfg.Scheduler == nil && m.cfg.SchedulerSocket == "" {
		own.Summary += "; this master has no scheduler"
		return own, nil
	}
	since := m.admit.nowNs()
	explained, err := m.explain(ctx, req, own.Index)
	if admitted(ctx) {
		m.admit.explained(door.Caller(ctx).User(), since)
	}
	if err != nil {
		own.Summary += fmt.Sprintf("; the scheduler does not answer (%s), so nothing is placed at the moment", door.Reason(err))
		return own, nil
	}
	if explained.GetTask() == nil {
		explained.Task = own.Task
	}
	return explained, nil
}

// schedulerService is the scheduler process that follows this master.
func (m *Master) schedulerService() (borgrpc.SchedulerServiceClient, error) {
	if m.followers.Load() == 0 {
		return nil, status.Error(codes.Unavailable, "none follows the cell")
	}
	conn, err := m.conns.to(m.conns.named(identity.Scheduler, ""), "unix:"+m.cfg.SchedulerSocket)
	if err != nil {
		return nil, err
	}
	return borgrpc.NewSchedulerServiceClient(conn), nil
}

// explain asks the scheduler process, once its copy has come to index.
func (m *Master) explain(ctx context.Context, req *borgrpc.WhyRequest, index uint64) (*borgrpc.WhyResponse, error) {
	scheduler, err := m.schedulerService()
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, explainTimeout)
	defer cancel()
	resp, err := scheduler.Explain(ctx, &borgrpc.ExplainRequest{
		User: req.GetUser(), Name: req.GetName(), Index: req.GetIndex(), MinIndex: index,
	})
	if err != nil {
		return nil, err
	}
	if resp.GetWhy() == nil {
		return nil, status.Error(codes.Internal, "its answer is empty")
	}
	return resp.Why, nil
}

// whyByCell explains a task by the cell's own tests of each machine, which
// know nothing of preemption or of what a scheduler has promised.
func whyByCell(c *cell.Cell, j *cell.Job, index uint32) *borgrpc.WhyResponse {
	task := c.TaskProto(j, index, false)
	why := &borgrpc.WhyResponse{Task: task, Index: c.Index(), Machines: uint32(c.NumMachines())}
	switch task.GetStatus().GetState() {
	case borgpb.State_STATE_RUNNING:
		why.Summary = "it runs on " + task.Status.Machine
	case borgpb.State_STATE_DEAD:
		why.Summary = "it is dead: " + task.GetStatus().GetReason()
	default:
		if _, inAllocs := j.AllocSet(); inAllocs {
			why.Summary = "it waits for an alloc of " + j.Spec().GetAllocSet()
			if j.AllocByIndex() {
				why.Summary = "it waits for the alloc of its index: " + c.AllocWords(j, index)
			}
			return why
		}
		why.Reasons = fitCounts(c, j, index)
		why.Summary = "it waits for a scheduler"
		if words := c.HoldWords(); words != "" {
			why.Summary = "it waits: " + words
		}
	}
	return why
}

// whyAllocByCell says where an alloc is, or that it waits.
func whyAllocByCell(c *cell.Cell, a *cell.Alloc) *borgrpc.WhyResponse {
	why := &borgrpc.WhyResponse{Index: c.Index(), Machines: uint32(c.NumMachines())}
	switch m := a.Machine(); {
	case m != nil:
		why.Summary = "it has a place on machine " + m.Name()
	case a.State() == borgpb.State_STATE_DEAD:
		why.Summary = "it is dead"
	default:
		why.Summary = "it waits for a scheduler"
	}
	return why
}

func fitCounts(c *cell.Cell, j *cell.Job, index uint32) []*borgrpc.WhyReason {
	var counts [cell.NumFits]uint32
	for machine := range c.Machines() {
		counts[c.Fit(&cell.Placement{Job: j, Index: index, Machine: machine, AnyPorts: true}, nil)]++
	}
	var reasons []*borgrpc.WhyReason
	for test, n := range counts {
		if n > 0 {
			reasons = append(reasons, &borgrpc.WhyReason{Test: cell.Fit(test).String(), Machines: n})
		}
	}
	return reasons
}
