package cell

import (
	"google.golang.org/protobuf/proto"

	"borg/proto/borgpb"
)

// Trial asks a cell whether it would do ops, one after another, without doing any. It
// remembers what the ops so far would make, so that a later one may name their jobs and
// alloc sets and is charged beside them. What an op would end or shrink is not
// remembered, so a trial may refuse what Apply takes afterwards. After a refusal it is over.
//
// The zero value is ready to use.
type Trial struct {
	jobs map[JobKey]bool
	sets map[JobKey]*AllocSet
	// What the ops so far would be charged, by user.
	charged map[string]charge
	// What they would add to the state, by user and in all.
	state map[string]StateUse
	cell  StateUse

	// The same of the op at hand, and whose it is.
	op struct {
		user   string
		charge charge
		state  StateUse
	}
}

// Check returns the refusal with which the cell would answer op now; nil if it would
// do it. It only reads the cell.
func (t *Trial) Check(c *Cell, op *borgpb.Op) *borgpb.Refusal {
	data, err := proto.MarshalOptions{Deterministic: true}.Marshal(op)
	if err != nil {
		return malformed("not an Op")
	}
	// A shallow copy, so that setting now does not touch the cell.
	d := *c
	d.index++
	read, r := decodeOp(data, d.format, new(submitOp))
	if r != nil {
		return r
	}
	t.op.user, t.op.charge, t.op.state = "", nil, StateUse{}
	d.now = applying{term: c.term, rawWallNs: c.clock.wallNs, asker: read.Principal, sum: sumOf(read, data), trial: t}
	r = guarded(func() *borgpb.Refusal {
		again, r := d.checkRequest(read)
		if again != nil {
			return again.Refusal
		}
		if r == nil {
			r = d.checkPermission(read)
		}
		if r == nil {
			_, r = d.check(read)
		}
		return r
	})
	if r != nil {
		return about(target(read), r)
	}
	t.keep(&d, read)
	return nil
}

// keep remembers an op that would be done.
func (t *Trial) keep(c *Cell, op *borgpb.Op) {
	if t.charged == nil {
		t.jobs, t.sets = make(map[JobKey]bool), make(map[JobKey]*AllocSet)
		t.charged, t.state = make(map[string]charge), make(map[string]StateUse)
	}
	switch o := op.Op.(type) {
	case *borgpb.Op_SubmitJob:
		t.jobs[JobKey{o.SubmitJob.User, o.SubmitJob.Name}] = true
	case *borgpb.Op_SubmitAllocSet:
		key := JobKey{o.SubmitAllocSet.User, o.SubmitAllocSet.Name}
		if spec, _, r := c.readGivenAllocSet(key, o.SubmitAllocSet.Spec); r == nil {
			t.sets[key] = &AllocSet{key: key, spec: spec}
		}
	}
	t.charged[t.op.user] = t.charged[t.op.user].plus(t.op.charge)
	use := t.state[t.op.user]
	use.add(&t.op.state, 1)
	t.state[t.op.user] = use
	t.cell.add(&t.op.state, 1)
}

// liveSet returns the alloc set of that name that is not dead; in a trial, one that an
// earlier op would make too. Nil if there is none.
func (c *Cell) liveSet(key JobKey) *AllocSet {
	if s := c.sets[key]; s != nil && s.deathSeq == 0 {
		return s
	}
	if t := c.now.trial; t != nil {
		return t.sets[key]
	}
	return nil
}

// tried reports whether a job is there that an earlier op of a trial would make.
func (c *Cell) tried(key JobKey) bool { return c.now.trial != nil && c.now.trial.jobs[key] }

// usedInTrial is what a user is charged, with the earlier ops of a trial.
func (c *Cell) usedInTrial(user string) charge {
	used := c.quotas.used[user]
	if t := c.now.trial; t != nil {
		used = used.plus(t.charged[user])
	}
	return used
}

// chargeInTrial notes what the op at hand would add to the charge of its user.
func (c *Cell) chargeInTrial(user string, was, wants charge) {
	if t := c.now.trial; t != nil {
		t.op.user, t.op.charge = user, wants.minus(was)
	}
}

// stateInTrial is what a user and the cell hold of the state, with the earlier ops of a
// trial.
func (c *Cell) stateInTrial(user string) (used, all StateUse) {
	if u := c.stateUse.byUser[user]; u != nil {
		used = *u
	}
	all = c.stateUse.cell
	if t := c.now.trial; t != nil {
		of := t.state[user]
		used.add(&of, 1)
		all.add(&t.cell, 1)
	}
	return used, all
}

// holdInTrial notes what the op at hand would add to the state.
func (c *Cell) holdInTrial(user string, more *StateUse) {
	t := c.now.trial
	if t == nil {
		return
	}
	t.op.user = user
	for i, n := range more {
		t.op.state[i] = max(n, 0)
	}
}
