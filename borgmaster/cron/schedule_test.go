package cron

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"
	_ "time/tzdata"

	"pgregory.net/rapid"
)

func parse(t testing.TB, text string) *Schedule {
	t.Helper()
	s, err := Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func zone(t testing.TB, name string) *time.Location {
	t.Helper()
	z, err := time.LoadLocation(name)
	if err != nil {
		t.Fatal(err)
	}
	return z
}

func TestNext(t *testing.T) {
	for _, q := range []struct {
		schedule, zone, after string
		want                  []string
	}{
		{"30 2 * * *", "UTC", "2026-01-01T00:00:00Z", []string{"2026-01-01T02:30:00Z", "2026-01-02T02:30:00Z"}},
		{"*/20 3,5 * * *", "UTC", "2026-01-01T03:10:00Z", []string{"2026-01-01T03:20:00Z", "2026-01-01T03:40:00Z", "2026-01-01T05:00:00Z"}},
		{"@hourly", "UTC", "2026-01-01T03:00:00Z", []string{"2026-01-01T04:00:00Z"}},
		{"0 0 29 feb *", "UTC", "2097-01-01T00:00:00Z", []string{"2104-02-29T00:00:00Z"}},
		// Either day is enough when both are said.
		{"0 0 13 * fri", "UTC", "2026-02-01T00:00:00Z", []string{"2026-02-06T00:00:00Z", "2026-02-13T00:00:00Z", "2026-02-20T00:00:00Z"}},
		{"0 0 * * 7", "UTC", "2026-02-01T00:00:00Z", []string{"2026-02-08T00:00:00Z"}},
		// New York: 02:30 on March 8 does not exist, 01:30 on November 1 comes twice.
		{"30 2 * * *", "America/New_York", "2026-03-07T12:00:00Z", []string{"2026-03-08T07:00:00Z", "2026-03-09T06:30:00Z"}},
		{"0,30 2 * * *", "America/New_York", "2026-03-07T12:00:00Z", []string{"2026-03-08T07:00:00Z", "2026-03-09T06:00:00Z"}},
		{"30 1 * * *", "America/New_York", "2026-10-31T12:00:00Z", []string{"2026-11-01T05:30:00Z", "2026-11-02T06:30:00Z"}},
		{"30 * * * *", "America/New_York", "2026-11-01T05:00:00Z", []string{"2026-11-01T05:30:00Z", "2026-11-01T06:30:00Z", "2026-11-01T07:30:00Z"}},
		{"30 * * * *", "America/New_York", "2026-03-08T06:00:00Z", []string{"2026-03-08T06:30:00Z", "2026-03-08T07:30:00Z"}},
		{"30 2 28 3 *", "Europe/Berlin", "2027-01-01T00:00:00Z", []string{"2027-03-28T01:00:00Z", "2028-03-28T00:30:00Z"}},
		{"30 2 31 10 *", "Europe/Berlin", "2027-01-01T00:00:00Z", []string{"2027-10-31T00:30:00Z", "2028-10-31T01:30:00Z"}},
		// Half an hour, and a whole day that was left out.
		{"15 2 * * *", "Australia/Lord_Howe", "2026-10-02T16:00:00Z", []string{"2026-10-03T15:30:00Z", "2026-10-04T15:15:00Z"}},
		{"0 12 30 12 *", "Pacific/Apia", "2011-12-01T00:00:00Z", []string{"2011-12-30T10:00:00Z", "2012-12-29T22:00:00Z"}},
	} {
		at, err := time.Parse(time.RFC3339, q.after)
		if err != nil {
			t.Fatal(err)
		}
		for _, want := range q.want {
			next, ok := parse(t, q.schedule).Next(at, zone(t, q.zone))
			if got := next.UTC().Format(time.RFC3339); !ok || got != want {
				t.Errorf("%s in %s after %s: %s, want %s", q.schedule, q.zone, at.UTC().Format(time.RFC3339), got, want)
			}
			at = next
		}
	}
	if next, ok := parse(t, "0 0 30 2 *").Next(time.Unix(0, 0), time.UTC); ok {
		t.Errorf("the 30th of February is %v", next)
	}
	if next, ok := parse(t, "* * 30 2 *").Next(time.Unix(0, 0), time.UTC); ok {
		t.Errorf("the 30th of February is %v", next)
	}
}

func TestParseErrors(t *testing.T) {
	for text, want := range map[string]string{
		"* * *":          "3 fields",
		"60 * * * *":     "^^",
		"1 2-1 * * *":    "    ^^^",
		"1 2 * foo *":    "month: \"foo\" is not in 1 to 12",
		"1,2,99 * * * *": "minute: \"99\" is not in 0 to 59",
		"@often":         "there is no such name",
		"*/0 * * * *":    "is not a step",
		"":               "0 fields",
		"+1 * * * *":     "is not in",
	} {
		_, err := Parse(text)
		var p *ParseError
		if !errors.As(err, &p) || !strings.Contains(err.Error(), want) || p.At > len(text) {
			t.Errorf("Parse(%q): %v, want %q", text, err, want)
		}
	}
}

// TestComes holds which schedules never come.
func TestComes(t *testing.T) {
	for text, want := range map[string]bool{
		"0 3 * * *": true, "@yearly": true, "0 0 29 2 *": true, "0 0 31 * *": true, "0 0 31 2 mon": true,
		// The leap day is on a Saturday or Sunday once in 28 years.
		"0 0 29 2 */6": true,
		"0 0 31 2 *":   false, "* * 30 2 *": false, "0 0 31 2,4,jun,9,11 *": false, "0 0 31 2 */2": false,
	} {
		s, err := Parse(text)
		if err != nil || s.Comes() != want {
			t.Errorf("%q: %v, comes: want %v", text, err, want)
		}
	}
}

// TestZone holds which names of time zones are taken.
func TestZone(t *testing.T) {
	for name, good := range map[string]bool{"": true, "UTC": true, "Europe/Zurich": true, "Europe/Zurik": false, "Local": false, "../etc": false} {
		if _, err := Zone(name); (err == nil) != good {
			t.Errorf("Zone(%q): %v, want one: %v", name, err, good)
		}
	}
}

// zones are the names that this machine's Go knows.
func zones(t testing.TB) (names []string) {
	data, err := os.ReadFile("testdata/zones.txt")
	if err != nil {
		t.Fatal(err)
	}
	for name := range strings.FieldsSeq(string(data)) {
		names = append(names, name)
	}
	return names
}

// TestTransitions looks at schedules around every transition of every zone for ten years:
// times only go forward, each local time that a schedule names fires exactly once, and
// one that was jumped over when the jump is over.
func TestTransitions(t *testing.T) {
	names := zones(t)
	begin, end := time.Date(2020, 1, 1, 0, 0, 0, 0, time.UTC), time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)
	daily := make(map[string]*Schedule)
	for _, text := range []string{"30 2 * * *", "0 0 * * *", "59 23 * * *", "30 1 * * *", "15 3 * * *"} {
		daily[text] = parse(t, text)
	}
	seen := 0
	for _, name := range names {
		z := zone(t, name)
		for at := begin; ; {
			_, change := at.In(z).ZoneBounds()
			if change.IsZero() || change.After(end) {
				break
			}
			seen++
			for text, s := range daily {
				onceADay(t, name, text, s, z, change)
			}
			at = change
		}
	}
	if seen < 1000 {
		t.Errorf("only %d transitions of %d zones", seen, len(names))
	}
}

