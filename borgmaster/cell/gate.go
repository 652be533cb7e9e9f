package cell

import (
	"fmt"
	"iter"

	"borg/mutant"
	"borg/proto/borgpb"
)

// gate is what a metric must be before each batch of an update. The cell asks nobody: it
// says which updates wait for an answer (Gated), and is told what it was.
type gate struct {
	asked       bool
	failAfterNs int64
	// The next batch may go. Set by an answer, and cleared when anybody was disturbed.
	open bool
	// The last answer; and cell time since which every one was out of bounds, zero: the
	// last was not.
	verdict  borgpb.GateVerdict
	failedNs int64
	words    string
}

func newGate(g *borgpb.MetricGate) gate {
	if g == nil {
		return gate{}
	}
	n := gate{asked: true, failAfterNs: g.FailAfterNs}
	if n.failAfterNs == 0 {
		n.failAfterNs = gateFailsAfterNs
	}
	return n
}

func checkGate(g *borgpb.MetricGate) *borgpb.Refusal {
	const field = "spec.update.gate."
	switch {
	case g == nil:
		return nil
	case len(g.Url) == 0 || len(g.Url) > maxGateURLBytes:
		return invalid(field+"url", "want 1 to %d bytes: the address of a Prometheus server, as \"http://prometheus:9090\"", maxGateURLBytes)
	case len(g.Query) == 0 || len(g.Query) > maxGateQueryBytes:
		return invalid(field+"query", "want a query of 1 to %d bytes", maxGateQueryBytes)
	case g.LeastMicro == nil && g.MostMicro == nil:
		return invalid(field+"most_micro", "there is no bound: want least or most")
	case g.LeastMicro != nil && g.MostMicro != nil && *g.LeastMicro > *g.MostMicro:
		return invalid(field+"least_micro", "no value is at least %d and at most %d millionths", *g.LeastMicro, *g.MostMicro)
	case g.FailAfterNs < 0 || g.FailAfterNs > maxUpdateWaitNs:
		return outOfSpan(field+"fail_after_ns", g.FailAfterNs, 0, maxUpdateWaitNs)
	}
	return nil
}

// gateShut tells that nobody else may be disturbed before the gate was asked.
func (u *Update) gateShut() bool {
	return u.gate.asked && !u.gate.open && !mutant.Planted(mutant.GateNotAsked)
}

// asksGate tells that an update waits for nothing but its gate.
func (c *Cell) asksGate(u *Update) bool {
	return u != nil && u.gateShut() && u.down == 0 && !c.restored.held && !c.lapsed(u) &&
		(u.state == borgpb.UpdateState_UPDATE_STATE_ROLLING || u.state == borgpb.UpdateState_UPDATE_STATE_ROLLING_BACK)
}

// Gated yields the jobs whose updates wait for an answer of their gates, with what is
// to be asked.
func (c *Cell) Gated() iter.Seq2[*Job, *borgpb.MetricGate] {
	return func(yield func(*Job, *borgpb.MetricGate) bool) {
		for j := range c.jobs.each() {
			if c.asksGate(j.update) && !yield(j, j.Spec().GetUpdate().GetGate()) {
				return
			}
		}
	}
}

// LastVerdict is what the gate of the update said last.
func (u *Update) LastVerdict() borgpb.GateVerdict { return u.gate.verdict }

func (c *Cell) checkJudgeGate(o *borgpb.JudgeGate) (commit, *borgpb.Refusal) {
	j, r := c.checkLive(JobKey{o.User, o.Name}, 0)
	if r != nil {
		return nil, r
	}
	u := j.update
	switch {
	case u == nil || o.UpdateUid != u.uid.String():
		return nil, refuse(borgpb.RefusalKind_REFUSAL_KIND_CONFLICT, j.key.String(), "update_uid", "its update is another one")
	case !c.asksGate(u):
		return nil, badState(j.key.String(), "its update does not wait for a gate")
	case o.Verdict == 0:
		return nil, invalid("verdict", "want pass, fail or unknown")
	}
	return func(res *borgpb.Result) {
		c.judgeGate(u, o)
		c.review(j)
		res.Uid, res.Version, res.UpdateUid = j.uid.String(), j.version, u.uid.String()
	}, nil
}

