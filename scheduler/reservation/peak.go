package reservation

import "math/bits"

// Window is what one task on a machine used of one resource in one window of
// time, five minutes as a rule.
type Window struct {
	// Task tells it from others that are or were on the machine.
	Task  uint64
	Limit int64
	Used  int64
	// Fixed: its owner has switched estimation off.
	Fixed bool
}

// Predictor says how much of one resource of one machine counts as taken.
type Predictor interface {
	// Observe takes in a window that ended at nowNs, of every task on the
	// machine. Who is not among them has left.
	Observe(nowNs int64, tasks []Window)
	// Peak is what the tasks that were seen last are expected to use together
	// at most. It is above the sum of their limits only where use is.
	Peak() int64
}

// Share predicts that the tasks of a machine use a fixed share of the sum of
// their limits. In thousandths; 1,000 is to predict nothing.
type Share struct {
	Permille int64
	limits   int64
	fixed    int64
}

// Observe is Predictor's.
func (s *Share) Observe(_ int64, tasks []Window) {
	s.limits, s.fixed = 0, 0
	for i := range tasks {
		if t := &tasks[i]; t.Fixed {
			s.fixed += t.Limit
		} else {
			s.limits += t.Limit
		}
	}
}

// Peak is Predictor's.
func (s *Share) Peak() int64 { return s.fixed + mulDiv(s.limits, s.Permille, 1000) }

// Reservations is the sum of the tasks' reservations.
type Reservations struct {
	Config Config
	tasks  known[Task]
	sum    int64
}

// Observe is Predictor's.
func (r *Reservations) Observe(nowNs int64, tasks []Window) {
	r.sum = 0
	r.tasks.begin()
	for i := range tasks {
		w := &tasks[i]
		t, isNew := r.tasks.of(w.Task)
		if isNew {
			*t = Begin(nowNs, Amounts{CPUMilli: w.Limit})
		}
		t.Use(nowNs, Amounts{CPUMilli: w.Limit}, Amounts{CPUMilli: w.Used}, w.Fixed, r.Config)
		r.sum += t.reserved.CPUMilli
	}
	r.tasks.end()
}

// Peak is Predictor's.
func (r *Reservations) Peak() int64 { return r.sum }

// warmWindows is how many windows of a task have to be seen before anything but
// its limit is predicted for it: two hours of five minutes.
const warmWindows = 24

// NSigma predicts that a machine's tasks together use, of the sum of their
// limits, the mean of what they did so far and N times its standard deviation.
type NSigma struct {
	// N is a small number; the more, the safer.
	N int64

	tasks known[uint8]
	// ratios is a ring of what the tasks used of their limits, in 1/ratioOne; at
	// counts from the beginning.
	ratios [historyWindows]uint32
	at     int
	sum    int64
	sumSq  int64
	// Limits of those last seen: warm, and all others.
	warm, others int64
}

const (
	// historyWindows is how far NSigma remembers: ten hours of five minutes.
	historyWindows = 120
	ratioOne       = 1 << 16
)

// Observe is Predictor's.
func (n *NSigma) Observe(_ int64, tasks []Window) {
	n.warm, n.others = 0, 0
	used, limits := int64(0), int64(0)
	n.tasks.begin()
	for i := range tasks {
		w := &tasks[i]
		seen, _ := n.tasks.of(w.Task)
		if *seen < warmWindows {
			*seen++
		}
		if !w.Fixed {
			limits += w.Limit
			used += min(max(w.Used, 0), w.Limit)
		}
		if w.Fixed || *seen < warmWindows {
			n.others += w.Limit
		} else {
			n.warm += w.Limit
		}
	}
	n.tasks.end()
	if limits > 0 {
		n.remember(mulDiv(used, ratioOne, limits))
	}
}

func (n *NSigma) remember(ratio int64) {
	at := n.at % historyWindows
	if n.at >= historyWindows {
		old := int64(n.ratios[at])
		n.sum -= old
		n.sumSq -= old * old
	}
	n.ratios[at] = uint32(ratio)
	n.sum += ratio
	n.sumSq += ratio * ratio
	n.at++
}

