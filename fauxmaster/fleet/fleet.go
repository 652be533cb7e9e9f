package fleet

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/netip"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"borg/borglet"
	"borg/fauxmaster"
	"borg/identity"
	"borg/proto/borgrpc"
	"borg/proto/door"
)

const (
	// MaxMachines bounds a fleet, in all its processes.
	MaxMachines = 50_000
	// The machines are spread over so many worlds, each with a lock and a timer.
	worlds = 16
)

// Config says what a fleet is of.
type Config struct {
	// The machines First to First+Machines-1, of those of all processes; First 0: 1.
	First, Machines int
	// Port that all addresses have.
	Port uint16
	// Name of machine k, which counts from 1.
	Name func(k int) string
	// Identity makes the certificate of a machine, and renews it. It is called for
	// several at once.
	Identity func(name string) (*identity.Source, error)
	// The same seed draws the same machines and, in the same order of orders, the
	// same lives of tasks.
	Seed uint64
	Life Life
	// ExclusiveCores is how many cores of a machine tasks may have alone; see OfferCores.
	ExclusiveCores int
	// Build is what the borglets say they are.
	Build string
	// Nil: silent.
	Logger *slog.Logger
}

// Fleet is pretended machines, at work while Serve runs.
type Fleet struct {
	borgrpc.UnimplementedBorgletServiceServer
	cfg    Config
	worlds []*fauxmaster.World
	// Machine k is at k-First.
	machines []*machine
	// Time between two polls of a machine, counted in tenths of a second; the last
	// one has all that is longer.
	intervals [maxIntervalTenths + 1]atomic.Int64
	// Processes of tasks that have begun, and that were told to stop, since the fleet
	// began.
	begun, stopped atomic.Int64
	reach          *reach
	// What all tasks use of their limits, in per cent; 0: as Life says.
	using atomic.Int64
}

// New makes the machines and their certificates.
func New(cfg Config) (*Fleet, error) {
	cfg.First = max(cfg.First, 1)
	if cfg.Machines < 1 || cfg.First+cfg.Machines-1 > MaxMachines {
		return nil, fmt.Errorf("a fleet of the machines %d to %d: want 1 to %d", cfg.First, cfg.First+cfg.Machines-1, MaxMachines)
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	f := &Fleet{cfg: cfg, machines: make([]*machine, cfg.Machines), reach: newReach()}
	for range worlds {
		f.worlds = append(f.worlds, fauxmaster.NewWorld(fauxmaster.Speed{Factor: 1}))
	}
	began := time.Now()
	var making errgroup.Group
	making.SetLimit(runtime.GOMAXPROCS(0))
	// Time in a world begins now; what is drawn must not depend on when that is.
	wallNs := began.UnixNano()
	for k := cfg.First; k < cfg.First+cfg.Machines; k++ {
		making.Go(func() error {
			source, err := cfg.Identity(cfg.Name(k))
			if err != nil {
				return fmt.Errorf("machine %s: %w", cfg.Name(k), err)
			}
			f.machines[k-cfg.First] = newMachine(f, k, source, wallNs, rand.New(rand.NewPCG(cfg.Seed, uint64(k))))
			return nil
		})
	}
	if err := making.Wait(); err != nil {
		return nil, err
	}
	cfg.Logger.Info("pretended machines are ready", "machines", cfg.Machines, "took", time.Since(began).Round(time.Millisecond))
	return f, nil
}

// base is the address before that of machine 1.
var base = netip.AddrFrom4([4]byte{127, 64, 0, 0})

// Addr is the address of machine k on a port.
func Addr(k int, port uint16) netip.AddrPort {
	b := base.As4()
	b[1], b[2], b[3] = b[1]+byte(k>>16), byte(k>>8), byte(k)
	return netip.AddrPortFrom(netip.AddrFrom4(b), port)
}

// at is the machine at an address of ours, or nil.
func (f *Fleet) at(local net.Addr) *machine {
	tcp, ok := local.(*net.TCPAddr)
	if !ok {
		return nil
	}
	addr := tcp.AddrPort().Addr().Unmap()
	if !addr.Is4() {
		return nil
	}
	b, first := addr.As4(), base.As4()
	if b[0] != first[0] || b[1] < first[1] {
		return nil
	}
	k := int(b[1]-first[1])<<16 | int(b[2])<<8 | int(b[3])
	if k < f.cfg.First || k >= f.cfg.First+len(f.machines) {
		return nil
	}
	return f.machines[k-f.cfg.First]
}

// Listen opens the one listener of all machines.
func Listen(port uint16) (net.Listener, error) {
	var config net.ListenConfig
	// Such sockets take no filters.
	config.SetMultipathTCP(false)
	l, err := config.Listen(context.Background(), "tcp4", fmt.Sprintf("0.0.0.0:%d", port))
	if err != nil {
		return nil, err
	}
	return &ownListener{l}, nil
}

// ownListener lets in who is on this machine, and comes to an address that nobody
// outside can reach.
type ownListener struct{ net.Listener }

func (l *ownListener) Accept() (net.Conn, error) {
	for {
		conn, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		if tcp, ok := conn.LocalAddr().(*net.TCPAddr); ok && tcp.IP.IsLoopback() {
			return conn, nil
		}
		conn.Close()
	}
}

// reachedListener gives each machine its connections.
type reachedListener struct {
	net.Listener
	fleet *Fleet
}

func (l *reachedListener) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	if m := l.fleet.at(conn.LocalAddr()); m != nil {
		return l.fleet.reach.wire(conn, m.k), nil
	}
	return conn, nil
}

