package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/pprof"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"syscall"
	"time"

	ucli "github.com/urfave/cli/v2"
	"golang.org/x/sync/errgroup"

	"borg/borgmaster"
	"borg/borgmaster/admission"
	"borg/borgmaster/audit"
	"borg/borgmaster/cellkey"
	"borg/borgmaster/duty"
	"borg/borgmaster/journal"
	"borg/borgmaster/reclaim"
	"borg/borgmaster/replica"
	"borg/borgmaster/watch"
	"borg/checkpoint"
	"borg/cli"
	"borg/identity"
	"borg/proto/borgpb"
	"borg/proto/door"
	"borg/scheduler"
	"borg/scheduler/flags"
	"borg/tell/hostpath"
	"borg/tell/portholder"
)

// drainTimeout is how long a replica that stops waits for calls under way.
const drainTimeout = 250 * time.Millisecond

func serveCommand() *ucli.Command {
	return &ucli.Command{
		Name:  "serve",
		Usage: "run a replica",
		Flags: slices.Concat(cli.DaemonFlags("", "", ""), flags.All(), []ucli.Flag{
			&ucli.StringFlag{Name: "cell", Usage: "`NAME` of the cell, to find the default --dir and to be sure"},
			&ucli.Uint64Flag{Name: "replica", Usage: "`NUMBER` of the replica, to find the default --dir and to be sure"},
			&ucli.DurationFlag{Name: "poll-period", Value: 2 * time.Second, Usage: "`TIME` between two polls of a machine at rest"},
			&ucli.UintFlag{Name: "downs-per-minute", Value: uint(duty.DefaultBounds.DownsPerMinutePercent), Usage: "of the machines, call at most this `PERCENT` down in a minute, and at least one"},
			&ucli.UintFlag{Name: "stop-downs", Value: uint(duty.DefaultBounds.StopPercent), Usage: "call no machines down while more than this `PERCENT` cannot be reached, unless they are declared lost (borgcfg outage go)"},
			&ucli.StringSliceFlag{Name: "metric-gates", Usage: "the gates of updates may have masters ask the Prometheus servers below this `URL`, such as http://prometheus:9090; may be repeated (default: none, and gates are refused)"},
			&ucli.UintFlag{Name: "max-format", Usage: "do not let the cell be raised to a later `FORMAT`, so that an older build can come back (default: the latest that all replicas know)"},
			&ucli.Int64Flag{Name: "user-writes", Value: admission.DefaultWritesPerS, Usage: "refuse what one user changes beyond `N` a second at this replica; what users share in a crowd is decided by what the log can do"},
			&ucli.Int64Flag{Name: "user-reads", Value: admission.DefaultReadsPerS, Usage: "refuse what one user reads beyond `N` a second at this replica; a page of a list counts as 50"},
			&ucli.DurationFlag{Name: "events-keep", Value: journal.DefaultKeep, Usage: "keep what happened for so much `TIME`"},
			&ucli.StringFlag{Name: "events-bytes", Value: "20GiB", Usage: "keep at most so many `BYTES` of it; the oldest goes first"},
			&ucli.BoolFlag{Name: "no-scheduler", Usage: "do not start a scheduler process when elected"},
			&ucli.StringSliceFlag{Name: "workload", Usage: "start a scheduler process for these jobs alone, may be repeated: " + scheduler.WorkloadWords + " (default: one for all)"},
			&ucli.StringFlag{Name: "trust", Usage: "YAML `FILE` of other authorities that may say who a user is (default: none)"},
			&ucli.StringFlag{Name: "pprof", Usage: "`ADDRESS` to serve profiles on, of this machine alone, such as 127.0.0.1:6060 (default: nowhere)"},
		}, reservationFlags(), watchFlags(), archiveFlags()),
		Before: cli.ApplyConfig,
		Action: serve,
	}
}

