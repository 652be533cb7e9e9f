package linkshard

import (
	"context"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"borg/borgmaster/cell"
	"borg/proto/borgrpc"
)

const (
	// PollTimeout: a poll that takes longer is a miss, unless this process is late itself.
	PollTimeout = time.Second
	// ReportTimeout: a report that takes longer has failed, unless this process is late
	// itself; then it may take up to longestReportNs.
	ReportTimeout   = 2 * time.Second
	longestReportNs = 12e9
	// Something is reported at least so often, if only that this shard lives: the
	// elected master gives its machines to others when it is silent.
	heartbeatNs = 100e6
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

// Borglets finds the borglet of a machine at an address, and no other that may
// answer there. It may wait a moment for its turn to connect.
type Borglets interface {
	Borglet(machine, addr string) (borgrpc.BorgletServiceClient, error)
	// StandBy begins to connect to it if nothing else is being connected to, and reports
	// whether it did. It does not block.
	StandBy(machine, addr string) (began bool)
	// Connected reports whether there is a connection to it, for which a poll needs no
	// handshake. It does not block.
	Connected(machine, addr string) bool
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
	// Latest format of the cell that this replica can apply.
	Format   uint32
	Log      Log
	Borglets Borglets
	Master   Master
	// What the copies on a machine use is passed on so often. Nanoseconds; 0: 5 s.
	UsageEveryNs int64
	// Heard is told what each poll said of usage; it must be short. Nil: nobody is.
	Heard func(machine string, told []*borgrpc.Usage, allocs []*borgrpc.AllocUsage)
	// Left is told of machines that are not polled from here any more; it must be short.
	// Nil: nobody is.
	Left func(machine string)
	// Whom borglets are to believe, asked for each poll; nil: they are not told.
	Belief func() *borgrpc.Belief
	// Monotonic nanoseconds.
	NowNs  func() int64
	Logger *slog.Logger
}

// Shard is the shell around a Station.
type Shard struct {
	cfg   Config
	wake  chan struct{}
	meter *meter
	// What the core says of its polls, as of the last turn of the loop.
	inFlight, lagNs, waiting, intervalNs, lateNs atomic.Int64
	// A report is under way.
	reporting atomic.Bool
	// Machines for which this replica is next; nil: it is not known yet.
	nexts atomic.Pointer[[]string]

	mu sync.Mutex
	// Machines whose place in the cell changed. Guarded by mu; bounded by the
	// number of machines.
	changed map[string]bool
	// The whole set of machines may have changed. Guarded by mu.
	reload bool
	// The log's state changed. Guarded by mu.
	newState bool
	// Notes that were made, and those that the loop has acted on. Guarded by mu.
	notes, acted uint64
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
	// How the elected master sees the machines, as it last said; nil: it never did.
	Reach *borgrpc.Reach
	// Polls under way, and how many may be.
	InFlight, MaxInFlight int
	// How much later than due polls begin of late.
	Lag time.Duration
	// Time between two polls of a machine at rest now, and while polls begin in time.
	Interval, RestInterval time.Duration
	// How late timers of this process are.
	Late time.Duration
	// Task reports that wait for the elected master, and how many may.
	Waiting, MaxWaiting int
	// Reports of crashes that were left for later.
	CrashesHeld uint64
	// Machines that were not reached when last polled, and those missed most.
	Missed      int
	MissedWorst []Missed
}

// New returns a shard that does nothing until Run.
func New(cfg Config) *Shard {
	return &Shard{cfg: cfg, wake: make(chan struct{}, 1), meter: newMeter(), changed: map[string]bool{}, reload: true, newState: true}
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
	stats := s.stats
	stats.InFlight, stats.MaxInFlight = int(s.inFlight.Load()), s.cfg.Core.withDefaults().MaxInFlight
	stats.Lag, stats.Late = time.Duration(s.lagNs.Load()), time.Duration(s.lateNs.Load())
	stats.RestInterval = time.Duration(s.cfg.Core.withDefaults().PeriodNs)
	stats.Interval = max(time.Duration(s.intervalNs.Load()), stats.RestInterval)
	stats.Waiting, stats.MaxWaiting = int(s.waiting.Load()), maxWaitingReports
	return stats
}

// Idle reports whether the shard has acted on all that it was told, and waits for no poll
// and no report.
func (s *Shard) Idle() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.acted == s.notes && s.inFlight.Load() == 0 && s.waiting.Load() == 0 && !s.reporting.Load()
}

func (s *Shard) note(f func()) {
	s.mu.Lock()
	s.notes++
	f()
	s.mu.Unlock()
	select {
	case s.wake <- struct{}{}:
	default:
	}
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
	ctx     context.Context
	station *Station
	// Polls for whoever of those who polled before waits for one.
	asks       chan errand
	answers    chan Answer
	deliveries chan delivery
	polls      sync.WaitGroup
	// Notes that were taken in.
	taken uint64
	// Of the machines that are polled from here.
	lines map[string]*line
	// The machines, or who shares them, have changed since nexts was worked out, which is
	// not done before nextsDueNs.
	nextsStale bool
	nextsDueNs int64
	// Gives up the report that is under way.
	giveUp context.CancelFunc
}

