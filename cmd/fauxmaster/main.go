// Fauxmaster opens the past of a cell anywhere: it says what is in a checkpoint,
// runs the real master over it, steps through the log, explains, and answers what
// would happen if (paper §3.1). It makes checkpoints of what others ran, and runs
// whole cells that never were, with faults, from a seed.
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
		Usage:   "open the past of a cell, away from the cell",
		Version: cli.Build(),
		// Shapes of machines have commas.
		DisableSliceFlagSeparator: true,
		Commands: append([]*ucli.Command{
			showCommand(), openCommand(), serveCommand(), stepCommand(), untilCommand(), replayCommand(), whyCommand(),
			importCommand(), fitCommand(), whatifCommand(), failCommand(), compactCommand(), abCommand(), simulateCommand(), faultsCommand(),
			experimentCommand(), defragCommand(), etaCommand(), diffCommand(), sampleCommand(), exportCommand(),
		}, mutantCommands()...),
	}
	return cli.Run(ctx, app, args, stdout, stderr)
}
