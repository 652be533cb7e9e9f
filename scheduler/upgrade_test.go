package scheduler_test

import (
	"fmt"
	"slices"
	"testing"

	"borg/borgmaster/cell"
	"borg/proto/borgpb"
	"borg/scheduler"
)

// upgrade drains the machines of a cell one after the other, gives each that is empty
// a new system, and lets it take tasks again; and counts what that does to tasks.
type upgrade struct {
	*world
	t *testing.T
	// At most so many tasks of a job down, and none oftener than once in so long.
	maxDown  int
	windowNs int64
	// From the events alone: tasks that are down for a drain, by job, and when each
	// was last disturbed, in cell time.
	down      map[cell.JobKey]map[uint32]bool
	disturbed map[cell.TaskID]int64
	most      int
	again     int
	upgraded  map[string]bool
}

// TestUpgrade is the upgrade of 500 machines, twenty at a time, with jobs of which at
// most one of 20 tasks may be down at once, and each may be disturbed once in seven
// days. What has a new system is preferred (a taint on what has not), so that few
// tasks are met twice; those wait for their windows, and in the end all is done.
func TestUpgrade(t *testing.T) {
	const machines, jobs, atOnce = 500, 75, 20
	c := cell.New("test", 1)
	s, err := scheduler.New(scheduler.Config{Seed: 1})
	if err != nil {
		t.Fatal(err)
	}
	u := &upgrade{
		world: &world{cell: c, copy: c, s: s, wallNs: 1_800_000_000_000_000_000, timeNs: 1e9}, t: t,
		maxDown: 1, windowNs: 7 * 24 * 3600 * 1e9,
		down: make(map[cell.JobKey]map[uint32]bool), disturbed: make(map[cell.TaskID]int64), upgraded: make(map[string]bool),
	}
	for i := range machines {
		spec := machineSpec(4000, 16<<30, "os=1", fmt.Sprintf("rack=r%d", i/20))
		spec.Taints = []*borgpb.Taint{{Key: "old-os", PreferNot: true}}
		u.op(addMachine(fmt.Sprintf("m%03d", i), spec))
	}
	for i := range jobs {
		spec := service(20, 200, 1000, 2<<30)
		spec.DisruptionBudget = &borgpb.DisruptionBudget{MaxDown: uint32(u.maxDown), MaxPerTask: 1, WindowNs: u.windowNs}
		u.op(submitJob("ann", fmt.Sprintf("j%02d", i), spec))
	}
	u.turn()
	days := u.run(atOnce)
	if len(u.upgraded) != machines {
		t.Errorf("%d of %d machines have the new system", len(u.upgraded), machines)
	}
	if err := c.Check(); err != nil {
		t.Error(err)
	}
	t.Logf("%d machines in %d days of cell time; %d of %d tasks were disturbed, %d of them again in a later window; at most %d of a job were down",
		len(u.upgraded), days, len(u.disturbed), jobs*20, u.again, u.most)
}

// run upgrades all machines, so many at once, and tells how many days that took.
func (u *upgrade) run(atOnce int) (days int64) {
	begun := u.timeNs
	var draining []string
	var todo []string
	for m := range u.cell.Machines() {
		todo = append(todo, m.Name())
	}
	// Those that are empty go first, and are there for the others.
	slices.SortStableFunc(todo, func(a, b string) int { return u.cell.Machine(a).NumCopies() - u.cell.Machine(b).NumCopies() })
	for len(todo)+len(draining) > 0 {
		for len(draining) < atOnce && len(todo) > 0 {
			u.op(drainMachine(todo[0], true))
			draining, todo = append(draining, todo[0]), todo[1:]
		}
		moved := u.turn()
		left := slices.DeleteFunc(slices.Clone(draining), func(name string) bool {
			if u.cell.Machine(name).NumCopies() > 0 {
				return false
			}
			u.op(asUser("admin", &borgpb.Op{Op: &borgpb.Op_SetMachine{SetMachine: &borgpb.SetMachine{
				Name: name, SetAttributes: map[string]string{"os": "2"}, RemoveTaints: []string{"old-os"},
			}}}))
			u.op(drainMachine(name, false))
			u.upgraded[name] = true
			return true
		})
		if !moved && len(left) == len(draining) {
			// All that is left waits for windows.
			u.timeNs += 3600 * 1e9
			u.wallNs += 30 * 1e9
		}
		if draining = left; u.timeNs-begun > 60*24*3600*1e9 {
			u.t.Errorf("after 60 days %d machines are still being emptied and %d are to come", len(draining), len(todo))
			break
		}
	}
	return (u.timeNs - begun) / (24 * 3600 * 1e9)
}

