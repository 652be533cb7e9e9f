package cell

import (
	"bytes"
	"errors"
	"fmt"
	"iter"
	"slices"

	"borg/mutant"
	"borg/proto/borgpb"
)

// Load makes a cell of records in the order of their keys, as Records yields
// them. Anything odd is refused: a record that is not encoded as this build
// would encode it, one that refers to what is not there, a state that breaks an
// invariant. The digest is computed anew from all records.
func Load(records iter.Seq2[[]byte, []byte]) (*Cell, error) {
	c := New("", 0)
	c.records = recordBook{}
	l := loader{c: c, orphanJobs: make(map[UID]*Job), lostMachines: make(map[string]*Machine), seats: make(map[*Job][]*seat)}
	var last []byte
	var sum digestSum
	seen := false
	for key, value := range records {
		if len(key) == 0 || (seen && bytes.Compare(key, last) <= 0) || (!seen && key[0] != kindHead) {
			return nil, fmt.Errorf("load cell: record %x: out of order", key)
		}
		seen = true
		last = append(last[:0], key...)
		if err := l.record(key, value); err != nil {
			return nil, fmt.Errorf("load cell: record %x: %w", key, err)
		}
		sum.add(c.records.hasher.of(key, value))
	}
	if !seen {
		return nil, errors.New("load cell: there are no records")
	}
	if err := l.finish(); err != nil {
		return nil, fmt.Errorf("load cell: %w", err)
	}
	if err := c.recount(sum); err != nil {
		return nil, fmt.Errorf("load cell: %w", err)
	}
	if err := c.Check(); err != nil {
		return nil, fmt.Errorf("load cell: %w", err)
	}
	return c, nil
}

// recount encodes everything again: the digest must come out as that of the
// records that were read, or they were not as this build writes them.
func (c *Cell) recount(want digestSum) error {
	c.head.unsettled, c.head.unflushed = false, false
	b := &c.records
	for r := range c.objects() {
		if r.exists() {
			key, value := b.encode(r)
			b.settle(r.marker(), key, value)
		}
	}
	if b.sum != want {
		return fmt.Errorf("the records are not as this build writes them: digest %x, want %x",
			want.digest(), b.sum.digest())
	}
	return nil
}

// loader holds what is needed only while loading.
type loader struct {
	c *Cell
	// Stand-ins for what only the memory of copies still names.
	orphanJobs   map[UID]*Job
	lostMachines map[string]*Machine
	waits        []loadedWait
	jobs         []*Job
	// Of daemon jobs.
	seats map[*Job][]*seat
}

// loadedWait is a claim whose victims are looked up at the end.
type loadedWait struct {
	copy    *Copy
	alloc   *Alloc
	victims []CopyID
}

func (l *loader) record(key, value []byte) error {
	k := &keyReader{b: key[1:]}
	d := &decoder{b: value}
	if d.byte() != recordLayout {
		return fmt.Errorf("it has a layout that this build does not know")
	}
	switch key[0] {
	case kindHead:
		return errors.Join(k.done(), l.head(d))
	case kindMachine:
		return l.machine(string(k.b), d)
	case kindAllocSet:
		uid := k.uid()
		return errors.Join(k.done(), l.allocSet(uid, d))
	case kindAlloc:
		uid, index := k.uid(), k.uint32()
		return errors.Join(k.done(), l.alloc(uid, index, d))
	case kindJob:
		uid := k.uid()
		return errors.Join(k.done(), l.job(uid, d))
	case kindSpec:
		uid, version := k.uid(), k.uint64()
		return errors.Join(k.done(), l.spec(uid, version, d))
	case kindTask:
		uid, index := k.uid(), k.uint32()
		return errors.Join(k.done(), l.task(uid, index, d))
	case kindCopy:
		id := CopyID{k.uid(), k.uint32(), k.uint64()}
		return errors.Join(k.done(), l.pastCopy(id, d))
	case kindUpdate:
		uid := k.uid()
		return errors.Join(k.done(), l.update(uid, d))
	case kindSeat:
		uid, index := k.uid(), k.uint32()
		return errors.Join(k.done(), l.seat(uid, index, d))
	case kindCron:
		uid := k.uid()
		return errors.Join(k.done(), l.cron(uid, d))
	case kindRequestMark:
		return l.requestMark(string(k.b), d)
	case kindRequest:
		seq := k.uint64()
		return errors.Join(k.done(), l.request(seq, d))
	case kindEnding:
		seq := k.uint64()
		return errors.Join(k.done(), l.ending(seq, d))
	case kindUser:
		return l.user(string(k.b), d)
	case kindToken:
		return l.token(k.b, d)
	case kindSecret:
		return l.secret(string(k.b), d)
	case kindCellKey:
		return errors.Join(k.done(), l.cellKey(d))
	case kindFileChanges:
		return errors.Join(k.done(), l.fileChanges(d))
	case kindFile:
		return l.file(string(k.b), d)
	case kindRestored:
		return errors.Join(k.done(), l.restored(d))
	case kindOutage:
		return errors.Join(k.done(), l.outage(d))
	case kindBan:
		return l.ban(string(k.b), d)
	case kindLabelPolicy:
		return errors.Join(k.done(), l.labelPolicy(d))
	case kindVolume:
		return l.volume(string(k.b), d)
	case kindQuota:
		return l.quota(string(k.b), d)
	case kindTaskBounds:
		return l.taskBounds(string(k.b), d)
	case kindStateBudget:
		return l.stateBudget(string(k.b), d)
	case kindQuotaPolicy:
		return errors.Join(k.done(), l.quotaPolicy(d))
	case kindPreemption:
		return errors.Join(k.done(), l.preemption(d))
	case kindVisibility:
		return errors.Join(k.done(), l.visibility(d))
	default:
		return errors.New("it is of a kind that this build does not know")
	}
}

