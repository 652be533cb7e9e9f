package sim

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"

	"borg/borgmaster"
	"borg/borgmaster/cell"
	"borg/proto/borgpb"
)

// S30: of each slot of a cron job it is decided once, in the order of time, whether it is
// run or skipped, whoever is elected and whatever the clocks do, and no slot is left out;
// its runs overlap as it says. A daemon job has one live task for each machine that
// matches, and none elsewhere. What was asked for is followed here from the ops alone, and
// which slots there are is counted without package cron.

const minuteNs = 60 * second

// cronModel is what the ops made of one cron job.
type cronModel struct {
	spec *borgpb.CronSpec
	// A slot is each multiple of it.
	everyNs         int64
	lastNs, sinceNs int64
	suspended       bool
	// Runs that have not ended, and how many there were when the spec changed.
	live   map[cell.UID]bool
	before int
	// The entry that changed the spec.
	changed uint64
}

// nextNs is the slot that is to be decided next.
func (m *cronModel) nextNs() int64 { return (max(m.lastNs, m.sinceNs)/m.everyNs + 1) * m.everyNs }

type kindsModel struct {
	epoch   uint64
	crons   map[cell.JobKey]*cronModel
	daemons map[cell.JobKey]*borgpb.TaskSpec
}

// standingName tells jobs that are there for S30; no history of them is judged.
func standingName(name string) bool {
	return strings.HasPrefix(name, "cron") || strings.HasPrefix(name, "daemon")
}

// lampAttribute is there on machines on which a daemon job shall run.
const lampAttribute = "lamp"

// everyMinutes are the schedules of cron jobs, by the minutes between two slots.
var everyMinutes = map[int64]string{1: "* * * * *", 2: "*/2 * * * *", 3: "*/3 * * * *"}

// kindsOp makes, changes and ends cron and daemon jobs, and machines that match or do not.
func (c *client) kindsOp() *borgpb.Op {
	r, user := c.rand, c.user()
	if r.IntN(2) == 0 {
		return c.daemonOp()
	}
	name := fmt.Sprintf("cron%d", r.IntN(2))
	j := c.w.truth.cell.Job(cell.JobKey{User: user, Name: name})
	if j == nil || j.State() == borgpb.State_STATE_DEAD {
		return c.submit(name, c.cronSpec())
	}
	switch n := r.IntN(10); {
	case n == 0:
		return &borgpb.Op{Op: &borgpb.Op_KillJob{KillJob: &borgpb.KillJob{User: user, Name: name}}}
	case n < 4:
		return &borgpb.Op{Op: &borgpb.Op_SuspendCron{SuspendCron: &borgpb.SuspendCron{User: user, Name: name, Suspend: n == 1}}}
	case n < 6:
		return &borgpb.Op{Op: &borgpb.Op_UpdateJob{UpdateJob: &borgpb.UpdateJob{User: user, Name: name, Spec: encode(c.cronSpec())}}}
	case n < 8:
		return &borgpb.Op{Op: &borgpb.Op_FireCron{FireCron: &borgpb.FireCron{
			User: user, Name: name, Uid: j.UID().String(), Version: j.Version(), Manual: true, Spec: encode(j.RunSpec()),
		}}}
	}
	return c.daemonOp()
}

func (c *client) cronSpec() *borgpb.JobSpec {
	r := c.rand
	spec := c.shortSpec()
	spec.Kind, spec.Tasks, spec.MaxFailures = borgpb.JobKind_JOB_KIND_CRON, uint32(1+r.IntN(2)), uint32(r.IntN(2))
	spec.Task.Args = []string{"/bin/task", fmt.Sprint([]int{50, 1000, 5000}[r.IntN(3)]), fmt.Sprint(r.IntN(4) / 3)}
	spec.Cron = &borgpb.CronSpec{
		Schedule: everyMinutes[1+r.Int64N(3)], TimeZone: []string{"", "UTC", "Europe/Zurich"}[r.IntN(3)],
		Overlap: borgpb.CronOverlap(r.IntN(4)), StartingDeadlineNs: r.Int64N(2) * 45 * second,
		KeepFinished: uint32(r.IntN(3)), KeepFailed: uint32(r.IntN(3)),
	}
	return spec
}

