package workload

import (
	"container/heap"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"

	"borg/borgmaster/cell"
	"borg/fauxmaster/trace"
	"borg/proto/borgpb"
	"borg/scheduler"
	"borg/scheduler/reservation"
)

// Config says how a workload is run.
type Config struct {
	// Search is the scheduler's.
	Search scheduler.Config
	// UntilNs is the virtual time at which it ends; more than zero.
	UntilNs int64
	// EveryNs is the virtual time between two samples; zero: five minutes.
	EveryNs int64
	// PaceNs is the virtual time between two rounds of the scheduler, if
	// anything happens at all: what happens in between happens at its end. Zero: a second.
	PaceNs int64
	// WithoutUnplaced leaves out the jobs of which no task ever had a machine where
	// they were recorded, although they waited to the end.
	WithoutUnplaced bool
	// Reservations is how much is kept beyond what tasks use.
	Reservations reservation.Setting
	// Progress is told now and then how far it is; nil: nobody is.
	Progress func(nowNs int64)
}

const (
	defaultEveryNs = 300e9
	defaultPaceNs  = 1e9
	// Bounds of the entries that are made, below those of a cell.
	maxOps        = 2_000
	maxReports    = 5_000
	maxEntryBytes = 512 << 10
	// A round of machines that obey and passes comes to rest in a few turns.
	maxTurns = 10_000
)

func (c Config) withDefaults() Config {
	if c.EveryNs == 0 {
		c.EveryNs = defaultEveryNs
	}
	if c.PaceNs == 0 {
		c.PaceNs = defaultPaceNs
	}
	return c
}

// Validate says what is wrong with c.
func (c Config) Validate() error {
	c = c.withDefaults()
	if c.UntilNs <= 0 || c.EveryNs <= 0 || c.PaceNs <= 0 || c.EveryNs%c.PaceNs != 0 {
		return errors.New("simulation: want an end after the beginning, and samples at a multiple of the pace of the scheduler")
	}
	return c.Search.Validate()
}

// end is when a copy of a task ends by itself.
type end struct {
	atNs int64
	seq  uint64
	id   cell.CopyID
}

// ends is a heap by time, then by who began first.
type ends []end

func (q ends) Len() int { return len(q) }
func (q ends) Less(i, j int) bool {
	if q[i].atNs != q[j].atNs {
		return q[i].atNs < q[j].atNs
	}
	return q[i].seq < q[j].seq
}
func (q ends) Swap(i, j int) { q[i], q[j] = q[j], q[i] }
func (q *ends) Push(x any)   { *q = append(*q, x.(end)) }
func (q *ends) Pop() any {
	last := len(*q) - 1
	e := (*q)[last]
	*q = (*q)[:last]
	return e
}

// lives is what the tasks of a job do.
type lives struct {
	histories []trace.History
	// done counts the runs that each has ended by itself.
	done []uint32
}

// run is a workload under way.
type run struct {
	cfg  Config
	w    *Workload
	cell *cell.Cell
	s    *scheduler.Scheduler
	// The cell's clocks when it began, and the virtual time since.
	cellNs, wallNs, nowNs int64

	next  int // arrival
	ends  ends
	seq   uint64
	lives map[cell.UID]*lives
	// touched are machines on which somebody may have to begin or to stop.
	touched   map[string]bool
	estimates estimates
	// accepted are arrivals that submitted a job, in the order of the events that
	// will tell its uid.
	accepted []int
	// logs is told every entry; nil: nobody is.
	logs func(index, term uint64, data []byte)

	report *Report
	tally  counts
}

// Run lets a workload happen. When ctx ends it reports how far it came.
func Run(ctx context.Context, w *Workload, cfg Config) (*Report, error) {
	r, err := newRun(w, cfg)
	if err != nil {
		return nil, err
	}
	return r.run(ctx)
}

