package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	ucli "github.com/urfave/cli/v2"

	"borg/cli"
)

func runCommand() *ucli.Command {
	return &ucli.Command{
		Name:  "run",
		Usage: "run a cell until Ctrl-C, then stop its tasks and leave nothing behind",
		Description: "The cell's data stay in --dir; the next run there is the same cell. " +
			"A second Ctrl-C kills the tasks instead of waiting for them.",
		Flags: append(cellFlags("local", ".borg", 7000, 20000, "warn"),
			append(fakeFlags(),
				&ucli.StringSliceFlag{Name: "metric-gates", Usage: "the gates of updates may have masters ask the Prometheus servers below this `URL`; may be repeated (default: none, and gates are refused)"},
				&ucli.BoolFlag{Name: "fresh", Usage: "throw away the cell that is in --dir and make a new one"})...),
		Action: runCell,
	}
}

func runCell(ctx *ucli.Context) error {
	l, err := layoutFrom(ctx)
	if err != nil {
		return err
	}
	if !ctx.Bool("fresh") {
		if l, err = l.settle(ctx.IsSet); err != nil {
			return err
		}
	}
	l = l.place()
	log, err := cli.NewLogger(ctx)
	if err != nil {
		return err
	}
	out := ctx.App.Writer
	stop := catchSignals(ctx.Context)
	defer stop.release()
	if err := preflight(stop.running, out, l); err != nil {
		return err
	}
	c, err := OpenCell(stop.running, l, ctx.Bool("fresh"), log)
	if err != nil {
		return err
	}
	began := time.Now()
	fmt.Fprintf(out, "starting %d masters and %d machines\n", len(c.masterNumbers()), c.Machines)
	err = c.Start(stop.running)
	if err == nil {
		c.welcome(out, time.Since(began))
		c.followMasters(stop.running)
		fmt.Fprintln(out)
		if c.Fake == nil {
			c.downBeforeStop(stop.stopping, ctx.App)
		}
	}
	return c.finishAfter(stop.stopping, ctx.App, err)
}

// downBeforeStop stops all tasks in order. Pretended ones need not be: nothing is
// left of them.
func (c *Cell) downBeforeStop(ctx context.Context, app *ucli.App) {
	fmt.Fprintln(app.Writer, "stopping all tasks; Ctrl-C again kills them")
	if err := c.DownAll(ctx); err != nil {
		fmt.Fprintf(app.ErrWriter, "borgcell: tasks will be killed: %v\n", err)
	}
}

// finishAfter finishes, and returns the earlier error if there was one.
func (c *Cell) finishAfter(ctx context.Context, app *ucli.App, earlier error) error {
	err := c.finish(ctx, app.Writer)
	if earlier != nil && err != nil {
		fmt.Fprintln(app.ErrWriter, "borgcell:", err)
		return earlier
	}
	return errors.Join(earlier, err)
}

// finish stops the processes and says what was found when it was done.
func (c *Cell) finish(ctx context.Context, out io.Writer) error {
	fmt.Fprintln(out, "stopping all processes")
	if err := c.Stop(ctx); err != nil {
		return cli.Errorf(cli.Failed, "the cell did not stop cleanly: %w", err).
			Hint("logs: %s\nthe next borgcell run --dir %s sweeps again", c.logDir(), c.dir)
	}
	fmt.Fprintf(out, "stopped; checked: no process, cgroup, mount or network device is left. The cell's data are in %s\n", c.dir)
	return nil
}

// welcome says where everything is and what to type next.
func (c *Cell) welcome(out io.Writer, took time.Duration) {
	cellFile := shortPath(c.cellFile())
	borgcfg := shortPath(c.bin("borgcfg"))
	if cellFile != filepath.Join(".borg", "cell.yaml") {
		borgcfg += " --cell " + cellFile
	}
	hello := filepath.Join(shortPath(findExamples(c.binDir)), helloFile)
	fmt.Fprintf(out, "cell %s is up after %.1f s\n", c.Name, took.Seconds())
	for _, line := range [][2]string{
		{"masters", c.eachMaster(c.masterAddr)},
		{"machines", fmt.Sprintf("%s to %s, %s to %s", c.machineName(1), c.machineName(c.Machines), c.borgletAddr(1), c.borgletAddr(c.Machines))},
		{"pages", c.pages()},
		{"cell file", cellFile},
		{"logs", shortPath(c.logDir())},
		{"data", shortPath(c.dir)},
	} {
		fmt.Fprintf(out, "  %-9s %s\n", line[0], line[1])
	}
	fmt.Fprintln(out, "try, in another terminal:")
	for _, args := range []string{"status", "up " + hello + " --set bin=" + c.binDir, "status hello", "machine list"} {
		fmt.Fprintf(out, "  %s %s\n", borgcfg, args)
	}
	fmt.Fprintln(out, "Ctrl-C stops all tasks and processes.")
}

// shortPath is a path as one would type it here.
func shortPath(path string) string {
	wd, err := os.Getwd()
	if err != nil {
		return path
	}
	if rel, err := filepath.Rel(wd, path); err == nil && filepath.IsLocal(rel) {
		return rel
	}
	return path
}

// signalled is what the user's signals have ended: the first ends running, the
// second the patience of stopping.
type signalled struct {
	running, stopping context.Context
	release           func()
}

// catchSignals listens for Ctrl-C and SIGTERM until release is called.
func catchSignals(parent context.Context) signalled {
	running, endRunning := context.WithCancel(parent)
	stopping, endStopping := context.WithCancel(context.WithoutCancel(parent))
	signals := make(chan os.Signal, 4)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	quit := make(chan struct{})
	var listener sync.WaitGroup
	listener.Go(func() {
		for _, end := range []func(){endRunning, endStopping} {
			select {
			case <-signals:
				end()
			case <-quit:
				return
			}
		}
		// Further ones change nothing: the sweep goes on.
		<-quit
	})
	release := func() {
		signal.Stop(signals)
		close(quit)
		listener.Wait()
		endRunning()
		endStopping()
	}
	return signalled{running: running, stopping: stopping, release: release}
}
