package cell

import (
	"errors"
	"fmt"
	"slices"

	"google.golang.org/protobuf/proto"

	"borg/mutant"
	"borg/proto/borgpb"
)

// cron is what is known of the slots of a cron job. The cell has no time zones: the
// elected master says which slots there are, and the cell decides what becomes of
// each. A slot is decided once, in the order of time, whoever is elected and whatever
// the clocks do: those up to lastNs never again.
type cron struct {
	mark
	job       *Job
	suspended bool
	// The slot that was decided last, run or skipped. It never goes back.
	lastNs int64
	// Slots up to then do not count: when the job was submitted, resumed, given
	// another schedule, or found in a restored cell.
	sinceNs int64
	// Runs by hand so far.
	manual uint64
	// Oldest first, at most maxCronRuns; those under way are never forgotten.
	runs []cronRun
}

// cronRun is a slot that was decided, or some in a row that were skipped alike.
type cronRun struct {
	slotNs int64
	manual bool
	// Of the job that it became; zero: none.
	uid                UID
	name               string
	outcome            borgpb.CronOutcome
	reason             string
	decidedNs, endedNs int64
	slots              uint32
}

const (
	maxCronRuns = 24
	// MaxCronRunsLive is how many runs of one cron job may be under way at once.
	MaxCronRunsLive = 16
	maxKeptRuns     = 100
	defaultKept     = 3
	// What is put behind the name of a cron job to name its runs.
	maxRunSuffixBytes     = 15
	maxCronScheduleBytes  = 255
	maxCronZoneBytes      = 63
	maxStartingDeadlineNs = 7 * 24 * 3600 * second
	startingDeadlineNs    = 3600 * second
	minute                = 60 * second
)

// Crons yields the cron jobs that live, in the order of their uids.
func (c *Cell) Crons() []*Job { return c.crons }

// CronNext says where to look for the next slot of a cron job: after that time; ok is
// false while it is none, is dead or suspended.
func (j *Job) CronNext() (afterNs int64, ok bool) {
	if j.cron == nil || j.deathSeq != 0 || j.cron.suspended {
		return 0, false
	}
	return max(j.cron.lastNs, j.cron.sinceNs), true
}

// RunSpec is the spec of a run of a cron job as it is now.
func (j *Job) RunSpec() *borgpb.JobSpec { return RunSpec(j.key, j.Spec()) }

// RunSpec is the spec of a run of a cron job with that spec.
func RunSpec(key JobKey, spec *borgpb.JobSpec) *borgpb.JobSpec {
	s := proto.CloneOf(spec)
	s.Kind, s.Cron, s.Parent = borgpb.JobKind_JOB_KIND_BATCH, nil, key.String()
	return s
}

// runKey names the run of a cron job for which an op asks.
func (j *Job) runKey(o *borgpb.FireCron) JobKey {
	if o.Manual {
		return JobKey{j.key.User, fmt.Sprintf("%s-now-%d", j.key.Name, j.cron.manual+1)}
	}
	return JobKey{j.key.User, runName(j.key.Name, o.SlotWallNs)}
}

// runName names the run of a slot after its time, in UTC and to the minute.
func runName(name string, slotNs int64) string {
	days, minutes := slotNs/(24*3600*second), slotNs%(24*3600*second)/minute
	// Days since 1970-01-01 as a date of the Gregorian calendar: years that begin in
	// March, so that the leap day is the last of one.
	z := days + 719_468
	era := z / 146_097
	dayOfEra := z - era*146_097
	yearOfEra := (dayOfEra - dayOfEra/1_460 + dayOfEra/36_524 - dayOfEra/146_096) / 365
	dayOfYear := dayOfEra - (365*yearOfEra + yearOfEra/4 - yearOfEra/100)
	month := (5*dayOfYear + 2) / 153
	day := dayOfYear - (153*month+2)/5 + 1
	year := yearOfEra + era*400
	if month += 3; month > 12 {
		month, year = month-12, year+1
	}
	return fmt.Sprintf("%s-%04d%02d%02d%02d%02d", name, year, month, day, minutes/60, minutes%60)
}

