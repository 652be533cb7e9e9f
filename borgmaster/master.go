// Package borgmaster is one replica of a cell's master: the I/O around the
// cell. It serves users, schedulers and the other replicas; it polls the
// borglets through its link shard; and while it is elected it does the elected
// master's duties and keeps a scheduler process running.
//
// It decides nothing about jobs, tasks and machines: every change is an op in
// the replicated log, and borgmaster/cell says what it does. The log, the
// membership and the scheduler process are handed in, so that the same master
// runs over raft and over a log in memory.
//
// It must not import the replica, the checkpoint, raft or a borglet.
package borgmaster

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"

	"borg/borgmaster/admission"
	"borg/borgmaster/audit"
	"borg/borgmaster/cell"
	"borg/borgmaster/cellkey"
	"borg/borgmaster/duty"
	"borg/borgmaster/journal"
	"borg/borgmaster/linkshard"
	"borg/borgmaster/metric"
	"borg/borgmaster/reclaim"
	"borg/borgmaster/watch"
	"borg/identity"
	"borg/proto/borgpb"
	"borg/proto/borgrpc"
	"borg/proto/door"
	"borg/tell/hostpath"
	"borg/tell/repeat"
)

// Config is what a Master needs.
type Config struct {
	// Name of the cell.
	CellName string
	// This replica's id.
	Replica uint64
	// Address of this replica's own door, for its scheduler process.
	Addr string
	// Socket on which the scheduler process answers. Empty: there is none.
	SchedulerSocket string
	// Nil: no scheduler process is started; one may still follow.
	Scheduler SchedulerProcess
	// SchedulerPages are the sockets of the pages of the scheduler processes, which
	// this replica shows beside its own; none: they show none.
	SchedulerPages []string
	// Who this replica is to others.
	Identity *identity.Source
	// The cell's, with which this replica issues certificates. Nil: it issues none.
	Authority *identity.Authority
	// Keeps what the authority became, which is a secret, where it is read at the
	// next start. Nil: it is not kept.
	KeepAuthority func([]byte) error
	// With which it seals and opens secrets. Nil: it keeps none.
	Keys    *cellkey.Ring
	Log     Log
	Members Members
	// Nil: no checkpoints are handed out.
	Checkpoints Checkpoints
	// Nil: of the past nothing is kept.
	Past Past
	// How many machines the elected master calls down at once; zero: duty.DefaultBounds.
	Downs duty.Bounds
	// Nil: of the log there is no more to show than its state.
	Insides Insides
	// Nil: the membership cannot be changed.
	MemberChanges MemberChanges
	// Keeps who did what; the master runs it, and whoever opened it closes it. Nil:
	// it is not kept.
	Audit *audit.Trail
	// Keeps what happened, for weeks; the master runs it, and whoever opened it closes
	// it. Nil: there is what is in memory.
	Journal *journal.Journal
	// Directories of this process, which no user is told of.
	HostPaths *hostpath.Dirs
	// User who may change machines, members and what belongs to others, as long as
	// nobody was granted that.
	FirstAdmin string
	// Finds the borglets of machines; nil: they are dialed at their addresses.
	Borglets linkshard.Borglets
	// How much this replica keeps for watches.
	Watch watch.Config
	// Not nil: the cell is simulated; what of, all who ask are told.
	Simulated func() *borgrpc.Simulated
	// Period of polls of a machine at rest; 0: 2 s.
	PollPeriod time.Duration
	// The cell is not raised to a later format than this; 0: to any that all its
	// replicas know.
	MaxFormat uint32
	// Addresses below which this replica asks Prometheus servers for the gates of
	// updates, "http://prometheus:9090". None: it asks nobody, and refuses gates.
	MetricGates []string
	// What one user may ask of this replica.
	Admission admission.Config
	// How the elected master makes reservations.
	Reservations reclaim.Config
	// Monotonic clock; nil: time since New.
	MonotonicNs func() int64
	Build       string
	// Says which cell and replica in each line.
	Logger *slog.Logger
}

// Validate says what is missing.
func (c *Config) Validate() error {
	switch {
	case c.Replica == 0:
		return errors.New("master: no replica id")
	case c.Log == nil || c.Members == nil:
		return errors.New("master: no log or no members")
	case c.Identity == nil || c.Identity.Name().Replica() != c.Replica:
		return errors.New("master: it has no certificate of its own")
	case c.Logger == nil:
		return errors.New("master: no logger")
	case c.Scheduler != nil && (c.SchedulerSocket == "" || c.Addr == ""):
		return errors.New("master: a scheduler process needs an address and a socket")
	}
	return c.Admission.Validate()
}

