// Borgcfg is the command-line client of a cell: job files, jobs, tasks, allocs,
// machines, logs, and why a task waits.
//
// Standard output carries what was asked for; progress and hints go to
// standard error. It does nothing that another client could not do through the
// same calls.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"golang.org/x/term"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code := run(ctx, os.Args, &console{
		stdin: os.Stdin, stdout: os.Stdout, stderr: os.Stderr, env: os.Getenv,
		terminal:    term.IsTerminal(int(os.Stdout.Fd())),
		errTerminal: term.IsTerminal(int(os.Stderr.Fd())),
		inTerminal:  term.IsTerminal(int(os.Stdin.Fd())),
	})
	stop()
	os.Exit(code)
}
