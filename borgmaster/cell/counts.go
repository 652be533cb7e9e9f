package cell

import "fmt"

// Counts is the cell in figures. Who asks for them does not look at each job and machine:
// every client of a large cell asks.
type Counts struct {
	// Jobs that are not dead.
	Jobs int
	// Of all jobs.
	TasksPending, TasksRunning, TasksDead int
	// MachinesDraining are those of MachinesUp that are draining.
	MachinesUp, MachinesDraining, MachinesDown int
}

// counts is kept with each change; derived.
type counts struct {
	deadJobs, machinesDown, machinesDraining int
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
		MachinesUp: len(c.machineList) - n.machinesDown, MachinesDraining: n.machinesDraining, MachinesDown: n.machinesDown,
	}
}

// countMachineState adds a machine to the counts of its state, or with -1 takes it away.
func (n *counts) countMachineState(m *Machine, times int) {
	switch {
	case m.down:
		n.machinesDown += times
	case m.draining:
		n.machinesDraining += times
	}
}

// CountsOf returns the counts of a user's jobs and tasks.
func (c *Cell) CountsOf(user string) (n Counts) {
	if u := c.jobs.byUser[user]; u != nil {
		n.Jobs = u.list.len() - u.deadJobs
		n.TasksPending, n.TasksRunning, n.TasksDead = u.tasks[statePending], u.tasks[stateRunning], u.tasks[stateDead]
	}
	return n
}

// countDead notes that a job has died.
func (c *Cell) countDead(j *Job) {
	c.counts.deadJobs++
	c.jobs.byUser[j.key.User].deadJobs++
}

// countTasks notes that so many tasks of a job more are in a state.
func (c *Cell) countTasks(j *Job, s state, n int) {
	j.count(s, n)
	c.counts.tasks[s] += n
	c.jobs.byUser[j.key.User].tasks[s] += n
}

// uncountJob notes that a dead job is forgotten.
func (c *Cell) uncountJob(j *Job) {
	c.counts.deadJobs--
	c.counts.tasks[stateDead] -= int(j.dead)
	u := c.jobs.byUser[j.key.User]
	u.deadJobs--
	u.tasks[stateDead] -= int(j.dead)
}

func (c *Cell) checkCounts() error {
	var n counts
	of := make(map[string]*userJobs)
	for j := range c.jobs.each() {
		u := of[j.key.User]
		if u == nil {
			u = new(userJobs)
			of[j.key.User] = u
		}
		if j.deathSeq != 0 {
			n.deadJobs++
			u.deadJobs++
		}
		u.tasks[statePending] += int(j.pending)
		u.tasks[stateRunning] += int(j.running)
		u.tasks[stateDead] += int(j.dead)
		n.tasks[statePending] += int(j.pending)
		n.tasks[stateRunning] += int(j.running)
		n.tasks[stateDead] += int(j.dead)
	}
	for _, user := range sortedKeys(of) {
		want := of[user]
		if u := c.jobs.byUser[user]; u.deadJobs != want.deadJobs || u.tasks != want.tasks {
			return fmt.Errorf("user %s: %d dead jobs and %v tasks are counted as %d and %v", user, want.deadJobs, want.tasks, u.deadJobs, u.tasks)
		}
	}
	for _, m := range c.machineList {
		n.countMachineState(m, 1)
	}
	if n != c.counts {
		return fmt.Errorf("cell: %+v are counted as %+v", n, c.counts)
	}
	return nil
}
