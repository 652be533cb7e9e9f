package cell

import (
	"fmt"
	"slices"

	"borg/proto/borgpb"
)

// state of jobs, tasks, alloc sets and allocs.
type state uint8

const (
	stateNone state = iota
	statePending
	stateRunning
	stateDead
	// A submit that is neither accepted nor rejected yet. Nothing is ever
	// stored in it: Apply answers at once.
	stateAsked
	numStates
)

var stateNames = [numStates]string{"none", "pending", "running", "dead", "asked"}

func (s state) String() string { return stateNames[s] }

func (s state) proto() borgpb.State {
	switch s {
	case statePending:
		return borgpb.State_STATE_PENDING
	case stateRunning:
		return borgpb.State_STATE_RUNNING
	case stateDead:
		return borgpb.State_STATE_DEAD
	default:
		return borgpb.State_STATE_UNSPECIFIED
	}
}

// edge is a transition of the paper's diagram (§2.3, figure 2).
type edge uint8

const (
	edgeSubmit edge = iota
	edgeAccept
	edgeReject
	edgeSchedule
	edgeEvict
	edgeFail
	edgeFinish
	edgeKill
	edgeLost
	edgeUpdate
	numEdges
)

var edgeNames = [numEdges]string{"submit", "accept", "reject", "schedule", "evict", "fail", "finish", "kill", "lost", "update"}

func (e edge) String() string { return edgeNames[e] }

// edges is the whole diagram: for each edge, from which state to which states
// it may lead. The same for jobs, tasks, alloc sets and allocs.
//
// Where the paper leaves room, this is our reading. A failure leads to pending
// while the task may be tried again and to dead when its budget is spent; a
// service that its borglet restarts in place has not left running at all. An
// update leads through pending when the task must be restarted or moved.
var edges = [numEdges][numStates][]state{
	edgeSubmit:   {stateNone: {stateAsked}, stateDead: {stateAsked}},
	edgeAccept:   {stateAsked: {statePending}},
	edgeReject:   {stateAsked: {stateNone, stateDead}},
	edgeSchedule: {statePending: {stateRunning}},
	edgeEvict:    {stateRunning: {statePending}},
	edgeFail:     {stateRunning: {statePending, stateDead}},
	edgeFinish:   {stateRunning: {stateDead}},
	edgeKill:     {statePending: {stateDead}, stateRunning: {stateDead}},
	edgeLost:     {stateRunning: {stateDead}},
	edgeUpdate:   {statePending: {statePending}, stateRunning: {stateRunning, statePending}},
}

// take checks a transition against the diagram and returns where it leads. One
// that is not in the diagram is a bug of ours and must stop the replica.
func take(from state, e edge, to state) state {
	if slices.Contains(edges[e][from], to) {
		return to
	}
	panic(fmt.Sprintf("no edge %v from %v to %v", e, from, to))
}

// attemptState mirrors borgpb.AttemptState in a byte.
type attemptState uint8

const (
	attemptAssigned    = attemptState(borgpb.AttemptState_ATTEMPT_STATE_ASSIGNED)
	attemptStarting    = attemptState(borgpb.AttemptState_ATTEMPT_STATE_STARTING)
	attemptRunning     = attemptState(borgpb.AttemptState_ATTEMPT_STATE_RUNNING)
	attemptBackoff     = attemptState(borgpb.AttemptState_ATTEMPT_STATE_BACKOFF)
	attemptStopping    = attemptState(borgpb.AttemptState_ATTEMPT_STATE_STOPPING)
	attemptUnreachable = attemptState(borgpb.AttemptState_ATTEMPT_STATE_UNREACHABLE)
	attemptFinished    = attemptState(borgpb.AttemptState_ATTEMPT_STATE_FINISHED)
	attemptFailed      = attemptState(borgpb.AttemptState_ATTEMPT_STATE_FAILED)
	attemptStopped     = attemptState(borgpb.AttemptState_ATTEMPT_STATE_STOPPED)
	attemptLost        = attemptState(borgpb.AttemptState_ATTEMPT_STATE_LOST)

	attemptQuarantined = attemptState(borgpb.AttemptState_ATTEMPT_STATE_QUARANTINED)
)

// live tells whether a copy in that state holds a place.
func (s attemptState) live() bool {
	return s >= attemptAssigned && s <= attemptUnreachable || s == attemptQuarantined
}

// current tells whether a copy in that state is its task's current one.
func (s attemptState) current() bool { return s >= attemptAssigned && s <= attemptBackoff }

// stays tells whether a copy in that state is where it is until it is told to go: its
// task's current one, or one in quarantine.
func (s attemptState) stays() bool { return s.current() || s == attemptQuarantined }
