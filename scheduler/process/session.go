package process

import (
	"context"
	"fmt"
	"sync"
	"time"

	"google.golang.org/grpc"

	"borg/borgmaster/cell"
	"borg/proto/borgpb"
	"borg/proto/borgrpc"
	"borg/proto/door"
	"borg/scheduler"
)

// session is one connection to the master.
type session struct {
	*process
	client borgrpc.SchedulingServiceClient
	// messages and answers are what other goroutines of the session bring in;
	// gone gets the error that ended the stream.
	messages chan *borgrpc.FollowResponse
	answers  chan answer
	gone     chan error
	// inFlight counts the batches without an answer; at most batchesInFlight,
	// which is also the room in answers.
	inFlight int
	// again: the last pass was cut short and there is more to do.
	again bool
	// resting runs while no pass is made because batches were not answered;
	// nil: passes are made. rest is how long it was set last.
	resting *time.Timer
	rest    time.Duration
	// planning: moves wait for their answer, which comes through plans. Until the
	// copy is at planned it does not show what became of the last ones.
	planning bool
	planned  uint64
	plans    chan answer
	// workers are the receiving goroutine, one for each batch in flight and one for
	// moves.
	workers sync.WaitGroup
}

// answer is what became of one batch.
type answer struct {
	batch  uint64
	result *borgpb.Result
	err    error
}

// session follows the master over one connection and says why that ended.
func (p *process) session(ctx context.Context) error {
	conn, err := door.Dial(p.cfg.Master, p.cfg.Identity, door.AnyMaster(p.cfg.Identity))
	if err != nil {
		return err
	}
	defer conn.Close()
	s := &session{
		process:  p,
		client:   borgrpc.NewSchedulingServiceClient(conn),
		messages: make(chan *borgrpc.FollowResponse, lotMessages),
		answers:  make(chan answer, batchesInFlight),
		plans:    make(chan answer, 1),
		gone:     make(chan error, 1),
	}
	ctx, cancel := context.WithCancel(ctx)
	defer s.workers.Wait()
	defer cancel()
	defer func() {
		if s.resting != nil {
			s.resting.Stop()
		}
	}()
	stream, err := s.client.Follow(ctx, &borgrpc.FollowRequest{Scheduler: p.cfg.Name, Build: p.cfg.Build})
	if err != nil {
		return fmt.Errorf("follow the master at %s: %w", p.cfg.Master, err)
	}
	entries, err := s.load(stream)
	if err != nil {
		return fmt.Errorf("load the cell from the master at %s: %w", p.cfg.Master, err)
	}
	if err := s.apply(entries); err != nil {
		return err
	}
	s.meter.followed(time.Now())
	p.cfg.Logger.Info("scheduler follows the master",
		"master", p.cfg.Master, "index", p.copy.Index(), "machines", p.copy.NumMachines())
	s.workers.Go(func() { s.receive(ctx, stream) })
	return s.run(ctx)
}

// load reads the whole cell from the stream into the copy. It returns the
// entries that came with the last message.
func (s *session) load(stream grpc.ServerStreamingClient[borgrpc.FollowResponse]) ([]*borgrpc.CommittedEntry, error) {
	var last *borgrpc.FollowResponse
	var failed error
	empty := true
	copied, err := cell.Load(func(yield func(key, value []byte) bool) {
		for last == nil {
			m, err := stream.Recv()
			if err != nil {
				failed = err
				return
			}
			for _, r := range m.GetRecords() {
				empty = false
				if !yield(r.GetKey(), r.GetValue()) {
					return
				}
			}
			if m.GetRecordsEnd() {
				last = m
			}
		}
	})
	switch {
	case failed != nil:
		return nil, failed
	case last != nil && empty && last.GetIndex() == 0:
		copied = cell.New(last.GetCellId(), last.GetEpoch())
	case err != nil:
		return nil, err
	}
	if copied.Index() != last.GetIndex() || copied.ID() != last.GetCellId() || copied.Epoch() != last.GetEpoch() {
		return nil, fmt.Errorf("its records are of cell %s, epoch %d, index %d, and it says cell %s, epoch %d, index %d",
			copied.ID(), copied.Epoch(), copied.Index(), last.GetCellId(), last.GetEpoch(), last.GetIndex())
	}
	search, err := scheduler.New(s.cfg.Search)
	if err != nil {
		return nil, err
	}
	s.copy, s.search = copied, search
	return last.GetEntries(), nil
}

// receive hands the master's messages to the owner until the stream ends.
func (s *session) receive(ctx context.Context, stream grpc.ServerStreamingClient[borgrpc.FollowResponse]) {
	for {
		m, err := stream.Recv()
		if err != nil {
			s.gone <- err
			return
		}
		select {
		case s.messages <- m:
		case <-ctx.Done():
			return
		}
	}
}