// checkCronSpec checks what a cron job says of its times. What the schedule means is
// for masters: which times there are changes with the world.
func checkCronSpec(key JobKey, s *borgpb.CronSpec) *borgpb.Refusal {
	switch {
	case s == nil || s.Schedule == "":
		return invalid("spec.cron.schedule", "a cron job needs one, such as \"0 3 * * *\" or \"@hourly\"")
	case len(s.Schedule) > maxCronScheduleBytes:
		return invalid("spec.cron.schedule", "longer than %d bytes", maxCronScheduleBytes)
	case len(s.TimeZone) > maxCronZoneBytes:
		return invalid("spec.cron.time_zone", "longer than %d bytes", maxCronZoneBytes)
	case s.StartingDeadlineNs < 0 || s.StartingDeadlineNs > maxStartingDeadlineNs:
		return outOfSpan("spec.cron.starting_deadline_ns", s.StartingDeadlineNs, 0, maxStartingDeadlineNs)
	case s.KeepFinished > maxKeptRuns:
		return invalid("spec.cron.keep_finished", "%d is over %d", s.KeepFinished, maxKeptRuns)
	case s.KeepFailed > maxKeptRuns:
		return invalid("spec.cron.keep_failed", "%d is over %d", s.KeepFailed, maxKeptRuns)
	case len(key.Name) > maxNameBytes-maxRunSuffixBytes:
		return invalid("name", "%d bytes: that of a cron job has at most %d, as its runs are named after it", len(key.Name), maxNameBytes-maxRunSuffixBytes)
	}
	return nil
}

// maxNameBytes is the length of a name.
const maxNameBytes = 63

func (c *Cell) checkSuspendCron(o *borgpb.SuspendCron) (commit, *borgpb.Refusal) {
	j, r := c.checkCronJob(JobKey{o.User, o.Name})
	if r != nil {
		return nil, r
	}
	switch {
	case o.Suspend && j.cron.suspended:
		return nil, badState(j.key.String(), "it is suspended already")
	case !o.Suspend && !j.cron.suspended:
		return nil, badState(j.key.String(), "it is not suspended")
	}
	return func(res *borgpb.Result) {
		j.cron.suspended = o.Suspend
		kind := borgpb.EventKind_EVENT_KIND_CRON_SUSPEND
		if !o.Suspend {
			// What would have been meanwhile is not made up for.
			j.cron.sinceNs = max(j.cron.sinceNs, c.clock.wallNs)
			kind = borgpb.EventKind_EVENT_KIND_CRON_RESUME
		}
		c.dirty(j.cron)
		e := jobEvent(j, kind, j.settled, j.settled)
		e.Reason = c.now.reason
		c.emit(e)
		res.Uid, res.Version = j.uid.String(), j.version
	}, nil
}

func (c *Cell) checkCronJob(key JobKey) (*Job, *borgpb.Refusal) {
	j, r := c.checkLive(key, 0)
	if r == nil && j.cron == nil {
		r = badState(key.String(), "it is not a cron job")
	}
	return j, r
}

// checkFireCron decides about a slot. One that cannot be run is skipped, which is
// written down as well; by hand it is refused.
func (c *Cell) checkFireCron(o *borgpb.FireCron) (commit, *borgpb.Refusal) {
	j, r := c.checkCronJob(JobKey{o.User, o.Name})
	if r != nil {
		return nil, r
	}
	if r := c.checkSlot(j, o); r != nil {
		return nil, about(j.key.String(), r)
	}
	run := j.runKey(o)
	told := new(borgpb.JobSpec)
	if r := decode(o.Spec, told, c.format); r != nil || !proto.Equal(told, j.RunSpec()) {
		return nil, about(j.key.String(), invalid("spec", "it is not what follows from version %d of the job", j.version))
	}
	spec, skip := c.checkRun(j, run, o)
	if skip != nil && o.Manual {
		return nil, about(run.String(), skip)
	}
	return func(res *borgpb.Result) {
		k := j.cron
		if o.Missed > 0 {
			c.skipSlots(j, o.SlotWallNs, o.Missed, fmt.Sprintf("%d slots before it were missed: no master was elected to run them", o.Missed))
		}
		slotNs := o.SlotWallNs
		if o.Manual {
			slotNs = c.clock.wallNs
			k.manual++
		} else if skip == nil || !mutant.Planted(mutant.SkipNotDecided) {
			k.lastNs = o.SlotWallNs
		}
		c.dirty(k)
		if skip != nil {
			c.skipSlots(j, slotNs, 1, skip.Message)
			return
		}
		if j.Spec().Cron.Overlap == borgpb.CronOverlap_CRON_OVERLAP_REPLACE {
			for _, old := range c.liveRuns(j) {
				c.kill(old, "the run of the next slot took its place")
			}
		}
		made := c.submit(run, spec, j.labels, j.annotations)
		made.slotNs = max(slotNs, 1)
		k.keep(cronRun{
			slotNs: slotNs, manual: o.Manual, uid: made.uid, name: run.Name, outcome: borgpb.CronOutcome_CRON_OUTCOME_RUNNING,
			decidedNs: c.clock.wallNs, slots: 1,
		})
		e := jobEvent(j, borgpb.EventKind_EVENT_KIND_CRON_FIRE, j.settled, j.settled)
		e.Reason = "run " + run.String()
		c.emit(e)
		res.Uid, res.Version = made.uid.String(), made.version
	}, nil
}

