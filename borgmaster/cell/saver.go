package cell

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"borg/mutant"
	"borg/proto/borgpb"
)

// FormatSavers is the format in which what allocs leave behind began to be saved.
const FormatSavers = 9

// FormatSaverDrains is the format from which on a drain that is forced does not wait for
// savers, and a machine that is removed takes along what is not saved there.
const FormatSaverDrains = 10

// saving is what a job is there for that the cell made itself: to save what an alloc
// left on a machine. No scheduler places its one task: the cell starts it there as soon
// as nothing of the alloc runs on that machine any more, and again whenever it failed.
// A drain waits for it until its deadline; then it goes on only if its machine comes back
// into service. It outlives its alloc set.
type saving struct {
	// Key of the set, and index and attempt of the alloc.
	set     JobKey
	index   uint32
	attempt uint64
	machine string
	// Cell times at which it is given up, and before which it is not started again.
	untilNs, againNs int64
	// The alloc moved and was not ended: its charge goes on, and the saver starts only while the
	// quota has room for both. A saver of an alloc that ended takes over its charge.
	beside bool
}

// Saves names the alloc whose directory the copy saves, "<user>/<name>/<index>"; empty:
// it saves none.
func (p *Copy) Saves() string {
	if v := p.job.saving; v != nil {
		return TaskID{v.set, v.index}.String()
	}
	return ""
}

// saverSpec is the spec of the jobs that save what the allocs of a set leave behind: a
// batch job with the task that the spec of the set names. Its bytes are put together here
// and not by the protobuf library, whose output may differ from build to build.
func (c *Cell) saverSpec(key JobKey, priority int32, set []byte) (*Spec, *borgpb.Refusal) {
	var b []byte
	number := func(field protowire.Number, v uint64) {
		b = protowire.AppendVarint(protowire.AppendTag(b, field, protowire.VarintType), v)
	}
	number(jobKindField, uint64(borgpb.JobKind_JOB_KIND_BATCH))
	number(jobTasksField, 1)
	number(jobPriorityField, uint64(priority))
	task := embedded(embedded(set, setSaverField), saverTaskField)
	b = protowire.AppendBytes(protowire.AppendTag(b, jobTaskField, protowire.BytesType), task)
	number(jobMaxFailuresField, maxFailures)
	return c.readSpec(key, b)
}

// Numbers of the fields that saverSpec reads and writes; TestSaverSpec compares them.
const (
	jobKindField        protowire.Number = 1
	jobTasksField       protowire.Number = 2
	jobPriorityField    protowire.Number = 3
	jobTaskField        protowire.Number = 4
	jobMaxFailuresField protowire.Number = 7
	setSaverField       protowire.Number = 440
	saverTaskField      protowire.Number = 1
)

// embedded is a message that is a field of a well-formed one. Where the field is there
// more than once they follow each other, which is how protobuf merges them.
func embedded(message []byte, field protowire.Number) (data []byte) {
	for len(message) > 0 {
		number, kind, n := protowire.ConsumeTag(message)
		if n < 0 {
			return data
		}
		message = message[n:]
		if n = protowire.ConsumeFieldValue(number, kind, message); n < 0 {
			return data
		}
		if number == field && kind == protowire.BytesType {
			value, _ := protowire.ConsumeBytes(message)
			data = append(data, value...)
		}
		message = message[n:]
	}
	return data
}

// checkSaver checks the saver of an alloc set: by the rules of a task, and by narrower bounds.
// was is the spec that this one replaces, nil if the set is new.
func (c *Cell) checkSaver(key JobKey, set, was *borgpb.AllocSetSpec, data []byte) *borgpb.Refusal {
	v := set.Saver
	if v == nil {
		return nil
	}
	if r := checkSaverTask(v, c.now.asker.GetUser() != ""); r != nil {
		return r
	}
	spec, r := c.saverSpec(key, set.Priority, data)
	if r == nil {
		r = c.checkWants(spec)
	}
	if r == nil {
		r = c.checkOwned(key.User, spec)
	}
	if r == nil {
		r = c.checkPowers(spec, nil)
	}
	if r == nil && !proto.Equal(v, was.GetSaver()) {
		r = c.checkSpecBounds(key.User, spec)
	}
	if r == nil && c.now.asker.GetUser() != "" {
		r = checkSaverRoom(v.Task.Resources, set.Resources)
	}
	if r != nil {
		// The cell wrote the rest of that spec.
		r.Field = strings.Replace(r.Field, "spec.task", "spec.saver.task", 1)
	}
	return r
}

