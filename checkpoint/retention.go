package checkpoint

import (
	"cmp"
	"errors"
	"slices"
	"time"
)

// Retention says when a checkpoint is made and what of an archive is kept. Its
// rules are functions of what they are given and know no clock.
type Retention struct {
	// A checkpoint is made so long after the last one, and after so many entries;
	// zero: not for that reason.
	Every        time.Duration
	EveryEntries uint64
	// For so long every checkpoint is kept, then one of each hour, then one of
	// each day; zero: not for that reason. The newest is always kept.
	All, Hourly, Daily time.Duration
	// For so long the change log is kept.
	Log time.Duration
	// The whole archive has at most so many bytes, except for the newest
	// checkpoint and the change log after it.
	MaxBytes int64
}

// DefaultRetention is what a replica does when it is told nothing.
func DefaultRetention() Retention {
	const day = 24 * time.Hour
	return Retention{
		Every: 10 * time.Minute, EveryEntries: 1_000_000,
		All: time.Hour, Hourly: day, Daily: 7 * day,
		Log: 7 * day, MaxBytes: 4 << 30,
	}
}

// Validate refuses what cannot be meant.
func (r Retention) Validate() error {
	for _, d := range []time.Duration{r.Every, r.All, r.Hourly, r.Daily, r.Log} {
		if d < 0 {
			return errors.New("a time of the archive cannot be below zero")
		}
	}
	if r.MaxBytes <= 0 {
		return errors.New("the archive needs more than zero bytes")
	}
	return nil
}

// Held is a file of an archive, as the rules see it.
type Held struct {
	Name string
	// Checkpoint, or else a segment of the change log.
	Checkpoint bool
	Epoch      uint64
	// What a checkpoint stands for; the first entry of a segment.
	Index uint64
	// The time that a checkpoint stands for; that of the last entry of a segment,
	// or a little before it.
	WallNs int64
	Bytes  int64
	// Writing: it is the segment being written.
	Writing bool
	// The replica's clock when a checkpoint was made; zero: not known, WallNs will
	// do.
	MadeNs int64
}

// Phase staggers the checkpoints of replicas: place is that of a replica among
// all, from 0.
func (r Retention) Phase(place, replicas int) time.Duration {
	if replicas <= 0 {
		return 0
	}
	return r.Every / time.Duration(replicas) * time.Duration(place%replicas)
}

// Due tells whether a checkpoint is to be made. last is the newest one (zero:
// there is none), index what is applied now.
//
// By time it is due at the same moments of the wall clock whatever was made
// before, each replica at its own phase of them, so that not all are busy at
// once. A cell in which nothing was done needs none.
func (r Retention) Due(last Held, epoch, index uint64, nowNs int64, phase time.Duration) bool {
	switch {
	case last.Name == "" || last.Epoch != epoch:
		return true
	case index <= last.Index:
		return false
	case r.EveryEntries > 0 && index-last.Index >= r.EveryEntries:
		return true
	}
	every := int64(r.Every)
	return every > 0 && floorDiv(nowNs-int64(phase), every) > floorDiv(cmp.Or(last.MadeNs, last.WallNs)-int64(phase), every)
}

func floorDiv(a, b int64) int64 {
	q := a / b
	if a%b < 0 {
		q--
	}
	return q
}

// Drop names the files that are not kept, oldest first. lackBytes is the room
// that the disk lacks: so much more goes.
func (r Retention) Drop(held []Held, nowNs int64, lackBytes int64) []string {
	held = slices.Clone(held)
	slices.SortFunc(held, func(a, b Held) int {
		return cmp.Or(cmp.Compare(a.Epoch, b.Epoch), cmp.Compare(a.Index, b.Index), cmp.Compare(order(a), order(b)))
	})
	newest := newestCheckpoint(held)
	drop := make([]bool, len(held))
	r.thin(held, newest, nowNs, drop)
	r.oldLog(held, newest, nowNs, drop)
	r.shrink(held, newest, lackBytes, drop)
	var names []string
	for i, h := range held {
		if drop[i] {
			names = append(names, h.Name)
		}
	}
	return names
}

// order puts a checkpoint behind the segment that begins with its index.
func order(h Held) int {
	if h.Checkpoint {
		return 1
	}
	return 0
}

func newestCheckpoint(held []Held) int {
	for i, h := range slices.Backward(held) {
		if h.Checkpoint {
			return i
		}
	}
	return -1
}

// thin leaves the first checkpoint of each hour, and of each day: whatever comes
// later in the hour, it stays the one.
func (r Retention) thin(held []Held, newest int, nowNs int64, drop []bool) {
	hours, days := make(map[int64]bool), make(map[int64]bool)
	for i, h := range held {
		if !h.Checkpoint {
			continue
		}
		age := time.Duration(nowNs - h.WallNs)
		hour, day := floorDiv(h.WallNs, int64(time.Hour)), floorDiv(h.WallNs, int64(24*time.Hour))
		keep := age < r.All || age < r.Hourly && !hours[hour] || age < r.Daily && !days[day]
		hours[hour], days[day] = true, true
		drop[i] = !keep && i != newest
	}
}

// oldLog drops segments that end before the log is kept from, and those that no
// checkpoint is left to go on from.
func (r Retention) oldLog(held []Held, newest int, nowNs int64, drop []bool) {
	for i, h := range held {
		if h.Checkpoint || newest < 0 || !endsBefore(held, i, held[newest]) {
			continue
		}
		if time.Duration(nowNs-h.WallNs) >= r.Log || unreachable(held, i, drop) {
			drop[i] = true
		}
	}
}

// unreachable tells a segment that ends before the first checkpoint that is
// kept, or at it.
func unreachable(held []Held, segment int, drop []bool) bool {
	for i := range held {
		if held[i].Checkpoint && !drop[i] {
			if i <= segment {
				return false
			}
			next, ok := nextSegment(held, segment)
			return ok && (next.Epoch != held[segment].Epoch || held[i].Epoch != held[segment].Epoch || next.Index-1 <= held[i].Index)
		}
	}
	return false
}

func nextSegment(held []Held, segment int) (Held, bool) {
	for _, h := range held[segment+1:] {
		if !h.Checkpoint {
			return h, true
		}
	}
	return Held{}, false
}

// shrink drops what is oldest until the rest is within the bounds, and so much
// more as the disk lacks.
func (r Retention) shrink(held []Held, newest int, lackBytes int64, drop []bool) {
	var total, dropped int64
	for i, h := range held {
		if drop[i] {
			dropped += h.Bytes
		} else {
			total += h.Bytes
		}
	}
	for i, h := range held {
		if total <= r.MaxBytes && dropped >= lackBytes {
			return
		}
		if drop[i] || i >= newest || !h.Checkpoint && !endsBefore(held, i, held[newest]) {
			continue
		}
		drop[i] = true
		total -= h.Bytes
		dropped += h.Bytes
	}
}

// endsBefore tells a segment of which nothing comes after a checkpoint.
func endsBefore(held []Held, segment int, c Held) bool {
	next, ok := nextSegment(held, segment)
	return ok && (next.Epoch > held[segment].Epoch || next.Index-1 <= c.Index)
}