func newRun(w *Workload, cfg Config) (*run, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	cfg = cfg.withDefaults()
	s, err := scheduler.New(cfg.Search)
	if err != nil {
		return nil, err
	}
	return &run{
		cfg: cfg, w: w, cell: w.Cell, s: s, cellNs: w.Cell.TimeNs(), wallNs: w.Cell.WallNs(), lives: make(map[cell.UID]*lives),
		touched: make(map[string]bool), report: &Report{EveryNs: cfg.EveryNs, FromWallNs: w.Cell.WallNs(), Policy: cfg.Search.Policy.String(), LeavesOut: LeavesOut, Refused: make(map[string]int), ConflictKinds: make(map[string]int)},
	}, nil
}

func (r *run) run(ctx context.Context) (*Report, error) {
	began := time.Now()
	if err := r.begin(); err != nil {
		return nil, err
	}
	for r.nowNs < r.cfg.UntilNs && ctx.Err() == nil {
		r.nowNs = min(r.due(), r.cfg.UntilNs)
		if err := r.step(); err != nil {
			return nil, err
		}
	}
	// What came after the last sample is in the sums too.
	r.report.count(r.since())
	r.report.close(r.w, r.nowNs, time.Since(began))
	return r.report, nil
}

// begin makes ready what is there already.
func (r *run) begin() error {
	if err := r.read(); err != nil {
		return err
	}
	for uid, all := range r.w.Begun {
		r.lives[uid] = &lives{all, make([]uint32, len(all))}
	}
	for m := range r.cell.Machines() {
		for p := range m.Copies() {
			if p.Current() && p.State() == borgpb.AttemptState_ATTEMPT_STATE_RUNNING {
				r.started(p)
			}
		}
		r.touched[m.Name()] = true
	}
	if r.cfg.WithoutUnplaced {
		if err := r.leaveOut(); err != nil {
			return err
		}
	}
	r.sample()
	return nil
}

// read has every arrival know what becomes of its tasks.
func (r *run) read() error {
	for i := range r.w.Arrivals {
		a := &r.w.Arrivals[i]
		o := a.Op.GetSubmitJob()
		if o == nil {
			continue
		}
		spec := &borgpb.JobSpec{}
		if err := proto.Unmarshal(o.Spec, spec); err != nil {
			return fmt.Errorf("job %s/%s that arrives: %w", o.User, o.Name, err)
		}
		if a.Histories == nil {
			all, err := trace.Histories(spec)
			if err != nil {
				return fmt.Errorf("job %s/%s that arrives: %w", o.User, o.Name, err)
			}
			a.Histories = all
		}
		if !r.w.MadeUp {
			r.report.recall(a.Histories, a.AtNs, trace.TierOf(spec.Priority), r.cfg)
		}
	}
	if r.w.MadeUp {
		return nil
	}
	for j := range r.cell.Jobs() {
		r.report.recall(r.w.Begun[j.UID()], 0, trace.TierOf(j.Priority()), r.cfg)
	}
	return nil
}

// unplaced tells whether none of the tasks ever had a machine, although they waited
// to the end.
func unplaced(all []trace.History) bool {
	for i := range all {
		if n := len(all[i].Runs); all[i].Placed() || n == 0 || all[i].Runs[n-1].End != trace.Ongoing {
			return false
		}
	}
	return len(all) > 0
}

// leaveOut kills the jobs that are there and are to be left out.
func (r *run) leaveOut() error {
	var ops []*borgpb.Op
	for j := range r.cell.Jobs() {
		if unplaced(r.w.Begun[j.UID()]) {
			key := j.Key()
			ops = append(ops, &borgpb.Op{
				Principal: &borgpb.Principal{User: key.User, Role: borgpb.Role_ROLE_USER},
				Op:        &borgpb.Op_KillJob{KillJob: &borgpb.KillJob{User: key.User, Name: key.Name}},
			})
			r.report.LeftOut += int(j.NumTasks())
		}
	}
	r.do(ops)
	r.tally = counts{}
	return nil
}

