package main

import (
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	"borg/borgmaster/cell"
	"borg/fauxmaster/export"
	"borg/fauxmaster/plan"
	"borg/fauxmaster/trace"
	"borg/fauxmaster/workload"
	"borg/proto/borgpb"
	"borg/scheduler"
)

// returning is a cell whose machines go down and come back while its events are
// written as tables.
type returning struct {
	t      *testing.T
	rand   *rand.Rand
	cell   *cell.Cell
	search *scheduler.Scheduler
	out    *export.Events
	jobs   int
	// returns counts the tasks and allocs that came back with their machines.
	returns int
}

func newReturning(t *testing.T, seed uint64, dir string) *returning {
	t.Helper()
	search, err := scheduler.New(scheduler.Config{})
	if err != nil {
		t.Fatal(err)
	}
	r := &returning{t: t, rand: rand.New(rand.NewPCG(seed, 3)), cell: cell.New("returning", 1), search: search}
	r.do(&borgpb.Op{Op: &borgpb.Op_RaiseFormat{RaiseFormat: &borgpb.RaiseFormat{Format: cell.BuildFormat}}})
	for i := range 6 {
		r.do(&borgpb.Op{Op: &borgpb.Op_AddMachine{AddMachine: &borgpb.AddMachine{Name: fmt.Sprintf("m%d", i), Spec: &borgpb.MachineSpec{
			Addr: "127.0.0.1:7101", Capacity: &borgpb.Resources{CpuMilli: 8000, MemBytes: 32 << 30},
		}}}})
	}
	if r.out, err = export.NewEvents(r.cell, "returning", export.JSON, dir, make(export.Counts)); err != nil {
		t.Fatal(err)
	}
	return r
}

// do applies an op one second later, and writes what came of it.
func (r *returning) do(op *borgpb.Op) {
	r.t.Helper()
	data, err := proto.Marshal(op)
	if err != nil {
		r.t.Fatal(err)
	}
	index := r.cell.Index() + 1
	entry, err := proto.Marshal(&borgpb.Entry{CellTimeNs: int64(index) * 1e9, WallTimeNs: 1_800_000_000e9 + int64(index)*1e9, Ops: [][]byte{data}})
	if err != nil {
		r.t.Fatal(err)
	}
	_, events := r.cell.Apply(index, 1, entry)
	r.search.Observe(r.cell, events)
	if r.out == nil {
		return
	}
	for i := range events {
		if events[i].Kind == borgpb.EventKind_EVENT_KIND_RETURN {
			r.returns++
		}
	}
	if err := r.out.Add(r.cell, events); err != nil {
		r.t.Fatal(err)
	}
}

func (r *returning) step() {
	name := fmt.Sprintf("m%d", r.rand.IntN(6))
	switch n := r.rand.IntN(10); {
	case n < 2:
		r.submit()
	case n < 4:
		r.do(&borgpb.Op{Op: &borgpb.Op_MachineDown{MachineDown: &borgpb.MachineDown{Name: name, Term: 1, Reason: "silent"}}})
	case n < 7:
		r.do(&borgpb.Op{Op: &borgpb.Op_MachineUp{MachineUp: &borgpb.MachineUp{Name: name}}})
	case n < 9:
		if b := r.search.Pass(r.cell); b.ID != 0 {
			r.do(&borgpb.Op{Principal: &borgpb.Principal{Role: borgpb.Role_ROLE_SCHEDULER}, Op: &borgpb.Op_Assign{Assign: b.Assign}})
			r.search.Settle(r.cell, b.ID, &borgpb.Result{Index: r.cell.Index()})
		}
	default:
		r.report()
	}
}

// submit asks for a job, an alloc set, or a job in one.
func (r *returning) submit() {
	r.jobs++
	name := fmt.Sprintf("j%d", r.jobs)
	ann := &borgpb.Principal{User: "ann", Role: borgpb.Role_ROLE_USER}
	need := &borgpb.Resources{CpuMilli: 500, MemBytes: 1 << 30}
	if r.jobs%3 == 1 {
		spec, _ := proto.Marshal(&borgpb.AllocSetSpec{Allocs: 2, Priority: 200, Resources: need})
		r.do(&borgpb.Op{Principal: ann, Op: &borgpb.Op_SubmitAllocSet{SubmitAllocSet: &borgpb.SubmitAllocSet{User: "ann", Name: name, Spec: spec}}})
		return
	}
	job := &borgpb.JobSpec{Kind: borgpb.JobKind_JOB_KIND_SERVICE, Tasks: 3, Priority: 200, Task: &borgpb.TaskSpec{Args: []string{"/bin/true"}, Resources: need}}
	if r.jobs%3 == 2 {
		job.AllocSet, job.Tasks, job.Task.Resources = fmt.Sprintf("ann/j%d", r.jobs-1), 2, &borgpb.Resources{CpuMilli: 250, MemBytes: 1 << 28}
	}
	spec, _ := proto.Marshal(job)
	r.do(&borgpb.Op{Principal: ann, Op: &borgpb.Op_SubmitJob{SubmitJob: &borgpb.SubmitJob{User: "ann", Name: name, Spec: spec}}})
}

