package sim

import (
	"maps"

	"google.golang.org/protobuf/proto"

	"borg/borgmaster"
	"borg/borgmaster/cell"
	"borg/proto/borgpb"
)

// S29: while quotas are enforced, nothing is let in that raises what a job asks for and
// has its user pass what he was granted of the band; no new job is refused for want of
// quota that fits in; and no more of a band is granted than may be sold. What was
// granted, and what was asked for, is followed here from the ops alone.
//
// The cell charges a job the most of all specs that its tasks may still run. Here are two
// simpler sums that it must lie between: the most of what tasks run and what is asked for
// now, and the most of all that was ever asked for.

type bandOf struct {
	user string
	band borgpb.Band
}

// amounts are by the name of the resource.
type amounts map[string]int64

func (a amounts) add(o amounts, times int64) {
	for name, n := range o {
		a[name] += n * times
	}
}

func (a amounts) most(o amounts) {
	for name, n := range o {
		a[name] = max(a[name], n)
	}
}

func amountsOf(r *borgpb.Resources) amounts {
	a := amounts{"cpu": r.GetCpuMilli(), "mem": r.GetMemBytes(), "disk": r.GetDiskBytes(), "disk rate": r.GetDiskBytesPerS()}
	for name, n := range r.GetDevices() {
		a["device "+name] += 1000 * n
	}
	for name, n := range r.GetDeviceMilli() {
		a["device "+name] += n
	}
	return a
}

type grantOf struct {
	amounts
	// Zero: never.
	expiresWallNs int64
}

func (g grantOf) at(wallNs int64) amounts {
	if g.expiresWallNs != 0 && wallNs >= g.expiresWallNs {
		return nil
	}
	return g.amounts
}

type quotaModel struct {
	epoch    uint64
	enforced bool
	grants   map[bandOf]grantOf
	// In thousandths of the cell; absent: as it is when nobody said.
	oversell map[borgpb.Band]int64
	// All specs of each job since it was submitted. Jobs of a cell that was restored
	// are not here: what they were is not known.
	asked map[cell.JobKey][]*borgpb.JobSpec
	// After the last entry: what each job may be charged at most, what the machines
	// have, and the time of the cell.
	most     map[cell.JobKey]amounts
	capacity amounts
	wallNs   int64
}

// quotaBands are those that clients' jobs are of.
var quotaBands = []borgpb.Band{
	borgpb.Band_BAND_FREE, borgpb.Band_BAND_BATCH, borgpb.Band_BAND_PRODUCTION, borgpb.Band_BAND_PRODUCTION, borgpb.Band_BAND_MONITORING,
}

// quotaOp has the admin grant, take back, enforce and not now and then; op comes back as
// it is otherwise.
func (c *client) quotaOp(op *borgpb.Op) *borgpb.Op {
	if !c.w.swarm.quotas || c.i == operatorClient || c.user() != adminUser || c.w.truth.cell.Format() < cell.FormatQuotas {
		return op
	}
	r := c.rand
	user, band := userOf(r.IntN(3)), quotaBands[r.IntN(len(quotaBands))]
	switch n := r.IntN(100); {
	case n < 3 || n < 12 && !c.w.truth.cell.QuotasEnforced():
		o := &borgpb.SetQuotaPolicy{Enforce: new(n != 0)}
		if r.IntN(3) == 0 {
			o.Oversell = []*borgpb.Oversell{{Band: quotaBands[r.IntN(4)], Milli: []uint32{0, 300, 1000, 2000}[r.IntN(4)]}}
		}
		return &borgpb.Op{Op: &borgpb.Op_SetQuotaPolicy{SetQuotaPolicy: o}}
	case n < 30:
		o := &borgpb.SetQuota{User: user, Band: band, Limit: &borgpb.Resources{
			CpuMilli: int64(1+r.IntN(10)) * 1000, MemBytes: 2 << 30, DiskBytes: 1 << 30, Devices: map[string]int64{deviceName: 2},
		}}
		if r.IntN(4) == 0 {
			o.ExpiresWallNs = max(c.w.wallNs(), c.w.truth.cell.WallNs()) + between(r, second, 4*second)
		}
		return &borgpb.Op{Op: &borgpb.Op_SetQuota{SetQuota: o}}
	case n < 32:
		return &borgpb.Op{Op: &borgpb.Op_DeleteQuota{DeleteQuota: &borgpb.DeleteQuota{User: user, Band: band}}}
	}
	return op
}