// onceADay wants one time for each local day around a transition.
func onceADay(t *testing.T, name, text string, s *Schedule, z *time.Location, change time.Time) {
	at, last := change.Add(-72*time.Hour), ""
	for range 6 {
		next, ok := s.Next(at, z)
		if !ok || !next.After(at) || next.Sub(at) > 50*time.Hour {
			t.Fatalf("%s in %s after %v: %v", text, name, at, next)
		}
		// What was jumped over belongs to the day before at the latest.
		day := next.Add(-time.Second).In(z).Format(time.DateOnly) + next.Format(" 15:04")
		if day == last {
			t.Fatalf("%s in %s fires at %v twice", text, name, next)
		}
		if clock := fmt.Sprintf("%d %d * * *", next.Minute(), next.Hour()); clock != text && !next.Equal(ceil(change)) {
			t.Fatalf("%s in %s fires at %v, which is no jump", text, name, next)
		}
		at, last = next, day
	}
}

// TestNeverTwice draws schedules, zones and moments: no time comes twice, none goes back,
// and where one looks from makes no difference.
func TestNeverTwice(t *testing.T) {
	names := zones(t)
	rapid.Check(t, func(t *rapid.T) {
		z, err := time.LoadLocation(rapid.SampledFrom(names).Draw(t, "zone"))
		if err != nil {
			t.Fatal(err)
		}
		field := func(name string, options ...string) string { return rapid.SampledFrom(options).Draw(t, name) }
		text := strings.Join([]string{
			field("minute", "0", "30", "*/7", "15,45", "*"), field("hour", "0", "1", "2", "3", "1-3", "*", "*/2", "23"),
			field("day", "*", "1", "28-31"), field("month", "*", "3", "10-11"), field("weekday", "*", "sun", "mon-fri"),
		}, " ")
		s, err := Parse(text)
		if err != nil {
			t.Fatal(err)
		}
		at := time.Unix(rapid.Int64Range(1_577_836_800, 1_893_456_000).Draw(t, "at"), 0)
		for range 40 {
			next, ok := s.Next(at, z)
			if !ok || !next.After(at) || next.Unix()%60 != 0 {
				t.Fatalf("%s in %s after %v: %v", text, z, at, next)
			}
			middle := at.Add(next.Sub(at) / 2)
			if again, _ := s.Next(middle, z); !again.Equal(next) {
				t.Fatalf("%s in %s: after %v comes %v, after %v %v", text, z, at, next, middle, again)
			}
			at = next
		}
	})
}

func TestDue(t *testing.T) {
	at := func(text string) time.Time {
		when, err := time.Parse(time.RFC3339, text)
		if err != nil {
			t.Fatal(err)
		}
		return when
	}
	s := parse(t, "*/10 * * * *")
	slot, missed, next := s.Due(at("2026-01-01T00:00:00Z"), at("2026-01-01T00:09:59Z"), time.UTC)
	if !slot.IsZero() || missed != 0 || !next.Equal(at("2026-01-01T00:10:00Z")) {
		t.Errorf("before the first: slot %v, %d missed, next %v", slot, missed, next)
	}
	slot, missed, next = s.Due(at("2026-01-01T00:00:00Z"), at("2026-01-01T00:30:00Z"), time.UTC)
	if !slot.Equal(at("2026-01-01T00:30:00Z")) || missed != 2 || !next.Equal(at("2026-01-01T00:40:00Z")) {
		t.Errorf("after half an hour: slot %v, %d missed, next %v", slot, missed, next)
	}
	slot, missed, _ = s.Due(time.Unix(0, 0), at("2026-01-01T00:30:00Z"), time.UTC)
	if !slot.Equal(at("2026-01-01T00:30:00Z")) || missed != 8*24*6-1 {
		t.Errorf("after years: slot %v, %d missed", slot, missed)
	}
}