func (l *loader) head(d *decoder) error {
	c := l.c
	c.id, c.epoch, c.index, c.term, c.format = d.str(), d.uint(), d.uint(), d.uint(), d.uint32()
	c.clock = clock{cellNs: d.int(), wallNs: d.int(), suspect: d.bool(), stamped: d.bool(), stampTerm: d.uint()}
	c.graveyard.nextSeq, c.requests.nextSeq = d.uint(), d.uint()
	if err := d.done(); err != nil {
		return err
	}
	if c.format == 0 || c.format > BuildFormat {
		return newerFormat(c.format, BuildFormat)
	}
	if k := c.clock; k.cellNs < 0 || k.cellNs > maxTimeNs || k.wallNs < 0 || k.wallNs > maxTimeNs {
		return errors.New("a time out of its range")
	}
	return nil
}

func (l *loader) machine(name string, d *decoder) error {
	m := &Machine{
		name: name, uid: d.uid(), version: d.uint(), labels: d.strs(), annotations: d.strs(),
		addr: d.str(), attributes: d.strs(),
	}
	m.room.capacity = d.resources()
	m.portFirst, m.portLast = d.uint16(), d.uint16()
	for range d.count() {
		m.taints = append(m.taints, Taint{Key: d.str(), Value: d.str(), Evict: d.bool()})
	}
	m.down, m.draining, m.reason, m.changedWallNs = d.bool(), d.bool(), d.str(), d.int()
	if d.taints(m.taints); l.c.format < formatTaints && slices.ContainsFunc(m.taints, func(t Taint) bool { return t.PreferNot || t.SinceNs != 0 }) {
		return errOdd
	}
	l.c.actTaints(m)
	if err := l.heard(d, m); err != nil {
		return err
	}
	if err := l.drain(d, m); err != nil {
		return err
	}
	if err := l.packages(d, m); err != nil {
		return err
	}
	if d.tagged(tagGiveUp) {
		if m.drain == nil || l.c.format < FormatVolumes {
			return errOdd
		}
		m.drain.giveUp = true
	}
	if err := l.heldPorts(d, m); err != nil {
		return err
	}
	if err := d.done(); err != nil {
		return err
	}
	if !validName(name) || m.portFirst > m.portLast {
		return errors.New("a machine with an odd name or port range")
	}
	m.derive()
	l.c.addMachine(m)
	for _, digest := range m.packages {
		l.c.holders.add(digest, m)
	}
	return nil
}

