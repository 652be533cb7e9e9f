package cell

import (
	"errors"
	"fmt"
	"slices"

	"borg/mutant"
	"borg/proto/borgpb"
)

// FormatKinds is the format in which daemon and cron jobs began.
const FormatKinds = 7

// formatSeatsBack is the format in which a rollback of a daemon job began to leave the
// number of its tasks alone. Its machines say it, and the spec that comes back may match
// others: until then the tasks of those were cut off, and their seats stayed.
const formatSeatsBack = 8

// stands tells whether a job of that kind lives until it is killed, whatever has
// become of its tasks, of which there may be none.
func stands(kind borgpb.JobKind) bool {
	return kind == borgpb.JobKind_JOB_KIND_DAEMON || kind == borgpb.JobKind_JOB_KIND_CRON
}

// daemon is which machine each row of a daemon job belongs to: there is one for each
// machine that matches. A row whose machine is gone, or does not match any longer, is
// a hole: dead, until a machine that comes takes it.
type daemon struct {
	// By row.
	seats []*seat
	at    map[*Machine]uint32
	// Rows without a machine; derived.
	holes bitmap
	// Machines that match and have no row, by name; derived. See unseated.go.
	unseated []*Machine
}

// seat is the machine of one row. What the row runs, runs there and nowhere else.
type seat struct {
	mark
	job   *Job
	index uint32
	// Nil: a hole.
	machine *Machine
}

// Seat is the machine that task index of a daemon job belongs to; nil: the job is
// none, or the task is a hole.
func (j *Job) Seat(index uint32) *Machine {
	if j.daemon == nil || int(index) >= len(j.daemon.seats) {
		return nil
	}
	return j.daemon.seats[index].machine
}

// SeatOn is the row of a daemon job that belongs to a machine.
func (j *Job) SeatOn(m *Machine) (index uint32, ok bool) {
	if j.daemon == nil {
		return 0, false
	}
	index, ok = j.daemon.at[m]
	return index, ok
}

// Elsewhere tells whether it is a task of a daemon job that belongs to another machine.
func (p *Placement) Elsewhere(m *Machine) bool {
	return p.Job != nil && p.Job.daemon != nil && p.Job.Seat(p.Index) != m && !mutant.Planted(mutant.DaemonElsewhere)
}

// Seat names the machine that a task of a daemon job belongs to; "none" if there is none.
func (p *Placement) Seat() string {
	if p.Job != nil {
		if m := p.Job.Seat(p.Index); m != nil {
			return m.name
		}
	}
	return "none"
}

// matches tells whether a machine has a task of a daemon job with the spec: it meets the
// hard constraints, and no taint of it keeps the job away.
func (s *Spec) matches(m *Machine) bool {
	task := s.Need(0).Task
	return failedConstraint(task.Constraints, m) == nil && Untolerated(task.Tolerations, m) == nil
}

// Matches reports whether a machine has, or would have, a task of a daemon job. It may be a
// machine of another cell.
func (j *Job) Matches(m *Machine) bool { return j.daemon != nil && j.latest().matches(m) }

// SeatNeed is what a task of a daemon job asks for that begins now.
func (j *Job) SeatNeed() *Need { return j.latest().Need(0) }

// numMatching counts the machines of which each would have a task of a daemon job.
func (c *Cell) numMatching(s *Spec) (n uint64) {
	for _, m := range c.machineList {
		if s.matches(m) {
			n++
		}
	}
	return n
}

// seatMachine gives a machine its tasks of all daemon jobs, and ends those that it has
// no longer. It is called whenever something else is said of the machine.
func (c *Cell) seatMachine(m *Machine) {
	for _, j := range c.daemons {
		c.seatOn(j, m)
	}
}

// seatJob is seatMachine for all machines and one job.
func (c *Cell) seatJob(j *Job) {
	for _, m := range c.machineList {
		c.seatOn(j, m)
	}
}

func (c *Cell) seatOn(j *Job, m *Machine) {
	index, seated := j.daemon.at[m]
	switch matches := j.latest().matches(m); {
	case !seated:
		c.setUnseated(j, m, matches && !c.takeSeat(j, m))
	case !matches && seated && !mutant.Planted(mutant.DaemonStays):
		c.leaveSeat(j, index, "machine "+m.name+" no longer matches the constraints and tolerations of the job")
	}
}

