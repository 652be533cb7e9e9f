package scheduler

import (
	"cmp"
	"slices"

	"borg/borgmaster/cell"
)

// Trial is one compaction of a packing (§5.1): machines are taken away in an order
// that is drawn, and the workload is packed from nothing at every probe. Which
// numbers of machines are probed is a binary search. Packs take seconds, so the
// caller makes them:
//
//	t := k.Trial(seed)
//	for n, more := t.Next(); more; n, more = t.Next() {
//		packed, err := k.Pack(t.Keep(n))
//		t.Note(packed.Fits())
//	}
//	n, ok := t.Machines()
type Trial struct {
	place map[string]int
	// Invariant: it fits onto high, once whole is known, and not onto low. Then
	// low+1 == high is the end.
	low, high int
	// whole: all of the machines were probed; fits: it fits onto them.
	whole, fits bool
}

// Trial begins a trial. The order of machines follows from the seed and from
// their names.
func (k Packing) Trial(seed uint64) *Trial {
	k = k.withDefaults()
	place := trialOrder(k.Machines, seed)
	return &Trial{place: place, high: len(place)}
}

// Next is onto how many machines the workload is to be packed next; more is false
// when the trial is over.
func (t *Trial) Next() (n int, more bool) {
	switch {
	case !t.whole:
		return t.high, true
	case !t.fits || t.low+1 >= t.high:
		return 0, false
	}
	return (t.low + t.high) / 2, true
}

// Note says whether the workload fits onto as many machines as Next said.
func (t *Trial) Note(fits bool) {
	switch n, more := t.Next(); {
	case !more:
	case !t.whole:
		t.whole, t.fits = true, fits
	case fits:
		t.high = n
	default:
		t.low = n
	}
}

// Keep are the n machines that the trial would take away last.
func (t *Trial) Keep(n int) func(*cell.Machine) bool {
	return func(m *cell.Machine) bool { return t.place[m.Name()] < n }
}

// Machines is the fewest onto which the workload fits; ok is false when it does
// not fit onto all of them. It is to be asked when the trial is over.
func (t *Trial) Machines() (n int, ok bool) { return t.high, t.fits }

// Probes is about how many packs a trial has left.
func (t *Trial) Probes() int {
	n := 0
	if !t.whole {
		n = 1
	}
	for width := t.high - t.low; width > 1 && (t.fits || !t.whole); width = (width + 1) / 2 {
		n++
	}
	return n
}

// Compact makes one trial on what a cell has: onto how few machines its workload
// fits. Ok is false when it does not fit onto all of them.
func Compact(c *cell.Cell, cfg Config, trial uint64) (machines int, ok bool, err error) {
	return CompactReserved(c, cfg, trial, nil)
}

// CompactReserved is Compact for a workload with reservations; see PackReserved.
func CompactReserved(c *cell.Cell, cfg Config, trial uint64, reserved Reserved) (machines int, ok bool, err error) {
	k := Packing{Config: cfg, Workload: c, Reserved: reserved}
	t := k.Trial(trial)
	for n, more := t.Next(); more; n, more = t.Next() {
		p, err := k.Pack(t.Keep(n))
		if err != nil {
			return 0, false, err
		}
		t.Note(p.Fits())
	}
	machines, ok = t.Machines()
	return machines, ok, nil
}

// TrialMachines are the n machines that a trial of Compact would take away last.
func TrialMachines(c *cell.Cell, trial uint64, n int) (keep func(*cell.Machine) bool) {
	return Packing{Workload: c}.Trial(trial).Keep(n)
}

// trialOrder is the place of each machine in the order of a trial.
func trialOrder(c *cell.Cell, trial uint64) map[string]int {
	type drawn struct {
		name  string
		order uint64
	}
	var order []drawn
	for m := range c.Machines() {
		order = append(order, drawn{m.Name(), mix(mix(trial) ^ hashString(m.Name()))})
	}
	slices.SortFunc(order, func(a, b drawn) int {
		return cmp.Or(cmp.Compare(a.order, b.order), cmp.Compare(a.name, b.name))
	})
	place := make(map[string]int, len(order))
	for i, d := range order {
		place[d.name] = i
	}
	return place
}