// Peak is Predictor's.
func (n *NSigma) Peak() int64 {
	count := int64(min(n.at, historyWindows))
	if count < warmWindows {
		return n.warm + n.others
	}
	spread := isqrt(uint64(count*n.sumSq - n.sum*n.sum))
	ratio := min((n.sum+n.N*spread)/count+1, ratioOne)
	return n.others + mulDiv(n.warm, ratio, ratioOne)
}

// isqrt is the square root, rounded down.
func isqrt(v uint64) int64 {
	if v == 0 {
		return 0
	}
	// Newton from above: falls until it has arrived.
	x := uint64(1) << ((bits.Len64(v) + 1) / 2)
	for {
		y := (x + v/x) / 2
		if y >= x {
			return int64(x)
		}
		x = y
	}
}

// Percentiles is the sum of a percentile of what each task has used.
type Percentiles struct {
	// Percent is from 1 to 100.
	Percent int64
	tasks   known[shares]
	sum     int64
}

// shares counts windows by the share of its limit that a task used. Counts are
// halved when they become many, so that it forgets.
type shares struct {
	counts [shareSteps]uint8
	total  uint8
}

const (
	shareSteps = 64
	maxShares  = 240
)

// Observe is Predictor's.
func (p *Percentiles) Observe(_ int64, tasks []Window) {
	p.sum = 0
	p.tasks.begin()
	for i := range tasks {
		w := &tasks[i]
		s, _ := p.tasks.of(w.Task)
		if w.Limit > 0 {
			s.note(mulDiv(min(max(w.Used, 0), w.Limit), shareSteps, w.Limit))
		}
		if w.Fixed || s.total < warmWindows {
			p.sum += w.Limit
		} else {
			p.sum += s.percentile(p.Percent, w.Limit)
		}
	}
	p.tasks.end()
}

func (s *shares) note(share int64) {
	if s.total == maxShares {
		s.total = 0
		for i := range s.counts {
			s.counts[i] /= 2
			s.total += s.counts[i]
		}
	}
	s.counts[min(share, shareSteps-1)]++
	s.total++
}

// percentile is by nearest rank, rounded up to the end of its step.
func (s *shares) percentile(percent, limit int64) int64 {
	rank := (percent*int64(s.total) + 99) / 100
	n := int64(0)
	for i, c := range s.counts {
		if n += int64(c); n >= rank {
			return mulDiv(limit, int64(i)+1, shareSteps)
		}
	}
	return limit
}

// Peak is Predictor's.
func (p *Percentiles) Peak() int64 { return p.sum }

// Max is the most that any of its predictors says.
type Max []Predictor

// NewPeak is the predictor that did best in the literature: the larger of
// N-sigma and of the sum of percentiles.
func NewPeak() Predictor { return Max{&NSigma{N: 5}, &Percentiles{Percent: 95}} }

// Observe is Predictor's.
func (m Max) Observe(nowNs int64, tasks []Window) {
	for _, p := range m {
		p.Observe(nowNs, tasks)
	}
}

// Peak is Predictor's.
func (m Max) Peak() (most int64) {
	for _, p := range m {
		most = max(most, p.Peak())
	}
	return most
}

// known holds what is remembered of the tasks on a machine, and forgets who has
// left.
type known[T any] struct {
	byTask map[uint64]*entry[T]
	round  uint32
}

type entry[T any] struct {
	value T
	round uint32
}

func (k *known[T]) begin() {
	if k.byTask == nil {
		k.byTask = make(map[uint64]*entry[T])
	}
	k.round++
}

// of returns what is remembered of a task, nothing yet when it is new.
func (k *known[T]) of(task uint64) (v *T, isNew bool) {
	e := k.byTask[task]
	if isNew = e == nil; isNew {
		e = &entry[T]{}
		k.byTask[task] = e
	}
	e.round = k.round
	return &e.value, isNew
}

func (k *known[T]) end() {
	for task, e := range k.byTask {
		if e.round != k.round {
			delete(k.byTask, task)
		}
	}
}