// checkSlot wants a slot that is the next one of the job as it is now.
func (c *Cell) checkSlot(j *Job, o *borgpb.FireCron) *borgpb.Refusal {
	k := j.cron
	switch {
	case o.Uid != "" && o.Uid != j.uid.String():
		return stale(j.key.String(), "the job is %s, not %s", j.uid, clip(o.Uid, 64))
	case o.Version != j.version:
		return stale(j.key.String(), "the job's version is %d, not %d", j.version, o.Version)
	case o.Manual && (o.SlotWallNs != 0 || o.Missed != 0):
		return invalid("slot_wall_ns", "a run by hand has no slot")
	case o.Manual:
		return nil
	case c.now.asker.GetUser() != "":
		return refuse(borgpb.RefusalKind_REFUSAL_KIND_PERMISSION, "", "slot_wall_ns", "slots are the elected master's; ask for a run by hand")
	case o.SlotWallNs <= 0 || o.SlotWallNs > maxTimeNs || o.SlotWallNs%minute != 0:
		return invalid("slot_wall_ns", "%d is not a minute", o.SlotWallNs)
	case k.suspended:
		return badState(j.key.String(), "it is suspended")
	case o.SlotWallNs <= max(k.lastNs, k.sinceNs) && !mutant.Planted(mutant.SlotTakenAgain):
		return stale(j.key.String(), "slots up to %d have been decided, or do not count", max(k.lastNs, k.sinceNs))
	case o.SlotWallNs > c.clock.wallNs:
		return stale(j.key.String(), "the slot is %s ahead of the cell's wall clock", spanWords(o.SlotWallNs-c.clock.wallNs))
	}
	return nil
}

// checkRun tells why a slot is not run, or the spec of its run.
func (c *Cell) checkRun(j *Job, run JobKey, o *borgpb.FireCron) (*Spec, *borgpb.Refusal) {
	s := j.Spec().Cron
	deadline := s.StartingDeadlineNs
	if deadline == 0 {
		deadline = startingDeadlineNs
	}
	live := len(c.liveRuns(j))
	switch {
	case !o.Manual && c.clock.wallNs-o.SlotWallNs > deadline:
		return nil, badState("", "it is %s late, and its starting deadline is %s", spanWords(c.clock.wallNs-o.SlotWallNs), spanWords(deadline))
	case live > 0 && !mutant.Planted(mutant.OverlapIgnored) && s.Overlap != borgpb.CronOverlap_CRON_OVERLAP_ALLOW && s.Overlap != borgpb.CronOverlap_CRON_OVERLAP_REPLACE:
		return nil, badState("", "the run before is still under way")
	case live >= MaxCronRunsLive && s.Overlap == borgpb.CronOverlap_CRON_OVERLAP_ALLOW:
		return nil, limit("", "%d runs of it are under way", live)
	}
	spec, r := c.checkSubmit(run, &borgpb.SubmitJob{User: run.User, Name: run.Name, Spec: o.Spec, Labels: j.labels, Annotations: j.annotations})
	if r == nil {
		r = c.checkRunQuota(j, run, spec)
	}
	if r == nil {
		r = c.checkJobState(run, spec, j.labels, j.annotations)
	}
	return spec, r
}

