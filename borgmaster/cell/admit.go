package cell

import (
	"fmt"
	"slices"
	"strings"

	"borg/mutant"
	"borg/proto/borgpb"
)

// Admission by quota (paper §2.5). What counts is what is asked for, not what is
// placed or used: the limits of every task that is not dead, whichever spec of its job
// it may still run or is to run; of each dimension the most of these. So nothing that
// the cell does of its own accord raises what a user is charged: tasks that are placed,
// evicted, lost and come back, with whichever spec, are in it already. Only who
// submits, updates, resizes can raise it, and is refused there.
//
// An alloc set is charged for its allocs; tasks inside them are charged nothing, as
// their room was bought with the allocs. Of priority 0 everybody has as much as he likes.
// A copy in quarantine is charged as one task more: another one runs in its place. What
// copies that stop are charged is in stopcharge.go.

// chargeRun is what so many tasks with a need are charged.
func (s *Spec) chargeRun(need *Need, tasks uint64) charge {
	if s.Proto.AllocSet != "" || s.Proto.Priority == 0 {
		return nil
	}
	return chargeOf(BandOf(s.Proto.Priority), need.bought(), tasks)
}

// chargeAny is what so many tasks from index are charged that may run any of the specs.
func chargeAny(specs []*Spec, index uint32, tasks uint64) (sum charge) {
	if mutant.Planted(mutant.QuotaOfLatest) && len(specs) > 0 {
		specs = specs[len(specs)-1:]
	}
	for _, s := range specs {
		if one := s.chargeRun(s.Need(index), tasks); sum == nil {
			sum = one
		} else {
			sum = sum.most(one)
		}
	}
	return sum
}

// chargeWith is what a job would be charged with these specs and that number of tasks.
func (j *Job) chargeWith(specs []*Spec, tasks uint32) (sum charge) {
	cuts := make([]uint32, 0, 8)
	for _, s := range specs {
		for _, n := range s.needs {
			if n.First < tasks {
				cuts = append(cuts, n.First)
			}
		}
	}
	slices.Sort(cuts)
	cuts = slices.Compact(cuts)
	for i, first := range cuts {
		end := tasks
		if i+1 < len(cuts) {
			end = cuts[i+1]
		}
		sum = sum.plus(chargeAny(specs, first, j.aliveIn(first, end)))
	}
	return sum.plus(j.chargedKept)
}

// aliveIn counts the tasks from first up to end that are not dead, those that the job
// does not have yet among them.
func (j *Job) aliveIn(first, end uint32) uint64 {
	n := uint64(end - first)
	if j.dead == 0 {
		return n
	}
	for i := first; i < min(end, uint32(len(j.rows))); i++ {
		if j.rows[i].state == stateDead {
			n--
		}
	}
	return n
}

// chargeOfSet returns the charge of so many allocs of a set: for each the larger of its resources
// and its saver's. So when an alloc ends, its saver takes over its charge.
func chargeOfSet(s *borgpb.AllocSetSpec, allocs uint64) charge {
	if s.Priority == 0 {
		return nil
	}
	r := FromProto(s.Resources)
	r.DiskBytes += volumesCharged(s.Volumes)
	sum := chargeOf(BandOf(s.Priority), &r, allocs)
	if s.Saver == nil {
		return sum
	}
	r = FromProto(s.Saver.Task.GetResources())
	return sum.most(chargeOf(BandOf(s.Priority), &r, allocs))
}

func (s *AllocSet) charge() charge {
	return chargeOfSet(s.spec, uint64(s.counts[statePending]+s.counts[stateRunning]))
}

// countUse begins or ends to keep what everybody is charged.
func (c *Cell) countUse() {
	switch q := &c.quotas; {
	case q.policy.enforce && q.used == nil:
		q.used = make(map[string]charge)
		for j := range c.jobs.each() {
			c.recharge(j)
		}
		for _, s := range c.setList {
			c.chargeUser(s.key.User, nil, s.charge())
		}
		for user, u := range c.stopUse {
			c.chargeUser(user, nil, u.charge)
		}
		for user, sum := range c.volumes.charged {
			c.chargeUser(user, nil, sum)
		}
	case !q.policy.enforce && q.used != nil:
		q.used = nil
		for j := range c.jobs.each() {
			j.charged = nil
		}
	}
}

// recharge follows a change of a job's specs, or more tasks.
func (c *Cell) recharge(j *Job) {
	c.reviewStopsOfJob(j)
	c.chargeVolumesOf(j.key)
	if c.quotas.used == nil || j.gone {
		return
	}
	now := j.chargeWith(j.specs, j.charges())
	c.chargeUser(j.key.User, j.charged, now)
	j.charged = now
}

