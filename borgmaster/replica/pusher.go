package replica

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"borg/checkpoint"
)

const (
	// maxPushes bounds the checkpoints that wait to be copied elsewhere; the oldest
	// is passed over.
	maxPushes = 4
	// pushRetry lies between two tries, pushTimeout bounds one.
	pushRetry   = time.Minute
	pushTimeout = 30 * time.Minute
)

// pusher copies checkpoints to other places. Its goroutine, which Run waits for,
// holds nothing else up.
type pusher struct {
	to   []checkpoint.Destination
	log  *slog.Logger
	wake chan struct{}

	mu sync.Mutex
	// Guarded by mu.
	queue []push
}

type push struct {
	fs   vfs.FS
	path string
	kept checkpoint.Kept
}

func newPusher(to []checkpoint.Destination, log *slog.Logger) *pusher {
	return &pusher{to: to, log: log, wake: make(chan struct{}, 1)}
}

// add queues a checkpoint.
func (p *pusher) add(fs vfs.FS, path string, kept checkpoint.Kept) {
	if len(p.to) == 0 {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.queue) == maxPushes {
		p.log.Warn("a checkpoint is not copied: too many wait", "index", p.queue[0].kept.Header.GetIndex())
		p.queue = p.queue[1:]
	}
	p.queue = append(p.queue, push{fs, path, kept})
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

func (p *pusher) take() (push, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.queue) == 0 {
		return push{}, false
	}
	next := p.queue[0]
	p.queue = p.queue[1:]
	return next, true
}

// run copies what is queued until ctx ends.
func (p *pusher) run(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-p.wake:
		}
		for next, ok := p.take(); ok && ctx.Err() == nil; next, ok = p.take() {
			for _, to := range p.to {
				p.push(ctx, next, to)
			}
		}
	}
}

// push tries until it is done, or a newer checkpoint waits.
func (p *pusher) push(ctx context.Context, what push, to checkpoint.Destination) {
	for {
		err := putOne(ctx, what, to)
		switch {
		case err == nil:
			p.log.Info("checkpoint copied", "index", what.kept.Header.GetIndex(), "to", to.String())
			return
		case ctx.Err() != nil, errors.Is(err, os.ErrNotExist):
			return
		}
		p.log.Error("a checkpoint is not copied; it is tried again", "index", what.kept.Header.GetIndex(), "to", to.String(), "err", err)
		timer := time.NewTimer(pushRetry)
		select {
		case <-ctx.Done():
		case <-timer.C:
		}
		timer.Stop()
		p.mu.Lock()
		newer := len(p.queue) > 0
		p.mu.Unlock()
		if newer || ctx.Err() != nil {
			return
		}
	}
}

func putOne(ctx context.Context, what push, to checkpoint.Destination) (err error) {
	ctx, cancel := context.WithTimeout(ctx, pushTimeout)
	defer cancel()
	f, err := what.fs.Open(what.path)
	if err != nil {
		return fmt.Errorf("read checkpoint %s: %w", what.path, err)
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	return to.Put(ctx, what.kept.Name, what.kept.Bytes, f)
}
