package cell

import (
	"maps"
	"slices"

	"google.golang.org/protobuf/proto"

	"borg/proto/borgpb"
)

// TaskView is a task as it is shown, at the index at which it was looked at. To look
// is cheap, so that all tasks of a job can be looked at while the log waits; to show
// is not, and may be done at any time by anybody: nothing that a view refers to and
// shows ever changes. What seldom changes, and what many have in common, is shared.
type TaskView struct {
	place              *taskPlace
	how                *taskHow
	pid, startedWallNs int64
}

// taskPlace is what a task is and where; it stays while its copy lives.
type taskPlace struct {
	need             *Need
	attempt, version uint64
	// Where the task is or was last; nil: nothing is said of a place, nor of what
	// follows.
	machine  *Machine
	alloc    *Alloc
	ports    []uint16
	res      *Resources
	estimate *reservation
	// Nil: nothing of it.
	few *rareCopy
	// Of a daemon job: the machine whose task it is; nil: of none.
	seat *Machine
}

// taskHow is what became of a task; those of a job that is killed have it in common.
type taskHow struct {
	changedWallNs      int64
	reason             string
	exit               *Exit
	failures, restarts uint32
	state              state
	attemptState       attemptState
}

// Looker looks at tasks. Zero is ready.
type Looker struct {
	// Of the task before.
	how *taskHow
	// Of the last task that was never placed: those of jobs alike have it in common.
	place *taskPlace
}

// Look sees t as it is now. Was is what was seen of the same task before; nil: nothing.
func (l *Looker) Look(t *Task, was *TaskView) (v TaskView) {
	j, spec := t.job, t.job.specOf(t.index)
	place := taskPlace{attempt: t.attempt, version: spec.Version}
	how := taskHow{changedWallNs: t.changedWallNs, reason: t.reason, failures: t.failures, state: t.state}
	if how.changedWallNs == 0 {
		// Never placed.
		how.changedWallNs = j.submittedWallNs
		// The tasks of a daemon job end while it goes on, and change no more when it does.
		if t.state == stateDead && j.daemon == nil {
			how.changedWallNs, how.reason = j.changedWallNs, j.reason
		}
	}
	p := t.cur
	if p == nil && t.past != nil && t.past.attempt == t.attempt {
		p = t.past
	}
	if p != nil {
		how.exit = p.exit
		if t.state != statePending {
			// A pending task has no place, so nothing is said of the one that it had.
			place.version, place.machine, place.alloc, place.ports = p.version, p.machine, p.alloc, p.ports
			place.res, place.estimate, place.few = p.res, p.estimate, p.few
			how.attemptState, how.restarts, v.startedWallNs = p.state, p.restarts, p.startedWallNs
			if p.state.live() {
				v.pid = p.pid
			}
			if how.reason == "" {
				how.reason = p.Reason()
			}
		}
		if t.cur != nil {
			spec = t.cur.spec
		}
	}
	place.need = spec.Need(t.index)
	place.seat = j.Seat(t.index)
	v.place, v.how = l.keepPlace(&place, was), l.keep(&how, was)
	return v
}

// refersTo tells whether both are alike in all that they refer to.
func (p *taskPlace) refersTo(o *taskPlace) bool {
	return p.need == o.need && p.attempt == o.attempt && p.version == o.version && p.machine == o.machine && p.alloc == o.alloc &&
		p.res == o.res && p.estimate == o.estimate && p.few.same(o.few) && p.seat == o.seat && slices.Equal(p.ports, o.ports)
}

// keepPlace is that as was seen before, if it is alike in all that it refers to.
func (l *Looker) keepPlace(p *taskPlace, was *TaskView) *taskPlace {
	if was != nil && p.refersTo(was.place) {
		return was.place
	}
	if p.attempt == 0 {
		if l.place == nil || !p.refersTo(l.place) {
			kept := *p
			l.place = &kept
		}
		return l.place
	}
	kept := *p
	if p.few != nil {
		// A note comes and goes in it.
		few := *p.few
		kept.few = &few
	}
	return &kept
}

func (l *Looker) keep(h *taskHow, was *TaskView) *taskHow {
	if l.how != nil && *h == *l.how {
		return l.how
	}
	if was != nil && *h == *was.how {
		return was.how
	}
	kept := *h
	l.how = &kept
	return l.how
}

// Version of the spec that it runs, or would.
func (v *TaskView) Version() uint64 { return v.place.version }

// TextBytes is what it holds of texts, about.
func (v *TaskView) TextBytes() int {
	n := len(v.how.reason)
	if few := v.place.few; few != nil && few.note != nil {
		n += len(few.note.text)
		for k, s := range few.note.annotations {
			n += len(k) + len(s)
		}
	}
	return n
}

