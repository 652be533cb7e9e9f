package process

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"golang.org/x/sync/errgroup"

	"borg/borgmaster/cell"
	"borg/scheduler"
)

// errParentGone ends Run when the parent has closed its end.
var errParentGone = errors.New("the parent process is gone")

// process is a running scheduler process. Only its loop goroutine touches
// copy, search and waiting.
type process struct {
	cfg   Config
	asks  chan *ask
	looks chan chan<- look
	meter *meter

	// copy is nil while no master is followed.
	copy   *cell.Cell
	search *scheduler.Scheduler
	// waiting are questions about an index that the copy has not reached; at
	// most maxAsks.
	waiting []*ask
}

// Run follows the master until ctx ends or the parent is gone; either is no
// error.
func Run(ctx context.Context, cfg Config) error {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return err
	}
	p := &process{cfg: cfg, asks: make(chan *ask, maxAsks), looks: make(chan chan<- look), meter: newMeter()}
	group, ctx := errgroup.WithContext(ctx)
	if cfg.Pages != "" {
		if err := p.showPages(ctx, group); err != nil {
			if cfg.Parent != nil {
				cfg.Parent.Close()
			}
			return err
		}
	}
	if cfg.Socket != "" {
		stop, err := p.serve(group)
		if err != nil {
			if cfg.Parent != nil {
				cfg.Parent.Close()
			}
			return err
		}
		group.Go(func() error {
			<-ctx.Done()
			stop()
			return nil
		})
	}
	if cfg.Parent != nil {
		group.Go(func() error { return watchParent(cfg.Parent) })
		group.Go(func() error {
			<-ctx.Done()
			cfg.Parent.Close()
			return nil
		})
	}
	group.Go(func() error {
		p.follow(ctx)
		return ctx.Err()
	})
	err = group.Wait()
	if errors.Is(err, errParentGone) || errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		cfg.Logger.Info("scheduler stops", "err", err)
		return nil
	}
	return err
}

// watchParent returns when the other end of r is closed. What is read means
// nothing.
func watchParent(r io.Reader) error {
	_, err := io.Copy(io.Discard, r)
	if err != nil && !errors.Is(err, io.ErrClosedPipe) {
		return fmt.Errorf("%w: %w", errParentGone, err)
	}
	return errParentGone
}

// follow makes one session after the other until ctx ends.
func (p *process) follow(ctx context.Context) {
	pause := p.cfg.RetryMin
	for ctx.Err() == nil {
		began := time.Now()
		err := p.session(ctx)
		p.forget()
		if ctx.Err() != nil {
			return
		}
		if time.Since(began) >= steadyAfter {
			pause = p.cfg.RetryMin
		}
		p.cfg.Logger.Warn("the master is not followed; dialing again", "master", p.cfg.Master, "pause", pause, "err", err)
		if !p.idle(ctx, pause) {
			return
		}
		pause = min(2*pause, p.cfg.RetryMax)
	}
}

// forget drops what belongs to a session that has ended: what was tentative
// either shows in the next copy or was never done.
func (p *process) forget() {
	if p.search != nil {
		p.meter.before = total(p.meter.before, p.search.Stats())
	}
	p.copy, p.search = nil, nil
	for _, a := range p.waiting {
		a.fail(errNotFollowing)
	}
	p.waiting = nil
}

// idle waits for d and answers questions meanwhile; it reports false when ctx
// has ended.
func (p *process) idle(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return false
		case a := <-p.asks:
			a.fail(errNotFollowing)
		case to := <-p.looks:
			to <- p.look(nil)
		case <-timer.C:
			return true
		}
	}
}