func (l *loader) allocSet(uid UID, d *decoder) error {
	s := &AllocSet{
		uid: uid, key: JobKey{d.str(), d.str()}, labels: d.strs(), annotations: d.strs(), specBytes: d.raw(),
		submittedWallNs: d.int(), changedWallNs: d.int(), reason: d.str(), deathSeq: d.uint(), deathNs: d.int(),
	}
	allocs, was := l.setChanges(d, s)
	if err := d.done(); err != nil {
		return err
	}
	spec, r := readAllocSetSpec(s.specBytes, l.c.format)
	if r != nil {
		return errors.New(r.Message)
	}
	s.weight = weighSet(s.specBytes)
	if l.c.sets[s.key] != nil || checkKey(s.key) != nil {
		return fmt.Errorf("an odd alloc set %v", s.key)
	}
	s.setSpec(spec)
	initial := statePending
	if s.deathSeq != 0 {
		initial = stateDead
	}
	if allocs == 0 {
		allocs = spec.Allocs
	}
	for i := range allocs {
		a := s.newAlloc(i)
		a.state = initial
		s.allocs = append(s.allocs, a)
	}
	s.counts[initial] = allocs
	if was != nil {
		if s.keep(*was); s.given == nil {
			return errOdd
		}
	}
	l.c.addAllocSet(s)
	return nil
}

func (l *loader) alloc(uid UID, index uint32, d *decoder) error {
	s := l.c.setsByU[uid]
	if s == nil || s.Alloc(index) == nil {
		return errors.New("an alloc of no alloc set")
	}
	a := s.allocs[index]
	s.counts[a.state]--
	a.state, a.attempt = state(d.byte()), d.uint()
	lost := d.bool()
	if a.state != statePending && a.state != stateRunning && a.state != stateDead {
		return errOdd
	}
	s.counts[a.state]++
	if lost || a.state == stateRunning {
		m := l.c.machines[d.str()]
		if m == nil || lost == (a.state == stateRunning) {
			return errors.New("an alloc on no machine")
		}
		if lost {
			a.lostOn = m
			m.allocs = insertAlloc(m.allocs, a)
		} else {
			l.c.enterMachine(a, m)
		}
	}
	if ids := l.victims(d); len(ids) > 0 {
		l.waits = append(l.waits, loadedWait{alloc: a, victims: ids})
	}
	a.changedWallNs, a.reason = d.int(), d.str()
	gs := d.grants()
	if err := l.behind(d, a); err != nil {
		return err
	}
	if err := d.done(); err != nil {
		return err
	}
	m := a.machine
	if m == nil {
		m = a.lostOn
	}
	if len(gs) > 0 && (m == nil || l.c.format < formatDevices) {
		return errors.New("an alloc with devices of no machine")
	}
	if m != nil {
		m.room.add(inBoth(a.res()))
		a.takeDevices(m, gs)
	}
	return nil
}

func (l *loader) victims(d *decoder) []CopyID {
	var ids []CopyID
	for range d.count() {
		ids = append(ids, CopyID{d.uid(), d.uint32(), d.uint()})
	}
	return ids
}

func (l *loader) job(uid UID, d *decoder) error {
	j := &Job{uid: uid, key: JobKey{d.str(), d.str()}, version: d.uint(), labels: d.strs(), annotations: d.strs()}
	j.specs = j.own.specs[:0]
	tasks := d.upTo(maxTasksPerJob)
	j.attemptFloor, j.submittedWallNs, j.changedWallNs = d.uint(), d.int(), d.int()
	j.reason, j.deathSeq, j.deathNs = d.str(), d.uint(), d.int()
	if j.enabled = d.tagged(tagEnabled); j.enabled && l.c.format < formatQueue {
		return errOdd
	}
	if d.tagged(tagSlot) {
		if j.slotNs = d.int(); j.slotNs <= 0 || l.c.format < FormatKinds {
			return errOdd
		}
	}
	if err := errors.Join(l.given(d, j), l.saving(d, j), d.done()); err != nil {
		return err
	}
	c := l.c
	if c.Job(j.key) != nil || c.sets[j.key] != nil || checkKey(j.key) != nil || tasks == 0 && c.format < FormatKinds {
		return fmt.Errorf("an odd job %v", j.key)
	}
	c.jobs.add(j)
	c.jobsByUID[uid] = j
	c.grow(j, uint32(tasks))
	if j.deathSeq != 0 {
		for _, t := range j.rows {
			l.setState(t, stateDead)
		}
	}
	if l.jobs = append(l.jobs, j); j.saving != nil && j.deathSeq == 0 {
		c.addSaver(j)
	}
	return nil
}

// setState sets the state of a row outside the diagram.
func (l *loader) setState(t *Task, to state) {
	j := t.job
	l.c.countTasks(j, t.state, -1)
	l.c.countTasks(j, to, 1)
	j.waiting.clear(t.index)
	if to == statePending {
		j.waiting.set(t.index)
	}
	t.state = to
}