// server is a replica being put together.
type server struct {
	flags    *ucli.Context
	dir      string
	runDir   string
	identity *borgpb.ReplicaIdentity
	// What the scheduler processes place, one each.
	workloads []string
	// How reservations are made while it is elected.
	reservations reclaim.Config
	// What it keeps for watches.
	watches watch.Config
	// The cell's, and what it says this replica is.
	authority *identity.Authority
	source    *identity.Source
	keys      *cellkey.Ring
	// base is logger without cell and replica.
	base, logger *slog.Logger
	archive      *replica.ArchiveConfig
	replica      *replica.Replica
	master       *borgmaster.Master
	audit        *audit.Trail
	// How much of what happened is kept, and what keeps it.
	eventsBytes int64
	journal     *journal.Journal
	grpc        *door.Server
	listener    net.Listener
	// Of the status page; nil: there is none.
	pages *door.HTTPListener
}

func serve(ctx *ucli.Context) error {
	if ctx.NArg() > 0 {
		return cli.Errorf(cli.Usage, "serve takes no arguments, but %q was given", ctx.Args().First()).Hint("see: borgmaster serve --help")
	}
	if err := cli.HideMemory(); err != nil {
		return err
	}
	s := &server{flags: ctx}
	var err error
	if s.base, err = cli.NewLogger(ctx); err != nil {
		return err
	}
	for _, name := range []string{"downs-per-minute", "stop-downs"} {
		if percent := ctx.Uint(name); percent == 0 || percent > 100 {
			return cli.Errorf(cli.Usage, "--%s %d: want 1 to 100 per cent", name, percent)
		}
	}
	if period := ctx.Duration("poll-period"); period <= 0 {
		return cli.Errorf(cli.Usage, "--poll-period %s: want more than zero", period)
	}
	if s.eventsBytes, err = eventsBytes(ctx); err != nil {
		return err
	}
	if _, err := flags.Config(ctx); err != nil {
		return err
	}
	if s.workloads, err = workloads(ctx); err != nil {
		return err
	}
	if s.reservations, err = reservationConfig(ctx); err != nil {
		return err
	}
	if s.watches, err = watchConfig(ctx); err != nil {
		return err
	}
	for _, flag := range []string{"listen", "http", "pprof"} {
		if _, _, err := net.SplitHostPort(ctx.String(flag)); ctx.String(flag) != "" && err != nil {
			return cli.Errorf(cli.Usage, "--%s %q: want an address HOST:PORT", flag, ctx.String(flag))
		}
	}
	if addr := ctx.String("pprof"); addr != "" && !door.IsLoopback(addr) {
		return cli.Errorf(cli.Usage, "--pprof %s: profiles are served without TLS, and tell what is in this process's memory; want an address of this machine alone", addr).
			Hint("--pprof 127.0.0.1:PORT; from elsewhere: ssh -L PORT:127.0.0.1:PORT")
	}
	if err := s.identify(); err != nil {
		return err
	}
	opened := make(chan error, 1)
	go func() { opened <- s.open() }()
	select {
	case err := <-opened:
		if err != nil {
			return err
		}
	case <-ctx.Done():
		select {
		case err := <-opened:
			if err != nil {
				return err
			}
		case <-time.After(openGrace):
			s.logger.Warn("it was told to stop before its directory was open, and ends as it is: nothing was promised to anybody")
			return nil
		}
	}
	return s.run(ctx.Context)
}

// openGrace is how long the opening of a directory may go on when the replica was told to
// stop. On a full disk the database waits in it for room, for ever.
const openGrace = 3 * time.Second

