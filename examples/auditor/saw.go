package main

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"google.golang.org/protobuf/proto"

	"borg/proto/borgpb"
	"borg/proto/borgrpc"
)

// source is who was asked, and what had been told when it was asked.
type source struct {
	replica int
	stale   bool
	floor   uint64
}

func (s source) String() string { return "replica " + strconv.Itoa(s.replica) }

// seen is what answers have shown so far, for comparison with later ones.
type seen struct {
	jobs     map[string][]jobAt // by uid, by index
	tasks    map[string]taskAt  // by "uid/index"; of the highest log index
	copies   map[string]copyAt  // by "uid/index/attempt"
	machines map[string]*borgpb.Machine
	said     map[string]said   // by what it is about and index
	order    []string          // keys of said, oldest first
	elected  map[uint64]uint64 // by term
	terms    map[uint64]uint64 // by replica
	clocks   []clockAt         // by index
}

type jobAt struct {
	index, version uint64
	dead           bool
}

type taskAt struct {
	index, attempt uint64
	dead           bool
}

type copyAt struct {
	machine  string
	ports    []uint32
	restarts uint32
	pid      int64
	index    uint64
}

type clockAt struct {
	index  uint64
	timeNs int64
}

// said is what was said first of something at one log index.
type said struct {
	by   source
	what proto.Message
}

// maxSaid bounds what is remembered to compare replicas by.
const maxSaid = 50_000

func newSeen() seen {
	return seen{
		jobs: make(map[string][]jobAt), tasks: make(map[string]taskAt), copies: make(map[string]copyAt),
		machines: make(map[string]*borgpb.Machine), said: make(map[string]said),
		elected: make(map[uint64]uint64), terms: make(map[uint64]uint64),
	}
}

// sawIndex judges how fresh an answer is.
func (b *book) sawIndex(from source, what string, index uint64) {
	if !from.stale {
		b.check("fresh", index >= from.floor, "%s answered %s as of index %d; %d had been told before it was asked", from, what, index, from.floor)
	}
	b.floor = max(b.floor, index)
}

// same judges that what is said of something at one index is always the same.
func (b *book) same(from source, what string, index uint64, m proto.Message) {
	b.alike("same-log", from, what, index, m)
}

func (b *book) alike(name string, from source, what string, index uint64, m proto.Message) {
	k := fmt.Sprintf("%s at index %d", what, index)
	old, known := b.seen.said[k]
	if known {
		b.check(name, proto.Equal(old.what, m), "%s: %s says %v, and %s has said %v", k, from, m, old.by, old.what)
		return
	}
	b.seen.said[k] = said{from, m}
	b.seen.order = append(b.seen.order, k)
	if len(b.seen.order) > maxSaid {
		delete(b.seen.said, b.seen.order[0])
		b.seen.order = b.seen.order[1:]
	}
}