// askedIn is what one task of a job is charged with a spec, and in which band; nil where
// no quota is needed.
func askedIn(spec *borgpb.JobSpec) (borgpb.Band, amounts) {
	if spec.AllocSet != "" || spec.Priority == 0 {
		return 0, nil
	}
	return cell.BandOf(spec.Priority), amountsOf(spec.Task.GetResources())
}

// leastOf is what a job is charged at least, by band: of each task that is not dead the
// most of what it runs and of what is asked for now.
func (t *truth) leastOf(j *cell.Job) map[borgpb.Band]amounts {
	sum := map[borgpb.Band]amounts{}
	for _, task := range j.Tasks() {
		if task.State() == borgpb.State_STATE_DEAD {
			continue
		}
		one := map[borgpb.Band]amounts{}
		also := func(spec *borgpb.JobSpec) {
			if band, a := askedIn(spec); a != nil {
				if one[band] == nil {
					one[band] = amounts{}
				}
				one[band].most(a)
			}
		}
		also(j.Spec())
		if p := task.Current(); p != nil {
			if s := j.SpecAt(p.Version()); s != nil {
				also(s.Proto)
			}
		}
		for band, a := range one {
			if sum[band] == nil {
				sum[band] = amounts{}
			}
			sum[band].add(a, 1)
		}
	}
	return sum
}

// mostOf is what a job is charged at most, in all bands together; known tells that all
// its specs are.
func (m *quotaModel) mostOf(j *cell.Job) (a amounts, known bool) {
	specs, known := m.asked[j.Key()]
	one := amounts{}
	for _, spec := range specs {
		_, a := askedIn(spec)
		one.most(a)
	}
	pending, running, _ := j.Counts()
	a = amounts{}
	a.add(one, int64(pending)+int64(running)+int64(j.Update().Surge()))
	return a, known
}

// chargedLeast and chargedMost are what all jobs and alloc sets of a user are charged.
func (t *truth) chargedLeast(of bandOf) amounts {
	sum := amounts{}
	for j := range t.cell.Jobs() {
		if j.Key().User == of.user {
			sum.add(t.leastOf(j)[of.band], 1)
		}
	}
	t.addSets(of, sum)
	return sum
}

func (t *truth) chargedMost(user string) (sum amounts, known bool) {
	sum = amounts{}
	for j := range t.cell.Jobs() {
		if j.Key().User != user {
			continue
		}
		a, known := t.quota.mostOf(j)
		if !known {
			return nil, false
		}
		sum.add(a, 1)
	}
	for _, band := range cell.Bands {
		t.addSets(bandOf{user, band}, sum)
	}
	for m := range t.cell.Machines() {
		for p := range m.Copies() {
			if p.State() == borgpb.AttemptState_ATTEMPT_STATE_STOPPING && p.Key().User == user {
				held := p.Resources()
				sum.add(amountsOf(held.Proto()), 1)
			}
		}
	}
	return sum, true
}

func (t *truth) addSets(of bandOf, sum amounts) {
	for s := range t.cell.AllocSets() {
		if s.Key().User != of.user || cell.BandOf(s.Priority()) != of.band {
			continue
		}
		for a := range s.Allocs() {
			if a.State() != borgpb.State_STATE_DEAD {
				sum.add(amountsOf(s.Spec().Resources), 1)
			}
		}
	}
}

// sold is the band whose sales a band counts to.
func sold(b borgpb.Band) borgpb.Band {
	if b == borgpb.Band_BAND_MONITORING {
		return borgpb.Band_BAND_PRODUCTION
	}
	return b
}

func (m *quotaModel) mayBeSold(band borgpb.Band) int64 {
	switch n := m.oversell[sold(band)]; {
	case n != 0:
		return n
	case sold(band) == borgpb.Band_BAND_PRODUCTION:
		return 1000
	}
	return 3000
}

// quotaEntry is what one entry asked for.
type quotaEntry struct {
	// What was granted at most and at least while it was applied.
	most, least map[bandOf]grantOf
	// Jobs that were let in or changed, and new ones that were refused for want of quota.
	admitted []cell.JobKey
	refused  []*borgpb.SubmitJob
	// How many ops of each user there were, and who has jobs that were adopted.
	ops     map[string]int
	adopted map[string]bool
	// The rules changed.
	ruled bool
	// A machine may have come to match daemon jobs, and given them a task, which nobody asked for.
	matched bool
}

