package cell

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"borg/proto/borgpb"
)

// placeSome has some of the tasks and allocs of u that wait be placed and run. What the cell
// refuses stays where it is.
func (l *testLog) placeSome(random *rand.Rand) {
	assign := func(a *borgpb.Assignment) {
		l.apply(&borgpb.Op{Op: &borgpb.Op_Assign{Assign: &borgpb.Assign{Assignments: []*borgpb.Assignment{a}}}})
	}
	machine := func() string { return fmt.Sprintf("m%d", random.IntN(10)) }
	if s := l.c.AllocSet(JobKey{"u", "pool"}); s != nil {
		for i, a := range s.allocs {
			if a.state == statePending && random.IntN(4) > 0 {
				assign(&borgpb.Assignment{Uid: s.uid.String(), Index: uint32(i), LastAttempt: a.attempt, Machine: machine()})
			}
		}
	}
	for _, name := range []string{"web", "api", "inside"} {
		j := l.c.Job(JobKey{"u", name})
		for i := 0; j != nil && i < len(j.rows); i++ {
			row := j.rows[i]
			if row.state != statePending || random.IntN(4) == 0 {
				continue
			}
			to := &borgpb.Assignment{Uid: j.uid.String(), Index: uint32(i), LastAttempt: row.attempt}
			if name != "inside" {
				to.Machine = machine()
			} else if s := l.c.AllocSet(JobKey{"u", "pool"}); s != nil && i < len(s.allocs) && s.allocs[i].state == stateRunning {
				to.Alloc = s.allocs[i].Name()
			}
			assign(to)
			if p := row.cur; p != nil && p.state == attemptAssigned && random.IntN(8) > 0 {
				l.apply(&borgpb.Op{Op: &borgpb.Op_Reports{Reports: &borgpb.Reports{Machines: []*borgpb.MachineReport{{Machine: p.machine.name,
					Tasks: []*borgpb.TaskReport{{JobUid: j.uid.String(), Index: uint32(i), Attempt: p.attempt, State: int32(borgpb.AttemptState_ATTEMPT_STATE_RUNNING)}}}}}}})
			}
		}
	}
}

// replaceSome is a random op that replaces or ends what runs, or brings it back.
func replaceSome(t *testing.T, random *rand.Rand, round int) *borgpb.Op {
	name := []string{"web", "web", "web", "api"}[random.IntN(4)]
	// Often as much as the quota, or half of it, so that little is refused at once.
	spec := stubborn([]uint32{10, 10, 5, 1 + random.Uint32N(10)}[random.IntN(4)], 1_000, round)
	if random.IntN(2) == 0 {
		spec.Update.BatchSize = 1 + random.Uint32N(10)
	}
	if random.IntN(2) == 0 {
		spec.Update.Surge = min(1+random.Uint32N(6), 10-min(spec.Tasks, 9))
	}
	if random.IntN(8) == 0 {
		spec.Update.Canaries = 1 + random.Uint32N(3)
	}
	inside := stubborn(10, 1_000, round)
	inside.AllocSet = "u/pool"
	verbs := []borgpb.UpdateVerb{borgpb.UpdateVerb_UPDATE_VERB_ROLLBACK, borgpb.UpdateVerb_UPDATE_VERB_PAUSE,
		borgpb.UpdateVerb_UPDATE_VERB_RESUME, borgpb.UpdateVerb_UPDATE_VERB_PROMOTE}
	switch random.IntN(20) {
	case 0, 1:
		return submitJob(t, name, spec)
	case 2, 3, 4, 14, 15, 16:
		return updateJob(t, name, spec)
	case 5, 6, 17, 18, 19:
		return controlUpdate(name, borgpb.UpdateVerb_UPDATE_VERB_ROLLBACK)
	case 7:
		return controlUpdate(name, verbs[random.IntN(len(verbs))])
	case 8:
		return resizeJob(name, 1+random.Uint32N(10))
	case 9:
		return killJob(name)
	case 10:
		return submitSet(t, "pool", setSpec(1+random.Uint32N(10), 200, 1_000))
	case 11:
		return submitJob(t, "inside", inside)
	case 12:
		return resizeSetOp("pool", 1+random.Uint32N(10))
	default:
		return killSet("pool")
	}
}

// TestWalkOfStops: whatever a user replaces, in whatever order, while tasks take a day to stop,
// all that the user holds is within twice the quota.
func TestWalkOfStops(t *testing.T) {
	const quota, steps = 10_000, 30
	seeds := uint64(2_000)
	if testing.Short() {
		seeds = 500
	}
	highest := int64(0)
	for seed := range seeds {
		random := rand.New(rand.NewPCG(seed, 0))
		l := latestQuotaLog(t)
		l.do(setQuota("u", production, quota, tib))
		for step := range steps {
			op := replaceSome(t, random, step)
			l.apply(op)
			for range random.IntN(4) {
				l.cellNs += 2 * setAgainNs
				l.placeSome(random)
			}
			held := l.heldWithAllocs()
			if highest = max(highest, held); held > 2*quota {
				t.Fatalf("seed %d, step %d, after %T: %d of cpu are held, with a quota of %d", seed, step, op.Op, held, quota)
			}
			if random.IntN(8) == 0 {
				l.endStopping(random.IntN(20))
			}
		}
		l.fine()
	}
	if highest <= quota {
		t.Errorf("of %d walks none held more than the quota", seeds)
	}
}