// sawJob judges a job as of a log index.
func (b *book) sawJob(from source, job *borgpb.Job, index uint64) {
	k, s := key(job.GetMeta().GetUser(), job.GetMeta().GetName()), job.GetStatus()
	uid, version := job.GetMeta().GetUid(), job.GetMeta().GetVersion()
	who := fmt.Sprintf("%s (%s) as of index %d by %s", k, uid, index, from)
	b.same(from, "job "+uid, index, job)
	b.check("counts", s.GetPending()+s.GetRunning()+s.GetDead() == job.GetSpec().GetTasks() && s.GetFinished() <= s.GetDead() && s.GetStarted() <= s.GetRunning(),
		"%s has %d tasks: %v", who, job.GetSpec().GetTasks(), s)
	b.check("counts", s.GetState() == stateOf(s), "%s is %s: %v", who, s.GetState(), s)
	if limit := job.GetSpec().GetMaxRunning(); limit > 0 {
		b.check("spread", s.GetRunning() <= limit, "%s: %d tasks run, max_running is %d", who, s.GetRunning(), limit)
	}
	b.sawVersion(who, uid, jobAt{index, version, s.GetState() == borgpb.State_STATE_DEAD})
	b.check("refused", !b.spare[k], "%s is there, and its submit was refused", who)
	if lives := b.names[k]; len(lives) > 0 {
		var want *life
		for _, l := range lives {
			if l.submit <= index {
				want = l
			}
		}
		at, ok := madeAt(uid)
		b.check("uid", ok && at <= index, "%s: it was made later, by its uid", who)
		if want != nil {
			b.check("acknowledged", uid == want.uid || at > want.submit, "%s is not the job that was submitted at index %d, uid %s", who, want.submit, want.uid)
		}
	}
	l := b.lives[uid]
	if l == nil || index < l.submit {
		return
	}
	b.check("acknowledged", version >= l.at(index).version, "%s has version %d; at index %d version %d was acknowledged", who, version, l.at(index).index, l.at(index).version)
	if c, ok := l.version(version); ok {
		b.check("version", c.index <= index, "%s has version %d, which was made at index %d", who, version, c.index)
		b.check("acknowledged", proto.Equal(c.spec, job.GetSpec()), "%s has another spec than version %d was given: %v, want %v", who, version, job.GetSpec(), c.spec)
	}
	if l.killed > 0 && index >= l.killed {
		b.check("dead", s.GetState() == borgpb.State_STATE_DEAD, "%s is %s; its kill was acknowledged at index %d", who, s.GetState(), l.killed)
	}
	if l.plan == planUnfit {
		b.check("unfit", s.GetRunning() == 0, "%s runs, and fits no machine", who)
	}
}

// stateOf is the state that the figures of a job make.
func stateOf(s *borgpb.JobStatus) borgpb.State {
	switch {
	case s.GetRunning() > 0:
		return borgpb.State_STATE_RUNNING
	case s.GetPending() > 0:
		return borgpb.State_STATE_PENDING
	}
	return borgpb.State_STATE_DEAD
}

// sawVersion judges that a job goes only forward in the log.
func (b *book) sawVersion(who, uid string, now jobAt) {
	seen := b.seen.jobs[uid]
	i, found := slices.BinarySearchFunc(seen, now.index, func(at jobAt, index uint64) int { return cmp.Compare(at.index, index) })
	if i > 0 {
		before := seen[i-1]
		b.check("version", before.version <= now.version, "%s has version %d, and had %d at index %d", who, now.version, before.version, before.index)
		b.check("dead", !before.dead || now.dead, "%s lives, and was dead at index %d", who, before.index)
	}
	if !found {
		if i < len(seen) {
			after := seen[i]
			b.check("version", now.version <= after.version, "%s has version %d, and has %d at index %d", who, now.version, after.version, after.index)
			b.check("dead", !now.dead || after.dead, "%s is dead, and lives at index %d", who, after.index)
		}
		b.seen.jobs[uid] = slices.Insert(seen, i, now)
	}
}

// sawNoJob judges an answer that there is no such job; it has no index.
func (b *book) sawNoJob(from source, k string) {
	if from.stale {
		return
	}
	for _, l := range b.names[k] {
		b.check("acknowledged", l.submit > from.floor, "%s says there is no job %s; it was submitted at index %d and %d had been told", from, k, l.submit, from.floor)
	}
	if b.spare[k] {
		b.check("refused", true, "")
	}
}

