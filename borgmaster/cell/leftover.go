package cell

import (
	"fmt"
	"slices"

	"borg/proto/borgpb"
)

// FormatLeftovers is the format in which a cell began to stop what it had given up.
const FormatLeftovers = 12

// maxLeftovers bounds the copies that one machine tells of at once; the rest comes later.
const maxLeftovers = 64

// Leftover reports whether a copy that runs on m is one that this log began and has given
// up: it holds no place there, and never will again. Its machine was removed while it was
// silent, and is in the cell again. What an earlier epoch began is none: a restored cell
// does not know what became of it.
func (c *Cell) Leftover(m *Machine, id CopyID) bool {
	switch {
	case c.format < FormatLeftovers || m.find(id) != nil || id.Attempt == 0:
		return false
	case id.Job.Epoch == c.epoch:
		return id.Job.Index <= c.index
	}
	return id.Job.Epoch < c.epoch && id.Attempt > c.floor()
}

// stopLeft stops leftovers, each of which holds its place until it is gone, and counts
// them. What makes no sense is left out: it is asked for again.
func (c *Cell) stopLeft(m *Machine, left []*borgpb.UnknownCopy) (stopped int) {
	for _, u := range left[:min(len(left), maxLeftovers)] {
		var stop func()
		if guarded(func() (r *borgpb.Refusal) { stop, r = c.checkLeft(m, u); return r }) == nil {
			stop()
			stopped++
		}
	}
	return stopped
}

func (c *Cell) checkLeft(m *Machine, u *borgpb.UnknownCopy) (func(), *borgpb.Refusal) {
	uid, ok := parseUID(u.JobUid)
	id := CopyID{uid, u.Index, u.Attempt}
	if r := c.checkCopyTold(u); r != nil {
		return nil, r
	}
	j := c.jobsByUID[uid]
	switch {
	case !ok || !c.Leftover(m, id):
		return nil, stale(m.name, "copy %s is not one that the cell has given up", id)
	case j != nil && j.key != (JobKey{u.User, u.Job}):
		return nil, invalid("left", "%s is of job %s", id, j.key)
	case len(m.copies) >= maxCopiesOnMachine:
		return nil, limit("left", "%s holds %d copies", m.name, len(m.copies))
	}
	if j != nil {
		if t := j.Task(u.Index); t != nil {
			return c.checkLeftOfTask(m, t, u)
		}
	}
	for _, other := range c.machineList {
		if other.find(id) != nil {
			return nil, stale(m.name, "copy %s is on %s", id, other.name)
		}
	}
	return func() {
		c.stopLeftover(m, &Copy{job: c.jobOfLeft(m, u), index: u.Index, attempt: u.Attempt, orphan: true}, u)
	}, nil
}

// checkLeftOfTask is checkLeft of a copy whose task is in the cell.
func (c *Cell) checkLeftOfTask(m *Machine, t *Task, u *borgpb.UnknownCopy) (func(), *borgpb.Refusal) {
	id := CopyID{t.job.uid, u.Index, u.Attempt}
	if u.Attempt > t.attempt || t.cur != nil && t.cur.attempt == u.Attempt {
		return nil, stale(m.name, "copy %s is its task's current one, or none yet", id)
	}
	for p := t.past; p != nil; p = p.next {
		switch {
		case p.attempt != u.Attempt:
		case p.state.live() || p.machine.name != m.name:
			return nil, stale(m.name, "copy %s is on %s", id, p.machine.name)
		default:
			return func() { c.stopLeftover(m, p, u) }, nil
		}
	}
	return func() { c.stopLeftover(m, &Copy{job: t.job, index: u.Index, attempt: u.Attempt, orphan: true}, u) }, nil
}

// jobOfLeft is the job of a copy without a task: also of one that the cell has forgotten.
func (c *Cell) jobOfLeft(m *Machine, u *borgpb.UnknownCopy) *Job {
	uid, _ := parseUID(u.JobUid)
	if j := c.jobsByUID[uid]; j != nil {
		return j
	}
	for _, p := range m.copies {
		if p.job.uid == uid {
			return p.job
		}
	}
	return &Job{uid: uid, key: JobKey{u.User, u.Job}, gone: true}
}

// stopLeftover gives a copy its place again, with an order to stop it. Ports and devices
// that others were granted meanwhile are theirs.
func (c *Cell) stopLeftover(m *Machine, p *Copy, u *borgpb.UnknownCopy) {
	cause := borgpb.StopCause_STOP_CAUSE_KILL
	if t := p.job.Task(p.index); t != nil && t.state != stateDead {
		cause = borgpb.StopCause_STOP_CAUSE_DUPLICATE
	}
	var ports []uint16
	for _, n := range u.Ports {
		port := uint16(n)
		if _, used := slices.BinarySearch(m.ports, port); !used && !slices.Contains(ports, port) {
			ports = append(ports, port)
		}
	}
	res := FromProto(&borgpb.Resources{
		CpuMilli: u.Resources.GetCpuMilli(), MemBytes: u.Resources.GetMemBytes(), DiskBytes: u.Resources.GetDiskBytes(),
		DiskBytesPerS: u.Resources.GetDiskBytesPerS(), Ports: int64(len(ports)),
	})
	if p.job.gone && !res.Fits(m.room.capacity.Sub(m.room.held(true))) {
		// The cell has forgotten the job, so the machine's word alone says what the copy has:
		// it counts only as far as the machine has room.
		res = Resources{Ports: res.Ports}
	}
	*p = Copy{
		mark: p.mark, job: p.job, index: p.index, attempt: p.attempt, orphan: p.orphan, next: p.next, version: p.version, restarts: p.restarts,
		pid: p.pid, startedWallNs: p.startedWallNs,
		priority: u.Priority, machine: m, state: attemptStopping, kind: jobKind(u.Kind), res: &res, ports: ports,
	}
	if !p.orphan {
		p.job.stopping++
	}
	c.hold(p)
	c.order(p, cause, fmt.Sprintf("the cell had given up its place on %s, where it runs still", m.name), u.GraceNs)
}
