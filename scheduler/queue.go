package scheduler

import (
	"cmp"
	"slices"
	"sort"

	"borg/borgmaster/cell"
	"borg/proto/borgpb"
)

// line is what waits of one job or of one alloc set.
type line struct {
	uid      cell.UID
	key      cell.JobKey
	priority int32
	// text is the uid as assignments name it; empty until somebody asks.
	text string
	// version of the spec that waits.
	version uint64
	// job is nil for the allocs of a set, set is nil for the tasks of a job.
	job *cell.Job
	set *cell.AllocSet
	// gang: all of it is placed or nothing; whole: all of it that the cell offers is
	// among the indices.
	gang, whole bool
	// enable: it is in the batch queue of the cell, and is let out with what is
	// placed of it.
	enable bool
	// tasks is the number of tasks of the job, or allocs of the set.
	tasks int64

	// indices wait; ascending. Those that are promised are not among them.
	indices []uint32
	// In a pass: indices[:kept] had their turn and found no place, indices[next:]
	// have not had it.
	kept, next int
	// pass is the last one in which it had a turn.
	pass uint64
	// unsuited counts the indices of the present pass whose class suits no machine. parked
	// is grid.suits when that were all: until it is another, the line has no turn.
	unsuited int
	parked   uint64

	// wants are what runs of indices ask for, as far as they were asked.
	wants []*want
	// crowd is where its tasks are; nil: not counted.
	crowd *crowd
	// promised counts its promises, which are by index; nil: there is none.
	promised int
	promises []*promise
	// settled and refused are the last batches of which the log answered, or
	// refused, something of this line.
	settled, refused uint64
	// dirty: indices are to be read anew from the copy.
	dirty bool
	// queued: it is in the queue's list.
	queued bool
}

// name is the uid as assignments name it.
func (l *line) name() string {
	if l.text == "" {
		l.text = l.uid.String()
	}
	return l.text
}

// rest returns what has not had its turn yet.
func (l *line) rest() []uint32 { return l.indices[l.next:] }

// promise is what is promised to an index; nil: nothing is.
func (l *line) promise(index uint32) *promise {
	if int(index) < len(l.promises) {
		return l.promises[index]
	}
	return nil
}

// placed takes the index whose turn it is out of the line.
func (l *line) placed() { l.next++ }

// keep leaves the next n indices in the line: they found no place.
func (l *line) keep(n int) {
	if l.kept != l.next {
		copy(l.indices[l.kept:], l.indices[l.next:l.next+n])
	}
	l.kept += n
	l.next += n
}

// skip keeps the indices up to last, and returns how many they are.
func (l *line) skip(last uint32) int {
	n, found := slices.BinarySearch(l.rest(), last)
	if found {
		n++
	}
	l.keep(n)
	return n
}

// close takes out what was placed in the pass that ends. It parks a line that suits no machine.
func (l *line) close(suits uint64) {
	if l.unsuited > 0 && l.unsuited == len(l.indices) {
		l.parked = suits
	}
	l.unsuited = 0
	if l.kept != l.next {
		l.indices = append(l.indices[:l.kept], l.indices[l.next:]...)
	}
	l.kept, l.next = 0, 0
}

// known returns what index of l asks for, if that was asked before; a task that is
// kept away from a machine asks for less than that.
func (l *line) known(index uint32) *want {
	for _, w := range l.wants {
		if index <= w.last && index >= w.first {
			return w
		}
	}
	return nil
}

// want returns what index of l asks for.
func (s *Scheduler) want(c *cell.Cell, l *line, index uint32) *want {
	if l.job != nil && !s.dry && c.LastCrash(l.job, index).Any() {
		if w := s.newWant(c, l, index); w.away.Any() {
			// That ends by itself, without an event.
			s.waitsForTime = true
			return w
		}
	}
	if l.hasVolumes(index) || l.job != nil && l.job.AllocByIndex() {
		// Where its volumes are changes without a change of the job; and what no two
		// indices share is not worth keeping.
		return s.newWant(c, l, index)
	}
	if w := l.known(index); w != nil {
		return w
	}
	w := s.newWant(c, l, index)
	if !s.cfg.NoClasses {
		l.wants = append(l.wants, w)
	}
	return w
}

