package scheduler

import (
	"errors"
	"fmt"
)

// Config says how a Scheduler searches. The zero value of each field means its
// default.
type Config struct {
	// Name is the scheduler's: it places the jobs whose spec names it. Empty is
	// the default one, which also places alloc sets.
	Name string
	// Seed goes into the order in which machines are looked at. Two schedulers
	// with different seeds on the same copy are less likely to choose the same
	// machine at the same moment.
	Seed uint64
	// Enough is how many feasible machines are found before the best of them
	// is taken (relaxed randomization, paper §3.4); 50 by default. A count as
	// large as the cell looks at every machine.
	Enough int
	// Policy judges places by what would be left of them.
	Policy Policy
	// Weights of the parts of a score; the zero value is DefaultWeights().
	Weights Weights
	// Prefer is what machines have that are better than others for everything:
	// in a campaign those that are upgraded already. Its zero value is nothing.
	Prefer Attribute
	// Workload is which of the jobs of its name the scheduler places; the zero
	// value: all of them.
	Workload Workload
	// NoScoreCache computes every score anew; NoClasses makes every task a class
	// of its own; NoHeadroom looks at who could give way on every machine. They cost
	// time and change no choice: they are there to be measured and compared.
	NoScoreCache, NoClasses, NoHeadroom bool
	// Threads share what is worth sharing; 1. They change no choice.
	Threads int
	// BatchCount is how many assignments one batch holds at most; 1,000.
	BatchCount int
	// BatchBytes is how many bytes the assignments of one batch take at most;
	// 512 KiB, which leaves room beside them in a log entry of 1 MiB.
	BatchBytes int
	// PassChecks is how many (task, place) pairs one pass checks at most before
	// it hands over what it has; 2,000,000.
	PassChecks int
	// MaxInFlight is how many tentative assignments may wait for the log at
	// once; 8,000. Passes place nothing beyond it.
	MaxInFlight int
	// Reschedule is for what Plan moves tasks; ReschedulePending.
	Reschedule Reschedule
	// Moves is how many tasks are moved in a minute of cell time at most; 20.
	Moves int
	// Churn is how many tasks of one job may be made to give way within
	// ChurnWindowNs of cell time, an hour by default, before others do: production
	// takes their place all the same when there is no other for it. Zero: any number.
	Churn         int
	ChurnWindowNs int64
}

// bounds are the largest values that make sense; anything above is a mistake.
const (
	maxEnough      = 1 << 20
	maxBatchCount  = 10_000
	maxBatchBytes  = 900 << 10
	maxPassChecks  = 1 << 30
	maxMaxInFlight = 1 << 20
	maxThreads     = 1024
	maxMoves       = 1 << 20
	maxChurn       = 1 << 20

	defaultChurnWindowNs = 3600e9
	maxChurnWindowNs     = 90 * 24 * 3600e9
)

// withDefaults returns c with its zero fields filled in.
func (c Config) withDefaults() Config {
	set := func(v *int, def int) {
		if *v == 0 {
			*v = def
		}
	}
	set(&c.Enough, 50)
	set(&c.Threads, 1)
	set(&c.BatchCount, 1000)
	set(&c.BatchBytes, 512<<10)
	set(&c.PassChecks, 2_000_000)
	set(&c.MaxInFlight, 8000)
	if c.Weights == (Weights{}) {
		c.Weights = DefaultWeights()
	}
	set(&c.Moves, 20)
	if c.ChurnWindowNs == 0 {
		c.ChurnWindowNs = defaultChurnWindowNs
	}
	if c.Reschedule == 0 {
		c.Reschedule = ReschedulePending
	}
	return c
}

// Validate says what is wrong with c, all of it.
func (c Config) Validate() error {
	var errs []error
	check := func(name string, v, most int) {
		if v < 0 || v > most {
			errs = append(errs, fmt.Errorf("scheduler configuration: %s is %d and must be from 0 (its default) to %d", name, v, most))
		}
	}
	check("Enough", c.Enough, maxEnough)
	check("BatchCount", c.BatchCount, maxBatchCount)
	check("BatchBytes", c.BatchBytes, maxBatchBytes)
	check("Threads", c.Threads, maxThreads)
	check("PassChecks", c.PassChecks, maxPassChecks)
	check("MaxInFlight", c.MaxInFlight, maxMaxInFlight)
	check("Moves", c.Moves, maxMoves)
	check("Churn", c.Churn, maxChurn)
	if c.ChurnWindowNs < 0 || c.ChurnWindowNs > maxChurnWindowNs {
		errs = append(errs, fmt.Errorf("scheduler configuration: ChurnWindowNs is %d and must be from 0 (its default) to %d", c.ChurnWindowNs, int64(maxChurnWindowNs)))
	}
	if c.Reschedule != 0 && !c.Reschedule.valid() {
		errs = append(errs, fmt.Errorf("scheduler configuration: there are no reasons %#x to move tasks", uint8(c.Reschedule)))
	}
	if c.Policy >= numPolicies {
		errs = append(errs, fmt.Errorf("scheduler configuration: there is no policy %d", c.Policy))
	}
	return errors.Join(append(errs, c.Weights.validate(), c.Workload.validate())...)
}

// Hash tells two configurations apart in the log: every batch carries it.
func (c Config) Hash() uint64 {
	c = c.withDefaults()
	h := mix(c.Seed ^ hashString(c.Name))
	for _, v := range []int{c.Enough, int(c.Policy), c.BatchCount, c.BatchBytes, c.PassChecks, c.MaxInFlight, int(c.Reschedule), c.Moves, c.Churn, int(c.ChurnWindowNs)} {
		h = mix(h ^ uint64(v))
	}
	for _, w := range c.Weights.list() {
		h = mix(h ^ uint64(*w.points))
	}
	h = mix(h ^ hashString(c.Prefer.String()))
	return mix(h ^ c.Workload.hash())
}

// mix is the finalizer of splitmix64: a cheap, fixed hash of 64 bits.
func mix(x uint64) uint64 {
	x += 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// hashString is FNV-1a.
func hashString(s string) uint64 {
	h := uint64(14695981039346656037)
	for i := range len(s) {
		h = (h ^ uint64(s[i])) * 1099511628211
	}
	return h
}
