package fauxmaster

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"sync"
	"time"

	"borg/borgmaster"
	"borg/borgmaster/audit"
	"borg/borgmaster/cell"
	"borg/borgmaster/client"
	"borg/borgmaster/memlog"
	"borg/identity"
	"borg/proto/borgpb"
	"borg/proto/borgrpc"
	"borg/proto/door"
	"borg/scheduler"
	"borg/scheduler/process"
)

// replicaID is that of the one master.
const replicaID = 1

// Config says what is served, and how.
type Config struct {
	// Picture is what the cell begins with. It belongs to the server from then on.
	Picture *Picture
	// Listen is host:port of the door; empty: any free port of this machine alone.
	Listen string
	// HTTP is host:port of the status page and the metrics; empty: they are not shown.
	HTTP string
	// Dir gets what belongs to the server while it runs: the file that names the
	// cell, a certificate, sockets, the audit. It must not be there, and is taken
	// away at the end. Empty: a new one among temporary files.
	Dir string
	// User is who opens it. He may do everything in it.
	User string
	// Speed of time at the beginning.
	Speed Speed
	// BatchLasts is how long the process of a batch task runs; 0: for ever, as
	// nothing in a checkpoint tells.
	BatchLasts time.Duration
	// Search says how the scheduler looks for places.
	Search scheduler.Config
	Build  string
	// Nil: silent.
	Logger *slog.Logger
}

// Server is the production master over a picture.
type Server struct {
	cfg      Config
	world    *World
	machines *machines
	log      *pastLog
	group    *memlog.Group
	master   *borgmaster.Master
	self     *identity.Source
	trail    *audit.Trail
	grpc     *door.Server
	listener net.Listener
	// Nil: no pages are shown.
	pages *door.HTTPListener
}

// New makes a server ready. Run serves, and takes everything away again; so does
// Close, where Run was not called.
func New(cfg Config) (s *Server, err error) {
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	if cfg.Listen == "" {
		cfg.Listen = "127.0.0.1:0"
	}
	if cfg.Dir == "" {
		cfg.Dir, err = os.MkdirTemp("", "fauxmaster-")
	} else {
		err = os.Mkdir(cfg.Dir, 0o700)
	}
	if err != nil {
		return nil, fmt.Errorf("make a directory for the simulated cell: %w", err)
	}
	s = &Server{cfg: cfg, world: NewWorld(cfg.Speed)}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.Close())
			s = nil
		}
	}()
	if s.listener, err = door.Listen(cfg.Listen); err != nil {
		return s, fmt.Errorf("listen on %s: %w", cfg.Listen, err)
	}
	if cfg.HTTP != "" {
		if s.pages, err = door.ListenHTTP(cfg.HTTP); err != nil {
			return s, fmt.Errorf("show the status page on %s: %w", cfg.HTTP, err)
		}
	}
	wallNs := wallOf(cfg.Picture.Cell)
	now := func() time.Time { return time.Unix(0, wallNs+s.world.NowNs()) }
	if s.trail, err = audit.Open(audit.Config{Dir: filepath.Join(cfg.Dir, "audit"), Replica: replicaID, Logger: cfg.Logger, Now: now}); err != nil {
		return s, err
	}
	return s, s.assemble()
}

// assemble puts the master over the picture.
func (s *Server) assemble() error {
	h, c := s.cfg.Picture.Header, s.cfg.Picture.Cell
	cellNs, wallNs := c.TimeNs(), wallOf(c)
	addr := s.listener.Addr().String()
	var err error
	s.group, err = memlog.NewGroup(memlog.Config{
		Load: func() (*cell.Cell, error) { return c, nil }, Addrs: []string{addr},
		Clock: func() (int64, int64) {
			ns := s.world.NowNs()
			return cellNs + ns, wallNs + ns
		},
	})
	if err != nil {
		return err
	}
	s.log = &pastLog{Log: s.group.Replica(replicaID), world: s.world, wallNs: wallNs}
	s.log.reports.tell = func(r *borgpb.Reports) {
		_, _ = s.log.Log.Propose(context.Background(), &borgpb.Op{Principal: asMaster, Op: &borgpb.Op_Reports{Reports: r}})
	}
	s.log.idle = func() bool { return s.master.PollsAtRest() }
	s.log.reports.more = func() bool { return s.world.Speed().Max && !s.machines.told() }
	s.log.Subscribe(s.log)
	s.machines = newMachines(s.world, c, h.GetCellName(), s.cfg.BatchLasts, func(name string) { s.master.PollSoon(name) })
	// An authority of its own: what it certifies is worth nothing to the real
	// cell, nor the other way round.
	authority, err := identity.NewAuthority(h.GetCellName(), time.Now(), rand.Reader)
	if err != nil {
		return err
	}
	source := func(role identity.Role, id string) (*identity.Source, error) {
		return authority.Source(identity.Name{Cell: h.GetCellName(), Role: role, ID: id}, time.Now(), identity.LifeOf(role))
	}
	if s.self, err = source(identity.Master, fmt.Sprint(replicaID)); err != nil {
		return err
	}
	searcher, err := source(identity.Scheduler, fmt.Sprint(replicaID))
	if err != nil {
		return err
	}
	follow := process.Config{Identity: searcher, Build: s.cfg.Build, Search: s.cfg.Search, Logger: s.cfg.Logger, Settled: s.log.settledAt.Store}
	var sockets []string
	if s.pages != nil {
		follow.Pages, follow.Notice = filepath.Join(s.cfg.Dir, "scheduler-pages.sock"), s.notice
		sockets = []string{follow.Pages}
	}
	s.master, err = borgmaster.New(borgmaster.Config{
		CellName: h.GetCellName(), Replica: replicaID, Addr: addr, Log: s.log, Members: s.log, Checkpoints: savedCell{s}, Audit: s.trail,
		Scheduler:       searchHere{follow},
		SchedulerSocket: filepath.Join(s.cfg.Dir, "scheduler.sock"), SchedulerPages: sockets,
		Identity: s.self, Authority: authority, FirstAdmin: s.cfg.User,
		Borglets: s.machines, Simulated: s.simulated,
		// By the rules of then.
		MaxFormat: c.Format(),
		Build:     s.cfg.Build, Logger: s.cfg.Logger,
	})
	if err != nil {
		return err
	}
	s.grpc = door.NewServer(s.master.Door())
	s.master.RegisterServices(s.grpc)
	return s.introduce(authority)
}

