package borgmaster

import (
	"cmp"
	"context"
	"net"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"borg/borgmaster/cell"
	"borg/proto/borgpb"
	"borg/proto/borgrpc"
	"borg/proto/door"
)

// nameAPI serves NameService on every replica. Who is where is no secret unless the policy
// of visibility is private: a task may find whom it talks to, whosever that is.
type nameAPI struct {
	borgrpc.UnimplementedNameServiceServer
	m *Master
}

func (a *nameAPI) Resolve(ctx context.Context, req *borgrpc.ResolveRequest) (*borgrpc.ResolveResponse, error) {
	key := cell.JobKey{User: cmp.Or(req.GetUser(), door.Caller(ctx).User()), Name: req.GetJob()}
	if key.Name == "" {
		return nil, status.Error(codes.InvalidArgument, "which job? none is named")
	}
	if err := a.m.fresh(ctx, req.GetMode()); err != nil {
		return nil, err
	}
	resp := &borgrpc.ResolveResponse{}
	err := a.m.viewMuch(ctx, func(c *cell.Cell) error { return resolve(c, a.m.job(ctx, c, key), key, req, resp) })
	if err != nil {
		return nil, err
	}
	return resp, nil
}

// resolve fills in one page of where the tasks of a job are.
func resolve(c *cell.Cell, j *cell.Job, key cell.JobKey, req *borgrpc.ResolveRequest, resp *borgrpc.ResolveResponse) error {
	if j == nil {
		return noJob(key)
	}
	first, most := req.GetFirst(), min(int(cmp.Or(req.GetLimit(), maxPerPage)), maxPerPage)
	resp.Index, resp.Tasks = c.Index(), j.NumTasks()
	if req.GetOneTask() {
		if first >= resp.Tasks {
			return status.Errorf(codes.NotFound, "job %s has %d tasks; there is no task %d", key, resp.Tasks, first)
		}
		most = 1
	}
	for bytes, i := 0, first; i < resp.Tasks; i++ {
		if len(resp.Endpoints) == most || bytes > maxPageBytes {
			if !req.GetOneTask() {
				resp.Next = i
			}
			return nil
		}
		one := endpointOf(j.Task(i))
		bytes += proto.Size(one)
		resp.Endpoints = append(resp.Endpoints, one)
	}
	return nil
}

// endpointOf is where a task is. Only its current copy counts: of two that run
// for a while, one is named.
func endpointOf(t *cell.Task) *borgrpc.Endpoint {
	one := &borgrpc.Endpoint{Index: t.ID().Index, Attempt: t.Attempt(), State: t.State()}
	p := t.Current()
	if p == nil {
		return one
	}
	one.Machine, one.Running = p.Machine().Name(), p.State() == borgpb.AttemptState_ATTEMPT_STATE_RUNNING
	if p.Network() == borgpb.Network_NETWORK_OWN {
		// Empty until its borglet has said it.
		one.Host = p.Addr()
		one.Running = one.Running && one.Host != ""
	} else if host, _, err := net.SplitHostPort(p.Machine().Addr()); err == nil {
		// What a borglet answers on is where the tasks of its machine are.
		one.Host = host
	}
	names := p.TaskSpec().GetPorts()
	for i, port := range p.Ports() {
		if one.Ports == nil {
			one.Ports = make(map[string]uint32, len(names))
		}
		one.Ports[names[i]] = port
	}
	return one
}
