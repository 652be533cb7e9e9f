package main

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"

	ucli "github.com/urfave/cli/v2"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"

	"borg/borglet"
	"borg/borglet/container"
	"borg/borglet/diskquota"
	"borg/borglet/network"
	"borg/borglet/packages"
	"borg/cfg"
	"borg/cli"
	"borg/identity"
	"borg/proto/borgpb"
	"borg/proto/borgrpc"
	"borg/proto/door"
	"borg/tell/hostpath"
)

func serveCommand() *ucli.Command {
	flags := cli.DaemonFlags(cli.StateDir("borglet"), cli.RunDir("borglet"), "127.0.0.1:7101")
	return &ucli.Command{
		Name:  "serve",
		Usage: "run the agent; tasks go on when it ends",
		Flags: append(append(flags,
			&ucli.StringFlag{Name: "join", Usage: "`TOKEN` to join a cell with, or the file that holds it; not looked at once the machine has a certificate"},
			&ucli.StringFlag{Name: "masters", Usage: "with --join: `ADDRESSES` of masters, host:port[,host:port] (default: those in the token)"},
			&ucli.StringFlag{Name: "name", Usage: "`NAME` of the machine, a DNS label (default: the host name)"},
			&ucli.StringFlag{Name: "runtime", Value: "auto", Usage: "auto, container or process"},
			&ucli.StringFlag{Name: "advertise", Usage: "`ADDRESS` (host:port) at which masters reach it (default: --listen)"},
			&ucli.StringFlag{Name: "capacity", Usage: "what tasks may use in all, such as `cpu=2,mem=4GiB,disk=20GiB` (default: the machine's)"},
			&ucli.IntFlag{Name: "exclusive-cores", Usage: "how many `CORES` tasks may have alone, at most (default: all but one; none if --capacity offers less cpu than the machine has)"},
			&ucli.StringSliceFlag{Name: "attr", Usage: "attribute `KEY=VALUE` of the machine, for constraints; may be repeated"},
			&ucli.StringFlag{Name: "task-ports", Value: fmt.Sprintf("%d-%d", borgpb.TaskPortFirst, borgpb.TaskPortLast), Usage: "ports that may be granted to tasks, `FIRST-LAST`"},
			&ucli.StringSliceFlag{Name: "protected-ports", Usage: "`PORTS` of this machine that other programs need and no task may bind, PORT[,PORT]; may be repeated"},
			&ucli.StringFlag{Name: "task-ids", Value: fmt.Sprintf("%d-%d", container.DefaultTaskIDs[0], container.DefaultTaskIDs[1]),
				Usage: "user ids of the machine that are the tasks', 65536 for each, `FIRST-LAST`"},
			&ucli.StringSliceFlag{Name: "writable-mounts", Usage: "`DIRECTORY` below which tasks may have writable mounts; may be repeated"},
			&ucli.StringFlag{Name: "cni-conf", Value: network.DefaultConf, Usage: "`DIRECTORY` with the CNI configuration of tasks with a network of their own; its first file counts"},
			&ucli.StringSliceFlag{Name: "cni-bin", Value: ucli.NewStringSlice(network.DefaultBins()...), Usage: "`DIRECTORY` with CNI plugins; may be repeated"},
			&ucli.DurationFlag{Name: "backoff", Value: 10 * time.Second, Usage: "wait before the second restart of a task; doubles up to 5m (the first is after 1s at most)"},
			&ucli.DurationFlag{Name: "kept-for", Value: 24 * time.Hour, Usage: "how long the output of tasks is kept after they are forgotten; 0: as long as there is room in 1 GiB"},
			&ucli.StringFlag{Name: "log-keep", Value: "64MiB", Usage: "how much disk each output stream of a task takes, with its compressed pieces; 0: all is kept"},
		), packageFlags...),
		Before: cli.ApplyConfig,
		Action: func(ctx *ucli.Context) error {
			if err := cli.HideMemory(); err != nil {
				return err
			}
			s, err := newServe(ctx)
			if err != nil {
				return err
			}
			return s.run(ctx.Context)
		},
	}
}

