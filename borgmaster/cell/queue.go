package cell

import "borg/proto/borgpb"

// formatQueue is the format from which on batch jobs can be held in a queue.
const formatQueue = 3

// Queued tells whether a job is held back until all of it fits. One that was
// enabled, or of which something runs, is not.
func (c *Cell) Queued(j *Job) bool {
	s := j.latest().Proto
	return c.format >= formatQueue && s.BatchQueue && s.Kind == borgpb.JobKind_JOB_KIND_BATCH && s.AllocSet == "" &&
		!j.enabled && j.running == 0
}

// QueuedOf yields what PendingOf would yield of a queued job if it were enabled.
func (c *Cell) QueuedOf(j *Job) func(yield func(uint32) bool) {
	return func(yield func(uint32) bool) {
		if c.Queued(j) && c.eligible(j) {
			c.waitingOf(j, yield)
		}
	}
}

// Demand is what all tasks of a job that wait ask for together.
func (j *Job) Demand() (sum Resources) {
	var need *Need
	n := int64(0)
	for i := range j.waiting.all() {
		if need == nil || i > need.Last {
			if need != nil {
				sum = sum.Add(need.Resources.Times(n))
			}
			need, n = j.Need(i), 0
		}
		n++
	}
	if need != nil {
		sum = sum.Add(need.Resources.Times(n))
	}
	return sum
}

// FreeFor is what is free for a job on all machines together that take its first
// task, whatever it asks for.
func (c *Cell) FreeFor(j *Job) (sum Resources) {
	task, prod := j.Need(0).Task, isProd(j.Priority())
	for _, m := range c.machineList {
		if m.down || m.draining || m.Closed() || failedConstraint(task.Constraints, m) != nil || Untolerated(task.Tolerations, m) != nil ||
			c.Banned(task.Packages, m) != nil {
			continue
		}
		sum = sum.Add(m.room.capacity.Sub(m.room.held(prod)).atLeastNothing())
	}
	return sum
}

// EnabledDemand is what jobs that were enabled still wait for: it will be taken.
func (c *Cell) EnabledDemand() (sum Resources) {
	for j := range c.jobs.each() {
		if j.enabled && j.pending > 0 && j.deathSeq == 0 {
			sum = sum.Add(j.Demand())
		}
	}
	return sum
}

// enableAll lets jobs out of the queue that a scheduler names, if all of each
// fits.
func (c *Cell) enableAll(uids []string) {
	if c.format < formatQueue {
		return
	}
	if len(uids) == 0 {
		return
	}
	taken := c.EnabledDemand()
	for _, text := range uids {
		uid, ok := parseUID(text)
		j := c.jobsByUID[uid]
		if !ok || j == nil || j.pending == 0 || !c.Queued(j) || !c.eligible(j) {
			continue
		}
		demand := j.Demand()
		if !demand.Fits(c.FreeFor(j).Sub(taken)) {
			continue
		}
		taken = taken.Add(demand)
		j.enabled = true
		j.changedWallNs = c.clock.wallNs
		c.dirty(j)
		c.emit(jobEvent(j, borgpb.EventKind_EVENT_KIND_ENABLE, statePending, statePending))
	}
}

// Times returns n of r.
func (r Resources) Times(n int64) Resources {
	t := Resources{r.CPUMilli * n, r.MemBytes * n, r.DiskBytes * n, r.DiskBytesPerS * n, r.Ports * n, nil}
	for _, d := range r.Devices {
		if n != 0 {
			t.Devices = append(t.Devices, Device{d.Name, d.Milli * n})
		}
	}
	return t
}

// atLeastNothing returns r with nothing where it is less.
func (r Resources) atLeastNothing() Resources {
	t := Resources{max(r.CPUMilli, 0), max(r.MemBytes, 0), max(r.DiskBytes, 0), max(r.DiskBytesPerS, 0), max(r.Ports, 0), nil}
	for _, d := range r.Devices {
		if d.Milli > 0 {
			t.Devices = append(t.Devices, d)
		}
	}
	return t
}