// checkSaverTask checks the bounds that a saver has beside those of a task. asked: a user asks for it, and must say amounts.
func checkSaverTask(v *borgpb.Saver, asked bool) *borgpb.Refusal {
	t := v.Task
	res := FromProto(t.GetResources())
	switch {
	case v.TimeNs < 0 || v.TimeNs > maxSaveNs:
		return outOfSpan("spec.saver.time_ns", v.TimeNs, 0, maxSaveNs)
	case t == nil:
		return invalid("spec.saver.task", "there is none")
	case asked && (res.CPUMilli == 0 || res.MemBytes == 0):
		return invalid("spec.saver.task.resources", "a saver must say how much cpu and memory it may use; the cell fills in nothing")
	case t.ExclusiveCores:
		return invalid("spec.saver.task.exclusive_cores", "a saver has no cores of its own: it works beside whatever runs there")
	case len(t.Volumes) > 0:
		return invalid("spec.saver.task.volumes", "a saver has none: it works in the directory of the alloc")
	case len(t.Ports) > 0 || len(t.Secrets) > 0 || len(res.Devices) > 0 || len(t.Resources.GetDeviceMilli()) > 0:
		return invalid("spec.saver.task", "a saver has no ports, secrets or devices")
	case res.CPUMilli > maxSaverCPUMilli || res.MemBytes > maxSaverMemBytes:
		return invalid("spec.saver.task.resources", "a saver asks for at most %d milli-cores and %d bytes of memory", maxSaverCPUMilli, int64(maxSaverMemBytes))
	case res.DiskBytes > maxSaverDiskBytes || res.DiskBytesPerS > maxSaverDiskBytesPerS:
		return invalid("spec.saver.task.resources", "a saver asks for at most %d bytes of disk and %d bytes/s", int64(maxSaverDiskBytes), int64(maxSaverDiskBytesPerS))
	}
	return nil
}

// checkSaverRoom refuses a saver that asks for more than its alloc: it starts without a look at
// what its machine has free, in the room that the alloc has left.
func checkSaverRoom(saver, alloc *borgpb.Resources) *borgpb.Refusal {
	has, of := FromProto(saver), FromProto(alloc)
	if has.CPUMilli <= of.CPUMilli && has.MemBytes <= of.MemBytes {
		return nil
	}
	return invalid("spec.saver.task.resources", "a saver asks for at most the cpu and memory of its alloc, %d milli-cores and %d bytes", of.CPUMilli, of.MemBytes)
}

func (c *Cell) addSaver(j *Job) {
	at, _ := slices.BinarySearchFunc(c.savers, j.uid, compareUID)
	c.savers = slices.Insert(c.savers, at, j)
	if c.saversOf == nil {
		c.saversOf = make(map[string]int)
	}
	c.saversOf[j.key.User]++
	c.lookAtSavers()
}

// saverEnded follows the death of a job: was anything given up with it?
func (c *Cell) saverEnded(j *Job) {
	v := j.saving
	if v == nil {
		return
	}
	c.savers = slices.DeleteFunc(c.savers, func(o *Job) bool { return o == j })
	if c.saversOf[j.key.User]--; c.saversOf[j.key.User] == 0 {
		delete(c.saversOf, j.key.User)
	}
	if m := c.machines[v.machine]; m != nil {
		m.changes++
	}
	kind := borgpb.EventKind_EVENT_KIND_SAVED
	if j.finished == 0 && !mutant.Planted(mutant.GivenUpIsSaved) {
		kind = borgpb.EventKind_EVENT_KIND_SAVE_GIVEN_UP
	}
	c.emit(Event{
		Kind: kind, ObjectKind: borgpb.ObjectKind_OBJECT_KIND_ALLOC, Key: v.set, Task: v.index, UID: j.uid,
		Attempt: v.attempt, Machine: v.machine, Reason: j.reason,
	})
}

// saveOn starts savers that can be started, and gives up those whose time is over. It
// looks when the time may have changed something, or something else has since.
func (c *Cell) saveOn() {
	if len(c.savers) == 0 || c.clock.cellNs < c.saveDueNs {
		return
	}
	c.saveDueNs = maxTimeNs
	for _, j := range slices.Clone(c.savers) {
		v, t := j.saving, j.rows[0]
		m := c.machines[v.machine]
		switch {
		case m == nil:
			c.kill(j, "machine "+v.machine+" was removed")
		case v.untilNs <= c.clock.cellNs && !mutant.Planted(mutant.SavesForEver):
			c.kill(j, "its time is over")
		case t.state == statePending && c.saverWaits(j) == "" && c.saverOverQuota(j):
			v.againNs = min(c.clock.cellNs+saveAgainNs, maxTimeNs)
			c.dirty(j)
		case t.state == statePending && c.saverWaits(j) == "":
			c.schedule(t, place{machine: m})
			// From start to start, so that it does not matter how it ended.
			v.againNs = min(c.clock.cellNs+min(int64(saveAgainNs)<<min(t.attempt-1, 16), maxSaveAgainNs), maxTimeNs)
			c.dirty(j)
		}
		if j.deathSeq == 0 {
			c.saveDueNs = min(c.saveDueNs, c.saverDue(j))
		}
	}
}

