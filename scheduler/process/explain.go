package process

import (
	"context"
	"fmt"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"borg/borgmaster/cell"
	"borg/proto/borgrpc"
	"borg/proto/door"
	"borg/scheduler"
)

// errNotFollowing answers questions while there is no copy to look at.
var errNotFollowing = status.Error(codes.Unavailable, "the scheduler does not follow a master at the moment; ask again")

// ask is a question on its way to the owner of the copy.
type ask struct {
	job      cell.JobKey
	index    uint32
	minIndex uint64
	// drain, if any, is the question instead: which machines could be emptied.
	drain *borgrpc.CheckDrainRequest
	// reply has room for the one answer, so that the owner never waits for
	// somebody who has gone away.
	reply chan reply
	// done is closed when nobody waits for the answer any more.
	done <-chan struct{}
}

type reply struct {
	why   *borgrpc.WhyResponse
	drain *borgrpc.SafeToDrainResponse
	err   error
}

func (a *ask) fail(err error) { a.reply <- reply{err: err} }

// abandoned reports whether whoever asked has gone away.
func (a *ask) abandoned() bool {
	select {
	case <-a.done:
		return true
	default:
		return false
	}
}

// explainServer is the service that the master asks.
type explainServer struct {
	borgrpc.UnimplementedSchedulerServiceServer
	p *process
}

// serve opens the socket and serves Explain in group until stop is called.
func (p *process) serve(group *errgroup.Group) (stop func(), err error) {
	l, err := door.Listen("unix:" + p.cfg.Socket)
	if err != nil {
		return nil, fmt.Errorf("serve explain: %w", err)
	}
	server := door.NewServer(door.Config{Identity: p.cfg.Identity, Logger: p.cfg.Logger})
	borgrpc.RegisterSchedulerServiceServer(server, &explainServer{p: p})
	group.Go(func() error { return server.Serve(l) })
	return server.Stop, nil
}

// Explain answers why a task waits, or where it runs and why there.
func (e *explainServer) Explain(ctx context.Context, r *borgrpc.ExplainRequest) (*borgrpc.ExplainResponse, error) {
	a := &ask{
		job:      cell.JobKey{User: r.GetUser(), Name: r.GetName()},
		index:    r.GetIndex(),
		minIndex: r.GetMinIndex(),
		reply:    make(chan reply, 1),
		done:     ctx.Done(),
	}
	got, err := e.ask(ctx, a)
	if err != nil {
		return nil, err
	}
	return &borgrpc.ExplainResponse{Why: got.why}, nil
}

// CheckDrain answers which machines could be emptied now.
func (e *explainServer) CheckDrain(ctx context.Context, r *borgrpc.CheckDrainRequest) (*borgrpc.CheckDrainResponse, error) {
	got, err := e.ask(ctx, &ask{drain: r, minIndex: r.GetMinIndex(), reply: make(chan reply, 1), done: ctx.Done()})
	if err != nil {
		return nil, err
	}
	return &borgrpc.CheckDrainResponse{Answer: got.drain}, nil
}

// ask waits for the owner of the copy to answer.
func (e *explainServer) ask(ctx context.Context, a *ask) (reply, error) {
	select {
	case e.p.asks <- a:
	case <-ctx.Done():
		return reply{}, status.FromContextError(ctx.Err()).Err()
	}
	select {
	case got := <-a.reply:
		return got, got.err
	case <-ctx.Done():
		return reply{}, status.FromContextError(ctx.Err()).Err()
	}
}

// take queues a question until the copy has come far enough for it.
func (s *session) take(a *ask) {
	if len(s.waiting) >= maxAsks {
		s.dropAbandoned()
	}
	if len(s.waiting) >= maxAsks {
		a.fail(door.TooMuch(fmt.Sprintf("%d questions wait already for the scheduler; ask again", maxAsks), time.Second))
		return
	}
	s.waiting = append(s.waiting, a)
}

func (s *session) dropAbandoned() {
	kept := s.waiting[:0]
	for _, a := range s.waiting {
		if !a.abandoned() {
			kept = append(kept, a)
		}
	}
	clear(s.waiting[len(kept):])
	s.waiting = kept
}

// answerWaiting answers the questions for which the copy is recent enough.
func (s *session) answerWaiting() {
	if len(s.waiting) == 0 {
		return
	}
	kept := s.waiting[:0]
	for _, a := range s.waiting {
		switch {
		case a.abandoned():
		case a.minIndex > s.copy.Index():
			kept = append(kept, a)
		default:
			a.reply <- s.answer(a)
		}
	}
	clear(s.waiting[len(kept):])
	s.waiting = kept
}

func (s *session) answer(a *ask) (r reply) {
	if a.drain != nil {
		r.drain = DrainResponse(s.search, s.copy, a.drain.GetMachines(), a.drain.GetCount(), a.abandoned)
		return r
	}
	r.why, r.err = s.explain(a)
	return r
}

func (s *session) explain(a *ask) (*borgrpc.WhyResponse, error) {
	why, err := s.search.Explain(s.copy, a.job, a.index)
	if err != nil {
		return nil, status.Error(codes.NotFound, err.Error())
	}
	return WhyResponse(why, s.copy.Index()), nil
}

// WhyResponse is what the search said of a copy at an index, as it goes over the
// wire.
func WhyResponse(why *scheduler.Why, index uint64) *borgrpc.WhyResponse {
	r := &borgrpc.WhyResponse{
		Task:     why.Task,
		Summary:  why.Summary,
		Machines: uint32(why.Machines),
		Index:    index,
	}
	for _, x := range why.Reasons {
		r.Reasons = append(r.Reasons, whyReason(x))
	}
	for _, x := range why.Changes {
		r.Changes = append(r.Changes, &borgrpc.WhyChange{Change: x.Change, Machines: uint32(x.Machines)})
	}
	r.Placement, r.Fight = whyPlacement(why.Placement), whyFight(why.Fight)
	return r
}

func whyPlacement(p *scheduler.Placement) *borgrpc.WhyPlacement {
	if p == nil {
		return nil
	}
	out := &borgrpc.WhyPlacement{
		Machine: p.Machine, RunnerUp: p.RunnerUp, Looked: uint32(p.Looked), Found: uint32(p.Found),
		Index: p.Index, Fight: whyFight(p.Fight),
	}
	if p.Fight != nil {
		return out
	}
	second := p.Second.Parts()
	for i, part := range p.Score.Parts() {
		out.Parts = append(out.Parts, &borgrpc.WhyPart{Part: part.Name, Points: part.Points, RunnerUp: second[i].Points})
	}
	return out
}

func whyFight(f *scheduler.Fight) *borgrpc.WhyFight {
	if f == nil {
		return nil
	}
	return &borgrpc.WhyFight{
		By: f.By, Priority: f.Priority, Machine: f.Machine, Index: f.Index, Victims: whyHolders(f.Victims), Cost: f.Cost,
		Looked: uint32(f.Looked), Otherwise: f.Otherwise, Dearer: f.Dearer, Spared: whyHolders(f.Spared),
	}
}

func whyHolders(all []scheduler.Holder) (out []*borgrpc.WhyHolder) {
	for _, h := range all {
		out = append(out, &borgrpc.WhyHolder{Name: h.Name, Priority: h.Priority, Why: h.Why})
	}
	return out
}

func whyReason(r scheduler.Reason) *borgrpc.WhyReason {
	return &borgrpc.WhyReason{
		Test:     r.Test,
		Machines: uint32(r.Machines),
		Detail:   r.Detail,
		Nearest:  r.Nearest,
	}
}
