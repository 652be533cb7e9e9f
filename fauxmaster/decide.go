package fauxmaster

import (
	"fmt"
	"iter"
	"slices"

	"google.golang.org/protobuf/proto"

	"borg/borgmaster/cell"
	"borg/checkpoint"
	"borg/proto/borgpb"
	"borg/scheduler"
)

// scoutAhead is how many entries are read ahead of those that are applied. A
// batch that comes later than that after the index at which it was decided is
// not made again.
const scoutAhead = 10_000

// Decisions counts the batches of schedulers that were in the log.
type Decisions struct {
	// Made again, bit for bit; made again, and another came out.
	Same, Differ int
	// Not made again: decided by another configuration, or with something in
	// flight that is not known here.
	Skipped int
	// What the first that differs is, and why the first was skipped.
	Difference, Why string
}

func (d *Decisions) add(o Decisions) {
	d.Same, d.Differ, d.Skipped = d.Same+o.Same, d.Differ+o.Differ, d.Skipped+o.Skipped
	if d.Difference == "" {
		d.Difference = o.Difference
	}
	if d.Why == "" {
		d.Why = o.Why
	}
}

// decider follows a tape and makes the passes of its scheduler again, each with
// the copy at the index at which it was made. Batches say so, but only when they
// come in the log, so it has a scout read ahead.
type decider struct {
	search *scheduler.Scheduler
	hash   uint64
	next   func() (checkpoint.PastEntry, error, bool)
	stop   func()
	// Index of the last entry that the scout has read, and whether there are more.
	scouted uint64
	over    bool
	// Batches that are to be made, by the index of the copy, in their order.
	due map[uint64][]*borgpb.Assign
	// Batches that were made and are not in the log yet, in order.
	sent []madeBatch
	// Those that are in the log, and of which the scheduler may not have heard, in
	// order. Nobody wrote down when it did.
	unheard []heard
	// What the scheduler remembered then is not all known: where the replay began,
	// and after a batch that was not made again. Until a batch comes out the same
	// with nothing in flight, one that differs says nothing.
	unsure bool
	Decisions
}

// heard is what the log answered to a batch.
type heard struct {
	id     uint64
	result *borgpb.Result
}

// madeBatch is a batch that was made again.
type madeBatch struct {
	logged *borgpb.Assign
	id     uint64
}

// decide has a scheduler follow a tape that has just begun.
func (p *Past) decide(t *Tape, cfg scheduler.Config) (*decider, error) {
	search, err := scheduler.New(cfg)
	if err != nil {
		return nil, err
	}
	d := &decider{search: search, hash: cfg.Hash(), scouted: t.Cell.Index(), due: map[uint64][]*borgpb.Assign{}, unsure: true}
	d.next, d.stop = iter.Pull2(p.archive.Entries(t.Cell.Epoch(), t.Cell.Index()))
	return d, nil
}

func (d *decider) close() { d.stop() }

// scout reads ahead. What ends the log ends the tape too, which says why.
func (d *decider) scout(index uint64) {
	for !d.over && d.scouted < index+scoutAhead {
		e, err, ok := d.next()
		if !ok || err != nil {
			d.over = true
			return
		}
		d.scouted = e.Index
		for _, a := range assigns(e.Data) {
			switch at := a.GetCopyIndex(); {
			case at < index:
				d.skip(a, fmt.Sprintf("it was decided before index %d, from where on the log was replayed", index))
			default:
				d.due[at] = append(d.due[at], a)
			}
		}
	}
}

// assigns are the batches in an entry.
func assigns(data []byte) (all []*borgpb.Assign) {
	entry := new(borgpb.Entry)
	if proto.Unmarshal(data, entry) != nil {
		return nil
	}
	for _, o := range entry.GetOps() {
		op := new(borgpb.Op)
		if proto.Unmarshal(o, op) == nil && op.GetAssign() != nil {
			all = append(all, op.GetAssign())
		}
	}
	return all
}