// sawJobs judges one page of jobs: those behind the last one of the page before, up to
// the one after which the next page begins.
func (b *book) sawJobs(from source, req *borgrpc.ListJobsRequest, resp *borgrpc.ListJobsResponse) {
	index := resp.GetIndex()
	b.sawIndex(from, "a list of jobs", index)
	there := make(map[string]bool)
	last := req.GetAfter()
	for _, job := range resp.GetJobs() {
		m := job.GetMeta()
		k := key(m.GetUser(), m.GetName())
		b.check("lists", last == "" || before(last, k), "jobs of %q as of index %d by %s: %s stands after %s", req.GetUser(), index, from, k, last)
		b.check("lists", req.GetUser() == "" || m.GetUser() == req.GetUser(), "jobs of %q as of index %d by %s: %s is another's", req.GetUser(), index, from, k)
		b.check("lists", req.GetDead() || job.GetStatus().GetState() != borgpb.State_STATE_DEAD, "jobs of %q as of index %d by %s: %s is dead", req.GetUser(), index, from, k)
		if label, value, ok := strings.Cut(req.GetSelector(), "="); ok {
			b.check("lists", m.GetLabels()[label] == value, "jobs with %s as of index %d by %s: %s has %v", req.GetSelector(), index, from, k, m.GetLabels())
		}
		last, there[m.GetUid()] = k, true
		b.sawJob(from, job, index)
	}
	next := resp.GetNextAfter()
	if next != "" {
		b.check("lists", next == last, "jobs as of index %d by %s: the next page is after %s, and the last of this one is %s", index, from, next, last)
	}
	if req.GetSelector() != "" {
		return
	}
	for k, lives := range b.names {
		user, _, _ := strings.Cut(k, "/")
		if req.GetUser() != "" && user != req.GetUser() || req.GetAfter() != "" && !before(req.GetAfter(), k) || next != "" && before(next, k) {
			continue
		}
		// The newest one that was there at that index must be listed, unless a
		// submit that nobody has answered may have taken its place.
		var want *life
		for _, l := range lives {
			if l.submit <= index {
				want = l
			}
		}
		sure := want != nil && want.asked["submit"] == 0 && (req.GetDead() || want.asked["kill"] == 0 && (want.plan == planService || want.plan == planUnfit))
		if sure {
			b.check("lists", there[want.uid], "jobs of %q as of index %d by %s: %s (%s) of index %d is left out", req.GetUser(), index, from, k, want.uid, want.submit)
		}
	}
}

// before tells whether one "user/name" comes first in a list.
func before(a, b string) bool {
	return slices.Compare(strings.Split(a, "/"), strings.Split(b, "/")) < 0
}

// sawTasks judges one page of tasks; after is the last task of the page before
// it.
func (b *book) sawTasks(from source, req *borgrpc.ListTasksRequest, resp *borgrpc.ListTasksResponse) {
	index := resp.GetIndex()
	b.sawIndex(from, "a page of tasks", index)
	limit := cmp.Or(min(req.GetLimit(), 1_000), 1_000)
	b.check("lists", uint32(len(resp.GetTasks())) <= limit, "a page of %d tasks by %s; at most %d were asked for", len(resp.GetTasks()), from, limit)
	last := req.GetAfter()
	for _, task := range resp.GetTasks() {
		m := task.GetMeta()
		name := taskName(task)
		b.check("lists", last == "" || compareTasks(last, name) < 0, "tasks as of index %d by %s: %s stands after %s", index, from, name, last)
		b.check("lists", (req.GetUser() == "" || m.GetUser() == req.GetUser()) && (req.GetName() == "" || m.GetName() == req.GetName()),
			"tasks of %s/%s as of index %d by %s: %s is of another job", req.GetUser(), req.GetName(), index, from, name)
		last = name
		if req.GetAttempts() {
			b.same(from, "task "+m.GetUid()+"/"+strconv.Itoa(int(task.GetIndex())), index, task)
		}
		b.sawTask(from, task, index)
	}
	if next := resp.GetNextAfter(); next != "" {
		b.check("lists", next == last, "tasks as of index %d by %s: the next page is after %s, and the last of this one is %s", index, from, next, last)
	}
}

func taskName(t *borgpb.Task) string {
	return key(t.GetMeta().GetUser(), t.GetMeta().GetName()) + "/" + strconv.Itoa(int(t.GetIndex()))
}

