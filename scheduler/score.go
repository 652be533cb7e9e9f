package scheduler

import "borg/borgmaster/cell"

// Weights of the parts of a score, in points. Fullness gives 0 to fullPoints;
// the others are measured against it.
const (
	fullPoints = 1024
	// softPoints is what a soft constraint is worth that holds.
	softPoints = 2048
	// The price of each task of the same job that is already on the machine, in
	// its rack, in its power domain: one task more on a machine costs as much
	// as the difference between an empty and a full machine.
	machinePoints = 1024
	rackPoints    = 256
	powerPoints   = 128
	// batchShift makes spreading cheap for batch jobs: losing many tasks at
	// once costs them time, not users.
	batchShift = 3
)

// Score says how good a feasible place is, by parts; more is better. All parts
// are points in fixed point: integers, so that they are the same everywhere.
type Score struct {
	// Fit is best fit: how full the place will be, less what would be stranded
	// there because one resource runs out before the other.
	Fit int64
	// Soft is for soft constraints that hold.
	Soft int64
	// Spread is the price, never positive, of neighbours of the same job.
	Spread int64
}

// Total is what places are compared by.
func (s Score) Total() int64 { return s.Fit + s.Soft + s.Spread }

// fitPoints scores what is left of a place after the placement. A place of
// which nothing is known to be there counts as empty.
func fitPoints(capacity, left *cell.Resources) int64 {
	cpu := fullness(capacity.CPUMilli, left.CPUMilli)
	mem := fullness(capacity.MemBytes, left.MemBytes)
	stranded := cpu - mem
	if stranded < 0 {
		stranded = -stranded
	}
	return (cpu+mem)/2 - stranded/4
}

// fullness is how much of whole is used when left is left: 0 to fullPoints.
// Amounts up to 2^50 bytes times fullPoints stay below 2^63.
func fullness(whole, left int64) int64 {
	if whole <= 0 || left >= whole {
		return 0
	}
	if left <= 0 {
		return fullPoints
	}
	return (whole - left) * fullPoints / whole
}

// spreadPoints prices the neighbours of the same job.
func spreadPoints(onMachine, inRack, inPower int64, batch bool) int64 {
	p := onMachine*machinePoints + inRack*rackPoints + inPower*powerPoints
	if batch {
		p >>= batchShift
	}
	return -p
}