// unseatMachine ends the tasks that daemon jobs have on a machine that goes.
func (c *Cell) unseatMachine(m *Machine) {
	for _, j := range c.daemons {
		c.setUnseated(j, m, false)
		if index, ok := j.daemon.at[m]; ok {
			c.leaveSeat(j, index, "machine "+m.name+" was removed")
		}
	}
}

// takeSeat gives a machine a task: the lowest row that is a hole and of which nothing
// is left on another machine, or a new one. It reports false if there is none: a job or a
// cell is full, or the user has no quota for it.
func (c *Cell) takeSeat(j *Job, m *Machine) bool {
	d := j.daemon
	if c.counts.liveTasks() >= maxLiveTasks || !c.hasQuotaFor(j.key.User, chargeAny(j.specs, 0, 1)) {
		return false
	}
	if len(d.at) < len(j.rows) && mutant.Planted(mutant.HoleStays) {
		return false
	}
	index := uint32(len(j.rows))
	for i := range d.holes.all() {
		if !j.rows[i].holdsPlace() {
			index = i
			break
		}
	}
	if int(index) >= maxTasksPerJob {
		return false
	}
	if int(index) == len(j.rows) {
		c.grow(j, index+1)
		d.seats = append(d.seats, &seat{job: j, index: index})
		c.dirty(j)
	} else {
		d.holes.clear(index)
		c.waitAgain(j.rows[index])
		c.chargeAgain(j.rows[index])
	}
	s := d.seats[index]
	s.machine, d.at[m] = m, index
	c.dirty(s)
	c.emit(Event{
		Kind: borgpb.EventKind_EVENT_KIND_SEAT, ObjectKind: borgpb.ObjectKind_OBJECT_KIND_TASK, Key: j.key, Task: index, UID: j.uid,
		Machine: m.name, To: borgpb.State_STATE_PENDING,
	})
	c.touch(j, edgeEvict)
	return true
}

// holdsPlace tells whether any copy of a row holds a place.
func (t *Task) holdsPlace() bool {
	if t.cur != nil {
		return true
	}
	for p := t.past; p != nil; p = p.next {
		if p.state.live() {
			return true
		}
	}
	return false
}

// waitAgain makes a dead row pending as if it were submitted anew. Its attempts go on
// where they were, so that no copy is ever named twice.
func (c *Cell) waitAgain(t *Task) {
	j := t.job
	c.countTasks(j, t.state, -1)
	t.state = take(take(t.state, edgeSubmit, stateAsked), edgeAccept, statePending)
	c.countTasks(j, statePending, 1)
	j.waiting.set(t.index)
	c.dropCanary(t)
	t.failures, t.flags, t.reason = 0, 0, ""
	if t.attempt != 0 {
		t.changedWallNs = c.clock.wallNs
		c.dirty(t)
	}
}

// leaveSeat makes a hole of a row: its task ends.
func (c *Cell) leaveSeat(j *Job, index uint32, reason string) {
	s := j.daemon.seats[index]
	delete(j.daemon.at, s.machine)
	s.machine = nil
	j.daemon.holes.set(index)
	c.dirty(s)
	c.killTask(j.rows[index], borgpb.StopCause_STOP_CAUSE_UNMATCHED, reason)
	c.replaceCanary(j.rows[index])
	c.touch(j, edgeEvict)
}

// freeSeats takes the machines from a daemon job that has died.
func (c *Cell) freeSeats(j *Job) {
	if j.daemon == nil {
		return
	}
	for i, s := range j.daemon.seats {
		if s.machine != nil {
			s.machine = nil
			c.dirty(s)
		}
		j.daemon.holes.set(uint32(i))
	}
	clear(j.daemon.at)
	for len(j.daemon.unseated) > 0 {
		c.setUnseated(j, j.daemon.unseated[0], false)
	}
}