func compareTasks(a, b string) int {
	x, y := strings.Split(a, "/"), strings.Split(b, "/")
	if len(x) != 3 || len(y) != 3 {
		return strings.Compare(a, b)
	}
	i, _ := strconv.Atoi(x[2])
	j, _ := strconv.Atoi(y[2])
	return cmp.Or(cmp.Compare(x[0], y[0]), cmp.Compare(x[1], y[1]), cmp.Compare(i, j))
}

// sawTask judges a task as of a log index.
func (b *book) sawTask(from source, task *borgpb.Task, index uint64) {
	s, uid := task.GetStatus(), task.GetMeta().GetUid()
	who := fmt.Sprintf("%s (%s) as of index %d by %s", taskName(task), uid, index, from)
	slot := fmt.Sprintf("%s/%d", uid, task.GetIndex())
	l := b.lives[uid]
	runs, dead := s.GetState() == borgpb.State_STATE_RUNNING, s.GetState() == borgpb.State_STATE_DEAD

	switch s.GetState() {
	case borgpb.State_STATE_PENDING:
		b.check("one-place", s.GetMachine() == "" && len(s.GetPorts()) == 0, "%s waits and has machine %q and ports %v", who, s.GetMachine(), s.GetPorts())
	case borgpb.State_STATE_RUNNING:
		b.check("one-place", s.GetMachine() != "", "%s runs on no machine", who)
		b.check("attempts", s.GetAttempt() > 0, "%s runs and has no attempt", who)
	}
	if old, ok := b.seen.tasks[slot]; ok && old.index != index {
		first, second := old, taskAt{index, s.GetAttempt(), dead}
		if index < old.index {
			first, second = second, first
		}
		anew := l == nil || l.lowered(task.GetIndex())
		b.check("attempts", first.attempt <= second.attempt || anew && second.attempt == 0, "%s: attempt %d at index %d, and %d at %d", who, first.attempt, first.index, second.attempt, second.index)
		b.check("dead", !first.dead || second.dead || anew, "%s: dead at index %d, and not at %d", who, first.index, second.index)
	}
	if index >= b.seen.tasks[slot].index {
		b.seen.tasks[slot] = taskAt{index, s.GetAttempt(), dead}
	}
	if l != nil {
		c, ok := l.version(task.GetMeta().GetVersion())
		b.check("version", !ok || c.index <= index, "%s runs version %d, which was made at index %d", who, task.GetMeta().GetVersion(), c.index)
		if l.killed > 0 && index >= l.killed {
			b.check("dead", dead, "%s is %s; the kill of its job was acknowledged at index %d", who, s.GetState(), l.killed)
		}
		if l.plan == planUnfit {
			b.check("unfit", !runs, "%s has machine %s, and fits none", who, s.GetMachine())
		}
		if l.plan == planService {
			failed := s.GetRestarts() > 0 || s.GetAttemptState() == borgpb.AttemptState_ATTEMPT_STATE_FAILED || s.GetAttemptState() == borgpb.AttemptState_ATTEMPT_STATE_FINISHED
			b.check("undisturbed", !failed, "%s was started again %d times and is %s; it does not end by itself: %v", who, s.GetRestarts(), s.GetAttemptState(), s.GetLastExit())
		}
		if spec := l.changes[0].spec; spec.GetKind() == borgpb.JobKind_JOB_KIND_BATCH {
			b.check("exits", s.GetFailures() <= spec.GetMaxFailures()+1, "%s failed %d times; max_failures is %d", who, s.GetFailures(), spec.GetMaxFailures())
		}
	}
	if runs {
		b.sawCopy(who, fmt.Sprintf("%s/%d", slot, s.GetAttempt()), copyAt{s.GetMachine(), s.GetPorts(), s.GetRestarts(), s.GetPid(), index})
		b.check("ports", len(s.GetPorts()) == len(task.GetSpec().GetPorts()), "%s asks for the ports %v and has %v", who, task.GetSpec().GetPorts(), s.GetPorts())
		b.sawPlace(who, task)
	}
	b.sawAttempts(who, slot, l, task, index)
}