// queue is the order in which what waits is looked at: priority from high to
// low (which is band before priority, since bands are ranges of priority);
// within one priority the users in turn, so that one with a million tasks does
// not stand in front of one with three; within one user the jobs in turn,
// oldest first; within one job by index. Each pass begins anew at its head, so
// that a scheduler that was just made goes on as the one before it would.
type queue struct {
	// byUID holds every line that waits for something or has promises.
	byUID map[cell.UID]*line
	// list is in order; lines that wait for nothing are left in it for a while,
	// and added ones come in at the next pass.
	list  []*line
	added []*line
	// dirty lines are to be read anew.
	dirty []*line
	// unsorted: the priority of a line in the list has changed.
	unsorted bool
	// followers are jobs that wait for others to finish; held are those in the
	// batch queue.
	followers, held map[cell.UID]bool
	// retries is the cell time at which tasks of a job may be placed that wait because their
	// attempts failed: the earliest of each job. That time comes without an event.
	retries map[cell.UID]int64

	// at is the place in among after the level of the present priority.
	at    int
	level level
	// fresh are the lines that were read anew since the last pass and wait for
	// something.
	fresh []*line
	// among are the lines that have a turn in this pass, in order: list, or fresh.
	among []*line
	// touched are the lines that had a turn in this pass.
	touched []*line
	pass    uint64
	// suits is grid.suits in this pass; zero: nothing is parked.
	suits uint64
	// turns counts the lines that had a turn, in all passes.
	turns uint64
	// orders counts how often the list was put in order.
	orders uint64
}

func compareLines(a, b *line) int {
	return cmp.Or(
		cmp.Compare(b.priority, a.priority),
		cmp.Compare(a.key.User, b.key.User),
		a.uid.Compare(b.uid),
	)
}

// purgePasses is after how many passes over the list lines that wait for nothing leave the
// list.
const purgePasses = 16

// begin starts a pass over all that waits, or over the fresh lines only.
func (q *queue) begin(onlyFresh bool) {
	q.at, q.level = 0, level{users: q.level.users[:0]}
	q.pass++
	if onlyFresh {
		slices.SortFunc(q.fresh, compareLines)
		q.among = slices.Compact(q.fresh)
		return
	}
	q.order()
	q.among = q.list
}

// order puts the list in order, with all that was added.
func (q *queue) order() {
	if q.unsorted {
		slices.SortFunc(q.list, compareLines)
		q.unsorted = false
	}
	q.merge()
	if q.orders++; q.orders%purgePasses == 0 {
		q.list = slices.DeleteFunc(q.list, func(l *line) bool {
			l.queued = len(l.indices) > 0
			return !l.queued
		})
	}
}

// merge brings the added lines into the list, from the last one on. Those that were there
// move in stretches: most are far away in memory, and are not looked at.
func (q *queue) merge() {
	slices.SortFunc(q.added, compareLines)
	left := len(q.list)
	q.list = append(q.list, q.added...)
	at := len(q.list)
	for _, l := range slices.Backward(q.added) {
		if left > 0 && compareLines(q.list[left-1], l) > 0 {
			before := sort.Search(left, func(i int) bool { return compareLines(q.list[i], l) > 0 })
			at -= left - before
			copy(q.list[at:], q.list[before:left])
			left = before
		}
		at--
		q.list[at] = l
	}
	clear(q.added)
	q.added = q.added[:0]
}

// end closes what had a turn.
func (q *queue) end() {
	for _, l := range q.touched {
		l.close(q.suits)
	}
	q.touched = q.touched[:0]
	clear(q.fresh)
	q.fresh, q.among = q.fresh[:0], nil
}

// enter puts a line into the list that has something to wait for.
func (q *queue) enter(l *line) {
	if !l.queued {
		l.queued = true
		q.added = append(q.added, l)
	}
}

// take returns the line whose turn it is. The caller takes from the line: one
// index, or all of them. A task that finds no place does not use up its user's turn, so it does
// not matter whether it was searched for or known to be in vain.
func (q *queue) take() *line {
	for {
		if l := q.level.take(); l != nil {
			if l.pass != q.pass {
				l.pass = q.pass
				q.turns++
				q.touched = append(q.touched, l)
			}
			return l
		}
		if !q.nextLevel() {
			return nil
		}
	}
}