// liveRuns are the runs of a cron job that are under way, in the order of their uids.
func (c *Cell) liveRuns(j *Job) []*Job {
	var live []*Job
	for _, o := range c.jobRefs.children[j.key] {
		if o.slotNs != 0 {
			live = append(live, o)
		}
	}
	return live
}

// skipSlots writes down that slots were not run.
func (c *Cell) skipSlots(j *Job, slotNs int64, n uint32, reason string) {
	k := j.cron
	skipped := cronRun{slotNs: slotNs, outcome: borgpb.CronOutcome_CRON_OUTCOME_SKIPPED, reason: clip(reason, maxReasonBytes), decidedNs: c.clock.wallNs, slots: n}
	if last := len(k.runs) - 1; last >= 0 && k.runs[last].outcome == skipped.outcome && k.runs[last].reason == skipped.reason {
		skipped.slots += k.runs[last].slots
		k.runs[last] = skipped
	} else {
		k.keep(skipped)
	}
	c.dirty(k)
	e := jobEvent(j, borgpb.EventKind_EVENT_KIND_CRON_SKIP, j.settled, j.settled)
	e.Reason = skipped.reason
	c.emit(e)
}

// keep remembers a run, and forgets the oldest that has ended when there are too many.
func (k *cron) keep(r cronRun) {
	k.runs = append(k.runs, r)
	if len(k.runs) <= maxCronRuns {
		return
	}
	for i := range k.runs {
		if k.runs[i].outcome != borgpb.CronOutcome_CRON_OUTCOME_RUNNING {
			k.runs = slices.Delete(k.runs, i, i+1)
			return
		}
	}
}

// runEnded notes with its cron job how a run ended, and forgets runs beyond those that
// are kept.
func (c *Cell) runEnded(run *Job) {
	key, _ := ParseJobKey(run.latest().Proto.Parent)
	j := c.Job(key)
	if run.slotNs == 0 || j == nil || j.cron == nil {
		return
	}
	k := j.cron
	for i := range k.runs {
		r := &k.runs[i]
		if r.uid != run.uid || r.outcome != borgpb.CronOutcome_CRON_OUTCOME_RUNNING {
			continue
		}
		r.endedNs, r.reason = c.clock.wallNs, run.reason
		switch {
		case int(run.finished) == len(run.rows):
			r.outcome = borgpb.CronOutcome_CRON_OUTCOME_FINISHED
		case run.lastEdge == edgeKill:
			r.outcome = borgpb.CronOutcome_CRON_OUTCOME_KILLED
		default:
			r.outcome = borgpb.CronOutcome_CRON_OUTCOME_FAILED
		}
		c.dirty(k)
	}
	s := j.Spec().Cron
	finished, failed := orDefault(s.KeepFinished), orDefault(s.KeepFailed)
	for _, r := range slices.Backward(slices.Clone(k.runs)) {
		left := &failed
		switch r.outcome {
		case borgpb.CronOutcome_CRON_OUTCOME_RUNNING, borgpb.CronOutcome_CRON_OUTCOME_SKIPPED:
			continue
		case borgpb.CronOutcome_CRON_OUTCOME_FINISHED:
			left = &finished
		}
		old := c.jobsByUID[r.uid]
		if old == nil || old.deathSeq == 0 {
			continue
		}
		if *left > 0 {
			*left--
		} else if old != run && len(c.jobRefs.followers[old.key]) == 0 {
			c.bury(old.key)
		}
	}
}

func orDefault(kept uint32) uint32 {
	if kept == 0 {
		return defaultKept
	}
	return kept
}

// reschedule notes that a cron job has another schedule: times of it that are past do
// not count.
func (c *Cell) reschedule(j *Job, was *borgpb.CronSpec) {
	if s := j.Spec().Cron; j.cron != nil && (s.Schedule != was.GetSchedule() || s.TimeZone != was.GetTimeZone()) {
		j.cron.sinceNs = max(j.cron.sinceNs, c.clock.wallNs)
		c.dirty(j.cron)
	}
}

// restoreCrons keeps the slots of a restored cell from being run twice: what was decided
// after the checkpoint nobody knows any more.
func (c *Cell) restoreCrons() {
	for _, j := range c.crons {
		j.cron.sinceNs = max(j.cron.sinceNs, c.clock.wallNs)
		c.dirty(j.cron)
	}
}

