package scheduler_test

import (
	"strings"
	"testing"

	"borg/borgmaster/cell"
	"borg/proto/borgpb"
	"borg/scheduler"
)

func TestParseWorkload(t *testing.T) {
	for _, text := range []string{"", "service", "batch", "hash 1/1", "hash 3/3", "batch 2/64", "service 1/2"} {
		w, err := scheduler.ParseWorkload(text)
		if err != nil || w.String() != text {
			t.Errorf("ParseWorkload(%q) = %q, %v", text, w, err)
		}
	}
	for _, text := range []string{"hash", "prod", "batch 0/3", "batch 4/3", "batch 1", "batch 1/65", "batch 1/2 3", "hash -1/2"} {
		if w, err := scheduler.ParseWorkload(text); err == nil || !strings.Contains(err.Error(), text) {
			t.Errorf("ParseWorkload(%q) = %q, %v, want an error that names it", text, w, err)
		}
	}
}

func parseWorkloads(t testing.TB, texts ...string) (all []scheduler.Workload) {
	for _, text := range texts {
		w, err := scheduler.ParseWorkload(text)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, w)
	}
	return all
}

func TestCheckWorkloads(t *testing.T) {
	for _, texts := range [][]string{
		{""}, {"service", "batch"}, {"hash 1/2", "hash 2/2"}, {"service", "batch 3/3", "batch 1/3", "batch 2/3"},
	} {
		if err := scheduler.CheckWorkloads(parseWorkloads(t, texts...)); err != nil {
			t.Errorf("%q: %v", texts, err)
		}
	}
	for _, texts := range [][]string{
		{"service"}, {"service", "batch 1/2"}, {"service", "batch", "batch"}, {"hash 1/2", "hash 2/2", "batch"},
		{"service", "batch 1/2", "batch 1/3"}, {"", "service"}, {"hash 1/2", "hash 1/2"},
	} {
		if err := scheduler.CheckWorkloads(parseWorkloads(t, texts...)); err == nil {
			t.Errorf("%q is accepted, although some jobs would have no scheduler or two", texts)
		}
	}
}

// TestSeveral lets one scheduler for services and three for batch work on copies
// of their own, each of which lags behind the log, until everything runs. Nothing
// is placed twice, nobody is left out, and what conflicts is refused by the cell,
// counted, and placed elsewhere.
func TestSeveral(t *testing.T) {
	c := loaded(t, workload{seed: 3, machines: 60, tasks: 900, fillPercent: 80})
	sv := newSeveral(t, c, scheduler.Config{}, "service", "batch 1/3", "batch 2/3", "batch 3/3")
	for range 400 {
		sv.round(t)
		if err := c.Check(); err != nil {
			t.Fatal(err)
		}
	}
	all := 0
	for range c.Pending() {
		all++
	}
	for range c.PendingAllocs() {
		all++
	}
	if all > 0 {
		t.Errorf("%d tasks and allocs wait, want none", all)
	}
	total := sv.stats()
	if total.Transactions != sv.transactions || total.Conflicts != sv.conflicts || sv.conflicts == 0 {
		t.Errorf("they count %d conflicts in %d transactions; the log says %d in %d, and some are wanted",
			total.Conflicts, total.Transactions, sv.conflicts, sv.transactions)
	}
	t.Logf("%d transactions, %d conflicts; %d tasks placed, %d refused", sv.transactions, sv.conflicts, sv.placed, sv.refused)
	for i, s := range sv.schedulers {
		st := s.search.Stats()
		t.Logf("scheduler %d: %+v", i, st)
		if st.Placed == 0 {
			t.Errorf("scheduler %d placed nothing", i)
		}
	}
}

// several are schedulers that work at once on one log.
type several struct {
	*world
	schedulers []*lagging
	log        []entry
	// A transaction is what a batch holds of one job; it conflicts when the cell
	// refuses some of it.
	transactions, conflicts int
	placed, refused         int
}

// lagging is a scheduler with its copy.
type lagging struct {
	search *scheduler.Scheduler
	copy   *cell.Cell
	// seen of the log; lag is how far behind it stays.
	seen, lag int
	sent      []scheduler.Batch
}

func newSeveral(tb testing.TB, c *cell.Cell, cfg scheduler.Config, workloads ...string) *several {
	sv := &several{world: &world{cell: c, copy: c, wallNs: c.WallNs(), timeNs: c.TimeNs()}}
	for i, w := range parseWorkloads(tb, workloads...) {
		cfg.Workload = w
		s, err := scheduler.New(cfg)
		if err != nil {
			tb.Fatal(err)
		}
		sv.schedulers = append(sv.schedulers, &lagging{search: s, copy: again(tb, c), lag: i % 3})
	}
	return sv
}

// round lets each scheduler take in what it may see of the log, make a pass, and
// send the batch of its last round: all decide before any of it is in the log.
func (sv *several) round(tb testing.TB) {
	for _, s := range sv.schedulers {
		for ; s.seen < len(sv.log)-s.lag; s.seen++ {
			e := sv.log[s.seen]
			_, events := s.copy.Apply(e.index, 1, e.data)
			s.search.Observe(s.copy, events)
			s.copy.Flush(nil)
		}
		if b := s.search.Pass(s.copy); b.ID != 0 {
			s.sent = append(s.sent, b)
		}
	}
	for _, s := range sv.schedulers {
		for _, b := range s.sent {
			sv.send(s, b)
		}
		s.sent = s.sent[:0]
	}
	// Time passes, so that those who are behind come on and those who were refused
	// twice are tried again.
	sv.timeNs += 1e9
	sv.wallNs += 1e9
	sv.write(&borgpb.Op{Op: &borgpb.Op_Time{Time: &borgpb.SetTime{}}})
}

// stats are those of all, as far as they count transactions.
func (sv *several) stats() (all scheduler.Stats) {
	for _, s := range sv.schedulers {
		st := s.search.Stats()
		all.Transactions += st.Transactions
		all.Conflicts += st.Conflicts
	}
	return all
}

// end lets the copies of a killed job stop.
func (sv *several) end(submit *borgpb.SubmitJob) {
	j := sv.cell.Job(cell.JobKey{User: submit.User, Name: submit.Name})
	if j == nil {
		return
	}
	for i, task := range j.Tasks() {
		for p := range task.Past() {
			if p.State() == borgpb.AttemptState_ATTEMPT_STATE_STOPPING {
				sv.write(reported(j, i, p.Machine().Name(), p.Attempt(), borgpb.AttemptState_ATTEMPT_STATE_STOPPED))
			}
		}
	}
}

// write puts an op into the log.
func (sv *several) write(op *borgpb.Op) *borgpb.Result {
	r := sv.do(op)
	sv.log = append(sv.log, sv.world.log...)
	sv.world.log = nil
	return r
}

func (sv *several) send(s *lagging, b scheduler.Batch) {
	r := sv.write(assign(b.Assign))
	refused := make(map[string]bool)
	jobs := make(map[string]bool)
	for i, a := range b.Assign.Assignments {
		jobs[a.Uid] = true
		if i < len(r.GetItems()) && r.Items[i].GetKind() != 0 || r.GetRefusal() != nil {
			refused[a.Uid] = true
		}
	}
	sv.transactions += len(jobs)
	sv.conflicts += len(refused)
	got := s.search.Settle(s.copy, b.ID, r)
	sv.refused += got.Count
	sv.placed += got.Of - got.Count
}
