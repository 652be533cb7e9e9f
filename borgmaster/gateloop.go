package borgmaster

import (
	"context"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"borg/borgmaster/cell"
	"borg/borgmaster/metric"
	"borg/proto/borgpb"
)

const (
	// gateTick is how often updates that wait for their gates are asked about.
	gateTick = 2 * time.Second
	// A round asks so many gates, the next one those after them; and so many at once.
	maxGatesInRound = 64
	maxGatesAtOnce  = 8
)

// gateLoop asks the gates of updates, while this replica is elected, and tells the cell
// what they said. It remembers nothing that matters: the cell says who waits.
type gateLoop struct {
	m     *Master
	asker *metric.Asker
	// Number of those that were passed over, round after round.
	first int
}

// gateQuestion is one update that waits.
type gateQuestion struct {
	op   *borgpb.JudgeGate
	gate *borgpb.MetricGate
	last borgpb.GateVerdict
	// The update fails if the answer is still that it fails.
	over bool
}

// Run asks until ctx ends.
func (l *gateLoop) Run(ctx context.Context) {
	ticker := time.NewTicker(gateTick)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		if !l.m.cfg.Log.State().Ready {
			continue
		}
		var all errgroup.Group
		all.SetLimit(maxGatesAtOnce)
		for _, q := range l.waiting() {
			all.Go(func() error {
				l.ask(ctx, q)
				return nil
			})
		}
		_ = all.Wait()
	}
}

// waiting are the questions of a round.
func (l *gateLoop) waiting() (all []gateQuestion) {
	l.m.cfg.Log.View(func(c *cell.Cell) {
		for j, g := range c.Gated() {
			all = append(all, gateQuestion{
				op:   &borgpb.JudgeGate{User: j.Key().User, Name: j.Key().Name, UpdateUid: j.Update().UID().String()},
				gate: g, last: j.Update().LastVerdict(), over: c.GateOver(j),
			})
		}
	})
	if len(all) > maxGatesInRound {
		from := l.first % len(all)
		l.first = from + maxGatesInRound
		all = slices.Concat(all[from:], all[:from])[:maxGatesInRound]
	}
	return all
}

// ask puts one question and proposes the answer, if that is any news. What becomes of
// the proposal, the next look at the cell says.
func (l *gateLoop) ask(ctx context.Context, q gateQuestion) {
	q.op.Verdict, q.op.Words = l.asker.Ask(ctx, q.gate)
	if q.op.Verdict == q.last && q.last != borgpb.GateVerdict_GATE_VERDICT_PASS && !q.over || ctx.Err() != nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, dutyTimeout)
	defer cancel()
	result, err := l.m.cfg.Log.Propose(ctx, &borgpb.Op{Principal: ownOp, Op: &borgpb.Op_JudgeGate{JudgeGate: q.op}})
	if err == nil {
		err = refusalError(result.GetRefusal())
	}
	if err != nil && ctx.Err() == nil {
		l.m.cfg.Logger.Warn("answer of the gate of an update was not taken", "job", q.op.User+"/"+q.op.Name, "err", err)
	}
}

// checkGateServer refuses an update whose gate no master may ask: it would wait for ever.
func (m *Master) checkGateServer(spec *borgpb.JobSpec) *borgpb.Refusal {
	if spec.GetUpdate().GetGate() == nil {
		return nil
	}
	if err := m.asker.Allow(spec.Update.Gate.Url); err != nil {
		r := refusal(borgpb.RefusalKind_REFUSAL_KIND_INVALID, "", "%v", err)
		r.Field = "spec.update.gate.url"
		return r
	}
	return nil
}