// run is the loop of the owner: take in what is there, make passes, wait.
func (s *session) run(ctx context.Context) error {
	for {
		if err := s.takeIn(); err != nil {
			return err
		}
		s.pass(ctx)
		s.plan(ctx)
		s.answerWaiting()
		if s.again && s.inFlight < batchesInFlight && s.resting == nil && !s.planning && s.copy.Index() >= s.planned {
			// More to place, but what happened meanwhile comes first.
			select {
			case <-ctx.Done():
				return ctx.Err()
			default:
				continue
			}
		}
		if s.cfg.Settled != nil && s.inFlight == 0 && !s.again && s.resting == nil && !s.planning && s.copy.Index() >= s.planned {
			s.cfg.Settled(s.copy.Index())
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case m := <-s.messages:
			if err := s.hear(m); err != nil {
				return err
			}
		case a := <-s.answers:
			s.settle(a)
		case a := <-s.plans:
			s.settlePlan(a)
		case a := <-s.asks:
			s.take(a)
		case to := <-s.looks:
			to <- s.look(s)
		case <-s.rested():
			s.resting = nil
		case err := <-s.gone:
			return fmt.Errorf("the master at %s ended the stream: %w", s.cfg.Master, err)
		}
	}
}

// takeIn takes what has arrived already, at most one lot of it.
func (s *session) takeIn() error {
	for range lotMessages {
		select {
		case m := <-s.messages:
			if err := s.hear(m); err != nil {
				return err
			}
		case a := <-s.answers:
			s.settle(a)
		case a := <-s.asks:
			s.take(a)
		case to := <-s.looks:
			to <- s.look(s)
		default:
			return nil
		}
	}
	return nil
}

// hear takes in a message of the master.
func (s *session) hear(m *borgrpc.FollowResponse) error {
	if m.GetSilent() != nil {
		s.search.SetSilent(m.Silent.GetNames())
	}
	return s.apply(m.GetEntries())
}

// apply feeds entries to the copy, in order and without a gap.
func (s *session) apply(entries []*borgrpc.CommittedEntry) error {
	for _, e := range entries {
		if want := s.copy.Index() + 1; e.GetIndex() != want {
			return fmt.Errorf("entry %d came where entry %d was due; the copy must be loaded anew", e.GetIndex(), want)
		}
		_, events := s.copy.Apply(e.GetIndex(), e.GetTerm(), e.GetData())
		s.search.Observe(s.copy, events)
		// Nobody writes the records of this copy down; without this the list of
		// the changed ones would grow for ever.
		s.copy.Flush(nil)
		if err := s.copy.Diverged(); err != nil {
			return fmt.Errorf("the copy differs from the master's cell and must be loaded anew: %w", err)
		}
	}
	return nil
}

// pass makes one pass and sends what it decided.
func (s *session) pass(ctx context.Context) {
	if s.inFlight >= batchesInFlight || s.resting != nil || s.planning || s.copy.Index() < s.planned {
		return
	}
	began, before := time.Now(), s.search.Stats()
	batch := s.search.Pass(s.copy)
	if len(batch.Assign.GetAssignments()) > 0 || s.search.Stats() != before {
		s.meter.passed(time.Since(began), began, batch.More)
	}
	s.again = batch.More
	if len(batch.Assign.GetAssignments()) == 0 {
		return
	}
	batch.Assign.Build = s.cfg.Build
	s.cfg.Logger.Debug("batch sent", "index", s.copy.Index(), "batch", batch.ID, "assignments", len(batch.Assign.GetAssignments()))
	s.inFlight++
	s.workers.Go(func() {
		ctx, cancel := context.WithTimeout(ctx, assignTimeout)
		defer cancel()
		sent := time.Now()
		r, err := s.client.Assign(ctx, &borgrpc.AssignRequest{Assign: batch.Assign})
		s.meter.batches.Observe(time.Since(sent).Seconds())
		s.answers <- answer{batch: batch.ID, result: r.GetResult(), err: err}
	})
}

// takeRest holds passes back for a while: a master that cannot take a batch now
// must not be asked again at once.
func (s *session) takeRest() {
	if s.resting != nil {
		return
	}
	s.rest = min(max(2*s.rest, s.cfg.RetryMin), s.cfg.RetryMax)
	s.resting = time.NewTimer(s.rest)
}

// rested is ready when the rest is over; never when there is none.
func (s *session) rested() <-chan time.Time {
	if s.resting == nil {
		return nil
	}
	return s.resting.C
}

// settle tells the search what became of a batch. When nobody knows, it is
// taken as not done: if it was done after all, the copy will show it.
func (s *session) settle(a answer) {
	s.inFlight--
	result := a.result
	switch {
	case a.err != nil:
		s.takeRest()
		s.cfg.Logger.Warn("a batch was not answered", "batch", a.batch, "pause", s.rest, "err", a.err)
		result = nil
	case result == nil:
		s.takeRest()
		s.cfg.Logger.Warn("a batch was not answered", "batch", a.batch, "pause", s.rest, "err", "the answer holds no result")
	default:
		s.rest = 0
	}
	refused := s.search.Settle(s.copy, a.batch, result)
	s.meter.settled(a, refused.Count)
	if refused.Count > 0 {
		stats := s.search.Stats()
		s.cfg.Logger.Info("assignments refused", "index", result.GetIndex(), "batch", a.batch,
			"refused", refused.Count, "of", refused.Of, "first", refused.First.GetObject(), "why", refused.First.GetMessage(),
			"conflicts", stats.Conflicts, "transactions", stats.Transactions)
	}
}
