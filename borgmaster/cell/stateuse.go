package cell

import (
	"fmt"

	"borg/proto/borgpb"
	"borg/proto/weight"
)

// Measure is one amount of the replicated state that has a budget.
type Measure = borgpb.StateMeasure

const (
	measureTasks       = borgpb.StateMeasure_STATE_MEASURE_TASKS
	measureAllocs      = borgpb.StateMeasure_STATE_MEASURE_ALLOCS
	measureObjects     = borgpb.StateMeasure_STATE_MEASURE_OBJECTS
	measureCronJobs    = borgpb.StateMeasure_STATE_MEASURE_CRON_JOBS
	measureBytes       = borgpb.StateMeasure_STATE_MEASURE_BYTES
	measureDeadObjects = borgpb.StateMeasure_STATE_MEASURE_DEAD_OBJECTS
	measureDeadTasks   = borgpb.StateMeasure_STATE_MEASURE_DEAD_TASKS
	measureDeadBytes   = borgpb.StateMeasure_STATE_MEASURE_DEAD_BYTES
	measureFiles       = borgpb.StateMeasure_STATE_MEASURE_FILES
	measureFileBytes   = borgpb.StateMeasure_STATE_MEASURE_FILE_BYTES
	measureSecrets     = borgpb.StateMeasure_STATE_MEASURE_SECRETS
	measureVolumes     = borgpb.StateMeasure_STATE_MEASURE_VOLUMES
	measureKeptDisk    = borgpb.StateMeasure_STATE_MEASURE_KEPT_DISK_BYTES
	measureRequests    = borgpb.StateMeasure_STATE_MEASURE_REQUESTS

	numMeasures = int(measureRequests)
)

// StateUse holds one amount of each Measure; index 0 is not used.
type StateUse [numMeasures + 1]int64

func (u *StateUse) add(o *StateUse, times int64) {
	for i := range u {
		u[i] += times * o[i]
	}
}

func (u *StateUse) isZero() bool { return *u == StateUse{} }

// stateMemory is what one of each measure takes in memory beside what is charged in bytes,
// at most: docs/limits.md states it.
var stateMemory = StateUse{
	measureTasks: taskMemory, measureAllocs: taskMemory, measureDeadTasks: taskMemory,
	measureObjects: objectMemory, measureDeadObjects: objectMemory, measureCronJobs: objectMemory,
	measureBytes: 1, measureDeadBytes: 1, measureFileBytes: 1,
	measureFiles: fileMemory, measureSecrets: MaxSecretBytes + fileMemory, measureVolumes: fileMemory, measureRequests: requestMemory,
}

// StateMemory is what a replica or a scheduler holds for so much of the state, at most.
func StateMemory(u *StateUse) (bytes int64) {
	for m, n := range u {
		bytes += n * stateMemory[m]
	}
	return bytes
}

// stateUse counts what jobs, alloc sets, volumes, notes and sealed values of secrets of each
// user hold of the state. Files, the number of secrets, requests and copies that stop have counts of their own. All of it is derived.
type stateUse struct {
	byUser map[string]*StateUse
	cell   StateUse
}

// count adds times times what o says to what a user holds.
func (s *stateUse) count(user string, o *StateUse, times int64) {
	u := s.of(user)
	u.add(o, times)
	s.cell.add(o, times)
	if u.isZero() {
		delete(s.byUser, user)
	}
}

// countOne is count for one measure.
func (s *stateUse) countOne(user string, m Measure, n int64) {
	if n == 0 {
		return
	}
	u := s.of(user)
	u[m] += n
	s.cell[m] += n
	if u.isZero() {
		delete(s.byUser, user)
	}
}

// of returns what a user holds, for a change.
func (s *stateUse) of(user string) *StateUse {
	u := s.byUser[user]
	if u == nil {
		u = new(StateUse)
		s.byUser[user] = u
	}
	return u
}

// bytesOf is what one version of a spec is charged: what its bytes and what they say take
// in memory, and for each run of task indices what the merged task takes.
func (s *reading) bytesOf() int64 { return s.weight + int64(len(s.needs)*runBytes) }

// textBytes is what labels and annotations are charged.
func (g *given) textBytes() (n int64) {
	if g == nil {
		return 0
	}
	return weight.Map(g.labels) + weight.Map(g.annotations)
}

// stateBytes is what a job is charged for specs, labels and annotations.
func (j *Job) stateBytes() int64 {
	n := weight.Map(j.labels) + weight.Map(j.annotations) + j.given.textBytes()
	for _, s := range j.specs {
		n += s.bytesOf()
	}
	return n
}

// stateUse is what a job holds of the state.
func (j *Job) stateUse() (u StateUse) {
	u.hold(j.deathSeq != 0, int64(len(j.rows)), j.stateBytes(), measureTasks)
	if j.deathSeq == 0 && j.latest().Proto.Kind == borgpb.JobKind_JOB_KIND_CRON {
		u[measureCronJobs] = 1
	}
	return u
}