// quotas follows one entry and holds the cell against it.
func (t *truth) quotas(e borgmaster.CommittedEntry, results []*borgpb.Result) {
	if !t.w.swarm.quotas {
		return
	}
	m := &t.quota
	if m.epoch != t.cell.Epoch() {
		t.startQuotas()
		return
	}
	entry := new(borgpb.Entry)
	if proto.Unmarshal(e.Data, entry) != nil {
		return
	}
	q := quotaEntry{most: maps.Clone(m.grants), least: maps.Clone(m.grants), ops: map[string]int{}, adopted: map[string]bool{}}
	has := t.capacity()
	// The wall clock of another master may be behind, and what had expired has not then.
	m.wallNs = min(m.wallNs, t.cell.WallNs())
	for i, data := range entry.Ops {
		op := new(borgpb.Op)
		if proto.Unmarshal(data, op) == nil && !results[i].GetRepeated() {
			t.quotaBy(op, results[i].GetRefusal(), has, &q)
		}
	}
	t.quotaHolds(&q)
	m.capacity, m.wallNs = has, t.cell.WallNs()
	// Also when nobody asked for anything: a machine that came to match gives a daemon job a task.
	m.most = map[cell.JobKey]amounts{}
	for j := range t.cell.Jobs() {
		if a, known := m.mostOf(j); known {
			m.most[j.Key()] = a
		}
	}
}

// startQuotas begins with the cell as it is: it is new, or another one since it was
// restored.
func (t *truth) startQuotas() {
	t.quota = quotaModel{
		epoch: t.cell.Epoch(), enforced: t.cell.QuotasEnforced(), grants: map[bandOf]grantOf{},
		oversell: map[borgpb.Band]int64{}, asked: map[cell.JobKey][]*borgpb.JobSpec{}, capacity: t.capacity(), wallNs: t.cell.WallNs(),
	}
	for q := range t.cell.Quotas() {
		limit := q.Limit()
		t.quota.grants[bandOf{q.User(), q.Band()}] = grantOf{amountsOf(limit.Proto()), q.ExpiresWallNs()}
	}
	for _, band := range cell.Bands {
		t.quota.oversell[band] = int64(t.cell.Oversell(band))
	}
}

func (t *truth) capacity() amounts {
	sum := amounts{}
	for m := range t.cell.Machines() {
		has := m.Capacity()
		sum.add(amountsOf(has.Proto()), 1)
	}
	return sum
}

// quotaBy follows one op.
func (t *truth) quotaBy(op *borgpb.Op, refused *borgpb.Refusal, has amounts, q *quotaEntry) {
	m := &t.quota
	short := refused.GetKind() == borgpb.RefusalKind_REFUSAL_KIND_QUOTA
	if short {
		t.w.mark("refused for want of quota")
	}
	spec := func(data []byte) *borgpb.JobSpec {
		s := new(borgpb.JobSpec)
		if proto.Unmarshal(data, s) != nil {
			t.w.fail("S29: a spec that was let in at index %d cannot be read", t.index)
		}
		return s
	}
	granted := func(of bandOf, g grantOf) {
		m.grants[of] = g
		if most := q.most[of].at(m.wallNs); most != nil {
			more := maps.Clone(most)
			more.most(g.amounts)
			q.most[of] = grantOf{amounts: more}
		} else {
			q.most[of] = g
		}
		less := amounts{}
		for name, n := range q.least[of].at(m.wallNs) {
			less[name] = min(n, g.amounts[name])
		}
		q.least[of] = grantOf{less, g.expiresWallNs}
	}
	switch o := op.Op.(type) {
	case *borgpb.Op_SubmitJob:
		q.ops[o.SubmitJob.User]++
		switch {
		case refused == nil:
			key := cell.JobKey{User: o.SubmitJob.User, Name: o.SubmitJob.Name}
			m.asked[key] = []*borgpb.JobSpec{spec(o.SubmitJob.Spec)}
			delete(m.most, key)
			q.admitted = append(q.admitted, key)
		case short:
			q.refused = append(q.refused, o.SubmitJob)
		}
	case *borgpb.Op_UpdateJob:
		q.ops[o.UpdateJob.User]++
		key := cell.JobKey{User: o.UpdateJob.User, Name: o.UpdateJob.Name}
		if _, known := m.asked[key]; known && refused == nil {
			m.asked[key] = append(m.asked[key], spec(o.UpdateJob.Spec))
			q.admitted = append(q.admitted, key)
		}
	case *borgpb.Op_ResizeJob:
		q.ops[o.ResizeJob.User]++
		if key := (cell.JobKey{User: o.ResizeJob.User, Name: o.ResizeJob.Name}); refused == nil && m.asked[key] != nil {
			q.admitted = append(q.admitted, key)
		}
	case *borgpb.Op_KillJob:
		q.ops[o.KillJob.User]++
	case *borgpb.Op_SubmitAllocSet:
		q.ops[o.SubmitAllocSet.User]++
	case *borgpb.Op_KillAllocSet:
		q.ops[o.KillAllocSet.User]++
	case *borgpb.Op_ControlUpdate:
		q.ops[o.ControlUpdate.User]++
	case *borgpb.Op_AdoptJob:
		q.ops[o.AdoptJob.User]++
		q.adopted[o.AdoptJob.User] = true
		delete(m.asked, cell.JobKey{User: o.AdoptJob.User, Name: o.AdoptJob.Name})
	case *borgpb.Op_AddMachine, *borgpb.Op_SetMachine:
		q.matched = true
	case *borgpb.Op_SetQuotaPolicy:
		if refused == nil {
			q.ruled = true
			if o.SetQuotaPolicy.Enforce != nil {
				m.enforced = *o.SetQuotaPolicy.Enforce
				t.w.mark("quotas enforced or not")
			}
			for _, s := range o.SetQuotaPolicy.Oversell {
				m.oversell[s.Band] = int64(s.Milli)
			}
		}
	case *borgpb.Op_SetQuota:
		if refused != nil {
			return
		}
		of, g := bandOf{o.SetQuota.User, o.SetQuota.Band}, grantOf{amountsOf(o.SetQuota.Limit), o.SetQuota.ExpiresWallNs}
		t.saleHolds(of, g, has)
		granted(of, g)
		t.w.mark("quota granted")
	case *borgpb.Op_DeleteQuota:
		if refused == nil {
			granted(bandOf{o.DeleteQuota.User, o.DeleteQuota.Band}, grantOf{})
		}
	}
}