// identify finds the directory and reads whose it is.
func (s *server) identify() error {
	cellName, number := s.flags.String("cell"), s.flags.Uint64("replica")
	if s.flags.String("dir") == "" && (cellName == "" || number == 0) {
		return cli.Errorf(cli.Usage, "which replica? give --dir DIRECTORY, or --cell NAME and --replica NUMBER")
	}
	s.dir = replicaDir(s.flags, cellName, number)
	id, err := checkpoint.ReadIdentity(nil, s.dir)
	if errors.Is(err, checkpoint.ErrNotInitialised) {
		return cli.Errorf(cli.Invalid, "directory %s belongs to no replica yet", s.dir).
			Hint("a new cell: borgmaster init --dir %s --cell NAME --replica N --members 1=HOST:PORT,...\n"+
				"a cell that runs: borgmaster init --dir %s --join HOST:PORT --replica N --addr HOST:PORT", s.dir, s.dir)
	}
	if err == nil {
		err = checkpoint.CheckIdentity(s.dir, id, &borgpb.ReplicaIdentity{CellName: cellName, Replica: number})
	}
	if err != nil {
		return cli.Errorf(cli.Invalid, "%w", err)
	}
	s.identity = id
	if s.authority, err = readAuthority(s.dir, id.CellName); err != nil {
		return err
	}
	if s.keys, err = readKeys(s.dir); err != nil {
		return err
	}
	s.source, err = s.authority.Source(identity.Name{Cell: id.CellName, Role: identity.Master, ID: strconv.FormatUint(id.Replica, 10)}, time.Now(), identity.Life)
	if err != nil {
		return certifyError(err, s.dir)
	}
	if s.source.Foreign, err = readTrust(s.flags.String("trust"), id.CellName); err != nil {
		return err
	}
	if s.archive, err = archiveConfig(s.flags, id.CellName); err != nil {
		return err
	}
	s.logger = s.base.With("cell", id.CellName, "replica", id.Replica)
	s.source.OnRenew = cli.LogRenewal(s.logger, s.source, "with all replicas stopped: borgmaster authority renew --dir "+s.dir)
	if len(s.keys.IDs()) == 0 {
		s.logger.Warn("this replica has no cell key and can keep no secrets; an admin makes one for all: borgcfg secret rotate-key")
	}
	s.runDir = s.flags.String("run-dir")
	if s.runDir == "" {
		s.runDir = cli.RunDir(id.CellName, strconv.FormatUint(id.Replica, 10))
	}
	return nil
}