func drainMachine(name string, drain bool) *borgpb.Op {
	return asUser("admin", &borgpb.Op{Reason: "new system", Op: &borgpb.Op_DrainMachine{DrainMachine: &borgpb.DrainMachine{Name: name, Drain: drain}}})
}

// turn places what waits, starts what was placed, and ends what is to stop. It tells
// whether there was anything.
func (u *upgrade) turn() (moved bool) {
	for range 100 {
		any := false
		u.op(&borgpb.Op{Op: &borgpb.Op_Time{Time: &borgpb.SetTime{}}})
		if b := u.s.Pass(u.cell); b.ID != 0 {
			any = true
			if refused := u.s.Settle(u.cell, b.ID, u.op(assign(b.Assign))); refused.Count > 0 {
				u.t.Fatalf("refused: %v", refused.First)
			}
		}
		reports := new(borgpb.Reports)
		for m := range u.cell.Machines() {
			mr := &borgpb.MachineReport{Machine: m.Name()}
			for p := range m.Copies() {
				next := borgpb.AttemptState_ATTEMPT_STATE_RUNNING
				switch p.State() {
				case borgpb.AttemptState_ATTEMPT_STATE_STOPPING:
					next = borgpb.AttemptState_ATTEMPT_STATE_STOPPED
				case borgpb.AttemptState_ATTEMPT_STATE_RUNNING:
					continue
				}
				mr.Tasks = append(mr.Tasks, &borgpb.TaskReport{JobUid: p.JobUID().String(), Index: p.Index(), Attempt: p.Attempt(), State: int32(next), Pid: 1})
			}
			if len(mr.Tasks) > 0 {
				reports.Machines = append(reports.Machines, mr)
			}
		}
		if len(reports.Machines) > 0 {
			any = true
			u.op(&borgpb.Op{Op: &borgpb.Op_Reports{Reports: reports}})
		}
		if !any {
			return moved
		}
		moved = true
	}
	u.t.Fatal("it does not come to rest")
	return false
}

// op applies an op, lets the scheduler see it, and judges what it did to tasks.
func (u *upgrade) op(op *borgpb.Op) *borgpb.Result {
	r, events := u.apply(op)
	if r.GetRefusal() != nil {
		u.t.Fatalf("%v: refused: %v", op, r.GetRefusal())
	}
	u.s.Observe(u.cell, events)
	for i := range events {
		e := &events[i]
		if e.ObjectKind != borgpb.ObjectKind_OBJECT_KIND_TASK {
			continue
		}
		down := u.down[e.Key]
		if down == nil {
			down = make(map[uint32]bool)
			u.down[e.Key] = down
		}
		id := cell.TaskID{Job: e.Key, Index: e.Task}
		switch e.Kind {
		case borgpb.EventKind_EVENT_KIND_EVICT:
			if e.Cause != borgpb.StopCause_STOP_CAUSE_DRAIN {
				u.t.Errorf("%v is evicted by %v", id, e.Cause)
			}
			if at, ok := u.disturbed[id]; ok {
				u.again++
				if u.timeNs-at < u.windowNs {
					u.t.Errorf("%v is disturbed twice within %d s", id, (u.timeNs-at)/1e9)
				}
			}
			u.disturbed[id] = u.timeNs
			down[e.Task] = true
			if u.most = max(u.most, len(down)); len(down) > u.maxDown {
				u.t.Errorf("%d tasks of %v are down, with %v", len(down), e.Key, id)
			}
		case borgpb.EventKind_EVENT_KIND_START:
			delete(down, e.Task)
		}
	}
	return r
}