// Master is one replica. Make it before the log is started, so that it hears
// everything.
type Master struct {
	cfg Config
	// What the log is told of the errors of calls.
	repeated    repeat.Limiter
	cellID      string
	conns       *conns
	streamConns *streamConns
	gate        *Gate
	events      eventRing
	shard       *linkshard.Shard
	duty        *dutyLoop
	// What tasks reserve, while elected.
	reclaim *reclaimLoop
	// What volumes keep.
	volumeUse volumeUse
	papers    machinePapers
	// Asks the gates of updates, while elected.
	asker *metric.Asker
	// Fires with each applied entry, and with each change of the log's state.
	applied, stateChanged pulse
	// Scheduler processes that follow this master, and those with the ones that
	// are still being sent the cell.
	followers, loading atomic.Int64
	// Holds a token while a checkpoint is sent.
	saving chan struct{}
	// Held while the authority is replaced by a later one.
	authorityMu sync.Mutex
	// Holds a token while the cell key is rotated.
	rotating chan struct{}
	// The last rotation and its answer. Only whoever has the token looks.
	rotated struct {
		id   string
		resp *borgrpc.RotateCellKeyResponse
	}
	// Writes of files that are under way, and watches of files.
	fileWriters, fileWatchers crowd
	// Who is served when too many ask, and long streams.
	admit   *admitter
	streams crowd
	// Watches of the cell, and those who watch.
	watches  watches
	watchers crowd
	// Users read only what is their own or shared with them.
	private atomic.Bool
	// For status pages and metrics.
	looked
	standingMu sync.Mutex
	// Guarded by standingMu.
	standing standing
	// Closed when Run ends, so that long streams end.
	stopping chan struct{}
	stopOnce sync.Once
}

// New returns a master over cfg.Log, which must not be started yet.
func New(cfg Config) (*Master, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if cfg.MonotonicNs == nil {
		start := time.Now()
		cfg.MonotonicNs = func() int64 { return int64(time.Since(start)) + 1 }
	}
	m := &Master{cfg: cfg, conns: newConns(cfg.Identity, cfg.MonotonicNs), streamConns: newStreamConns(), saving: make(chan struct{}, 1), rotating: make(chan struct{}, 1), looked: newLooked(), watches: newWatches(cfg.Watch), stopping: make(chan struct{})}
	cfg.Identity.Saw = m.conns.saw
	cfg.Log.View(func(c *cell.Cell) {
		m.cellID = c.ID()
		m.notePolicy(c)
		m.watches.restart(c)
	})
	m.gate = &Gate{FirstAdmin: cfg.FirstAdmin, Removed: cfg.Members.Removed, Open: cfg.Simulated != nil}
	cfg.Admission.Replica = cfg.Replica
	m.admit = newAdmitter(cfg.Admission, cfg.MonotonicNs)
	var err error
	if m.asker, err = metric.New(cfg.MetricGates); err != nil {
		return nil, fmt.Errorf("servers that gates of updates may name: %w", err)
	}
	m.duty = newDutyLoop(m)
	m.reclaim = &reclaimLoop{m: m, core: reclaim.New(cfg.Reservations)}
	m.shard = linkshard.New(linkshard.Config{
		Core:     linkshard.CoreConfig{Replica: cfg.Replica, PeriodNs: cmp.Or(int64(cfg.PollPeriod), int64(2*time.Second))},
		CellName: cfg.CellName, CellID: m.cellID,
		Format: min(cmp.Or(cfg.MaxFormat, cell.BuildFormat), cell.BuildFormat),
		Log:    shardView{m}, Borglets: shardView{m}, Master: shardView{m},
		Heard: m.heardUsage, Left: m.leftMachine, Belief: m.belief, NowNs: cfg.MonotonicNs, Logger: cfg.Logger,
	})
	if cfg.Audit != nil {
		cfg.Audit.KnowAdmins(m.hasAdmin)
	}
	cfg.Log.Subscribe((*ear)(m))
	return m, nil
}

// Door is what a server that serves this master must be made with.
func (m *Master) Door() door.Config {
	return door.Config{Identity: m.cfg.Identity, Revoked: m.revoked, Admit: m.admitCall, Turn: m.decodeTurn, Answer: m.answer, Logger: m.cfg.Logger, HostPaths: m.cfg.HostPaths, Refused: m.callRefused, Called: func(c door.Call) { m.calls.Ended(c.Method, c.Stream, c.Code, c.Took) }}
}