// stand makes a job what its kind wants besides tasks, and lists it; unstand takes it
// off the lists when it dies.
func (c *Cell) stand(j *Job) {
	switch j.Kind() {
	case borgpb.JobKind_JOB_KIND_DAEMON:
		j.daemon = &daemon{at: make(map[*Machine]uint32)}
		at, _ := slices.BinarySearchFunc(c.daemons, j.uid, compareUID)
		c.daemons = slices.Insert(c.daemons, at, j)
	case borgpb.JobKind_JOB_KIND_CRON:
		if j.cron == nil {
			j.cron = &cron{job: j, sinceNs: c.clock.wallNs}
			c.dirty(j.cron)
		}
		at, _ := slices.BinarySearchFunc(c.crons, j.uid, compareUID)
		c.crons = slices.Insert(c.crons, at, j)
	}
}

func (c *Cell) unstand(j *Job) {
	is := func(o *Job) bool { return o == j }
	if j.daemon != nil {
		c.daemons = slices.DeleteFunc(c.daemons, is)
	}
	if j.cron != nil {
		c.crons = slices.DeleteFunc(c.crons, is)
	}
}

// Stays tells whether a copy belongs to its machine, as a task of a daemon job does: it
// is moved nowhere, and when its machine is emptied it ends last and needs no other place.
func (p *Copy) Stays() bool { return borgpb.JobKind(p.kind) == borgpb.JobKind_JOB_KIND_DAEMON }

// OnlyDaemons tells whether nothing but tasks of daemon jobs has a place on a machine.
// They leave a machine that drains last: what looks after it goes on while it empties.
func (m *Machine) OnlyDaemons() bool {
	for _, p := range m.copies {
		if !p.Stays() {
			return false
		}
	}
	return !slices.ContainsFunc(m.allocs, func(a *Alloc) bool { return a.machine == m })
}

// staysToTheLast tells whether a copy waits for the others to leave a machine.
func (p *Copy) staysToTheLast() bool {
	return p.Stays() && p.machine.drain != nil && !p.machine.OnlyDaemons()
}

// lastToLeave looks at a machine that drains again once only daemons are left there.
func (c *Cell) lastToLeave(m *Machine) {
	if m.drain == nil || len(m.copies) == 0 || !m.OnlyDaemons() {
		return
	}
	c.drainDueNs = 0
	if c.format >= formatTogether {
		for _, p := range m.copies {
			p.job.leaveDueNs = 0
		}
	}
}

// checkDaemonSpec checks what a daemon job cannot have: its machines say how many
// tasks there are, and where.
func checkDaemonSpec(s *borgpb.JobSpec) *borgpb.Refusal {
	const one = "a daemon job has one task per machine that matches"
	switch {
	case s.Tasks != 0:
		return invalid("spec.tasks", "%s; leave the number out", one)
	case len(s.Overrides) > 0:
		return invalid("spec.overrides", "%s; its indices belong to no task in particular", one)
	case s.Gang:
		return invalid("spec.gang", "%s; they are placed one by one", one)
	case s.AllocSet != "":
		return invalid("spec.alloc_set", "%s; it cannot run in an alloc set", one)
	case s.MaxRunning != 0:
		return invalid("spec.max_running", "%s; narrow the constraints instead", one)
	case s.MaxPerMachine != 0 || s.MaxPerRack != 0 || s.MaxPerPower != 0 || len(s.MaxPer) > 0:
		return invalid("spec.max_per", "%s, whatever rack it is in; narrow the constraints instead", one)
	case s.BatchQueue:
		return invalid("spec.batch_queue", "only a batch job can wait in the queue")
	case s.OnLost == borgpb.OnLost_ON_LOST_DEAD:
		return invalid("spec.on_lost", "a task of a daemon job stays with its machine and waits for it")
	}
	for _, t := range s.Task.GetTolerations() {
		if t.ForgivenessNs > 0 {
			return invalid("spec.task.tolerations", "%s: it tolerates the taint %s for good, or not at all", one, t.Key)
		}
	}
	return nil
}

func (s *seat) appendKey(b []byte) []byte {
	return appendIndexKey(b, kindSeat, s.job.uid, s.index)
}
func (s *seat) exists() bool { return !s.job.gone && s.machine != nil }

func (s *seat) appendValue(b []byte) []byte {
	e := encoder{append(b, recordLayout)}
	e.str(s.machine.name)
	return e.b
}

