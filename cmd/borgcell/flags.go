package main

import (
	"fmt"
	"os"
	"path/filepath"

	ucli "github.com/urfave/cli/v2"

	"borg/cli"
)

// runDirName is the directory, among run-time directories, that holds those of
// all cells run by borgcell.
const runDirName = "borgcell"

// cellFlags are the flags that say which cell, with the defaults of a command.
func cellFlags(name, dir string, portBase, taskPortBase int, logLevel string) []ucli.Flag {
	return []ucli.Flag{
		&ucli.StringFlag{Name: "cell", Value: name, Usage: "`NAME` of the cell; the machines are called NAME-m1, NAME-m2, ..."},
		&ucli.StringFlag{Name: "dir", Value: dir, Usage: "`DIRECTORY` that holds everything of the cell"},
		&ucli.StringFlag{Name: "run-dir", Usage: "`DIRECTORY` of sockets and run-time state (default: " + cli.RunDir(runDirName, "NAME") + ")"},
		&ucli.IntFlag{Name: "masters", Value: 5, Usage: "`NUMBER` of replicas of the borgmaster"},
		&ucli.IntFlag{Name: "machines", Value: 3, Usage: "`NUMBER` of borglets"},
		&ucli.IntFlag{Name: "port-base", Value: portBase, Usage: "master N listens on `PORT`+N, the borglet of machine K on PORT+100+K; their status pages are 50 and 100 ports further"},
		&ucli.IntFlag{Name: "task-port-base", Value: taskPortBase, Usage: fmt.Sprintf("tasks are granted ports from `PORT` on, at least 10 a machine, all below %d", taskPortEnd)},
		&ucli.StringFlag{Name: "capacity", Usage: "what each machine offers, cpu=500m,mem=2GiB,disk=10GiB (default: an equal `SHARE` of this machine)"},
		&ucli.StringFlag{Name: "runtime", Value: "auto", Usage: "container, process (no isolation, no limits), or auto: containers `WHERE` they can be had"},
		&ucli.StringFlag{Name: "bin", Usage: "`DIRECTORY` of borgmaster, borglet and borgcfg (default: where borgcell is)"},
		&ucli.StringFlag{Name: "log-level", Value: logLevel, Usage: "debug, info, warn or error: of borgcell itself"},
		&ucli.StringFlag{Name: "log-format", Value: "text", Usage: "text or json"},
	}
}

// layoutFrom is the layout that the flags ask for. An empty --dir stays empty.
func layoutFrom(ctx *ucli.Context) (layout, error) {
	if ctx.NArg() > 0 {
		return layout{}, cli.Errorf(cli.Usage, "%s takes no arguments, but %q was given", ctx.Command.Name, ctx.Args().First()).
			Hint("see: borgcell %s --help", ctx.Command.Name)
	}
	l := layout{
		Name: ctx.String("cell"), Masters: ctx.Int("masters"), Machines: ctx.Int("machines"),
		PortBase: ctx.Int("port-base"), TaskPortBase: ctx.Int("task-port-base"),
		Capacity: ctx.String("capacity"), Runtime: ctx.String("runtime"), MetricGates: ctx.StringSlice("metric-gates"),
		dir: ctx.String("dir"), RunDir: ctx.String("run-dir"), binDir: ctx.String("bin"),
	}
	var err error
	if l.Fake, err = fakeFrom(ctx); err != nil {
		return l, err
	}
	if err := l.validate(); err != nil {
		return l, err
	}
	if l.binDir == "" {
		self, err := os.Executable()
		if err != nil {
			return l, fmt.Errorf("find the other programs: %w", err)
		}
		l.binDir = filepath.Dir(self)
	}
	for _, dir := range []*string{&l.dir, &l.RunDir, &l.binDir} {
		if *dir == "" {
			continue
		}
		abs, err := filepath.Abs(*dir)
		if err != nil {
			return l, err
		}
		*dir = abs
	}
	return l, nil
}

// place fills in the run-time directory once the name of the cell is settled.
func (l layout) place() layout {
	if l.RunDir == "" {
		l.RunDir = cli.RunDir(runDirName, l.Name)
	}
	return l
}
