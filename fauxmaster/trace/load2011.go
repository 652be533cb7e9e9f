package trace

import (
	"fmt"
	"io"
)

// LoadGoogle2011 reads a folder as Google lays it out (machine_events/part-*, and
// so on) and returns the cell at timeUs. machine_attributes and task_constraints
// may be missing. Bad rows are left out and noted, unless there are many. Without a moment
// (Unsaid) it chooses one.
//
// With an untilUs above timeUs the cell has what arrives until then, too, and
// tasks tell what became of them. A folder with tasks.csv, a row for each attempt of
// a task, is read as well.
func LoadGoogle2011(dir string, timeUs, untilUs int64) (*Cell, error) {
	firstUs, err := firstMachine2011(dir)
	if err != nil {
		return nil, err
	}
	at := chosen(timeUs, untilUs, firstUs, false)
	g := NewGoogle2011(at.us)
	g.SkipBadRows()
	if untilUs > at.us {
		g.Follow(untilUs)
	}
	c, err := g.load(dir)
	if err == nil {
		c.Moment = at.words(g.lastUs)
	}
	return c, err
}

// load reads a folder, in either layout.
func (g *Google2011) load(dir string) (*Cell, error) {
	tasks, err := table(dir, "tasks")
	if err != nil {
		return nil, err
	}
	if tasks != "" {
		return g.loadAttempts(dir, tasks)
	}
	for _, table := range []struct {
		name string
		must bool
		read func(string, io.Reader) error
	}{
		{"machine_events", true, g.ReadMachineEvents},
		{"machine_attributes", false, g.ReadMachineAttributes},
		{"task_constraints", false, g.ReadTaskConstraints},
		{"task_events", true, g.ReadTaskEvents},
	} {
		files, err := parts(dir, table.name)
		if err != nil {
			return nil, err
		}
		if len(files) == 0 && table.must {
			return nil, fmt.Errorf("%s has no %s/part-*: want a folder of the tables of clusterdata-2011-2", dir, table.name)
		}
		for _, file := range files {
			if table.name == "task_events" && g.complete() {
				break
			}
			if err := readFile(file, table.read); err != nil {
				return nil, err
			}
		}
	}
	return g.Cell()
}