// serve is a borglet that has its configuration.
type serve struct {
	name      string
	dir       string
	runDir    string
	listen    string
	http      string
	advertise string
	runtime   string
	// A token or its file, and who is to be shown it; may be empty.
	join, masters string
	capacity      *borgpb.Resources
	// How many cores tasks may have alone, at most.
	exclusiveCores int
	attrs          map[string]string
	ports          [2]uint32
	// Of this machine, that no task may bind: the operator's, and the cell's own.
	protectedPorts []uint16
	protected      protectedPorts
	taskIDs        [2]uint32
	writable       []string
	cniConf        string
	cniBins        []string
	backoff        borglet.Backoff
	keepBytes      int64
	keptFor        time.Duration
	packages       packageConfig
	log            *slog.Logger
	// Who this borglet is to the masters.
	source *identity.Source
	// Of the papers of tasks.
	issuer *issuer
}

func newServe(ctx *ucli.Context) (*serve, error) {
	if ctx.NArg() > 0 {
		return nil, cli.Errorf(cli.Usage, "serve takes no arguments, got %q", ctx.Args().First())
	}
	s := &serve{
		name: ctx.String("name"), listen: ctx.String("listen"), http: ctx.String("http"), advertise: ctx.String("advertise"),
		runtime: ctx.String("runtime"), backoff: borglet.DefaultBackoff(), join: ctx.String("join"), masters: ctx.String("masters"),
	}
	switch s.runtime {
	case "auto", "container", "process":
	default:
		return nil, cli.Errorf(cli.Usage, "--runtime %q: want auto, container or process", s.runtime)
	}
	var err error
	if err = checkAddr("--listen", s.listen); err == nil && s.advertise != "" {
		err = checkAddr("--advertise", s.advertise)
	}
	if err == nil && s.http != "" {
		err = checkAddr("--http", s.http)
	}
	if err != nil {
		return nil, err
	}
	if s.dir, err = filepath.Abs(ctx.String("dir")); err != nil {
		return nil, cli.Errorf(cli.Usage, "--dir: %w", err)
	}
	if s.runDir, err = filepath.Abs(ctx.String("run-dir")); err != nil {
		return nil, cli.Errorf(cli.Usage, "--run-dir: %w", err)
	}
	if s.name == "" {
		if s.name, err = hostname(); err != nil {
			return nil, err
		}
	}
	if label := cfg.DNSLabel(s.name); label != s.name {
		return nil, cli.Errorf(cli.Usage, "the machine's name %q cannot be part of a DNS name", s.name).
			Hint("lower-case letters, digits and dashes, at most 63; for example: --name %s", cmp.Or(label, "m1"))
	}
	if s.capacity, err = parseCapacity(ctx.String("capacity")); err != nil {
		return nil, cli.Errorf(cli.Usage, "--capacity: %w", err)
	}
	if s.exclusiveCores, err = parseExclusiveCores(ctx, s.capacity); err != nil {
		return nil, err
	}
	if s.attrs, err = parseAttrs(ctx.StringSlice("attr")); err != nil {
		return nil, cli.Errorf(cli.Usage, "--attr: %w", err)
	}
	if s.ports, err = parsePorts(ctx.String("task-ports")); err != nil {
		return nil, cli.Errorf(cli.Usage, "--task-ports: %w", err)
	}
	if s.protectedPorts, err = parseProtectedPorts(ctx.StringSlice("protected-ports")); err != nil {
		return nil, cli.Errorf(cli.Usage, "--protected-ports: %w", err)
	}
	if s.taskIDs, err = parseTaskIDs(ctx.String("task-ids")); err != nil {
		return nil, cli.Errorf(cli.Usage, "--task-ids: %w", err)
	}
	if s.keptFor = ctx.Duration("kept-for"); s.keptFor < 0 {
		return nil, cli.Errorf(cli.Usage, "--kept-for %v is negative", s.keptFor)
	}
	if s.keepBytes, err = cli.ParseBytes(ctx.String("log-keep")); err != nil {
		return nil, cli.Errorf(cli.Usage, "--log-keep: %w", err)
	}
	if s.packages, err = newPackageConfig(ctx, s.listen); err != nil {
		return nil, err
	}
	s.cniConf, s.cniBins = ctx.String("cni-conf"), ctx.StringSlice("cni-bin")
	for _, dir := range ctx.StringSlice("writable-mounts") {
		if !filepath.IsAbs(dir) {
			return nil, cli.Errorf(cli.Usage, "--writable-mounts %q: want an absolute path", dir)
		}
		s.writable = append(s.writable, filepath.Clean(dir))
	}
	if b := ctx.Duration("backoff"); b > 0 {
		s.backoff.BaseNs = int64(b)
		s.backoff.FirstNs = min(s.backoff.FirstNs, int64(b))
		s.backoff.MaxNs = max(s.backoff.MaxNs, int64(b))
	} else {
		return nil, cli.Errorf(cli.Usage, "--backoff %s: want more than zero", b)
	}
	s.log, err = cli.NewLogger(ctx)
	return s, err
}