// sawCopy judges that a copy of a task stays what it is.
func (b *book) sawCopy(who, id string, now copyAt) {
	old, known := b.seen.copies[id]
	if !known {
		b.seen.copies[id] = now
		return
	}
	b.check("copy", old.machine == now.machine && slices.Equal(old.ports, now.ports), "%s: its copy %s is on %s with ports %v, and at index %d was on %s with %v", who, id, now.machine, now.ports, old.index, old.machine, old.ports)
	if now.pid != 0 && old.pid != 0 && now.restarts == old.restarts {
		b.check("copy", now.pid == old.pid, "%s: its copy %s has process %d, and at index %d had %d, after as many restarts", who, id, now.pid, old.index, old.pid)
	}
	if now.index >= old.index {
		b.check("copy", now.restarts >= old.restarts, "%s: its copy %s was started again %d times, and at index %d %d times", who, id, now.restarts, old.index, old.restarts)
		if now.pid == 0 && now.restarts == old.restarts {
			now.pid = old.pid
		}
		b.seen.copies[id] = now
	}
}

// sawPlace judges a running task against its machine.
func (b *book) sawPlace(who string, task *borgpb.Task) {
	m := b.seen.machines[task.GetStatus().GetMachine()]
	if m == nil {
		return
	}
	spec := m.GetSpec()
	for _, port := range task.GetStatus().GetPorts() {
		b.check("ports", port >= spec.GetPortFirst() && port <= spec.GetPortLast(), "%s has port %d; those of %s are %d to %d", who, port, m.GetMeta().GetName(), spec.GetPortFirst(), spec.GetPortLast())
	}
	for _, c := range task.GetSpec().GetConstraints() {
		if !c.GetSoft() {
			b.check("constraints", holds(c, spec.GetAttributes()), "%s is on %s with %v, and wants %v", who, m.GetMeta().GetName(), spec.GetAttributes(), c)
		}
	}
}

// holds tells whether a constraint holds, for the relations that the workload
// uses.
func holds(c *borgpb.Constraint, attributes map[string]string) bool {
	value, there := attributes[c.GetKey()]
	switch c.GetRelation() {
	case borgpb.Relation_RELATION_EQUAL:
		return there && value == c.GetValue()
	case borgpb.Relation_RELATION_NOT_EQUAL:
		return !there || value != c.GetValue()
	case borgpb.Relation_RELATION_PRESENT:
		return there
	case borgpb.Relation_RELATION_NOT_PRESENT:
		return !there
	}
	return true
}

// askedFor is the mutation that alone can be the reason of a stop for this
// cause.
var askedFor = map[borgpb.StopCause]string{
	borgpb.StopCause_STOP_CAUSE_KILL:   "kill",
	borgpb.StopCause_STOP_CAUSE_UPDATE: "update",
	borgpb.StopCause_STOP_CAUSE_RESIZE: "resize",
}

