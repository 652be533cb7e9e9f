package cell

import (
	"iter"
	"slices"
	"strings"
)

// Cell is the state of one cell at one index of its log.
type Cell struct {
	id    string
	epoch uint64

	// index and term of the last applied entry.
	index, term uint64
	format      uint32
	// Latest format that may be applied; BuildFormat but for simulated builds.
	build uint32
	clock clock

	// Jobs and alloc sets by key share one name space: at most one of both
	// has a given key. A dead one stays until it is replaced or expires.
	jobs      jobs
	jobsByUID map[UID]*Job
	sets      map[JobKey]*AllocSet
	setList   []*AllocSet
	setsByU   map[UID]*AllocSet

	machines map[string]*Machine
	// Sorted by name.
	machineList []*Machine

	// Dead jobs and alloc sets.
	graveyard graveyard
	jobRefs   jobRefs
	endings   endings

	// Daemon and cron jobs that live, in the order of their uids; derived.
	daemons, crons []*Job
	// Daemon jobs some of whose machines wait for quota, in the order of their uids; derived.
	unseated []*Job

	users   users
	tokens  tokens
	secrets secrets
	bans    bans
	files   files

	labelPolicy labelPolicy
	visibility  visibility
	preemption  preemptionPolicy
	quotas      quotas
	taskBounds  taskBounds
	// Who may hold how much of the state, and who does.
	stateBudgets stateBudgets
	stateUse     stateUse
	// What users are charged for copies that stop; derived.
	stopUse map[string]*stopUse
	// Copies that stop and are charged, of all users.
	stopCopies int64
	// Jobs whose updates may wait for copies that stop, by user, in the order of their uids; derived.
	mayWait map[string][]*Job
	volumes volumes

	restored restored
	outage   outage

	requests requests
	records  recordBook
	readings readings
	diverged error

	counts counts
	// Before that cell time nobody has to leave a tainted machine; derived.
	leaveDueNs int64
	// Before that cell time no port that others hold may be granted again; derived.
	heldPortsDueNs int64
	// Alloc sets of which allocs are yet to become what the spec says, by uid; derived.
	setsBehind []*AllocSet
	// Cell time before which no saver is to be looked at; derived.
	saveDueNs int64
	// Machines with a drain, and the cell time before which none of them has to be
	// looked at because of the time; derived.
	drains     int
	drainDueNs int64
	// Copies in quarantine, ordered by id, how many each user has, and the cell time before which
	// the time of none of them is over; derived.
	quarantined     []*Copy
	quarantinedBy   map[string]int
	quarantineDueNs int64
	// Jobs that save what allocs left, in the order of their uids, and how many each user has;
	// derived.
	savers   []*Job
	saversOf map[string]int
	// When updates have to be looked at because of the time; derived.
	updateDues dues[UID]
	// Machines to be asked since the last Apply.
	asked []string
	// Who has which package, and who lacks one; derived.
	holders holders

	// The entry being applied. Nothing of it survives Apply.
	now applying
	// Room for the op that is applied; nothing keeps any of it.
	submitting *submitOp
	// Mark of the head record.
	head headMark
}

// New makes an empty cell. cellID tells two cells of one name apart; epoch is
// raised by a restore.
func New(cellID string, epoch uint64) *Cell {
	c := &Cell{
		id:        cellID,
		epoch:     epoch,
		format:    1,
		build:     BuildFormat,
		jobsByUID: make(map[UID]*Job),
		sets:      make(map[JobKey]*AllocSet),
		setsByU:   make(map[UID]*AllocSet),
		machines:  make(map[string]*Machine),
	}
	c.users.byName = make(map[string]*User)
	c.tokens.byHash = make(map[tokenHash]*token)
	c.secrets.byKey = make(map[string]*Secret)
	c.files.byKey, c.files.of = make(map[string]*File), make(map[string]fileUse)
	c.quotas.byKey = make(map[string]*Quota)
	c.taskBounds.byUser = make(map[string]*TaskBounds)
	c.stateBudgets.byUser = make(map[string]*stateBudget)
	c.stateUse.byUser = make(map[string]*StateUse)
	c.graveyard.byUser = make(map[string]*graveQueue)
	c.requests.byID, c.requests.of = make(map[string]*request), make(map[string]*requestsOf)
	c.requests.most = maxRequests
	c.holders = make(holders)
	c.jobRefs = newJobRefs()
	c.head.cell, c.submitting = c, new(submitOp)
	c.dirty(&c.head)
	return c
}

// ID tells two cells of one name apart.
func (c *Cell) ID() string { return c.id }

// Epoch is raised by each restore.
func (c *Cell) Epoch() uint64 { return c.epoch }

// Index is that of the last applied entry.
func (c *Cell) Index() uint64 { return c.index }

// Term is that of the last applied entry.
func (c *Cell) Term() uint64 { return c.term }

// Format is the latest format whose ops and rules are allowed.
func (c *Cell) Format() uint32 { return c.format }

// TimeNs is cell time. It never goes back and stands still while nobody is
// elected.
func (c *Cell) TimeNs() int64 { return c.clock.cellNs }

