package cell

import (
	"fmt"
	"maps"
	"slices"

	"borg/proto/borgpb"
)

// Check verifies every invariant: all that is derived is derived anew and
// compared.
func (c *Cell) Check() error {
	live := 0
	var before *Job
	for j := range c.jobs.each() {
		if before != nil && before.key.Compare(j.key) >= 0 {
			return fmt.Errorf("job %v is out of order", j.key)
		}
		before = j
		if err := c.checkJob(j); err != nil {
			return fmt.Errorf("job %v (%v): %w", j.key, j.uid, err)
		}
		live += int(j.pending + j.running)
	}
	for _, s := range c.setList {
		if err := c.checkSet(s); err != nil {
			return fmt.Errorf("alloc set %v (%v): %w", s.key, s.uid, err)
		}
	}
	drains := 0
	for _, m := range c.machineList {
		if err := c.checkMachineState(m); err != nil {
			return fmt.Errorf("machine %s: %w", m.name, err)
		}
		if m.drain != nil {
			drains++
		}
		if m.drain != nil && (!m.draining || c.format < FormatBudgets) {
			return fmt.Errorf("machine %s has a drain and does not drain", m.name)
		}
	}
	if err := c.checkHolders(); err != nil {
		return err
	}
	if drains != c.drains {
		return fmt.Errorf("%d machines drain, %d are counted", drains, c.drains)
	}
	if live != c.counts.liveTasks() || !c.jobs.wellFormed() || len(c.jobsByUID) != c.jobs.len() ||
		len(c.sets) != len(c.setList) || len(c.setsByU) != len(c.setList) || len(c.machines) != len(c.machineList) {
		return fmt.Errorf("cell: %d live tasks are counted as %d, or an index is incomplete", live, c.counts.liveTasks())
	}
	if err := c.checkCounts(); err != nil {
		return err
	}
	if err := c.users.check(); err != nil {
		return err
	}
	if err := c.tokens.check(); err != nil {
		return err
	}
	if err := c.secrets.check(); err != nil {
		return err
	}
	if err := c.files.check(); err != nil {
		return err
	}
	if err := c.bans.check(); err != nil {
		return err
	}
	if err := c.checkQuotas(); err != nil {
		return err
	}
	if err := c.checkWaits(); err != nil {
		return err
	}
	if err := c.checkStopCharges(); err != nil {
		return err
	}
	if err := c.checkStateUse(); err != nil {
		return err
	}
	if err := c.checkQuarantined(); err != nil {
		return err
	}
	if err := c.checkSavers(); err != nil {
		return err
	}
	if err := c.checkVolumes(); err != nil {
		return err
	}
	if err := c.labelPolicy.check(c.format); err != nil {
		return err
	}
	if err := c.preemption.check(c.format); err != nil {
		return err
	}
	if err := c.visibility.check(c.format); err != nil {
		return err
	}
	return c.checkCollections()
}

// checkCollections checks requests, graves and references between jobs.
func (c *Cell) checkCollections() error {
	if err := c.requests.check(); err != nil {
		return err
	}
	if err := c.checkGraves(); err != nil {
		return err
	}
	objects, tasks := 0, 0
	for _, g := range c.graveyard.queue {
		switch {
		case !c.liesIn(g):
		case g.isSet:
			objects, tasks = objects+1, tasks+len(c.setsByU[g.uid].allocs)
		default:
			objects, tasks = objects+1, tasks+len(c.jobsByUID[g.uid].rows)
		}
	}
	dead := 0
	want := newJobRefs()
	for j := range c.jobs.each() {
		if j.deathSeq != 0 {
			dead++
		} else {
			want.add(j)
		}
	}
	for _, s := range c.setList {
		if s.deathSeq != 0 {
			dead++
		}
	}
	if objects != c.graveyard.objects || tasks != c.graveyard.tasks || objects != dead {
		return fmt.Errorf("graveyard: %d dead, %d counted, %d in the queue; %d tasks counted as %d",
			dead, c.graveyard.objects, objects, tasks, c.graveyard.tasks)
	}
	if !maps.EqualFunc(want.followers, c.jobRefs.followers, slices.Equal) || !maps.EqualFunc(want.children, c.jobRefs.children, slices.Equal) {
		return fmt.Errorf("jobRefs: the parents or start_after of live jobs are not those that are known")
	}
	if !maps.EqualFunc(want.inSet, c.jobRefs.inSet, slices.Equal) || !maps.EqualFunc(want.secrets, c.jobRefs.secrets, slices.Equal) {
		return fmt.Errorf("jobRefs: the alloc sets or secrets of live jobs are not those that are known")
	}
	return c.endings.check()
}

