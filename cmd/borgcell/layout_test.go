package main

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"borg/cli"
)

func goodLayout() layout {
	return layout{Name: "local", Masters: 5, Machines: 3, PortBase: 7000, TaskPortBase: 20000, Runtime: "auto", dir: "/d", RunDir: "/r", binDir: "/b"}
}

func TestLayoutValidates(t *testing.T) {
	if err := goodLayout().validate(); err != nil {
		t.Error(err)
	}
	for flag, break_ := range map[string]func(*layout){
		"--cell":                 func(l *layout) { l.Name = "No_Name" },
		"--masters 4":            func(l *layout) { l.Masters = 4 },
		"--masters 0":            func(l *layout) { l.Masters = 0 },
		"--masters -3":           func(l *layout) { l.Masters = -3 },
		"--machines 0":           func(l *layout) { l.Machines = 0 },
		"--machines 1000":        func(l *layout) { l.Machines = 1000 },
		"--port-base 80":         func(l *layout) { l.PortBase = 80 },
		"--port-base 6550":       func(l *layout) { l.PortBase = 65500 },
		"--task-port-base":       func(l *layout) { l.TaskPortBase = 32760 },
		"--task-port-base 6":     func(l *layout) { l.PortBase, l.TaskPortBase = 6000, 6000 },
		"--task-port-base 20000": func(l *layout) { l.PortBase = 20500 },
		"--runtime":              func(l *layout) { l.Runtime = "docker" },
	} {
		l := goodLayout()
		break_(&l)
		err := l.validate()
		var e *cli.Error
		if !errors.As(err, &e) || e.Code != cli.Usage || !strings.HasPrefix(e.What, flag) {
			t.Errorf("validate for %s: %v, want a usage error that begins with it", flag, err)
		}
	}
}

// All ports of a cell, of doors and of status pages, are different, whatever its size.
func TestPortsDoNotMeet(t *testing.T) {
	for _, machines := range []int{1, 3, 12, 13, maxMachines} {
		l := goodLayout()
		l.Machines, l.Masters = machines, 9
		doors := l.doors()
		slices.Sort(doors)
		if n := len(slices.Compact(doors)); n != 2*(l.Masters+machines) {
			t.Errorf("%d machines: %d different addresses, want %d", machines, n, 2*(l.Masters+machines))
		}
		end := l.TaskPortBase - 1
		for k := 1; k <= machines; k++ {
			var first, last int
			if _, err := fmt.Sscanf(l.taskPorts(k), "%d-%d", &first, &last); err != nil {
				t.Fatal(err)
			}
			if first != end+1 || last < first || last >= taskPortEnd {
				t.Errorf("%d machines: machine %d has ports %d-%d after %d", machines, k, first, last, end)
			}
			end = last
		}
	}
}

// A second run keeps what the replicas' log holds, takes what is free to
// change, and refuses the rest.
func TestSettleWithTheCellInTheDirectory(t *testing.T) {
	old := goodLayout()
	old.dir = t.TempDir()
	old.CellID, old.Masters, old.Machines, old.PortBase = "abc", 3, 2, 8000
	now := goodLayout()
	now.dir = old.dir
	asked := func(flags ...string) func(string) bool {
		return func(f string) bool { return slices.Contains(flags, f) }
	}
	if got, err := now.settle(asked("masters")); err != nil || got.Masters != 5 {
		t.Errorf("settle in an empty directory = %+v, %v", got, err)
	}
	if err := writeJSON(old.layoutFile(), old); err != nil {
		t.Fatal(err)
	}
	got, err := now.settle(asked("machines"))
	if err != nil || got.Masters != 3 || got.Machines != 3 || got.PortBase != 8000 || got.CellID != "abc" {
		t.Errorf("settle = %+v, %v", got, err)
	}
	for _, flag := range []string{"masters", "port-base"} {
		_, err = now.settle(asked(flag))
		var e *cli.Error
		if !errors.As(err, &e) || e.Code != cli.Conflict || !strings.Contains(e.Next, "--fresh") {
			t.Errorf("settle with another --%s: %v, want a conflict that names --fresh", flag, err)
		}
	}
}
