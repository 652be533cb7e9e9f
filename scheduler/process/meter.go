package process

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"

	"borg/pages"
	"borg/proto/borgpb"
	"borg/proto/door"
	"borg/scheduler"
)

const (
	program = "scheduler"
	// lookPatience is how long a page waits for the loop, which may be making a long
	// pass or loading the cell.
	lookPatience = 3 * time.Second
)

// meter counts what a scheduler process does.
type meter struct {
	passes, batches prometheus.Histogram
	answers         *prometheus.CounterVec
	refused         *prometheus.CounterVec
	sessions        prometheus.Counter

	// What follows belongs to the loop. What searches of earlier sessions did.
	before scheduler.Stats
	// Of the present session.
	since time.Time
	last  lastPass
}

// lastPass is the last pass that had something to do.
type lastPass struct {
	at   time.Time
	took time.Duration
	more bool
}

func newMeter() *meter {
	return &meter{
		passes:   pages.NewHistogram(program, "pass", "Time that a pass takes which had something to do."),
		batches:  pages.NewHistogram(program, "batch", "Time from sending a batch of assignments to the log's answer."),
		answers:  pages.NewCounters(program, "batches", "Batches of assignments, by what came back.", "result", "answered", "unknown"),
		refused:  pages.NewCounters(program, "assignments_refused", "Assignments that the cell refused, by reason.", "reason", reasons()...),
		sessions: pages.NewCounter(program, "sessions", "Times that the cell was loaded from a master and followed."),
	}
}

func (m *meter) passed(took time.Duration, at time.Time, more bool) {
	m.passes.Observe(took.Seconds())
	m.last = lastPass{at, took, more}
}

func (m *meter) followed(now time.Time) {
	m.sessions.Inc()
	m.since = now
}

// settled counts the answer to a batch, of which so much was refused.
func (m *meter) settled(a answer, refused int) {
	if a.err != nil || a.result == nil {
		m.answers.WithLabelValues("unknown").Inc()
		return
	}
	m.answers.WithLabelValues("answered").Inc()
	for _, item := range a.result.GetItems() {
		if item.GetKind() != borgpb.RefusalKind_REFUSAL_KIND_UNSPECIFIED {
			m.refused.WithLabelValues(reason(item.GetKind())).Inc()
		}
	}
	if r := a.result.GetRefusal(); r != nil {
		m.refused.WithLabelValues(reason(r.GetKind())).Add(float64(refused))
	}
}

// reasons are all for which the cell may refuse.
func reasons() (names []string) {
	for k := range borgpb.RefusalKind_name {
		if k := borgpb.RefusalKind(k); k != borgpb.RefusalKind_REFUSAL_KIND_UNSPECIFIED {
			names = append(names, reason(k))
		}
	}
	return names
}

func reason(k borgpb.RefusalKind) string {
	return strings.ToLower(strings.TrimPrefix(k.String(), "REFUSAL_KIND_"))
}

// total adds what two searches did.
func total(a, b scheduler.Stats) scheduler.Stats {
	return scheduler.Stats{
		Placed: a.Placed + b.Placed, Searches: a.Searches + b.Searches, Looked: a.Looked + b.Looked, Feasible: a.Feasible + b.Feasible,
		CacheHits: a.CacheHits + b.CacheHits, CacheMisses: a.CacheMisses + b.CacheMisses, Preempted: a.Preempted + b.Preempted,
		Moved: a.Moved + b.Moved, Unproved: a.Unproved + b.Unproved,
		Transactions: a.Transactions + b.Transactions, Conflicts: a.Conflicts + b.Conflicts,
	}
}

// look is how the process stands, as its loop tells it to who asks.
type look struct {
	following bool
	since     time.Time
	index     uint64
	machines  int
	stats     scheduler.Stats
	waits     scheduler.Waits
	// Promises of assignments that the copy does not show yet, and batches without an
	// answer.
	promises, inFlight int
	planning, resting  bool
	asks               int
	last               lastPass
}

// look is called by the loop; s is nil while no master is followed.
func (p *process) look(s *session) look {
	l := look{stats: p.meter.before, last: p.meter.last, asks: len(p.waiting)}
	if s == nil || p.copy == nil {
		return l
	}
	l.following, l.since = true, p.meter.since
	l.index, l.machines = p.copy.Index(), p.copy.NumMachines()
	l.stats = total(l.stats, p.search.Stats())
	l.waits, l.promises = p.search.Waits(), p.search.InFlight()
	l.inFlight, l.planning, l.resting = s.inFlight, s.planning, s.resting != nil
	return l
}

var errBusy = errors.New("the scheduler has no time to say how it stands: it loads the cell, or makes a long pass; try again")

