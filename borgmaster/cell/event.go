package cell

import "borg/proto/borgpb"

// Event is one thing that happened, in order. Which fields are set depends on
// ObjectKind: JOB, ALLOC_SET and UPDATE set Key; TASK and ALLOC set Key and
// Task; MACHINE sets Machine; USER, SECRET, FILE and PACKAGE set Name.
type Event struct {
	Index uint64
	N     uint32
	// The entry's own stamp, followed by the cell's wall clock or not.
	WallNs     int64
	Kind       borgpb.EventKind
	ObjectKind borgpb.ObjectKind
	Key        JobKey
	// Index of the task or alloc.
	Task uint32
	// Of the job, alloc set, update or machine.
	UID     UID
	Attempt uint64
	Machine string
	// Alloc "<user>/<name>/<index>" in which a task was placed; empty: on the
	// machine itself.
	Alloc    string
	From, To borgpb.State
	Cause    borgpb.StopCause
	Reason   string
	Exit     *Exit
	// Who asked for it; empty for the cell's own doing.
	User string
	// Of REFUSE, which has no ObjectKind, what it was about, as it was named; of
	// USER the user, or whom a token is for; of SECRET and FILE "<user>/<name>"; of
	// PACKAGE the name of it, and its digest when it is of that alone.
	Name string
	// Of FILE, that of the write or deletion.
	Version uint64
}

// Object is the name that people know: "alice/web", "alice/web/3", "m12".
func (e *Event) Object() string {
	switch e.ObjectKind {
	case borgpb.ObjectKind_OBJECT_KIND_UNSPECIFIED, borgpb.ObjectKind_OBJECT_KIND_USER, borgpb.ObjectKind_OBJECT_KIND_SECRET,
		borgpb.ObjectKind_OBJECT_KIND_FILE, borgpb.ObjectKind_OBJECT_KIND_PACKAGE, borgpb.ObjectKind_OBJECT_KIND_VOLUME:
		return e.Name
	case borgpb.ObjectKind_OBJECT_KIND_TASK, borgpb.ObjectKind_OBJECT_KIND_ALLOC:
		return TaskID{e.Key, e.Task}.String()
	case borgpb.ObjectKind_OBJECT_KIND_MACHINE:
		return e.Machine
	case borgpb.ObjectKind_OBJECT_KIND_CELL:
		return "cell"
	default:
		return e.Key.String()
	}
}

// Proto converts.
func (e *Event) Proto() *borgpb.Event {
	p := new(borgpb.Event)
	e.Put(p)
	return p
}

// Put makes a message say this event, whatever it said.
func (e *Event) Put(p *borgpb.Event) {
	*p = borgpb.Event{
		Index: e.Index, N: e.N, WallNs: e.WallNs, Kind: e.Kind, ObjectKind: e.ObjectKind,
		Object: e.Object(), Attempt: e.Attempt, Machine: e.Machine, From: e.From, To: e.To,
		Cause: e.Cause, Reason: e.Reason, Exit: e.Exit.Proto(), User: e.User, Version: e.Version,
	}
	if !e.UID.IsZero() {
		p.Uid = e.UID.String()
	}
}