// open takes the door, then the directory, and puts the master over them.
func (s *server) open() error {
	own, listen := s.ownAddr(), s.flags.String("listen")
	if listen == "" {
		listen = own
	}
	if err := os.MkdirAll(s.runDir, 0o700); err != nil {
		return cli.Errorf(cli.Failed, "make the run-time directory: %w", err)
	}
	var err error
	if s.listener, err = door.ListenWithin(s.flags.Context, listen, listenPatience, s.tellWait(listen)); err != nil {
		e := cli.Errorf(cli.Failed, "replica %d cannot listen on %s: %w", s.identity.Replica, listen, err)
		if errors.Is(err, syscall.EADDRINUSE) {
			return e.Hint("%s has that port: ss -ltnp 'sport = :%s'", holder(listen), portOf(listen))
		}
		return e
	}
	if addr := s.flags.String("http"); addr != "" {
		if s.pages, err = door.AwaitHTTP(addr, s.tellWait(addr)); err != nil {
			s.listener.Close()
			return cli.Errorf(cli.Failed, "replica %d cannot show its status page on %s: %w", s.identity.Replica, addr, err).Hint("choose another address with --http, or leave it out")
		}
	}
	s.replica, err = replica.Open(replica.Config{Store: checkpoint.Config{Dir: s.dir}, Identity: s.source, Logger: s.base, Archive: s.archive})
	if err != nil {
		s.closeDoors()
		code := cli.Failed
		if isOtherDirectory(err) {
			code = cli.Invalid
		}
		e := cli.Errorf(code, "open replica %d: %w", s.identity.Replica, err)
		var damaged *checkpoint.DamagedError
		if errors.As(err, &damaged) {
			return e.Hint("start a new one, with a number that was never used: borgmaster init --join HOST:PORT --replica M --addr HOST:PORT\nthen: borgcfg master replace %d HOST:PORT\nkeep %s until that is done", s.identity.Replica, s.dir)
		}
		return e
	}
	if s.audit, err = audit.Open(audit.Config{Dir: filepath.Join(s.dir, "audit"), Replica: s.identity.Replica, Logger: s.logger}); err != nil {
		s.closeDoors()
		return cli.Errorf(cli.Failed, "open replica %d: %w", s.identity.Replica, errors.Join(err, s.replica.Close()))
	}
	if err = s.openEvents(); err != nil {
		s.closeDoors()
		return cli.Errorf(cli.Failed, "open replica %d: %w", s.identity.Replica, errors.Join(err, s.replica.Close(), s.audit.Close()))
	}
	config := borgmaster.Config{
		CellName: s.identity.CellName, Replica: s.identity.Replica, Addr: own,
		SchedulerSocket: filepath.Join(s.runDir, "scheduler.sock"),
		Log:             s.replica, Members: s.replica, MemberChanges: s.replica, Checkpoints: s.replica, Past: s.replica, Insides: s.replica, Audit: s.audit, Journal: s.journal,
		Identity: s.source, Authority: s.authority, Keys: s.keys,
		KeepAuthority: func(data []byte) error { return identity.WriteSecret(authorityFile(s.dir), data) }, FirstAdmin: s.identity.Admin,
		HostPaths:    s.hostPaths(),
		Reservations: s.reservations, Watch: s.watches,
		Admission:   admission.Config{WritesPerS: s.flags.Int64("user-writes"), ReadsPerS: s.flags.Int64("user-reads")},
		PollPeriod:  s.flags.Duration("poll-period"),
		Downs:       duty.Bounds{DownsPerMinutePercent: uint32(s.flags.Uint("downs-per-minute")), StopPercent: uint32(s.flags.Uint("stop-downs"))},
		MetricGates: s.flags.StringSlice("metric-gates"),
		MaxFormat:   uint32(s.flags.Uint("max-format")), Build: cli.Build(), Logger: s.logger,
	}
	if !s.flags.Bool("no-scheduler") {
		process := &schedulerProcess{flags: s.flags, authority: s.authority, replica: s.identity.Replica, runDir: s.runDir, workloads: s.workloads}
		if s.pages != nil {
			process.pages = pageSockets(s.runDir, len(s.workloads))
		}
		config.Scheduler, config.SchedulerPages = process, process.pages
	}
	if s.master, err = borgmaster.New(config); err != nil {
		s.closeDoors()
		return errors.Join(err, s.replica.Close(), s.audit.Close(), s.journal.Close())
	}
	s.grpc = door.NewServer(s.master.Door())
	s.replica.RegisterServices(s.grpc)
	s.master.RegisterServices(s.grpc)
	return nil
}

// hostPaths are the directories and files that users are not told of.
func (s *server) hostPaths() *hostpath.Dirs {
	paths := []string{s.dir, s.runDir, s.flags.String("trust")}
	if s.archive != nil {
		paths = append(paths, s.archive.Dir)
	}
	if program, err := os.Executable(); err == nil {
		paths = append(paths, program)
	}
	return hostpath.New(paths...)
}

// closeDoors lets go of addresses that are not served.
func (s *server) closeDoors() {
	s.listener.Close()
	if s.pages != nil {
		s.pages.Close()
	}
}

// listenPatience is how long a replica tries to get its address when something else has it. The
// borglet of this machine ends a task that has; its supervisor starts it again after that.
const listenPatience = 15 * time.Second

// tellWait returns what logs that an address which something else has is waited for.
func (s *server) tellWait(addr string) func(err error) {
	return func(err error) {
		if err == nil {
			s.logger.Info("the address is free, and is listened on", "addr", addr)
			return
		}
		s.logger.Warn("cannot listen, and tries again: something else has the port", "addr", addr, "held_by", holder(addr), "err", err)
	}
}

