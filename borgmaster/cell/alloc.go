package cell

import (
	"iter"

	"borg/proto/borgpb"
)

// AllocSet is to allocs what a job is to tasks (paper §2.4).
type AllocSet struct {
	mark
	key         JobKey
	uid         UID
	labels      map[string]string
	annotations map[string]string
	// The committed bytes, what they say, and what both take in memory.
	specBytes []byte
	weight    int64
	spec      *borgpb.AllocSetSpec
	need      *Need

	allocs []*Alloc
	// By state; derived.
	counts [numStates]uint32

	submittedWallNs int64
	changedWallNs   int64
	reason          string
	deathSeq        uint64
	deathNs         int64
	// Running allocs by failure domain; nil when no limit per domain is set.
	domains *occupancy
	// Nil: none.
	limits *Limits
	gone   bool

	// 1, and one more with each update and resize.
	version uint64
	// What it was last given, while that is not what it has; nil otherwise.
	given *given
	// Attempts of allocs that a resize cut off are below; none is used twice.
	attemptFloor uint64
	// How many allocs are yet to become what the spec says; derived.
	behind uint32
	// Cell time before which there is no need to look at them.
	againNs int64
}

// Alloc is a place: resources held on one machine, in which tasks run.
type Alloc struct {
	mark
	set   *AllocSet
	index uint32
	state state
	// Counted by the log from 1 with each placement.
	attempt uint64
	// Where it is; nil unless running.
	machine *Machine
	// Where it was when that machine went down. It holds its room there until
	// it is placed anew or the machine comes back; nil otherwise.
	lostOn *Machine
	// Devices that it has on its machine, sorted.
	devices []DeviceGrant
	// Its own room, for the tasks in it. The capacity is what it holds of its machine:
	// what the spec of its set says unless it is behind, and never more.
	room room
	// It has a place and is yet to become what the spec says; and it has to move for that.
	behind, moves bool
	// Copies in it, ordered by CopyID.
	copies        []*Copy
	wait          *waiting
	changedWallNs int64
	reason        string
}

// Key is "<user>/<name>".
func (s *AllocSet) Key() JobKey { return s.key }

// UID tells it from others of that key.
func (s *AllocSet) UID() UID { return s.uid }

// Spec must not be changed.
func (s *AllocSet) Spec() *borgpb.AllocSetSpec { return s.spec }

// Priority is 0 to 450.
func (s *AllocSet) Priority() int32 { return s.spec.Priority }

// Labels must not be changed.
func (s *AllocSet) Labels() map[string]string { return s.labels }

// State follows from the allocs as a job's follows from its tasks.
func (s *AllocSet) State() borgpb.State { return s.stateOf().proto() }

// Need is what each alloc asks for.
func (s *AllocSet) Need() *Need { return s.need }

// NumAllocs is the number of allocs; indices run from 0.
func (s *AllocSet) NumAllocs() uint32 { return uint32(len(s.allocs)) }

// Alloc returns alloc index; nil when there is none.
func (s *AllocSet) Alloc(index uint32) *Alloc {
	if int(index) >= len(s.allocs) {
		return nil
	}
	return s.allocs[index]
}

// Allocs yields all allocs by index.
func (s *AllocSet) Allocs() iter.Seq[*Alloc] {
	return func(yield func(*Alloc) bool) {
		for _, a := range s.allocs {
			if !yield(a) {
				return
			}
		}
	}
}

// Limits of the spec. Must not be changed.
func (s *AllocSet) Limits() *Limits { return s.limits.orNone() }

// InDomain counts the running allocs of the set in m's failure domain of that
// kind. Only kept (otherwise 0) while the spec limits that kind.
func (s *AllocSet) InDomain(kind DomainKind, m *Machine) uint32 {
	return s.domains.in(kind, m)
}

// Gone: a resize cut it off, or its set is gone.
func (a *Alloc) Gone() bool {
	return a.set.gone || int(a.index) >= len(a.set.allocs) || a.set.allocs[a.index] != a
}

// res is what it holds on its machine.
func (a *Alloc) res() *Resources { return &a.room.capacity }

// Set is the alloc set it belongs to.
func (a *Alloc) Set() *AllocSet { return a.set }

// Index in its set.
func (a *Alloc) Index() uint32 { return a.index }

// Name is "<user>/<name>/<index>".
func (a *Alloc) Name() string { return TaskID{a.set.key, a.index}.String() }

// State of the alloc.
func (a *Alloc) State() borgpb.State { return a.state.proto() }

// Attempt is counted by the log from 1 with each placement.
func (a *Alloc) Attempt() uint64 { return a.attempt }

// Machine that it is on; nil unless running.
func (a *Alloc) Machine() *Machine { return a.machine }

// Capacity is what the tasks in it may use in all.
func (a *Alloc) Capacity() Resources { return a.room.capacity }

// Devices that it has on its machine, sorted. Must not be changed.
func (a *Alloc) Devices() []DeviceGrant { return a.devices }

// Held is what the tasks in it hold; see Machine.Held.
func (a *Alloc) Held(prod bool) Resources { return a.room.held(prod) }

// Copies yields what holds a place in it, ordered by CopyID.
func (a *Alloc) Copies() iter.Seq[*Copy] {
	return func(yield func(*Copy) bool) {
		for _, p := range a.copies {
			if !yield(p) {
				return
			}
		}
	}
}

// After names the copies that must be gone before anything starts in it.
func (a *Alloc) After() []CopyID {
	if a.wait == nil {
		return nil
	}
	return a.wait.ids(nil)
}