func (c *Cell) checkJob(j *Job) error {
	if c.Job(j.key) != j || c.jobsByUID[j.uid] != j || c.sets[j.key] != nil || j.gone || j.touched {
		return fmt.Errorf("not indexed as it should be")
	}
	if err := c.checkGiven(j); err != nil {
		return err
	}
	if name := c.diesOf(j); name != "" {
		return fmt.Errorf("it should have ended with %s", name)
	}
	var n Job
	n.domains = newOccupancy(j.latest().limits)
	uses := make(map[*Spec]uint32)
	down := uint32(0)
	for i, t := range j.rows {
		if t.job != j || t.index != uint32(i) {
			return fmt.Errorf("row %d is not its own", i)
		}
		n.count(t.state, 1)
		if err := c.checkTaskRow(j, t, &n, uses); err != nil {
			return fmt.Errorf("task %d: %w", i, err)
		}
		if t.flags&taskUpdating != 0 {
			down++
		}
		if (t.state == statePending) != j.waiting.has(t.index) {
			return fmt.Errorf("task %d is %v and the set of waiting ones differs", i, t.state)
		}
	}
	if n.pending != j.pending || n.running != j.running || n.dead != j.dead || n.finished != j.finished ||
		n.started != j.started || n.backoff != j.backoff || n.stopping != j.stopping || !n.domains.equal(j.domains) {
		return fmt.Errorf("counts pending %d running %d dead %d finished %d started %d backoff %d stopping %d, kept %d %d %d %d %d %d %d; domains %v, kept %v",
			n.pending, n.running, n.dead, n.finished, n.started, n.backoff, n.stopping,
			j.pending, j.running, j.dead, j.finished, j.started, j.backoff, j.stopping, n.domains, j.domains)
	}
	if st := j.state(); j.settled != st || (st == stateDead) != (j.deathSeq != 0) || len(j.rows) == 0 && !stands(j.Kind()) {
		return fmt.Errorf("it is %v, was settled as %v, death %d", st, j.settled, j.deathSeq)
	}
	if err := c.checkStanding(j); err != nil {
		return err
	}
	return c.checkSpecs(j, uses, down)
}

// checkSpecs checks spec versions and the update.
func (c *Cell) checkSpecs(j *Job, uses map[*Spec]uint32, down uint32) error {
	for i, s := range j.specs {
		last := i == len(j.specs)-1
		if s.gone || s.job != j || s.uses != uses[s] || (s.uses == 0 && !last && (j.update == nil || j.update.stable != s.Version)) || s.Version > j.version ||
			(i > 0 && j.specs[i-1].Version >= s.Version) {
			return fmt.Errorf("spec %d: %d users, counted %d", s.Version, uses[s], s.uses)
		}
	}
	u := j.update
	if u == nil {
		if down != 0 {
			return fmt.Errorf("there is no update and %d tasks are down for one", down)
		}
		return nil
	}
	if err := c.checkRollout(j, u); err != nil {
		return fmt.Errorf("update %v: %w", u.uid, err)
	}
	if u.job != j || (u.Rolling() && (u.down != down || u.toVersion != j.latest().Version || j.deathSeq != 0)) {
		return fmt.Errorf("update %v: %d tasks are down for it, counted %d", u.uid, down, u.down)
	}
	if !u.Rolling() && down != 0 {
		return fmt.Errorf("update %v has ended and %d tasks are down for it", u.uid, down)
	}
	return nil
}

