package borglet

import (
	"syscall"
	"time"

	"borg/proto/borgpb"
)

// Runtime starts the processes of tasks and sees them end. It outlives the
// borglet: what it started goes on without it, and the next one's runtime finds
// it again. Each of its methods may be called from several goroutines, for
// different copies at once.
type Runtime interface {
	Capabilities() Capabilities
	// Start begins a run in l.Dir and returns; how it went is an event.
	Start(l *Launch) error
	// Recover says how a run that an earlier borglet began is, and follows it
	// from then on. Of l, only ID, Run, Dir, Ports and limits are set.
	Recover(l *Launch) (Observed, error)
	// Settle puts in order what runs share, after all those of an earlier borglet have
	// been recovered.
	Settle() error
	// Warn sends SIGUSR1, Terminate SIGTERM, Kill ends the run for certain.
	Warn(id ID) error
	Terminate(id ID) error
	// Signal sends another signal, which the task's program handles as it likes.
	Signal(id ID, signal syscall.Signal) error
	Kill(id ID) error
	// Update changes the limits of a run in place.
	Update(l *Launch) error
	// Stats says what copies use. One that cannot be asked is absent.
	Stats(ids []ID) map[ID]Stats
	// AllocStats says what all in each alloc uses together, by AllocName. One that
	// cannot be asked is absent, as all are where an alloc is not held together.
	AllocStats(allocs []string) map[string]Stats
	// Exec runs a program inside a run, beside the task's own; ErrNotRunning and
	// *ProgramError are told from all else. It ends with the borglet and with the run.
	Exec(p *Program) (*Execution, error)
	// Destroy takes away what an ended run left outside its directory. What is
	// not there any more is no error.
	Destroy(id ID) error
	// Events are what is observed, until Close.
	Events() <-chan Observed
	// Close stops following. What runs goes on.
	Close() error
}

// Capabilities is what a runtime can do here.
type Capabilities struct {
	// "container" or "process"; the machine's attribute runtime.
	Runtime string
	// "v1", "v2" or "none"; the machine's attribute cgroup.
	Cgroup string
	// "filter" or "none": what a task may ask of the kernel is filtered; the
	// machine's attribute seccomp.
	Seccomp string
	// "own" or "none": each copy has a user name space of its own, with user ids
	// that nobody else on the machine has; the machine's attribute userns.
	Userns string
	// "blocked" or "told": what becomes of a port that a task uses and was not granted;
	// the machine's attribute ports.
	Ports string
	// "own" or "machine": whether tasks can have networks of their own here; the
	// machine's attribute network.
	Network string
	// "refused" or "measured": what becomes of writes beyond the disk limit of a task. The
	// file system refuses them, or who wrote them is ended when it is noticed; the
	// machine's attribute disk_limit.
	DiskLimit string
	// Limits are enforced.
	Limits bool
	// OwnFiles: a task has a file system of its own and sees its directory as
	// /task; otherwise it sees the machine's.
	OwnFiles bool
	// Cores that tasks may have alone; without any where that cannot be done.
	Cores Cores
}

// Stats is what a copy or an alloc uses at a moment.
type Stats struct {
	At time.Time
	// Processor time since its run began. Nanoseconds.
	CPUNs int64
	// Time that it was held back by a hard limit since its run began. Nanoseconds.
	ThrottledNs int64
	// What would be missed: file pages that nobody has touched lately are not counted.
	MemBytes int64
	// What it has of its own, and what of files is in memory because of it.
	RSSBytes, CacheBytes int64
	// The most it had, as the kernel counts, since its run began.
	MemPeakBytes int64
	// What disks did for it since its run began.
	ReadBytes, WriteBytes int64
}

// Launch is all that a runtime needs to know of one run: every name in it is
// already bound.
type Launch struct {
	ID  ID
	Run uint32
	// The copy's directory on the machine: its files, and in it task/, which
	// the task itself sees.
	Dir      string
	Args     []string
	Env      []string
	Cwd      string
	Hostname string
	// Directory used as root file system; empty: the machine's own.
	Rootfs string
	Mounts []LaunchMount
	// AllCalls: no system call is kept from it. MachineIDs: it has the user ids of the
	// machine, and none of its own.
	AllCalls   bool `json:",omitempty"`
	MachineIDs bool `json:",omitempty"`
	// Ports of the machine that it was granted.
	Ports []uint32 `json:",omitempty"`
	// Network is the path of the name space that it has of its own; empty: it has the
	// machine's.
	Network string `json:",omitempty"`
	// Numbers of the processors that it has alone, as in Cores.
	OwnCPUs []uint32 `json:",omitempty"`
	// Packages put into the task's file system.
	Packages []LaunchPackage `json:",omitempty"`
	Limits   Limits
	// Not empty: the name of the alloc that it runs in, what all in it may use
	// together, and the directory that they share.
	Alloc       string
	AllocLimits Limits
	AllocDir    string
	// Not empty: the copy's directory of papers, which the task sees, read-only.
	Papers string
	// Who goes first when the machine is out of memory: 0 to 1000.
	OOMScore int
	// Not empty: why it cannot be started. The run ends at once with this as
	// its error.
	Refused string
	// RefusedWay is which way of not starting that is; zero: no particular one.
	RefusedWay borgpb.ExitReason `json:"-"`
}

// LaunchMount is a directory or file of the machine made visible in the task.
type LaunchMount struct {
	Source   string
	Path     string
	Writable bool
	// Volume: it is a volume of that name and the borglet's own; empty: it is not.
	Volume string `json:",omitempty"`
}

// LaunchPackage is a package made visible in the task: read-only at a path, or at
// / as its root, of which the run has a version of its own to write to.
type LaunchPackage struct {
	Name string
	Path string
	// Layers are the directories that make it up, the lowest first.
	Layers []string
}

// Image is the package that is the task's root; nil: none is.
func (l *Launch) Image() *LaunchPackage {
	for i := range l.Packages {
		if l.Packages[i].Path == "/" {
			return &l.Packages[i]
		}
	}
	return nil
}

// Limits of a copy or an alloc. Zero: none.
type Limits struct {
	CPUMilli int64
	// CPUHard: not more than CPUMilli even while nobody else needs it.
	CPUHard  bool
	MemBytes int64
	// MemSoft: more than MemBytes while nobody else needs it.
	MemSoft bool
	// Batch: it gives way to who is not, while both want the processor or a disk.
	Batch bool
}