func (l *loader) seat(uid UID, index uint32, d *decoder) error {
	j, m := l.c.jobsByUID[uid], l.c.machines[d.str()]
	if err := d.done(); err != nil {
		return err
	}
	if l.c.format < FormatKinds || j == nil || m == nil || j.Task(index) == nil {
		return errors.New("a seat of no job or machine")
	}
	l.seats[j] = append(l.seats[j], &seat{job: j, index: index, machine: m})
	return nil
}

// stand gives a job that was read what its kind wants.
func (l *loader) stand(j *Job) error {
	kind := j.Kind()
	if len(j.rows) == 0 && !stands(kind) || len(j.rows) > 0 && kind == borgpb.JobKind_JOB_KIND_CRON ||
		(j.cron != nil) != (kind == borgpb.JobKind_JOB_KIND_CRON) || len(l.seats[j]) > 0 && kind != borgpb.JobKind_JOB_KIND_DAEMON {
		return fmt.Errorf("job %v has %d tasks, and is not what its kind wants", j.key, len(j.rows))
	}
	j.ended = j.deathSeq != 0
	if !stands(kind) {
		return nil
	}
	l.c.stand(j)
	if j.daemon != nil {
		for i := range j.rows {
			j.daemon.seats = append(j.daemon.seats, &seat{job: j, index: uint32(i)})
			j.daemon.holes.set(uint32(i))
		}
		for _, s := range l.seats[j] {
			if _, twice := j.daemon.at[s.machine]; twice || j.ended {
				return fmt.Errorf("job %v has two tasks on %s, or is dead", j.key, s.machine.name)
			}
			j.daemon.seats[s.index], j.daemon.at[s.machine] = s, s.index
			j.daemon.holes.clear(s.index)
		}
		for i := range j.daemon.holes.all() {
			if t := j.rows[i]; t.attempt == 0 && t.state != stateDead {
				l.setState(t, stateDead)
			}
		}
	}
	if j.ended {
		l.c.unstand(j)
	}
	return nil
}

// checkStanding verifies daemon and cron jobs.
func (c *Cell) checkStanding(j *Job) error {
	kind := j.Kind()
	if (j.daemon != nil) != (kind == borgpb.JobKind_JOB_KIND_DAEMON) || (j.cron != nil) != (kind == borgpb.JobKind_JOB_KIND_CRON) ||
		slices.Contains(c.daemons, j) != (j.daemon != nil && j.deathSeq == 0) || slices.Contains(c.crons, j) != (j.cron != nil && j.deathSeq == 0) {
		return fmt.Errorf("it is not listed as its kind wants")
	}
	if stands(kind) && j.ended != (j.deathSeq != 0) {
		return fmt.Errorf("ended %v, death %d", j.ended, j.deathSeq)
	}
	if j.cron != nil {
		return c.checkCron(j)
	}
	d := j.daemon
	if d == nil {
		return nil
	}
	seated := 0
	if len(d.seats) != len(j.rows) {
		return fmt.Errorf("%d seats for %d rows", len(d.seats), len(j.rows))
	}
	for i, s := range d.seats {
		t := j.rows[i]
		if s.job != j || s.index != uint32(i) || (s.machine == nil) != (t.state == stateDead) || (s.machine == nil) != d.holes.has(s.index) {
			return fmt.Errorf("task %d is %v and its machine is %v", i, t.state, s.machine)
		}
		if s.machine == nil {
			continue
		}
		seated++
		if at, ok := d.at[s.machine]; !ok || at != s.index || c.machines[s.machine.name] != s.machine {
			return fmt.Errorf("task %d is of %s, which knows nothing of it", i, s.machine.name)
		}
		if t.cur != nil && t.cur.machine != s.machine {
			return fmt.Errorf("task %d runs on %s and belongs to %s", i, t.cur.machine.name, s.machine.name)
		}
	}
	if seated != len(d.at) {
		return fmt.Errorf("%d machines for %d seats", len(d.at), seated)
	}
	if j.deathSeq != 0 {
		return nil
	}
	for _, m := range c.machineList {
		_, has := d.at[m]
		_, waits := slices.BinarySearchFunc(d.unseated, m.name, compareMachine)
		if matches := j.latest().matches(m); matches != (has || waits) || has && waits {
			return fmt.Errorf("machine %s matches: %v, has a task: %v, waits for one: %v", m.name, matches, has, waits)
		}
	}
	return c.checkUnseated(j)
}
