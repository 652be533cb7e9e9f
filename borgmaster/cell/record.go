package cell

import (
	"encoding/binary"
	"iter"
	"slices"
)

// Kinds of records, the first byte of their keys. What a record refers to has
// a smaller kind, so that records in the order of their keys can be read in one
// go.
//
//	10                                 head: clocks, counters
//	20 name                            machine
//	30 uid                             alloc set
//	31 uid index                       alloc, unless it was never placed
//	40 uid                             job
//	41 uid version                     spec of a job, as committed
//	42 uid index                       task, unless it was never placed
//	43 uid index attempt               copy that is not a task's current one
//	44 uid                             update of a job, the last one
//	45 uid index                       machine that a task of a daemon job belongs to
//	46 uid                             slots of a cron job
//	50 seq                             request that was answered
//	51 user                            up to when requests of a user were forgotten early; no user: nobody's
//	60 name                            user
//	61 hash                            token
//	62 user/name                       secret
//	63                                 the cell key in use
//	64                                 how often files were written and deleted
//	65 user/name                       file
//	66                                 how the cell was restored
//	67                                 whether many machines can be lost
//	68 death                           dependents of a dead job that are still to be ended
//	70 name 0 digest 0 machine         ban of a package
//	aa user 0 band                     quota
//	ab user                            bounds of a user's tasks
//	ac                                 how the cell deals with quotas
//	ad user                            how much of the state a user may hold; no user: each
//	b0 user 0 name 0 index 0 volume 0 machine  volume; its index as 8 hex digits
//	c8                                 rules of labels
//	d7                                 which bands collapse
//	d8                                 what users may read of each other's work
//
// A uid is epoch (8 bytes), log index (8), n (4); an index 4 bytes; version,
// attempt, seq and death 8; all big-endian. A value starts with recordLayout and goes
// on as its appendValue says (see encoder); docs/format-cell-records.md says it
// in words.
const (
	kindHead        = 0x10
	kindMachine     = 0x20
	kindAllocSet    = 0x30
	kindAlloc       = 0x31
	kindJob         = 0x40
	kindSpec        = 0x41
	kindTask        = 0x42
	kindCopy        = 0x43
	kindUpdate      = 0x44
	kindSeat        = 0x45
	kindCron        = 0x46
	kindRequest     = 0x50
	kindRequestMark = 0x51
	kindUser        = 0x60
	kindToken       = 0x61
	kindSecret      = 0x62
	kindCellKey     = 0x63
	kindBan         = 0x70

	kindFileChanges = 0x64
	kindFile        = 0x65
	kindRestored    = 0x66
	kindOutage      = 0x67
	kindEnding      = 0x68

	kindQuota       = 0xaa
	kindTaskBounds  = 0xab
	kindQuotaPolicy = 0xac
	kindStateBudget = 0xad
	kindVolume      = 0xb0
	kindLabelPolicy = 0xc8
	kindPreemption  = 0xd7
	kindVisibility  = 0xd8

	recordLayout = 1
)

// headMark is the record of what belongs to the cell as a whole.
type headMark struct {
	mark
	cell *Cell
}

func (h *headMark) appendKey(b []byte) []byte { return append(b, kindHead) }
func (h *headMark) exists() bool              { return true }

func (h *headMark) appendValue(b []byte) []byte {
	c := h.cell
	e := encoder{append(b, recordLayout)}
	e.str(c.id)
	e.uint(c.epoch)
	e.uint(c.index)
	e.uint(c.term)
	e.uint(uint64(c.format))
	e.int(c.clock.cellNs)
	e.int(c.clock.wallNs)
	e.bool(c.clock.suspect)
	e.bool(c.clock.stamped)
	e.uint(c.clock.stampTerm)
	e.uint(c.graveyard.nextSeq)
	e.uint(c.requests.nextSeq)
	return e.b
}

func (m *Machine) appendKey(b []byte) []byte { return append(append(b, kindMachine), m.name...) }
func (m *Machine) exists() bool              { return !m.gone }

