package sim

import (
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"

	"borg/borgmaster"
	"borg/borgmaster/cell"
	"borg/proto/borgpb"
)

// S20 of who gives way to whom: never to the same priority or a lower one, never
// production to production, never within a band that collapses unless to his own user's
// work that says so; and whoever gives way has at most as long as the other waits. Which
// bands collapse is followed here from the ops alone.

type bandModel struct {
	epoch    uint64
	collapse map[borgpb.Band]bool
}

// bandPriorities has several of each band.
var bandPriorities = []int32{20, 50, 101, 105, 110, 112, 115, 117, 119, 150, 200, 400, 420}

// banded spreads what is submitted and updated over the priorities of all bands, has it
// say how it takes the place of others and how it wants to be told, and now and then has
// the admin say which bands collapse instead; op comes back as it is in a world
// without.
func (c *client) banded(op *borgpb.Op) *borgpb.Op {
	if !c.w.swarm.bands || c.i == operatorClient || c.w.truth.cell.Format() < cell.FormatPreemption {
		return op
	}
	r := c.rand
	if c.user() == adminUser && r.IntN(100) < 8 {
		o := &borgpb.SetPreemptionPolicy{}
		for _, b := range []borgpb.Band{borgpb.Band_BAND_FREE, borgpb.Band_BAND_BATCH, borgpb.Band_BAND_MID, borgpb.Band_BAND_MONITORING} {
			if r.IntN(2) == 0 {
				o.Collapse = append(o.Collapse, b)
			}
		}
		return &borgpb.Op{Op: &borgpb.Op_SetPreemptionPolicy{SetPreemptionPolicy: o}}
	}
	switch o := op.Op.(type) {
	case *borgpb.Op_SubmitJob:
		o.SubmitJob.Spec = c.bandedSpec(o.SubmitJob.Spec)
	case *borgpb.Op_UpdateJob:
		o.UpdateJob.Spec = c.bandedSpec(o.UpdateJob.Spec)
	}
	return op
}

func (c *client) bandedSpec(data []byte) []byte {
	spec := new(borgpb.JobSpec)
	if proto.Unmarshal(data, spec) != nil || spec.Task == nil {
		return data
	}
	r := c.rand
	spec.Priority = bandPriorities[r.IntN(len(bandPriorities))]
	if spec.AllocSet != "" && r.IntN(8) > 0 {
		// More than that of its alloc set is refused, which is tried now and then.
		spec.Priority = min(spec.Priority, allocSetPriority)
	}
	if r.IntN(4) == 0 {
		spec.Preempt = borgpb.Preempt_PREEMPT_OWN
	}
	if r.IntN(2) == 0 {
		spec.PreemptWaitNs = between(r, 50*millisecond, 2*second)
	}
	if r.IntN(3) == 0 {
		spec.Task.NoticeNs = between(r, 100*millisecond, second)
	}
	return encode(spec)
}

// bands follows which bands collapse.
func (t *truth) bands(e borgmaster.CommittedEntry, results []*borgpb.Result) {
	if !t.w.swarm.bands {
		return
	}
	m := &t.banded
	if m.epoch != t.cell.Epoch() {
		// The cell is new, or another one since it was restored.
		*m = bandModel{t.cell.Epoch(), map[borgpb.Band]bool{}}
		for _, b := range t.cell.Collapsed() {
			m.collapse[b] = true
		}
		return
	}
	entry := new(borgpb.Entry)
	if proto.Unmarshal(e.Data, entry) != nil {
		return
	}
	for i, data := range entry.Ops {
		op := new(borgpb.Op)
		if proto.Unmarshal(data, op) != nil || results[i].GetRefusal() != nil || results[i].GetRepeated() || op.GetSetPreemptionPolicy() == nil {
			continue
		}
		m.collapse = map[borgpb.Band]bool{}
		for _, b := range op.GetSetPreemptionPolicy().Collapse {
			m.collapse[b] = true
		}
		t.w.mark("bands collapse")
	}
}

// placedBy is the spec by which a task has its place: not the job's newest while an
// update has not come to the task yet.
func placedBy(j *cell.Job, index uint32) *borgpb.JobSpec {
	if task := j.Task(index); task != nil && task.Current() != nil {
		if s := j.SpecAt(task.Current().Version()); s != nil {
			return s.Proto
		}
	}
	return j.Spec()
}

// roomWaiter is a task or an alloc that was placed just now and waits for room.
type roomWaiter struct {
	name, user string
	mode       borgpb.Preempt
	priority   int32
	waitNs     int64
	// Copies for whose room its own placement waits.
	after []cell.CopyID
}

