package cell

import (
	"fmt"
	"slices"

	"google.golang.org/protobuf/proto"

	"borg/proto/borgpb"
	"borg/proto/weight"
)

// FormatSetUpdates is the format in which alloc sets began to be updated and resized.
const FormatSetUpdates = 10

// setUpdate is what an update of an alloc set comes to, once it was checked.
type setUpdate struct {
	spec         *borgpb.AllocSetSpec
	bytes        []byte
	allocs       uint32
	gets, said   given
	changed, put bool
}

// checkUpdateAllocSet decides whether an alloc set may have another spec. All that is
// charged for is asked here; what the cell does to bring its allocs there raises nothing.
func (c *Cell) checkUpdateAllocSet(o *borgpb.UpdateAllocSet) (commit, *borgpb.Refusal) {
	s, r := c.checkLiveSet(JobKey{o.User, o.Name}, o.ExpectVersion)
	if r != nil {
		return nil, r
	}
	u, r := c.readSetUpdate(s, o)
	if r == nil {
		r = checkInside(s, u)
	}
	if r == nil {
		r = c.checkChargeOfSet(s.key, s, u.spec, u.allocs)
	}
	if r == nil && u.changed {
		r = c.checkStops(s.key, chargeOfSet(u.spec, uint64(u.allocs)))
	}
	if r == nil {
		bytes := weighSet(u.bytes) + runBytes + weight.Map(u.gets.labels) + weight.Map(u.gets.annotations) + u.said.unless(u.gets).textBytes()
		r = c.checkSetState(s.key, s, u.spec.Priority, int64(u.allocs), bytes, len(u.spec.Volumes) > 0)
	}
	if r != nil {
		return nil, about(s.key.String(), r)
	}
	return func(res *borgpb.Result) {
		if u.put {
			c.putSet(s, u)
		}
		res.Uid, res.Version = s.uid.String(), s.version
	}, nil
}

// checkLiveSet wants an alloc set that is not dead, at the expected version.
func (c *Cell) checkLiveSet(key JobKey, expectVersion uint64) (*AllocSet, *borgpb.Refusal) {
	if r := checkKey(key); r != nil {
		return nil, r
	}
	s := c.sets[key]
	if s == nil {
		return nil, notFound(key.String(), "there is no such alloc set")
	}
	if r := conflict(key.String(), expectVersion, s.version); r != nil {
		return nil, r
	}
	if s.deathSeq != 0 {
		return nil, badState(key.String(), "the alloc set is dead")
	}
	return s, nil
}

// readSetUpdate reads the spec of an update, and what of the set stays.
func (c *Cell) readSetUpdate(s *AllocSet, o *borgpb.UpdateAllocSet) (*setUpdate, *borgpb.Refusal) {
	if r := checkLabels(o.Labels, o.Annotations); r != nil {
		return nil, r
	}
	spec, data, r := c.readGivenAllocSet(s.key, o.Spec)
	if r != nil {
		return nil, r
	}
	if spec.Priority < s.spec.Priority {
		if r := c.checkSetPriority(s.key, spec.Priority); r != nil {
			return nil, r
		}
	}
	switch {
	case spec.Network != s.spec.Network:
		return nil, badState("", "the network of an alloc set does not change: what runs in its allocs would lose its address; make another alloc set")
	case spec.Gang != s.spec.Gang:
		return nil, badState("", "whether the allocs of a set are placed together or none does not change; make another alloc set")
	}
	if !slices.EqualFunc(spec.Volumes, s.spec.Volumes, func(a, b *borgpb.Volume) bool { return proto.Equal(a, b) }) {
		return nil, badState("", "the volumes of an alloc set do not change: what runs in its allocs works in them; make another alloc set")
	}
	if r := checkNoCPUDevice(spec.Resources, "spec.resources"); r != nil {
		return nil, r
	}
	if r := c.checkSaver(s.key, spec, s.spec, data); r != nil {
		return nil, r
	}
	if each := FromProto(spec.Resources); !each.Equal(FromProto(s.spec.Resources)) {
		each = withVolumes(each, spec.Volumes)
		if r := c.checkBounds(s.key.User, "spec.resources", &each); r != nil {
			return nil, r
		}
	}
	u := &setUpdate{spec: spec, bytes: data, allocs: spec.Allocs}
	if o.Merge {
		u.allocs = MergeTasks(s.spec.Allocs, s.NumAllocs(), spec.Allocs)
	}
	if r := checkNumAllocs(s, u.allocs); r != nil {
		return nil, r
	}
	was, has := s.lastGiven(), given{s.labels, s.annotations}
	u.gets, u.said, r = c.merged(borgpb.Labelled_LABELLED_ALLOC_SET, was, has, given{o.Labels, o.Annotations}, o.Merge)
	u.changed = !proto.Equal(sized(spec, 1), sized(s.spec, 1))
	u.put = u.changed || u.allocs != s.NumAllocs() || spec.Allocs != s.spec.Allocs || !u.gets.is(has) || !u.said.is(was)
	return u, r
}

