package borglet

import (
	"errors"
	"fmt"
	"path/filepath"
)

// errStopped answers what comes while the borglet ends.
var errStopped = errors.New("the borglet is stopping; ask again")

// refusal is why a poll is not obeyed, other than for its age.
type refusal struct {
	verdict verdict
	fence   Fence
	dir     string
	cellID  string
	machine string
}

func (r *refusal) Error() string {
	if r.verdict == otherMachine {
		return fmt.Sprintf("this borglet is machine %q and has running tasks of it, so it does not obey as machine %q; remove one of the two from the cell", r.fence.Machine, r.machine)
	}
	return fmt.Sprintf("this borglet obeys cell %s, not cell %s; to move the machine, stop its tasks, stop the borglet, remove %s and start it again",
		r.fence.CellID, r.cellID, filepath.Join(r.dir, "fence.json"))
}

// String is the name of an op in logs.
func (o Op) String() string {
	switch o {
	case OpStart:
		return "start"
	case OpTerminate:
		return "terminate"
	case OpKill:
		return "kill"
	case OpUpdate:
		return "update"
	case OpDestroy:
		return "destroy"
	case OpRemove:
		return "remove"
	case OpSave:
		return "save"
	case OpWarn:
		return "warn"
	default:
		return fmt.Sprintf("op %d", uint8(o))
	}
}
