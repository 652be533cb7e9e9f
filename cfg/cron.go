package cfg

import (
	"errors"

	"borg/borgmaster/cron"
	"borg/proto/borgpb"
)

// cron checks a schedule and its zone, as the masters do.
func (c check) cron(spec *borgpb.CronSpec) {
	if err := cron.Check(spec.Schedule); err != nil {
		what := err.Error()
		var p *cron.ParseError
		if errors.As(err, &p) {
			what = p.Message
		}
		c.bad("cron.schedule", `want minute, hour, day of month, month, day of week: "0 3 * * *" is at 03:00 each day`, "schedule %s: %s", quote(spec.Schedule), what)
	}
	if _, err := cron.Zone(spec.TimeZone); err != nil {
		c.bad("cron.time_zone", "", "%v", err)
	}
}