// checkRollout checks what format 7 added to updates.
func (c *Cell) checkRollout(j *Job, u *Update) error {
	if c.format < FormatUpdates && u.rollout != (rollout{}) {
		return fmt.Errorf("it is of a later format: %+v", u.rollout)
	}
	if u.stable != 0 && (j.specAt(u.stable) == nil || u.stable >= u.toVersion) || u.rollback && u.stable != 0 {
		return fmt.Errorf("it leads back to version %d, which is not kept", u.stable)
	}
	if u.closeNs != 0 && (u.Rolling() || u.stable == 0) || u.canaryNs != 0 && u.state != borgpb.UpdateState_UPDATE_STATE_CANARY {
		return fmt.Errorf("it is %s, closes at %d and has had healthy canaries since %d", u.stateWords(), u.closeNs, u.canaryNs)
	}
	if err := c.checkPace(u); err != nil {
		return err
	}
	if n := u.restarted + u.rescheduled; u.maxDisruptions > 0 && n > u.maxDisruptions {
		return fmt.Errorf("it disturbed %d times, and may %d times", n, u.maxDisruptions)
	}
	if due := c.dueOf(u); due < maxTimeNs && (j.updateDueNs == 0 || j.updateDueNs > due) {
		return fmt.Errorf("something of it is due at %d, and it is looked at at %d", due, j.updateDueNs)
	}
	if j.updateDueNs != 0 && !c.updateDues.has(j.updateDueNs, j.uid) {
		return fmt.Errorf("it is to be looked at at %d, and no entry of the heap says so", j.updateDueNs)
	}
	for _, t := range j.rows {
		if ns := t.cur.upNs(); ns != 0 && (t.cur.state != attemptRunning || t.flags&taskUpdating == 0 || !u.Rolling() || t.cur.version != u.toVersion ||
			ns+u.policy.watchNs > c.clock.cellNs && !slices.Contains(u.watched, watched{t.index, ns})) {
			return fmt.Errorf("task %d is watched since %d, and should not be", t.index, ns)
		}
		if t.cur.wellNs() > c.clock.cellNs {
			return fmt.Errorf("task %d was well at %d, and it is %d", t.index, t.cur.wellNs(), c.clock.cellNs)
		}
	}
	if want := u.canaries(); !slices.Equal(want, u.chosen) {
		return fmt.Errorf("its canaries are %v, kept %v", want, u.chosen)
	}
	return nil
}

// checkTaskRow checks a row and its copies, and counts them into n.
func (c *Cell) checkTaskRow(j *Job, t *Task, n *Job, uses map[*Spec]uint32) error {
	if (t.state == stateRunning) != (t.cur != nil) {
		return fmt.Errorf("it is %v and its current copy is %v", t.state, t.cur)
	}
	if t.flags&taskFinished != 0 {
		n.finished++
		if t.state != stateDead {
			return fmt.Errorf("finished and %v", t.state)
		}
	}
	if t.attempt == 0 && (t.failures != 0 || t.flags&^taskUpdating != 0 || t.flags != 0 && !j.update.isExtra(t.index) || t.past != nil || t.changedWallNs != 0 || t.reason != "" ||
		j.daemon == nil && (t.state == stateDead) != (j.deathSeq != 0)) {
		return fmt.Errorf("never placed, and there is something to write down of it")
	}
	if p := t.cur; p != nil {
		if err := c.checkAllocIndex(p); err != nil {
			return err
		}
		if p.job != j || p.index != t.index || p.attempt != t.attempt || !p.state.current() || p.spec == nil ||
			p.stop != nil || p.next != nil || p.orphan || p.machine.find(p.ID()) != p || p.machine.down {
			return fmt.Errorf("current copy %v (%d) is not as it should be", p.ID(), p.state)
		}
		switch p.state {
		case attemptRunning:
			n.started++
		case attemptBackoff:
			n.backoff++
		}
		n.domains.add(p.machine, 1)
		uses[p.spec]++
	}
	last, ended := t.attempt+1, 0
	for p := t.past; p != nil; p = p.next {
		if p.attempt >= last || p.job != j || p.index != t.index || p.orphan || p.state.current() {
			return fmt.Errorf("past copy %v (%d) is not as it should be", p.ID(), p.state)
		}
		last = p.attempt
		switch {
		case p.state == attemptStopping:
			n.stopping++
		case !p.state.live():
			ended++
		}
		if p.spec != nil {
			uses[p.spec]++
		}
		if p.state == attemptUnreachable && p.stop == nil && (p != t.past || p.attempt != t.attempt || t.state != statePending) {
			return fmt.Errorf("copy %v is unreachable without an order to stop, and its task does not wait for it", p.ID())
		}
	}
	if ended > maxEndedCopiesOfTask {
		return fmt.Errorf("%d ended copies are remembered", ended)
	}
	if err := c.checkRetry(t); err != nil {
		return err
	}
	return c.checkCrashes(t)
}