// sized is a spec with another number of allocs.
func sized(spec *borgpb.AllocSetSpec, allocs uint32) *borgpb.AllocSetSpec {
	if spec.Allocs == allocs {
		return spec
	}
	spec = proto.CloneOf(spec)
	spec.Allocs = allocs
	return spec
}

func checkNumAllocs(s *AllocSet, allocs uint32) *borgpb.Refusal {
	most := uint32(maxAllocsPerSet)
	if s.spec.Gang {
		most = maxGangTasks
	}
	if allocs < 1 || allocs > most {
		return invalid("allocs", "%d is not in 1 to %d", allocs, most)
	}
	return nil
}

// checkInside wants that what runs in each alloc has room in one of the new size. It
// would have to end otherwise, and which of it is not the cell's to choose.
func checkInside(s *AllocSet, u *setUpdate) *borgpb.Refusal {
	next := FromProto(u.spec.Resources)
	for _, a := range s.allocs[:min(int(u.allocs), len(s.allocs))] {
		if len(a.copies) == 0 {
			continue
		}
		// Amounts that become smaller; of others there may be too little already.
		less := next.Min(a.room.capacity)
		less.Devices = a.room.capacity.Devices
		for _, prod := range []bool{false, true} {
			held := a.room.held(prod)
			if f := shrunkBelow(&held, &less, &a.room.capacity); f != FitOK {
				return refuse(borgpb.RefusalKind_REFUSAL_KIND_STATE, a.Name(), "spec.resources",
					"%s of alloc %s would be less than what runs in it asks for; make the jobs in it smaller first, or take them out", f, a.Name())
			}
		}
	}
	return nil
}

// shrunkBelow names the first amount that becomes smaller than what is held of it.
func shrunkBelow(held, next, now *Resources) Fit {
	for _, q := range []struct {
		f                 Fit
		held, next, until int64
	}{
		{FitCPU, held.CPUMilli, next.CPUMilli, now.CPUMilli}, {FitMemory, held.MemBytes, next.MemBytes, now.MemBytes},
		{FitDisk, held.DiskBytes, next.DiskBytes, now.DiskBytes}, {FitDisk, held.DiskBytesPerS, next.DiskBytesPerS, now.DiskBytesPerS},
		{FitPorts, held.Ports, next.Ports, now.Ports},
	} {
		if q.next < q.until && q.held > q.next {
			return q.f
		}
	}
	return FitOK
}

// putSet gives an alloc set its new spec. Each alloc takes at once what is less of it;
// what is more follows where there is room.
func (c *Cell) putSet(s *AllocSet, u *setUpdate) {
	s.version++
	if u.allocs < s.NumAllocs() {
		c.resizeSet(s, u.allocs)
	}
	was, bytes := s.charge(), s.stateBytes()
	s.specBytes, s.weight = u.bytes, weighSet(u.bytes)
	s.setSpec(u.spec)
	s.labels, s.annotations = u.gets.labels, u.gets.annotations
	s.keep(u.said)
	c.countBytesOf(s.key.User, false, s.stateBytes()-bytes)
	for _, a := range s.allocs {
		if a.machine != nil {
			s.domains.add(a.machine, 1)
		}
		c.refit(a)
	}
	c.chargeUser(s.key.User, was, s.charge())
	c.chargeVolumesOf(s.key)
	if u.allocs > s.NumAllocs() {
		c.resizeSet(s, u.allocs)
	}
	s.changedWallNs = c.clock.wallNs
	// Taints are judged by the tolerations of the spec.
	c.leaveDueNs, s.againNs = 0, 0
	c.dirty(s)
	kind := borgpb.EventKind_EVENT_KIND_UPDATE_PENDING
	if s.stateOf() == stateRunning {
		kind = borgpb.EventKind_EVENT_KIND_UPDATE_RUNNING
	}
	e := setEvent(s, kind, s.stateOf(), take(s.stateOf(), edgeUpdate, s.stateOf()))
	e.Reason = fmt.Sprintf("version %d", s.version)
	c.emit(e)
	c.rollSet(s)
}

