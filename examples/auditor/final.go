package main

import (
	"fmt"

	"google.golang.org/protobuf/proto"

	"borg/proto/borgpb"
	"borg/proto/borgrpc"
)

// failingCode is the exit code of the tasks of a failing job.
const failingCode = 3

// snapshot is the whole cell as of one log index.
type snapshot struct {
	from     source
	index    uint64
	jobs     []*borgpb.Job
	tasks    []*borgpb.Task // placed or dead
	machines []*borgpb.Machine
	cell     *borgrpc.GetCellResponse // nil: of another index
}

// heldPlace sums up the copies that hold a place on a machine.
type heldPlace struct {
	limits borgpb.Resources
	copies uint32
	leave  bool // some others are to go, or cannot be reached
}

// sawAll judges what can only be seen of a cell as a whole.
func (b *book) sawAll(s snapshot) {
	b.sawSums(s)
	type figures struct{ pending, running, dead uint32 }
	listed := make(map[string]figures)
	perMachine := make(map[string]uint32)
	for _, t := range s.tasks {
		f := listed[t.GetMeta().GetUid()]
		switch t.GetStatus().GetState() {
		case borgpb.State_STATE_RUNNING:
			f.running++
			perMachine[t.GetMeta().GetUid()+" "+t.GetStatus().GetMachine()]++
		case borgpb.State_STATE_DEAD:
			f.dead++
		}
		listed[t.GetMeta().GetUid()] = f
	}
	alive, sum := uint32(0), figures{}
	for _, job := range s.jobs {
		f, st := listed[job.GetMeta().GetUid()], job.GetStatus()
		who := fmt.Sprintf("%s/%s as of index %d by %s", job.GetMeta().GetUser(), job.GetMeta().GetName(), s.index, s.from)
		b.check("counts", f.running == st.GetRunning() && f.dead == st.GetDead(), "%s: of its tasks %d run and %d are dead, and it says %v", who, f.running, f.dead, st)
		if st.GetState() != borgpb.State_STATE_DEAD {
			alive++
		}
		sum.pending, sum.running, sum.dead = sum.pending+st.GetPending(), sum.running+st.GetRunning(), sum.dead+st.GetDead()
		if limit := job.GetSpec().GetMaxPerMachine(); limit > 0 {
			for _, m := range s.machines {
				n := perMachine[job.GetMeta().GetUid()+" "+m.GetMeta().GetName()]
				b.check("spread", n <= limit, "%s: %d tasks on %s, max_per_machine is %d", who, n, m.GetMeta().GetName(), limit)
			}
		}
	}
	if c := s.cell; c != nil {
		b.check("figures", c.GetJobs() == alive && c.GetTasksRunning() == sum.running && c.GetTasksDead() == sum.dead && c.GetTasksPending() == sum.pending,
			"the cell as of index %d by %s says %d jobs, %d tasks running, %d pending, %d dead; its jobs say %d, %d, %d, %d", s.index, s.from,
			c.GetJobs(), c.GetTasksRunning(), c.GetTasksPending(), c.GetTasksDead(), alive, sum.running, sum.pending, sum.dead)
	}
}

// sums is what the listed copies hold on each machine.
func (s snapshot) sums() map[string]*heldPlace {
	held := make(map[string]*heldPlace)
	for _, m := range s.machines {
		held[m.GetMeta().GetName()] = &heldPlace{}
	}
	for _, t := range s.tasks {
		if h := held[t.GetStatus().GetMachine()]; h != nil && t.GetStatus().GetState() == borgpb.State_STATE_RUNNING && t.GetStatus().GetAlloc() == "" {
			h.add(t)
		}
		for _, a := range t.GetStatus().GetAttempts() {
			stopping := a.GetState() == borgpb.AttemptState_ATTEMPT_STATE_STOPPING || a.GetState() == borgpb.AttemptState_ATTEMPT_STATE_UNREACHABLE
			if h := held[a.GetMachine()]; h != nil && stopping {
				h.leave = true
			}
		}
	}
	return held
}

// add adds what a running task holds.
func (h *heldPlace) add(t *borgpb.Task) {
	r := t.GetSpec().GetResources()
	h.copies++
	h.limits.CpuMilli += r.GetCpuMilli()
	h.limits.MemBytes += r.GetMemBytes()
	h.limits.DiskBytes += r.GetDiskBytes()
	h.limits.DiskBytesPerS += r.GetDiskBytesPerS()
	h.limits.Ports += int64(len(t.GetStatus().GetPorts()))
}

