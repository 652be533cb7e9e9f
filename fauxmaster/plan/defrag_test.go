package plan_test

import (
	"bytes"
	"fmt"
	"testing"

	"borg/borgmaster/cell"
	"borg/fauxmaster/plan"
	"borg/proto/borgpb"
)

// emptyMachines are up and have nothing on them.
func emptyMachines(c *cell.Cell) (n int) {
	for m := range c.Machines() {
		if m.Up() && m.NumCopies() == 0 {
			n++
		}
	}
	return n
}

// TestDefrag makes the moves of a plan in its order in a cell that works: none is
// refused, nobody is displaced, and it gains what it said.
func TestDefrag(t *testing.T) {
	freed, moved := 0, 0
	eachSeed(t, func(t *testing.T, d *drawn) {
		const most = 12
		before := recordsOf(d.cell)
		a, err := plan.Defrag(d.cell, search, most, []string{plan.AimMachines, plan.AimFragments})
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(before, recordsOf(d.cell)) {
			t.Error("the question changed the cell")
		}
		if len(a.Moves) > most {
			t.Errorf("%d moves, want at most %d", len(a.Moves), most)
		}
		if a.Before.Empty != emptyMachines(d.cell) {
			t.Errorf("%d machines are empty, it says %d", emptyMachines(d.cell), a.Before.Empty)
		}
		running := 0
		for j := range d.cell.Jobs() {
			_, n, _ := j.Counts()
			running += int(n)
		}
		l := newLive(t, copyOf(t, d.cell))
		for i, m := range a.Moves {
			id, err := cell.ParseTaskID(m.Task)
			if err != nil {
				t.Fatal(err)
			}
			j := l.cell.Job(id.Job)
			p := j.Task(id.Index).Current()
			if p == nil || p.Machine().Name() != m.From {
				t.Fatalf("move %d: %+v, and it is not there", i+1, m)
			}
			l.must(&borgpb.Op{Op: &borgpb.Op_MoveTasks{MoveTasks: &borgpb.MoveTasks{Moves: []*borgpb.Assignment{{
				Uid: j.UID().String(), Index: id.Index, Version: j.Version(), LastAttempt: p.Attempt(), Machine: m.To,
			}}}}})
			l.obey()
		}
		if got := emptyMachines(l.cell); got != a.After.Empty {
			t.Errorf("%d machines are empty after the moves, it says %d", got, a.After.Empty)
		}
		after := 0
		for j := range l.cell.Jobs() {
			_, n, _ := j.Counts()
			after += int(n)
		}
		if after != running {
			t.Errorf("%d tasks ran, %d do after the moves", running, after)
		}
		for _, name := range a.Freed {
			if l.cell.Machine(name).NumCopies() > 0 {
				t.Errorf("%s is not empty", name)
			}
		}
		freed, moved = freed+len(a.Freed), moved+len(a.Moves)
	})
	if freed < 10 || moved < 50 {
		t.Errorf("%d moves empty %d machines in all the cells: the test has become too easy", moved, freed)
	}
}

// TestDefragFragments wants the scheduler's own mode to lower what is stranded.
func TestDefragFragments(t *testing.T) {
	l := newLive(t, cell.New("c", 1))
	l.must(&borgpb.Op{Op: &borgpb.Op_RaiseFormat{RaiseFormat: &borgpb.RaiseFormat{Format: cell.BuildFormat}}})
	// Tasks that fill the CPU of one machine; those that fill the memory of the other
	// came when it was there.
	l.must(addMachine("m0", 16_000, 64<<30, nil))
	for i := range 2 {
		l.must(submit(fmt.Sprintf("cpu%d", i), job(1, 200, 8000, 1<<30)))
	}
	l.settle()
	l.must(addMachine("m1", 16_000, 64<<30, nil))
	for i := range 2 {
		l.must(submit(fmt.Sprintf("mem%d", i), job(1, 200, 500, 31<<30)))
	}
	l.settle()
	a, err := plan.Defrag(l.cell, search, 4, []string{plan.AimFragments})
	if err != nil {
		t.Fatal(err)
	}
	if len(a.Moves) == 0 || a.After.StrandedMemPercent+a.After.StrandedCPUPercent >= a.Before.StrandedMemPercent+a.Before.StrandedCPUPercent {
		t.Errorf("%+v, want less stranded", a)
	}
}

// TestDefragLeavesDaemons: a machine is emptied of all but its daemons, which are nowhere
// else.
func TestDefragLeavesDaemons(t *testing.T) {
	l := newLive(t, cell.New("c", 1))
	l.must(&borgpb.Op{Op: &borgpb.Op_RaiseFormat{RaiseFormat: &borgpb.RaiseFormat{Format: cell.BuildFormat}}})
	for _, name := range []string{"m0", "m1", "m2"} {
		l.must(addMachine(name, 16_000, 64<<30, nil))
	}
	logs := job(0, 200, 1000, 1<<30)
	logs.Kind = borgpb.JobKind_JOB_KIND_DAEMON
	l.must(submit("logs", logs))
	web := job(2, 200, 2000, 1<<30)
	web.MaxPerMachine = 1
	l.must(submit("web", web))
	l.settle()
	// Both could be on one machine from now on.
	web = job(2, 200, 2000, 1<<30)
	l.must(&borgpb.Op{Op: &borgpb.Op_UpdateJob{UpdateJob: &borgpb.UpdateJob{User: "ann", Name: "web", Spec: submit("web", web).GetSubmitJob().Spec}}})
	l.settle()
	a, err := plan.Defrag(l.cell, search, 4, []string{plan.AimMachines})
	if err != nil {
		t.Fatal(err)
	}
	if len(a.Moves) != 1 || a.Before.Empty != 1 || a.After.Empty != 2 || len(a.Freed) != 1 {
		t.Errorf("%+v, want one move that leaves a second machine to its daemon", a)
	}
}