// discharge follows the death of a task; chargeAgain one that was dead and waits again.
func (c *Cell) discharge(t *Task) {
	c.chargeVolumes(t.ID())
	if c.quotas.used == nil {
		return
	}
	one := chargeAny(t.job.specs, t.index, 1)
	c.chargeUser(t.job.key.User, one, nil)
	t.job.charged = t.job.charged.minus(one)
}

func (c *Cell) chargeAgain(t *Task) {
	c.chargeVolumes(t.ID())
	if c.quotas.used == nil {
		return
	}
	one := chargeAny(t.job.specs, t.index, 1)
	c.chargeUser(t.job.key.User, nil, one)
	t.job.charged = t.job.charged.plus(one)
}

// chargeUser puts one charge in the place of another.
func (c *Cell) chargeUser(user string, was, now charge) {
	if c.quotas.used == nil || len(was) == 0 && len(now) == 0 {
		return
	}
	c.mayBeSeated(user)
	// Add before subtracting, because minus clamps at zero.
	if sum := c.quotas.used[user].plus(now).minus(was); len(sum) > 0 {
		c.quotas.used[user] = sum
	} else {
		delete(c.quotas.used, user)
	}
}

// ChargeOf is what a user is charged in a band.
func (c *Cell) ChargeOf(user string, band borgpb.Band) Resources {
	return c.chargeOfUser(user).in(band)
}

// ChargedUsers are all who are charged something, sorted; nobody while quotas are not
// enforced.
func (c *Cell) ChargedUsers() []string { return sortedKeys(c.quotas.used) }

func (c *Cell) chargeOfUser(user string) charge {
	if c.quotas.used != nil {
		return c.quotas.used[user]
	}
	sum := c.stopUseOf(user).charge.plus(c.volumes.charged[user])
	for j := range c.JobsAfter(JobKey{User: user}) {
		if j.key.User != user {
			break
		}
		sum = sum.plus(j.chargeWith(j.specs, j.charges()))
	}
	for s := range c.AllocSetsAfter(JobKey{User: user}) {
		if s.key.User != user {
			break
		}
		sum = sum.plus(s.charge())
	}
	return sum
}

// checkAdmission decides whether a new job is within what its user may have. What is
// adopted after a restore runs already: that is counted and not asked.
func (c *Cell) checkAdmission(key JobKey, spec *Spec) *borgpb.Refusal {
	if r := c.checkSpecBounds(key.User, spec); r != nil {
		return r
	}
	return c.checkJobQuota(key, nil, spec, spec.Proto.Tasks)
}

// checkJobQuota refuses a spec, or a number of tasks, with which a job would be charged
// more than its user has left. Nil as j: it is a new one.
func (c *Cell) checkJobQuota(key JobKey, j *Job, spec *Spec, tasks uint32) *borgpb.Refusal {
	if c.quotas.used == nil || j != nil && mutant.Planted(mutant.QuotaNotAsked) {
		return nil
	}
	specs, was := []*Spec{spec}, charge(nil)
	if j != nil {
		specs, was = c.specsWith(j, spec), j.charged
	}
	last := specs[len(specs)-1]
	switch last.Proto.Kind {
	case borgpb.JobKind_JOB_KIND_DAEMON:
		// Machines that join later raise what it is charged: see unseated.go.
		n := c.numMatching(last)
		if j == nil {
			n = max(n, 1)
		}
		return c.checkChargeOfJob(key, j, specs, uint32(n), was, chargeAny(specs, 0, n))
	case borgpb.JobKind_JOB_KIND_CRON:
		// Each run is asked for when its slot comes; one that could never be is not let in.
		if j != nil {
			was = c.chargeOfRuns(j)
		}
		return c.checkCharge(key, was, last.chargeAlone())
	}
	if j == nil {
		return c.checkChargeOfJob(key, nil, specs, tasks, nil, spec.chargeAlone())
	}
	return c.checkChargeOfJob(key, j, specs, tasks, was, j.chargeWith(specs, tasks))
}

// checkAfterExtra refuses specs and a number of tasks with which a job would hold at once what
// the extra tasks of its update were charged for: these end then, and still stop. What is charged
// for extra tasks that the update does not have yet is free again. It does not pay for new tasks
// all the same: tasks may stop that the update cut off, or that went before.
func (c *Cell) checkAfterExtra(j *Job, specs []*Spec, tasks uint32) *borgpb.Refusal {
	if c.quotas.used == nil || j.surging() == 0 {
		return nil
	}
	was, all := j.chargeWith(j.specs, j.Size()), j.chargeWith(j.specs, uint32(len(j.rows)))
	return c.checkChargeBeside(j.key, was, j.chargeWith(specs, tasks), all.minus(was), j.charged.minus(all))
}