func (c *client) daemonOp() *borgpb.Op {
	r, user := c.rand, c.user()
	if user == adminUser && r.IntN(2) == 0 {
		// The first two machines may be emptied; these may not be lit.
		m := c.w.machines[r.IntN(len(c.w.machines))]
		o := &borgpb.SetMachine{Name: m.name, RemoveAttributes: []string{lampAttribute}}
		if r.IntN(2) == 0 {
			o = &borgpb.SetMachine{Name: m.name, SetAttributes: map[string]string{lampAttribute: "on"}}
		}
		return &borgpb.Op{Op: &borgpb.Op_SetMachine{SetMachine: o}}
	}
	spec := c.shortSpec()
	spec.Kind, spec.Tasks, spec.Task.Args = borgpb.JobKind_JOB_KIND_DAEMON, 0, []string{"/bin/task", "0", "0"}
	constrain := func(key, value string) {
		spec.Task.Constraints = []*borgpb.Constraint{{Key: key, Relation: borgpb.Relation_RELATION_EQUAL, Value: value}}
	}
	switch r.IntN(4) {
	case 0:
		constrain(shelfAttribute, fmt.Sprint(r.IntN(3)))
	case 1, 2:
		constrain(lampAttribute, "on")
	}
	if r.IntN(3) == 0 {
		spec.Task.Tolerations = []*borgpb.Toleration{{Key: taintKey}}
	}
	j := c.w.truth.cell.Job(cell.JobKey{User: user, Name: "daemon"})
	switch {
	case j == nil || !c.w.truth.stands(j):
		return c.submit("daemon", spec)
	case r.IntN(6) == 0:
		return &borgpb.Op{Op: &borgpb.Op_KillJob{KillJob: &borgpb.KillJob{User: user, Name: "daemon"}}}
	}
	return &borgpb.Op{Op: &borgpb.Op_UpdateJob{UpdateJob: &borgpb.UpdateJob{User: user, Name: "daemon", Spec: encode(spec)}}}
}

// stands tells whether a daemon job lives, whatever has become of its tasks.
func (t *truth) stands(j *cell.Job) bool { return t.kind.daemons[j.Key()] != nil }

// kinds follows one entry and holds the cell against it.
func (t *truth) kinds(e borgmaster.CommittedEntry, results []*borgpb.Result, events []cell.Event) {
	if !t.w.swarm.kinds {
		return
	}
	if t.kind.epoch != t.cell.Epoch() {
		t.startKinds()
		return
	}
	entry := new(borgpb.Entry)
	if proto.Unmarshal(e.Data, entry) != nil {
		return
	}
	for i, data := range entry.Ops {
		op := new(borgpb.Op)
		if proto.Unmarshal(data, op) == nil && !results[i].GetRepeated() && results[i].GetRefusal() == nil {
			t.kindsBy(op, results[i])
		}
	}
	for i := range events {
		t.runEvent(&events[i])
	}
	for _, key := range slices.SortedFunc(maps.Keys(t.kind.crons), cell.JobKey.Compare) {
		t.runsOverlap(key, t.kind.crons[key])
	}
	t.daemonsStand()
}

// startKinds begins with the cell as it is: it is new, or another one since it was
// restored.
func (t *truth) startKinds() {
	t.kind = kindsModel{epoch: t.cell.Epoch(), crons: map[cell.JobKey]*cronModel{}, daemons: map[cell.JobKey]*borgpb.TaskSpec{}}
	for j := range t.cell.Jobs() {
		p := t.cell.JobProto(j)
		switch {
		case j.State() == borgpb.State_STATE_DEAD:
		case j.Kind() == borgpb.JobKind_JOB_KIND_DAEMON:
			t.kind.daemons[j.Key()] = j.Spec().Task
		case j.Kind() == borgpb.JobKind_JOB_KIND_CRON:
			k := p.Status.Cron
			m := newCron(j.Spec().Cron, k.SinceWallNs)
			m.lastNs, m.suspended = k.LastSlotWallNs, k.Suspended
			for _, run := range k.Runs {
				if uid, err := cell.ParseUID(run.JobUid); err == nil && run.Outcome == borgpb.CronOutcome_CRON_OUTCOME_RUNNING {
					m.live[uid] = true
				}
			}
			t.kind.crons[j.Key()] = m
		}
	}
}

func newCron(s *borgpb.CronSpec, sinceNs int64) *cronModel {
	return &cronModel{spec: s, everyNs: everyOf(s), sinceNs: sinceNs, live: map[cell.UID]bool{}}
}

func everyOf(s *borgpb.CronSpec) int64 {
	for minutes, schedule := range everyMinutes {
		if schedule == s.GetSchedule() {
			return minutes * minuteNs
		}
	}
	panic("no client asks for the schedule " + s.GetSchedule())
}

