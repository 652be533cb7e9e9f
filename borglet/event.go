package borglet

import (
	"borg/proto/borgpb"
	"borg/proto/borgrpc"
)

// Now is the moment of a step: a clock that never steps, for timers, and the
// wall clock, for what people read.
type Now struct {
	MonoNs int64
	WallNs int64
}

// Event is what a Core hears: Recovered once, first; then any of the others.
type Event interface{ event() }

// Recovered is what an earlier borglet left in this directory.
type Recovered struct {
	Copies []Found
}

// Found is one copy that was left: what the earlier borglet had written of it,
// and how the runtime finds it now.
type Found struct {
	Record   Record
	Observed Observed
}

// Polled is what a master that is not fenced wants.
type Polled struct {
	Desired []*borgrpc.Desired
	Stops   []*borgrpc.Stop
	Forget  []*borgrpc.CopyID
}

// Observed is what the runtime saw of one run of a copy.
type Observed struct {
	ID   ID
	Run  uint32
	Kind ObservedKind
	// With Running.
	Pid           int64
	StartedWallNs int64
	// Address of its own; empty: it has its machine's.
	Addr string
	// With Running: its shim is dead, so that its exit may stay unknown.
	ShimLost bool
	// With Exited.
	Exit *borgpb.Exit
	// With NotStarted: why.
	Text string
}

// ObservedKind is what a runtime may say of a run.
type ObservedKind uint8

const (
	// Absent: there is no trace of this run; it was never begun.
	Absent ObservedKind = iota
	// Starting: its shim lives and has not said how the start went.
	Starting
	// Running: its process runs.
	Running
	// Exited: its process has ended, or could not be started for a reason that
	// lies in the task (Exit.error).
	Exited
	// NotStarted: for a reason that lies in the machine, nothing of the task has
	// run. It may be tried again without harm.
	NotStarted
)

// Failed is an effect that could not be done.
type Failed struct {
	ID   ID
	Run  uint32
	Op   Op
	Text string
	// With OpStart: which way of not starting it was.
	Way borgpb.ExitReason
}

// Op names the kinds of effects that may fail and be tried again.
type Op uint8

const (
	OpStart Op = iota + 1
	OpTerminate
	OpKill
	OpUpdate
	OpDestroy
	OpRemove
	// OpSave is of the record of a copy that has ended.
	OpSave
	OpWarn
)

// Updated: the limits of a run are as its record says.
type Updated struct {
	ID  ID
	Run uint32
}

// Saved: the record of a copy that has ended is on the disk. Until then it is
// not reported as ended: once its end is in the log, a borglet that had lost it
// would start the copy again, and nobody would know of it.
type Saved struct{ ID ID }

// Tick only says that time has passed.
type Tick struct{}

func (Recovered) event() {}
func (Polled) event()    {}
func (Observed) event()  {}
func (Failed) event()    {}
func (Updated) event()   {}
func (Saved) event()     {}
func (Tick) event()      {}

// Effect is what a Core wants done. Effects of one copy are done in the order
// given; those of different copies at once.
type Effect interface{ Copy() ID }

type (
	// Save writes the record, synced. It is answered with Saved, or with Failed,
	// when the record is of a copy that has ended.
	Save struct{ Record Record }
	// Start writes the record, synced, and then begins its run.
	Start struct{ Record Record }
	// Terminate asks the process to end (SIGTERM), after it was told why.
	Terminate struct {
		ID     ID
		Run    uint32
		Notice Notice
	}
	// Warn tells the process that it will be asked to end, and with Signal has it
	// notice (SIGUSR1).
	Warn struct {
		ID     ID
		Run    uint32
		Notice Notice
		Signal bool
	}
	// Kill ends the process (SIGKILL).
	Kill struct {
		ID  ID
		Run uint32
	}
	// Update brings the limits of the running process to those of the record.
	Update struct{ Record Record }
	// Tell tells the run what its record says of it.
	Tell struct{ Record Record }
	// Destroy takes away what a run left outside its directory, and with Ended
	// what the copy was given.
	Destroy struct {
		ID    ID
		Run   uint32
		Ended bool
	}
	// Clear empties the task's own directory after a run that ended for what it kept
	// there.
	Clear struct {
		ID  ID
		Run uint32
	}
	// Remove takes away all that is left of a copy that is forgotten.
	Remove struct{ ID ID }
)

func (e Save) Copy() ID      { return e.Record.ID }
func (e Start) Copy() ID     { return e.Record.ID }
func (e Terminate) Copy() ID { return e.ID }
func (e Warn) Copy() ID      { return e.ID }
func (e Kill) Copy() ID      { return e.ID }
func (e Update) Copy() ID    { return e.Record.ID }
func (e Tell) Copy() ID      { return e.Record.ID }
func (e Destroy) Copy() ID   { return e.ID }
func (e Clear) Copy() ID     { return e.ID }
func (e Remove) Copy() ID    { return e.ID }

// Record is what is kept on disk of a copy: enough to go on from, whatever was
// killed. It is a value; Desired and Exit in it are never changed.
type Record struct {
	ID      ID
	Desired *borgrpc.Desired
	// Boot in which the present run began.
	Boot string
	// Runs begun so far, and the number of the present one. Files that a run
	// leaves carry it, so that those of an earlier one are not believed.
	Run uint32
	// The present run has ended and the next one has not begun.
	RunEnded bool
	// Spec version that the present run was begun with or brought to.
	RunVersion uint64
	// The last run ended for what it kept on disk, and the next one begins without.
	Clear bool
	// Times that the process was started again.
	Restarts uint32
	// Ends in a row without a long healthy run between them.
	Failures      uint32
	StartedWallNs int64
	// A health check of the present run has passed.
	Passed bool
	// It is kept to be looked at: not checked, and not started again.
	Quarantined bool `json:",omitempty"`
	// What the last check of readiness of the present run came to.
	Ready bool
	// Not nil: it was told to stop.
	Stop *StopOrder
	// Not zero: it has ended, for good.
	Ended borgpb.AttemptState
	// How the last run ended.
	Exit *borgpb.Exit
	// For people.
	Text     string
	ShimLost bool
	// With Ended LOST: it was not started, for others hold these ports.
	HeldPorts []HeldPort `json:",omitempty"`
}

// StopOrder is a Stop that was accepted.
type StopOrder struct {
	Cause borgpb.StopCause
	// Who or what is behind it, for people.
	Reason  string `json:",omitempty"`
	Index   uint64
	GraceNs int64
	// How long before SIGTERM the task is told; zero: with it.
	NoticeNs int64 `json:",omitempty"`
}