// chargeAlone is what a new job with the spec is charged.
func (s *Spec) chargeAlone() charge { return (&Job{}).chargeWith([]*Spec{s}, s.Proto.Tasks) }

// specsWith are the specs that a job will have with another one, nil: none; the present
// one is the last. What nothing runs goes at once, but for the way back.
func (c *Cell) specsWith(j *Job, spec *Spec) []*Spec {
	if spec == nil {
		return j.specs
	}
	stable := uint64(0)
	if c.format >= FormatUpdates {
		stable, _ = j.lastHealthy()
	}
	specs := slices.DeleteFunc(slices.Clone(j.specs), func(s *Spec) bool { return s.uses == 0 && s.Version != stable })
	return append(specs, spec)
}

// chargeOfRuns is what the runs of a cron job that are under way are charged.
func (c *Cell) chargeOfRuns(j *Job) (sum charge) {
	for _, run := range c.liveRuns(j) {
		sum = sum.plus(run.charged)
	}
	return sum
}

// checkRunQuota is checkAdmission for a run of a cron job, which may take the place of
// those that are under way.
func (c *Cell) checkRunQuota(j *Job, key JobKey, spec *Spec) *borgpb.Refusal {
	if r := c.checkSpecBounds(key.User, spec); r != nil || c.quotas.used == nil {
		return r
	}
	// Runs whose place it takes stop then, and are charged until they have.
	var stops charge
	if j.Spec().Cron.Overlap == borgpb.CronOverlap_CRON_OVERLAP_REPLACE {
		stops = c.chargeOfRuns(j)
	}
	return c.checkChargeBeside(key, nil, spec.chargeAlone(), stops, nil)
}

// short is what a quota lacks for somebody.
type short struct {
	item
	limit, used, more amount
	// What of used is held by copies that stop, and what of that does not count here.
	stops, once amount
}

// checkCharge refuses what raises the charge of an object beyond what its user was
// granted. What was within it, or was admitted without, may always stay or shrink.
func (c *Cell) checkCharge(key JobKey, was, wants charge) *borgpb.Refusal {
	return c.checkChargeBeside(key, was, wants, nil, nil)
}

// checkChargeBeside is checkCharge for what has more stop, and gives up some that it is charged
// for and does not hold.
func (c *Cell) checkChargeBeside(key JobKey, was, wants, stopped, unused charge) *borgpb.Refusal {
	if c.quotas.used == nil {
		return nil
	}
	used, stops := c.usedInTrial(key.User).minus(unused), c.stopUseOf(key.User).charge
	var lacks []short
	for i := range wants {
		w := &wants[i]
		more := w.n.minus(was.of(w))
		if more.isZero() || len(lacks) > 0 && lacks[0].band != w.band {
			continue
		}
		q := c.QuotaOf(key.User, w.band)
		if q != nil && c.Expired(q) {
			return refuse(borgpb.RefusalKind_REFUSAL_KIND_QUOTA, key.String(), "",
				"the quota of user %s for %s has expired; nothing new is admitted by it, what runs goes on%s; or use priority 0, which needs none",
				key.User, BandName(w.band), c.grantAdvice(". Have an admin grant it anew", key.User, used.plus(wants.minus(was)), w.band))
		}
		var granted amount
		if q != nil {
			granted = chargeOf(w.band, &q.limit, 1).of(w)
		}
		// Of what stops so much is charged once that its successor takes.
		once := stops.of(w).plus(stopped.of(w))
		if once.compare(more) > 0 {
			once = more
		}
		if used.of(w).minus(once).plus(more).compare(granted) > 0 {
			lacks = append(lacks, short{*w, granted, used.of(w), more, stops.of(w), once})
		}
	}
	if len(lacks) == 0 {
		c.chargeInTrial(key.User, was, wants)
		return nil
	}
	return refuse(borgpb.RefusalKind_REFUSAL_KIND_QUOTA, key.String(), "", "%s", c.shortWords(key, lacks, used.plus(wants.minus(was))))
}