func hostname() (string, error) {
	full, err := os.Hostname()
	if err != nil {
		return "", cli.Errorf(cli.Failed, "ask for the host name: %w", err).Hint("say it with --name")
	}
	short, _, _ := strings.Cut(strings.ToLower(full), ".")
	return short, nil
}

// run serves until ctx ends, and leaves the tasks running.
func (s *serve) run(ctx context.Context) error {
	for _, dir := range []string{s.dir, s.runDir} {
		if err := os.MkdirAll(dir, 0o711); err != nil {
			return cli.Errorf(cli.Failed, "make directory: %w", err).Hint("choose others with --dir and --run-dir, or start the borglet as root")
		}
	}
	unlock, err := lockDir(ctx, "--dir", s.dir)
	if err != nil {
		return err
	}
	defer unlock()
	// Its marks and its containers are told by this directory.
	if s.runDir != s.dir {
		unlockRun, err := lockDir(ctx, "--run-dir", s.runDir)
		if err != nil {
			return err
		}
		defer unlockRun()
	}
	listener, err := door.Await(s.listen, s.tellWait("masters", "--listen", s.listen))
	if err != nil {
		return cli.Errorf(cli.Failed, "listen on %s: %w", s.listen, err).Hint("choose another address with --listen")
	}
	defer listener.Close()
	var shown *door.HTTPListener
	if s.http != "" {
		if shown, err = door.AwaitHTTP(s.http, s.tellWait("the status page", "--http", s.http)); err != nil {
			return cli.Errorf(cli.Failed, "show the status page on %s: %w", s.http, err).Hint("choose another address with --http, or leave it out")
		}
		defer shown.Close()
	}
	fetched, err := s.packages.open(s.tellWait("machines that fetch packages", "--package-listen", s.packages.listen))
	if err != nil {
		return err
	}
	if fetched != nil {
		defer fetched.Close()
	}
	rt, err := container.New(container.Config{
		Name: s.name, RunDir: s.runDir, Kind: s.runtime,
		TaskIDs: s.taskIDs, ExclusiveCores: s.exclusiveCores, Writable: s.writable, Private: []string{s.dir, s.runDir}, Log: s.log,
	})
	if err != nil {
		return cli.Errorf(cli.Failed, "%w", err)
	}
	defer rt.Close()
	networks, err := s.networks(ctx, rt)
	if err != nil {
		return err
	}
	quotas := s.diskQuotas(rt)
	spec, err := s.describe(rt, listener.Addr().String())
	if err != nil {
		return err
	}
	if err := s.identify(ctx, spec); err != nil {
		return err
	}
	defer s.issuer.close()
	store, err := s.packageStore()
	if err != nil {
		return err
	}
	agent, err := s.agent(rt, spec, store, portOf(fetched), networks, quotas)
	if err != nil {
		return err
	}
	caps := rt.Capabilities()
	s.log.Info("borglet serves", "machine", s.name, "addr", listener.Addr().String(), "dir", s.dir,
		"runtime", caps.Runtime, "cgroup", caps.Cgroup, "seccomp", caps.Seccomp, "userns", caps.Userns, "ports", caps.Ports, "network", caps.Network, "disk_limit", caps.DiskLimit, "build", cli.Build())
	s.tellWeaker(caps)
	return s.serve(ctx, listener, shown, agent, func(ctx context.Context, config door.Config) error {
		if fetched == nil {
			return nil
		}
		return door.ServeBlobs(ctx, fetched, config, store.Handler())
	})
}

// tellWeaker says what tasks do without on this machine.
func (s *serve) tellWeaker(caps borglet.Capabilities) {
	if !caps.Limits {
		s.log.Warn("tasks run as plain processes: no limits are enforced and nothing keeps tasks apart", "machine", s.name)
		return
	}
	if caps.Seccomp == "none" {
		s.log.Warn("tasks run without a filter of system calls: this borglet was built without libseccomp; apt-get install libseccomp-dev pkg-config, and make", "machine", s.name)
	}
}

