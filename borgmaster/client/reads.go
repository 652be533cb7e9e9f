package client

import (
	"context"
	"errors"
	"io"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"borg/proto/borgpb"
	"borg/proto/borgrpc"
)

// call is one unary call with all its tries.
func call[Req, Resp any](ctx context.Context, c *Client, what string, req *Req,
	f func(borgrpc.MasterServiceClient, context.Context, *Req, ...grpc.CallOption) (*Resp, error)) (*Resp, error) {
	return try(ctx, c, what, tryTimeout, func(ctx context.Context, m borgrpc.MasterServiceClient) (*Resp, error) {
		return f(m, ctx, req)
	})
}

// GetCell says who is elected and how the cell is, as the replica that answers
// sees it.
func (c *Client) GetCell(ctx context.Context) (*borgrpc.GetCellResponse, error) {
	resp, err := call(ctx, c, "ask for the cell", &borgrpc.GetCellRequest{}, borgrpc.MasterServiceClient.GetCell)
	if err == nil {
		c.meet(resp.Members)
	}
	return resp, err
}

// View is how one replica sees the cell, or why it did not say.
type View struct {
	Addr string
	Cell *borgrpc.GetCellResponse
	Err  error
}

// surveyTimeout bounds how long each replica may take to say how it sees the
// cell.
const surveyTimeout = 2 * time.Second

// Survey asks every replica how it sees the cell, all at once. The answers come
// in the order of Config.Masters.
func (c *Client) Survey(ctx context.Context) []View {
	views := make([]View, len(c.config.Masters))
	c.askAll(ctx, c.named(), func(ctx context.Context, i int, m borgrpc.MasterServiceClient) error {
		views[i].Addr = c.config.Masters[i]
		views[i].Cell, views[i].Err = m.GetCell(ctx, &borgrpc.GetCellRequest{})
		return views[i].Err
	}, func(i int, err error) { views[i].Err = err })
	return views
}

// Examined is what one replica finds wrong, or why it did not say.
type Examined struct {
	Addr  string
	Found *borgrpc.ExamineResponse
	Err   error
}

// Examine asks every replica what is wrong: those of Config.Masters, and the members of which
// they tell.
func (c *Client) Examine(ctx context.Context) []Examined {
	for _, v := range c.Survey(ctx) {
		if v.Err == nil {
			c.meet(v.Cell.Members)
		}
	}
	replicas := c.all()
	views := make([]Examined, len(replicas))
	c.askAll(ctx, replicas, func(ctx context.Context, i int, m borgrpc.MasterServiceClient) error {
		views[i].Addr = replicas[i].addr
		views[i].Found, views[i].Err = m.Examine(ctx, &borgrpc.ExamineRequest{})
		return views[i].Err
	}, func(i int, err error) { views[i].Err = err })
	return views
}

// askAll calls ask for each of the replicas, all at once, and failed with the errors in words.
func (c *Client) askAll(ctx context.Context, replicas []*replica, ask func(ctx context.Context, i int, m borgrpc.MasterServiceClient) error, failed func(i int, err error)) {
	ctx, cancel := context.WithTimeout(ctx, min(surveyTimeout, c.config.Timeout))
	defer cancel()
	var asking sync.WaitGroup
	for i, r := range replicas {
		asking.Go(func() {
			if err := ask(ctx, i, r.master); err != nil {
				failed(i, errors.New(plain(err)))
			}
		})
	}
	asking.Wait()
}

// GetJob returns a job and its update; a *NotFoundError when there is none.
func (c *Client) GetJob(ctx context.Context, req *borgrpc.GetJobRequest) (*borgrpc.GetJobResponse, error) {
	return call(ctx, c, "get job "+req.User+"/"+req.Name, req, borgrpc.MasterServiceClient.GetJob)
}

// ListJobs returns the jobs of a user or of all, in one page if the request says how
// many, and otherwise all pages as one. The index is that of the first page.
func (c *Client) ListJobs(ctx context.Context, req *borgrpc.ListJobsRequest) (*borgrpc.ListJobsResponse, error) {
	return allPages(req, req.Limit, func(after string, first *borgrpc.ListJobsResponse) (*borgrpc.ListJobsResponse, string, error) {
		page := proto.CloneOf(req)
		page.After = after
		resp, err := call(ctx, c, "list jobs", page, borgrpc.MasterServiceClient.ListJobs)
		if first != nil {
			first.Jobs, first.NextAfter = append(first.Jobs, resp.GetJobs()...), resp.GetNextAfter()
		}
		return resp, resp.GetNextAfter(), err
	})
}