// refit makes an alloc smaller where the spec of its set became smaller, and notes what
// is still to be done: it gets more, or it moves.
func (c *Cell) refit(a *Alloc) {
	m := a.machine
	if m == nil {
		m = a.lostOn
	}
	res := a.set.res()
	if m == nil {
		a.room.capacity = *res
		return
	}
	moves := !sameDevices(&a.room.capacity, res) || failedConstraint(a.set.need.Task.Constraints, m) != nil
	next := a.room.capacity.Min(*res)
	next.Devices = a.room.capacity.Devices
	c.setCapacity(a, m, next)
	c.setBehind(a, moves || !next.Equal(*res), moves)
	c.dirty(a)
}

// setCapacity gives an alloc another size on the machine that it is on.
func (c *Cell) setCapacity(a *Alloc, m *Machine, next Resources) {
	if next.Equal(a.room.capacity) {
		return
	}
	more := next.DiskBytes - a.room.capacity.DiskBytes
	m.room.sub(inBoth(&a.room.capacity))
	a.room.capacity = next
	m.room.add(inBoth(&a.room.capacity))
	if a.wait != nil {
		a.wait.reckon()
	}
	c.giveUpYielding(m, a.set.spec.Priority, more, 0, a.Name)
	m.changes++
	e := allocEvent(a, m, borgpb.EventKind_EVENT_KIND_RESIZE, a.state, a.state)
	e.Reason = "it holds " + chargeOf(0, &next, 1).words()
	c.emit(e)
}

// setBehind notes whether an alloc is yet to become what the spec of its set says, and
// whether it has to move for that whatever room there is.
func (c *Cell) setBehind(a *Alloc, behind, moves bool) {
	s := a.set
	if behind != a.behind {
		at, _ := slices.BinarySearchFunc(c.setsBehind, s.uid, func(o *AllocSet, u UID) int { return o.uid.Compare(u) })
		switch {
		case behind:
			if s.behind++; s.behind == 1 {
				c.setsBehind = slices.Insert(c.setsBehind, at, s)
			}
		default:
			if s.behind--; s.behind == 0 {
				c.setsBehind = slices.Delete(c.setsBehind, at, at+1)
			}
		}
	}
	a.behind, a.moves = behind, moves
}

// leftPlace forgets of an alloc what it was on the machine that it has left: it gets
// the next place by the spec of its set.
func (c *Cell) leftPlace(a *Alloc) {
	if c.format < FormatSetUpdates {
		return
	}
	a.room.capacity = *a.set.res()
	if a.behind {
		c.setBehind(a, false, false)
		c.dirty(a)
	}
}

// setsOn looks again at the alloc sets of which something is still to be changed.
func (c *Cell) setsOn() {
	for _, s := range slices.Clone(c.setsBehind) {
		if s.againNs <= c.clock.cellNs {
			c.rollSet(s)
		}
	}
}

// rollSet brings allocs to what the spec says: where they are, if there is room. If not,
// one of them moves with all that runs in it, as soon as all others have a place and the
// budgets of the jobs in it allow.
func (c *Cell) rollSet(s *AllocSet) {
	if s.behind == 0 || c.restored.held {
		return
	}
	for _, a := range s.allocs {
		if !a.behind || a.machine == nil || a.machine.draining {
			continue
		}
		if c.growsHere(a) {
			c.setCapacity(a, a.machine, *s.res())
			c.setBehind(a, false, false)
			c.dirty(a)
		} else if c.waitOfAlloc(a) == "" {
			c.moveAway(a)
		}
	}
	if s.behind > 0 {
		s.againNs = min(c.clock.cellNs+setAgainNs, maxTimeNs)
		c.dirty(s)
	}
}

// growsHere tells whether the machine of an alloc has room for what it is to get more.
func (c *Cell) growsHere(a *Alloc) bool {
	r := &a.machine.room
	return !a.moves && a.set.res().Sub(a.room.capacity).Fits(r.capacity.Sub(r.held(isProd(a.set.spec.Priority))))
}

// waitOfAlloc says why an alloc does not move now; empty: it may.
func (c *Cell) waitOfAlloc(a *Alloc) string {
	if n := a.set.counts[statePending]; n > 0 {
		return fmt.Sprintf("an alloc moves when all others have a place, and %d have none", n)
	}
	if len(a.set.spec.Volumes) > 0 {
		return "its volumes are on machine " + a.machine.name + ", and it stays with them"
	}
	if h := c.HoldOf(a.staying()); h != nil {
		return h.Reason
	}
	return c.stopsOfMove(a)
}