// describe says what the machine is, with the address at which masters reach it.
func (s *serve) describe(rt borglet.Runtime, addr string) (*borgpb.MachineSpec, error) {
	spec, err := container.DescribeMachine(s.dir, rt.Capabilities())
	if err != nil {
		return nil, cli.Errorf(cli.Failed, "%w", err)
	}
	override(spec.Capacity, s.capacity)
	maps.Copy(spec.Attributes, s.attrs)
	spec.PortFirst, spec.PortLast = s.ports[0], s.ports[1]
	spec.Addr = s.advertise
	if spec.Addr == "" {
		spec.Addr = reachable(addr, spec.Attributes["hostname"])
	}
	return spec, nil
}

// networks are those of their own that tasks can have here; nil: none.
func (s *serve) networks(ctx context.Context, rt *container.Runtime) (borglet.Networks, error) {
	if !rt.Capabilities().OwnFiles {
		return nil, nil
	}
	store, err := network.Open(ctx, network.Config{Dir: s.dir, RunDir: s.runDir, Conf: s.cniConf, Bins: s.cniBins, Log: s.log})
	if err != nil {
		return nil, cli.Errorf(cli.Failed, "take over the networks of tasks: %w", err)
	}
	rt.OwnNetworks = store.Lacks() == nil
	if lacks := store.Lacks(); lacks != nil {
		s.log.Info("tasks can have no networks of their own here", "machine", s.name, "reason", lacks.Error())
	}
	return store, nil
}

// diskQuotas are those of the file system of tasks; nil: it has none that hold here. A
// task with the machine's user ids could leave the project of its directory.
func (s *serve) diskQuotas(rt *container.Runtime) borglet.DiskQuotas {
	caps := rt.Capabilities()
	if !caps.OwnFiles {
		return nil
	}
	quotas, err := diskquota.Open(s.dir)
	if err == nil && caps.Userns != "own" {
		err = errors.New("tasks have no user ids of their own")
	}
	if err != nil {
		s.log.Info("what tasks write beyond their disk limit is measured and not refused", "machine", s.name, "reason", err.Error())
		return nil
	}
	rt.DiskQuotas = true
	return quotas
}

func (s *serve) agent(rt *container.Runtime, spec *borgpb.MachineSpec, store *packages.Store, packagePort uint16, networks borglet.Networks, quotas borglet.DiskQuotas) (*borglet.Agent, error) {
	boot, err := container.BootID()
	if err != nil {
		return nil, cli.Errorf(cli.Failed, "%w", err)
	}
	papers, err := borglet.MakePapersDir(s.runDir)
	if err != nil {
		s.log.Warn("tasks get no certificates, and those that name secrets do not start", "machine", s.name, "err", err)
	}
	agent, err := borglet.New(borglet.Config{
		Packages:           store,
		Networks:           networks,
		DiskQuotas:         quotas,
		PackagePort:        packagePort,
		CertificateExpires: func() time.Time { return s.source.Current().Expires() },
		PapersDir:          papers, BoundPapers: rt.Capabilities().Limits, Issuer: s.issuer, TrustIs: s.source.TrustIs,
		HostPaths: s.hostPaths(),
		Name:      s.name, Dir: s.dir, Spec: spec, Build: cli.Build(), Boot: boot, Backoff: s.backoff,
		AvailableMemBytes: borglet.AvailableMemBytes, TreeBytes: container.TreeBytes,
		HeldOpen: func(places map[borglet.ID][]string) map[borglet.ID]borglet.HeldOpen {
			return rt.HeldOpen(s.dir, places)
		},
		AvailableDiskBytes: func() (int64, bool) { return container.AvailableDiskBytes(s.dir) },
		Listening:          rt.Listening,
		HeldPorts:          rt.HeldPorts,
		SocketsHeld:        rt.SocketsHeld,
		Protected:          s.protected.all,
		ProtectedHolders:   rt.ProtectedHolders,
		Kills:              rt.Kills,
		Block:              rt.Block,
		Runtime:            rt, Log: s.log, Path: os.Getenv("PATH"), LogKeepBytes: s.keepBytes, KeptFor: s.keptFor, Punch: container.Punch,
	})
	if err != nil {
		return nil, cli.Errorf(cli.Failed, "%w", err)
	}
	// The tasks hear of other authorities when their borglet does.
	heard, mark := s.source.OnRenew, s.source.Current().Trust.Mark()
	s.source.OnRenew = func(c *identity.Credential, err error) {
		heard(c, err)
		if err == nil && !bytes.Equal(mark, c.Trust.Mark()) {
			mark = c.Trust.Mark()
			s.log.Info("the cell's authorities changed", "machine", s.name, "until", c.Expires().UTC().Format(time.RFC3339))
			agent.RenewPapers()
		}
	}
	s.source.Gone = func(who identity.Name) bool { return who.Role == identity.Master && agent.Removed(who.Replica()) }
	return agent, nil
}