// sawSums judges what machines hold while copies come and go. Copies whose
// task is not there any more hold a place and are listed nowhere, and what
// waits for the end of others shares their room; so it may be more than the
// sum of what is listed.
func (b *book) sawSums(s snapshot) {
	held := s.sums()
	for _, m := range s.machines {
		if h, st := held[m.GetMeta().GetName()], m.GetStatus(); !h.leave {
			b.check("sums", h.copies <= st.GetTasks() && (within(&h.limits, st.GetLimits()) || st.GetAllocs() > 0),
				"machine %s as of index %d by %s: %d copies on it hold %v; it says %d and %v", m.GetMeta().GetName(), s.index, s.from, h.copies, &h.limits, st.GetTasks(), st.GetLimits())
		}
	}
	type slot struct {
		machine string
		port    uint32
	}
	owners := make(map[slot]string)
	for _, t := range s.tasks {
		if t.GetStatus().GetState() != borgpb.State_STATE_RUNNING {
			continue
		}
		for _, port := range t.GetStatus().GetPorts() {
			at := slot{t.GetStatus().GetMachine(), port}
			other, taken := owners[at]
			b.check("ports", !taken, "as of index %d by %s: port %d of %s belongs to %s and to %s", s.index, s.from, port, at.machine, other, taskName(t))
			owners[at] = taskName(t)
		}
	}
}

// unsummed names a machine that does not hold just what is listed on it;
// empty: none.
func (s snapshot) unsummed() string {
	held := s.sums()
	for _, m := range s.machines {
		h, st := held[m.GetMeta().GetName()], m.GetStatus()
		if st.GetAllocs() == 0 && (h.copies != st.GetTasks() || !within(&h.limits, st.GetLimits()) || !within(st.GetLimits(), &h.limits)) {
			return fmt.Sprintf("machine %s: %d copies on it hold %v; it says %d and %v", m.GetMeta().GetName(), h.copies, &h.limits, st.GetTasks(), st.GetLimits())
		}
	}
	return ""
}

// missing says what a job lacks of what it must come to; empty: nothing.
func (l *life) missing(job *borgpb.Job) string {
	s, n := job.GetStatus(), job.GetSpec().GetTasks()
	switch {
	case s.GetStopping() > 0:
		return fmt.Sprintf("%d copies are still stopping", s.GetStopping())
	case l.killed > 0:
		if s.GetState() != borgpb.State_STATE_DEAD {
			return "it was killed and is " + s.GetState().String()
		}
	case s.GetUpdateUid() != "":
		return "its update " + s.GetUpdateUid() + " still rolls"
	case l.plan == planService && (s.GetRunning() != n || s.GetStarted() != n):
		return fmt.Sprintf("%d of %d tasks have a machine, and %d have started", s.GetRunning(), n, s.GetStarted())
	case l.plan == planBatch && s.GetFinished() != n:
		return fmt.Sprintf("%d of %d tasks have finished, %d are dead", s.GetFinished(), n, s.GetDead())
	case l.plan == planFailing && (s.GetDead() != n || s.GetFinished() != 0):
		return fmt.Sprintf("%d of %d tasks are dead, %d of them finished", s.GetDead(), n, s.GetFinished())
	case l.plan == planUnfit && s.GetPending() != n:
		return fmt.Sprintf("%d of %d tasks wait", s.GetPending(), n)
	}
	return ""
}

// unsettled says what is not yet as it must come to be; empty: nothing.
func (b *book) unsettled(s snapshot) string {
	for _, job := range s.jobs {
		l := b.lives[job.GetMeta().GetUid()]
		if l == nil || b.open(l.key) {
			continue
		}
		if lack := l.missing(job); lack != "" {
			return l.key + ": " + lack
		}
	}
	return s.unsummed()
}