// sawAttempts judges the copies of a task that are not its current one.
func (b *book) sawAttempts(who, slot string, l *life, task *borgpb.Task, index uint64) {
	last := task.GetStatus().GetAttempt() + 1
	if task.GetStatus().GetState() == borgpb.State_STATE_RUNNING {
		last--
	}
	for _, a := range task.GetStatus().GetAttempts() {
		b.check("attempts", a.GetAttempt() < last && a.GetAttempt() > 0, "%s: attempt %d is listed after %d", who, a.GetAttempt(), last)
		last = a.GetAttempt()
		restarts := a.GetRestarts()
		b.sawCopy(who, fmt.Sprintf("%s/%d", slot, a.GetAttempt()), copyAt{a.GetMachine(), a.GetPorts(), restarts, 0, index})
		stops := a.GetState() == borgpb.AttemptState_ATTEMPT_STATE_STOPPING || a.GetState() == borgpb.AttemptState_ATTEMPT_STATE_STOPPED
		b.check("cause", !stops || a.GetCause() != borgpb.StopCause_STOP_CAUSE_UNSPECIFIED, "%s: attempt %d is %s without a cause", who, a.GetAttempt(), a.GetState())
		b.check("cause", (a.GetStopIndex() > 0) == (a.GetCause() != borgpb.StopCause_STOP_CAUSE_UNSPECIFIED) && a.GetStopIndex() <= index,
			"%s: attempt %d was told to stop at index %d for %s", who, a.GetAttempt(), a.GetStopIndex(), a.GetCause())
		if what := askedFor[a.GetCause()]; what != "" && l != nil {
			asked := l.asked[what] > 0
			if what == "resize" {
				asked = asked || l.asked["update"] > 0
			}
			b.check("cause", asked, "%s: attempt %d was stopped at index %d for %s; nobody asked for %s of this job", who, a.GetAttempt(), a.GetStopIndex(), a.GetCause(), what)
		}
		if a.GetCause() == borgpb.StopCause_STOP_CAUSE_DRAIN && l != nil {
			b.check("cause", b.askedToDrain(a.GetMachine()), "%s: attempt %d was stopped at index %d by a drain of %s, for which nobody asked", who, a.GetAttempt(), a.GetStopIndex(), a.GetMachine())
		}
	}
}

func (b *book) askedToDrain(machine string) bool {
	for _, a := range b.asks {
		if a.What == "drain" && a.Name == machine {
			return true
		}
	}
	return false
}

// sawMachines judges one page of machines.
func (b *book) sawMachines(from source, req *borgrpc.ListMachinesRequest, resp *borgrpc.ListMachinesResponse) {
	index := resp.GetIndex()
	b.sawIndex(from, "a list of machines", index)
	last := req.GetAfter()
	for _, m := range resp.GetMachines() {
		name, s := m.GetMeta().GetName(), m.GetStatus()
		who := fmt.Sprintf("machine %s as of index %d by %s", name, index, from)
		b.check("lists", last < name, "%s stands after %s", who, last)
		last = name
		b.seen.machines[name] = m
		// The elected master fills these in; they are not in the log.
		logged := proto.CloneOf(m)
		logged.Status.UnknownTasks, logged.Status.Used, logged.Status.CertificateUntilWallNs = nil, nil, 0
		b.same(from, "machine "+name, index, logged)
		b.check("capacity", within(s.GetLimits(), m.GetSpec().GetCapacity()), "%s holds %v of %v", who, s.GetLimits(), m.GetSpec().GetCapacity())
		var newest order
		for _, o := range b.orders[name] {
			if o.index <= index {
				newest = o
			}
		}
		if newest.index > 0 && !b.open(key("", name)) {
			b.check("acknowledged", s.GetDraining() == newest.drain, "%s: draining is %v; at index %d %v was acknowledged", who, s.GetDraining(), newest.index, newest.drain)
		}
	}
}

// within tells whether every amount of a is at most that of b.
func within(a, b *borgpb.Resources) bool {
	for name, n := range a.GetDevices() {
		if n > b.GetDevices()[name] {
			return false
		}
	}
	return a.GetCpuMilli() <= b.GetCpuMilli() && a.GetMemBytes() <= b.GetMemBytes() && a.GetDiskBytes() <= b.GetDiskBytes() &&
		a.GetDiskBytesPerS() <= b.GetDiskBytesPerS() && a.GetPorts() <= b.GetPorts()
}

