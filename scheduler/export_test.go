package scheduler

import (
	"cmp"
	"fmt"

	"google.golang.org/protobuf/proto"

	"borg/borgmaster/cell"
	"borg/proto/borgpb"
)

// ProbeDiffers compares the probe with the cell's own test for a task on every
// machine, as Explain does before it offers changes.
func ProbeDiffers(s *Scheduler, c *cell.Cell, key cell.JobKey, index uint32) error {
	s.open(c)
	l, err := s.lineOf(c, key, index)
	if err != nil {
		return err
	}
	e := newExplanation(s, c, l, index)
	e.examine()
	r := e.want.request()
	for i, at := range e.spots {
		if got := e.probe(e.want, &r, at); got != e.fits[i] {
			return fmt.Errorf("%s/%d on %s: the probe says %s, the cell %s", key, index, at.site.machine.Name(), got, e.fits[i])
		}
	}
	return nil
}

// ShareAlways lets threads share the smallest walks, until the function that it
// returns is called.
func ShareAlways() func() {
	before := minShare
	minShare = 1
	return func() { minShare = before }
}

// Stranded is how much of all CPU and memory is free where the other one has run
// out, in percent.
func Stranded(s *Scheduler) (cpuPercent, memPercent int64) { return s.grid.stranded() }

// NumClasses is how many classes are known.
func NumClasses(s *Scheduler) int { return len(s.classes.byContent) }

// HandOver lets two threads do the same work and waits until both are done.
func HandOver(work func()) {
	split(2, 2, func(int, int, int) { work() })
}

// Changed returns spec with what ch changes of it.
func (ch Change) Changed(spec *borgpb.JobSpec) *borgpb.JobSpec {
	spec = proto.CloneOf(spec)
	var soft []*borgpb.Constraint
	for _, k := range spec.Task.Constraints {
		if k.GetSoft() {
			soft = append(soft, k)
		}
	}
	req := ch.request
	if spec.Task.ExclusiveCores {
		if spec.Task.ExclusiveCores = req.res.Device(borgpb.ExclusiveCPU) > 0; spec.Task.ExclusiveCores {
			req = req.shared()
		}
	}
	spec.Task.Constraints = append(soft, req.constraints...)
	spec.Task.Tolerations = ch.request.tolerations
	spec.Task.Resources = req.res.Proto()
	spec.Task.Resources.Ports = 0
	// Their disk is part of that of the request.
	spec.Task.Volumes = nil
	spec.Task.Ports = spec.Task.Ports[:ch.request.res.Ports]
	l := &ch.request.limits
	spec.MaxPerMachine, spec.MaxPerRack, spec.MaxPerPower = l.Most[cell.DomainMachine], l.Most[cell.DomainRack], l.Most[cell.DomainPower]
	spec.MaxPer = nil
	for i, key := range l.Keys {
		if n := l.Most[int(cell.DomainAttribute)+i]; n > 0 {
			if spec.MaxPer == nil {
				spec.MaxPer = make(map[string]uint32)
			}
			spec.MaxPer[key] = n
		}
	}
	return spec
}

// CheckArrays compares the arrays with what they are made from: what is free,
// the levels, where constraints hold, and that no class has ruled out a machine
// that has room.
func CheckArrays(s *Scheduler, c *cell.Cell) error {
	s.open(c)
	fresh := newGrid(s.sites, &s.cfg, false)
	for _, name := range s.grid.devices {
		fresh.device(name)
	}
	for v := range numViews {
		for i, t := range s.sites.walk {
			if !t.machine.Up() {
				// What its allocs held goes without an event; it is read when it
				// is up again.
				continue
			}
			if got, want := s.grid.exact[i].rows[v], fresh.exact[i].rows[v]; got != want {
				return fmt.Errorf("%s, view %d: free is %+v, want %+v", t.machine.Name(), v, got, want)
			}
			if got, want := s.grid.rough[i].levels[v], fresh.rough[i].levels[v]; got != want {
				return fmt.Errorf("%s, view %d: levels are %+v, want %+v", t.machine.Name(), v, got, want)
			}
			for d, name := range s.grid.devices {
				e := fresh.device(name)
				if got, want := s.grid.deviceFree[v][d][i], fresh.deviceFree[v][e][i]; got != want {
					return fmt.Errorf("%s, view %d: %d of %s are free, want %d", t.machine.Name(), v, got, name, want)
				}
				if got, want := s.grid.singles[d][i], fresh.singles[e][i]; got != want {
					return fmt.Errorf("%s: free of single %s is %+v, want %+v", t.machine.Name(), name, got, want)
				}
			}
		}
	}
	for i, t := range s.sites.walk {
		if got, want := s.grid.rough[i].prod, fresh.rough[i].prod; got != want && t.machine.Up() {
			return fmt.Errorf("%s: production holds %d levels of its CPU, want %d", t.machine.Name(), got, want)
		}
		if got, want := s.grid.usable.has(int32(i)), fresh.usable.has(int32(i)); got != want {
			return fmt.Errorf("%s: usable is %v, want %v", t.machine.Name(), got, want)
		}
		for _, st := range s.grid.statics {
			if got, want := st.fits.has(int32(i)), s.grid.meets(st, t); got != want {
				return fmt.Errorf("%s: it meets %v: %v, want %v", t.machine.Name(), st.hard, got, want)
			}
		}
	}
	for _, l := range s.queue.list {
		if len(l.indices) > 0 && s.queue.byUID[l.uid] != l {
			return fmt.Errorf("%s waits in two lines", l.key)
		}
	}
	for _, l := range s.queue.byUID {
		if l.dirty {
			continue
		}
		for _, w := range l.wants {
			cl := w.class
			s.classes.attune(w, s.grid, &s.changes)
			if err := cmp.Or(fitsDiffer(s, c, w), headroomDiffers(s, c, w)); err != nil {
				return err
			}
			for i, t := range s.sites.walk {
				i := int32(i)
				if t.machine.Up() && !w.inSet && cl.candidates != nil && !cl.candidates.has(i) && cl.static.fits.has(i) && cl.fits(s.grid, i) {
					return fmt.Errorf("%s: a class of %s has ruled it out and fits: %+v of %+v", t.machine.Name(), l.key, cl.request, s.grid.exact[i].rows[cl.view])
				}
			}
		}
	}
	return nil
}