// stopsOfMove says whose tasks that stop would hold too much if those in an alloc stopped, too.
func (c *Cell) stopsOfMove(a *Alloc) string {
	copies := make(map[string]int64)
	more := make(map[string]charge)
	for _, p := range a.staying() {
		user := p.job.key.User
		copies[user]++
		more[user] = more[user].plus(chargeOf(BandOf(p.priority), p.res, 1))
	}
	for _, user := range sortedKeys(more) {
		if why := c.stopsAtEdge(user, copies[user], more[user]); why != "" {
			return why + c.describeStopping(user)
		}
	}
	return ""
}

// staying are the copies that go when the alloc does.
func (a *Alloc) staying() (inside []*Copy) {
	for _, p := range a.copies {
		if p.state.stays() {
			inside = append(inside, p)
		}
	}
	return inside
}

// moveAway takes an alloc off its machine, to be placed by the new spec.
func (c *Cell) moveAway(a *Alloc) {
	for _, p := range a.staying() {
		if p.state.current() {
			c.disturb(p.row())
		}
	}
	c.evictAlloc(a, edgeUpdate, statePending, borgpb.StopCause_STOP_CAUSE_UPDATE, "alloc set "+a.set.key.String()+" was updated", -1)
}

// checkResizeAllocSet decides whether an alloc set may have another number of allocs.
func (c *Cell) checkResizeAllocSet(o *borgpb.ResizeAllocSet) (commit, *borgpb.Refusal) {
	s, r := c.checkLiveSet(JobKey{o.User, o.Name}, o.ExpectVersion)
	if r != nil {
		return nil, r
	}
	r = checkNumAllocs(s, o.Allocs)
	if r == nil {
		r = c.checkChargeOfSet(s.key, s, s.spec, o.Allocs)
	}
	if r == nil {
		r = c.checkSetState(s.key, s, s.spec.Priority, int64(o.Allocs), s.stateBytes(), len(s.spec.Volumes) > 0)
	}
	if r != nil {
		return nil, about(s.key.String(), r)
	}
	return func(res *borgpb.Result) {
		if o.Allocs != s.NumAllocs() {
			s.version++
			c.resizeSet(s, o.Allocs)
		}
		res.Uid, res.Version = s.uid.String(), s.version
	}, nil
}

// resizeSet adds allocs that wait, or ends those with the highest indices.
func (c *Cell) resizeSet(s *AllocSet, allocs uint32) {
	was := s.NumAllocs()
	for s.NumAllocs() > allocs {
		c.cutAlloc(s.allocs[s.NumAllocs()-1])
	}
	for i := s.NumAllocs(); i < allocs; i++ {
		s.allocs = append(s.allocs, s.newAlloc(i))
	}
	c.stateUse.countOne(s.key.User, measureAllocs, int64(allocs)-int64(was))
	if allocs > was {
		s.counts[statePending] += allocs - was
		c.chargeUser(s.key.User, nil, chargeOfSet(s.spec, uint64(allocs-was)))
		c.chargeVolumesOf(s.key)
	}
	s.changedWallNs = c.clock.wallNs
	c.dirty(s)
	e := setEvent(s, borgpb.EventKind_EVENT_KIND_RESIZE, s.stateOf(), s.stateOf())
	e.Reason = fmt.Sprintf("%d to %d allocs", was, allocs)
	c.emit(e)
}

// cutAlloc ends the last alloc of a set and forgets it. What ran in it waits.
func (c *Cell) cutAlloc(a *Alloc) {
	const cause, reason = borgpb.StopCause_STOP_CAUSE_RESIZE, "the alloc set became smaller"
	s := a.set
	if a.state == stateRunning {
		c.evictAlloc(a, edgeKill, stateDead, cause, reason, -1)
	} else {
		c.moveAlloc(a, edgeKill, stateDead, reason)
		if a.lostOn != nil {
			c.dropLost(a, cause, reason)
		}
	}
	s.attemptFloor = max(s.attemptFloor, a.attempt)
	s.counts[stateDead]--
	s.allocs[a.index] = nil
	s.allocs = s.allocs[:a.index]
	if a.recorded() {
		c.dirty(a)
	}
}

