// Package cron reads the schedules of cron jobs and tells which times they name. It is
// pure: it reads no clock. Which times there are depends on the time zones that this
// build knows, which is why the elected master says them and the cell only counts them.
//
// # Daylight saving
//
// A schedule that names hours fires at each of its local times once. One that the clock
// jumps over fires when the jump is over; several of them, once together. One that comes
// twice fires the first time only. A schedule whose hour is * or */n counts real time
// instead: it fires at every minute of real time that reads as it says, so that an hour
// which comes twice has two.
package cron

import (
	"fmt"
	"math/bits"
	"strconv"
	"strings"
	"time"
	// The zones of schedules, wherever this runs.
	_ "time/tzdata"
)

// Schedule is a set of times, by the minute. Each field is a set of its values, as bits.
type Schedule struct {
	minute, hour, day, month, weekday uint64
	// The day of the month, or of the week, is not said: the other one decides alone.
	// Otherwise either is enough, as in all crons.
	anyDay, anyWeekday bool
	// The hour is not said: real time counts.
	anyHour bool
}

// ParseError is what is wrong with a schedule, and where.
type ParseError struct {
	Text string
	// Byte of Text, and how many of them.
	At, Len int
	Message string
}

// Error shows the place with a caret.
func (e *ParseError) Error() string {
	return fmt.Sprintf("%s\n  %s\n  %s%s", e.Message, e.Text, strings.Repeat(" ", e.At), strings.Repeat("^", max(e.Len, 1)))
}

var macros = map[string]string{
	"@yearly": "0 0 1 1 *", "@annually": "0 0 1 1 *", "@monthly": "0 0 1 * *", "@weekly": "0 0 * * 0",
	"@daily": "0 0 * * *", "@midnight": "0 0 * * *", "@hourly": "0 * * * *",
}

// field is one of the five.
type field struct {
	name     string
	low, top int
	// From low on.
	words []string
}

var fields = [5]field{
	{"minute", 0, 59, nil},
	{"hour", 0, 23, nil},
	{"day of month", 1, 31, nil},
	{"month", 1, 12, []string{"jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"}},
	{"day of week", 0, 7, []string{"sun", "mon", "tue", "wed", "thu", "fri", "sat"}},
}

// Parse reads five fields, or one of the names such as @daily.
func Parse(text string) (*Schedule, error) {
	if plain, ok := macros[strings.ToLower(strings.TrimSpace(text))]; ok {
		return Parse(plain)
	}
	fail := func(at, n int, format string, args ...any) error {
		return &ParseError{Text: text, At: at, Len: n, Message: fmt.Sprintf(format, args...)}
	}
	if at := strings.IndexByte(text, '@'); at >= 0 {
		return nil, fail(at, len(text)-at, "there is no such name; want @yearly, @monthly, @weekly, @daily or @hourly")
	}
	words := strings.Fields(text)
	if len(words) != len(fields) {
		return nil, fail(0, len(text), "%d fields; want five: minute, hour, day of month, month, day of week", len(words))
	}
	var sets [5]uint64
	at := 0
	for i, w := range words {
		at += strings.Index(text[at:], w)
		for part := range strings.SplitSeq(w, ",") {
			set, err := fields[i].parse(part)
			if err != nil {
				return nil, fail(at, len(part), "%s: %v", fields[i].name, err)
			}
			sets[i] |= set
			at += len(part) + 1
		}
		at--
	}
	s := &Schedule{
		minute: sets[0], hour: sets[1], day: sets[2], month: sets[3], weekday: sets[4],
		anyHour: words[1][0] == '*', anyDay: words[2][0] == '*', anyWeekday: words[4][0] == '*',
	}
	// Sunday is 0 and 7.
	s.weekday = (s.weekday | s.weekday>>7) & 0x7f
	return s, nil
}

// parse reads "*", "5", "1-5", "mon-fri", each perhaps with "/step".
func (f *field) parse(part string) (set uint64, err error) {
	span, stepText, stepped := strings.Cut(part, "/")
	step := 1
	if stepped {
		if step, err = strconv.Atoi(stepText); err != nil || step < 1 || step > f.top {
			return 0, fmt.Errorf("%q is not a step of 1 to %d", stepText, f.top)
		}
	}
	low, high := f.low, f.top
	if span != "*" {
		first, last, isRange := strings.Cut(span, "-")
		if low, err = f.value(first); err != nil {
			return 0, err
		}
		switch {
		case isRange:
			if high, err = f.value(last); err != nil {
				return 0, err
			}
		case !stepped:
			high = low
		}
		if low > high {
			return 0, fmt.Errorf("%s-%s runs backwards; write two ranges", first, last)
		}
	}
	for v := low; v <= high; v += step {
		set |= 1 << v
	}
	return set, nil
}

func (f *field) value(text string) (int, error) {
	for i, w := range f.words {
		if strings.EqualFold(text, w) {
			return f.low + i, nil
		}
	}
	v, err := strconv.Atoi(text)
	if err != nil || v < f.low || v > f.top || text[0] == '+' {
		return 0, fmt.Errorf("%q is not in %d to %d", text, f.low, f.top)
	}
	return v, nil
}

