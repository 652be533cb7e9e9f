package process

import (
	"errors"
	"io"
	"log/slog"
	"os"
	"syscall"
	"time"

	"borg/identity"
	"borg/scheduler"
)

// Config says whom to follow and how.
type Config struct {
	// Master is the door of the elected master, "host:port".
	Master string
	// Identity is who the scheduler is to the master. Required.
	Identity *identity.Source
	// Socket is the path of the unix socket on which Explain is served; empty:
	// it is not served.
	Socket string
	// Pages is the path of the unix socket on which the status page and the metrics
	// are shown, for the master to pass on; empty: they are not.
	Pages string
	// Notice stands above the page; nil: nothing is to be noticed.
	Notice func() string
	// Name is the scheduler's: it places the jobs whose spec names it; empty:
	// the default one. Goes into Search too.
	Name string
	// Build is put into each batch for the record.
	Build string
	// Parent ends the process: Run returns when it reads end of file, which is
	// what a pipe gives when whoever holds the other end dies. Nil: nobody is
	// watched. Run closes it. See Stdin.
	Parent io.ReadCloser
	// Search says how places are looked for.
	Search scheduler.Config
	// RetryMin and RetryMax bound the pause before a lost master is dialed
	// again; zero: 50 ms and 2 s.
	RetryMin, RetryMax time.Duration
	// Settled is told the index of the copy whenever nothing is left to propose or to wait
	// for at it; nil: nobody is told. It must not block.
	Settled func(index uint64)
	// Logger gets what an operator should see; nil: nothing is logged.
	Logger *slog.Logger
}

// Limits of what waits at one time.
const (
	// lotMessages is how many messages of the master are taken in before a
	// pass is made; as many may wait behind them.
	lotMessages = 64
	// batchesInFlight is how many batches may wait for the log's answer.
	batchesInFlight = 4
	// maxAsks is how many questions may wait for the copy to come to the index
	// that they name.
	maxAsks = 64
	// assignTimeout is how long one batch is waited for. Whatever becomes of it
	// after that, the copy will tell.
	assignTimeout = 15 * time.Second
	// steadyAfter is how long a connection must have lasted for the next pause
	// to be the shortest again.
	steadyAfter = 10 * time.Second
)

// withDefaults returns c with its zero fields filled in, or what is wrong.
func (c Config) withDefaults() (Config, error) {
	if c.Master == "" {
		return c, errors.New("scheduler: no master to follow was given; say --master host:port")
	}
	if c.Identity == nil {
		return c, errors.New("scheduler: it has no certificate to show the master; say --identity FILE")
	}
	c.Search.Name = c.Name
	if err := c.Search.Validate(); err != nil {
		return c, err
	}
	if c.RetryMin == 0 {
		c.RetryMin = 50 * time.Millisecond
	}
	if c.RetryMax == 0 {
		c.RetryMax = 2 * time.Second
	}
	if c.RetryMin < 0 || c.RetryMax < c.RetryMin {
		return c, errors.New("scheduler: the pauses before dialing again must not be negative, nor the longest shorter than the shortest")
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	return c, nil
}

// Stdin returns standard input as a Parent. Unlike os.Stdin it can be closed
// while it is being read.
func Stdin() (io.ReadCloser, error) {
	if err := syscall.SetNonblock(syscall.Stdin, true); err != nil {
		return nil, os.NewSyscallError("make standard input non-blocking", err)
	}
	return os.NewFile(uintptr(syscall.Stdin), "stdin"), nil
}
