package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	ucli "github.com/urfave/cli/v2"

	"borg/cli"
)

// demo shows a cell at work and checks every claim that it prints.
type demo struct {
	layout layout
	cell   *Cell
	// Where the job files are.
	examples string
	out      io.Writer
	began    time.Time
	// What the machine's processes were when the jobs were up; nothing but an
	// update may change it.
	before snapshot
	// The follower that was killed and is to come back.
	dead int
}

// step is one thing that the demo does. It returns what was seen, for the
// line that is printed.
type step struct {
	// What is claimed when it went well.
	claim string
	// Bound on it, so that nothing hangs.
	limit time.Duration
	do    func(ctx context.Context) (seen string, err error)
}

// unexpected is a claim that was not true.
type unexpected struct {
	want, seen string
}

func (e *unexpected) Error() string { return fmt.Sprintf("expected %s; seen: %s", e.want, e.seen) }

func expected(want, seenFormat string, args ...any) error {
	return &unexpected{want: want, seen: fmt.Sprintf(seenFormat, args...)}
}

func demoCommand() *ucli.Command {
	return &ucli.Command{
		Name:  "demo",
		Usage: "start a cell, run jobs, kill parts of it, check that all is well, leave nothing",
		Description: "Exits with 0 only if everything that it printed was true. " +
			"Without --dir it works in a temporary directory, which it removes unless something failed.",
		Flags: append(cellFlags("demo", "", 7400, 26000, "error"),
			&ucli.StringFlag{Name: "examples", Usage: "`DIRECTORY` of the job files (default: examples, here or beside --bin)"},
			&ucli.BoolFlag{Name: "thin", Usage: "one machine: only start, up, status, down, clean"},
			&ucli.BoolFlag{Name: "probe", Usage: "one machine: have a task look around, and compare what it sees and can do with what it should"},
			&ucli.BoolFlag{Name: "keep", Usage: "leave the cell running at the end, until Ctrl-C"}),
		Action: runDemo,
	}
}

func runDemo(ctx *ucli.Context) error {
	l, err := layoutFrom(ctx)
	if err != nil {
		return err
	}
	if ctx.Bool("thin") && ctx.Bool("probe") {
		return cli.Errorf(cli.Usage, "--thin and --probe: want one of both")
	}
	if (ctx.Bool("thin") || ctx.Bool("probe")) && !ctx.IsSet("machines") {
		l.Machines = 1
	}
	temporary := l.dir == ""
	if temporary {
		if l.dir, err = os.MkdirTemp("", "borg-demo-"); err != nil {
			return fmt.Errorf("make a directory for the demo: %w", err)
		}
	}
	log, err := cli.NewLogger(ctx)
	if err != nil {
		return err
	}
	stop := catchSignals(ctx.Context)
	defer stop.release()
	d := &demo{layout: l.place(), out: ctx.App.Writer, began: time.Now(), examples: ctx.String("examples")}
	if d.examples == "" {
		d.examples = findExamples(l.binDir)
	}
	open := func(ctx context.Context) (err error) {
		// What an earlier demo left in the directory is not the subject.
		d.cell, err = OpenCell(ctx, d.layout, true, log)
		return err
	}
	err = d.play(stop.running, d.script(open, ctx.Bool("thin"), ctx.Bool("probe")))
	if err == nil && ctx.Bool("keep") {
		d.cell.welcome(d.out, time.Since(d.began))
		<-stop.running.Done()
	}
	err = errors.Join(err, d.clean(stop.stopping, err != nil || ctx.Bool("keep")))
	// Logs of a failure are kept, if there are any.
	if temporary && (err == nil || d.cell == nil) {
		err = errors.Join(err, os.RemoveAll(l.dir))
	}
	if err != nil {
		return d.failure(err)
	}
	fmt.Fprintf(d.out, "all of it was true, in %.1f s\n", time.Since(d.began).Seconds())
	return nil
}

// findExamples is the directory of the job files: here, or beside the
// directory of the programs.
func findExamples(binDir string) string {
	if _, err := os.Stat("examples"); err == nil {
		return "examples"
	}
	return filepath.Join(filepath.Dir(binDir), "examples")
}