// due is when something happens next, on the scheduler's grid.
func (r *run) due() int64 {
	next := (r.nowNs/r.cfg.EveryNs + 1) * r.cfg.EveryNs
	if r.next < len(r.w.Arrivals) {
		next = min(next, r.w.Arrivals[r.next].AtNs)
	}
	if len(r.ends) > 0 {
		next = min(next, r.ends[0].atNs)
	}
	if len(r.estimates.list) > 0 {
		next = min(next, r.estimates.nextNs)
	}
	pace := r.cfg.PaceNs
	return max((next+pace-1)/pace*pace, r.nowNs+pace)
}

// step does what is due.
func (r *run) step() error {
	r.finish()
	r.arrive()
	r.estimate()
	if err := r.settle(); err != nil {
		return err
	}
	if r.nowNs%r.cfg.EveryNs == 0 {
		r.sample()
	}
	if r.cfg.Progress != nil {
		r.cfg.Progress(r.nowNs)
	}
	return nil
}

// arrive does what comes from outside.
func (r *run) arrive() {
	var ops []*borgpb.Op
	var numbers []int
	bytes := 0
	flush := func() {
		r.accepted = numbers
		r.do(ops)
		ops, numbers, bytes = nil, nil, 0
	}
	for ; r.next < len(r.w.Arrivals) && r.w.Arrivals[r.next].AtNs <= r.nowNs; r.next++ {
		a := &r.w.Arrivals[r.next]
		if r.cfg.WithoutUnplaced && unplaced(a.Histories) {
			r.report.LeftOut += len(a.Histories)
			continue
		}
		op := a.Op
		if down := op.GetMachineDown(); down != nil {
			// The verdict is of a term that is over.
			op = proto.CloneOf(op)
			op.GetMachineDown().Term = max(r.cell.Term(), 1)
		}
		size := proto.Size(op)
		if len(ops) > 0 && (len(ops) >= maxOps || bytes+size > maxEntryBytes) {
			flush()
		}
		ops, numbers, bytes = append(ops, op), append(numbers, r.next), bytes+size
	}
	if len(ops) > 0 {
		flush()
	}
}

// do does ops in one entry, and counts what is refused of them.
func (r *run) do(ops []*borgpb.Op) []*borgpb.Result {
	e := &borgpb.Entry{CellTimeNs: r.cellNs + r.nowNs, WallTimeNs: r.wallNs + r.nowNs}
	for _, op := range ops {
		e.Ops = append(e.Ops, marshal(op))
	}
	index, term, data := r.cell.Index()+1, max(r.cell.Term(), 1), marshal(e)
	results, events := r.cell.Apply(index, term, data)
	if r.logs != nil {
		r.logs(index, term, data)
	}
	r.report.Entries++
	var submitted []int
	for i, res := range results {
		if why := res.GetRefusal(); why != nil && i < len(ops) && ops[i].GetAssign() == nil {
			r.report.refuse(ops[i], why)
		} else if i < len(r.accepted) && ops[i].GetSubmitJob() != nil {
			submitted = append(submitted, r.accepted[i])
		}
	}
	r.accepted = nil
	r.s.Observe(r.cell, events)
	r.hear(events, submitted)
	// Nobody writes the records down; without this the list of the changed ones
	// would grow for ever.
	r.cell.Flush(nil)
	return results
}

func marshal(m proto.Message) []byte {
	data, err := proto.Marshal(m)
	if err != nil {
		// Only text that is not UTF-8 fails, and it has been through a message.
		panic(fmt.Sprintf("workload: encode %T: %v", m, err))
	}
	return data
}

