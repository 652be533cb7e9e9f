package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
	"time"

	ucli "github.com/urfave/cli/v2"

	"borg/borgmaster/client"
	"borg/cli"
	"borg/identity"
	"borg/scheduler"
	"borg/scheduler/process"
)

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
			&ucli.StringFlag{Name: "policy", Usage: "how to pack: " + scheduler.PolicyWords() + " (default: hybrid)"},
			&ucli.StringFlag{Name: "log-level", Value: "info", Usage: "debug, info, warn or error"},
			&ucli.StringFlag{Name: "log-format", Usage: "text or json (default: text on a terminal, json elsewhere)"},
		}, rescheduleFlags()...),
		Action: func(ctx *ucli.Context) error {
			logger, err := cli.NewLogger(ctx)
			if err != nil {
				return err
			}
			policy, err := policyFlag(ctx)
			if err != nil {
				return err
			}
			search := scheduler.Config{Policy: policy}
			if err := reschedule(ctx, &search); err != nil {
				return err
			}
			first, err := identity.ReadCredential(ctx.String("identity"))
			if err != nil {
				return cli.Errorf(cli.Invalid, "%w", err)
			}
			source := client.NewSource(first, []string{ctx.String("master")}, nil)
			source.OnRenew = cli.LogRenewal(logger)
			renewing, stop := context.WithCancel(ctx.Context)
			var running sync.WaitGroup
			defer running.Wait()
			defer stop()
			running.Go(func() { source.Run(renewing) })
			parent, err := process.Stdin()
			if err != nil {
				return err
			}
			return process.Run(ctx.Context, process.Config{
				Master: ctx.String("master"), Identity: source, Socket: ctx.String("socket"), Build: cli.Build(),
				Parent: parent, Logger: logger, Search: search,
			})
		},
	}
}

// policyFlag reads --policy.
func policyFlag(ctx *ucli.Context) (scheduler.Policy, error) {
	policy, ok := scheduler.ParsePolicy(ctx.String("policy"))
	if !ok {
		return 0, cli.Errorf(cli.Usage, "--policy %q: want %s", ctx.String("policy"), scheduler.PolicyWords())
	}
	return policy, nil
}

// schedulerProcess runs this program's scheduler command.
type schedulerProcess struct {
	flags     *ucli.Context
	authority *identity.Authority
	replica   uint64
	runDir    string
}

// Run starts the process and waits for its end. Its standard input is a pipe
// whose other end only this process holds.
func (p *schedulerProcess) Run(ctx context.Context, addr, socket string) error {
	program, err := os.Executable()
	if err != nil {
		return fmt.Errorf("find this program: %w", err)
	}
	// A certificate for each start; the process renews it by itself.
	name := identity.Name{Cell: p.authority.Cell(), Role: identity.Scheduler, ID: strconv.FormatUint(p.replica, 10)}
	credential, err := p.authority.Certify(name, time.Now(), identity.Life)
	if err != nil {
		return err
	}
	file := filepath.Join(p.runDir, "scheduler.pem")
	if err := identity.WriteCredential(file, credential); err != nil {
		return err
	}
	args := []string{"scheduler", "--master", addr, "--identity", file, "--socket", socket, "--log-level", p.flags.String("log-level")}
	if format := p.flags.String("log-format"); format != "" {
		args = append(args, "--log-format", format)
	}
	if policy := p.flags.String("policy"); policy != "" {
		args = append(args, "--policy", policy)
	}
	args = append(args, rescheduleArgs(p.flags)...)
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
