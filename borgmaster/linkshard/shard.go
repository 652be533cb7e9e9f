package linkshard

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"borg/borgmaster/cell"
	"borg/proto/borgrpc"
)

const (
	// A poll that takes longer is a miss.
	pollTimeout = time.Second
	// A report that takes longer has failed.
	reportTimeout = 2 * time.Second
	// Something is reported at least so often, if only that this shard lives.
	heartbeatNs = 1e9
	// Without a report that was taken for so long, the elected master is out of
	// contact and missed polls do not count.
	masterContactNs = 3e9
	// After a failed report, and until it is decided who shares the machines, the
	// next one waits so long.
	reportPauseNs = 50e6
	// Trouble with a borglet that does not pass is logged so often.
	warnAgainNs = 60e9
	// A replica whose cell is further behind what is committed does not poll.
	maxBehind = 10_000
)

// State is how this replica stands in the log.
type State struct {
	Replica, Elected, Term, Applied, Commit uint64
}

// Log is this replica's copy of the cell.
type Log interface {
	View(f func(c *cell.Cell))
	State() State
}

// Borglets finds the borglet at an address.
type Borglets interface {
	Borglet(addr string) (borgrpc.BorgletServiceClient, error)
}

// Master is the elected master, whoever it is at the moment.
type Master interface {
	Report(ctx context.Context, req *borgrpc.ReportRequest) (*borgrpc.ReportResponse, error)
}

// Config is what a Shard needs.
type Config struct {
	Core CoreConfig
	// Name of the cell, for the tasks' environment, and its id.
	CellName, CellID string
	Log              Log
	Borglets         Borglets
	Master           Master
	// Monotonic nanoseconds.
	NowNs  func() int64
	Logger *slog.Logger
}

// Shard is the shell around the Core.
type Shard struct {
	cfg  Config
	wake chan struct{}

	mu sync.Mutex
	// Machines whose place in the cell changed. Guarded by mu; bounded by the
	// number of machines.
	changed map[string]bool
	// The whole set of machines may have changed. Guarded by mu.
	reload bool
	// The log's state changed. Guarded by mu.
	newState bool
	// Guarded by mu; for status pages.
	stats Stats
}

// Stats is what a shard says of itself.
type Stats struct {
	// Machines it polls.
	Share int
	// Replicas that share the machines.
	Live               []uint64
	SchedulerConnected bool
}

// New returns a shard that does nothing until Run.
func New(cfg Config) *Shard {
	return &Shard{cfg: cfg, wake: make(chan struct{}, 1), changed: map[string]bool{}, reload: true, newState: true}
}

// Changed says that the cell changed something about a machine. It does not
// block.
func (s *Shard) Changed(machines ...string) {
	s.note(func() {
		for _, m := range machines {
			s.changed[m] = true
		}
	})
}

// Reload says that the whole cell was replaced. It does not block.
func (s *Shard) Reload() { s.note(func() { s.reload = true }) }

// StateChanged says that the log's state changed. It does not block.
func (s *Shard) StateChanged() { s.note(func() { s.newState = true }) }

// Stats returns how the shard stands.
func (s *Shard) Stats() Stats {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.stats
}

func (s *Shard) note(f func()) {
	s.mu.Lock()
	f()
	s.mu.Unlock()
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// answer is how a poll ended, on its way back to the loop.
type answer struct {
	event    Answered
	compared *Comparison
}

// delivery is how a report ended.
type delivery struct {
	req  *borgrpc.ReportRequest
	resp *borgrpc.ReportResponse
	err  error
}

// loop is the state of Run's goroutine.
type loop struct {
	*Shard
	ctx    context.Context
	core   *Core
	outbox *outbox
	// Each is used by the one poll of its machine that is in flight, and by the
	// loop in between.
	known      map[string]*Known
	answers    chan answer
	deliveries chan delivery
	polls      sync.WaitGroup
	// A report is under way.
	sending bool
	// No report before mayNs; one even if there is nothing to say at mustNs.
	mayNs, mustNs int64
	// Last report that was taken; 0: none by the present master.
	takenNs int64
	state   State
	logOK   bool
}

// Run polls and reports until ctx ends.
func (s *Shard) Run(ctx context.Context) error {
	core := NewCore(s.cfg.Core)
	l := &loop{
		Shard: s, ctx: ctx, core: core, outbox: newOutbox(), known: map[string]*Known{},
		answers: make(chan answer, core.cfg.MaxInFlight), deliveries: make(chan delivery, 1),
	}
	defer l.polls.Wait()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-s.wake:
			l.takeNotes()
		case a := <-l.answers:
			l.takeAnswer(a)
		case d := <-l.deliveries:
			l.takeDelivery(d)
		case <-timer.C:
			l.step(Tick{})
		}
		l.checkLog()
		l.send()
		timer.Reset(l.pause())
	}
}

// pause is how long the loop may sleep.
func (l *loop) pause() time.Duration {
	now := l.cfg.NowNs()
	next := now + heartbeatNs/4
	if due, ok := l.core.Next(); ok {
		next = min(next, due)
	}
	if !l.sending && l.state.Elected != 0 {
		due := max(l.mustNs, l.mayNs)
		if !l.outbox.empty() {
			due = l.mayNs
		}
		next = min(next, due)
	}
	return time.Duration(max(next-now, 0))
}