// sawCell judges how one replica sees the cell.
func (b *book) sawCell(from source, c *borgrpc.GetCellResponse) {
	if b.run.CellID != "" {
		b.check("acknowledged", c.GetCellId() == b.run.CellID, "%s is of cell %s, and the run was with %s", from, c.GetCellId(), b.run.CellID)
	}
	if e := c.GetElected(); e != 0 {
		old, known := b.seen.elected[c.GetTerm()]
		b.check("elected", !known || old == e, "%s says that %d is elected in term %d; %d was", from, e, c.GetTerm(), old)
		b.check("elected", slices.ContainsFunc(c.GetMembers(), func(m *borgpb.Member) bool { return m.GetId() == e }), "%s says that %d is elected, which is no member", from, e)
		b.seen.elected[c.GetTerm()] = e
	}
	b.check("elected", c.GetTerm() >= b.seen.terms[c.GetReplica()], "%s is in term %d, and was in %d", from, c.GetTerm(), b.seen.terms[c.GetReplica()])
	b.seen.terms[c.GetReplica()] = max(b.seen.terms[c.GetReplica()], c.GetTerm())
	b.check("order", c.GetAppliedIndex() <= c.GetCommitIndex(), "%s has applied %d of %d that are committed", from, c.GetAppliedIndex(), c.GetCommitIndex())
	b.floor = max(b.floor, c.GetCommitIndex())
	if c.GetDigestIndex() > 0 {
		b.check("same-log", c.GetDigestIndex()%1024 == 0 && c.GetDigestIndex() <= c.GetAppliedIndex(), "%s has a digest of index %d, and has applied %d", from, c.GetDigestIndex(), c.GetAppliedIndex())
		b.same(from, "digest", c.GetDigestIndex(), &borgrpc.GetCellResponse{Digest: c.GetDigest()})
	}
	b.alike("figures", from, "figures of the cell", c.GetAppliedIndex(), &borgrpc.GetCellResponse{
		CellName: c.GetCellName(), CellId: c.GetCellId(), Epoch: c.GetEpoch(), Format: c.GetFormat(), Jobs: c.GetJobs(),
		TasksPending: c.GetTasksPending(), TasksRunning: c.GetTasksRunning(), TasksDead: c.GetTasksDead(),
		MachinesUp: c.GetMachinesUp(), MachinesDown: c.GetMachinesDown(), CellTimeNs: c.GetCellTimeNs(), WallTimeNs: c.GetWallTimeNs(),
	})
	b.sawClock(from, clockAt{c.GetAppliedIndex(), c.GetCellTimeNs()})
}

func (b *book) sawClock(from source, now clockAt) {
	clocks := b.seen.clocks
	i, found := slices.BinarySearchFunc(clocks, now.index, func(at clockAt, index uint64) int { return cmp.Compare(at.index, index) })
	if i > 0 {
		b.check("time", clocks[i-1].timeNs <= now.timeNs, "%s: cell time %d at index %d, and %d at %d", from, now.timeNs, now.index, clocks[i-1].timeNs, clocks[i-1].index)
	}
	if found {
		return
	}
	if i < len(clocks) {
		b.check("time", now.timeNs <= clocks[i].timeNs, "%s: cell time %d at index %d, and %d at %d", from, now.timeNs, now.index, clocks[i].timeNs, clocks[i].index)
	}
	b.seen.clocks = slices.Insert(clocks, i, now)
}

// sawWhy judges why a task of a job waits that fits nowhere.
func (b *book) sawWhy(from source, k string, resp *borgrpc.WhyResponse) {
	sum := uint32(0)
	for _, r := range resp.GetReasons() {
		sum += r.GetMachines()
	}
	if len(resp.GetReasons()) > 0 {
		b.check("unfit", sum == resp.GetMachines(), "why %s by %s: the reasons count %d machines of %d: %v", k, from, sum, resp.GetMachines(), resp.GetReasons())
	}
	for _, r := range resp.GetReasons() {
		b.check("unfit", r.GetTest() != "fits", "why %s by %s: fits %d machines", k, from, r.GetMachines())
	}
}
