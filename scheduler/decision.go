package scheduler

import (
	"fmt"
	"slices"

	"borg/borgmaster/cell"
)

// decision is what one place was chosen for, kept for Explain.
type decision struct {
	id ID
	// attempt is the one that began there.
	attempt uint64
	// index of the copy that it was decided on.
	index uint64
	// at is the place, runnerUp the second best; nil: nowhere else was room, or
	// nobody looked. They may have left the cell.
	at, runnerUp  *site
	score, second smallScore
	// looked counts the places that were looked at, found those with room.
	looked, found int32
	// fight is nil when nobody had to give way.
	fight *fight
}

// fight is why somebody had to give way.
type fight struct {
	by       ID
	priority int32
	machine  string
	index    uint64
	victims  []unit
	toll     toll
	// looked counts the machines that were looked at closely.
	looked int
	// otherwise is the next best machine and what it would have cost; empty:
	// there was none that was dearer and would have done.
	otherwise string
	dearer    toll
	// spared are some of those on the same machine that were no dearer and stayed.
	spared []spared
}

// spared is somebody who did not give way.
type spared struct {
	id       cell.CopyID
	name     string
	priority int32
	why      string
}

// smallScore is the parts of a score.
type smallScore [numParts]int32

// decisions keeps the last ones, in no order that matters.
type decisions struct {
	// blocks are full but for the last; next is where the next one goes, once
	// there are as many as may be.
	blocks [][]decision
	next   int
	// fights are those of them in which somebody gave way, and others since.
	fights    []*fight
	nextFight int
}

const (
	maxDecisions  = 1 << 16
	decisionBlock = 1 << 10
	maxFights     = 1 << 12
	maxSpared     = 8
)

// room returns where to write the next decision.
func (d *decisions) room() *decision {
	if at := d.next / decisionBlock; at == len(d.blocks) {
		d.blocks = append(d.blocks, make([]decision, decisionBlock))
	}
	at := &d.blocks[d.next/decisionBlock][d.next%decisionBlock]
	d.next = (d.next + 1) % maxDecisions
	return at
}

func (d *decisions) add(f *fight) {
	if len(d.fights) < maxFights {
		d.fights = append(d.fights, f)
		return
	}
	d.fights[d.nextFight] = f
	d.nextFight = (d.nextFight + 1) % maxFights
}

// of returns the decision that made an attempt of a task or alloc; nil when it
// is not kept (any more). What was decided twice was refused the first time.
func (d *decisions) of(id ID, attempt uint64) *decision {
	var last *decision
	for _, block := range d.blocks {
		for i := range block {
			if at := &block[i]; at.id == id && at.attempt == attempt && (last == nil || at.index >= last.index) {
				last = at
			}
		}
	}
	return last
}

// against returns the fight in which somebody gave way; nil when it is not kept.
func (d *decisions) against(id cell.CopyID) *fight {
	var last *fight
	for _, f := range d.fights {
		if (last == nil || f.index >= last.index) && slices.ContainsFunc(f.victims, func(u unit) bool { return u.id == id }) {
			last = f
		}
	}
	return last
}

// remember keeps what a place was chosen for. It is asked before the promise is
// made: the arrays are as they were when it was chosen.
func (p *pass) remember(w *want, id ID, last uint64, at spot, fought *fight) {
	s := p.s
	if s.dry {
		return
	}
	d := s.decisions.room()
	*d = decision{id: id, attempt: last + 1, index: p.c.Index(), at: at.site, looked: int32(p.checks - p.lookedBefore), fight: fought}
	if fought != nil {
		fought.by, fought.machine, fought.index, fought.priority = id, at.site.name, d.index, w.class.priority
		s.decisions.add(fought)
		return
	}
	d.found = int32(p.found)
	score := p.score(w, at)
	d.score = score.small()
	if d.runnerUp = p.runnerUp.site; d.runnerUp != nil {
		score = p.score(w, p.runnerUp)
		d.second = score.small()
	}
}

// score says what a place is worth, by parts.
func (f *search) score(w *want, at spot) (score Score) {
	g, c, slot := f.s.grid, w.class, at.site.slot
	if at.alloc == nil {
		score = g.parts(c, slot, f.s.cfg.Policy)
	} else {
		r := f.s.roomsOf(at.alloc.Set())
		score.Fit = f.allocFit(w, at.alloc, &r.free[c.view][at.alloc.Index()])
		score.like(c, slot)
	}
	if f.neighbours != nil {
		score.Spread = f.spread(w, f.neighbours, slot)
	}
	return score
}

// fight says why the victims at a place were chosen there, and not others.
func (p *pass) fight(w *want, at spot, victims []unit) *fight {
	f := &fight{victims: victims, toll: tollOf(victims), looked: p.closely}
	if p.otherwise != nil {
		f.otherwise, f.dearer = p.otherwise.name, p.dearer
	}
	room := p.free(w, at)
	for i := range victims {
		room = room.Add(victims[i].res)
	}
	for o := range at.site.machine.Copies() {
		if len(f.spared) == maxSpared {
			break
		}
		if o.Alloc() != at.alloc || o.Priority() > f.toll.priority || slices.ContainsFunc(victims, func(v unit) bool { return v.id == o.ID() }) {
			continue
		}
		why := ""
		switch u, ok := p.copyUnit(w.class, at.site, o); {
		case ok && o.Current() && p.s.cfg.Churn > 0 && p.mayHurt(o.JobUID()) == 0:
			why = "its job gave way as often as it may"
		case ok:
			why = f.instead(&u, &w.need.Resources, room)
		case o.Claimed() || slices.Contains(at.site.promised.Victims, o.ID()):
			why = "its room is another's already"
		case o.Waits():
			why = "it waits for others to give way itself"
		default:
			continue
		}
		f.spared = append(f.spared, spared{o.ID(), o.TaskID().String(), o.Priority(), why})
	}
	return f
}

// maxToldBytes is how much victims are told of the choice of them; the cell takes no
// more.
const maxToldBytes = 512

// told says for those who give way why it is they, and what else was looked at: as
// much of it as they are told.
func (f *fight) told() string {
	text := fmt.Sprintf("nowhere is room without, and of %s looked at %s costs least: %s", plural(f.looked, "machine"), f.machine, f.toll.words())
	more := func(format string, args ...any) {
		if part := fmt.Sprintf(format, args...); len(text)+len(part) <= maxToldBytes {
			text += part
		}
	}
	if f.otherwise != "" {
		more("; %s: %s", f.otherwise, f.dearer.words())
	}
	for _, s := range f.spared {
		more("; %s of priority %d stays: %s", s.name, s.priority, s.why)
	}
	return text
}

// instead says what came of trying somebody for one of the victims that are as
// dear or dearer. Room is what there is when they are all gone.
func (f *fight) instead(u *unit, need *cell.Resources, room cell.Resources) string {
	for i := range f.victims {
		if v := &f.victims[i]; v.priority >= u.priority && need.Fits(room.Sub(v.res).Add(u.res)) {
			return "would have done as well"
		}
	}
	return "does not hold enough to spare any of those who gave way"
}

// words says for people what a toll is.
func (t toll) words() string {
	if t.tasks == 0 {
		return "nobody who was not stopping already"
	}
	return fmt.Sprintf("%s, of priority %d at most", plural(t.tasks, "task"), t.priority)
}