// Comes reports whether any day is one of the schedule's days; the 31st of February is none. In
// the 28 years that it looks at, each day of the year, also the leap day, falls on each day of the
// week.
func (s *Schedule) Comes() bool {
	for on := time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC); on.Year() < 2028; on = on.AddDate(0, 0, 1) {
		if s.onDay(on) {
			return true
		}
	}
	return false
}

// Zone reads the name of a time zone; the empty name is UTC.
func Zone(name string) (*time.Location, error) {
	zone, err := time.LoadLocation(name)
	if err != nil || name == "Local" {
		// Local is the zone of whichever machine reads it.
		return nil, fmt.Errorf("there is no time zone %q; want a name such as Europe/Zurich", name)
	}
	return zone, nil
}

// longest is how far ahead a time is looked for: leap days are eight years apart at most.
const longest = 9 * 366

// Next is the first time of the schedule after t, in the zone, to the minute; ok is false
// when there is none, as on the 30th of February.
func (s *Schedule) Next(t time.Time, zone *time.Location) (next time.Time, ok bool) {
	t = t.In(zone)
	if s.anyHour {
		return s.nextReal(t)
	}
	year, month, day := t.Date()
	// The local time of the day before may come after t: clocks go back over midnight.
	for d := -1; d < longest; d++ {
		on := time.Date(year, month, day+d, 0, 0, 0, 0, time.UTC)
		if !s.onDay(on) {
			continue
		}
		for h := s.hour; h != 0; h &= h - 1 {
			for m := s.minute; m != 0; m &= m - 1 {
				at := resolve(on.Add(time.Duration(bits.TrailingZeros64(h))*time.Hour+time.Duration(bits.TrailingZeros64(m))*time.Minute), zone)
				if at.After(t) && (!ok || at.Before(next)) {
					next, ok = at, true
				}
			}
		}
		if ok {
			return next, true
		}
	}
	return time.Time{}, false
}

// nextReal goes from minute to minute of real time, and past days that do not match.
func (s *Schedule) nextReal(t time.Time) (time.Time, bool) {
	end := t.Add(longest * 24 * time.Hour)
	at := t.Truncate(time.Minute).Add(time.Minute)
	for at.Before(end) {
		h, m, sec := at.Clock()
		switch {
		case !s.onDay(at):
			midnight := at.Add(24*time.Hour - time.Duration(h)*time.Hour - time.Duration(m)*time.Minute - time.Duration(sec)*time.Second)
			if _, changes := at.ZoneBounds(); !changes.IsZero() && changes.Before(midnight) {
				midnight = ceil(changes)
			}
			at = midnight
		case s.hour&(1<<h) != 0 && s.minute&(1<<m) != 0:
			return at, true
		default:
			at = at.Add(time.Minute)
		}
	}
	return time.Time{}, false
}

func ceil(t time.Time) time.Time {
	if whole := t.Truncate(time.Minute); whole.Before(t) {
		return whole.Add(time.Minute)
	}
	return t
}

func (s *Schedule) onDay(t time.Time) bool {
	_, month, day := t.Date()
	if s.month&(1<<month) == 0 {
		return false
	}
	byDay, byWeekday := s.day&(1<<day) != 0, s.weekday&(1<<t.Weekday()) != 0
	if s.anyDay || s.anyWeekday {
		return byDay && byWeekday
	}
	return byDay || byWeekday
}

// resolve is the moment at which clocks in a zone read what local says, as if it were
// UTC: the first of two, or the end of the jump over it.
func resolve(local time.Time, zone *time.Location) time.Time {
	offset := func(t time.Time) time.Duration {
		_, seconds := t.In(zone).Zone()
		return time.Duration(seconds) * time.Second
	}
	// No zone is farther than a day from UTC. Offsets before come first.
	before := local.Add(-offset(local.Add(-26 * time.Hour)))
	found := time.Time{}
	for _, try := range [...]time.Time{before, local.Add(-offset(local.Add(26 * time.Hour))), local.Add(-offset(before))} {
		if try.Add(offset(try)).Equal(local) && (found.IsZero() || try.Before(found)) {
			found = try
		}
	}
	if found.IsZero() {
		// With the offset from before the jump it lies behind it.
		start, _ := before.In(zone).ZoneBounds()
		found = start
	}
	return ceil(found).In(zone)
}

// mostMissed is how far back slots are counted that nobody decided in time.
const mostMissed = 8 * 24 * time.Hour

// Due is the slot to be decided now: the last one after after and not after now, with
// how many there are before it. next is the one that follows now. Zero: there is none.
func (s *Schedule) Due(after, now time.Time, zone *time.Location) (slot time.Time, missed uint32, next time.Time) {
	if oldest := now.Add(-mostMissed); after.Before(oldest) {
		after = oldest
	}
	for {
		at, ok := s.Next(after, zone)
		switch {
		case !ok:
			return slot, missed, time.Time{}
		case at.After(now):
			return slot, missed, at
		case !slot.IsZero():
			missed++
		}
		slot, after = at, at
	}
}