// Serve answers masters until ctx ends.
func (f *Fleet) Serve(ctx context.Context, l net.Listener) error {
	server := door.NewServer(door.Config{
		Identity: f.machines[0].source, Logger: f.cfg.Logger,
		IdentityAt: func(local net.Addr) *identity.Source {
			if m := f.at(local); m != nil {
				return m.source
			}
			return nil
		},
	})
	borgrpc.RegisterBorgletServiceServer(server, f)
	f.reach.listens(l)
	group, ctx := errgroup.WithContext(ctx)
	for _, w := range f.worlds {
		group.Go(func() error {
			w.Run(ctx)
			return nil
		})
	}
	var renewing sync.WaitGroup
	for _, m := range f.machines {
		renewing.Go(func() { m.source.Run(ctx) })
	}
	group.Go(func() error {
		if err := server.Serve(&reachedListener{l, f}); err != nil && !errors.Is(err, grpc.ErrServerStopped) {
			return fmt.Errorf("serve: %w", err)
		}
		return nil
	})
	group.Go(func() error {
		<-ctx.Done()
		server.Stop()
		return nil
	})
	err := group.Wait()
	renewing.Wait()
	return err
}

// called is the machine that a call was made to.
func (f *Fleet) called(ctx context.Context) (*machine, error) {
	p, ok := peer.FromContext(ctx)
	if ok {
		if m := f.at(p.LocalAddr); m != nil {
			return m, nil
		}
	}
	return nil, status.Error(codes.NotFound, "no machine is at this address")
}

// Describe says what machine is at the address that was called.
func (f *Fleet) Describe(ctx context.Context, _ *borgrpc.DescribeRequest) (*borgrpc.DescribeResponse, error) {
	m, err := f.called(ctx)
	if err != nil {
		return nil, err
	}
	return m.describe(), nil
}

// Poll gives a machine its orders, and answers what it has.
func (f *Fleet) Poll(ctx context.Context, req *borgrpc.PollRequest) (*borgrpc.PollResponse, error) {
	m, err := f.called(ctx)
	if err != nil {
		return nil, err
	}
	return f.poll(ctx, m, req)
}

// Polls gives a machine its orders again and again.
func (f *Fleet) Polls(stream borgrpc.BorgletService_PollsServer) error {
	m, err := f.called(stream.Context())
	if err != nil {
		return err
	}
	return borglet.AnswerPolls(stream, func(req *borgrpc.PollRequest) (*borgrpc.PollResponse, error) {
		return f.poll(stream.Context(), m, req)
	})
}

func (f *Fleet) poll(ctx context.Context, m *machine, req *borgrpc.PollRequest) (*borgrpc.PollResponse, error) {
	if p, ok := peer.FromContext(ctx); ok {
		e := endOf(m.k, p.Addr)
		f.reach.calls(e, req.GetReplica())
		// The first poll on a connection says whose it is: of one that is cut off it is
		// not heard either.
		if !f.reach.through(e, ctx.Done()) {
			return nil, status.FromContextError(ctx.Err()).Err()
		}
	}
	return m.poll(req)
}

// ReadLog has nothing to read.
func (f *Fleet) ReadLog(*borgrpc.ReadLogRequest, borgrpc.BorgletService_ReadLogServer) error {
	return status.Error(codes.FailedPrecondition, "the machines of this cell are pretended: their tasks have no processes and write nothing")
}