// step drives the core and does what it says.
func (l *loop) step(event Event) {
	eff := l.core.Step(l.cfg.NowNs(), event)
	for _, c := range eff.Contacts {
		l.outbox.contacts[c.Machine] = c
	}
	for _, name := range eff.Polls {
		known := l.known[name]
		if known == nil {
			known = &Known{}
			l.known[name] = known
		}
		l.polls.Go(func() {
			select {
			case l.answers <- l.poll(name, known):
			case <-l.ctx.Done():
			}
		})
	}
}

// takeNotes brings in what Changed, Reload and StateChanged said.
func (l *loop) takeNotes() {
	l.mu.Lock()
	changed, reload, newState := l.changed, l.reload, l.newState
	l.changed, l.reload, l.newState = map[string]bool{}, false, false
	l.mu.Unlock()
	if newState {
		l.checkState()
	}
	var events []Event
	l.cfg.Log.View(func(c *cell.Cell) {
		if reload {
			all := MachinesAre{}
			for m := range c.Machines() {
				all.Names = append(all.Names, m.Name())
			}
			events = append(events, all)
		}
		for name := range changed {
			if c.Machine(name) == nil {
				events = append(events, MachineRemoved{name})
			} else {
				events = append(events, MachineAdded{name}, Touched{name})
			}
		}
	})
	for _, e := range events {
		if gone, ok := e.(MachineRemoved); ok {
			delete(l.known, gone.Name)
			l.outbox.drop(gone.Name)
		}
		l.step(e)
	}
	l.publish()
}

// checkState begins anew with another elected master.
func (l *loop) checkState() {
	state := l.cfg.Log.State()
	if state.Elected != l.state.Elected || state.Term != l.state.Term {
		l.takenNs, l.mayNs, l.mustNs = 0, 0, 0
		l.step(MasterContact{OK: false})
		l.outbox.retell()
	}
	l.state = state
}

// checkLog polls only while the cell here is of the present term and not far
// behind: orders from an older one would be fenced anyway.
func (l *loop) checkLog() {
	state := l.cfg.Log.State()
	ok := state.Elected != 0 && state.Commit < state.Applied+maxBehind
	if ok && !l.logOK {
		l.cfg.Log.View(func(c *cell.Cell) { ok = c.Term() == state.Term })
	}
	if ok != l.logOK {
		l.logOK = ok
		l.step(LogContact{OK: ok})
	}
	now := l.cfg.NowNs()
	if l.takenNs != 0 && now-l.takenNs > masterContactNs {
		l.takenNs = 0
		l.step(MasterContact{OK: false})
	}
}

func (l *loop) takeAnswer(a answer) {
	if cmp := a.compared; cmp != nil {
		l.outbox.addReports(a.event.Machine, cmp.Reports)
		l.outbox.setUnknown(a.event.Machine, cmp.Unknown)
	}
	l.step(a.event)
}

// send hands what waits to the elected master, one message at a time: what
// gathers meanwhile goes with the next.
func (l *loop) send() {
	now := l.cfg.NowNs()
	if l.sending || l.state.Elected == 0 || now < l.mayNs || (l.outbox.empty() && now < l.mustNs) {
		return
	}
	req := &borgrpc.ReportRequest{Replica: l.state.Replica, Term: l.state.Term, CellId: l.cfg.CellID}
	l.outbox.take(req)
	l.sending, l.mustNs = true, now+heartbeatNs
	l.polls.Go(func() {
		ctx, cancel := context.WithTimeout(l.ctx, reportTimeout)
		defer cancel()
		resp, err := l.cfg.Master.Report(ctx, req)
		l.deliveries <- delivery{req, resp, err}
	})
}

func (l *loop) takeDelivery(d delivery) {
	l.sending = false
	now := l.cfg.NowNs()
	if d.err != nil {
		l.mayNs, l.mustNs = now+reportPauseNs, now+reportPauseNs
		l.outbox.putBack(d.req)
		l.cfg.Logger.Debug("report to the elected master failed", "err", d.err)
		return
	}
	if d.resp.GetTerm() != l.cfg.Log.State().Term {
		return
	}
	if l.takenNs == 0 {
		l.step(MasterContact{OK: true})
	}
	l.takenNs = now
	if d.resp.LiveVersion == 0 {
		l.mustNs = now + reportPauseNs
	} else {
		before := l.core.Share()
		l.step(LiveSet{Term: d.resp.Term, Version: d.resp.LiveVersion, Live: d.resp.Live})
		if share := l.core.Share(); share != before {
			l.cfg.Logger.Info("share of machines changed", "machines", share, "term", d.resp.Term)
		}
	}
	l.mu.Lock()
	l.stats.SchedulerConnected = d.resp.SchedulerConnected
	l.mu.Unlock()
	l.publish()
}

func (l *loop) publish() {
	live, _, _ := l.core.Live()
	l.mu.Lock()
	l.stats.Share, l.stats.Live = l.core.Share(), live
	l.mu.Unlock()
}
