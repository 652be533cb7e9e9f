package borgmaster

import (
	"time"
	// Time zones are those of the build, wherever it runs.
	_ "time/tzdata"

	"google.golang.org/protobuf/proto"

	"borg/borgmaster/cell"
	"borg/borgmaster/cron"
	"borg/mutant"
	"borg/proto/borgpb"
)

// CronSlots tells which slots of cron jobs are to be decided, from the cell and the time
// alone. It remembers nothing that matters: what was decided is the cell's to know, so
// that whoever is elected next goes on from there. The zero value is ready.
type CronSlots struct {
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

// Due are ops that decide the slots of a cell whose time has come, the latest of each
// job. If the cell does not trust the wall clock, its own time is used. Each is
// to be proposed once; if that fails, or its fate is not known, the next look at the cell
// says what is left to be decided.
func (s *CronSlots) Due(c *cell.Cell, wallNs int64) (ops []*borgpb.Op) {
	if s.known == nil {
		s.known = make(map[cell.UID]*knownCron)
	}
	if c.WallSuspect() {
		wallNs = c.WallNs()
	}
	for _, j := range c.Crons() {
		after, ok := j.CronNext()
		if !ok {
			delete(s.known, j.UID())
			continue
		}
		k := s.known[j.UID()]
		if k == nil || k.version != j.Version() || k.afterNs != after {
			k = knowCron(j, after)
			s.known[j.UID()] = k
		}
		k.seen = true
		if k.schedule == nil || wallNs < k.nextNs {
			continue
		}
		slot, missed, next := k.schedule.Due(time.Unix(0, after), time.Unix(0, wallNs), k.zone)
		if slot.IsZero() {
			if k.nextNs = 1<<62 - 1; !next.IsZero() {
				k.nextNs = next.UnixNano()
			}
			continue
		}
		if mutant.Planted(mutant.MissedForgotten) {
			missed = 0
		}
		if op := fireOp(j, slot, missed); op != nil {
			ops = append(ops, op)
		}
	}
	for uid, k := range s.known {
		if !k.seen {
			delete(s.known, uid)
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
