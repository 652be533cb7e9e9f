package container

import (
	"fmt"
	"syscall"

	"golang.org/x/sys/unix"
)

const (
	// openFiles is the limit on open files, if the machine allows as many.
	openFiles = 1 << 16
	// queuedSignals, queueBytes and lockedBytes bound what the kernel counts by user: of a
	// copy with user ids of its own by these alone; else of root's, who are all such copies
	// and the machine together.
	queuedSignals = 4096
	queueBytes    = 800 << 10
	lockedBytes   = 8 << 20
)

// taskLimits are the limits of single processes of a task, and of what the kernel counts
// by user. Processes have none here: the cgroup bounds them, and the limit by user would
// hold up a shim that is no root of the machine.
var taskLimits = []struct {
	kind int
	most uint64
}{
	{unix.RLIMIT_NOFILE, openFiles},
	{unix.RLIMIT_CORE, 0},
	{unix.RLIMIT_SIGPENDING, queuedSignals},
	{unix.RLIMIT_MSGQUEUE, queueBytes},
	{unix.RLIMIT_MEMLOCK, lockedBytes},
}

// limitSelf gives this process the limits of a task, which inherits them. To give them to
// the task's process would need more rights than a borglet in a container may have. A hard
// limit of the borglet's own cannot always be raised, not even by root.
func limitSelf() error {
	for _, l := range taskLimits {
		var own syscall.Rlimit
		if err := syscall.Getrlimit(l.kind, &own); err != nil {
			return fmt.Errorf("read limit %d: %w", l.kind, err)
		}
		most := min(l.most, own.Max)
		// Not that of package unix: this one is told to the children that Go starts.
		if err := syscall.Setrlimit(l.kind, &syscall.Rlimit{Cur: most, Max: most}); err != nil {
			return fmt.Errorf("set limit %d: %w", l.kind, err)
		}
	}
	return nil
}
