package workload

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"slices"

	"google.golang.org/protobuf/proto"

	"borg/borgmaster/cell"
	"borg/fauxmaster"
	"borg/fauxmaster/trace"
	"borg/proto/borgpb"
)

// Workload is what is to happen to a cell.
type Workload struct {
	// Cell is how it begins. Run works on it: a Workload is run once.
	Cell *cell.Cell
	// Arrivals come from outside, in order of time.
	Arrivals []trace.Arrival
	// Begun tells of the tasks that are there already, by job.
	Begun map[cell.UID][]trace.History
	// LastNs is when the recording ended; zero: nobody recorded anything.
	LastNs int64
	// MadeUp: nobody recorded what arrives, and there is nothing to compare with.
	MadeUp bool
}

// Of is the workload that a cell brings along: what its jobs tell of their tasks, and
// nothing that arrives.
func Of(c *cell.Cell) (*Workload, error) {
	w := &Workload{Cell: c, Begun: make(map[cell.UID][]trace.History)}
	for j := range c.Jobs() {
		all, err := trace.Histories(j.Spec())
		if err != nil {
			return nil, fmt.Errorf("job %v: %w", j.Key(), err)
		}
		if all != nil {
			w.Begun[j.UID()] = all
		}
	}
	return w, nil
}

// Recorded reads a workload off an archive, from a moment on: the zero Moment is its
// first checkpoint. Jobs of an archive that an importer made tell themselves what became
// of their tasks; for others it is what the log says.
func Recorded(past *fauxmaster.Past, from fauxmaster.Moment) (*Workload, error) {
	if from == (fauxmaster.Moment{}) {
		from = past.First()
	}
	began, err := past.At(from)
	if err != nil {
		return nil, err
	}
	defer began.Close()
	t, err := past.At(from)
	if err != nil {
		return nil, err
	}
	defer t.Close()
	w, err := Of(began.Cell)
	if err != nil {
		return nil, err
	}
	r := newRecorder(w, t.Cell)
	for {
		s, err := t.Step()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, err
		}
		r.step(t.Cell, s)
	}
	r.close(t.Cell)
	return w, nil
}

// recorder hears of a cell's past what is to happen again.
type recorder struct {
	w       *Workload
	beganNs int64
	jobs    map[cell.UID]*recorded
}

// recorded is what became of the tasks of a job.
type recorded struct {
	// tells: its spec says it, and the log need not.
	tells bool
	// arrival is its number among the arrivals; negative: it was there.
	arrival int
	uid     cell.UID
	tasks   []recordedTask
}

type recordedTask struct {
	trace.History
	// The state since sinceNs.
	running, over bool
	sinceNs       int64
}

func newRecorder(w *Workload, c *cell.Cell) *recorder {
	r := &recorder{w: w, beganNs: c.TimeNs(), jobs: make(map[cell.UID]*recorded)}
	for j := range c.Jobs() {
		r.join(j, -1, c.TimeNs())
	}
	return r
}

// join begins to record a job.
func (r *recorder) join(j *cell.Job, arrival int, nowNs int64) {
	o := &recorded{arrival: arrival, uid: j.UID(), tells: len(j.Spec().GetExtensions()[trace.HistoryKey]) > 0}
	r.jobs[j.UID()] = o
	if o.tells {
		return
	}
	o.tasks = make([]recordedTask, j.NumTasks())
	for i, t := range j.Tasks() {
		at := &o.tasks[i]
		at.sinceNs = nowNs
		switch t.State() {
		case borgpb.State_STATE_RUNNING:
			at.running, at.Runs = true, []trace.Run{{}}
		case borgpb.State_STATE_DEAD:
			at.over = true
		}
		at.use(t.Current())
	}
}

// use takes in what a copy reserves, which is the best there is to say of what it
// uses.
func (t *recordedTask) use(p *cell.Copy) {
	if p == nil {
		return
	}
	if res, _, ok := p.Reservation(); ok {
		limit := p.Resources()
		t.CPUPermille, t.MemPermille = permille(res.CPUMilli, limit.CPUMilli), permille(res.MemBytes, limit.MemBytes)
	}
}

func permille(of, all int64) uint32 {
	if all <= 0 {
		return 0
	}
	return uint32(min(float64(of)/float64(all)*1000, 1e6))
}

// step takes in an entry that was applied.
func (r *recorder) step(c *cell.Cell, s *fauxmaster.Step) {
	first := len(r.w.Arrivals)
	for i, data := range s.Entry.Entry.GetOps() {
		if i >= len(s.Results) || s.Results[i].GetRefusal() != nil || s.Results[i].GetRepeated() {
			continue
		}
		op := new(borgpb.Op)
		if proto.Unmarshal(data, op) != nil {
			continue
		}
		if rs := op.GetReports(); rs != nil {
			r.reservations(c, rs)
		}
		if !outside(op) {
			continue
		}
		// Request ids are for clients, and those of the past have their answers.
		op.RequestId, op.RequestWallNs = "", 0
		r.w.Arrivals = append(r.w.Arrivals, trace.Arrival{AtNs: c.TimeNs() - r.beganNs, Op: op})
	}
	for i := range s.Events {
		r.event(c, &s.Events[i], first)
	}
}

// outside tells whether an op is somebody's wish or an accident, and not what the
// cell itself came to.
func outside(op *borgpb.Op) bool {
	switch op.Op.(type) {
	case *borgpb.Op_Assign, *borgpb.Op_MoveTasks, *borgpb.Op_Reports, *borgpb.Op_Time, *borgpb.Op_Digest, *borgpb.Op_SetTaskNote, *borgpb.Op_UseToken,
		// The runs of cron jobs arrive themselves.
		*borgpb.Op_FireCron:
		return false
	}
	return op.Op != nil
}