func (c *Cell) checkSet(s *AllocSet) error {
	if err := c.checkSetChanges(s); err != nil {
		return err
	}
	if c.sets[s.key] != s || c.setsByU[s.uid] != s || s.gone || (s.stateOf() == stateDead) != (s.deathSeq != 0) {
		return fmt.Errorf("not indexed as it should be")
	}
	var counts [numStates]uint32
	domains := newOccupancy(s.limits)
	for i, a := range s.allocs {
		counts[a.state]++
		if a.set != s || a.index != uint32(i) || (a.state == stateRunning) != (a.machine != nil) ||
			(a.lostOn != nil && (a.state != statePending || !a.lostOn.down)) ||
			(a.attempt == 0 && (a.changedWallNs != 0 || a.reason != "")) {
			return fmt.Errorf("alloc %d is %v on %v, lost on %v", i, a.state, a.machine, a.lostOn)
		}
		if a.machine != nil {
			domains.add(a.machine, 1)
		}
		if len(a.devices) > 0 && a.machine == nil && a.lostOn == nil || !slices.Equal(a.devices, a.room.parts) {
			return fmt.Errorf("alloc %d is nowhere and has %v", i, a.devices)
		}
		if len(a.copies) > 0 && a.machine == nil && a.lostOn == nil {
			return fmt.Errorf("alloc %d is nowhere and holds %d copies", i, len(a.copies))
		}
		if err := checkRoom(&a.room, a.copies, nil, nil); err != nil {
			return fmt.Errorf("alloc %d: %w", i, err)
		}
	}
	if counts != s.counts || !domains.equal(s.domains) {
		return fmt.Errorf("counts %v, kept %v; domains %v, kept %v", counts, s.counts, domains, s.domains)
	}
	return nil
}

func (c *Cell) checkMachineState(m *Machine) error {
	if c.machines[m.name] != m || m.gone {
		return fmt.Errorf("not indexed as it should be")
	}
	var own []*Copy
	var ports []uint16
	for i, p := range m.copies {
		if p.machine != m || !p.state.live() || (i > 0 && m.copies[i-1].ID().Compare(p.ID()) >= 0) {
			return fmt.Errorf("copy %v (%d) should not be here", p.ID(), p.state)
		}
		if (p.state == attemptUnreachable && !m.down) || (p.state == attemptStopping && p.stop == nil) ||
			(p.spec == nil) != (p.stop != nil || p.state == attemptQuarantined) {
			return fmt.Errorf("copy %v (%d) has no right to be so", p.ID(), p.state)
		}
		if t := p.row(); t == nil != p.orphan || (p.orphan && p.stop == nil) {
			return fmt.Errorf("copy %v: row %v, orphan %v", p.ID(), t, p.orphan)
		} else if t != nil && t.cur != p && !slices.Contains(slices.Collect(t.Past()), p) {
			return fmt.Errorf("copy %v is not in its row", p.ID())
		}
		if p.alloc == nil {
			own = append(own, p)
		} else if !slices.Contains(p.alloc.copies, p) || (p.alloc.machine != m && p.alloc.lostOn != m) {
			return fmt.Errorf("copy %v is not in its alloc", p.ID())
		}
		if p.state.current() && p.job.saving == nil {
			if at, t := m.leavesNs(p.spec.Need(p.index).Task.Tolerations); t != nil && (at <= c.clock.cellNs || at < c.leaveDueNs) {
				return fmt.Errorf("copy %v should have left at %d, it is %d: taint %s", p.ID(), at, c.clock.cellNs, t.Words())
			}
		}
		if err := c.checkStays(p); err != nil {
			return err
		}
		if c.format >= formatDevices && !sameDevices(p.res, sumDevices(p.Devices())) {
			return fmt.Errorf("copy %v holds %+v and has %v", p.ID(), p.res.Devices, p.Devices())
		}
		if p.estimate != nil && (c.format < formatReservations || p.wait != nil) {
			return fmt.Errorf("copy %v has a reservation of %+v", p.ID(), *p.estimate)
		}
		if err := c.checkExit(p); err != nil {
			return err
		}
		if err := c.checkAddr(p); err != nil {
			return fmt.Errorf("copy %v: %w", p.ID(), err)
		}
		if p.wait != nil && (p.wait.room != p.room() || p.wait.res != p.res) {
			return fmt.Errorf("copy %v waits for room elsewhere", p.ID())
		}
		ports = append(ports, p.ports...)
	}
	slices.Sort(ports)
	if !slices.Equal(ports, m.ports) {
		return fmt.Errorf("ports %v, kept %v", ports, m.ports)
	}
	if err := c.checkHeldPorts(m); err != nil {
		return err
	}
	for _, a := range m.allocs {
		if a.machine != m && a.lostOn != m {
			return fmt.Errorf("alloc %s is not here", a.Name())
		}
		if c.format >= formatDevices && !sameDevices(a.res(), sumDevices(a.devices)) {
			return fmt.Errorf("alloc %s holds %+v and has %v", a.Name(), a.res().Devices, a.devices)
		}
	}
	return checkRoom(&m.room, own, m.allocs, m.volumes)
}

