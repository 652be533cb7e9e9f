package replica

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"

	"borg/borgmaster"
	"borg/borgmaster/cell"
	"borg/checkpoint"
	"borg/identity"
	"borg/proto/borgpb"
)

// Config says what a replica is started with.
type Config struct {
	// Store says where its directory is. Store.Logger is set by Open.
	Store checkpoint.Config
	// Want is compared with the directory's identity; what is zero in it is
	// not. Nil: any directory will do.
	Want *borgpb.ReplicaIdentity
	// Identity is who this replica is to the others; the gRPC transport needs it.
	Identity *identity.Source
	// Transport makes the transport; nil: gRPC.
	Transport func(in Inbound, id *borgpb.ReplicaIdentity, log *slog.Logger) Transport
	// Logger; nil: silent.
	Logger *slog.Logger
	// Tick is the length of a tick; zero: 20 ms.
	Tick time.Duration
	// ElectionTicks without a word from the elected replica start an election;
	// zero: 10.
	ElectionTicks int
	// StallTicks is how long the disk of the elected replica may hang before
	// it hands over; zero: 25.
	StallTicks int
	// FlushInterval and FlushRecords bound how far the records on disk may be
	// behind; zero: 500 ms and 64,000.
	FlushInterval time.Duration
	FlushRecords  int
	// MonotonicNs is time since any moment that does not change; nil: since
	// Open.
	MonotonicNs func() int64
	// WallNs is the wall clock, nanoseconds since 1970; nil: the machine's.
	WallNs func() int64
	// Archive is where the past is kept; nil: it is not.
	Archive *ArchiveConfig
}

func (c *Config) setDefaults() {
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	c.Store.Logger = c.Logger
	if c.Store.WriteShare == 0 {
		c.Store.WriteShare = 0.25
	}
	if c.Tick == 0 {
		c.Tick = 20 * time.Millisecond
	}
	if c.ElectionTicks == 0 {
		c.ElectionTicks = 10
	}
	if c.StallTicks == 0 {
		c.StallTicks = 25
	}
	if c.FlushInterval == 0 {
		c.FlushInterval = 500 * time.Millisecond
	}
	if c.FlushRecords == 0 {
		c.FlushRecords = 64_000
	}
	if c.MonotonicNs == nil {
		start := time.Now()
		c.MonotonicNs = func() int64 { return int64(time.Since(start)) }
	}
	if c.WallNs == nil {
		c.WallNs = func() int64 { return time.Now().UnixNano() }
	}
}

// ErrRemoved is returned by Run of a replica that was removed from its cell.
var ErrRemoved = errors.New("this replica was removed from the cell; to have it back, give it a new number with `borgmaster init --join`")

// ErrIncarnation is returned by Run of a replica whose directory is not the one
// that the cell knows: what it had promised to the others is lost, so they do
// not let it in.
var ErrIncarnation = errors.New("the cell knows this replica with another directory, and its promises were in that one; remove this replica from the cell and join with a new number by `borgmaster init --join`")

// Replica is one replica at work. It implements Log, Members, MemberChanges
// and Checkpoints of package borgmaster.
type Replica struct {
	cfg       Config
	log       *slog.Logger
	identity  *borgpb.ReplicaIdentity
	store     *checkpoint.Store
	transport Transport
	// Nil: the past is not kept.
	archive *archiver
	// Set by Subscribe before Run.
	listeners []borgmaster.Listener

	// Owned by the raft goroutine.
	core *Core
	// Appends handed out and not yet durable. Owned by the raft goroutine.
	appending int
	// Monotonic time at which this replica was elected. Owned by the raft
	// goroutine.
	electedAtNs int64
	// The read that raft is asked for; nil: none. Owned by the raft goroutine.
	asked *readBatch
	// Owned by the raft goroutine.
	lastRead, lastChange uint64

	inbox    *mailbox[input]
	toAppend *mailbox[appendItem]
	toApply  *mailbox[applyItem]

	cellMu sync.RWMutex
	// Guarded by cellMu.
	cell *cell.Cell

	mu sync.Mutex
	// Guarded by mu, as is all that follows.
	state   borgmaster.LogState
	members Membership
	leading bool
	stopped bool
	batches Batches[*proposal]
	reads   []*reader
	waiting []*readBatch
	// Index up to which the listeners have heard.
	told    uint64
	changes map[uint64]chan error
	base    termBase
	// Closed when the first entry of another term is applied, and made anew.
	newTerm   chan struct{}
	recent    recentEntries
	holds     Holds
	receiving bool
	seen      map[uint64]uint64
	refused   error
	// Closed when this replica is no longer elected, or found no heir; nil:
	// nobody waits for it.
	lost chan struct{}

	applied atomic.Uint64
	commit  atomic.Uint64
	timings timings
	// For who looks: appends under way, and how the others are doing. Written by the
	// raft goroutine.
	appends atomic.Int64
	peers   atomic.Pointer[[]borgmaster.Peer]
	// done is closed when Run has ended.
	done    chan struct{}
	senders sync.WaitGroup
}

