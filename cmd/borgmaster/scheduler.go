package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"time"

	ucli "github.com/urfave/cli/v2"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"borg/borgmaster/client"
	"borg/cli"
	"borg/identity"
	"borg/scheduler"
	"borg/scheduler/flags"
	"borg/scheduler/process"
)

// schedulerNice is how nice the scheduler is to what else runs on the machine. It loads the
// whole cell just when a newly elected master has all borglets to hear, and searches
// whenever there is something to place: both may take longer, and what masters and
// borglets do is due at once.
const schedulerNice = 5

// giveWay makes this process nice, which Linux counts by the thread: those to come are
// what the one is that starts them.
func giveWay() error {
	threads, err := os.ReadDir("/proc/self/task")
	if err != nil {
		return err
	}
	for _, t := range threads {
		id, err := strconv.Atoi(t.Name())
		if err != nil {
			return err
		}
		// Refused where it is nicer already; a thread that has ended is not missed.
		if err := unix.Setpriority(unix.PRIO_PROCESS, id, schedulerNice); err != nil && !errors.Is(err, unix.EACCES) && !errors.Is(err, unix.EPERM) && !errors.Is(err, unix.ESRCH) {
			return fmt.Errorf("give way to others on this machine: %w", err)
		}
	}
	return nil
}

// schedulerGrace is how long the scheduler process may take to end by itself.
const schedulerGrace = 2 * time.Second

func schedulerCommand() *ucli.Command {
	return &ucli.Command{
		Name:        "scheduler",
		Usage:       "run the scheduler for an elected master",
		Description: "An elected replica starts this by itself. It ends when its standard input does, so that a\nmaster that was killed leaves no scheduler behind.",
		Flags: append([]ucli.Flag{
			&ucli.StringFlag{Name: "master", Required: true, Usage: "`ADDRESS` of the elected replica"},
			&ucli.StringFlag{Name: "identity", Required: true, Usage: "`FILE` with its certificate"},
			&ucli.StringFlag{Name: "socket", Usage: "`PATH` of the socket on which it explains itself"},
			&ucli.StringFlag{Name: "pages", Usage: "`PATH` of the socket on which it shows its status page and metrics, to its master"},
			&ucli.StringFlag{Name: "workload", Usage: "place only these jobs: " + scheduler.WorkloadWords + " (default: all)"},
			&ucli.StringFlag{Name: "log-level", Value: "info", Usage: "debug, info, warn or error"},
			&ucli.StringFlag{Name: "log-format", Usage: "text or json (default: text on a terminal, json elsewhere)"},
		}, flags.All()...),
		Action: func(ctx *ucli.Context) error {
			if err := cli.HideMemory(); err != nil {
				return err
			}
			if err := giveWay(); err != nil {
				return err
			}
			logger, err := cli.NewLogger(ctx)
			if err != nil {
				return err
			}
			search, err := flags.Config(ctx)
			if err != nil {
				return err
			}
			if search.Workload, err = scheduler.ParseWorkload(ctx.String("workload")); err != nil {
				return cli.Errorf(cli.Usage, "--workload: %w", err)
			}
			if search.Workload != (scheduler.Workload{}) {
				logger = logger.With("workload", search.Workload.String())
			}
			first, err := identity.ReadCredential(ctx.String("identity"))
			if err != nil {
				return cli.Errorf(cli.Invalid, "%w", err)
			}
			source := client.NewSource(first, []string{ctx.String("master")}, nil)
			working, fail := context.WithCancelCause(ctx.Context)
			defer fail(nil)
			source.OnRenew = endExpired(source, logger, fail)
			renewing, stop := context.WithCancel(working)
			var running sync.WaitGroup
			defer running.Wait()
			defer stop()
			running.Go(func() { source.Run(renewing) })
			// One that is elected anew starts another.
			running.Go(func() { giveHeapRoom(renewing, func() uint64 { return 0 }) })
			parent, err := process.Stdin()
			if err != nil {
				return err
			}
			err = process.Run(working, process.Config{
				Master: ctx.String("master"), Identity: source, Socket: ctx.String("socket"), Pages: ctx.String("pages"), Build: cli.Build(),
				Parent: parent, Logger: logger, Search: search,
			})
			if ended := context.Cause(working); err == nil && ended != nil && ctx.Context.Err() == nil {
				return cli.Errorf(cli.Failed, "%w", ended)
			}
			return err
		},
	}
}

