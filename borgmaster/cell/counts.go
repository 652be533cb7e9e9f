package cell

import "fmt"

// Counts is the cell in figures. Who asks for them does not look at each job and machine:
// every client of a large cell asks.
type Counts struct {
	// Jobs that are not dead.
	Jobs int
	// Of all jobs.
	TasksPending, TasksRunning, TasksDead int
	MachinesUp, MachinesDown              int
}

// counts is kept with each change; derived.
type counts struct {
	deadJobs, machinesDown int
	// Tasks of all jobs in a state.
	tasks [stateDead + 1]int
}

// liveTasks are those that are not dead, for the limit.
func (n *counts) liveTasks() int { return n.tasks[statePending] + n.tasks[stateRunning] }

// Counts says how many of what there are.
func (c *Cell) Counts() Counts {
	n := &c.counts
	return Counts{
		Jobs:         c.jobs.len() - n.deadJobs,
		TasksPending: n.tasks[statePending], TasksRunning: n.tasks[stateRunning], TasksDead: n.tasks[stateDead],
		MachinesUp: len(c.machineList) - n.machinesDown, MachinesDown: n.machinesDown,
	}
}

// countTasks notes that so many tasks of a job more are in a state.
func (c *Cell) countTasks(j *Job, s state, n int) {
	j.count(s, n)
	c.counts.tasks[s] += n
}

// uncountJob notes that a dead job is forgotten.
func (c *Cell) uncountJob(j *Job) {
	c.counts.deadJobs--
	c.counts.tasks[stateDead] -= int(j.dead)
}

func (c *Cell) checkCounts() error {
	var n counts
	for j := range c.jobs.each() {
		if j.deathSeq != 0 {
			n.deadJobs++
		}
		n.tasks[statePending] += int(j.pending)
		n.tasks[stateRunning] += int(j.running)
		n.tasks[stateDead] += int(j.dead)
	}
	for _, m := range c.machineList {
		if m.down {
			n.machinesDown++
		}
	}
	if n != c.counts {
		return fmt.Errorf("cell: %+v are counted as %+v", n, c.counts)
	}
	return nil
}