// stateBytes is what an alloc set is charged for its spec, labels and annotations.
func (s *AllocSet) stateBytes() int64 {
	return s.weight + runBytes + weight.Map(s.labels) + weight.Map(s.annotations) + s.given.textBytes()
}

// stateUse is what an alloc set holds of the state.
func (s *AllocSet) stateUse() (u StateUse) {
	u.hold(s.deathSeq != 0, int64(len(s.allocs)), s.stateBytes(), measureAllocs)
	return u
}

// hold sets what one object holds that has so many tasks or allocs.
func (u *StateUse) hold(dead bool, n, bytes int64, of Measure) {
	if dead {
		u[measureDeadObjects], u[measureDeadTasks], u[measureDeadBytes] = 1, n, bytes
	} else {
		u[measureObjects], u[of], u[measureBytes] = 1, n, bytes
	}
}

// countTasksOf follows a job that has n more rows.
func (c *Cell) countTasksOf(j *Job, n int) {
	m := measureTasks
	if j.deathSeq != 0 {
		m = measureDeadTasks
	}
	c.stateUse.countOne(j.key.User, m, int64(n))
}

// countBytesOf follows a job or alloc set whose specs, labels or annotations have n more
// bytes.
func (c *Cell) countBytesOf(user string, dead bool, n int64) {
	m := measureBytes
	if dead {
		m = measureDeadBytes
	}
	c.stateUse.countOne(user, m, n)
}

// deriveStateUse counts everything.
func (c *Cell) deriveStateUse() stateUse {
	s := stateUse{byUser: make(map[string]*StateUse)}
	for j := range c.jobs.each() {
		u := j.stateUse()
		s.count(j.key.User, &u, 1)
	}
	for _, set := range c.setList {
		u := set.stateUse()
		s.count(set.key.User, &u, 1)
	}
	for _, m := range c.machineList {
		for _, p := range m.copies {
			s.countOne(p.job.key.User, measureBytes, p.ownNote().bytes())
		}
	}
	for _, secret := range c.secrets.list {
		s.countOne(secret.user, measureBytes, int64(len(secret.sealed)))
	}
	for v := range c.Volumes() {
		s.countOne(v.of.Job.User, measureVolumes, 1)
		s.countOne(v.of.Job.User, measureKeptDisk, v.keptBytes())
	}
	return s
}

// StateUseOf is what a user holds of the replicated state.
func (c *Cell) StateUseOf(user string) (u StateUse) {
	if of := c.stateUse.byUser[user]; of != nil {
		u = *of
	}
	u[measureTasks] += c.stopUseOf(user).copies
	files := c.files.of[user]
	u[measureFiles], u[measureFileBytes] = int64(files.files), int64(files.bytes)
	u[measureSecrets] = int64(c.secretsOf(user))
	if of := c.requests.of[user]; of != nil {
		u[measureRequests] = of.count
	}
	return u
}

// CellStateUse is what all users hold.
func (c *Cell) CellStateUse() StateUse {
	u := c.stateUse.cell
	u[measureTasks] += c.stopCopies
	u[measureFiles], u[measureFileBytes] = int64(len(c.files.list)), int64(c.files.bytes)
	u[measureSecrets] = int64(len(c.secrets.list))
	u[measureRequests] = int64(len(c.requests.byID))
	return u
}

// StateUsers are all users who hold something of the state or have a budget of their
// own, sorted.
func (c *Cell) StateUsers() []string {
	all := make(map[string]bool)
	for user := range c.stateUse.byUser {
		all[user] = true
	}
	for user := range c.files.of {
		all[user] = true
	}
	for user := range c.stopUse {
		all[user] = true
	}
	for user := range c.requests.of {
		all[user] = all[user] || user != ""
	}
	for _, s := range c.secrets.list {
		all[s.user] = true
	}
	for _, b := range c.stateBudgets.list {
		if b.user != "" {
			all[b.user] = true
		}
	}
	return sortedKeys(all)
}

// checkStateUse counts everything anew and compares.
func (c *Cell) checkStateUse() error {
	want := c.deriveStateUse()
	if want.cell != c.stateUse.cell || len(want.byUser) != len(c.stateUse.byUser) {
		return fmt.Errorf("the state has %v of %d users, counted as %v of %d", want.cell, len(want.byUser), c.stateUse.cell, len(c.stateUse.byUser))
	}
	for user, u := range want.byUser {
		if kept := c.stateUse.byUser[user]; kept == nil || *kept != *u {
			return fmt.Errorf("user %s holds %v of the state, counted as %v", user, *u, kept)
		}
	}
	return c.stateBudgets.check()
}