// allPages asks for page after page, each behind the last, unless one alone is meant;
// ask adds a page to the first one.
func allPages[Req interface{ GetAfter() string }, Resp any](req Req, limit uint32, ask func(after string, first *Resp) (*Resp, string, error)) (*Resp, error) {
	first, after, err := ask(req.GetAfter(), nil)
	if err != nil || limit != 0 {
		return first, err
	}
	// A page that does not move on would be asked for without end.
	for was := req.GetAfter(); after != "" && after != was; {
		was = after
		if _, after, err = ask(after, first); err != nil {
			return nil, err
		}
	}
	return first, nil
}

// ListTasks returns one page of tasks.
func (c *Client) ListTasks(ctx context.Context, req *borgrpc.ListTasksRequest) (*borgrpc.ListTasksResponse, error) {
	return call(ctx, c, "list tasks", req, borgrpc.MasterServiceClient.ListTasks)
}

// ListAllTasks asks for page after page and returns them as one. The index is
// that of the first page. A negative or zero max means all.
func (c *Client) ListAllTasks(ctx context.Context, req *borgrpc.ListTasksRequest, max int) (*borgrpc.ListTasksResponse, error) {
	page := proto.CloneOf(req)
	var all *borgrpc.ListTasksResponse
	for {
		resp, err := c.ListTasks(ctx, page)
		if err != nil {
			return nil, err
		}
		if all == nil {
			all = resp
		} else {
			all.Tasks = append(all.Tasks, resp.Tasks...)
			all.NextAfter = resp.NextAfter
		}
		// A page that does not move on would be asked for without end.
		if resp.NextAfter == "" || resp.NextAfter == page.After || (max > 0 && len(all.Tasks) >= max) {
			return all, nil
		}
		page.After = resp.NextAfter
	}
}

// ListAllocs returns alloc sets, or the one that is named and its allocs; pages as
// ListJobs.
func (c *Client) ListAllocs(ctx context.Context, req *borgrpc.ListAllocsRequest) (*borgrpc.ListAllocsResponse, error) {
	return allPages(req, req.Limit, func(after string, first *borgrpc.ListAllocsResponse) (*borgrpc.ListAllocsResponse, string, error) {
		page := proto.CloneOf(req)
		page.After = after
		resp, err := call(ctx, c, "list allocs", page, borgrpc.MasterServiceClient.ListAllocs)
		if first != nil {
			if req.Name == "" {
				first.AllocSets = append(first.AllocSets, resp.GetAllocSets()...)
			}
			first.Allocs, first.NextAfter = append(first.Allocs, resp.GetAllocs()...), resp.GetNextAfter()
		}
		return resp, resp.GetNextAfter(), err
	})
}

// ListMachines returns machines; pages as ListJobs.
func (c *Client) ListMachines(ctx context.Context, req *borgrpc.ListMachinesRequest) (*borgrpc.ListMachinesResponse, error) {
	return allPages(req, req.Limit, func(after string, first *borgrpc.ListMachinesResponse) (*borgrpc.ListMachinesResponse, string, error) {
		page := proto.CloneOf(req)
		page.After = after
		resp, err := call(ctx, c, "list machines", page, borgrpc.MasterServiceClient.ListMachines)
		if first != nil {
			first.Machines, first.NextAfter = append(first.Machines, resp.GetMachines()...), resp.GetNextAfter()
		}
		return resp, resp.GetNextAfter(), err
	})
}

// ListPackageBans returns which packages are banned.
func (c *Client) ListPackageBans(ctx context.Context) ([]*borgrpc.PackageBan, error) {
	resp, err := call(ctx, c, "list the bans of packages", &borgrpc.ListPackageBansRequest{}, borgrpc.MasterServiceClient.ListPackageBans)
	return resp.GetBans(), err
}

// GetLabelPolicy returns the rules for labels, and if asked who breaks them.
func (c *Client) GetLabelPolicy(ctx context.Context, req *borgrpc.GetLabelPolicyRequest) (*borgrpc.GetLabelPolicyResponse, error) {
	return call(ctx, c, "ask for the policy of labels", req, borgrpc.MasterServiceClient.GetLabelPolicy)
}