// WallNs is wall time as the cell follows it.
func (c *Cell) WallNs() int64 { return c.clock.wallNs }

// WallSuspect tells that the wall clock stepped and that the cell waits for an
// operator's word (SetTime) before it follows.
func (c *Cell) WallSuspect() bool { return c.clock.suspect }

// Diverged is not nil when the elected master logged another digest than ours
// for an index that we remember, or a format that this build does not know. The
// replica must stop.
func (c *Cell) Diverged() error { return c.diverged }

// Job returns the job of that key, dead or not; nil when there is none.
func (c *Cell) Job(key JobKey) *Job { return c.jobs.of(key) }

// JobByUID returns the job of that uid; nil when it is unknown or replaced.
func (c *Cell) JobByUID(uid UID) *Job { return c.jobsByUID[uid] }

// Jobs yields all jobs, dead ones too, by key.
func (c *Cell) Jobs() iter.Seq[*Job] { return c.jobs.each() }

// JobsAfter yields the jobs behind a key, dead ones too, by key.
func (c *Cell) JobsAfter(key JobKey) iter.Seq[*Job] {
	return c.jobs.after(key)
}

// AllocSetsAfter yields the alloc sets behind a key, dead ones too, by key.
func (c *Cell) AllocSetsAfter(key JobKey) iter.Seq[*AllocSet] {
	at, found := slices.BinarySearchFunc(c.setList, key, compareSet)
	if found {
		at++
	}
	return slices.Values(c.setList[at:])
}

// MachinesAfter yields the machines behind a name, by name.
func (c *Cell) MachinesAfter(name string) iter.Seq[*Machine] {
	at, found := slices.BinarySearchFunc(c.machineList, name, func(m *Machine, name string) int { return strings.Compare(m.name, name) })
	if found {
		at++
	}
	return slices.Values(c.machineList[at:])
}

// NumJobs counts all jobs, dead ones too.
func (c *Cell) NumJobs() int { return c.jobs.len() }

// AllocSet returns the alloc set of that key, dead or not; nil when there is
// none.
func (c *Cell) AllocSet(key JobKey) *AllocSet { return c.sets[key] }

// AllocSetByUID returns the alloc set of that uid; nil when it is unknown.
func (c *Cell) AllocSetByUID(uid UID) *AllocSet { return c.setsByU[uid] }

// AllocSets yields all alloc sets, dead ones too, by key.
func (c *Cell) AllocSets() iter.Seq[*AllocSet] { return slices.Values(c.setList) }

// AllocByName returns the alloc "<user>/<name>/<index>"; nil when there is none.
func (c *Cell) AllocByName(name string) *Alloc {
	cut := strings.LastIndexByte(name, '/')
	if cut < 0 {
		return nil
	}
	user, set, ok := strings.Cut(name[:cut], "/")
	if !ok {
		return nil
	}
	s := c.sets[JobKey{user, set}]
	n, rest, ok := parseDecimal(name[cut+1:])
	if s == nil || !ok || rest != "" || n >= uint64(len(s.allocs)) {
		return nil
	}
	return s.allocs[n]
}

// Machine returns the machine of that name; nil when there is none.
func (c *Cell) Machine(name string) *Machine { return c.machines[name] }

// Machines yields all machines by name.
func (c *Cell) Machines() iter.Seq[*Machine] { return slices.Values(c.machineList) }

// NumMachines counts the machines of the cell.
func (c *Cell) NumMachines() int { return len(c.machineList) }

// Pending yields the tasks that wait for a scheduler and may be placed now:
// jobs by key, indices upwards. No more than max_running allows of each job,
// none of a job that waits for another one, which it starts after, and none whose last
// attempts failed too recently.
func (c *Cell) Pending() iter.Seq2[*Job, uint32] {
	return func(yield func(*Job, uint32) bool) {
		for j := range c.jobs.each() {
			for i := range c.PendingOf(j) {
				if !yield(j, i) {
					return
				}
			}
		}
	}
}

// PendingOf yields what Pending yields of one job.
func (c *Cell) PendingOf(j *Job) iter.Seq[uint32] {
	return func(yield func(uint32) bool) {
		if j.pending > 0 && c.eligible(j) && !c.Queued(j) {
			c.waitingOf(j, yield)
		}
	}
}

// waitingOf yields what waits of a job, as far as max_running allows, without what failed too
// recently.
func (c *Cell) waitingOf(j *Job, yield func(uint32) bool) {
	left := j.roomToRun()
	for i := range c.mayTry(j) {
		if left == 0 || !yield(i) {
			return
		}
		left--
	}
}

// PendingAllocs yields the allocs that wait for a scheduler, by key and index.
func (c *Cell) PendingAllocs() iter.Seq[*Alloc] {
	return func(yield func(*Alloc) bool) {
		for _, s := range c.setList {
			if s.counts[statePending] == 0 {
				continue
			}
			for _, a := range s.allocs {
				if a.state == statePending && !yield(a) {
					return
				}
			}
		}
	}
}