// Run polls and reports until ctx ends.
func (s *Shard) Run(ctx context.Context) error {
	station := NewStation(s.cfg)
	l := &loop{
		Shard: s, ctx: ctx, station: station,
		asks: make(chan errand), answers: make(chan Answer, station.core.cfg.MaxInFlight), deliveries: make(chan delivery, 1),
		lines: map[string]*line{}, giveUp: func() {},
	}
	defer l.polls.Wait()
	l.polls.Go(l.standBy)
	beat, last := time.NewTicker(time.Duration(BeatNs)), l.cfg.NowNs()
	defer beat.Stop()
	for next := time.Duration(0); ; {
		// One that is set again and again, to moments so near, has the runtime look through
		// all timers of the process each time, of which each connection has some.
		timer := time.NewTimer(next)
		select {
		case <-ctx.Done():
			timer.Stop()
			return nil
		case <-s.wake:
			l.takeNotes()
		case a := <-l.answers:
			l.meter.ended(a.event, l.cfg.NowNs())
			l.station.TakeAnswer(a)
			l.hangUp(a.event.Machine)
		case d := <-l.deliveries:
			l.takeDelivery(d)
		case <-timer.C:
			l.station.Tick()
		case <-beat.C:
			now := l.cfg.NowNs()
			l.station.Beat(max(now-last-BeatNs, 0))
			last = now
		}
		timer.Stop()
		l.carryOut(l.station.Orders())
		l.workOutNexts()
		l.inFlight.Store(int64(l.station.core.inFlight))
		l.lagNs.Store(l.station.core.LagNs())
		l.intervalNs.Store(l.station.core.pace.stretched(l.station.core.cfg.PeriodNs))
		l.lateNs.Store(l.station.core.LateNs(l.cfg.NowNs()))
		l.waiting.Store(int64(l.station.outbox.waiting))
		l.mu.Lock()
		l.acted = l.taken
		l.mu.Unlock()
		next = time.Duration(max(l.station.NextNs()-l.cfg.NowNs(), 0))
	}
}

// carryOut starts what the station wants done.
func (l *loop) carryOut(o Orders) {
	for _, p := range o.Polls {
		l.meter.began(p.Machine, l.cfg.NowNs())
		on := l.lines[p.Machine]
		if on == nil {
			on = newLine(l.ctx)
			l.lines[p.Machine] = on
		}
		l.start(errand{p, on})
	}
	if req := o.Report; req != nil {
		l.reporting.Store(true)
		ctx, cancel := context.WithTimeout(l.ctx, time.Duration(o.ReportNs))
		l.giveUp = cancel
		l.polls.Go(func() {
			defer cancel()
			resp, err := l.cfg.Master.Report(ctx, req)
			l.deliveries <- delivery{req, resp, err}
		})
	}
}

// errand is a poll and the line it goes over.
type errand struct {
	poll Poll
	on   *line
}

// start has a goroutine poll, one that has done so before if there is one: its stack has
// become as large as that needs.
func (l *loop) start(e errand) {
	select {
	case l.asks <- e:
		return
	default:
	}
	l.polls.Go(func() {
		for {
			select {
			case l.answers <- l.poll(e.poll, e.on):
			case <-l.ctx.Done():
				return
			}
			select {
			case e = <-l.asks:
			case <-l.ctx.Done():
				return
			}
		}
	})
}

// takeNotes brings in what Changed, Reload and StateChanged said.
func (l *loop) takeNotes() {
	l.mu.Lock()
	notes := Notes{Reload: l.reload, NewState: l.newState, Changed: slices.Sorted(maps.Keys(l.changed))}
	l.changed, l.reload, l.newState = map[string]bool{}, false, false
	taken := l.notes
	l.mu.Unlock()
	l.taken = taken
	elected, term := l.station.state.Elected, l.station.state.Term
	l.station.TakeNotes(notes)
	if s := l.station.state; s.Elected != elected || s.Term != term {
		// Whoever was elected before need not answer any more.
		l.giveUp()
	}
	if notes.Reload {
		l.moved()
	}
	for _, name := range notes.Changed {
		if l.station.core.machines[name] == nil {
			l.meter.removed(name)
		}
	}
	l.nextsStale = l.nextsStale || len(notes.Changed) > 0
	l.hangUp(notes.Changed...)
	l.publish()
}

// moved is called when any number of machines may be polled by others than before.
func (l *loop) moved() {
	l.meter.moved()
	l.hangUp(slices.Collect(maps.Keys(l.lines))...)
	l.nextsStale, l.nextsDueNs = true, 0
}

// hangUp ends the lines to machines that are not polled from here any more.
func (l *loop) hangUp(machines ...string) {
	for _, name := range machines {
		if on := l.lines[name]; on != nil && !l.station.core.Polls(name) {
			on.hangUp()
			delete(l.lines, name)
			if l.cfg.Left != nil {
				l.cfg.Left(name)
			}
		}
	}
}

func (l *loop) takeDelivery(d delivery) {
	l.reporting.Store(false)
	l.meter.reported(d.err)
	if d.err != nil {
		l.cfg.Logger.Debug("report to the elected master failed", "err", d.err)
		l.station.ReportFailed(d.req)
		return
	}
	before := l.station.core.Share()
	_, term, version := l.station.core.Live()
	l.station.ReportTaken(d.resp)
	if _, t, v := l.station.core.Live(); t != term || v != version {
		l.moved()
	}
	if share := l.station.core.Share(); share != before {
		l.cfg.Logger.Info("share of machines changed", "machines", share, "term", d.resp.GetTerm())
	}
	l.mu.Lock()
	l.stats.SchedulerConnected, l.stats.Reach = d.resp.GetSchedulerConnected(), d.resp.GetReach()
	l.mu.Unlock()
	l.publish()
}

func (l *loop) publish() {
	live, _, _ := l.station.core.Live()
	worst := l.meter.worst()
	l.mu.Lock()
	l.stats.Share, l.stats.Live = l.station.core.Share(), live
	l.stats.Missed, l.stats.MissedWorst = len(l.meter.missed), worst
	l.stats.CrashesHeld = l.station.crashes.held
	l.mu.Unlock()
}
