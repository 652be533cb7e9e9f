package fauxmaster

import (
	"fmt"

	"borg/borgmaster/cell"
	"borg/checkpoint"
	"borg/proto/borgrpc"
	"borg/scheduler"
	"borg/scheduler/process"
)

// Explain says why a task or an alloc of a cell waits, or where it is, as a
// scheduler with that configuration would: with nothing in flight.
func Explain(c *cell.Cell, id cell.TaskID, cfg scheduler.Config) (*borgrpc.WhyResponse, error) {
	search, err := scheduler.New(cfg)
	if err != nil {
		return nil, err
	}
	return explain(search, c, id)
}

func explain(search *scheduler.Scheduler, c *cell.Cell, id cell.TaskID) (*borgrpc.WhyResponse, error) {
	why, err := search.Explain(c, id.Job, id.Index)
	if err != nil {
		return nil, &NoTaskError{c.Index(), err}
	}
	return process.WhyResponse(why, c.Index()), nil
}

// NoTaskError says that there is no such task or alloc at an index.
type NoTaskError struct {
	Index uint64
	Err   error
}

func (e *NoTaskError) Error() string { return fmt.Sprintf("at index %d %v", e.Index, e.Err) }

func (e *NoTaskError) Unwrap() error { return e.Err }

// Explain says the same of a moment in the past. Of a task that has a place it
// tells for what that was chosen, if the decision can be made again: it goes back
// from checkpoint to checkpoint until it finds it.
func (p *Past) Explain(id cell.TaskID, m Moment, cfg scheduler.Config) (why *borgrpc.WhyResponse, at *Picture, err error) {
	k, err := p.before(m)
	if err != nil {
		return nil, nil, err
	}
	for i := len(p.kept) - 1; i >= 0; i-- {
		h := p.kept[i].Header
		if h.GetEpoch() != k.Header.GetEpoch() || h.GetIndex() > k.Header.GetIndex() {
			continue
		}
		from, then, ferr := p.explainFrom(p.kept[i], id, m, cfg)
		switch {
		case ferr != nil && why == nil:
			return nil, nil, ferr
		case ferr != nil:
			// The log does not go back so far.
			return why, at, nil
		case why == nil:
			why, at = from, then
		}
		if !lacksDecision(from) {
			return from, then, nil
		}
	}
	return why, at, nil
}

// lacksDecision tells an answer to which an earlier decision belongs that is not
// in it: for what the place was chosen, or to whom the task gave way.
func lacksDecision(why *borgrpc.WhyResponse) bool {
	if p := why.GetPlacement(); p != nil {
		return p.GetIndex() == 0
	}
	_, gaveWay := cell.TakenBy(why.GetTask().GetStatus().GetReason())
	return why.GetFight() == nil && gaveWay
}

// explainFrom replays from a checkpoint with a scheduler beside it.
func (p *Past) explainFrom(k checkpoint.Kept, id cell.TaskID, m Moment, cfg scheduler.Config) (*borgrpc.WhyResponse, *Picture, error) {
	t, err := p.play(k)
	if err != nil {
		return nil, nil, err
	}
	defer t.Close()
	d, err := p.decide(t, cfg)
	if err != nil {
		return nil, nil, err
	}
	defer d.close()
	t.follow(d)
	if err := t.to(m); err != nil {
		return nil, nil, err
	}
	// What the log has answered by then counts as heard.
	for len(d.unheard) > 0 {
		d.settle(t.Cell)
	}
	why, err := explain(d.search, t.Cell, id)
	if err != nil {
		return nil, nil, err
	}
	return why, t.Picture(), nil
}
