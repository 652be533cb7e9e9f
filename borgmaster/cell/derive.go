package cell

import (
	"errors"
	"fmt"
	"slices"
)

// finish derives what is not written down.
func (l *loader) finish() error {
	c := l.c
	for _, j := range l.jobs {
		if len(j.specs) == 0 {
			return fmt.Errorf("job %v has no spec", j.key)
		}
		if err := l.stand(j); err != nil {
			return err
		}
		j.settled = j.state()
		c.limitDomains(j)
		if j.deathSeq == 0 {
			c.jobRefs.add(j)
		} else {
			c.graveyard.queue = append(c.graveyard.queue, graveOf(j))
			c.countDead(j)
		}
		if err := j.update.loadExtra(); err != nil {
			return err
		}
		if j.update.Rolling() {
			for _, t := range j.rows {
				if t.flags&taskUpdating != 0 {
					j.update.down++
				}
				if ns := t.cur.upNs(); ns != 0 {
					j.update.watched = append(j.update.watched, watched{t.index, ns})
				}
			}
		}
	}
	for _, j := range l.jobs {
		if u := j.update; u != nil {
			u.sortWatched()
			u.chosen = u.canaries()
			c.setDue(j)
			c.noteWait(j)
		}
	}
	for _, s := range c.setList {
		if s.deathSeq != 0 {
			c.graveyard.queue = append(c.graveyard.queue, graveOfSet(s))
		}
	}
	slices.SortFunc(c.graveyard.queue, func(a, b grave) int {
		if a.seq < b.seq {
			return -1
		}
		return 1
	})
	for _, g := range c.graveyard.queue {
		c.graveyard.objects++
		if j := c.jobsByUID[g.uid]; j != nil && !g.isSet {
			c.graveyard.tasks += len(j.rows)
		} else {
			c.graveyard.tasks += len(c.setsByU[g.uid].allocs)
		}
		c.graveyard.enqueue(g)
	}
	for v := range c.Volumes() {
		v.kept = v.keptBytes()
		c.deriveYield(v)
		c.chargeVolumes(v.of)
	}
	c.stateUse = c.deriveStateUse()
	c.deriveStopCharges()
	c.countUse()
	c.deriveUnseated()
	return l.await()
}

// await makes the claims again, now that all copies are there.
func (l *loader) await() error {
	for _, w := range l.waits {
		m, r, res := (*Machine)(nil), (*room)(nil), (*Resources)(nil)
		if w.copy != nil {
			m, r, res = w.copy.machine, w.copy.room(), w.copy.res
		} else {
			if m = w.alloc.machine; m == nil {
				m = w.alloc.lostOn
			}
			res = w.alloc.res()
		}
		if m == nil || m.gone {
			return errors.New("who waits for victims has no place")
		}
		if r == nil {
			r = &m.room
		}
		var victims []*Copy
		for _, id := range w.victims {
			v := m.find(id)
			if v == nil || v.stop == nil || v.stop.promised != nil || slices.Contains(victims, v) {
				return fmt.Errorf("the victim %v is not there", id)
			}
			victims = append(victims, v)
		}
		claim := await(r, res, victims)
		if w.copy != nil {
			w.copy.wait = claim
		} else {
			w.alloc.wait = claim
		}
	}
	return nil
}
