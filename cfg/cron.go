package cfg

import (
	"errors"

	"borg/borgmaster/cron"
	"borg/proto/borgpb"
)

// cron checks a schedule and its zone, as the masters do. A schedule that never comes is one of
// a job that is only run by hand.
func (c check) cron(spec *borgpb.CronSpec) {
	schedule, err := cron.Parse(spec.Schedule)
	switch {
	case err != nil:
		what := err.Error()
		var p *cron.ParseError
		if errors.As(err, &p) {
			what = p.Message
		}
		c.bad("cron.schedule", `want minute, hour, day of month, month, day of week: "0 3 * * *" is at 03:00 each day`, "schedule %s: %s", quote(spec.Schedule), what)
	case !schedule.Comes():
		c.warn("cron.schedule", "run it by hand with: borgcfg cron run", "schedule %s never comes: no month has such a day", quote(spec.Schedule))
	}
	if _, err := cron.Zone(spec.TimeZone); err != nil {
		c.bad("cron.time_zone", "", "%v", err)
	}
}