// settle judges the end of a run, when time enough has passed.
func (b *book) settle(s snapshot) {
	jobs := make(map[string]*borgpb.Job)
	for _, job := range s.jobs {
		jobs[job.GetMeta().GetUid()] = job
	}
	for k, lives := range b.names {
		l := lives[len(lives)-1]
		if b.open(k) {
			continue
		}
		job := jobs[l.uid]
		b.check("acknowledged", job != nil, "%s (%s) was submitted at index %d and is not there as of index %d by %s", k, l.uid, l.submit, s.index, s.from)
		if job == nil {
			continue
		}
		newest := l.changes[len(l.changes)-1]
		b.check("acknowledged", job.GetMeta().GetVersion() == newest.version, "%s (%s) has version %d; the last one acknowledged was %d", k, l.uid, job.GetMeta().GetVersion(), newest.version)
		name := "settles"
		if l.killed > 0 {
			name = "ended"
		}
		lack := l.missing(job)
		b.check(name, lack == "", "%s (%s) as of index %d: %s", k, l.uid, s.index, lack)
	}
	for _, t := range s.tasks {
		b.settleTask(s, jobs, t)
	}
	off := s.unsummed()
	b.check("sums", off == "", "as of index %d by %s: %s", s.index, s.from, off)
}

func (b *book) settleTask(s snapshot, jobs map[string]*borgpb.Job, t *borgpb.Task) {
	l, job := b.lives[t.GetMeta().GetUid()], jobs[t.GetMeta().GetUid()]
	if l == nil || job == nil || b.open(l.key) {
		return
	}
	who, st := fmt.Sprintf("%s (%s) as of index %d", taskName(t), l.uid, s.index), t.GetStatus()
	for _, a := range st.GetAttempts() {
		gone := a.GetState() != borgpb.AttemptState_ATTEMPT_STATE_STOPPING && a.GetState() != borgpb.AttemptState_ATTEMPT_STATE_UNREACHABLE
		b.check("ended", gone, "%s: attempt %d is still %s", who, a.GetAttempt(), a.GetState())
	}
	switch {
	case l.killed > 0:
		b.check("ended", st.GetState() == borgpb.State_STATE_DEAD && st.GetPid() == 0, "%s is %s with process %d; its job was killed at index %d", who, st.GetState(), st.GetPid(), l.killed)
	case l.plan == planService:
		b.check("settles", st.GetAttemptState() == borgpb.AttemptState_ATTEMPT_STATE_RUNNING && st.GetPid() != 0, "%s is %s with process %d", who, st.GetAttemptState(), st.GetPid())
		b.check("settles", proto.Equal(t.GetSpec(), job.GetSpec().GetTask()), "%s runs %v, and its job asks for %v", who, t.GetSpec(), job.GetSpec().GetTask())
	case l.plan == planBatch:
		x := st.GetLastExit()
		b.check("exits", x != nil && x.GetCode() == 0 && x.GetSignal() == 0 && !x.GetUnknown(), "%s had to end with 0: %v", who, x)
	case l.plan == planFailing:
		x, tries := st.GetLastExit(), job.GetSpec().GetMaxFailures()+1
		b.check("exits", x.GetCode() == failingCode && x.GetSignal() == 0 && !x.GetUnknown() && st.GetFailures() == tries,
			"%s had to fail %d times with %d: %d times, last %v", who, tries, failingCode, st.GetFailures(), x)
	}
}

// sawOutput judges the standard output of a batch task that has finished.
func (b *book) sawOutput(t *borgpb.Task, text string) {
	want := fmt.Sprintf("%s %d %d\n", t.GetMeta().GetName(), t.GetIndex(), t.GetStatus().GetAttempt())
	b.check("output", text == want, "%s (%s) wrote %q, and logs shows %q", taskName(t), t.GetMeta().GetUid(), want, text)
}

// compareStreams judges that a stream that was followed left nothing out that
// the same replica tells when it is asked for all.
func (b *book) compareStreams(followed, all *stream) {
	if len(followed.indexes) == 0 {
		return
	}
	// The first and the last index may have been told of in part.
	lo, hi := followed.indexes[0], followed.indexes[len(followed.indexes)-1]
	if all.oldest > lo {
		return
	}
	count := func(s *stream) (n int) {
		for _, i := range s.indexes {
			if i > lo && i < hi {
				n++
			}
		}
		return n
	}
	got, want := count(followed), count(all)
	b.check("events", got == want, "%s told a follower of %d events between indexes %d and %d, and has %d", all.from, got, lo, hi, want)
}