// kindsBy follows one op that was done.
func (t *truth) kindsBy(op *borgpb.Op, res *borgpb.Result) {
	wallNs := t.cell.WallNs()
	switch o := op.Op.(type) {
	case *borgpb.Op_SubmitJob:
		key, spec := cell.JobKey{User: o.SubmitJob.User, Name: o.SubmitJob.Name}, specOf(op)
		t.gone(key)
		switch spec.Kind {
		case borgpb.JobKind_JOB_KIND_CRON:
			t.kind.crons[key] = newCron(spec.Cron, wallNs)
		case borgpb.JobKind_JOB_KIND_DAEMON:
			t.kind.daemons[key] = spec.Task
		}
	case *borgpb.Op_UpdateJob:
		key, spec := cell.JobKey{User: o.UpdateJob.User, Name: o.UpdateJob.Name}, specOf(op)
		if t.kind.daemons[key] != nil {
			t.kind.daemons[key] = spec.Task
		}
		if m := t.kind.crons[key]; m != nil {
			// Another time zone is another schedule, too.
			if m.spec.Schedule != spec.Cron.Schedule || m.spec.TimeZone != spec.Cron.TimeZone {
				m.sinceNs = max(m.sinceNs, wallNs)
			}
			m.spec, m.everyNs, m.changed = spec.Cron, everyOf(spec.Cron), t.index
		}
	case *borgpb.Op_KillJob:
		t.gone(cell.JobKey{User: o.KillJob.User, Name: o.KillJob.Name})
	case *borgpb.Op_SuspendCron:
		m := t.kind.crons[cell.JobKey{User: o.SuspendCron.User, Name: o.SuspendCron.Name}]
		if m == nil {
			t.w.fail("S30: %s/%s is suspended or resumed at index %d, and is no cron job", o.SuspendCron.User, o.SuspendCron.Name, t.index)
			return
		}
		if m.suspended = o.SuspendCron.Suspend; !m.suspended {
			m.sinceNs = max(m.sinceNs, wallNs)
		}
	case *borgpb.Op_FireCron:
		t.decided(cell.JobKey{User: o.FireCron.User, Name: o.FireCron.Name}, o.FireCron, res)
	}
}

// gone forgets a job that is killed, or whose name another one takes.
func (t *truth) gone(key cell.JobKey) {
	delete(t.kind.crons, key)
	delete(t.kind.daemons, key)
}

// decided judges what the elected master says of a slot.
func (t *truth) decided(key cell.JobKey, o *borgpb.FireCron, res *borgpb.Result) {
	m := t.kind.crons[key]
	if m == nil {
		t.w.fail("S30: a run of %v is begun at index %d, and it is no cron job", key, t.index)
		return
	}
	if o.Manual {
		t.w.mark("cron job run by hand")
		return
	}
	slot, next := o.SlotWallNs, m.nextNs()
	switch {
	case slot <= m.lastNs:
		t.w.fail("S30: slot %d of %v is decided again at index %d; the last was %d", slot/second, key, t.index, m.lastNs/second)
	case slot < next || slot%m.everyNs != 0:
		t.w.fail("S30: %d is decided for %v at index %d, and is no slot of it; the next is %d", slot/second, key, t.index, next/second)
	case slot > t.cell.WallNs():
		t.w.fail("S30: slot %d of %v is decided at index %d, at %d", slot/second, key, t.index, t.cell.WallNs()/second)
	case m.suspended:
		t.w.fail("S30: slot %d of %v is decided at index %d, and it is suspended", slot/second, key, t.index)
	}
	if missed := (slot - next) / m.everyNs; int64(o.Missed) != missed {
		t.w.fail("S30: with slot %d of %v %d slots are said to be missed at index %d; there were %d", slot/second, key, o.Missed, t.index, missed)
	}
	m.lastNs = max(m.lastNs, slot)
	switch {
	case o.Missed > 0:
		t.w.mark("slots of a cron job missed")
	case res.Uid == "":
		t.w.mark("slot of a cron job skipped")
	default:
		t.w.mark("slot of a cron job run")
	}
}

// runsOverlap: no more runs are under way than the job allows, but for those that were
// before it said so.
func (t *truth) runsOverlap(key cell.JobKey, m *cronModel) {
	n := len(m.live)
	if m.changed == t.index {
		m.before = n
	}
	most := max(1, m.before)
	if m.spec.Overlap == borgpb.CronOverlap_CRON_OVERLAP_ALLOW {
		most = cell.MaxCronRunsLive
	}
	if n > most {
		t.w.fail("S30: %d runs of %v are under way at index %d, which says %v", n, key, t.index, m.spec.Overlap)
	}
	if n > 1 {
		t.w.mark("runs of a cron job overlap")
	}
	m.before = min(m.before, n)
}