func (r *recorder) reservations(c *cell.Cell, rs *borgpb.Reports) {
	for _, m := range rs.GetMachines() {
		if len(m.GetReservations()) == 0 || c.Machine(m.GetMachine()) == nil {
			continue
		}
		for p := range c.Machine(m.GetMachine()).Copies() {
			if o := r.jobs[p.JobUID()]; o != nil && int(p.Index()) < len(o.tasks) {
				o.tasks[p.Index()].use(p)
			}
		}
	}
}

// event takes in one event; arrivals from first on came with it.
func (r *recorder) event(c *cell.Cell, e *cell.Event, first int) {
	nowNs := c.TimeNs()
	switch e.ObjectKind {
	case borgpb.ObjectKind_OBJECT_KIND_JOB:
		j := c.JobByUID(e.UID)
		switch {
		case e.Kind == borgpb.EventKind_EVENT_KIND_SUBMIT && j != nil:
			arrival := r.submission(e.Key, first)
			if parent, err := cell.ParseJobKey(j.Spec().GetParent()); err == nil && arrival < 0 && isCron(c, parent) {
				// Its slot was decided in the recording, and its tasks end as they did then.
				arrival = len(r.w.Arrivals)
				run := trace.Job{User: e.Key.User, Name: e.Key.Name, Labels: j.Labels(), Spec: proto.CloneOf(j.Spec())}
				r.w.Arrivals = append(r.w.Arrivals, trace.Arrival{AtNs: nowNs - r.beganNs, Op: run.Op()})
			}
			r.join(j, arrival, nowNs)
		case e.Kind == borgpb.EventKind_EVENT_KIND_RESIZE && j != nil:
			r.resize(j, nowNs)
		case e.To == borgpb.State_STATE_DEAD:
			r.endAll(e.UID, nowNs)
		}
	case borgpb.ObjectKind_OBJECT_KIND_TASK:
		if o := r.jobs[e.UID]; o != nil && int(e.Task) < len(o.tasks) {
			o.tasks[e.Task].hear(e, nowNs)
		}
	}
}

func isCron(c *cell.Cell, key cell.JobKey) bool {
	j := c.Job(key)
	return j != nil && j.Spec().GetCron() != nil
}

// submission finds the arrival that submitted a job.
func (r *recorder) submission(key cell.JobKey, first int) int {
	for i := len(r.w.Arrivals) - 1; i >= first; i-- {
		if o := r.w.Arrivals[i].Op.GetSubmitJob(); o != nil && o.User == key.User && o.Name == key.Name {
			return i
		}
	}
	return -1
}

func (r *recorder) resize(j *cell.Job, nowNs int64) {
	o := r.jobs[j.UID()]
	if o == nil || o.tells {
		return
	}
	for i := range o.tasks[min(int(j.NumTasks()), len(o.tasks)):] {
		o.tasks[int(j.NumTasks())+i].end(nowNs, trace.Killed)
	}
	for len(o.tasks) < int(j.NumTasks()) {
		o.tasks = append(o.tasks, recordedTask{sinceNs: nowNs})
	}
}

// endAll ends what of a job's tasks never had a machine, or has none.
func (r *recorder) endAll(uid cell.UID, nowNs int64) {
	if o := r.jobs[uid]; o != nil {
		for i := range o.tasks {
			o.tasks[i].end(nowNs, trace.Killed)
		}
	}
}

var recordedEnds = map[borgpb.EventKind]trace.End{
	borgpb.EventKind_EVENT_KIND_EVICT: trace.Evicted, borgpb.EventKind_EVENT_KIND_LOST: trace.Evicted, borgpb.EventKind_EVENT_KIND_UPDATE_RUNNING: trace.Evicted,
	borgpb.EventKind_EVENT_KIND_FAIL: trace.Failed, borgpb.EventKind_EVENT_KIND_FINISH: trace.Finished, borgpb.EventKind_EVENT_KIND_KILL: trace.Killed,
}

// hear takes in what happened to a task.
func (t *recordedTask) hear(e *cell.Event, nowNs int64) {
	if e.To == borgpb.State_STATE_RUNNING {
		if !t.running && !t.over {
			t.Runs = append(t.Runs, trace.Run{WaitNs: nowNs - t.sinceNs})
			t.running, t.sinceNs = true, nowNs
		}
		return
	}
	if how, ok := recordedEnds[e.Kind]; ok && e.From != e.To {
		t.end(nowNs, how)
		t.over = e.To == borgpb.State_STATE_DEAD
	}
}

// end ends the run, or the wait.
func (t *recordedTask) end(nowNs int64, how trace.End) {
	if t.over {
		return
	}
	if ns := nowNs - t.sinceNs; t.running {
		last := &t.Runs[len(t.Runs)-1]
		last.RunNs, last.End = ns, how
	} else {
		t.Runs = append(t.Runs, trace.Run{WaitNs: ns, RunNs: trace.NeverRan, End: how})
	}
	t.running, t.over, t.sinceNs = false, how == trace.Killed, nowNs
}

// close ends the recording.
func (r *recorder) close(c *cell.Cell) {
	r.w.LastNs = c.TimeNs() - r.beganNs
	for uid, o := range r.jobs {
		if o.tells {
			continue
		}
		histories := make([]trace.History, len(o.tasks))
		for i := range o.tasks {
			o.tasks[i].end(c.TimeNs(), trace.Ongoing)
			histories[i] = o.tasks[i].History
		}
		if o.arrival >= 0 {
			r.w.Arrivals[o.arrival].Histories = histories
		} else {
			r.w.Begun[uid] = histories
		}
	}
	slices.SortStableFunc(r.w.Arrivals, func(a, b trace.Arrival) int { return cmp.Compare(a.AtNs, b.AtNs) })
}
