package cell

import (
	"google.golang.org/protobuf/proto"

	"borg/proto/borgpb"
)

// Trial checks whether a cell would accept a list of ops, without applying them. It
// remembers what the earlier ops would create, so that later ops can refer to their jobs and
// alloc sets, and counts the charges of all together. It does not remember what an op would
// end or shrink, so it may refuse an op that Apply would accept. Discard it after a refusal.
//
// The zero value is ready to use.
type Trial struct {
	jobs map[JobKey]bool
	sets map[JobKey]*AllocSet
	// Charges of the earlier ops by user.
	charged map[string]charge
	// What the earlier ops would add to the state, by user and in all.
	state map[string]StateUse
	cell  StateUse

	// User of the op that is being checked, its charge, and what it would add to the state.
	op struct {
		user   string
		charge charge
		state  StateUse
	}
}

// Check returns the refusal with which the cell would answer op now, or nil if it would
// accept it. It only reads the cell.
func (t *Trial) Check(c *Cell, op *borgpb.Op) *borgpb.Refusal {
	data, err := proto.MarshalOptions{Deterministic: true}.Marshal(op)
	if err != nil {
		return malformed("not an Op")
	}
	// A shallow copy, so that setting its field now leaves the cell alone.
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

// keep remembers an op that would be accepted.
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

// liveSet returns the live alloc set of that name, or in a trial one that an earlier op would
// create; nil if there is none.
func (c *Cell) liveSet(key JobKey) *AllocSet {
	if s := c.sets[key]; s != nil && s.deathSeq == 0 {
		return s
	}
	if t := c.now.trial; t != nil {
		return t.sets[key]
	}
	return nil
}

// madeInTrial reports whether an earlier op of a trial would create the job.
func (c *Cell) madeInTrial(key JobKey) bool { return c.now.trial != nil && c.now.trial.jobs[key] }

// usedInTrial returns what a user is charged, including the earlier ops of a trial.
func (c *Cell) usedInTrial(user string) charge {
	used := c.quotas.used[user]
	if t := c.now.trial; t != nil {
		used = used.plus(t.charged[user])
	}
	return used
}

// chargeInTrial records what the op being checked would add to the charge of its user.
func (c *Cell) chargeInTrial(user string, was, wants charge) {
	if t := c.now.trial; t != nil {
		t.op.user, t.op.charge = user, wants.minus(was)
	}
}

// stateInTrial returns what a user and the cell hold of the state, including the earlier ops
// of a trial. Both are for reading only.
func (c *Cell) stateInTrial(user string) (used, all *StateUse) {
	used, all = c.stateUse.byUser[user], &c.stateUse.cell
	if used == nil {
		used = new(StateUse)
	}
	t := c.now.trial
	if t == nil {
		return used, all
	}
	ofUser, ofCell := t.state[user], t.cell
	ofUser.add(used, 1)
	ofCell.add(all, 1)
	return &ofUser, &ofCell
}

// holdInTrial records what the op being checked would add to the state.
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