func (m *Machine) appendValue(b []byte) []byte {
	e := encoder{append(b, recordLayout)}
	e.uid(m.uid)
	e.uint(m.version)
	e.strs(m.labels)
	e.strs(m.annotations)
	e.str(m.addr)
	e.strs(m.attributes)
	e.resources(&m.room.capacity)
	e.uint(uint64(m.portFirst))
	e.uint(uint64(m.portLast))
	e.uint(uint64(len(m.taints)))
	for _, t := range m.taints {
		e.str(t.Key)
		e.str(t.Value)
		e.bool(t.Evict)
	}
	e.bool(m.down)
	e.bool(m.draining)
	e.str(m.reason)
	e.int(m.changedWallNs)
	e.taints(m.taints)
	e.heard(m)
	e.drain(m.drain)
	e.packages(m)
	if m.givesUp() {
		e.byte(tagGiveUp)
	}
	e.heldPorts(m)
	return e.b
}

func (s *AllocSet) appendKey(b []byte) []byte { return appendUIDKey(b, kindAllocSet, s.uid) }
func (s *AllocSet) exists() bool              { return !s.gone }

func (s *AllocSet) appendValue(b []byte) []byte {
	e := encoder{append(b, recordLayout)}
	e.str(s.key.User)
	e.str(s.key.Name)
	e.strs(s.labels)
	e.strs(s.annotations)
	e.bytes(s.specBytes)
	e.int(s.submittedWallNs)
	e.int(s.changedWallNs)
	e.str(s.reason)
	e.uint(s.deathSeq)
	e.int(s.deathNs)
	e.setChanges(s)
	return e.b
}

func (a *Alloc) appendKey(b []byte) []byte {
	return binary.BigEndian.AppendUint32(appendUIDKey(b, kindAlloc, a.set.uid), a.index)
}

// exists: an alloc that was never placed is as its set says. One that was cut off by a
// resize is gone.
func (a *Alloc) exists() bool { return a.attempt != 0 && !a.Gone() }

func (a *Alloc) appendValue(b []byte) []byte {
	e := encoder{append(b, recordLayout)}
	e.byte(byte(a.state))
	e.uint(a.attempt)
	e.bool(a.lostOn != nil)
	switch {
	case a.machine != nil:
		e.str(a.machine.name)
	case a.lostOn != nil:
		e.str(a.lostOn.name)
	}
	e.wait(a.wait)
	e.int(a.changedWallNs)
	e.str(a.reason)
	e.grants(a.devices)
	e.behind(a)
	return e.b
}

func (j *Job) appendKey(b []byte) []byte { return appendUIDKey(b, kindJob, j.uid) }
func (j *Job) exists() bool              { return !j.gone }

func (j *Job) appendValue(b []byte) []byte {
	e := encoder{append(b, recordLayout)}
	e.str(j.key.User)
	e.str(j.key.Name)
	e.uint(j.version)
	e.strs(j.labels)
	e.strs(j.annotations)
	e.uint(uint64(len(j.rows)))
	e.uint(j.attemptFloor)
	e.int(j.submittedWallNs)
	e.int(j.changedWallNs)
	e.str(j.reason)
	e.uint(j.deathSeq)
	e.int(j.deathNs)
	if j.enabled {
		e.byte(tagEnabled)
	}
	if j.slotNs != 0 {
		e.byte(tagSlot)
		e.int(j.slotNs)
	}
	e.given(tagGiven, j.given)
	e.saving(j.saving)
	return e.b
}

func (s *Spec) appendKey(b []byte) []byte {
	return binary.BigEndian.AppendUint64(appendUIDKey(b, kindSpec, s.job.uid), s.Version)
}
func (s *Spec) exists() bool { return !s.gone }

func (s *Spec) appendValue(b []byte) []byte {
	e := encoder{append(b, recordLayout)}
	e.bytes(s.Bytes)
	if s.cores {
		e.byte(tagCores)
	}
	return e.b
}

func (t *Task) appendKey(b []byte) []byte { return appendIndexKey(b, kindTask, t.job.uid, t.index) }

// exists: a task that was never placed is as its job says. One that was cut off
// by a resize is gone.
func (t *Task) exists() bool {
	return !t.job.gone && t.attempt != 0 && int(t.index) < len(t.job.rows) && t.job.rows[t.index] == t
}