func (l *loader) spec(uid UID, version uint64, d *decoder) error {
	j := l.c.jobsByUID[uid]
	data, cores := d.raw(), d.tagged(tagCores)
	if err := d.done(); err != nil {
		return err
	}
	if j == nil || version == 0 || version > j.version {
		return errors.New("a spec of no job")
	}
	s, r := l.c.readSpecOf(j.key, data, cores)
	if r != nil {
		return errors.New(r.Message)
	}
	if s.cores != cores || cores && l.c.format < FormatCores {
		return errOdd
	}
	s.job, s.Version = j, version
	j.specs = append(j.specs, s)
	return nil
}

func (l *loader) task(uid UID, index uint32, d *decoder) error {
	j := l.c.jobsByUID[uid]
	if j == nil || j.Task(index) == nil || len(j.specs) == 0 {
		return errors.New("a task of no job")
	}
	t := j.rows[index]
	st := state(d.byte())
	t.flags, t.failures, t.attempt = taskFlags(d.byte()), d.uint32(), d.uint()
	t.changedWallNs, t.reason = d.int(), d.str()
	running := d.bool()
	if (st != statePending && st != stateRunning && st != stateDead) || running != (st == stateRunning) || t.attempt == 0 {
		return errOdd
	}
	l.setState(t, st)
	if t.flags&taskFinished != 0 {
		j.finished++
	}
	if !running {
		return errors.Join(l.disrupted(d, t), l.crashes(d, t), l.retries(d, t), d.done())
	}
	p := &Copy{job: j, index: index, attempt: t.attempt}
	if err := l.copy(p, d, t); err != nil {
		return err
	}
	if !p.state.current() || p.spec == nil {
		return errors.New("a running task without a running copy")
	}
	t.cur = p
	return nil
}

func (l *loader) pastCopy(id CopyID, d *decoder) error {
	p := &Copy{index: id.Index, attempt: id.Attempt, orphan: d.bool()}
	p.job = l.c.jobsByUID[id.Job]
	if p.orphan {
		key := JobKey{d.str(), d.str()}
		if p.job == nil {
			p.job = l.orphanJob(id.Job, key)
		}
		if p.job.key != key {
			return errors.New("an orphan under the name of another job")
		}
	} else if p.job == nil || p.job.Task(id.Index) == nil {
		return errors.New("a copy of no task")
	}
	if err := l.copy(p, d, nil); err != nil {
		return err
	}
	if p.state.current() || (p.orphan && !p.state.live()) {
		return errors.New("a past copy in the state of a present one")
	}
	if !p.orphan {
		t := p.job.rows[p.index]
		if p.attempt > t.attempt || (t.cur != nil && p.attempt >= t.cur.attempt) {
			return errors.New("a past copy that is newer than its task")
		}
		p.next, t.past = t.past, p
	}
	return nil
}

// orphanJob stands in for a job that was replaced.
func (l *loader) orphanJob(uid UID, key JobKey) *Job {
	j := l.orphanJobs[uid]
	if j == nil {
		j = &Job{uid: uid, key: key, gone: true}
		l.orphanJobs[uid] = j
	}
	return j
}

// copy reads what encoder.copy writes, and what else there is of the task whose
// current one it is, and gives a live one its place.
func (l *loader) copy(p *Copy, d *decoder, of *Task) error {
	name := d.str()
	if d.bool() {
		s, index := l.c.setsByU[d.uid()], d.uint32()
		if s == nil || s.Alloc(index) == nil {
			return errors.New("a copy in no alloc")
		}
		p.alloc = s.allocs[index]
	}
	p.state, p.shimLost, p.kind = attemptState(d.byte()), d.bool(), jobKind(d.byte())
	p.priority, p.version = d.int32(), d.uint()
	if d.bool() {
		s := p.job.specAt(p.version)
		if s == nil || p.orphan {
			return errors.New("a copy of no spec")
		}
		l.c.bind(p, s)
		p.res = &s.Need(p.index).Resources
	} else {
		res := d.resources()
		p.res = &res
	}
	for range d.count() {
		p.ports = append(p.ports, d.uint16())
	}
	p.restarts, p.pid, p.startedWallNs, p.exit, p.text = d.uint32(), d.int(), d.int(), d.exit(), d.str()
	if d.bool() {
		p.stop = &stopping{cause: borgpb.StopCause(d.uint32()), reason: d.str(), index: d.uint(), graceNs: d.int()}
	}
	p.endedWallNs = d.int()
	ids := l.victims(d)
	if gs := d.grants(); len(gs) > 0 {
		p.rare().devices = gs
		if l.c.format < formatDevices {
			return errOdd
		}
	}
	if n, err := l.note(d); err != nil {
		return err
	} else if n != nil {
		p.rare().note = n
	}
	p.estimate = d.reservation()
	if p.estimate != nil && (!p.state.live() || len(ids) > 0 || l.c.format < formatReservations) {
		return errOdd
	}
	if err := errors.Join(l.watched(d, p), l.quarantine(d, p)); err != nil {
		return err
	}
	if err := errors.Join(l.notice(d, p), l.ownStop(d, p)); err != nil {
		return err
	}
	if err := l.addr(d, p); err != nil {
		return err
	}
	if err := l.uses(d, p); err != nil {
		return err
	}
	if err := l.exitReason(d, p); err != nil {
		return err
	}
	if err := errors.Join(l.exitWay(d, p), l.left(d, p)); err != nil {
		return err
	}
	if of != nil {
		if err := errors.Join(l.disrupted(d, of), l.crashes(d, of), l.retries(d, of)); err != nil {
			return err
		}
	}
	if err := d.done(); err != nil {
		return err
	}
	if len(ids) > 0 {
		l.waits = append(l.waits, loadedWait{copy: p, victims: ids})
	}
	return l.place(p, name)
}