// hear takes in what happened; submitted are the arrivals whose jobs began, in order.
func (r *run) hear(events []cell.Event, submitted []int) {
	for i := range events {
		e := &events[i]
		switch e.ObjectKind {
		case borgpb.ObjectKind_OBJECT_KIND_JOB:
			if e.Kind == borgpb.EventKind_EVENT_KIND_SUBMIT && len(submitted) > 0 {
				if all := r.w.Arrivals[submitted[0]].Histories; all != nil {
					r.lives[e.UID] = &lives{all, make([]uint32, len(all))}
				}
				submitted = submitted[1:]
				if j := r.cell.JobByUID(e.UID); j != nil {
					r.tally.submitted += int(j.NumTasks())
				}
			}
			if e.To == borgpb.State_STATE_DEAD {
				delete(r.lives, e.UID)
			}
		case borgpb.ObjectKind_OBJECT_KIND_TASK:
			r.hearTask(e)
		}
	}
}

func (r *run) hearTask(e *cell.Event) {
	if e.Machine != "" {
		r.touched[e.Machine] = true
	}
	switch e.Kind {
	case borgpb.EventKind_EVENT_KIND_START, borgpb.EventKind_EVENT_KIND_RETURN:
		if m := r.cell.Machine(e.Machine); m != nil {
			if p := m.Copy(cell.CopyID{Job: e.UID, Index: e.Task, Attempt: e.Attempt}); p != nil {
				r.started(p)
			}
		}
	case borgpb.EventKind_EVENT_KIND_EVICT:
		if e.From != e.To {
			r.tally.evicted[r.tier(e.UID)]++
		}
	case borgpb.EventKind_EVENT_KIND_FINISH:
		r.tally.finished++
	case borgpb.EventKind_EVENT_KIND_FAIL:
		r.tally.failed++
	}
}

func (r *run) tier(uid cell.UID) trace.Tier {
	if j := r.cell.JobByUID(uid); j != nil {
		return trace.TierOf(j.Priority())
	}
	return trace.Free
}

// started has a copy end when its time is over.
func (r *run) started(p *cell.Copy) {
	l := r.lives[p.JobUID()]
	if l == nil || int(p.Index()) >= len(l.histories) {
		return
	}
	h := &l.histories[p.Index()]
	r.estimates.begin(r.cellNs+r.nowNs, p, h, r.cfg.Reservations)
	if own, _, ok := h.Own(int(l.done[p.Index()])); ok {
		r.seq++
		heap.Push(&r.ends, end{r.nowNs + own.RunNs, r.seq, p.ID()})
	}
}

// finish reports the copies whose time is over.
func (r *run) finish() {
	reports := &borgpb.Reports{}
	for len(r.ends) > 0 && r.ends[0].atNs <= r.nowNs {
		e := heap.Pop(&r.ends).(end)
		if report := r.ended(e.id); report != nil {
			reports.Machines = append(reports.Machines, report)
		}
		if len(reports.Machines) == maxReports {
			r.do([]*borgpb.Op{reportsOp(reports)})
			reports = &borgpb.Reports{}
		}
	}
	if len(reports.Machines) > 0 {
		r.do([]*borgpb.Op{reportsOp(reports)})
	}
}

// ended is what the machine of a copy says when the copy has ended; nil: it is not
// there any more.
func (r *run) ended(id cell.CopyID) *borgpb.MachineReport {
	j, l := r.cell.JobByUID(id.Job), r.lives[id.Job]
	if j == nil || l == nil || j.Task(id.Index) == nil {
		return nil
	}
	t := j.Task(id.Index)
	p := t.Current()
	if p == nil || p.Attempt() != id.Attempt {
		return nil
	}
	own, last, _ := l.histories[id.Index].Own(int(l.done[id.Index]))
	l.done[id.Index]++
	exit := &borgpb.Exit{EndedWallNs: r.wallNs + r.nowNs}
	state := borgpb.AttemptState_ATTEMPT_STATE_FINISHED
	switch own.End {
	case trace.Failed:
		exit.Code = 1
	case trace.Killed:
		exit.Signal = 9
	}
	// A cell tries again what has failures left; who failed for the last time where
	// it was recorded is over here too.
	if own.End != trace.Finished && (!last || t.Failures() >= j.Spec().GetMaxFailures()) {
		state = borgpb.AttemptState_ATTEMPT_STATE_FAILED
	}
	return said(p, state, exit)
}