// checkStays wants a reason for each that is on a machine which drains.
func (c *Cell) checkStays(p *Copy) error {
	m := p.machine
	if m.drain == nil || !p.state.current() || p.staysToTheLast() || c.drainDueNs <= c.clock.cellNs {
		return nil
	}
	if p.Stays() && c.format < formatLastLeave {
		// It was not looked at again when its budget let it go.
		return nil
	}
	if p.job.saving != nil && (!m.drain.forced || c.format < FormatSaverDrains) {
		// Its own time ends it, not that of a window.
		return nil
	}
	going := []*Copy{p}
	if p.alloc != nil {
		going = slices.DeleteFunc(slices.Clone(p.alloc.copies), func(o *Copy) bool { return !o.state.stays() })
	}
	if p.alloc != nil && p.alloc.HoldVolumes() != nil && !m.drain.forced {
		return nil
	}
	if h := c.HoldOf(going); !c.restored.held && (m.drain.forced || h == nil || h.UntilNs != 0 && h.UntilNs < c.drainDueNs) {
		return fmt.Errorf("copy %v is on %s, which drains, and nothing holds it: %+v", p.ID(), m.name, h)
	}
	return nil
}

// checkRoom adds up what is held anew.
func checkRoom(r *room, copies []*Copy, allocs []*Alloc, volumes []*Volume) error {
	var taken, discount byView
	var devices []DeviceGrant
	for _, p := range copies {
		taken = taken.add(p.held())
		devices = append(devices, p.Devices()...)
		if w := p.wait; w != nil {
			discount = discount.add(w.discount)
			if err := checkWait(w); err != nil {
				return err
			}
		}
	}
	for _, a := range allocs {
		taken = taken.add(inBoth(a.res()))
		devices = append(devices, a.devices...)
		if a.wait != nil {
			discount = discount.add(a.wait.discount)
			if err := checkWait(a.wait); err != nil {
				return err
			}
		}
	}
	for _, v := range volumes {
		taken = taken.add(v.held())
	}
	if !taken.equal(r.taken) || !discount.equal(r.discount) {
		return fmt.Errorf("held %+v less %+v, kept %+v less %+v", taken, discount, r.taken, r.discount)
	}
	slices.SortFunc(devices, compareGrants)
	if !slices.Equal(devices, r.devices) {
		return fmt.Errorf("devices held %v, kept %v", devices, r.devices)
	}
	return nil
}

func checkWait(w *waiting) error {
	if len(w.victims) == 0 {
		return fmt.Errorf("a claim on nobody")
	}
	var freed byView
	for _, v := range w.victims {
		if v.stop == nil || v.stop.promised != w || !v.state.live() {
			return fmt.Errorf("victim %v (%d) is not promised to who waits for it", v.ID(), v.state)
		}
		if v.room() == w.room {
			freed = freed.add(v.held())
		}
	}
	if want := freed.min(inBoth(w.res)); !want.equal(w.discount) {
		return fmt.Errorf("a claim of %+v is counted as %+v", want, w.discount)
	}
	return nil
}