func (t *Task) appendValue(b []byte) []byte {
	e := encoder{append(b, recordLayout)}
	e.byte(byte(t.state))
	e.byte(byte(t.flags))
	e.uint(uint64(t.failures))
	e.uint(t.attempt)
	e.int(t.changedWallNs)
	e.str(t.reason)
	e.bool(t.cur != nil)
	if t.cur != nil {
		e.copy(t.cur)
	}
	e.disrupted(t.disrupted())
	e.crashes(t.crashRow())
	e.retries(t.retryRow())
	return e.b
}

func (p *Copy) appendKey(b []byte) []byte {
	b = binary.BigEndian.AppendUint32(appendUIDKey(b, kindCopy, p.job.uid), p.index)
	return binary.BigEndian.AppendUint64(b, p.attempt)
}

// exists: a current copy is written with its task; one that has ended is
// written while its row remembers it.
func (p *Copy) exists() bool {
	return !p.state.current() && (p.state.live() || !p.orphan)
}

func (p *Copy) appendValue(b []byte) []byte {
	e := encoder{append(b, recordLayout)}
	e.bool(p.orphan)
	if p.orphan {
		e.str(p.job.key.User)
		e.str(p.job.key.Name)
	}
	e.copy(p)
	return e.b
}

// copy writes what is common to current copies and others.
func (e *encoder) copy(p *Copy) {
	e.str(p.machine.name)
	e.bool(p.alloc != nil)
	if p.alloc != nil {
		e.uid(p.alloc.set.uid)
		e.uint(uint64(p.alloc.index))
	}
	e.byte(byte(p.state))
	e.bool(p.shimLost)
	e.byte(byte(p.kind))
	e.int(int64(p.priority))
	e.uint(p.version)
	// What a copy bound to its spec holds follows from it.
	e.bool(p.spec != nil)
	if p.spec == nil {
		e.resources(p.res)
	}
	e.uint(uint64(len(p.ports)))
	for _, n := range p.ports {
		e.uint(uint64(n))
	}
	e.uint(uint64(p.restarts))
	e.int(p.pid)
	e.int(p.startedWallNs)
	e.exit(p.exit)
	e.str(p.text)
	e.bool(p.stop != nil)
	if s := p.stop; s != nil {
		e.uint(uint64(s.cause))
		e.str(s.reason)
		e.uint(s.index)
		e.int(s.graceNs)
	}
	e.int(p.endedWallNs)
	e.wait(p.wait)
	e.grants(p.Devices())
	e.note(p.ownNote())
	e.reservation(p.estimate)
	e.watched(p)
	e.quarantine(p)
	e.notice(p)
	e.ownStop(p)
	e.addr(p.Addr())
	e.uses(p)
	e.exitReason(p.exit)
	e.exitWay(p.exit)
	e.left(p)
}

// wait writes the names of the victims that are waited for.
func (e *encoder) wait(w *waiting) {
	if w == nil {
		e.uint(0)
		return
	}
	e.uint(uint64(len(w.victims)))
	for _, v := range w.victims {
		e.uid(v.job.uid)
		e.uint(uint64(v.index))
		e.uint(v.attempt)
	}
}

func (u *Update) appendKey(b []byte) []byte { return appendUIDKey(b, kindUpdate, u.job.uid) }
func (u *Update) exists() bool              { return !u.job.gone }

func (u *Update) appendValue(b []byte) []byte {
	e := encoder{append(b, recordLayout)}
	e.uid(u.uid)
	e.uint(u.fromVersion)
	e.uint(u.toVersion)
	e.uint(uint64(u.batchSize))
	e.uint(uint64(u.maxDisruptions))
	e.byte(byte(u.state))
	e.str(u.reason)
	e.uint(uint64(u.inPlace))
	e.uint(uint64(u.restarted))
	e.uint(uint64(u.rescheduled))
	e.uint(uint64(u.skipped))
	e.int(u.startedWallNs)
	e.int(u.endedWallNs)
	e.rollout(&u.rollout)
	e.pace(&u.pace)
	return e.b
}

func (r *request) appendKey(b []byte) []byte {
	return binary.BigEndian.AppendUint64(append(b, kindRequest), r.seq)
}
func (r *request) exists() bool { return !r.gone }

func (r *request) appendValue(b []byte) []byte {
	e := encoder{append(b, recordLayout)}
	e.str(r.id)
	e.int(r.madeWallNs)
	e.int(r.doneWallNs)
	e.uint(r.index)
	e.uid(r.uid)
	e.uid(r.updateUID)
	e.uint(r.version)
	e.uint(r.sum)
	if !r.asked {
		return e.b
	}
	e.str(r.user)
	e.uint(uint64(r.refusal.GetKind()))
	if f := r.refusal; f != nil {
		e.str(f.Object)
		e.str(f.Message)
		e.str(f.Field)
	}
	return e.b
}

