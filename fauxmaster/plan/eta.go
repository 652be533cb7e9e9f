package plan

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	"borg/borgmaster/cell"
	"borg/proto/borgpb"
	"borg/scheduler"
)

// EtaQuestion asks when a task that waits will have a place.
type EtaQuestion struct {
	Job   cell.JobKey
	Index uint32
	// RunsNs is how long tasks of batch jobs run, as far as the asker knows. Of a
	// batch job that is not named it is what its finished tasks took, the median of
	// those that the cell remembers.
	RunsNs map[cell.JobKey]int64
	// HorizonNs is how far ahead is looked.
	HorizonNs int64
}

// EtaAnswer is when, or why not.
type EtaAnswer struct {
	Task string `json:"task"`
	// Placed: it has a place after AfterNs of cell time, on Machine. Before that,
	// Ended tasks are expected to end.
	Placed  bool   `json:"placed"`
	AfterNs int64  `json:"afterNs"`
	Machine string `json:"machine,omitempty"`
	Ended   int    `json:"endedBefore"`
	// Running tasks of the cell at the beginning, and of how many an end is known.
	Running int `json:"running"`
	Known   int `json:"endKnown"`
	// Runs are the jobs whose tasks are taken to end, in order of their names.
	Runs []JobRun `json:"runs,omitempty"`
	// Why it has no place at the end of what is known, in the scheduler's words,
	// and single changes that would give it one.
	Why     string   `json:"why,omitempty"`
	Changes []string `json:"changes,omitempty"`
}

// JobRun is how long the tasks of a job are taken to run.
type JobRun struct {
	Job string `json:"job"`
	Ns  int64  `json:"runsNs"`
	// From how many finished tasks; zero: the asker said so.
	From int `json:"fromFinished,omitempty"`
}

// Eta runs a cell forward: what is known to end ends, what waits is placed, and time
// passes for what waits for time. Nobody submits and no machine breaks.
func Eta(c *cell.Cell, cfg scheduler.Config, q EtaQuestion) (*EtaAnswer, error) {
	j := c.Job(q.Job)
	if j == nil || q.Index >= j.NumTasks() {
		return nil, &NoTask{cell.TaskID{Job: q.Job, Index: q.Index}}
	}
	for key := range q.RunsNs {
		of := c.Job(key)
		if of == nil {
			return nil, &NoTask{cell.TaskID{Job: key}}
		}
		if of.Kind() != borgpb.JobKind_JOB_KIND_BATCH {
			return nil, fmt.Errorf("%s is a service: its tasks are started again when they end", key)
		}
	}
	m, err := ModelOf(c, cfg)
	if err != nil {
		return nil, err
	}
	f := &forward{Model: m, q: q, runs: make(map[cell.UID]jobRun), known: make(map[cell.CopyID]bool)}
	a := &EtaAnswer{Task: cell.TaskID{Job: q.Job, Index: q.Index}.String()}
	f.learn(a)
	for j := range m.cell.Jobs() {
		_, running, _ := j.Counts()
		a.Running += int(running)
	}
	f.begin()
	a.Known = len(f.ends)
	return a, f.run(a)
}

// NoTask says that there is no such task.
type NoTask struct{ Task cell.TaskID }

func (e *NoTask) Error() string { return fmt.Sprintf("the cell has no task %s", e.Task) }

// forward is a cell that runs on.
type forward struct {
	*Model
	q EtaQuestion
	// sinceNs is the cell time since the beginning.
	sinceNs int64
	runs    map[cell.UID]jobRun
	// ends of copies, the first one last; known are those that were in it.
	ends  []end
	known map[cell.CopyID]bool
}

// jobRun is how long tasks of a job run: ns, and when one has run for longer, up to
// mostNs.
type jobRun struct{ ns, mostNs int64 }

// end is when a copy ends.
type end struct {
	ns      int64
	machine string
	copy    cell.CopyID
}

// together are ends so near to each other that one pass places after all of them.
const together = 1e9

// waits are times after the last known end at which is looked whether time alone
// helped: bans of machines and tasks held back run out.
var waits = []int64{60e9, 600e9, 3600e9, 6 * 3600e9, 24 * 3600e9}

