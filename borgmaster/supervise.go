package borgmaster

import (
	"context"
	"time"
)

// SchedulerProcess is the scheduler as a process of its own.
type SchedulerProcess interface {
	// Run starts the process, which follows the master at addr and answers on
	// the socket, and returns when it has ended. It ends the process when ctx
	// does.
	Run(ctx context.Context, addr, socket string) error
}

const (
	schedulerBackoffMin = 100 * time.Millisecond
	schedulerBackoffMax = 5 * time.Second
	// A process that ran for so long had started well: the next pause is short.
	schedulerHealthy = 10 * time.Second
)

// superviseScheduler keeps a scheduler process running while this replica is
// elected, until ctx ends.
func (m *Master) superviseScheduler(ctx context.Context) {
	for {
		changed := m.stateChanged.Wait()
		if m.cfg.Log.State().Ready {
			m.runScheduler(ctx)
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return
		}
	}
}

// runScheduler returns when this replica is no longer elected, or its authority was
// replaced: a process that is started then has a certificate of the new one.
func (m *Master) runScheduler(ctx context.Context) {
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	authority := m.authorityGeneration()
	// Ends the process when somebody else is elected; ends with this function.
	go func() {
		defer close(done)
		for {
			changed := m.stateChanged.Wait()
			if !m.cfg.Log.State().Ready || m.authorityGeneration() != authority {
				cancel()
			}
			select {
			case <-changed:
			case <-ctx.Done():
				return
			}
		}
	}()
	backoff := schedulerBackoffMin
	for ctx.Err() == nil {
		started := time.Now()
		err := m.cfg.Scheduler.Run(ctx, m.cfg.Addr, m.cfg.SchedulerSocket)
		if ctx.Err() != nil {
			break
		}
		if time.Since(started) > schedulerHealthy {
			backoff = schedulerBackoffMin
		}
		m.cfg.Logger.Warn("scheduler process ended; starting it again", "err", err, "pause", backoff)
		pause := time.NewTimer(backoff)
		select {
		case <-pause.C:
		case <-ctx.Done():
			pause.Stop()
		}
		backoff = min(2*backoff, schedulerBackoffMax)
	}
	cancel()
	<-done
}