// termBase is the cell time at the first entry of a term, to which its master
// adds the time since it was elected.
type termBase struct {
	term   uint64
	cellNs int64
}

var (
	_ borgmaster.Log           = (*Replica)(nil)
	_ borgmaster.Members       = (*Replica)(nil)
	_ borgmaster.Checkpoints   = (*Replica)(nil)
	_ borgmaster.MemberChanges = (*Replica)(nil)
	_ borgmaster.Past          = (*Replica)(nil)
	_ Inbound                  = (*Replica)(nil)
)

// firstIndex is where the log of a new cell begins: entries up to it are as if
// compacted away, so that a replica that joins is always sent a checkpoint,
// and the members with it.
const firstIndex, firstTerm = 1, 1

// Init makes the directory of a replica: of a new cell whose members are
// id.Members, or, with id.Join, of one that joins a cell that is there.
func Init(store checkpoint.Config, id *borgpb.ReplicaIdentity) error {
	h, err := firstHeader(id)
	if err != nil {
		return err
	}
	return checkpoint.Create(store, id, h)
}

// firstHeader is what the log of a replica begins with, and gives the identity an
// incarnation if it has none.
func firstHeader(id *borgpb.ReplicaIdentity) (*borgpb.CheckpointHeader, error) {
	if id.GetReplica() == 0 || id.GetCellId() == "" || id.GetCellName() == "" {
		return nil, errors.New("a replica needs a number from 1, and its cell's name and id")
	}
	if id.GetIncarnation() == 0 {
		var b [8]byte
		if _, err := rand.Read(b[:]); err != nil {
			return nil, fmt.Errorf("make an incarnation: %w", err)
		}
		id.Incarnation = binary.BigEndian.Uint64(b[:])>>1 | 1
	}
	h := &borgpb.CheckpointHeader{CellName: id.GetCellName(), CellId: id.GetCellId(), Epoch: id.GetEpoch()}
	if !id.GetJoin() {
		h.Index, h.Term = firstIndex, firstTerm
		found := false
		for _, m := range id.GetMembers() {
			if m.GetId() == 0 || m.GetAddr() == "" {
				return nil, fmt.Errorf("member %d needs a number from 1 and an address", m.GetId())
			}
			found = found || m.GetId() == id.GetReplica()
			h.Voters = append(h.Voters, m.GetId())
			h.Members = append(h.Members, &borgpb.Member{Id: m.GetId(), Addr: m.GetAddr()})
		}
		if !found {
			return nil, fmt.Errorf("replica %d is not among the members of the new cell; to join a cell that is there use `borgmaster init --join`", id.GetReplica())
		}
	}
	return h, nil
}

// Open opens a directory made by Init and loads the cell from it. Run must
// follow, or Close.
func Open(cfg Config) (*Replica, error) {
	cfg.setDefaults()
	id, err := checkpoint.ReadIdentity(cfg.Store.FS, cfg.Store.Dir)
	if err != nil {
		return nil, err
	}
	if err := checkpoint.CheckIdentity(cfg.Store.Dir, id, cfg.Want); err != nil {
		return nil, err
	}
	store, err := checkpoint.Open(cfg.Store, id)
	if err != nil {
		return nil, err
	}
	r := &Replica{
		cfg:      cfg,
		log:      cfg.Logger.With("cell", id.GetCellName(), "replica", id.GetReplica()),
		identity: id,
		store:    store,
		inbox:    newMailbox[input](),
		toAppend: newMailbox[appendItem](),
		toApply:  newMailbox[applyItem](),
		changes:  make(map[uint64]chan error),
		seen:     map[uint64]uint64{id.GetReplica(): id.GetIncarnation()},
		done:     make(chan struct{}),
		newTerm:  make(chan struct{}),
		timings:  newTimings(),
	}
	if err := r.open(); err != nil {
		return nil, errors.Join(err, store.Close())
	}
	if cfg.Archive != nil {
		r.archive = newArchiver(r, *cfg.Archive)
	}
	return r, nil
}

