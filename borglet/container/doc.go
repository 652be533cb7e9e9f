// Package container starts the processes of tasks: in containers
// (libcontainer) or, where root, cgroups or cgo are missing, as plain
// processes. It is the only code that knows Linux, and the only code that uses
// cgo.
//
// Each run of a task has a process of its own that watches over it, its shim:
//
//	borglet ── starts ──► shim ── starts ──► container: init ──► the task
//	   │                   │                    │
//	   └── reads ──────────┴── files in the copy's directory ──┘
//
// The borglet and the shim share files and nothing else, so that either may
// die, and the borglet be replaced by another build, at any moment:
//
//	launch.json  what to start; the borglet writes it, then starts the shim
//	lock         held by the shim as long as it lives, from before its first
//	             instruction: it inherits the locked file. Holds its pid
//	pid.json     the task's process; written before the task's program begins
//	status       how the program ended, written by the init beside it, so that
//	             it is known even if the shim dies first
//	exit.json    how the run ended; the shim's last word, synced
//	shim.log     what the shim and libcontainer complain of
//	stdout, stderr  what the task writes; no process of ours is in between
//	rootfs/      mount points of the container's root file system
//	upper/       what a run whose root is a package has written there
//	lower/, trees/, work/  how its packages are mounted, see overlay.go
//
// A dead shim does not end its task: the borglet then follows the task's
// process itself.
//
// A program that is run beside a task has a process of its own too, the entrant
// (entrant.go). It shares a socket with the borglet, and ends the program when that
// breaks: what runs beside a task does not outlive who asked for it.
package container
