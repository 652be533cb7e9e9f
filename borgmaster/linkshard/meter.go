package linkshard

import (
	"cmp"
	"slices"

	"github.com/prometheus/client_golang/prometheus"

	"borg/pages"
)

// maxMissedNamed bounds the machines that a status page names as not reached.
const maxMissedNamed = 20

// meter counts what a shard does, for metrics and status pages. Its histograms and
// counters may be read from anywhere; the rest belongs to Run's goroutine.
type meter struct {
	seconds, interval prometheus.Histogram
	polls, reports    *prometheus.CounterVec

	// When the last poll of each machine of the share began, monotonic nanoseconds,
	// and which were not reached by it.
	beganNs map[string]int64
	missed  map[string]Missed
}

// Missed is a machine that was not reached when last polled.
type Missed struct {
	Machine string
	// Polls missed in a row, as far as this share goes back.
	Times int
	// Why, for people.
	Err string
}

func newMeter() *meter {
	m := &meter{
		seconds:  pages.NewHistogram("borgmaster", "poll", "Time from the start of a poll of a machine to its answer."),
		interval: pages.NewHistogram("borgmaster", "poll_interval", "Time between the starts of two polls of one machine."),
		polls:    pages.NewCounters("borgmaster", "polls", "Polls of machines by this replica's link shard, by how they ended.", "result", "reached", "missed"),
		reports:  pages.NewCounters("borgmaster", "shard_reports", "Reports of this replica's link shard to the elected master, by how they ended.", "result", "taken", "failed"),
	}
	m.moved()
	return m
}

// moved begins anew when other machines are polled.
func (m *meter) moved() { m.beganNs, m.missed = map[string]int64{}, map[string]Missed{} }

// removed forgets a machine that is no longer in the cell.
func (m *meter) removed(machine string) {
	delete(m.beganNs, machine)
	delete(m.missed, machine)
}

func (m *meter) began(machine string, nowNs int64) {
	if last, ok := m.beganNs[machine]; ok {
		m.interval.Observe(float64(nowNs-last) / 1e9)
	}
	m.beganNs[machine] = nowNs
}

func (m *meter) ended(a Answered, nowNs int64) {
	began, ok := m.beganNs[a.Machine]
	if ok {
		m.seconds.Observe(float64(nowNs-began) / 1e9)
	}
	if a.Reached {
		m.polls.WithLabelValues("reached").Inc()
		delete(m.missed, a.Machine)
		return
	}
	m.polls.WithLabelValues("missed").Inc()
	if !ok {
		// It left the share, or the cell, while the poll was out.
		return
	}
	m.missed[a.Machine] = Missed{Machine: a.Machine, Times: m.missed[a.Machine].Times + 1, Err: a.Err}
}

func (m *meter) reported(err error) {
	if err != nil {
		m.reports.WithLabelValues("failed").Inc()
		return
	}
	m.reports.WithLabelValues("taken").Inc()
}

// worst are the machines missed most often, a few of them.
func (m *meter) worst() []Missed {
	var all []Missed
	for _, missed := range m.missed {
		all = append(all, missed)
	}
	slices.SortFunc(all, func(a, b Missed) int {
		return cmp.Or(cmp.Compare(b.Times, a.Times), cmp.Compare(a.Machine, b.Machine))
	})
	return all[:min(len(all), maxMissedNamed)]
}

// Collectors are what counts this shard's polls.
func (s *Shard) Collectors() []prometheus.Collector {
	return []prometheus.Collector{s.meter.seconds, s.meter.interval, s.meter.polls, s.meter.reports}
}

// Times are how long polls take, and how far apart they are.
func (s *Shard) Times() (poll, interval prometheus.Histogram) {
	return s.meter.seconds, s.meter.interval
}
