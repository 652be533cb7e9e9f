// Command borglet is the agent of one machine: `serve`, and the small processes
// that it starts for each task (shim) and for each program run beside one (exec).
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"

	ucli "github.com/urfave/cli/v2"
	"golang.org/x/sys/unix"

	"borg/borglet/container"
	"borg/cli"
)

func main() {
	// A shim is started many times and does one thing; it needs no command line.
	if len(os.Args) == 3 && os.Args[1] == "shim" {
		os.Exit(container.Shim(os.Args[2]))
	}
	if len(os.Args) == 3 && os.Args[1] == container.ExecArgument {
		os.Exit(container.Exec(os.Args[2]))
	}
	if signal.Ignored(unix.SIGHUP) {
		// As by nohup. It stays without effect here, and tasks do not inherit that: a shell that does
		// cannot trap the signal.
		signal.Notify(make(chan os.Signal, 1), unix.SIGHUP)
	}
	ctx, stop := signal.NotifyContext(context.Background(), unix.SIGINT, unix.SIGTERM)
	code := cli.Run(ctx, app(), os.Args, os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

func app() *ucli.App {
	return &ucli.App{
		Name:    "borglet",
		Usage:   "the agent of one machine of a Borg cell",
		Version: cli.Build(),
		Commands: []*ucli.Command{
			serveCommand(),
			sweepCommand(),
			{
				Name: "shim", Hidden: true, Usage: "watch over one task (started by serve)", ArgsUsage: "DIRECTORY",
				Action: func(ctx *ucli.Context) error {
					return cli.Errorf(cli.Usage, "shim: want one directory, got %d arguments", ctx.NArg())
				},
			},
			{
				Name: container.ExecArgument, Hidden: true, Usage: "run one program beside a task (started by serve)", ArgsUsage: "DIRECTORY",
				Action: func(ctx *ucli.Context) error {
					return cli.Errorf(cli.Usage, "exec: want one directory, got %d arguments", ctx.NArg())
				},
			},
		},
		Action: func(ctx *ucli.Context) error {
			if ctx.NArg() > 0 {
				return cli.Errorf(cli.Usage, "unknown command %q", ctx.Args().First()).Hint("see: borglet --help")
			}
			fmt.Fprintln(ctx.App.Writer, "borglet is the agent of one machine. Start it with: borglet serve")
			return ucli.ShowAppHelp(ctx)
		},
	}
}
