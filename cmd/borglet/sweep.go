package main

import (
	"fmt"
	"os"
	"path/filepath"

	ucli "github.com/urfave/cli/v2"

	"borg/borglet/container"
	"borg/cli"
)

func sweepCommand() *ucli.Command {
	return &ucli.Command{
		Name:  "sweep",
		Usage: "end all tasks of a borglet that does not run any more, and remove their containers and cgroups",
		Flags: []ucli.Flag{
			&ucli.StringFlag{Name: "name", Usage: "`NAME` of the machine (default: the host name)"},
			&ucli.StringFlag{Name: "dir", Value: cli.StateDir("borglet"), Usage: "`DIRECTORY` of the borglet"},
			&ucli.StringFlag{Name: "run-dir", Value: cli.RunDir("borglet"), Usage: "run-time `DIRECTORY` of the borglet"},
		},
		Action: func(ctx *ucli.Context) error {
			if ctx.NArg() > 0 {
				return cli.Errorf(cli.Usage, "sweep takes no arguments, got %q", ctx.Args().First())
			}
			name, err := ctx.String("name"), error(nil)
			if name == "" {
				if name, err = hostname(); err != nil {
					return err
				}
			}
			dir, err := filepath.Abs(ctx.String("dir"))
			if err != nil {
				return cli.Errorf(cli.Usage, "--dir: %w", err)
			}
			runDir, err := filepath.Abs(ctx.String("run-dir"))
			if err != nil {
				return cli.Errorf(cli.Usage, "--run-dir: %w", err)
			}
			if _, err := os.Stat(dir); os.IsNotExist(err) {
				return cli.Errorf(cli.NotFound, "no borglet directory %s", dir).Hint("say where it is with --dir")
			}
			unlock, err := lockDir(ctx.Context, "--dir", dir)
			if err != nil {
				return err
			}
			defer unlock()
			swept, err := container.Sweep(ctx.Context, container.SweepConfig{Name: name, Dir: dir, RunDir: runDir})
			if err != nil {
				return cli.Errorf(cli.Failed, "sweep: %w", err)
			}
			fmt.Fprintf(ctx.App.Writer, "swept machine %s: %s\n", name, swept)
			return nil
		},
	}
}
