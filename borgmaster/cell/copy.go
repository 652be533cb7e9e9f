package cell

import (
	"borg/proto/borgpb"
)

// Copy is one attempt of a task: the row says what should be, the copies say
// what is on which machine. It holds its place (resources and ports) until it
// has ended.
type Copy struct {
	mark
	// Its job. That of an orphan may be replaced by now, or have fewer tasks.
	job      *Job
	index    uint32
	priority int32
	attempt  uint64

	machine *Machine
	// Alloc in whose room it holds its place; nil: the machine's own.
	alloc *Alloc

	state  attemptState
	orphan bool
	// Whether the copy is charged while it stops, apart from its task. Derived.
	stopCharged stopCharging
	// shim_lost of the last report.
	shimLost bool
	kind     jobKind
	// Spec that it runs, while it may be its task's current copy: now, or again
	// when its machine comes back. Nil once there is an order to stop it.
	spec    *Spec
	version uint64
	// What it holds. Shared with a Need: never changed in place.
	res   *Resources
	ports []uint16

	// What it will use, as far as anybody can tell; nil: its limit.
	estimate *reservation

	restarts      uint32
	pid           int64
	startedWallNs int64
	// How its last process ended; nil: none has.
	exit *Exit
	// What its borglet said last, for people.
	text string
	// Why and how it is stopped; nil: it is not.
	stop *stopping
	// Wall time at which it ended; zero: it has not.
	endedWallNs int64
	// Victims that must be gone before it starts; nil: none.
	wait *waiting
	// What few copies have; nil: nothing of it.
	few *rareCopy

	// Next older copy of the same row.
	next *Copy
}

// rareCopy is what few copies have, apart from the others so that those stay
// small.
type rareCopy struct {
	// Devices that it has, sorted.
	devices []DeviceGrant
	// What it says of itself; nil: nothing.
	note *note
	// Cell time since which an update watches it run; zero: none does. Only of one
	// that is current and running.
	upNs int64
	// Cell time as of which it was last heard to run and to be well, at the end of the
	// window of a canary; zero: it was not.
	wellNs int64
	// Why it is kept out of service; nil: it is not.
	quarantine *quarantine
	// Its own address; empty: its machine's, or it has not said.
	addr string
	// In which volumes it works; nil: in none.
	uses *uses
	// Alloc in whose directory it still works: the alloc has left the machine, and the copy
	// stops there. Nil if it has its alloc, had none, or has ended.
	left *TaskID
}

// rare makes room for what few copies have.
func (p *Copy) rare() *rareCopy {
	if p.few == nil {
		p.few = new(rareCopy)
	}
	return p.few
}

// Devices that it has, sorted. Must not be changed.
func (p *Copy) Devices() []DeviceGrant {
	if p.few == nil {
		return nil
	}
	return p.few.devices
}

// stopping is an order to stop, as written in the log.
type stopping struct {
	cause   borgpb.StopCause
	reason  string
	index   uint64
	graceNs int64
	// How long before SIGTERM it is told.
	noticeNs int64
	// Whether it makes room for work of its own user.
	own bool
	// The one who waits for this copy's room; nil: nobody. Derived.
	promised *waiting
}

// ID names the copy.
func (p *Copy) ID() CopyID { return CopyID{p.job.uid, p.index, p.attempt} }

// Key is that of its job.
func (p *Copy) Key() JobKey { return p.job.key }

// JobUID is that of its job.
func (p *Copy) JobUID() UID { return p.job.uid }

// Index of its task.
func (p *Copy) Index() uint32 { return p.index }

// Attempt is counted by the log from 1 for each task.
func (p *Copy) Attempt() uint64 { return p.attempt }

// TaskID names its task.
func (p *Copy) TaskID() TaskID { return TaskID{p.job.key, p.index} }

// Kind of its job.
func (p *Copy) Kind() borgpb.JobKind { return borgpb.JobKind(p.kind) }

// Priority at which it holds its place.
func (p *Copy) Priority() int32 { return p.priority }