// ListQuotas returns what a user may ask for at one time, and does; no user: all of
// whom there is something to say.
func (c *Client) ListQuotas(ctx context.Context, user string) (*borgrpc.ListQuotasResponse, error) {
	return call(ctx, c, "list quotas", &borgrpc.ListQuotasRequest{User: user}, borgrpc.MasterServiceClient.ListQuotas)
}

// ListVolumes returns volumes; all pages of them.
func (c *Client) ListVolumes(ctx context.Context, req *borgrpc.ListVolumesRequest) ([]*borgpb.VolumeStatus, error) {
	resp, err := allPages(req, req.Limit, func(after string, first *borgrpc.ListVolumesResponse) (*borgrpc.ListVolumesResponse, string, error) {
		page := proto.CloneOf(req)
		page.After = after
		resp, err := call(ctx, c, "list volumes", page, borgrpc.MasterServiceClient.ListVolumes)
		if first != nil {
			first.Volumes = append(first.Volumes, resp.GetVolumes()...)
		}
		return resp, resp.GetNextAfter(), err
	})
	return resp.GetVolumes(), err
}

// GetPreemptionPolicy returns within which bands nobody takes the place of others.
func (c *Client) GetPreemptionPolicy(ctx context.Context) (*borgrpc.GetPreemptionPolicyResponse, error) {
	return call(ctx, c, "ask which bands collapse", &borgrpc.GetPreemptionPolicyRequest{}, borgrpc.MasterServiceClient.GetPreemptionPolicy)
}

// GetVisibility returns what users may read of each other's work.
func (c *Client) GetVisibility(ctx context.Context) (*borgrpc.GetVisibilityResponse, error) {
	return call(ctx, c, "ask what users may read", &borgrpc.GetVisibilityRequest{}, borgrpc.MasterServiceClient.GetVisibility)
}

// Why explains where a task is or why it is not placed.
func (c *Client) Why(ctx context.Context, req *borgrpc.WhyRequest) (*borgrpc.WhyResponse, error) {
	return call(ctx, c, "explain task "+taskName(req.User, req.Name, req.Index), req, borgrpc.MasterServiceClient.Why)
}

// SafeToDrain tells which machines could be emptied now.
func (c *Client) SafeToDrain(ctx context.Context, req *borgrpc.SafeToDrainRequest) (*borgrpc.SafeToDrainResponse, error) {
	return call(ctx, c, "ask what can be drained", req, borgrpc.MasterServiceClient.SafeToDrain)
}

// Events calls f with what happened, oldest first, and with req.Follow goes on
// until ctx ends or f returns an error. When the replica that sends them goes
// away, another one continues after the last event.
func (c *Client) Events(ctx context.Context, req *borgrpc.EventsRequest, f func(*borgrpc.EventsResponse) error) error {
	next := &borgrpc.EventsRequest{FromIndex: req.FromIndex, Job: req.Job, Machine: req.Machine, Follow: req.Follow, Last: req.Last}
	// Events of one log index may be spread over messages; (index, n) tells
	// those that were seen before a break.
	var seenIndex uint64
	var seenN uint32
	var any bool
	for {
		err := c.stream(ctx, "read events", req.Follow, func(ctx context.Context, r *replica, alive func()) error {
			s, err := r.master.Events(ctx, next)
			if err != nil {
				return err
			}
			for {
				resp, err := s.Recv()
				if err != nil {
					return endOf(err)
				}
				alive()
				for any && len(resp.Events) > 0 && !after(resp.Events[0].Index, resp.Events[0].N, seenIndex, seenN) {
					resp.Events = resp.Events[1:]
				}
				if n := len(resp.Events); n > 0 {
					any = true
					seenIndex, seenN = resp.Events[n-1].Index, resp.Events[n-1].N
					next.FromIndex, next.Last = seenIndex, 0
				}
				if err := f(resp); err != nil {
					return &stopError{err}
				}
			}
		})
		if err != nil || !req.Follow || ctx.Err() != nil {
			return err
		}
		// The replica ended the stream by itself, as one that is told to stop
		// does.
		wait(ctx, maxPause/4)
	}
}

func after(index uint64, n uint32, seenIndex uint64, seenN uint32) bool {
	return index > seenIndex || (index == seenIndex && n > seenN)
}