// Given is what an alloc set was last given by who submits or updates the whole of it,
// as Given of a job.
func (s *AllocSet) Given() (allocs uint32, labels, annotations map[string]string) {
	if s.given != nil {
		return s.spec.Allocs, s.given.labels, s.given.annotations
	}
	return s.spec.Allocs, s.labels, s.annotations
}

// lastGiven is Given without the number.
func (s *AllocSet) lastGiven() given {
	_, labels, annotations := s.Given()
	return given{labels, annotations}
}

// keep remembers what a set was given, while its labels or annotations are others.
func (s *AllocSet) keep(g given) {
	s.given = g.unless(given{s.labels, s.annotations})
}

// Version is 1, and one more with each update and resize.
func (s *AllocSet) Version() uint64 { return s.version }

// Waits says what an alloc set of which something is still to be changed waits for.
func (c *Cell) Waits(s *AllocSet) string {
	if s.behind == 0 {
		return ""
	}
	for _, a := range s.allocs {
		switch {
		case !a.behind:
		case a.machine == nil:
			return "alloc " + a.Name() + " was lost with its machine"
		case a.machine.draining:
			return "machine " + a.machine.name + " is draining"
		default:
			if why := c.waitOfAlloc(a); why != "" {
				return "alloc " + a.Name() + ": " + why
			}
		}
	}
	return ""
}

// setChanges writes what became of a set since it was submitted.
func (e *encoder) setChanges(s *AllocSet) {
	if s.version != 1 || s.NumAllocs() != s.spec.Allocs || s.attemptFloor != 0 || s.againNs != 0 {
		e.byte(tagSetChanges)
		e.uint(s.version)
		e.uint(uint64(s.NumAllocs()))
		e.uint(s.attemptFloor)
		e.int(s.againNs)
	}
	e.given(tagSetGiven, s.given)
}

func (l *loader) setChanges(d *decoder, s *AllocSet) (allocs uint32, given *given) {
	s.version = 1
	if l.c.format < FormatSetUpdates {
		return 0, nil
	}
	if d.tagged(tagSetChanges) {
		s.version, allocs, s.attemptFloor, s.againNs = d.uint(), d.uint32(), d.uint(), d.int()
		if s.version == 0 || allocs == 0 || allocs > maxAllocsPerSet || s.againNs < 0 || s.againNs > maxTimeNs {
			d.bad = true
		}
	}
	if d.tagged(tagSetGiven) {
		given = newGiven(d)
	}
	return allocs, given
}

func newGiven(d *decoder) *given { return &given{d.strs(), d.strs()} }

// behind writes how an alloc still differs from what its set says.
func (e *encoder) behind(a *Alloc) {
	if a.behind || a.moves {
		e.byte(tagBehind)
		e.bool(a.moves)
		e.resources(&a.room.capacity)
	}
}

func (l *loader) behind(d *decoder, a *Alloc) error {
	if l.c.format < FormatSetUpdates || !d.tagged(tagBehind) {
		return nil
	}
	a.moves = d.bool()
	a.room.capacity = d.resources()
	if a.machine == nil && a.lostOn == nil {
		return errOdd
	}
	l.c.setBehind(a, true, a.moves)
	return nil
}

// checkSetChanges holds what is kept of updates of sets against what it follows from.
func (c *Cell) checkSetChanges(s *AllocSet) error {
	var behind uint32
	for i, a := range s.allocs {
		placed := a.machine != nil || a.lostOn != nil
		same := a.room.capacity.Equal(*s.res())
		less := a.room.capacity
		less.Devices = nil
		switch {
		case a.behind && !placed, a.moves && !a.behind, !a.behind && !same, a.behind && !a.moves && same, !less.Fits(*s.res()):
			return fmt.Errorf("alloc %d holds %+v, behind %v, moves %v", i, a.room.capacity, a.behind, a.moves)
		}
		if a.behind {
			behind++
		}
	}
	listed := slices.Contains(c.setsBehind, s)
	switch {
	case behind != s.behind || listed != (behind > 0):
		return fmt.Errorf("%d allocs are behind, %d counted, listed %v", behind, s.behind, listed)
	case c.format < FormatSetUpdates && (s.version != 1 || behind > 0 || s.given != nil || s.attemptFloor != 0 || s.NumAllocs() != s.spec.Allocs):
		return fmt.Errorf("it was changed in format %d", c.format)
	case s.given != nil && s.given.is(given{s.labels, s.annotations}):
		return fmt.Errorf("it keeps what it was given, which is what it has")
	}
	return nil
}