// advance moves the turn on to the next user, and to the next job of this one.
func (q *queue) advance() {
	lv := &q.level
	lv.users[lv.turn].turn++
	lv.turn++
}

// nextLevel collects the lines of the next lower priority.
func (q *queue) nextLevel() bool {
	q.level = level{users: q.level.users[:0]}
	for q.at < len(q.among) {
		first := q.among[q.at]
		for ; q.at < len(q.among) && q.among[q.at].priority == first.priority; q.at++ {
			l := q.among[q.at]
			if len(l.indices) == 0 || l.parked != 0 && l.parked == q.suits {
				continue
			}
			if n := len(q.level.users); n > 0 && q.level.users[n-1].lines[0].key.User == l.key.User {
				q.level.users[n-1].lines = append(q.level.users[n-1].lines, l)
				continue
			}
			q.level.addUser(l)
		}
		if len(q.level.users) > 0 {
			return true
		}
	}
	return false
}

// The lines of the copy.

// enroll makes lines of everything in the copy.
func (s *Scheduler) enroll(c *cell.Cell) {
	for j := range c.Jobs() {
		s.touch(c, j.UID())
	}
	if s.cfg.Name == "" {
		for set := range c.AllocSets() {
			s.touch(c, set.UID())
		}
	}
}

// places tells whether a job is this scheduler's to place.
func (s *Scheduler) places(j *cell.Job) bool {
	return j.Spec().GetScheduler() == s.cfg.Name && s.cfg.Workload.includes(j.Key(), j.Kind())
}

// placesAllocs tells whether the allocs of a set are.
func (s *Scheduler) placesAllocs(set *cell.AllocSet) bool {
	return s.cfg.Name == "" && s.cfg.Workload.includes(set.Key(), borgpb.JobKind_JOB_KIND_SERVICE)
}

// touch notes that what waits of a job or alloc set may be something else.
func (s *Scheduler) touch(c *cell.Cell, uid cell.UID) {
	l := s.queue.byUID[uid]
	if l == nil {
		if l = s.newLine(c, uid); l == nil {
			return
		}
		s.queue.byUID[uid] = l
	}
	if !l.dirty {
		l.dirty = true
		s.queue.dirty = append(s.queue.dirty, l)
	}
}

// newLine returns nil for what does not concern this scheduler.
func (s *Scheduler) newLine(c *cell.Cell, uid cell.UID) *line {
	if j := c.JobByUID(uid); j != nil {
		if pending, _, _ := j.Counts(); pending == 0 || !s.places(j) {
			return nil
		}
		return &line{uid: uid, key: j.Key(), job: j}
	}
	if set := c.AllocSetByUID(uid); set != nil && s.placesAllocs(set) {
		return &line{uid: uid, key: set.Key(), set: set}
	}
	return nil
}

// refresh reads the dirty lines anew.
func (s *Scheduler) refresh(c *cell.Cell) {
	if len(s.refusals) > 0 {
		// Some wait for cell time alone.
		for id := range s.refusals {
			s.touch(c, id.UID)
		}
	}
	for _, l := range s.queue.dirty {
		l.dirty = false
		s.refreshLine(c, l)
	}
	clear(s.queue.dirty)
	s.queue.dirty = s.queue.dirty[:0]
	s.enable(c)
}

