package main

import (
	"strconv"

	ucli "github.com/urfave/cli/v2"

	"borg/cli"
	"borg/scheduler"
)

// rescheduleFlags say for what running tasks are moved. An elected replica hands
// them on to its scheduler.
func rescheduleFlags() []ucli.Flag {
	return []ucli.Flag{
		&ucli.StringFlag{Name: "reschedule", Usage: "for what running tasks are moved, `REASONS` of " + scheduler.RescheduleWords() + ", with commas between them (default: pending)"},
		&ucli.IntFlag{Name: "moves", Usage: "move at most `N` tasks in a minute (default: 20)"},
	}
}

// reschedule reads them into the configuration of a search.
func reschedule(ctx *ucli.Context, search *scheduler.Config) error {
	var ok bool
	if search.Reschedule, ok = scheduler.ParseReschedule(ctx.String("reschedule")); !ok {
		return cli.Errorf(cli.Usage, "--reschedule %q: want off, or some of %s with commas between them", ctx.String("reschedule"), scheduler.RescheduleWords())
	}
	if search.Moves = ctx.Int("moves"); search.Moves < 0 || search.Moves == 0 && ctx.IsSet("moves") {
		return cli.Errorf(cli.Usage, "--moves %d: want 1 or more; --reschedule off moves none", search.Moves)
	}
	return nil
}

// rescheduleArgs are the flags as the scheduler command takes them.
func rescheduleArgs(ctx *ucli.Context) (args []string) {
	if reasons := ctx.String("reschedule"); reasons != "" {
		args = append(args, "--reschedule", reasons)
	}
	if n := ctx.Int("moves"); n > 0 {
		args = append(args, "--moves", strconv.Itoa(n))
	}
	return args
}
