package main

import (
	"fmt"
	"slices"
	"strings"

	"github.com/rogpeppe/go-internal/testscript"

	borgcell "borg/borgmaster/cell"
	"borg/fauxmaster/trace"
	"borg/proto/borgpb"
)

// importsCommand reads tables as any tool for Google's traces would, and has them say
// the same of machines and jobs as the cell does.
func importsCommand(ts *testscript.TestScript, neg bool, args []string) {
	read, err := trace.LoadGoogle2019(ts.MkAbs(args[0]), 1<<50, 0)
	ts.Check(err)
	var got, want []string
	for _, m := range read.Machines {
		got = append(got, fmt.Sprintf("machine %s cpu %d mem %d rack %s", m.Name, m.Spec.Capacity.CpuMilli, m.Spec.Capacity.MemBytes, m.Spec.Attributes["rack"]))
	}
	for _, j := range read.Jobs {
		where := slices.Sorted(slices.Values(j.Machines))
		r := j.Spec.Task.Resources
		got = append(got, fmt.Sprintf("job %s/%s at %d: %d tasks of cpu %d mem %d on %v", j.User, j.Name, j.Spec.Priority, j.Spec.Tasks, r.CpuMilli, r.MemBytes, where))
	}
	theCell(ts).group.Replica(1).View(func(c *borgcell.Cell) {
		for m := range c.Machines() {
			rack, _ := m.Attribute("rack")
			want = append(want, fmt.Sprintf("machine %s cpu %d mem %d rack %s", m.Name(), m.Capacity().CPUMilli, m.Capacity().MemBytes, rack))
		}
		for j := range c.Jobs() {
			if j.State() == borgpb.State_STATE_DEAD {
				continue
			}
			var where []string
			for _, t := range j.Tasks() {
				where = append(where, t.Current().Machine().Name())
			}
			slices.Sort(where)
			r := j.Need(0).Resources
			want = append(want, fmt.Sprintf("job %s at %d: %d tasks of cpu %d mem %d on %v", j.Key(), j.Priority(), j.NumTasks(), r.CPUMilli, r.MemBytes, where))
		}
	})
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		ts.Fatalf("the tables in %s say\n%s\nand the cell says\n%s", args[0], strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}
