package borgmaster

import (
	"context"
	"time"
	// Time zones are those of the build, wherever it runs.
	_ "time/tzdata"

	"google.golang.org/protobuf/proto"

	"borg/borgmaster/cell"
	"borg/borgmaster/cron"
	"borg/proto/borgpb"
)

// cronTick is how late a slot is noticed at most.
const cronTick = time.Second

// cronLoop tells the cell of slots of cron jobs whose time has come, while this replica
// is elected. It remembers nothing that matters: what was decided is the cell's to know,
// so that whoever is elected next goes on from there.
type cronLoop struct {
	m     *Master
	known map[cell.UID]*knownCron
}

// knownCron is what the schedule of a job says, as long as nothing of it changes.
type knownCron struct {
	version  uint64
	afterNs  int64
	schedule *cron.Schedule
	zone     *time.Location
	// Nothing is due before; nanoseconds since 1970.
	nextNs int64
	seen   bool
}

// Run looks at all cron jobs each second until ctx ends.
func (l *cronLoop) Run(ctx context.Context) {
	ticker := time.NewTicker(cronTick)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		if !l.m.cfg.Log.State().Ready {
			l.known = nil
			continue
		}
		for _, op := range l.due(time.Now()) {
			l.fire(ctx, op)
		}
	}
}

// due are the slots to be decided now. Of a clock that the cell does not believe, it is
// the cell's that counts.
func (l *cronLoop) due(now time.Time) (ops []*borgpb.Op) {
	if l.known == nil {
		l.known = make(map[cell.UID]*knownCron)
	}
	l.m.cfg.Log.View(func(c *cell.Cell) {
		if c.WallSuspect() {
			now = time.Unix(0, c.WallNs())
		}
		for _, j := range c.Crons() {
			after, ok := j.CronNext()
			if !ok {
				delete(l.known, j.UID())
				continue
			}
			k := l.known[j.UID()]
			if k == nil || k.version != j.Version() || k.afterNs != after {
				k = knowCron(j, after)
				l.known[j.UID()] = k
			}
			k.seen = true
			if k.schedule == nil || now.UnixNano() < k.nextNs {
				continue
			}
			slot, missed, next := k.schedule.Due(time.Unix(0, after), now, k.zone)
			if slot.IsZero() {
				if k.nextNs = 1<<62 - 1; !next.IsZero() {
					k.nextNs = next.UnixNano()
				}
				continue
			}
			if op := fireOp(j, slot, missed); op != nil {
				ops = append(ops, op)
			}
		}
	})
	for uid, k := range l.known {
		if !k.seen {
			delete(l.known, uid)
		}
		k.seen = false
	}
	return ops
}

// knowCron reads the schedule of a job; one that this build cannot read has no slots.
func knowCron(j *cell.Job, afterNs int64) *knownCron {
	k := &knownCron{version: j.Version(), afterNs: afterNs}
	spec := j.Spec().GetCron()
	schedule, err := cron.Parse(spec.GetSchedule())
	if err != nil {
		return k
	}
	if k.zone, err = time.LoadLocation(spec.GetTimeZone()); err == nil {
		k.schedule = schedule
	}
	return k
}

// nextAfter is the slot that comes next after a time; zero: none does.
func (k *knownCron) nextAfter(wallNs int64) int64 {
	if k.schedule == nil {
		return 0
	}
	next, ok := k.schedule.Next(time.Unix(0, wallNs), k.zone)
	if !ok {
		return 0
	}
	return next.UnixNano()
}

func fireOp(j *cell.Job, slot time.Time, missed uint32) *borgpb.Op {
	spec, err := proto.Marshal(j.RunSpec())
	if err != nil {
		return nil
	}
	return &borgpb.Op{Principal: ownOp, Op: &borgpb.Op_FireCron{FireCron: &borgpb.FireCron{
		User: j.Key().User, Name: j.Key().Name, Uid: j.UID().String(), Version: j.Version(),
		SlotWallNs: slot.UnixNano(), Missed: missed, Spec: spec,
	}}}
}

// fire proposes a slot. If that fails, or its fate is not known, the next look at the
// cell says what is left to be decided.
func (l *cronLoop) fire(ctx context.Context, op *borgpb.Op) {
	ctx, cancel := context.WithTimeout(ctx, dutyTimeout)
	defer cancel()
	fire := op.GetFireCron()
	result, err := l.m.cfg.Log.Propose(ctx, op)
	if err == nil {
		err = refusalError(result.GetRefusal())
	}
	if err != nil && ctx.Err() == nil {
		l.m.cfg.Logger.Warn("slot of a cron job was not decided", "job", fire.User+"/"+fire.Name, "slot", time.Unix(0, fire.SlotWallNs).UTC(), "err", err)
	}
}

// checkCronTimes refuses a schedule or time zone that no master can read: the cell does
// not look at them.
func checkCronTimes(op *borgpb.Op) *borgpb.Refusal {
	data := op.GetSubmitJob().GetSpec()
	if op.GetUpdateJob() != nil {
		data = op.GetUpdateJob().Spec
	}
	spec := new(borgpb.JobSpec)
	if len(data) == 0 || proto.Unmarshal(data, spec) != nil || spec.Kind != borgpb.JobKind_JOB_KIND_CRON {
		return nil
	}
	bad := func(field, text string) *borgpb.Refusal {
		r := refusal(borgpb.RefusalKind_REFUSAL_KIND_INVALID, "", "%s", text)
		r.Field = field
		return r
	}
	if _, err := cron.Parse(spec.GetCron().GetSchedule()); err != nil {
		return bad("spec.cron.schedule", err.Error())
	}
	if _, err := time.LoadLocation(spec.GetCron().GetTimeZone()); err != nil {
		return bad("spec.cron.time_zone", err.Error()+"; want a name such as Europe/Zurich")
	}
	return nil
}