// judgeGate writes down an answer. Nothing is disturbed here: roll does what it lets be
// done.
func (c *Cell) judgeGate(u *Update, o *borgpb.JudgeGate) {
	g := &u.gate
	was := g.verdict
	g.verdict, g.words = o.Verdict, clip(o.Words, maxReasonBytes)
	switch o.Verdict {
	case borgpb.GateVerdict_GATE_VERDICT_PASS:
		// It stood still for want of this.
		g.open, g.failedNs, u.progressNs = true, 0, c.clock.cellNs
		c.tellUpdate(u, "its gate lets it go on: "+g.words)
	case borgpb.GateVerdict_GATE_VERDICT_FAIL:
		if g.failedNs == 0 {
			g.failedNs = max(c.clock.cellNs, 1)
		}
		if c.clock.cellNs >= g.failedNs+g.failAfterNs {
			c.dirty(u)
			c.failUpdate(u.job, g.failWords())
			return
		}
		if was != o.Verdict {
			c.tellUpdate(u, "its gate holds it: "+g.words)
		}
	default:
		g.failedNs = 0
		if was != o.Verdict {
			c.tellUpdate(u, "its gate does not answer, which holds it: "+g.words)
		}
	}
	c.dirty(u)
}

// forget begins anew with what was answered.
func (g *gate) forget() { g.verdict, g.failedNs, g.words = 0, 0, "" }

// shutGate ends what an answer allowed, when anybody was disturbed.
func (c *Cell) shutGate(u *Update) {
	if u.gate.open && u.down > 0 {
		u.gate.open = false
		c.dirty(u)
	}
}

// gateEndNs is the cell time from which on an update fails if its gate is still out of
// bounds; maxTimeNs: never.
func (c *Cell) gateEndNs(u *Update) int64 {
	if u == nil || u.gate.failedNs == 0 || !c.asksGate(u) {
		return maxTimeNs
	}
	return u.gate.failedNs + u.gate.failAfterNs
}

// GateOver reports whether the update of a job fails if its gate is still out of bounds.
func (c *Cell) GateOver(j *Job) bool { return c.gateEndNs(j.update) <= c.clock.cellNs }

// failWords is why an update fails for its gate.
func (g *gate) failWords() string {
	return "its gate was out of bounds for " + spanWords(g.failAfterNs) + ": " + g.words
}

func (g *gate) ok() bool {
	_, known := borgpb.GateVerdict_name[int32(g.verdict)]
	return known && g.failAfterNs >= 0 && g.failAfterNs <= maxTimeNs && g.failedNs >= 0 && g.failedNs <= maxTimeNs
}

func (g *gate) check(u *Update) error {
	if g.failedNs != 0 != (g.verdict == borgpb.GateVerdict_GATE_VERDICT_FAIL) || !g.asked && *g != (gate{}) {
		return fmt.Errorf("its gate has said %v, and is out of bounds since %d", g.verdict, g.failedNs)
	}
	if g.open && u.down > 0 && u.Rolling() {
		return fmt.Errorf("its gate is open and %d tasks are down", u.down)
	}
	return nil
}

func (e *encoder) gate(g *gate) {
	e.bool(g.asked)
	e.int(g.failAfterNs)
	e.bool(g.open)
	e.byte(byte(g.verdict))
	e.int(g.failedNs)
	e.str(g.words)
}

func (d *decoder) gate() gate {
	return gate{asked: d.bool(), failAfterNs: d.int(), open: d.bool(), verdict: borgpb.GateVerdict(d.byte()), failedNs: d.int(), words: d.str()}
}