// Machine that it is or was on.
func (p *Copy) Machine() *Machine { return p.machine }

// Alloc in which it holds its place; nil: on the machine itself.
func (p *Copy) Alloc() *Alloc { return p.alloc }

// State is what its borglet last said, or what the log decided since.
func (p *Copy) State() borgpb.AttemptState { return borgpb.AttemptState(p.state) }

// Current tells whether it is its task's current copy.
func (p *Copy) Current() bool { return p.state.current() }

// Live tells whether it still holds a place.
func (p *Copy) Live() bool { return p.state.live() }

// Version of the spec that it runs.
func (p *Copy) Version() uint64 { return p.version }

// Resources that it holds: its limit.
func (p *Copy) Resources() Resources { return *p.res }

// Ports granted to it, in the order of the spec's names.
func (p *Copy) Ports() []uint32 { return widePorts(p.ports) }

func widePorts(ports []uint16) []uint32 {
	if len(ports) == 0 {
		return nil
	}
	out := make([]uint32, len(ports))
	for i, n := range ports {
		out[i] = uint32(n)
	}
	return out
}

// Restarts that its borglet made.
func (p *Copy) Restarts() uint32 { return p.restarts }

// PID of its process on its machine.
func (p *Copy) PID() int64 { return p.pid }

// StartedWallNs is when its present process started.
func (p *Copy) StartedWallNs() int64 { return p.startedWallNs }

// Exit is how its last process ended; nil when none has.
func (p *Copy) Exit() *borgpb.Exit { return p.exit.Proto() }

// Cause of the order to stop it; UNSPECIFIED: there is none.
func (p *Copy) Cause() borgpb.StopCause {
	if p.stop == nil {
		return borgpb.StopCause_STOP_CAUSE_UNSPECIFIED
	}
	return p.stop.cause
}

// StopIndex is the log index of the order to stop it.
func (p *Copy) StopIndex() uint64 {
	if p.stop == nil {
		return 0
	}
	return p.stop.index
}

// GraceNs bounds the time between SIGTERM and SIGKILL; zero: kill at once.
func (p *Copy) GraceNs() int64 {
	if p.stop == nil {
		return 0
	}
	return p.stop.graceNs
}

// StopReason is who or what is behind the order to stop it, for people; empty: there
// is no order, or nothing is said.
func (p *Copy) StopReason() string {
	if p.stop == nil {
		return ""
	}
	return p.stop.reason
}

// Reason of the order to stop it, or what its borglet said last.
func (p *Copy) Reason() string {
	if p.stop != nil && p.stop.reason != "" {
		return p.stop.reason
	}
	return p.text
}

// After names the copies that must be gone before this one starts.
func (p *Copy) After() []CopyID {
	var ids []CopyID
	if p.wait != nil {
		ids = p.wait.ids(ids)
	}
	if p.alloc != nil && p.alloc.wait != nil {
		ids = p.alloc.wait.ids(ids)
	}
	return ids
}

// Claimed tells that somebody waits for this copy's room; nobody else may name
// it as a victim.
func (p *Copy) Claimed() bool { return p.stop != nil && p.stop.promised != nil }

// Waits tells that it does not start before its victims, or those of its alloc,
// are gone.
func (p *Copy) Waits() bool { return p.wait != nil || (p.alloc != nil && p.alloc.wait != nil) }

// TaskSpec is what it runs: the job's spec with the overrides for its index,
// late-bound names as written. Nil when it is no longer current. Its environment is
// that of MergedSpec only.
func (p *Copy) TaskSpec() *borgpb.TaskSpec {
	if p.spec == nil {
		return nil
	}
	return p.spec.Need(p.index).Task
}

// MergedSpec is TaskSpec with the whole environment; it is made for each call.
func (p *Copy) MergedSpec() *borgpb.TaskSpec {
	if p.spec == nil {
		return nil
	}
	return p.spec.Need(p.index).Merged()
}

// jobKind mirrors borgpb.JobKind in a byte.
type jobKind uint8
