package checkpoint

import (
	"context"
	"time"
)

// paceBytes are handled between two rests: so little that who waits for the
// processor hardly notices.
const paceBytes = chunkTargetBytes / 4

// pacer keeps long work to a share of one processor, by a rest after each small
// piece that is as much longer than the piece took.
type pacer struct {
	// Zero: no rests.
	share float64
	bytes int
	began time.Time
	timer *time.Timer
}

func newPacer(share float64) *pacer { return &pacer{share: share, began: time.Now()} }

// after is called after so many bytes, rests when it is time, and returns the
// error of ctx.
func (p *pacer) after(ctx context.Context, bytes int) error {
	if p.bytes += bytes; p.share <= 0 || p.share >= 1 || p.bytes < paceBytes {
		return ctx.Err()
	}
	p.bytes = 0
	// The piece may have waited for the processor itself: then others need it more.
	rest := time.Duration(float64(time.Since(p.began)) * (1 - p.share) / p.share)
	if p.timer == nil {
		p.timer = time.NewTimer(rest)
	} else {
		p.timer.Reset(rest)
	}
	select {
	case <-p.timer.C:
	case <-ctx.Done():
		p.timer.Stop()
	}
	p.began = time.Now()
	return ctx.Err()
}