// holder names who has the port of an address.
func holder(addr string) string {
	n, _ := strconv.ParseUint(portOf(addr), 10, 16)
	return cmp.Or(portholder.Of(uint16(n)), "something else")
}

// isOtherDirectory tells a directory that is not what its replica.json, or this
// build, takes it for from one that cannot be read.
func isOtherDirectory(err error) bool {
	var wrong *checkpoint.WrongDirectoryError
	var newer *checkpoint.NewerFormatError
	var lost *checkpoint.LostDatabaseError
	return errors.As(err, &wrong) || errors.As(err, &newer) || errors.As(err, &lost)
}

// run works until ctx ends or the replica cannot go on. It stops in this order:
// the master and its streams; the log, which hands over to another replica
// first and needs the door for that; the door.
func (s *server) run(ctx context.Context) error {
	logCtx, stopLog := context.WithCancel(context.WithoutCancel(ctx))
	defer stopLog()
	g, gctx := errgroup.WithContext(ctx)
	g.Go(func() error {
		defer s.stopServing()
		return s.replica.Run(logCtx)
	})
	g.Go(func() error {
		if err := s.grpc.Serve(s.listener); err != nil {
			return fmt.Errorf("serve on %s: %w", s.listener.Addr(), err)
		}
		return nil
	})
	if s.pages != nil {
		s.logger.Info("status page", "url", s.pages.URL())
		g.Go(func() error { return s.pages.ServeHTTP(gctx, s.master.Door(), s.master.Pages()) })
	}
	if addr := s.flags.String("pprof"); addr != "" {
		g.Go(func() error { return servePprof(gctx, addr) })
	}
	g.Go(func() error {
		s.source.Run(logCtx)
		return nil
	})
	g.Go(func() error {
		giveHeapRoom(logCtx, func() uint64 { return s.replica.State().Term })
		return nil
	})
	g.Go(func() error {
		defer stopLog()
		err := s.master.Run(gctx)
		s.logger.Info("stopping")
		return err
	})
	err := errors.Join(g.Wait(), s.audit.Close(), s.journal.Close())
	if errors.Is(err, replica.ErrRemoved) {
		err = errors.Join(err, s.forget())
	}
	if err != nil && ctx.Err() == nil {
		return cli.Errorf(cli.Failed, "%w", err)
	}
	return nil
}

// forget removes what keys this replica has: whoever is no member must not go on
// certifying others.
func (s *server) forget() (err error) {
	for _, path := range []string{authorityFile(s.dir), keysFile(s.dir), filepath.Join(s.runDir, schedulerIdentity)} {
		if failed := os.Remove(path); !errors.Is(failed, os.ErrNotExist) {
			err = errors.Join(err, failed)
		}
	}
	return err
}

// stopServing lets calls under way end, but not for ever.
func (s *server) stopServing() {
	force := time.AfterFunc(drainTimeout, s.grpc.Stop)
	defer force.Stop()
	s.grpc.GracefulStop()
}

// ownAddr is where the other replicas reach this one.
func (s *server) ownAddr() string {
	for _, m := range s.identity.Members {
		if m.Id == s.identity.Replica {
			return m.Addr
		}
	}
	return s.flags.String("listen")
}

func portOf(addr string) string {
	_, port, _ := net.SplitHostPort(addr)
	return port
}

// servePprof serves profiles until ctx ends.
func servePprof(ctx context.Context, addr string) error {
	mux := http.NewServeMux()
	mux.HandleFunc("/debug/pprof/", pprof.Index)
	mux.HandleFunc("/debug/pprof/profile", pprof.Profile)
	mux.HandleFunc("/debug/pprof/symbol", pprof.Symbol)
	mux.HandleFunc("/debug/pprof/trace", pprof.Trace)
	server := &http.Server{Addr: addr, Handler: mux, ReadHeaderTimeout: 5 * time.Second}
	defer context.AfterFunc(ctx, func() { server.Close() })()
	if err := server.ListenAndServe(); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve profiles on %s: %w", addr, err)
	}
	return nil
}
