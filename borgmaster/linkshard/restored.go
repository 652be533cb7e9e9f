package linkshard

import (
	"borg/borgmaster/cell"
	"borg/proto/borgpb"
	"borg/proto/borgrpc"
)

// A restored cell is older than its machines. Each of them is heard once: what it
// runs that the cell has not, and what it has not that the cell has. Until then it is
// sent no copy that it does not have (that one may have ended there, and must not run
// again) and told to forget none (the cell has not seen its end).

// maxDescribed bounds the copies that one poll asks a borglet to describe.
const maxDescribed = 512

// describe names later copies of tasks of the cell, of which must be known what
// they hold before they can be taken, and copies that the cell has given up. What is
// described was there after an order that did not name it.
func describe(c *cell.Cell, m *cell.Machine, known *Known) (ids []*borgrpc.CopyID) {
	for _, t := range known.Tasks {
		id, ok := idOf(t)
		if ok && m.Copy(id) == nil && (adoptable(c, id, t) || left(c, m, id, t)) && known.described[id] == nil && len(ids) < maxDescribed {
			ids = append(ids, copyID(id))
		}
	}
	return ids
}

// adoptable tells whether the cell takes a copy that it does not have as that of a
// task that it has. One that is being stopped, or was, is none.
func adoptable(c *cell.Cell, id cell.CopyID, t *borgpb.TaskReport) bool {
	switch borgpb.AttemptState(t.State) {
	case borgpb.AttemptState_ATTEMPT_STATE_STOPPING, borgpb.AttemptState_ATTEMPT_STATE_STOPPED:
		return false
	}
	return c.Later(id)
}

// left reports whether a copy that lives is one that the cell has given up.
func left(c *cell.Cell, m *cell.Machine, id cell.CopyID, t *borgpb.TaskReport) bool {
	return !terminal(t.State) && c.Leftover(m, id)
}

// maxLeft bounds the copies of one machine of which the cell hears at once that it has
// given them up.
const maxLeft = 64

// leftCopy is what the cell hears of one of them.
func leftCopy(t *borgpb.TaskReport, d *borgrpc.Desired) *borgpb.UnknownCopy {
	return &borgpb.UnknownCopy{
		JobUid: t.JobUid, Index: t.Index, Attempt: t.Attempt, User: d.User, Job: d.Job, Kind: d.Kind, Priority: d.Priority,
		Resources: d.Spec.GetResources(), Ports: d.Ports, GraceNs: d.Spec.GetGraceNs(),
	}
}

// Unknown is what a machine of a restored cell says that it has and the cell does not
// know: what is live, and how what has ended has ended.
func Unknown(c *cell.Cell, m *cell.Machine, tasks []*borgpb.TaskReport) (unknown []*borgpb.TaskReport) {
	for _, t := range tasks {
		id, ok := idOf(t)
		if m != nil && ok && m.Copy(id) == nil && (!terminal(t.State) || !remembers(c, id, t)) {
			unknown = append(unknown, t)
		}
	}
	return unknown
}

// Found is a copy as its borglet has it.
func Found(machine string, t *borgpb.TaskReport, d *borgrpc.Desired) *borgpb.FoundCopy {
	return &borgpb.FoundCopy{
		Machine: machine, Report: clipped(t), Version: d.GetVersion(), Ports: d.GetPorts(), Alloc: d.GetAlloc(), Devices: d.GetDevices(),
	}
}

// hear finds what the cell should hear of a machine since it was restored, and what
// runs there that it has given up.
func (cmp *Comparison) hear(now int64, c *cell.Cell, m *cell.Machine, known *Known, seen map[cell.CopyID]bool) {
	if cmp.Down {
		return
	}
	h := &borgpb.HeardMachine{Machine: m.Name()}
	here := make(map[cell.CopyID]bool)
	for _, t := range known.Tasks {
		id, ok := idOf(t)
		switch {
		case !ok || m.Copy(id) != nil:
		case left(c, m, id, t):
			cmp.Busy = true
			if d := known.described[id]; d != nil {
				here[id] = true
				if len(h.Left) < maxLeft {
					h.Left = append(h.Left, leftCopy(t, d))
				}
			}
		case adoptable(c, id, t):
			d := known.described[id]
			if d == nil {
				// It is described with the next poll.
				cmp.Busy = true
				return
			}
			here[id] = true
			h.Found = append(h.Found, Found(m.Name(), t, d))
		case !terminal(t.State) && id.Job.Epoch < c.Epoch():
			h.Unknown++
		}
	}
	for id := range known.described {
		if !here[id] {
			delete(known.described, id)
		}
	}
	if m.Unheard() {
		for p := range m.Copies() {
			if id := p.ID(); !seen[id] {
				h.Missing = append(h.Missing, &borgpb.Victim{JobUid: id.Job.String(), Index: id.Index, Attempt: id.Attempt})
			}
		}
	}
	// What was found and could not be taken counts as unknown.
	if !m.Unheard() && h.Unknown+uint32(len(h.Found)) == m.Unknown() && len(h.Left) == 0 {
		known.hearAgainNs = 0
		return
	}
	cmp.Busy = true
	if now >= known.hearAgainNs {
		cmp.Heard, known.hearAgainNs = h, now+tellAgainNs
	}
}