// enable looks which jobs in the batch queue fit as a whole beside what was
// enabled before, in the order of the queue. A large one that does not holds up no
// small one behind it. The cell judges again.
func (s *Scheduler) enable(c *cell.Cell) {
	if len(s.queue.held) == 0 {
		return
	}
	var lines []*line
	for uid := range s.queue.held {
		if j := c.JobByUID(uid); j == nil || !c.Queued(j) {
			delete(s.queue.held, uid)
		} else if l := s.queue.byUID[uid]; l != nil {
			lines = append(lines, l)
		} else if l := s.newLine(c, uid); l != nil && s.present(c, l) {
			lines = append(lines, l)
		}
	}
	slices.SortFunc(lines, func(a, b *line) int {
		return cmp.Or(cmp.Compare(b.priority, a.priority), a.uid.Compare(b.uid))
	})
	taken := c.EnabledDemand()
	free := make(map[string]cell.Resources)
	for _, l := range lines {
		if l.promised > 0 {
			taken = taken.Add(l.job.Demand())
			continue
		}
		l.indices, l.whole, l.enable, l.parked = l.indices[:0], true, false, 0
		key := string(s.newWant(c, l, 0).appendStatic([]byte{byte(viewOf(l.priority >= prodPriority))}))
		if _, known := free[key]; !known {
			free[key] = c.FreeFor(l.job)
		}
		demand := l.job.Demand()
		if !demand.Fits(free[key].Sub(taken)) {
			continue
		}
		taken = taken.Add(demand)
		for index := range c.QueuedOf(l.job) {
			if s.heldBack(c, ID{l.uid, index}) {
				l.whole = false
				continue
			}
			l.indices = append(l.indices, index)
		}
		if len(l.indices) > 0 {
			l.enable = true
			s.queue.byUID[l.uid] = l
			s.queue.enter(l)
		}
	}
}

// retry has the lines read anew whose tasks have waited long enough since their attempts failed.
func (s *Scheduler) retry(c *cell.Cell) {
	for uid, at := range s.queue.retries {
		if c.TimeNs() >= at {
			delete(s.queue.retries, uid)
			s.touch(c, uid)
			s.stirred = true
		}
	}
}

func (s *Scheduler) refreshLine(c *cell.Cell, l *line) {
	s.disperse(l)
	// As a whole it may be another.
	delete(s.gangs, l.uid)
	l.indices, l.whole, l.enable, l.parked = l.indices[:0], true, false, 0
	defer s.dismiss(l)
	if !s.present(c, l) {
		return
	}
	ready := func(index uint32) bool {
		id := ID{l.uid, index}
		if l.promise(index) != nil || s.heldBack(c, id) {
			l.whole = false
			return false
		}
		return true
	}
	if l.job != nil {
		for index := range c.PendingOf(l.job) {
			if ready(index) {
				l.indices = append(l.indices, index)
			}
		}
		if c.Queued(l.job) {
			s.queue.held[l.uid] = true
		}
		if at := c.RetryNs(l.job); at != 0 {
			s.queue.retries[l.uid] = at
		}
		if len(l.indices) == 0 && len(l.job.Spec().GetStartAfter()) > 0 {
			s.queue.followers[l.uid] = true
		}
	} else {
		for a := range l.set.Allocs() {
			if waits(a) && ready(a.Index()) {
				l.indices = append(l.indices, a.Index())
			}
		}
	}
	if len(l.indices) > 0 {
		s.queue.enter(l)
		s.queue.fresh = append(s.queue.fresh, l)
	}
}

// present brings a line up to the copy and tells whether what it is of is
// there.
func (s *Scheduler) present(c *cell.Cell, l *line) bool {
	var priority int32
	version := uint64(1)
	if l.job != nil {
		j := c.JobByUID(l.uid)
		if j == nil || !s.places(j) {
			return false
		}
		l.job, priority, version = j, j.Priority(), j.Version()
	} else {
		set := c.AllocSetByUID(l.uid)
		if set == nil {
			return false
		}
		l.set, priority, version = set, set.Priority(), set.Version()
	}
	l.measure()
	if version != l.version {
		l.version, l.wants = version, nil
	}
	if priority != l.priority {
		s.queue.unsorted = s.queue.unsorted || l.queued
		l.priority = priority
	}
	return true
}

// measure reads what the search asks of a line again and again.
func (l *line) measure() {
	if l.job != nil {
		l.gang, l.tasks = l.job.Spec().GetGang(), int64(l.job.NumTasks())
	} else {
		l.gang, l.tasks = l.set.Spec().GetGang(), int64(l.set.NumAllocs())
	}
}

// dismiss forgets a line that waits for nothing. One that is dirty may wait for
// something yet: who forgot it would make another line of the same job.
func (s *Scheduler) dismiss(l *line) {
	if !l.dirty && len(l.indices) == 0 && l.promised == 0 && s.queue.byUID[l.uid] == l {
		s.disperse(l)
		delete(s.queue.byUID, l.uid)
	}
}

// waits tells whether an alloc is to be placed.
func waits(a *cell.Alloc) bool { return a.State() == borgpb.State_STATE_PENDING }