// cronProto shows what is known of the slots of a job; nil: it is no cron job.
func (j *Job) cronProto() *borgpb.CronStatus {
	k := j.cron
	if k == nil {
		return nil
	}
	p := &borgpb.CronStatus{Suspended: k.suspended, LastSlotWallNs: k.lastNs, SinceWallNs: k.sinceNs}
	for _, r := range slices.Backward(k.runs) {
		run := &borgpb.CronRun{
			SlotWallNs: r.slotNs, Manual: r.manual, Job: r.name, Outcome: r.outcome, Reason: r.reason,
			DecidedWallNs: r.decidedNs, EndedWallNs: r.endedNs, Slots: r.slots,
		}
		if !r.uid.IsZero() {
			run.JobUid = r.uid.String()
		}
		if r.outcome == borgpb.CronOutcome_CRON_OUTCOME_RUNNING {
			p.Live++
		}
		p.Runs = append(p.Runs, run)
	}
	return p
}

func (k *cron) appendKey(b []byte) []byte { return appendUIDKey(b, kindCron, k.job.uid) }
func (k *cron) exists() bool              { return !k.job.gone }

func (k *cron) appendValue(b []byte) []byte {
	e := encoder{append(b, recordLayout)}
	e.bool(k.suspended)
	e.int(k.lastNs)
	e.int(k.sinceNs)
	e.uint(k.manual)
	e.uint(uint64(len(k.runs)))
	for _, r := range k.runs {
		e.int(r.slotNs)
		e.bool(r.manual)
		e.uid(r.uid)
		e.str(r.name)
		e.byte(byte(r.outcome))
		e.str(r.reason)
		e.int(r.decidedNs)
		e.int(r.endedNs)
		e.uint(uint64(r.slots))
	}
	return e.b
}

func (l *loader) cron(uid UID, d *decoder) error {
	j := l.c.jobsByUID[uid]
	k := &cron{job: j, suspended: d.bool(), lastNs: d.int(), sinceNs: d.int(), manual: d.uint()}
	for range d.count() {
		k.runs = append(k.runs, cronRun{
			slotNs: d.int(), manual: d.bool(), uid: d.uid(), name: d.str(), outcome: borgpb.CronOutcome(d.byte()),
			reason: d.str(), decidedNs: d.int(), endedNs: d.int(), slots: d.uint32(),
		})
	}
	if err := d.done(); err != nil {
		return err
	}
	if j == nil || l.c.format < FormatKinds {
		return errors.New("slots of no job")
	}
	j.cron = k
	return nil
}

// checkCron verifies what is known of slots.
func (c *Cell) checkCron(j *Job) error {
	k := j.cron
	if k.job != j || k.lastNs%minute != 0 || len(k.runs) > maxCronRuns || len(j.rows) != 0 {
		return fmt.Errorf("last slot %d, %d runs, %d rows", k.lastNs, len(k.runs), len(j.rows))
	}
	live := make(map[UID]bool)
	for _, o := range c.liveRuns(j) {
		live[o.uid] = true
	}
	last := int64(-1)
	for _, r := range k.runs {
		if (r.outcome == borgpb.CronOutcome_CRON_OUTCOME_RUNNING) != live[r.uid] || r.outcome < borgpb.CronOutcome_CRON_OUTCOME_RUNNING ||
			r.outcome > borgpb.CronOutcome_CRON_OUTCOME_SKIPPED || r.slots == 0 {
			return fmt.Errorf("slot %d is %v, and its run %v is live: %v", r.slotNs, r.outcome, r.uid, live[r.uid])
		}
		delete(live, r.uid)
		if r.manual || r.outcome == borgpb.CronOutcome_CRON_OUTCOME_SKIPPED {
			continue
		}
		if r.slotNs <= last || r.slotNs > k.lastNs {
			return fmt.Errorf("slot %d was run after slot %d; the last is %d", r.slotNs, last, k.lastNs)
		}
		last = r.slotNs
	}
	if len(live) > 0 {
		return fmt.Errorf("%d runs are under way that it does not know of", len(live))
	}
	return nil
}
