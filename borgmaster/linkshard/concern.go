package linkshard

import (
	"borg/borgmaster/cell"
	"borg/proto/borgpb"
)

// Concerned returns the machines whose borglets have to hear of what happened.
func Concerned(events []cell.Event) (machines []string) {
	for i := range events {
		if e := &events[i]; e.Machine != "" && concernsBorglet(e.Kind) {
			machines = append(machines, e.Machine)
		}
	}
	return machines
}

// concernsBorglet leaves out what the borglet itself has just said, and what
// only schedulers act on.
func concernsBorglet(kind borgpb.EventKind) bool {
	switch kind {
	case borgpb.EventKind_EVENT_KIND_START, borgpb.EventKind_EVENT_KIND_RESTART, borgpb.EventKind_EVENT_KIND_STOPPED,
		borgpb.EventKind_EVENT_KIND_NOT_STARTED,
		borgpb.EventKind_EVENT_KIND_FINISH, borgpb.EventKind_EVENT_KIND_FAIL, borgpb.EventKind_EVENT_KIND_RESERVE,
		borgpb.EventKind_EVENT_KIND_MACHINE_PACKAGES:
		return false
	}
	return true
}