// Logs calls f with what a task wrote, and with req.Follow goes on until ctx
// ends, the copy is gone, or f returns an error. It is not taken up again by
// itself once bytes have come: they have no positions to continue from.
func (c *Client) Logs(ctx context.Context, req *borgrpc.LogsRequest, f func(*borgrpc.LogsResponse) error) error {
	what := "read the log of " + taskName(req.User, req.Name, req.Index)
	return c.stream(ctx, what, req.Follow, func(ctx context.Context, r *replica, alive func()) error {
		s, err := r.master.Logs(ctx, req)
		if err != nil {
			return err
		}
		return once(ctx, what, s, alive, f)
	})
}

// Audit calls f with who did what, oldest first. Like Logs it is not taken up
// again once something has come.
func (c *Client) Audit(ctx context.Context, req *borgrpc.AuditRequest, f func(*borgrpc.AuditResponse) error) error {
	const what = "read the audit"
	return c.stream(ctx, what, false, func(ctx context.Context, r *replica, alive func()) error {
		s, err := borgrpc.NewAuditServiceClient(r.conn).Audit(ctx, req)
		if err != nil {
			return err
		}
		return once(ctx, what, s, alive, f)
	})
}

// History calls f with what happened in the last weeks, by time. Like Logs it is not
// taken up again once something has come.
func (c *Client) History(ctx context.Context, req *borgrpc.HistoryRequest, f func(*borgrpc.HistoryResponse) error) error {
	const what = "read the history"
	return c.stream(ctx, what, false, func(ctx context.Context, r *replica, alive func()) error {
		s, err := borgrpc.NewHistoryServiceClient(r.conn).History(ctx, req)
		if err != nil {
			return err
		}
		return once(ctx, what, s, alive, f)
	})
}

// once calls f with each message of a stream that cannot be taken up again.
func once[M any](ctx context.Context, what string, s grpc.ServerStreamingClient[M], alive func(), f func(*M) error) error {
	for n := 0; ; n++ {
		resp, err := s.Recv()
		if err != nil {
			if err = endOf(err); n == 0 || err == nil || ctx.Err() != nil {
				return err
			}
			if again(ctx, err) {
				return &stopError{&BrokenStreamError{What: what, Err: err}}
			}
			return &stopError{answer(what, err)}
		}
		alive()
		if err := f(resp); err != nil {
			return &stopError{err}
		}
	}
}

// stopError carries an error out of a stream that no other replica can mend.
type stopError struct{ err error }

func (e *stopError) Error() string { return e.err.Error() }
func (e *stopError) Unwrap() error { return e.err }

func endOf(err error) error {
	if errors.Is(err, io.EOF) {
		return nil
	}
	return err
}

// stream runs f on one replica after another until one ends it well. Only the
// time without any answer is bounded by the client's timeout; alive says that
// something came. A stream that follows may be quiet for ever: when ctx ends it, that is no
// sign that the masters are away.
func (c *Client) stream(ctx context.Context, what string, follows bool, f func(ctx context.Context, r *replica, alive func()) error) error {
	c.mu.Lock()
	i := c.current
	c.mu.Unlock()
	pause := minPause
	failed := make(map[string]error)
	first, served, told := time.Now(), false, false
	for {
		// The silence before the first answer counts, not that of a quiet
		// stream that was accepted once.
		began := time.Now()
		quiet, cancel := context.WithTimeout(ctx, c.config.Timeout)
		for n := 0; quiet.Err() == nil; n++ {
			all := c.all()
			r := all[(i+n)%len(all)]
			came := false
			err := f(ctx, r, func() {
				if !came && len(failed) > 0 {
					c.lookAround(r)
				}
				came, served = true, true
			})
			var stop *stopError
			if errors.As(err, &stop) {
				cancel()
				return stop.err
			}
			if ctx.Err() != nil {
				cancel()
				if served || follows && len(failed) == 0 {
					return context.Cause(ctx)
				}
				if failed[r.addr] == nil {
					failed[r.addr] = err
				}
				return c.gaveUp(ctx, what, first, failed)
			}
			if !again(ctx, err) || status.Code(err) == codes.DeadlineExceeded {
				cancel()
				return answer(what, err)
			}
			failed[r.addr] = err
			c.config.Log.Debug("a stream broke", "replica", r.addr, "attempt", n+1, "err", err)
			if came {
				i, pause = i+n+1, minPause
				wait(quiet, pause)
				break
			}
			if (n+1)%len(all) == 0 {
				told = told || c.tellRetries(quiet, what, began, failed)
				wait(quiet, pause)
				pause = min(2*pause, maxPause)
			}
		}
		expired := quiet.Err() != nil
		cancel()
		if expired {
			return c.gaveUp(ctx, what, began, failed)
		}
	}
}
