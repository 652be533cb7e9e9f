// Borgcell runs a whole cell on this machine as real processes: masters,
// borglets, and the tasks that they run. It is there to try Borg, to develop
// it, and to break it in tests.
//
// It starts the same programs with the same flags as a real cell, watches
// them, and leaves nothing behind: what a killed run left is swept by the next
// one.
package main

import (
	"context"
	"io"
	"os"

	ucli "github.com/urfave/cli/v2"

	"borg/cli"
)

func main() {
	os.Exit(run(context.Background(), os.Args, os.Stdout, os.Stderr))
}

// run is the program, for main and for tests.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	app := &ucli.App{
		Name:     "borgcell",
		Usage:    "a whole cell on this machine, to try and to develop",
		Version:  cli.Build(),
		Commands: []*ucli.Command{runCommand(), demoCommand(), doctorCommand(), fakeCommand()},
	}
	return cli.Run(ctx, app, args, stdout, stderr)
}