// Records yields the whole state, sorted by key. Key and value are only good
// until the next one.
func (c *Cell) Records() iter.Seq2[[]byte, []byte] {
	return func(yield func(key, value []byte) bool) {
		var key, value []byte
		for r := range c.objects() {
			if !r.exists() {
				continue
			}
			key, value = r.appendKey(key[:0]), r.appendValue(value[:0])
			if !yield(key, value) {
				return
			}
		}
	}
}

// objects yields everything that may have a record, in the order of the keys.
func (c *Cell) objects() iter.Seq[record] {
	return func(yield func(record) bool) {
		jobs := slices.SortedFunc(c.jobs.each(), func(a, b *Job) int { return a.uid.Compare(b.uid) })
		sets := slices.SortedFunc(slices.Values(c.setList), func(a, b *AllocSet) int { return a.uid.Compare(b.uid) })
		ok := yield(&c.head)
		all := func(seq iter.Seq[record]) {
			for r := range seq {
				if ok = ok && yield(r); !ok {
					return
				}
			}
		}
		all(each(c.machineList, func(m *Machine) record { return m }))
		all(each(sets, func(s *AllocSet) record { return s }))
		for _, s := range sets {
			all(each(s.allocs, func(a *Alloc) record { return a }))
		}
		all(each(jobs, func(j *Job) record { return j }))
		for _, j := range jobs {
			all(each(j.specs, func(s *Spec) record { return s }))
		}
		for _, j := range jobs {
			all(each(j.rows, func(t *Task) record { return t }))
		}
		all(each(c.pastCopies(jobs), func(p *Copy) record { return p }))
		for _, j := range jobs {
			if u := j.update; u != nil && ok {
				ok = yield(u)
			}
		}
		for _, j := range jobs {
			if j.daemon != nil {
				all(each(j.daemon.seats, func(s *seat) record { return s }))
			}
		}
		for _, j := range jobs {
			if j.cron != nil {
				ok = ok && yield(j.cron)
			}
		}
		for _, r := range c.requests.queue {
			ok = ok && (r.gone || yield(r))
		}
		all(each(c.requests.marks, func(m *requestMark) record { return m }))
		all(each(c.users.list, func(u *User) record { return u }))
		all(each(c.tokens.list, func(t *token) record { return t }))
		all(each(c.secrets.list, func(s *Secret) record { return s }))
		ok = ok && yield(&c.secrets.keyID) && yield(&c.files.changes)
		all(each(c.files.list, func(f *File) record { return f }))
		ok = ok && yield(&c.restored) && yield(&c.outage)
		all(each(c.endings.queue, func(d *dependents) record { return d }))
		all(each(c.bans.list, func(b *Ban) record { return b }))
		all(each(c.quotas.list, func(q *Quota) record { return q }))
		all(each(c.taskBounds.list, func(b *TaskBounds) record { return b }))
		ok = ok && yield(&c.quotas.policy)
		all(each(c.stateBudgets.list, func(b *stateBudget) record { return b }))
		all(each(slices.Collect(c.Volumes()), func(v *Volume) record { return v }))
		ok = ok && yield(&c.labelPolicy)
		_ = ok && yield(&c.preemption) && yield(&c.visibility)
	}
}

func each[T any](list []T, conv func(T) record) iter.Seq[record] {
	return func(yield func(record) bool) {
		for _, o := range list {
			if !yield(conv(o)) {
				return
			}
		}
	}
}

// pastCopies are all copies with a record of their own, by id.
func (c *Cell) pastCopies(jobs []*Job) []*Copy {
	var out []*Copy
	for _, j := range jobs {
		for _, t := range j.rows {
			for p := t.past; p != nil; p = p.next {
				out = append(out, p)
			}
		}
	}
	for _, m := range c.machineList {
		for _, p := range m.copies {
			if p.orphan {
				out = append(out, p)
			}
		}
	}
	slices.SortFunc(out, func(a, b *Copy) int { return a.ID().Compare(b.ID()) })
	return out
}
