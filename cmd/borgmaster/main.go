// Borgmaster is one replica of a cell's master: init makes its directory, serve
// runs it. The elected replica starts the same program once more as the
// cell's scheduler, a process of its own.
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
	// A second signal ends the program at once.
	context.AfterFunc(ctx, stop)
	code := run(ctx, os.Args, os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

// run is the program, for main and for tests.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	app := &ucli.App{
		Name:     "borgmaster",
		Usage:    "one replica of a cell's master",
		Version:  cli.Build(),
		Commands: []*ucli.Command{initCommand(), serveCommand(), schedulerCommand(), checkpointCommand(), memberCommand(), authorityCommand(), loginCommand()},
	}
	return cli.Run(ctx, app, args, stdout, stderr)
}