// report has every machine that is up say that what was placed on it runs.
func (r *returning) report() {
	all := &borgpb.Reports{}
	for m := range r.cell.Machines() {
		if !m.Up() {
			continue
		}
		said := &borgpb.MachineReport{Machine: m.Name()}
		for p := range m.Copies() {
			to := &borgpb.TaskReport{JobUid: p.JobUID().String(), Index: p.Index(), Attempt: p.Attempt(), Pid: 7, StartedWallNs: r.cell.WallNs()}
			switch p.State() {
			case borgpb.AttemptState_ATTEMPT_STATE_ASSIGNED:
				to.State = int32(borgpb.AttemptState_ATTEMPT_STATE_RUNNING)
			case borgpb.AttemptState_ATTEMPT_STATE_STOPPING:
				to.State = int32(borgpb.AttemptState_ATTEMPT_STATE_STOPPED)
			default:
				continue
			}
			said.Tasks = append(said.Tasks, to)
		}
		all.Machines = append(all.Machines, said)
	}
	r.do(&borgpb.Op{Op: &borgpb.Op_Reports{Reports: all}})
}

// whereItRuns is each machine that is up and each task and alloc with its machine.
func whereItRuns(c *cell.Cell) string {
	var lines []string
	for m := range c.Machines() {
		if m.Up() {
			lines = append(lines, "machine "+m.Name())
		}
	}
	for s := range c.AllocSets() {
		for a := range s.Allocs() {
			at := "nowhere"
			if a.Machine() != nil {
				at = a.Machine().Name()
			}
			lines = append(lines, fmt.Sprintf("alloc of %v on %s", s.Key(), at))
		}
	}
	for j := range c.Jobs() {
		for _, task := range j.Tasks() {
			at := "nowhere"
			if p := task.Current(); p != nil {
				at = p.Machine().Name()
			}
			lines = append(lines, fmt.Sprintf("task of %v on %s", j.Key(), at))
		}
	}
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}

// upIn names the machines that are up.
func upIn(c *cell.Cell) (names string) {
	for m := range c.Machines() {
		if m.Up() {
			names += " " + m.Name()
		}
	}
	return names
}

// TestMachinesThatReturn writes the events of random cells whose machines go down and
// come back, and imports them at their end: the machines are there, and what came back
// with them runs.
func TestMachinesThatReturn(t *testing.T) {
	returns := 0
	for seed := range uint64(20) {
		dir := t.TempDir()
		r := newReturning(t, seed, dir)
		for range 150 {
			r.step()
		}
		if err := r.out.Close(); err != nil {
			t.Fatal(err)
		}
		returns += r.returns
		from, err := trace.LoadGoogle2019(dir, trace.Unsaid, 0)
		if err != nil {
			t.Fatal(err)
		}
		again, _, err := plan.Make("again", 1e18, from, nil)
		if err != nil {
			t.Fatal(err)
		}
		if got, want := whereItRuns(again), whereItRuns(r.cell); got != want {
			t.Errorf("seed %d: imported again it is\n%s\n\nwant\n%s\n\nnot mapped: %v", seed, got, want, from.Notes)
		}
		// As a recording: its machines come and go as they did.
		if from, err = trace.LoadGoogle2019(dir, 0, 1e12); err != nil {
			t.Fatal(err)
		}
		if again, _, err = plan.Make("again", 1e18, from, nil); err != nil {
			t.Fatal(err)
		}
		refused, err := workload.Write(filepath.Join(dir, "archive"), "again", again, from.Arrivals, from.LastNs)
		if err != nil {
			t.Fatal(err)
		}
		if got, want := upIn(again), upIn(r.cell); got != want || len(refused) > 0 {
			t.Errorf("seed %d: at the end of the recording there are %s, want %s; refused: %v", seed, got, want, refused)
		}
	}
	if returns < 20 {
		t.Errorf("%d tasks and allocs came back with their machines, want at least 20", returns)
	}
}