// runEvent follows the runs of cron jobs.
func (t *truth) runEvent(ev *cell.Event) {
	m := t.kind.crons[ev.Key]
	if ev.Cause == borgpb.StopCause_STOP_CAUSE_UNMATCHED && ev.To == borgpb.State_STATE_DEAD {
		t.w.mark("hole in a daemon job")
	}
	switch {
	case ev.ObjectKind == borgpb.ObjectKind_OBJECT_KIND_JOB && ev.To == borgpb.State_STATE_DEAD:
		for _, m := range t.kind.crons {
			delete(m.live, ev.UID)
		}
	case m == nil:
	case ev.Kind == borgpb.EventKind_EVENT_KIND_CRON_FIRE:
		key, err := cell.ParseJobKey(strings.TrimPrefix(ev.Reason, "run "))
		run := t.cell.Job(key)
		if err != nil || run == nil {
			return
		}
		m.live[run.UID()] = true
	case ev.Kind == borgpb.EventKind_EVENT_KIND_CRON_SKIP && strings.HasSuffix(ev.Reason, "is still under way"):
		if len(m.live) == 0 {
			t.w.fail("S30: a slot of %v is skipped at index %d because a run is under way, and none is", ev.Key, t.index)
		}
	}
}

// daemonsStand: a daemon job has a task for each machine that matches.
func (t *truth) daemonsStand() {
	for _, key := range slices.SortedFunc(maps.Keys(t.kind.daemons), cell.JobKey.Compare) {
		spec, j := t.kind.daemons[key], t.cell.Job(key)
		if j == nil {
			t.w.fail("S30: daemon job %v is not there at index %d", key, t.index)
			continue
		}
		has := map[*cell.Machine]int{}
		for index, task := range j.Tasks() {
			if task.State() == borgpb.State_STATE_DEAD {
				continue
			}
			m := j.Seat(index)
			if m == nil || task.Current() != nil && task.Current().Machine() != m {
				t.w.fail("S30: task %d of %v lives at index %d, and belongs to no machine or runs on another", index, key, t.index)
			}
			has[m]++
		}
		for m := range t.cell.Machines() {
			want := 0
			if wanted(spec, m) {
				want = 1
			}
			if has[m] != want && !(has[m] == 0 && t.lacksQuota(j)) {
				t.w.fail("S30: daemon job %v has %d live tasks for %s at index %d, and should have %d", key, has[m], m.Name(), t.index, want)
			}
			delete(has, m)
		}
		for range has {
			t.w.fail("S30: daemon job %v has a live task at index %d for a machine that is gone", key, t.index)
		}
	}
}

// lacksQuota reports whether the user of a daemon job may have too little quota for one more task.
func (t *truth) lacksQuota(j *cell.Job) bool {
	priority := j.Spec().Priority
	if !t.cell.QuotasEnforced() || priority == 0 {
		return false
	}
	user, band := j.Key().User, cell.BandOf(priority)
	q := t.cell.QuotaOf(user, band)
	if q == nil || t.cell.Expired(q) || j.Update().Rolling() {
		return true
	}
	return !t.cell.ChargeOf(user, band).Add(j.SeatNeed().Resources).Fits(q.Limit())
}

// wanted tells whether a machine should have a task of a daemon job.
func wanted(spec *borgpb.TaskSpec, m *cell.Machine) bool {
	for _, k := range spec.GetConstraints() {
		if v, _ := m.Attribute(k.Key); v != k.Value {
			return false
		}
	}
	for _, x := range m.Taints() {
		if _, tolerated := forgiveness(spec, x); !x.PreferNot && !tolerated {
			return false
		}
	}
	return true
}

// kindsUnsettled says what cron and daemon jobs still lack; empty: nothing.
func (w *World) kindsUnsettled() string {
	t := w.truth
	for _, key := range slices.SortedFunc(maps.Keys(t.kind.crons), cell.JobKey.Compare) {
		if m := t.kind.crons[key]; !m.suspended && t.cell.WallNs()-m.nextNs() > 3*second {
			return fmt.Sprintf("slot %d of cron job %v is not decided", m.nextNs()/second, key)
		}
	}
	for _, key := range slices.SortedFunc(maps.Keys(t.kind.daemons), cell.JobKey.Compare) {
		j := t.cell.Job(key)
		for index := range t.cell.PendingOf(j) {
			if !w.swarm.tight && !j.Seat(index).Draining() && t.cell.HeldBack(j) == "" {
				return fmt.Sprintf("task %d of daemon job %v pends", index, key)
			}
		}
	}
	return ""
}