// RegisterServices makes s serve this master. s must have been made with Door.
func (m *Master) RegisterServices(s grpc.ServiceRegistrar) {
	borgrpc.RegisterMasterServiceServer(s, &masterAPI{m: m})
	borgrpc.RegisterMemberServiceServer(s, &memberAPI{m: m})
	borgrpc.RegisterSchedulingServiceServer(s, &schedulingAPI{m: m})
	borgrpc.RegisterReplicaServiceServer(s, &replicaAPI{m: m})
	borgrpc.RegisterCheckpointServiceServer(s, &checkpointAPI{m: m})
	borgrpc.RegisterRestoreServiceServer(s, &restoreAPI{m: m})
	borgrpc.RegisterIdentityServiceServer(s, &identityAPI{m: m})
	borgrpc.RegisterAuthorityServiceServer(s, &authorityAPI{m: m})
	borgrpc.RegisterAuditServiceServer(s, &auditAPI{m: m})
	borgrpc.RegisterHistoryServiceServer(s, &historyAPI{m: m})
	borgrpc.RegisterSecretServiceServer(s, &secretAPI{m: m})
	borgrpc.RegisterFileServiceServer(s, &fileAPI{m: m})
	borgrpc.RegisterNameServiceServer(s, &nameAPI{m: m})
	borgrpc.RegisterWatchServiceServer(s, &watchAPI{m: m})
	borgrpc.RegisterExecServiceServer(s, &execAPI{m: m})
}

// Run does what this replica does by itself, until ctx ends. Then long streams
// end too, so that the server can be stopped.
func (m *Master) Run(ctx context.Context) error {
	var running sync.WaitGroup
	defer m.conns.close()
	defer m.streamConns.close()
	defer m.admit.close()
	defer m.stopOnce.Do(func() { close(m.stopping) })
	defer running.Wait()
	// The elected master's duties.
	running.Go(func() { m.duty.Run(ctx) })
	running.Go(func() { (&cronLoop{m: m}).Run(ctx) })
	if m.cfg.Simulated == nil {
		running.Go(func() { (&gateLoop{m: m, asker: m.asker}).Run(ctx) })
	}
	running.Go(func() { m.reclaim.Run(ctx) })
	if m.cfg.Authority != nil {
		running.Go(func() { m.watchAuthority(ctx) })
	}
	if m.cfg.Audit != nil {
		running.Go(func() { m.cfg.Audit.Run(ctx) })
	}
	if m.cfg.Journal != nil {
		running.Go(func() { m.cfg.Journal.Run(ctx, m.cfg.Log) })
		running.Go(func() { m.cfg.Journal.Thin(ctx) })
		running.Go(func() { m.keepUsage(ctx) })
	}
	// The scheduler process, while elected.
	if m.cfg.Scheduler != nil {
		running.Go(func() { m.superviseScheduler(ctx) })
	}
	return m.shard.Run(ctx)
}

// PollSoon has a machine polled at once, for who knows that it has news.
func (m *Master) PollSoon(machine string) { m.shard.Changed(machine) }

// PollsAtRest reports whether the link shard has acted on all that it was told, and waits
// for no machine.
func (m *Master) PollsAtRest() bool { return m.shard.Idle() }

func (m *Master) schedulerConnected() bool {
	if m.cfg.Log.State().Ready {
		return m.followers.Load() > 0
	}
	return m.shard.Stats().SchedulerConnected
}

// ear is the Master as a Listener of its log: it notes and wakes, nothing else.
type ear Master

// Applied notes which machines are concerned, and keeps the events and who did
// what.
func (e *ear) Applied(entry CommittedEntry, results []*borgpb.Result, events []cell.Event) {
	var asked []*borgpb.AuditRecord
	switch {
	case e.cfg.Audit != nil:
		asked = e.cfg.Audit.Log.Applied(entry.Index, entry.Data, results)
	case e.cfg.Journal != nil:
		asked = audit.Records(entry.Index, entry.Data, results)
	}
	if e.cfg.Journal != nil {
		e.cfg.Journal.Applied(entry.Index, entry.Data, asked, events)
	}
	for i := range events {
		if ev := &events[i]; ev.Machine != "" && ev.ObjectKind == borgpb.ObjectKind_OBJECT_KIND_MACHINE {
			e.duty.machineChanged(ev.Machine)
		}
	}
	concerned := linkshard.Concerned(events)
	e.cfg.Log.View(func(c *cell.Cell) {
		concerned = append(concerned, c.Asked()...)
		(*Master)(e).notePolicy(c)
		e.watches.applied(c)
	})
	if len(concerned) > 0 {
		e.shard.Changed(concerned...)
	}
	e.events.add(events)
	e.applied.Fire()
}

// StateChanged wakes whoever waits for an election.
func (e *ear) StateChanged(s LogState) {
	e.cfg.Logger.Info("log state changed", "elected", s.Elected, "term", s.Term, "ready", s.Ready)
	(*Master)(e).noteState(s)
	e.stateChanged.Fire()
	e.shard.StateChanged()
}

// Restored begins anew with another cell.
func (e *ear) Restored(index uint64) {
	if e.cfg.Audit != nil {
		e.cfg.Audit.Log.Restored(index)
	}
	if e.cfg.Journal != nil {
		e.cfg.Journal.Restored(index)
	}
	e.events.restart(index)
	e.cfg.Log.View(func(c *cell.Cell) {
		(*Master)(e).notePolicy(c)
		e.watches.restart(c)
	})
	e.shard.Reload()
	e.applied.Fire()
	e.stateChanged.Fire()
}