// taskWaits returns what a task waits for by itself. What its alloc waits for was told the
// time of the alloc set.
func taskWaits(p *cell.Copy, j *cell.Job) *roomWaiter {
	spec := placedBy(j, p.Index())
	after := p.After()
	if a := p.Alloc(); a != nil {
		of := a.After()
		after = slices.DeleteFunc(after, func(id cell.CopyID) bool { return slices.Contains(of, id) })
	}
	return &roomWaiter{p.TaskID().String(), j.Key().User, spec.GetPreempt(), spec.GetPriority(), spec.GetPreemptWaitNs(), after}
}

func allocWaits(a *cell.Alloc) *roomWaiter {
	spec := a.Set().Spec()
	return &roomWaiter{a.Name(), a.Set().Key().User, spec.GetPreempt(), spec.GetPriority(), spec.GetPreemptWaitNs(), a.After()}
}

// limitNs is the time that it leaves those whose place it takes.
func (x *roomWaiter) limitNs() int64 {
	switch {
	case x.waitNs != 0:
		return x.waitNs
	case x.priority >= 120:
		return 10 * second
	}
	return 30 * second
}

// hurries looks at the copies for whose room one waits that was placed just now: of those
// that stopped already and whose place it may take none has longer than it waits.
func (t *truth) hurries(x *roomWaiter, m *cell.Machine) {
	if !t.w.swarm.bands || x.mode == borgpb.Preempt_PREEMPT_NEVER {
		return
	}
	production := func(p int32) bool { return p >= 120 && p < 360 }
	for _, id := range x.after {
		v := m.Copy(id)
		if v == nil || v.State() != borgpb.AttemptState_ATTEMPT_STATE_STOPPING || v.Priority() >= x.priority || production(x.priority) && production(v.Priority()) {
			continue
		}
		mine := x.mode == borgpb.Preempt_PREEMPT_OWN && v.Key().User == x.user
		if band := cell.BandOf(x.priority); band == cell.BandOf(v.Priority()) && t.banded.collapse[band] && !mine {
			continue
		}
		if v.Cause() != borgpb.StopCause_STOP_CAUSE_PREEMPTION {
			t.w.mark("waits for a copy that stopped already")
		}
		if total := v.NoticeNs() + v.GraceNs(); total > x.limitNs() {
			t.w.fail("S20: %v stops and may take %d ms, and %s, which waits for its room, waits %d ms", v.TaskID(), total/millisecond, x.name, x.limitNs()/millisecond)
		}
	}
}

// gaveWay looks at one who gave way.
func (t *truth) gaveWay(ev *cell.Event, victim *cell.Copy) {
	name, ok := strings.CutPrefix(ev.Reason, "makes room for ")
	name, _, _ = strings.Cut(name, " (")
	id, err := cell.ParseTaskID(name)
	if !ok || err != nil {
		t.w.fail("S20: %v gave way, and nobody knows to whom: %q", victim.TaskID(), ev.Reason)
	}
	by, own, waitNs := int32(-1), false, int64(0)
	if j := t.cell.Job(id.Job); j != nil {
		spec := placedBy(j, id.Index)
		by, own, waitNs = spec.GetPriority(), spec.GetPreempt() == borgpb.Preempt_PREEMPT_OWN, spec.GetPreemptWaitNs()
	} else if set := t.cell.AllocSet(id.Job); set != nil {
		by = set.Priority()
	}
	production := func(p int32) bool { return p >= 120 && p < 360 }
	was := victim.Priority()
	if by <= was || production(by) && production(was) {
		t.w.fail("S20: %v of priority %d gave way to %s of priority %d", victim.TaskID(), was, name, by)
	}
	if !t.w.swarm.bands {
		return
	}
	if band := cell.BandOf(by); band == cell.BandOf(was) {
		t.w.mark("gave way within a band")
		if mine := own && id.Job.User == ev.Key.User; t.banded.collapse[band] && !mine {
			t.w.fail("S20: %v of priority %d gave way to %s of priority %d, and %s collapses", victim.TaskID(), was, name, by, cell.BandName(band))
		}
	}
	if total := victim.NoticeNs() + victim.GraceNs(); waitNs > 0 && total > waitNs {
		t.w.fail("S20: %v may take %d ms to end, and %s, whose place it was, waits %d ms", victim.TaskID(), total/millisecond, name, waitNs/millisecond)
	}
	if victim.NoticeNs() > 0 {
		t.w.mark("victim told ahead")
	}
}
