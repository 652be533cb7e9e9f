package scheduler

// displace looks for a place for which others give way: the fewest, of the
// lowest band.
func (f *search) displace(w *want, index uint32) (at spot, victims []unit, ok bool) {
	if w.seated {
		return f.preemptSeat(w, index)
	}
	c, g := w.class, f.s.grid
	if f.s.dry || len(g.sites.walk) == 0 {
		return spot{}, nil, false
	}
	if w.inSet {
		return f.preemptInAllocs(w, index)
	}
	f.otherwise = nil
	d := displacement{search: f, want: w, most: enoughVictims(f.s.cfg.Enough)}
	if !f.s.cfg.NoHeadroom {
		d.room = f.s.headroomOf(f.c, c)
	}
	first := f.first(f.start(w, index))
	i := d.findFirst(first)
	if i >= 0 {
		d.improve(first, i)
	}
	f.closely = d.found
	return d.at, d.victims, d.ok
}

// displacement is one search for a machine on which others give way.
type displacement struct {
	*search
	*want
	// room is nil when every machine is looked at.
	room *headroom
	// at is the best machine so far, at the expense of victims; ok: there is one.
	at      spot
	victims []unit
	best    toll
	ok      bool
	// found counts the machines where somebody may give way, from the first that will do
	// on; the search ends at most of them.
	found, most int
}

// findFirst returns the first machine that will do, in the order of a walk that begins at
// first; -1 when there is none.
func (d *displacement) findFirst(first int32) int32 {
	c, g := d.class, d.s.grid
	if c.blocked && !c.whole {
		if changed, known := d.s.changes.since(c.seen); known {
			for i := range from(changed, first) {
				if c.static.fits.has(i) && g.usable.has(i) && d.try(i) {
					return i
				}
			}
			return -1
		}
	}
	r := pair(c.static.fits, g.usable, first)
	if d.room != nil {
		r = g.roomy(d.room, c, first)
	}
	for i := r.next(); i >= 0; i = r.next() {
		if d.try(i) {
			return i
		}
	}
	return -1
}

// improve looks at those that come after the first that will do, for a lower toll.
func (d *displacement) improve(first, after int32) {
	c, g := d.class, d.s.grid
	n := int32(len(g.sites.walk))
	place := func(i int32) int32 { return (i - first + n) % n }
	r := pair(c.static.fits, g.usable, after)
	r.next()
	for i := r.next(); i >= 0 && place(i) > place(after) && d.found < d.most; i = r.next() {
		d.try(i)
	}
}

// try looks at one machine and reports whether one was found that will do. It counts
// machines by mayMakeRoom, as only the first search is spared by the closer bound.
func (d *displacement) try(i int32) bool {
	f, w, g := d.search, d.want, d.s.grid
	f.checks++
	if d.room != nil {
		g.refreshHeadroom(i)
	}
	may := d.room == nil || d.room.mayHold(w.class, i)
	if !d.ok && !may || !f.mayMakeRoom(w, i) {
		return d.ok
	}
	if may {
		at := spot{site: g.sites.walk[i]}
		if units := f.giveWay(w, at, f.units(w, at.site), limitOf(d.best, d.ok)); units != nil {
			if toll := tollOf(units); !d.ok || toll.compare(d.best) < 0 {
				f.otherwise, f.dearer = d.at.site, d.best
				d.at, d.victims, d.best, d.ok = at, units, toll, true
			}
		}
	}
	// Machines where nobody can give way do not count before there is one: who
	// remembers that there is nobody does not look at them.
	if d.ok {
		d.found++
	}
	return d.ok
}

// enoughVictims is how many machines are looked at closely: a close look costs as
// much as many scores do.
func enoughVictims(enough int) int { return enough/4 + 1 }

// limitOf is the toll to beat.
func limitOf(best toll, ok bool) *toll {
	if !ok {
		return nil
	}
	return &best
}

// preemptInAllocs is preempt for a task that has to run in an alloc: who gives
// way runs in the same one.
func (f *search) preemptInAllocs(w *want, index uint32) (at spot, victims []unit, ok bool) {
	key, _ := w.line.job.AllocSet()
	set := f.c.AllocSet(key)
	if set == nil || set.NumAllocs() == 0 {
		return spot{}, nil, false
	}
	r := f.s.roomsOf(set)
	n := set.NumAllocs()
	i, looks := uint32(f.start(w, index)%uint64(n)), n
	if w.byIndex {
		if index >= n {
			return spot{}, nil, false
		}
		i, looks = index, 1
	}
	var best toll
	found := 0
	f.otherwise = nil
	defer func() { f.closely = found }()
	room := r.headroomOf(f, w.class)
	if room != nil && looks == n && !room.any(w.class, -1) {
		return spot{}, nil, false
	}
	for range looks {
		index, slot, a := i, r.slots[i], set.Alloc(i)
		if i++; i == n {
			i = 0
		}
		f.checks++
		if !f.mayBeAt(w, slot) {
			continue
		}
		here := f.spotIn(slot, a)
		var units []unit
		if room == nil || w.class.fitsRow(&room.rows[index]) {
			units = f.giveWay(w, here, f.unitsIn(w, here), limitOf(best, ok))
		}
		if units != nil {
			if toll := tollOf(units); !ok || toll.compare(best) < 0 {
				f.otherwise, f.dearer = at.site, best
				at, victims, best, ok = here, units, toll, true
			}
		}
		if found++; ok && found >= enoughVictims(f.s.cfg.Enough) {
			break
		}
	}
	return at, victims, ok
}