func (r *Replica) open() (err error) {
	defer r.catchRaft(&err)
	c, err := r.loadCell()
	if err != nil {
		return err
	}
	r.cell = c
	h := r.store.Header()
	var nonce [8]byte
	if _, err := rand.Read(nonce[:]); err != nil {
		return fmt.Errorf("make a nonce: %w", err)
	}
	r.core, err = NewCore(CoreConfig{
		ID:             r.identity.GetReplica(),
		Nonce:          binary.BigEndian.Uint64(nonce[:]),
		Storage:        r.store,
		Header:         h,
		ElectionTicks:  r.cfg.ElectionTicks,
		HeartbeatTicks: 1,
		StallTicks:     r.cfg.StallTicks,
		Logger:         raftLogger{r.log},
	})
	if err != nil {
		return err
	}
	r.members = membershipOf(h)
	r.applied.Store(h.GetIndex())
	r.told = h.GetIndex()
	r.setState(r.core.State())
	newTransport := r.cfg.Transport
	if newTransport == nil && r.cfg.Identity == nil {
		return errors.New("a replica that speaks to others needs a certificate")
	}
	if newTransport == nil {
		newTransport = func(in Inbound, id *borgpb.ReplicaIdentity, log *slog.Logger) Transport {
			return newGRPCTransport(in, id, r.cfg.Identity, log)
		}
	}
	r.transport = newTransport(r, r.identity, r.log)
	r.tellTransport()
	return nil
}

// loadCell makes the cell of the records on disk.
func (r *Replica) loadCell() (*cell.Cell, error) {
	c, err := LoadCell(r.store)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", r.cfg.Store.Dir, err)
	}
	return c, nil
}

// RegisterServices registers what other replicas call.
func (r *Replica) RegisterServices(s grpc.ServiceRegistrar) {
	if t, ok := r.transport.(*grpcTransport); ok {
		t.register(s)
	}
}

// Identity says whose replica this is. It must not be changed.
func (r *Replica) Identity() *borgpb.ReplicaIdentity { return r.identity }

// Subscribe implements borgmaster.Log.
func (r *Replica) Subscribe(l borgmaster.Listener) { r.listeners = append(r.listeners, l) }

// Close lets go of a replica that was never run.
func (r *Replica) Close() error { return r.store.Close() }

// Run works until ctx ends or something happens that this replica must not go
// on after: a disk that does not keep what is written, a cell that differs
// from that of the others, its removal. It brings the records on disk up to
// date when it ends in order.
func (r *Replica) Run(ctx context.Context) error {
	work, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	g, gctx := errgroup.WithContext(work)
	g.Go(func() error {
		defer stop()
		select {
		case <-ctx.Done():
			r.handOver(gctx)
		case <-gctx.Done():
		}
		return nil
	})
	g.Go(func() error { return r.runRaft(gctx) })
	g.Go(func() error { return r.runAppend(gctx) })
	g.Go(func() error { return r.runApply(gctx) })
	g.Go(func() error { return r.transport.Run(gctx) })
	if r.archive != nil {
		g.Go(func() error { return r.archive.run(gctx) })
		g.Go(func() error { return r.archive.pushes.run(gctx) })
	}
	err := g.Wait()
	r.stop()
	// Whoever sends or receives a checkpoint holds on to the database.
	r.senders.Wait()
	if err == nil {
		err = r.flush()
	}
	return errors.Join(err, r.store.Close())
}

// handOverTimeout bounds how long an elected replica that stops looks for
// another.
const handOverTimeout = 2 * time.Second

// handOver makes another replica the elected one, if this one is, so that the
// cell need not first miss it.
func (r *Replica) handOver(ctx context.Context) {
	r.mu.Lock()
	if !r.leading {
		r.mu.Unlock()
		return
	}
	lost := make(chan struct{})
	r.lost = lost
	r.mu.Unlock()
	timer := time.NewTimer(handOverTimeout)
	defer timer.Stop()
	// The chosen one may be stopping as well: choose again.
	again := time.NewTicker(time.Duration(r.cfg.ElectionTicks) * r.cfg.Tick / 2)
	defer again.Stop()
	for {
		r.inbox.put(input{event: Transfer{}})
		select {
		case <-lost:
			return
		case <-timer.C:
			return
		case <-ctx.Done():
			return
		case <-again.C:
		}
	}
}

// endHandOver lets a replica that stops go on with it. r.mu is held.
func (r *Replica) endHandOver() {
	if r.lost != nil {
		close(r.lost)
		r.lost = nil
	}
}

// stop answers everybody who still waits.
func (r *Replica) stop() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.stopped = true
	r.failProposals(borgmaster.ErrStopped)
	r.failChanges(borgmaster.ErrStopped)
	close(r.done)
}

// fatal wraps what ends a replica.
func (r *Replica) fatal(what string, err error) error {
	return fmt.Errorf("replica %d cannot go on: %s: %w", r.identity.GetReplica(), what, err)
}