// askLook asks the loop.
func (p *process) askLook(ctx context.Context) (look, error) {
	ctx, cancel := context.WithTimeout(ctx, lookPatience)
	defer cancel()
	to := make(chan look, 1)
	select {
	case p.looks <- to:
		return <-to, nil
	case <-ctx.Done():
		return look{}, errBusy
	}
}

// showPages opens the socket and serves the pages in group until ctx ends.
func (p *process) showPages(ctx context.Context, group *errgroup.Group) error {
	l, err := door.ListenHTTP("unix:" + p.cfg.Pages)
	if err != nil {
		return fmt.Errorf("show the status page: %w", err)
	}
	figures := &figures{p: p, figures: nil}
	figures.figures = pages.NewFigures(program, schedulerFigures, figures.read)
	site := &pages.Site{
		Status: p.statusPage,
		Metrics: pages.NewRegistry(p.meter.passes, p.meter.batches, p.meter.answers, p.meter.refused, p.meter.sessions,
			figures.figures),
	}
	group.Go(func() error {
		return l.ServeHTTP(ctx, door.Config{Identity: p.cfg.Identity, Logger: p.cfg.Logger}, site.Handler())
	})
	return nil
}

// figures reads what the loop knows, for a scrape.
type figures struct {
	p       *process
	figures *pages.Figures

	mu sync.Mutex
	// What was last read: a loop that is busy must not make counters disappear.
	// Guarded by mu.
	last look
}

var schedulerFigures = []pages.Figure{
	{Name: "build_info", Help: "Always 1; the labels say which build runs, and for which jobs.", Labels: []string{"build", "workload"}},
	{Name: "certificate_left_seconds", Help: "How long the certificate of the process is still good for, below zero if it ran out.", Labels: []string{"of"}},
	{Name: "following", Help: "1 if a master is followed, else 0."},
	{Name: "copy_index", Help: "Log index of the scheduler's copy of the cell."},
	{Name: "waiting_jobs", Help: "Jobs and alloc sets of which something waits for a place."},
	{Name: "waiting_tasks", Help: "Tasks and allocs that wait for a place."},
	{Name: "held_jobs", Help: "Jobs held in the batch queue."},
	{Name: "following_jobs", Help: "Jobs that wait for others to finish."},
	{Name: "held_back_tasks", Help: "Tasks that wait a while because the cell refused them again and again."},
	{Name: "promised_tasks", Help: "Placements that were decided and that the copy does not show yet."},
	{Name: "in_flight_batches", Help: "Batches without an answer."},
	{Name: "waiting_questions", Help: "Questions (why) that wait for the copy to come to an index."},
	{Name: "placed_total", Help: "Placements that were decided."},
	{Name: "machines_looked_at_total", Help: "Places that were looked at."},
	{Name: "score_cache_hits_total", Help: "Scores that were found in the cache."},
	{Name: "score_cache_misses_total", Help: "Scores that were worked out."},
	{Name: "preempted_total", Help: "Tasks named as victims."},
	{Name: "moved_total", Help: "Tasks that plans moved."},
	{Name: "transactions_total", Help: "What batches held of one job each, as far as the log has answered."},
	{Name: "conflicts_total", Help: "Transactions of which the cell refused something."},
}

func (f *figures) read(r *pages.Reading) {
	l, err := f.p.askLook(context.Background())
	f.mu.Lock()
	if err != nil {
		l = f.last
	}
	f.last = l
	f.mu.Unlock()
	workload := f.p.cfg.Search.Workload.String()
	r.Set("build_info", 1, f.p.cfg.Build, workload)
	r.SetIf("following", l.following)
	r.Set("certificate_left_seconds", time.Until(f.p.cfg.Identity.Current().Expires()).Seconds(), "scheduler")
	for name, n := range map[string]int{
		"waiting_jobs": l.waits.Lines, "waiting_tasks": l.waits.Units, "held_jobs": l.waits.Held, "following_jobs": l.waits.Followers,
		"held_back_tasks": l.waits.Refused, "promised_tasks": l.promises, "in_flight_batches": l.inFlight, "waiting_questions": l.asks,
		"placed_total": l.stats.Placed, "machines_looked_at_total": l.stats.Looked, "score_cache_hits_total": l.stats.CacheHits,
		"score_cache_misses_total": l.stats.CacheMisses, "preempted_total": l.stats.Preempted, "moved_total": l.stats.Moved,
		"transactions_total": l.stats.Transactions, "conflicts_total": l.stats.Conflicts,
	} {
		r.Set(name, float64(n))
	}
	r.Set("copy_index", float64(l.index))
}
