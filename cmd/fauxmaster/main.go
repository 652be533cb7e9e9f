// Fauxmaster opens checkpoints of a cell anywhere: it says what was in them,
// checks that nothing is missing, and answers what would happen if (paper §3.1). It
// makes such checkpoints from what others ran, and runs whole cells that never were,
// with faults, from a seed.
package main

import (
	"context"
	"io"
	"os"
	"os/signal"
	"syscall"

	ucli "github.com/urfave/cli/v2"

	"borg/cli"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code := run(ctx, os.Args, os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

// run is the program, for main and for tests.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	app := &ucli.App{
		Name:    "fauxmaster",
		Usage:   "open checkpoints of a cell, away from the cell",
		Version: cli.Build(),
		Commands: append([]*ucli.Command{
			showCommand(), importCommand(), fitCommand(), whatifCommand(), failCommand(), compactCommand(), abCommand(), simulateCommand(),
		}, mutantCommands()...),
	}
	return cli.Run(ctx, app, args, stdout, stderr)
}
