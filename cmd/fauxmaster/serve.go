package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os/user"
	"strings"
	"time"

	ucli "github.com/urfave/cli/v2"

	"borg/cfg"
	"borg/cli"
	"borg/fauxmaster"
	"borg/scheduler/flags"
)

func openCommand() *ucli.Command {
	return &ucli.Command{
		Name:      "open",
		Usage:     "open a checkpoint as a cell that can be driven, and say how",
		ArgsUsage: "CHECKPOINT|ARCHIVE",
		Description: "The cell is the real master over what is in the checkpoint; its machines and tasks only\n" +
			"pretend. It is read and changed with borgcfg, like any cell; nothing is written back. On\n" +
			"standard input it takes: " + orders + ".\nCtrl-C ends it and leaves nothing behind.",
		Flags:  serveFlags(),
		Action: func(ctx *ucli.Context) error { return serve(ctx, true) },
	}
}

func serveCommand() *ucli.Command {
	return &ucli.Command{
		Name:        "serve",
		Usage:       "as open, for programs: prints the path of the cell file and nothing else",
		ArgsUsage:   "CHECKPOINT|ARCHIVE",
		Description: "Give the path to borgcfg --cell. SIGTERM ends it and leaves nothing behind.",
		Flags:       serveFlags(),
		Action:      func(ctx *ucli.Context) error { return serve(ctx, false) },
	}
}

func serveFlags() []ucli.Flag {
	return append([]ucli.Flag{
		atFlag("of an archive that is opened (default: the last one)"),
		&ucli.StringFlag{Name: "listen", Value: "127.0.0.1:0", Usage: "`ADDRESS` (host:port) to serve on; port 0 is any that is free"},
		cli.HTTPFlag(),
		&ucli.StringFlag{Name: "dir", Usage: "new `DIRECTORY` for the cell file and what belongs to it, removed at the end (default: among temporary files)"},
		&ucli.StringFlag{Name: "user", Usage: "`NAME` of who may do everything in it (default: your login name)"},
		&ucli.StringFlag{Name: "speed", Value: "1", Usage: "how time goes: so many `TIMES` as fast as outside, max, or stop"},
		&ucli.DurationFlag{Name: "batch-lasts", Usage: "`TIME` that the process of a batch task runs (default: for ever; a checkpoint does not tell)"},
		&ucli.StringFlag{Name: "log-level", Value: "error", Usage: "debug, info, warn or error"},
		&ucli.StringFlag{Name: "log-format", Usage: "text or json (default: text on a terminal, json elsewhere)"},
	}, flags.All()...)
}

func serve(ctx *ucli.Context, forPeople bool) error {
	if ctx.NArg() != 1 {
		return cli.Errorf(cli.Usage, "want one checkpoint file, or one archive").Hint("fauxmaster %s CHECKPOINT", ctx.Command.Name)
	}
	config := fauxmaster.Config{Listen: ctx.String("listen"), HTTP: ctx.String("http"), Dir: ctx.String("dir"), BatchLasts: ctx.Duration("batch-lasts"), Build: cli.Build()}
	var err error
	if config.Speed, err = fauxmaster.ParseSpeed(ctx.String("speed")); err != nil {
		return cli.Errorf(cli.Usage, "--speed: %w", err)
	}
	if config.BatchLasts < 0 {
		return cli.Errorf(cli.Usage, "--batch-lasts %v is negative", config.BatchLasts)
	}
	if config.User, err = opener(ctx.String("user")); err != nil {
		return err
	}
	if config.Logger, err = cli.NewLogger(ctx); err != nil {
		return err
	}
	if config.Search, err = flags.Config(ctx); err != nil {
		return err
	}
	m, err := momentOf(ctx)
	if err != nil {
		return err
	}
	if config.Picture, err = fauxmaster.OpenAt(ctx.Args().First(), m); err != nil {
		return pastError(ctx.Args().First(), err)
	}
	s, err := fauxmaster.New(config)
	if err != nil {
		return cli.Errorf(cli.Failed, "open %s: %w", ctx.Args().First(), err)
	}
	runs, end := context.WithCancel(ctx.Context)
	defer end()
	if forPeople {
		greet(ctx.App.Writer, s, config)
		// Ends with standard input, or with the process.
		go func() {
			if drive(runs, s, ctx.App.Reader, ctx.App.Writer) {
				end()
			}
		}()
	} else {
		fmt.Fprintln(ctx.App.Writer, s.CellFile())
	}
	if err := s.Run(runs); err != nil {
		return cli.Errorf(cli.Failed, "serve %s: %w", ctx.Args().First(), err)
	}
	return nil
}

// opener is the user whom the cell obeys.
func opener(given string) (string, error) {
	name := given
	if name == "" {
		if u, err := user.Current(); err == nil {
			name = cfg.DNSLabel(u.Username)
		}
	}
	if name == "" || cfg.DNSLabel(name) != name {
		return "", cli.Errorf(cli.Usage, "--user %q cannot be part of a DNS name", given).Hint("letters a-z, digits and dashes: --user NAME")
	}
	return name, nil
}

func greet(w io.Writer, s *fauxmaster.Server, config fauxmaster.Config) {
	fmt.Fprintf(w, "cell %s, simulated, %s, at %s; time: %s\n", config.Picture.Header.GetCellName(), config.Picture.AsOf(), s.Addr(), config.Speed)
	fmt.Fprintf(w, "talk to it as %s, from anywhere on this machine:\n", config.User)
	fmt.Fprintf(w, "  borgcfg --cell %s status\n", s.CellFile())
	fmt.Fprintf(w, "or once for all:\n  export BORG_CELL=%s\n", s.CellFile())
	if url := s.Pages(); url != "" {
		fmt.Fprintf(w, "status page: %s\n", url)
	}
	fmt.Fprintf(w, "here: %s; Ctrl-C ends it, nothing is written back\n", orders)
}

const orders = "speed TIMES|max|stop, pass TIME, time, quit"

// drive takes orders about time until they end; true: the last one was to quit.
func drive(ctx context.Context, s *fauxmaster.Server, in io.Reader, out io.Writer) (quit bool) {
	for lines := bufio.NewScanner(in); lines.Scan() && ctx.Err() == nil; {
		words := strings.Fields(lines.Text())
		if len(words) == 0 {
			continue
		}
		argument := ""
		if len(words) == 2 {
			argument = words[1]
		}
		switch {
		case words[0] == "quit" && len(words) == 1:
			return true
		case words[0] == "time" && len(words) == 1:
		case words[0] == "speed" && argument != "":
			speed, err := fauxmaster.ParseSpeed(argument)
			if err != nil {
				fmt.Fprintln(out, err)
				continue
			}
			s.World().SetSpeed(speed)
		case words[0] == "pass" && argument != "":
			d, err := cli.ParseDuration(argument)
			if err != nil || d < 0 {
				fmt.Fprintf(out, "%q is no time that passes; for instance 90s, 10m or 2h\n", argument)
				continue
			}
			if s.World().Pass(ctx, d) != nil {
				return false
			}
		default:
			fmt.Fprintf(out, "say %s\n", orders)
			continue
		}
		fmt.Fprintf(out, "it is %s; time: %s\n", s.WallNow().Format(time.RFC3339), s.World().Speed())
	}
	return false
}