func (d *decider) skip(a *borgpb.Assign, why string) {
	d.unsure = true
	if d.Skipped++; d.Why == "" {
		d.Why = fmt.Sprintf("of the batch decided at index %d: %s", a.GetCopyIndex(), why)
	}
}

// before makes what was decided with the cell as it is now.
func (d *decider) before(c *cell.Cell) {
	d.scout(c.Index())
	for _, logged := range d.due[c.Index()] {
		if logged.GetConfigHash() != d.hash {
			d.skip(logged, fmt.Sprintf("it is of configuration %016x, this is %016x; other flags of the scheduler, other choices", logged.GetConfigHash(), d.hash))
			continue
		}
		// What one pass decided may be in several batches, and all say what was in
		// flight before it.
		if !d.goesOn(logged) {
			inFlight := int(logged.GetInFlight())
			for d.search.InFlight() > inFlight && len(d.unheard) > 0 {
				d.settle(c)
			}
			if known := d.search.InFlight(); known != inFlight {
				d.skip(logged, fmt.Sprintf("%d were in flight, and %d are known", inFlight, known))
				continue
			}
		}
		d.compare(c, logged, d.search.Pass(c))
	}
	delete(d.due, c.Index())
}

// goesOn tells whether a batch is of the same pass as the one made last.
func (d *decider) goesOn(logged *borgpb.Assign) bool {
	if len(d.sent) == 0 || !d.search.Ready() {
		return false
	}
	last := d.sent[len(d.sent)-1].logged
	return last.GetCopyIndex() == logged.GetCopyIndex() && last.GetInFlight() == logged.GetInFlight()
}

// compare takes in what came out.
func (d *decider) compare(c *cell.Cell, logged *borgpb.Assign, b scheduler.Batch) {
	same := sameBatch(b.Assign, logged)
	switch {
	case same:
		d.Same++
		d.unsure = d.unsure && logged.GetInFlight() > 0
	case d.unsure:
		d.skip(logged, "another came out, and not all is known that the scheduler remembered then")
	default:
		if d.Differ++; d.Difference == "" {
			d.Difference = fmt.Sprintf("the batch decided at index %d has %d assignments, and %d when it is made again", c.Index(), len(logged.GetAssignments()), len(b.Assign.GetAssignments()))
		}
	}
	switch {
	case b.ID == 0:
	case same:
		d.sent = append(d.sent, madeBatch{logged, b.ID})
	default:
		// It was never sent.
		d.search.Settle(c, b.ID, nil)
	}
}

// settle has the scheduler hear what became of the oldest batch.
func (d *decider) settle(c *cell.Cell) {
	d.search.Settle(c, d.unheard[0].id, d.unheard[0].result)
	d.unheard = d.unheard[1:]
}

// sameBatch compares what was decided, not who noted it.
func sameBatch(made, logged *borgpb.Assign) bool {
	if made == nil {
		return false
	}
	a, b := proto.CloneOf(made), proto.CloneOf(logged)
	a.Build, b.Build = "", ""
	return proto.Equal(a, b)
}

// after takes in what came of an entry.
func (d *decider) after(c *cell.Cell, s *Step) {
	d.search.Observe(c, s.Events)
	for i, data := range s.Entry.Entry.GetOps() {
		op := new(borgpb.Op)
		if len(d.sent) == 0 || proto.Unmarshal(data, op) != nil || op.GetAssign() == nil || !proto.Equal(op.GetAssign(), d.sent[0].logged) {
			continue
		}
		d.unheard = append(d.unheard, heard{d.sent[0].id, s.result(i)})
		d.sent = d.sent[1:]
	}
	// Of one of which nothing was refused it is all the same when it is heard of.
	for len(d.unheard) > 0 && !refusedAny(d.unheard[0].result) {
		d.settle(c)
	}
}

func refusedAny(r *borgpb.Result) bool {
	return r.GetRefusal() != nil || slices.ContainsFunc(r.GetItems(), func(item *borgpb.Refusal) bool {
		return item.GetKind() != borgpb.RefusalKind_REFUSAL_KIND_UNSPECIFIED
	})
}