// said is what a machine says of a copy.
func said(p *cell.Copy, state borgpb.AttemptState, exit *borgpb.Exit) *borgpb.MachineReport {
	t := &borgpb.TaskReport{JobUid: p.JobUID().String(), Index: p.Index(), Attempt: p.Attempt(), State: int32(state), Restarts: p.Restarts(), Exit: exit}
	return &borgpb.MachineReport{Machine: p.Machine().Name(), Tasks: []*borgpb.TaskReport{t}}
}

func reportsOp(r *borgpb.Reports) *borgpb.Op {
	return &borgpb.Op{Op: &borgpb.Op_Reports{Reports: r}}
}

// settle lets the machines and the scheduler work until there is nothing to do.
func (r *run) settle() error {
	for range maxTurns {
		moved := r.obey()
		if r.pass() {
			moved = true
		}
		if !moved {
			return nil
		}
	}
	return fmt.Errorf("at %v the scheduler does not come to rest within %d turns", time.Duration(r.nowNs), maxTurns)
}

// obey reports what the machines have done on which something happened: who was told to
// stop has stopped, and who was placed runs.
func (r *run) obey() (moved bool) {
	if len(r.touched) == 0 {
		return false
	}
	names := slices.Sorted(maps.Keys(r.touched))
	clear(r.touched)
	reports := &borgpb.Reports{}
	flush := func() {
		if len(reports.Machines) > 0 {
			r.do([]*borgpb.Op{reportsOp(reports)})
			moved, reports = true, &borgpb.Reports{}
		}
	}
	for _, name := range names {
		m := r.cell.Machine(name)
		if m == nil || !m.Up() {
			continue
		}
		for p := range m.Copies() {
			if report := r.obeyed(p); report != nil {
				reports.Machines = append(reports.Machines, report)
			}
		}
		if len(reports.Machines) >= maxReports {
			flush()
		}
	}
	flush()
	return moved
}

// obeyed is what a machine says of a copy that was told something; nil: nothing.
func (r *run) obeyed(p *cell.Copy) *borgpb.MachineReport {
	switch p.State() {
	case borgpb.AttemptState_ATTEMPT_STATE_STOPPING:
		return said(p, borgpb.AttemptState_ATTEMPT_STATE_STOPPED, &borgpb.Exit{Signal: 15, EndedWallNs: r.wallNs + r.nowNs})
	case borgpb.AttemptState_ATTEMPT_STATE_ASSIGNED, borgpb.AttemptState_ATTEMPT_STATE_STARTING, borgpb.AttemptState_ATTEMPT_STATE_BACKOFF:
		if p.Waits() {
			return nil
		}
		report := said(p, borgpb.AttemptState_ATTEMPT_STATE_RUNNING, nil)
		report.Tasks[0].Pid, report.Tasks[0].StartedWallNs = 1, r.wallNs+r.nowNs
		return report
	}
	return nil
}

// pass makes passes until one has nothing more to propose.
func (r *run) pass() (moved bool) {
	for {
		began := time.Now()
		b := r.s.Pass(r.cell)
		r.report.passed(time.Since(began))
		if b.ID == 0 {
			if b.More {
				continue
			}
			return moved
		}
		res := r.do([]*borgpb.Op{{Principal: &borgpb.Principal{Role: borgpb.Role_ROLE_SCHEDULER}, Op: &borgpb.Op_Assign{Assign: b.Assign}}})[0]
		of := r.s.Settle(r.cell, b.ID, res)
		r.report.Placed += of.Of - of.Count
		r.report.Conflicts += of.Count
		r.report.conflict(res, of.Of)
		if of.Count == of.Of {
			return moved
		}
		moved = true
	}
}
