package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"borg/proto/borgpb"
)

// audit judges the cell at the end: it waits until all is as it was last asked
// for, or until patience is at its end, and looks at everything once more.
func audit(ctx context.Context, m *masters, into *followed, patience time.Duration, out io.Writer) error {
	s, err := settled(ctx, m, patience, out)
	if err != nil {
		return err
	}
	m.witness.see(func(b *book) { b.settle(s) })
	if err := auditOutput(ctx, m, s); err != nil {
		return err
	}
	return auditEvents(ctx, m, into)
}

// settled is the whole cell when all of it is as it was asked for, or as it is
// when patience is at its end.
func settled(ctx context.Context, m *masters, patience time.Duration, out io.Writer) (snapshot, error) {
	until := time.Now().Add(patience)
	told := ""
	for try := 0; ; try++ {
		s, err := m.snapshot(ctx, try%len(m.replica))
		late := time.Now().After(until)
		if ctx.Err() != nil || err != nil && late {
			return s, errors.Join(err, ctx.Err())
		}
		if err == nil {
			lack := ""
			m.witness.see(func(b *book) {
				lack = b.unsettled(s)
				if s.index > 0 {
					b.sawAll(s)
				}
			})
			if late || lack == "" && s.index > 0 {
				return s, nil
			}
			if lack != told && lack != "" {
				fmt.Fprintln(out, "waiting:", lack)
				told = lack
			}
		}
		pause(ctx, watchPeriod)
	}
}

// auditOutput compares what finished tasks wrote with what logs shows. Output
// is kept by the borglet for as long as it knows the copy, so what is not
// found is no violation.
func auditOutput(ctx context.Context, m *masters, s snapshot) error {
	for n, t := range s.tasks {
		l, batch := (*life)(nil), false
		m.witness.see(func(b *book) {
			l = b.lives[t.GetMeta().GetUid()]
			batch = l != nil && l.plan == planBatch && l.killed == 0
		})
		if !batch || t.GetStatus().GetAttemptState() != borgpb.AttemptState_ATTEMPT_STATE_FINISHED {
			continue
		}
		text, err := m.output(ctx, n%len(m.replica), t)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err == nil {
			m.witness.see(func(b *book) { b.sawOutput(t, text) })
		} else if status.Code(errors.Unwrap(err)) != codes.Unavailable {
			m.failed(n%len(m.replica), "Logs", errors.Unwrap(err))
		}
	}
	return nil
}

// auditEvents reads all events of each replica that answers, and compares them
// with what was acknowledged and with what its followers were told.
func auditEvents(ctx context.Context, m *masters, into *followed) error {
	for i := range m.replica {
		c, err := m.getCell(ctx, i)
		if err != nil {
			continue
		}
		s, err := m.events(ctx, i, 0, false)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err != nil {
			continue
		}
		into.mu.Lock()
		streams := slices.Clone(into.streams[i])
		into.mu.Unlock()
		m.witness.see(func(b *book) {
			b.endStream(s, c.GetAppliedIndex())
			for _, f := range streams {
				b.compareStreams(f, s)
			}
		})
	}
	return nil
}