// learn finds out how long tasks run.
func (f *forward) learn(a *EtaAnswer) {
	for j := range f.cell.Jobs() {
		if j.Kind() != borgpb.JobKind_JOB_KIND_BATCH || j.State() == borgpb.State_STATE_DEAD {
			continue
		}
		if ns, ok := f.q.RunsNs[j.Key()]; ok {
			f.runs[j.UID()] = jobRun{ns, 1 << 62}
			a.Runs = append(a.Runs, JobRun{Job: j.Key().String(), Ns: ns})
			continue
		}
		var took []int64
		for _, t := range j.Tasks() {
			if !t.Finished() {
				continue
			}
			for p := range t.Past() {
				if e := p.Exit(); e != nil && p.State() == borgpb.AttemptState_ATTEMPT_STATE_FINISHED && p.StartedWallNs() > 0 && e.EndedWallNs > p.StartedWallNs() {
					took = append(took, e.EndedWallNs-p.StartedWallNs())
				}
			}
		}
		if len(took) == 0 {
			continue
		}
		slices.Sort(took)
		f.runs[j.UID()] = jobRun{took[len(took)/2], took[len(took)-1]}
		a.Runs = append(a.Runs, JobRun{Job: j.Key().String(), Ns: took[len(took)/2], From: len(took)})
	}
	slices.SortFunc(a.Runs, func(x, y JobRun) int { return cmp.Compare(x.Job, y.Job) })
}

// begin enters the ends of the copies that run and were not entered.
func (f *forward) begin() {
	for uid := range f.runs {
		run := f.runs[uid]
		j := f.cell.JobByUID(uid)
		if j == nil {
			continue
		}
		for _, t := range j.Tasks() {
			p := t.Current()
			if p == nil || f.known[p.ID()] || p.StartedWallNs() == 0 {
				continue
			}
			left := run.ns - (f.cell.WallNs() - p.StartedWallNs())
			if left < 0 && run.mostNs < 1<<62 {
				// It runs for longer than most did.
				if left += run.mostNs - run.ns; left < 0 {
					continue
				}
			}
			f.known[p.ID()] = true
			f.ends = append(f.ends, end{f.sinceNs + max(left, 0), p.Machine().Name(), p.ID()})
		}
	}
	slices.SortFunc(f.ends, func(a, b end) int { return cmp.Or(cmp.Compare(b.ns, a.ns), a.copy.Compare(b.copy)) })
}

// run goes on until the task has a place, or nothing is known any more.
func (f *forward) run(a *EtaAnswer) error {
	pauses := slices.Clone(waits)
	for {
		waited := f.waitedNs
		if err := f.Rest(); err != nil {
			return err
		}
		f.sinceNs += f.waitedNs - waited
		f.begin()
		t := f.cell.Job(f.q.Job).Task(f.q.Index)
		if p := t.Current(); p != nil {
			a.Placed, a.AfterNs, a.Machine = true, f.sinceNs, p.Machine().Name()
			return nil
		}
		at := int64(0)
		switch {
		case t.State() == borgpb.State_STATE_DEAD:
			return f.explain(a)
		case len(f.ends) > 0:
			at = f.ends[len(f.ends)-1].ns
		case len(pauses) > 0:
			at, pauses = f.sinceNs+pauses[0], pauses[1:]
		default:
			return f.explain(a)
		}
		if at > f.q.HorizonNs {
			return f.explain(a)
		}
		a.Ended += f.until(at)
	}
}

// until lets time pass until a moment and a little after it, and what ends until then
// end.
func (f *forward) until(at int64) (ended int) {
	byMachine := make(map[string]*borgpb.MachineReport)
	for ended < maxReports && len(f.ends) > 0 && f.ends[len(f.ends)-1].ns <= at+together {
		e := f.ends[len(f.ends)-1]
		f.ends = f.ends[:len(f.ends)-1]
		m := f.cell.Machine(e.machine)
		if m == nil {
			continue
		}
		// A copy that gave way meanwhile did not end.
		p := m.Copy(e.copy)
		if p == nil || !p.Current() {
			continue
		}
		said := byMachine[e.machine]
		if said == nil {
			said = &borgpb.MachineReport{Machine: e.machine}
			byMachine[e.machine] = said
		}
		r := f.report(p, borgpb.AttemptState_ATTEMPT_STATE_FINISHED)
		r.StartedWallNs, r.Exit = p.StartedWallNs(), &borgpb.Exit{EndedWallNs: f.cell.WallNs() + at - f.sinceNs}
		said.Tasks = append(said.Tasks, r)
		ended++
	}
	reports := &borgpb.Reports{}
	for _, name := range slices.Sorted(maps.Keys(byMachine)) {
		reports.Machines = append(reports.Machines, byMachine[name])
	}
	ns := max(at-f.sinceNs, tickNs)
	f.sinceNs += ns
	f.entry(ns, []*borgpb.Op{reportsOp(reports)})
	return ended
}

// explain says why it has no place now.
func (f *forward) explain(a *EtaAnswer) error {
	a.AfterNs = f.sinceNs
	why, err := f.s.Explain(f.cell, f.q.Job, f.q.Index)
	if err != nil {
		return err
	}
	a.Why = why.Summary
	for _, k := range why.Changes {
		a.Changes = append(a.Changes, fmt.Sprintf("%s: %d machines", k.Change, k.Machines))
	}
	return nil
}