// reachable is the address to tell others when none was given.
func reachable(addr, hostname string) string {
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return addr
	}
	if ip := net.ParseIP(host); ip != nil && ip.IsUnspecified() {
		return net.JoinHostPort(hostname, port)
	}
	return addr
}

// hostPaths are the directories and files that masters and users are not told of.
func (s *serve) hostPaths() *hostpath.Dirs {
	paths := append([]string{s.dir, s.runDir, s.cniConf}, s.cniBins...)
	if program, err := os.Executable(); err == nil {
		paths = append(paths, program)
	}
	return hostpath.New(paths...)
}

// serve runs the agent and the servers until ctx ends or one of them fails.
func (s *serve) serve(ctx context.Context, listener net.Listener, shown *door.HTTPListener, agent *borglet.Agent, blobs func(context.Context, door.Config) error) error {
	config := door.Config{
		Identity: s.source, Logger: s.log, HostPaths: s.hostPaths(),
		Revoked: func(who identity.Name, _ time.Time) bool { return s.source.Gone(who) },
		Called:  func(c door.Call) { agent.Called(c.Method, c.Stream, c.Code, c.Took) },
	}
	server := door.NewServer(config)
	borgrpc.RegisterBorgletServiceServer(server, borglet.NewServer(agent))
	group, ctx := errgroup.WithContext(ctx)
	if shown != nil {
		s.log.Info("status page", "machine", s.name, "url", shown.URL())
		group.Go(func() error { return shown.ServeHTTP(ctx, config, agent.Pages()) })
	}
	group.Go(func() error { return blobs(ctx, config) })
	s.protected.find(ctx, s)
	group.Go(func() error {
		s.protected.watch(ctx, s)
		return nil
	})
	group.Go(func() error { return agent.Run(ctx) })
	group.Go(func() error {
		s.source.Run(ctx)
		return nil
	})
	group.Go(func() error {
		if err := server.Serve(listener); err != nil && !errors.Is(err, grpc.ErrServerStopped) {
			return fmt.Errorf("serve: %w", err)
		}
		return nil
	})
	group.Go(func() error {
		<-ctx.Done()
		// Followed logs would hold up a graceful end; masters ask again.
		server.Stop()
		return nil
	})
	err := group.Wait()
	s.log.Info("borglet ends; its tasks go on", "machine", s.name)
	if err != nil {
		return cli.Errorf(cli.Failed, "%w", err)
	}
	return nil
}

const (
	// lockPatience is how long a lock that is held is tried again: a process
	// that a killed borglet was just starting may have it for a moment longer.
	lockPatience = 3 * time.Second
	lockEvery    = 50 * time.Millisecond
)

// lockDir makes sure that one borglet alone uses a directory, which a flag names.
func lockDir(ctx context.Context, flag, dir string) (unlock func(), err error) {
	path := filepath.Join(dir, "borglet.lock")
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, cli.Errorf(cli.Failed, "lock directory: %w", err).Hint("choose another with %s, or start the borglet as root", flag)
	}
	ctx, cancel := context.WithTimeout(ctx, lockPatience)
	defer cancel()
	ticker := time.NewTicker(lockEvery)
	defer ticker.Stop()
	for {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			return func() { f.Close() }, nil
		}
		if !errors.Is(err, unix.EWOULDBLOCK) {
			f.Close()
			return nil, cli.Errorf(cli.Failed, "lock %s: %w", path, err)
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			f.Close()
			return nil, cli.Errorf(cli.Failed, "directory %s is in use by another borglet", dir).Hint("stop that one, or choose another directory with %s", flag)
		}
	}
}
