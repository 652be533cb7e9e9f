package borgmaster

import (
	"context"
	"time"

	"borg/borgmaster/cell"
	"borg/borgmaster/cron"
	"borg/proto/borgpb"
)

// cronTick is how late a slot is noticed at most, while a look takes less than its budget.
const cronTick = time.Second

// cronLoop tells the cell of slots of cron jobs whose time has come, while this replica
// is elected.
type cronLoop struct {
	m     *Master
	slots CronSlots
}

// Run looks at all cron jobs each second until ctx ends.
func (l *cronLoop) Run(ctx context.Context) {
	var ops []*borgpb.Op
	rounds(ctx, cronTick, cronBudget, func() {
		ops = ops[:0]
		if !l.m.cfg.Log.State().Ready {
			l.slots = CronSlots{}
			return
		}
		l.m.cfg.Log.View(func(c *cell.Cell) { ops = l.slots.Due(c, time.Now().UnixNano()) })
		for _, op := range ops {
			l.fire(ctx, op)
		}
	})
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

// checkCronTimes refuses a schedule or time zone that no master can read: the cell does not look
// at them.
func checkCronTimes(spec *borgpb.JobSpec) *borgpb.Refusal {
	if spec.GetKind() != borgpb.JobKind_JOB_KIND_CRON {
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
	if _, err := cron.Zone(spec.GetCron().GetTimeZone()); err != nil {
		return bad("spec.cron.time_zone", err.Error())
	}
	return nil
}