// fitsDiffer compares the arrays with the cell's own test, for one want on
// every machine, with what is promised laid over both.
func fitsDiffer(s *Scheduler, c *cell.Cell, w *want) error {
	if w.inSet || w.line.job != nil && c.JobByUID(w.line.uid) != w.line.job {
		return nil
	}
	if w.line.job != nil && c.CrashedOn(w.line.job, w.need.First).Any() {
		w = s.newWant(c, w.line, w.need.First)
		s.classes.attune(w, s.grid, &s.changes)
	}
	f := search{s: s, c: c}
	f.prepare(w, w.need.First)
	f.surround(w)
	for i, t := range s.sites.walk {
		i := int32(i)
		points, _ := s.grid.pointsAt(w.class, i, s.cfg.Policy)
		if parts := s.grid.parts(w.class, i, s.cfg.Policy); parts.Total() != points {
			return fmt.Errorf("%s on %s: the parts of the score are %+v, which is %d, want %d", w.line.key, t.machine.Name(), parts, parts.Total(), points)
		}
		got := s.grid.usable.has(i) && w.class.static.fits.has(i) && w.class.fits(s.grid, i) && !(w.limited && f.full(w, i))
		if want := f.fit(w, spot{site: t}); got != (want == cell.FitOK) {
			return fmt.Errorf("%s on %s: the arrays say %v, the cell %s", w.line.key, t.machine.Name(), got, want)
		}
	}
	return nil
}

// headroomDiffers compares the headroom of a want on every machine, as far as it is up to date,
// with what is free and the sum of who may be asked to give way.
func headroomDiffers(s *Scheduler, c *cell.Cell, w *want) error {
	if w.seated || w.line.job != nil && c.JobByUID(w.line.uid) != w.line.job {
		return nil
	}
	if w.inSet {
		return allocHeadroomDiffers(s, c, w)
	}
	h := s.grid.headroom(headroomKeyOf(c, &w.class.by))
	if h == nil {
		return nil
	}
	f := search{s: s, c: c}
	for i, t := range s.sites.walk {
		if !t.machine.Up() || s.grid.outdated.has(int32(i)) {
			continue
		}
		sum := f.free(w, spot{site: t})
		for _, u := range f.units(w, t) {
			sum = sum.Add(u.res)
		}
		want := row{sum.CPUMilli, sum.MemBytes, sum.DiskBytes, sum.DiskBytesPerS, sum.Ports}
		// Of one's own user a class may take what others of its headroom may not.
		exact := w.class.by.Mode != borgpb.Preempt_PREEMPT_OWN
		if got := h.rows[i]; !want.within(&got) || got != want && exact {
			return fmt.Errorf("%s on %s: the headroom below %d is %+v, want %+v", w.line.key, t.name, h.below, got, want)
		}
		if h.cpu.at[i] != stepOf(h.rows[i].cpuMilli, cpuShift) || h.mem.at[i] != stepOf(h.rows[i].memBytes, memShift) {
			return fmt.Errorf("%s: the headroom below %d is %+v, at steps %d and %d", t.name, h.below, h.rows[i], h.cpu.at[i], h.mem.at[i])
		}
		for d, name := range s.grid.devices {
			if d < len(h.devices) && h.devices[d][i] < sum.Device(name) {
				return fmt.Errorf("%s on %s: the headroom of %s is %d, want %d", w.line.key, t.name, name, h.devices[d][i], sum.Device(name))
			}
		}
		f.surround(w)
		if !h.mayHold(w.class, int32(i)) && f.giveWay(w, spot{site: t}, f.units(w, t), nil) != nil {
			return fmt.Errorf("%s on %s: some would give way, and the headroom rules it out", w.line.key, t.name)
		}
	}
	return nil
}