// Equal tells whether both are shown alike.
func (v *TaskView) Equal(o *TaskView) bool {
	return v.pid == o.pid && v.startedWallNs == o.startedWallNs && (v.how == o.how || v.how.same(o.how)) && (v.place == o.place || v.place.same(o.place))
}

func (h *taskHow) same(o *taskHow) bool {
	return h.changedWallNs == o.changedWallNs && h.reason == o.reason && h.exit.same(o.exit) && h.failures == o.failures &&
		h.restarts == o.restarts && h.state == o.state && h.attemptState == o.attemptState
}

func (p *taskPlace) same(o *taskPlace) bool {
	return p.attempt == o.attempt && p.version == o.version && p.machine == o.machine && p.alloc == o.alloc && slices.Equal(p.ports, o.ports) &&
		p.few.same(o.few) && p.seat == o.seat && p.sameReservation(o) &&
		// Equal specs may be of different versions.
		(p.need == o.need || proto.Equal(p.need.Merged(), o.need.Merged()))
}

func (p *taskPlace) sameReservation(o *taskPlace) bool {
	if p.machine == nil || o.machine == nil {
		return p.machine == o.machine
	}
	if (p.estimate == nil) != (o.estimate == nil) {
		return false
	}
	a, b := p.estimate.of(p.res), o.estimate.of(o.res)
	return a.Equal(b) && (p.estimate == nil || p.estimate.setNs == o.estimate.setNs)
}

func (r *rareCopy) same(o *rareCopy) bool {
	if r == o {
		return true
	}
	var a, b rareCopy
	if r != nil {
		a = *r
	}
	if o != nil {
		b = *o
	}
	return slices.Equal(a.devices, b.devices) && a.note.same(b.note) && a.addr == b.addr
}

func (n *note) same(o *note) bool {
	if n == nil || o == nil {
		return n == o
	}
	return n.text == o.text && maps.Equal(n.annotations, o.annotations)
}

// Proto shows the task of that index. Meta is that of its job, at Version.
func (v *TaskView) Proto(meta *borgpb.Meta, index uint32) *borgpb.Task {
	h, p := v.how, v.place
	st := &borgpb.TaskStatus{
		State: h.state.proto(), Reason: h.reason, Attempt: p.attempt, Failures: h.failures,
		ChangedWallNs: h.changedWallNs, LastExit: h.exit.Proto(),
	}
	if p.machine != nil {
		st.Machine, st.Ports, st.Restarts = p.machine.name, widePorts(p.ports), h.restarts
		st.AttemptState, st.StartedWallNs, st.Pid = borgpb.AttemptState(h.attemptState), v.startedWallNs, v.pid
		if p.alloc != nil {
			st.Alloc = p.alloc.Name()
		}
		reserved := p.estimate.of(p.res)
		st.Reservation = &borgpb.Reservation{Resources: reserved.Proto()}
		if p.estimate != nil {
			st.Reservation.SetCellNs = p.estimate.setNs
		}
		if p.few != nil {
			st.Devices, st.Addr = GrantsProto(p.few.devices), p.few.addr
			if n := p.few.note; n != nil {
				st.Note, st.NoteAnnotations = n.text, maps.Clone(n.annotations)
			}
		}
	}
	if p.seat != nil {
		st.Seat = p.seat.name
	}
	return &borgpb.Task{Meta: meta, Index: index, Spec: p.need.Merged(), Status: st}
}

// AllocView is to an alloc what a TaskView is to a task.
type AllocView struct {
	machine       *Machine
	attempt       uint64
	changedWallNs int64
	reason        string
	state         state
}

// View is the alloc itself as it is now: not what is placed in it.
func (a *Alloc) View() AllocView {
	v := AllocView{a.machine, a.attempt, a.changedWallNs, a.reason, a.state}
	if v.changedWallNs == 0 {
		v.changedWallNs = a.set.submittedWallNs
	}
	return v
}

// TextBytes is what it holds of texts.
func (v *AllocView) TextBytes() int { return len(v.reason) }

// Proto shows the alloc of that index. Meta is that of its set.
func (v *AllocView) Proto(meta *borgpb.Meta, index uint32) *borgpb.Alloc {
	st := &borgpb.AllocStatus{State: v.state.proto(), Reason: v.reason, ChangedWallNs: v.changedWallNs, Attempt: v.attempt}
	if v.machine != nil {
		st.Machine = v.machine.name
	}
	return &borgpb.Alloc{Meta: meta, Index: index, Status: st}
}