// searchHere is the scheduler process, in this one.
type searchHere struct{ cfg process.Config }

func (p searchHere) Run(ctx context.Context, addr, socket string) error {
	p.cfg.Master, p.cfg.Socket = addr, socket
	return process.Run(ctx, p.cfg)
}

// introduce writes down who the user is to the cell, and where it is.
func (s *Server) introduce(authority *identity.Authority) error {
	name := identity.Name{Cell: authority.Cell(), Role: identity.User, ID: s.cfg.User}
	credential, err := authority.Certify(name, time.Now(), identity.UserLife)
	if err != nil {
		return err
	}
	if err := identity.WriteCredential(filepath.Join(s.cfg.Dir, "identity.pem"), credential); err != nil {
		return err
	}
	h := s.cfg.Picture.Header
	return client.WriteCellFile(s.CellFile(), &client.CellFile{
		Cell: h.GetCellName(), CellID: h.GetCellId(), Masters: []string{s.listener.Addr().String()}, Identity: "identity.pem",
		Simulated: "simulated, " + s.cfg.Picture.AsOf(),
	})
}

// CellFile is the file by which borgcfg finds the cell.
func (s *Server) CellFile() string { return filepath.Join(s.cfg.Dir, "cell.yaml") }

// Addr is where the master answers.
func (s *Server) Addr() string { return s.listener.Addr().String() }

// World is the cell's time.
func (s *Server) World() *World { return s.world }

// WallNow is what the cell's clock shows.
func (s *Server) WallNow() time.Time { return time.Unix(0, s.log.wallNs+s.world.NowNs()).UTC() }

func (s *Server) simulated() *borgrpc.Simulated {
	h := s.cfg.Picture.Header
	return &borgrpc.Simulated{AsOfIndex: h.GetIndex(), AsOfWallNs: s.log.wallNs, Speed: s.world.Speed().String()}
}

// notice stands above all pages of the cell.
func (s *Server) notice() string { return s.master.Notice() }

// Pages is where the status page is; empty: it is not shown.
func (s *Server) Pages() string {
	if s.pages == nil {
		return ""
	}
	return s.pages.URL()
}

// AsOf says in words which moment a picture is of.
func (p *Picture) AsOf() string {
	return fmt.Sprintf("as of %s (index %d)", time.Unix(0, p.Header.GetWallTimeNs()).UTC().Format(time.RFC3339), p.Header.GetIndex())
}

// Run serves until ctx ends, and takes away what belonged to the server.
func (s *Server) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var running sync.WaitGroup
	var served, shown error
	if s.pages != nil {
		running.Go(func() {
			defer cancel()
			shown = s.pages.ServeHTTP(ctx, s.master.Door(), s.master.Pages())
		})
	}
	running.Go(func() {
		defer cancel()
		served = s.grpc.Serve(s.listener)
	})
	running.Go(func() { s.self.Run(ctx) })
	running.Go(func() { _ = s.master.Run(ctx) })
	running.Go(func() {
		s.world.run(ctx, func() bool { return s.machines.told() && s.log.resting() }, s.log.tell)
	})
	s.group.Elect(replicaID)
	err := s.admit(ctx)
	if err == nil {
		<-ctx.Done()
	}
	cancel()
	s.grpc.Stop()
	running.Wait()
	s.log.reports.close()
	s.grpc = nil
	return errors.Join(err, served, shown, s.Close())
}

// admit makes the user an admin, who in the real cell may be nobody.
func (s *Server) admit(ctx context.Context) error {
	may := false
	s.log.View(func(c *cell.Cell) { may = c.NumAdmins() == 0 || c.Has(s.cfg.User, cell.Admin) })
	if may {
		return nil
	}
	r, err := s.log.Propose(ctx, &borgpb.Op{Principal: asMaster, Reason: "whoever opens a checkpoint may do everything in it",
		Op: &borgpb.Op_Grant{Grant: &borgpb.Grant{User: s.cfg.User, Capability: string(cell.Admin)}}})
	if err == nil && r.GetRefusal() != nil {
		err = errors.New(r.Refusal.GetMessage())
	}
	if err != nil {
		return fmt.Errorf("make %s an admin of the simulated cell: %w", s.cfg.User, err)
	}
	return nil
}

// Close takes everything away.
func (s *Server) Close() error {
	var err error
	if s.listener != nil {
		if e := s.listener.Close(); !errors.Is(e, net.ErrClosed) {
			err = e
		}
	}
	if s.pages != nil {
		if e := s.pages.Close(); !errors.Is(e, net.ErrClosed) {
			err = errors.Join(err, e)
		}
	}
	if s.trail != nil {
		err = errors.Join(err, s.trail.Close())
	}
	return errors.Join(err, os.RemoveAll(s.cfg.Dir))
}