// allocHeadroomDiffers is headroomDiffers for a want in allocs.
func allocHeadroomDiffers(s *Scheduler, c *cell.Cell, w *want) error {
	r := s.rooms[w.set]
	if r == nil || r.generation != s.grid.generation || c.AllocSetByUID(w.set.UID()) != w.set {
		return nil
	}
	f := search{s: s, c: c}
	for _, h := range r.headrooms {
		if h.headroomKey != headroomKeyOf(c, &w.class.by) {
			continue
		}
		for i, slot := range r.slots {
			if slot < 0 || !h.known.has(int32(i)) || !s.sites.walk[slot].machine.Up() {
				continue
			}
			at := f.spotIn(slot, w.set.Alloc(uint32(i)))
			sum := f.free(w, at)
			for _, u := range f.unitsIn(w, at) {
				sum = sum.Add(u.res)
			}
			want := row{sum.CPUMilli, sum.MemBytes, sum.DiskBytes, sum.DiskBytesPerS, sum.Ports}
			if got := h.rows[i]; !want.within(&got) || got != want && w.class.by.Mode != borgpb.Preempt_PREEMPT_OWN {
				return fmt.Errorf("%s in alloc %d: the headroom below %d is %+v, want %+v", w.line.key, i, h.below, got, want)
			}
		}
	}
	return nil
}

// NumHeadrooms is how many headrooms are kept.
func NumHeadrooms(s *Scheduler) int { return len(s.grid.headrooms) }

// CompareFeasibility asks the arrays and the cell's own test, with what is
// promised laid over both, about every place for each task and alloc that waits.
// It returns how many answers there were, and how many of them were yes.
func CompareFeasibility(s *Scheduler, c *cell.Cell) (answers, yes int, err error) {
	s.attend(c)
	s.refresh(c)
	for _, l := range s.queue.byUID {
		for _, index := range l.indices {
			w := s.want(c, l, index)
			s.classes.attune(w, s.grid, &s.changes)
			f := search{s: s, c: c}
			f.prepare(w, index)
			f.surround(w)
			for _, t := range s.sites.walk {
				for _, at := range spotsOn(w, t, index) {
					got, want := f.arraysSay(w, at), f.fit(w, at)
					if got != (want == cell.FitOK) {
						return answers, yes, fmt.Errorf("%s/%d on %s: the arrays say %v, the cell %s", l.key, index, t.name, got, want)
					}
					answers++
					if got {
						yes++
					}
				}
			}
		}
	}
	return answers, yes, nil
}

// spotsOn are the places on a machine that index of w could have.
func spotsOn(w *want, t *site, index uint32) (all []spot) {
	if !w.inSet {
		return []spot{{site: t}}
	}
	for a := range t.machine.Allocs() {
		if a.Set() == w.set && a.Machine() == t.machine && (!w.byIndex || a.Index() == index) {
			all = append(all, spot{t, a})
		}
	}
	return all
}

// arraysSay is what the search finds out about a place.
func (f *search) arraysSay(w *want, at spot) bool {
	g, cl, i := f.s.grid, w.class, at.site.slot
	if w.volumes.Bound && w.line.set == nil {
		// There are none: the cell is asked about its machine.
		return cl.static.fits.has(i) && f.fit(w, at) == cell.FitOK
	}
	if !g.usable.has(i) || !cl.static.fits.has(i) || w.limited && f.full(w, i) {
		return false
	}
	if at.alloc == nil {
		return cl.fits(g, i)
	}
	r := f.s.roomsOf(w.set)
	if n := at.alloc.Index(); r.slots[n] != i || !cl.fitsRow(&r.free[cl.view][n]) {
		return false
	}
	q := f.devicesAt(at)
	return cl.devices == nil || q.Fit(w.need.Resources.Devices)
}

// Config is that of a scheduler.
func (s *Scheduler) Config() Config { return s.cfg }

// Turns counts the jobs and alloc sets that had a turn in all passes.
func (s *Scheduler) Turns() uint64 { return s.queue.turns }

// PackInArrival is Pack in the order of a live scheduler alone.
func PackInArrival(k Packing, keep func(*cell.Machine) bool) (Packed, error) {
	p, err := k.withDefaults().pack(keep, &packOrder{attempt: byArrival})
	if err != nil {
		return Packed{}, err
	}
	return p.packed, nil
}

// Attempts is in how many orders Pack would pack at most.
func Attempts(k Packing) int { return k.withDefaults().orders().most }

// JudgeDrain is Scheduler.JudgeDrain for machines that are all judged.
func JudgeDrain(s *Scheduler, c *cell.Cell, names []string) []DrainVerdict {
	judged, all := s.JudgeDrain(c, names, nil)
	if !all {
		panic("the search ended early")
	}
	return judged
}

// SetDrainWork bounds what JudgeDrain and Drainable do.
func SetDrainWork(s *Scheduler, work int) { s.drainWork = work }