// saverOverQuota reports whether a saver must wait because its user's jobs and alloc sets ask for
// more than the quota. Otherwise a user who has allocs move again and again would run any number
// of savers. What stops is not counted, as for new work.
func (c *Cell) saverOverQuota(j *Job) bool {
	if !j.saving.beside || c.quotas.used == nil {
		return false
	}
	user := j.key.User
	stays := c.quotas.used[user].minus(c.stopUseOf(user).charge)
	for i := range j.charged {
		w := &j.charged[i]
		var granted amount
		if q := c.QuotaOf(user, w.band); q != nil {
			granted = chargeOf(w.band, &q.limit, 1).of(w)
		}
		if stays.of(w).compare(granted) > 0 {
			return true
		}
	}
	return false
}

// saverDue is the cell time at which a saver is to be looked at if nothing else happens.
func (c *Cell) saverDue(j *Job) int64 {
	v := j.saving
	switch {
	case j.rows[0].state != statePending:
		return v.untilNs
	case v.againNs > c.clock.cellNs:
		return min(v.untilNs, v.againNs)
	case c.machines[v.machine] == nil || c.saverWaits(j) == "":
		return 0
	}
	return v.untilNs
}

// lookAtSavers has all savers looked at with the next entry: where they are something
// has changed that they may have waited for.
func (c *Cell) lookAtSavers() { c.saveDueNs = 0 }

// saverWaits says why a saver cannot be started now; empty: it can. What ran in the alloc
// has to have stopped, also that of a job that was replaced since.
func (c *Cell) saverWaits(j *Job) string {
	v, t := j.saving, j.rows[0]
	m := c.machines[v.machine]
	switch {
	case m == nil || m.down || m.Closed():
		return "machine " + v.machine + " is not there"
	case m.emptied() && c.format >= FormatSaverDrains:
		return "machine " + v.machine + " has been emptied"
	case c.clock.cellNs < v.againNs:
		return "it pauses after it failed"
	case t.holdsPlace() || !c.HasPlaces(m, j.latest().Proto.Priority, Places{Copies: 1}, Places{}):
		return "there is no place on machine " + v.machine
	}
	for _, p := range m.copies {
		if o := p.job.saving; o != nil && p.job != j && o.set == v.set && o.index == v.index && c.format >= FormatSaverDrains && !mutant.Planted(mutant.SaversTogether) {
			return "another saver works in its directory"
		}
		if p.state == attemptStopping && p.mayWorkIn(TaskID{v.set, v.index}) {
			return "what ran in the alloc has not stopped"
		}
	}
	return ""
}

// mayWorkIn reports whether a copy on a machine may work in the directory that an alloc has or had
// there. It goes by what the copy was placed in: the job may have another spec by now, or be gone.
func (p *Copy) mayWorkIn(alloc TaskID) bool {
	switch {
	case p.alloc != nil:
		return p.alloc.set.key == alloc.Job && p.alloc.index == alloc.Index
	case p.few != nil && p.few.left != nil:
		return *p.few.left == alloc
	}
	// A copy that was found on a restored cell's machine may have run in any alloc.
	return p.orphan
}

// KeptOn names the allocs whose directories are to stay on a machine: those that are
// there, and those that left what is not saved yet.
func (c *Cell) KeptOn(m *Machine) (allocs []string) {
	for _, a := range m.allocs {
		allocs = append(allocs, a.Name())
	}
	for _, j := range c.savers {
		v := j.saving
		if name := (TaskID{v.set, v.index}).String(); v.machine == m.name && !slices.Contains(allocs, name) {
			allocs = append(allocs, name)
		}
	}
	return allocs
}

// SavesOf shows what the allocs of a set left and is not saved. It changes with the time, so
// it is no part of what is watched of a set.
func (c *Cell) SavesOf(s *AllocSet) (saves []*borgpb.AllocSave) {
	if s.spec.Saver == nil {
		return nil
	}
	// The names of its savers begin so, and follow each other.
	prefix := s.key.Name[:min(len(s.key.Name), maxNameBytes-maxSaverSuffixBytes)]
	for j := range c.JobsAfter(JobKey{s.key.User, prefix}) {
		if j.key.User != s.key.User || !strings.HasPrefix(j.key.Name, prefix) || len(saves) == maxSavesShown {
			break
		}
		v := j.saving
		if v == nil || v.set != s.key || j.finished > 0 {
			continue
		}
		t := j.rows[0]
		one := &borgpb.AllocSave{Job: j.key.Name, Index: v.index, Attempt: v.attempt, Machine: v.machine, Failures: t.failures}
		if j.deathSeq != 0 {
			one.Reason = "given up: " + j.reason
		} else if one.LeftNs = max(v.untilNs-c.clock.cellNs, 1); t.cur != nil {
			one.Reason = "the saver runs"
		} else if c.saverOverQuota(j) {
			one.Reason = "the quota of user " + j.key.User + " has no room for it beside the alloc set; end something"
		} else {
			one.Reason = c.saverWaits(j)
		}
		saves = append(saves, one)
	}
	return saves
}