// saleHolds judges a grant: with the others of its band it is not beyond what may be
// sold, or it is no more than the one before.
func (t *truth) saleHolds(of bandOf, g grantOf, has amounts) {
	m := &t.quota
	others := amounts{}
	for other, g := range m.grants {
		if other != of && sold(other.band) == sold(of.band) {
			others.add(g.at(t.cell.WallNs()), 1)
		}
	}
	for name, n := range g.amounts {
		most := max(has[name], m.capacity[name]) / 1000 * m.mayBeSold(of.band)
		// Thousandths are cut off here, and not there.
		most += m.mayBeSold(of.band)
		if n > m.grants[of].at(m.wallNs)[name] && others[name]+n > most {
			t.w.fail("S29: %d of %s is granted to %s at index %d, others of %v have %d, and %d may be sold",
				n, name, of.user, t.index, sold(of.band), others[name], most)
		}
	}
}

// quotaHolds judges what an entry let in and refused.
func (t *truth) quotaHolds(q *quotaEntry) {
	m := &t.quota
	if !m.enforced || q.ruled {
		return
	}
	for _, key := range q.admitted {
		if j := t.cell.Job(key); j != nil && !q.adopted[key.User] && !(q.matched && j.Kind() == borgpb.JobKind_JOB_KIND_DAEMON) {
			t.letIn(j, q)
		}
	}
	for _, o := range q.refused {
		spec := new(borgpb.JobSpec)
		if proto.Unmarshal(o.Spec, spec) != nil || q.ops[o.User] > 1 {
			continue
		}
		band, one := askedIn(spec)
		used, known := t.chargedMost(o.User)
		if !known {
			continue
		}
		grant := q.least[bandOf{o.User, band}].at(t.cell.WallNs())
		fits := grant != nil || one == nil
		for name, n := range one {
			fits = fits && (n == 0 || used[name]+n*int64(spec.Tasks) <= grant[name])
		}
		if fits {
			t.w.fail("S29: job %s/%s is refused for want of quota at index %d: it asks for %d times %v, at most %v is charged, and %v granted",
				o.User, o.Name, t.index, spec.Tasks, one, used, grant)
		}
	}
}

// letIn judges a job that was submitted or changed: where that surely raised what it is
// charged, its user is within what he was granted.
func (t *truth) letIn(j *cell.Job, q *quotaEntry) {
	before := t.quota.most[j.Key()]
	for band, now := range t.leastOf(j) {
		of := bandOf{j.Key().User, band}
		var used amounts
		for name, n := range now {
			if n <= before[name] {
				continue
			}
			if used == nil {
				used = t.chargedLeast(of)
			}
			t.w.mark("let in by quota")
			if grant := q.most[of].at(t.quota.wallNs)[name]; used[name] > grant {
				t.w.fail("S29: job %s is let in at index %d, and with it %s is charged %d of %s in %v; granted: %d",
					j.Key(), t.index, of.user, used[name], name, band, grant)
			}
		}
	}
}