// place gives a copy that was read its machine, and its place if it is live.
func (l *loader) place(p *Copy, name string) error {
	m := l.c.machines[name]
	if !p.state.live() {
		if p.state < attemptFinished || p.state > attemptLost || p.alloc != nil {
			return errOdd
		}
		if m == nil {
			if m = l.lostMachines[name]; m == nil {
				m = &Machine{name: name, gone: true}
				l.lostMachines[name] = m
			}
		}
		p.machine = m
		return nil
	}
	if m == nil || (p.alloc != nil && p.alloc.machine != m && p.alloc.lostOn != m) {
		return errors.New("a copy on no machine")
	}
	if m.find(CopyID{p.job.uid, p.index, p.attempt}) != nil || len(m.copies) >= 2*maxCopiesOnMachine {
		return errors.New("a copy too many")
	}
	p.machine = m
	st := p.state
	p.state = 0
	l.c.setCopyState(p, st)
	l.c.hold(p)
	l.c.want(p)
	if st == attemptQuarantined {
		if p.few == nil || p.few.quarantine == nil {
			return errOdd
		}
		l.c.keep(p)
	}
	return nil
}

func (l *loader) update(uid UID, d *decoder) error {
	j := l.c.jobsByUID[uid]
	u := &Update{
		job: j, uid: d.uid(), fromVersion: d.uint(), toVersion: d.uint(), batchSize: d.uint32(), maxDisruptions: d.uint32(),
		state: borgpb.UpdateState(d.byte()), reason: d.str(), inPlace: d.uint32(), restarted: d.uint32(),
		rescheduled: d.uint32(), skipped: d.uint32(), startedWallNs: d.int(), endedWallNs: d.int(),
	}
	if err := errors.Join(l.rollout(d, u), l.pace(d, u), d.done()); err != nil {
		return err
	}
	if _, known := borgpb.UpdateState_name[int32(u.state)]; j == nil || u.state == 0 || !known {
		return errors.New("an update of no job")
	}
	j.update = u
	return nil
}

func (l *loader) request(seq uint64, d *decoder) error {
	r := &request{
		seq: seq, id: d.str(), madeWallNs: d.int(), doneWallNs: d.int(),
		index: d.uint(), uid: d.uid(), updateUID: d.uid(), version: d.uint(), sum: d.uint(),
	}
	if l.c.format >= formatRefusalsKept && d.more() {
		r.asked, r.user = true, d.str()
		kind := borgpb.RefusalKind(d.upTo(1<<31 - 1))
		if _, known := borgpb.RefusalKind_name[int32(kind)]; !known {
			return errors.New("a request refused for no reason that this build knows")
		}
		if kind != 0 {
			r.refusal = &borgpb.Refusal{Kind: kind, Object: d.str(), Message: d.str(), Field: d.str()}
		}
	}
	if err := d.done(); err != nil {
		return err
	}
	if mutant.Planted(mutant.RequestsLostOnLoad) {
		return nil
	}
	q := &l.c.requests
	if seq >= q.nextSeq || q.byID[r.id] != nil {
		return errors.New("an odd request")
	}
	q.add(r, q.share(r.user))
	return nil
}