// endExpired is the OnRenew of a scheduler process: it ends when its certificate expired, as
// the next process is given a new one.
func endExpired(own *identity.Source, logger *slog.Logger, end func(error)) func(*identity.Credential, error) {
	heard := cli.LogRenewal(logger, own, "the master starts another scheduler")
	return func(c *identity.Credential, err error) {
		heard(c, err)
		if err != nil && own.Current().Expired(time.Now()) {
			end(err)
		}
	}
}

// workloads reads --workload of a master, one for each scheduler that it is to
// start; none: one scheduler for all.
func workloads(ctx *ucli.Context) ([]string, error) {
	texts := ctx.StringSlice("workload")
	if len(texts) == 0 {
		return []string{""}, nil
	}
	var all []scheduler.Workload
	for _, text := range texts {
		w, err := scheduler.ParseWorkload(text)
		if err != nil {
			return nil, cli.Errorf(cli.Usage, "--workload: %w", err)
		}
		all = append(all, w)
	}
	if err := scheduler.CheckWorkloads(all); err != nil {
		return nil, cli.Errorf(cli.Usage, "--workload: %w", err).
			Hint("for instance --workload service --workload \"batch 1/2\" --workload \"batch 2/2\"")
	}
	return texts, nil
}

// pageSockets are the sockets, in the run-time directory, on which the scheduler
// processes show their pages.
func pageSockets(runDir string, n int) []string {
	var paths []string
	for i := range n {
		paths = append(paths, filepath.Join(runDir, fmt.Sprintf("scheduler-%d-pages.sock", i+1)))
	}
	return paths
}

// schedulerIdentity is the file, in the run-time directory, of the certificate with
// which the scheduler processes start.
const schedulerIdentity = "scheduler.pem"

// schedulerProcess runs this program's scheduler command, once for each
// workload.
type schedulerProcess struct {
	flags     *ucli.Context
	authority *identity.Authority
	replica   uint64
	runDir    string
	workloads []string
	// Sockets of their pages, in order; none: they show none.
	pages []string
}

// Run starts the processes and returns when the first of them ends, and with it
// all. The first answers on the socket, for all jobs: it has the same copy of the
// cell as the others.
func (p *schedulerProcess) Run(ctx context.Context, addr, socket string) error {
	// A certificate for each start; the process renews it by itself.
	name := identity.Name{Cell: p.authority.Cell(), Role: identity.Scheduler, ID: strconv.FormatUint(p.replica, 10)}
	credential, err := p.authority.Certify(name, time.Now(), identity.Life)
	if err != nil {
		return err
	}
	file := filepath.Join(p.runDir, schedulerIdentity)
	if err := identity.WriteCredential(file, credential); err != nil {
		return err
	}
	args := []string{"scheduler", "--master", addr, "--identity", file, "--log-level", p.flags.String("log-level")}
	if format := p.flags.String("log-format"); format != "" {
		args = append(args, "--log-format", format)
	}
	args = append(args, flags.Args(p.flags)...)
	group, ctx := errgroup.WithContext(ctx)
	for i, workload := range p.workloads {
		own := slices.Clone(args)
		if i == 0 {
			own = append(own, "--socket", socket)
		}
		if i < len(p.pages) {
			own = append(own, "--pages", p.pages[i])
		}
		if workload != "" {
			own = append(own, "--workload", workload)
		}
		group.Go(func() error { return p.run(ctx, own) })
	}
	return group.Wait()
}

// run starts one process and waits for its end. Its standard input is a pipe
// whose other end only this process holds.
func (p *schedulerProcess) run(ctx context.Context, args []string) error {
	program, err := os.Executable()
	if err != nil {
		return fmt.Errorf("find this program: %w", err)
	}
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Stderr = p.flags.App.ErrWriter
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return fmt.Errorf("make a pipe for the scheduler: %w", err)
	}
	defer stdin.Close()
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = schedulerGrace
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start the scheduler: %w", err)
	}
	if err := cmd.Wait(); err != nil {
		return fmt.Errorf("the scheduler: %w", err)
	}
	return errors.New("the scheduler ended by itself")
}