func (d *demo) script(open func(context.Context) error, thin, probe bool) []step {
	start := []step{
		{"this machine can run a cell", 10 * time.Second, d.preflight},
		{"the cell is up", time.Minute, func(ctx context.Context) (string, error) { return d.start(ctx, open) }},
	}
	if probe {
		return append(start,
			step{"a task sees and can do what it should, and nothing else", 3 * time.Minute, d.probe},
			step{"everything went down", time.Minute, d.down})
	}
	if thin {
		return append(start,
			step{"a service of 3 tasks is up", time.Minute, d.upHello},
			step{"each task serves its page", 20 * time.Second, d.pages},
			step{"status tells", 10 * time.Second, d.status},
			step{"everything went down", time.Minute, d.down})
	}
	return append(start,
		step{"a service of 3 tasks and a batch job of 8 are accepted", time.Minute, d.upBoth},
		step{"the service runs", time.Minute, d.serviceRuns},
		step{"each task serves its page", 20 * time.Second, d.pages},
		step{"the batch job finished", time.Minute, d.batchFinished},
		step{"status and logs tell", 20 * time.Second, d.statusAndLogs},
		step{"a task that cannot fit says why", 30 * time.Second, d.whyPinned},
		step{"the elected master was killed: the next submit was taken, no task restarted", time.Minute, d.killElected},
		step{"a follower was killed: nothing moved", 30 * time.Second, d.killFollower},
		step{"a changed flag rolled through the service", 2 * time.Minute, d.update},
		step{"the dead follower came back and caught up", 30 * time.Second, d.startFollower},
		step{"a borglet was killed: the next one adopted its tasks", time.Minute, d.killBorglet},
		step{"everything went down", time.Minute, d.down})
}

// play does the steps in order and prints a line for each.
func (d *demo) play(ctx context.Context, script []step) error {
	for _, s := range script {
		if err := d.one(ctx, s); err != nil {
			return err
		}
	}
	return nil
}

func (d *demo) one(ctx context.Context, s step) error {
	limited, cancel := context.WithTimeout(ctx, s.limit)
	defer cancel()
	began := time.Now()
	seen, err := s.do(limited)
	mark := "ok    "
	if err != nil {
		mark = "FAILED"
	}
	fmt.Fprintf(d.out, "[%5.1f s] %s %s (%.1f s)\n", time.Since(d.began).Seconds(), mark, s.claim, time.Since(began).Seconds())
	if seen != "" {
		fmt.Fprintln(d.out, indent(seen, "                 "))
	}
	if err == nil {
		return nil
	}
	if ctx.Err() != nil {
		return context.Canceled
	}
	return fmt.Errorf("%s: %w", s.claim, err)
}

// clean stops the cell and checks that nothing of it is left. It is a step like
// the others, also after a failure. mayRun: tasks may run, which are stopped
// first.
func (d *demo) clean(ctx context.Context, mayRun bool) error {
	if d.cell == nil {
		return nil
	}
	return d.one(ctx, step{"no process, cgroup, mount or network device is left", 2 * time.Minute, func(ctx context.Context) (string, error) {
		if mayRun {
			// Tasks that do not stop in order are killed; if something failed
			// before, that is what to look at.
			downCtx, cancel := context.WithTimeout(ctx, stopGrace)
			defer cancel()
			_ = d.cell.DownAll(downCtx)
		}
		return "", d.cell.Stop(ctx)
	}})
}

// failure is the error of the whole demo, with what to look at.
func (d *demo) failure(err error) error {
	if errors.Is(err, context.Canceled) {
		return err
	}
	e := cli.Errorf(cli.Failed, "%w", err)
	var u *unexpected
	if errors.As(err, &u) {
		e.What = fmt.Sprintf("not everything was true\n  expected: %s\n  seen:     %s", u.want, u.seen)
	}
	if d.cell == nil {
		return e
	}
	return e.Hint("logs: %s\nall else: %s", d.layout.logDir(), d.layout.dir)
}

// borgcfg runs the command that a user would type, shows it, and returns what
// it printed.
func (d *demo) borgcfg(ctx context.Context, args ...string) (stdout string, code int, err error) {
	fmt.Fprintf(d.out, "          $ borgcfg %s\n", strings.Join(args, " "))
	cmd := exec.CommandContext(ctx, d.layout.bin("borgcfg"), args...)
	cmd.Env = append(os.Environ(), "BORG_CELL="+d.layout.cellFile(), "BORG_USER="+d.cell.user, "NO_COLOR=1")
	cmd.WaitDelay = time.Second
	var out, errOut bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errOut
	err = cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		return "", 0, fmt.Errorf("borgcfg %s: %w", args[0], err)
	}
	code = cmd.ProcessState.ExitCode()
	if code != cli.OK && errOut.Len() > 0 {
		fmt.Fprintln(d.out, indent(errOut.String(), "          ! "))
	}
	return out.String(), code, nil
}

// mustBorgcfg is borgcfg that has to end with exit code 0.
func (d *demo) mustBorgcfg(ctx context.Context, args ...string) (string, error) {
	out, code, err := d.borgcfg(ctx, args...)
	if err == nil && code != cli.OK {
		err = expected(fmt.Sprintf("borgcfg %s to succeed", args[0]), "exit code %d", code)
	}
	return out, err
}

// show prints what a command printed.
func (d *demo) show(text string) {
	if text = strings.TrimRight(text, "\n"); text != "" {
		fmt.Fprintln(d.out, indent(text, "          | "))
	}
}

func indent(text, by string) string {
	return by + strings.ReplaceAll(strings.TrimRight(text, "\n"), "\n", "\n"+by)
}