// holdSave is for what a saver is not taken off its machine before a drain is forced.
func (j *Job) holdSave() *Hold {
	v := j.saving
	return &Hold{Job: j.key, Task: TaskID{j.key, 0}, UntilNs: v.untilNs,
		Reason: fmt.Sprintf("it saves what alloc %v left there; borgcfg down %s gives that up", TaskID{v.set, v.index}, j.key)}
}

// saversWaiting are those that have yet to be started on a machine.
func (c *Cell) saversWaiting(m *Machine) (jobs []*Job) {
	for _, j := range c.savers {
		if j.saving.machine == m.name && j.rows[0].cur == nil {
			jobs = append(jobs, j)
		}
	}
	return jobs
}

// HoldsOfSavers are for savers that have yet to be started on a machine: as those that run
// there, they hold a drain.
func (c *Cell) HoldsOfSavers(m *Machine) (holds []Hold) {
	for _, j := range c.saversWaiting(m) {
		holds = append(holds, *j.holdSave())
	}
	return holds
}

// endSavers gives up what lies on a machine that leaves the cell.
func (c *Cell) endSavers(m *Machine, reason string) {
	if c.format < FormatSaverDrains {
		return
	}
	for _, j := range slices.Clone(c.savers) {
		if j.saving.machine == m.name {
			c.kill(j, reason)
		}
	}
}

// checkSavers checks which jobs are savers.
func (c *Cell) checkSavers() error {
	n, of := 0, make(map[string]int)
	for j := range c.jobs.each() {
		v := j.saving
		if v == nil {
			continue
		}
		if c.format < FormatSavers || len(j.rows) != 1 || len(j.specs) != 1 {
			return fmt.Errorf("job %v should not save anything", j.key)
		}
		if p := j.rows[0].cur; p != nil && (p.machine.name != v.machine || p.alloc != nil) {
			return fmt.Errorf("job %v saves what is on %s, and runs on %s", j.key, v.machine, p.machine.name)
		}
		if j.deathSeq == 0 {
			n++
			of[j.key.User]++
			if !slices.Contains(c.savers, j) {
				return fmt.Errorf("job %v saves something and is not listed", j.key)
			}
			if at := c.saverDue(j); at < c.saveDueNs && c.saveDueNs > c.clock.cellNs {
				return fmt.Errorf("job %v is to be looked at at %d, and is at %d: %s", j.key, at, c.saveDueNs, c.saverWaits(j))
			}
		}
	}
	if n != len(c.savers) || !maps.Equal(of, c.saversOf) {
		return fmt.Errorf("%d jobs save something, of users %v; %d are listed, of %v", n, of, len(c.savers), c.saversOf)
	}
	return nil
}

// left writes in the directory of which alloc a copy still works, if that has left.
func (e *encoder) left(p *Copy) {
	if p.few == nil || p.few.left == nil {
		return
	}
	e.byte(tagLeft)
	e.str(p.few.left.Job.User)
	e.str(p.few.left.Job.Name)
	e.uint(uint64(p.few.left.Index))
}

func (l *loader) left(d *decoder, p *Copy) error {
	if !d.tagged(tagLeft) {
		return nil
	}
	of := TaskID{JobKey{d.str(), d.str()}, d.uint32()}
	if checkKey(of.Job) != nil || p.stop == nil || p.alloc != nil || !p.state.live() {
		return errOdd
	}
	p.rare().left = &of
	return nil
}

// saving writes what a job saves, if it does.
func (e *encoder) saving(v *saving) {
	if v == nil {
		return
	}
	e.byte(tagSaving)
	e.str(v.set.User)
	e.str(v.set.Name)
	e.uint(uint64(v.index))
	e.uint(v.attempt)
	e.str(v.machine)
	e.int(v.untilNs)
	e.int(v.againNs)
	e.bool(v.beside)
}

func (l *loader) saving(d *decoder, j *Job) error {
	if l.c.format < FormatSavers || !d.tagged(tagSaving) {
		return nil
	}
	j.saving = &saving{set: JobKey{d.str(), d.str()}, index: d.uint32(), attempt: d.uint(), machine: d.str(), untilNs: d.int(), againNs: d.int(), beside: d.bool()}
	if v := j.saving; checkKey(v.set) != nil || v.untilNs < 0 || v.untilNs > maxTimeNs || v.againNs < 0 || v.againNs > maxTimeNs {
		return errOdd
	}
	return nil
}