// shortWords says what lacks, of what, who has the rest, and what can be done. enough is all
// that the user asks for then.
func (c *Cell) shortWords(key JobKey, lacks []short, enough charge) string {
	band := lacks[0].band
	if c.QuotaOf(key.User, band) == nil {
		return fmt.Sprintf("user %s has no quota for %s%s; or use priority 0, which needs none",
			key.User, BandName(band), c.grantAdvice(". Have an admin grant it", key.User, enough, band))
	}
	var what []string
	for i := range lacks {
		l := &lacks[i]
		what = append(what, fmt.Sprintf("%s of %s is missing: %s granted, %s used, %s more asked for",
			l.text(l.used.minus(l.once).plus(l.more).minus(l.limit)), l.what(), l.text(l.limit), l.text(l.used), l.text(l.more)))
	}
	text := fmt.Sprintf("the quota of user %s for %s does not suffice: %s", key.User, BandName(band), strings.Join(what, "; "))
	if who := c.mostOf(key.User, &lacks[0].item); who != "" {
		text += ". Most is used by " + who
	}
	text += c.keptWords(key.User, &lacks[0].item)
	if l := &lacks[0]; !l.stops.isZero() {
		text += fmt.Sprintf(". Tasks that stop still hold %s%s; try again when they have ended", l.text(l.stops), c.describeStopping(key.User))
	}
	return text + ". Ask for less, end something, use priority 0" + c.grantAdvice(", or have an admin raise it", key.User, enough, band)
}

// mostOf names the jobs and alloc sets of a user that are charged most of something:
// three, of the first thousand of each.
func (c *Cell) mostOf(user string, of *item) string {
	const shown, looked = 3, 1000
	type share struct {
		key JobKey
		n   amount
	}
	var all []share
	n := 0
	for j := range c.JobsAfter(JobKey{User: user}) {
		if n++; j.key.User != user || n > looked {
			break
		}
		all = append(all, share{j.key, j.charged.of(of)})
	}
	n = 0
	for s := range c.AllocSetsAfter(JobKey{User: user}) {
		if n++; s.key.User != user || n > looked {
			break
		}
		all = append(all, share{s.key, s.charge().of(of)})
	}
	all = slices.DeleteFunc(all, func(u share) bool { return u.n.isZero() })
	slices.SortFunc(all, func(a, b share) int {
		if r := b.n.compare(a.n); r != 0 {
			return r
		}
		return a.key.Compare(b.key)
	})
	var words []string
	for i, u := range all {
		if i == shown {
			words = append(words, "...")
			break
		}
		words = append(words, fmt.Sprintf("%s (%s)", u.key, of.text(u.n)))
	}
	return strings.Join(words, ", ")
}

// checkQuotas derives everything anew.
func (c *Cell) checkQuotas() error {
	q := &c.quotas
	for i, one := range q.list {
		if one.gone || q.byKey[one.key()] != one || i > 0 && q.list[i-1].key() >= one.key() {
			return fmt.Errorf("the quota of %s for %s is out of order", one.user, BandName(one.band))
		}
	}
	var capacity charge
	for _, m := range c.machineList {
		capacity = capacity.plus(chargeOf(borgpb.Band_BAND_UNSPECIFIED, &m.room.capacity, 1))
	}
	if len(q.byKey) != len(q.list) || len(q.list) > maxQuotas || q.policy.enforce != (q.used != nil) || !slices.Equal(capacity, q.capacity) {
		return fmt.Errorf("%d quotas, of which %d are known; kept: %v; the machines have %s, counted as %s",
			len(q.list), len(q.byKey), q.used != nil, capacity.words(), q.capacity.words())
	}
	used := make(map[string]charge)
	if q.used != nil {
		for user, u := range c.stopUse {
			used[user] = u.charge
		}
		for v := range c.Volumes() {
			used[v.of.Job.User] = used[v.of.Job.User].plus(volumeCharge(v.band, v.charged))
		}
	}
	for j := range c.jobs.each() {
		var want charge
		if q.used != nil {
			want = j.chargeWith(j.specs, j.charges())
		}
		if !slices.Equal(want, j.charged) {
			return fmt.Errorf("job %v is charged %s, kept as %s", j.key, want.words(), j.charged.words())
		}
		used[j.key.User] = used[j.key.User].plus(want)
	}
	for _, s := range c.setList {
		if q.used != nil {
			used[s.key.User] = used[s.key.User].plus(s.charge())
		}
	}
	for user, want := range used {
		if !slices.Equal(want, q.used[user]) {
			return fmt.Errorf("user %s is charged %s, kept as %s", user, want.words(), q.used[user].words())
		}
	}
	for user := range q.used {
		if len(used[user]) == 0 {
			return fmt.Errorf("user %s is charged nothing, kept as %s", user, q.used[user].words())
		}
	}
	return c.taskBounds.check()
}
