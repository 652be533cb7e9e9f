package cell

import (
	"iter"
	"slices"

	"borg/proto/borgpb"
)

// Machine is one computer of the cell and what holds a place on it.
type Machine struct {
	mark
	name        string
	uid         UID
	version     uint64
	labels      map[string]string
	annotations map[string]string

	addr       string
	attributes map[string]string
	// Ports that may be granted, first to last inclusive.
	portFirst, portLast uint16
	taints              []Taint
	// Digests of packages of which all is there, sorted, and the port at which its
	// borglet serves them; 0: it does not. Since format 6.
	packages    []string
	packagePort uint16

	down, draining bool
	reason         string
	// How it is being emptied. Nil: it is not, or since before format 5.
	drain *drain
	// Of a restored cell: it has not told yet what it runs, or how many live copies
	// there are that the cell does not have.
	unheard bool
	unknown uint32
	// The cell's restore.
	held          *restored
	changedWallNs int64

	// The machine's own room: capacity and what is held of it.
	room room
	// Copies on the machine, in allocs too, ordered by CopyID.
	copies []*Copy
	// Allocs on it (or, while it is down, last known there), ordered by set uid
	// and index.
	allocs []*Alloc
	// Volumes on its disk, by key, those among them that it is to delete.
	volumes []*Volume
	// How many of them yield, those that were given up since among them; derived.
	yielding int
	// Granted ports, ascending. One that was granted to a waiting copy is
	// there twice until its victim is gone.
	ports []uint16
	// Ports of the range that others hold, ascending, none of them granted. At most
	// maxHeldPorts. Since format 12.
	heldPorts []heldPort
	// Failure domains, by kind.
	domains [DomainAttribute]domain
	// Constraints know its name; derived from the format.
	named bool
	gone  bool
	// Changes of it, of its copies, and of the allocs that those are in. Derived, and
	// not the same on all replicas.
	changes uint64
}

// Changes counts what has changed of the machine, of its copies and of the allocs that
// they are in, since this object was made: between two looks with the same count, all
// that its borglet is to hear was the same.
func (m *Machine) Changes() uint64 { return m.changes }

// Name is unique in the cell.
func (m *Machine) Name() string { return m.name }

// UID tells it from others of that name.
func (m *Machine) UID() UID { return m.uid }

// Version counts the changes of what is said of it, from 1.
func (m *Machine) Version() uint64 { return m.version }

// Labels must not be changed.
func (m *Machine) Labels() map[string]string { return m.labels }

// Addr is the host:port of its borglet.
func (m *Machine) Addr() string { return m.addr }

// Attribute returns the value of an attribute: that of NameAttribute is the
// machine's name.
func (m *Machine) Attribute(key string) (value string, ok bool) {
	if m.named && key == NameAttribute {
		return m.name, true
	}
	value, ok = m.attributes[key]
	return value, ok
}

// Attributes are those that somebody gave it. Must not be changed.
func (m *Machine) Attributes() map[string]string { return m.attributes }

// Taints must not be changed.
func (m *Machine) Taints() []Taint { return m.taints }

// PortRange is what may be granted, first to last inclusive; 0, 0 is none.
func (m *Machine) PortRange() (first, last uint16) { return m.portFirst, m.portLast }

// Packages are the digests of those that it has said to have, sorted. Must not be
// changed.
func (m *Machine) Packages() []string { return m.packages }

// HasPackage tells whether it has said to have one.
func (m *Machine) HasPackage(digest string) bool {
	_, has := slices.BinarySearch(m.packages, digest)
	return has
}

// PackagePort is where its borglet serves them to other machines; 0: it does not.
func (m *Machine) PackagePort() uint16 { return m.packagePort }

// UsedPorts are the granted ports, ascending. Must not be changed.
func (m *Machine) UsedPorts() []uint16 { return m.ports }

// Up tells that nobody found it down.
func (m *Machine) Up() bool { return !m.down }

// ChangedWallNs is when it was last added, set, or called up or down, by the cell's wall clock.
func (m *Machine) ChangedWallNs() int64 { return m.changedWallNs }

// State is up or down.
func (m *Machine) State() borgpb.MachineState {
	if m.down {
		return borgpb.MachineState_MACHINE_STATE_DOWN
	}
	return borgpb.MachineState_MACHINE_STATE_UP
}

// Draining tells that it takes no new tasks.
func (m *Machine) Draining() bool { return m.draining }

// Capacity is what tasks may use in all; Ports is the size of the port range without
// what others hold of it.
func (m *Machine) Capacity() Resources { return m.room.capacity }

// Held is the sum of what holds a place in the view of production tasks (by
// limits) or of others (by reservations), with promised room counted once.
func (m *Machine) Held(prod bool) Resources { return m.room.held(prod) }

// Copies yields everything that holds a place on the machine, in allocs too:
// current copies, STOPPING and UNREACHABLE ones, ordered by CopyID.
func (m *Machine) Copies() iter.Seq[*Copy] {
	return func(yield func(*Copy) bool) {
		for _, p := range m.copies {
			if !yield(p) {
				return
			}
		}
	}
}

// NumCopies counts Copies.
func (m *Machine) NumCopies() int { return len(m.copies) }

// Copy returns the copy of that id that holds a place on the machine; nil when
// there is none.
func (m *Machine) Copy(id CopyID) *Copy { return m.find(id) }

// Allocs yields the allocs on the machine.
func (m *Machine) Allocs() iter.Seq[*Alloc] {
	return func(yield func(*Alloc) bool) {
		for _, a := range m.allocs {
			if !yield(a) {
				return
			}
		}
	}
}
