package pages

import (
	"fmt"
	"strconv"
	"time"
)

// Mood is how good something is.
type Mood string

const (
	Plain Mood = ""
	Good  Mood = "good"
	Warn  Mood = "warn"
	Bad   Mood = "bad"
)

// Page is one page as data.
type Page struct {
	// Program that shows it, and what it is a page of.
	Program, Title string
	// Notice stands above everything; empty: nothing is to be noticed.
	Notice string
	// Verdict is the answer to "is it all right?".
	Verdict  Verdict
	Numbers  []Fact
	Sections []Section
	// Links lead to other pages. Relative, so that a page may be shown through
	// another program.
	Links []Link
	Build string
	// Made is when; zero: now.
	Made time.Time
}

// Verdict is a sentence that is read first, and what it comes from, worst first.
type Verdict struct {
	Mood     Mood
	Text     string
	Findings []Finding
}

// Finding is one thing that is not as it should be, and what to do about it.
type Finding struct {
	Mood Mood
	Text string
	// Next is what to type or look at; may be empty.
	Next string
}

// Link leads to another page.
type Link struct{ Name, Href string }

// groups are the sections in their order, those that are tables by themselves and
// the others together as far as they stand together.
func (p *Page) groups() (groups [][]Section) {
	for i, s := range p.Sections {
		if i > 0 && s.Head == nil && p.Sections[i-1].Head == nil {
			groups[len(groups)-1] = append(groups[len(groups)-1], s)
			continue
		}
		groups = append(groups, []Section{s})
	}
	return groups
}

// Section is facts or a table, with words.
type Section struct {
	Title, Words string
	Facts        []Fact
	Head         []string
	Rows         [][]Value
	// More rows than are shown.
	More int
}

// Fact is a value with its name.
type Fact struct {
	Name  string
	Value Value
}

// Value is something that is shown: in words for people, and as it is for programs.
type Value struct {
	Text string
	// Raw is nil where there is nothing yet.
	Raw any
	// Unit of Raw, which ends its name in JSON; empty: it has none.
	Unit string
	Mood Mood
	// Bar is the parts of a whole that are drawn beside the text; nil: nothing is.
	Bar []Part
	// Href leads to more; empty: nowhere.
	Href string
}

// Part is a part of a bar. Class is that of its colour.
type Part struct {
	Class string
	N     int64
}

// Text is a value that is words.
func Text(s string) Value { return Value{Text: s, Raw: s} }

// Textf is Text with figures in it.
func Textf(format string, args ...any) Value { return Text(fmt.Sprintf(format, args...)) }

// Number is a value that is counted.
func Number[N int | int64 | uint32 | uint64](n N) Value {
	return Value{Text: grouped(int64(n)), Raw: n}
}

// Yes is a value that holds or not.
func Yes(is bool) Value {
	if is {
		return Value{Text: "yes", Raw: true}
	}
	return Value{Text: "no", Raw: false}
}

// Bytes is a size.
func Bytes[N int | int64 | uint64](n N) Value {
	return Value{Text: bytesText(float64(n)), Raw: n, Unit: "bytes"}
}

// Span is a length of time.
func Span(d time.Duration) Value {
	return Value{Text: spanText(d), Raw: d.Seconds(), Unit: "seconds"}
}

// At is a moment, with how far it is from now.
func At(t time.Time) Value {
	if t.IsZero() {
		return Value{Text: "never", Raw: nil}
	}
	ago := time.Since(t)
	text := t.UTC().Format(time.RFC3339) + ", " + spanText(ago) + " ago"
	if ago < 0 {
		text = t.UTC().Format(time.RFC3339) + ", in " + spanText(-ago)
	}
	return Value{Text: text, Raw: t.UTC().Format(time.RFC3339Nano)}
}

// In is v with a mood.
func (v Value) In(m Mood) Value {
	v.Mood = m
	return v
}

// If is v with a mood where that holds.
func (v Value) If(holds bool, m Mood) Value {
	if holds {
		v.Mood = m
	}
	return v
}

// To is v as a link.
func (v Value) To(href string) Value {
	v.Href = href
	return v
}

// Some says how many there are of something: "1 task", "3,000 tasks".
func Some[N int | int64](n N, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return grouped(int64(n)) + " " + what + "s"
}

// grouped writes 1234567 as 1,234,567.
func grouped(n int64) string {
	if n < 0 {
		return "-" + grouped(-n)
	}
	text := strconv.FormatInt(n, 10)
	for at := len(text) - 3; at > 0; at -= 3 {
		text = text[:at] + "," + text[at:]
	}
	return text
}

func bytesText(n float64) string {
	units := []string{"B", "KiB", "MiB", "GiB", "TiB", "PiB"}
	i := 0
	for n >= 1024 && i < len(units)-1 {
		n, i = n/1024, i+1
	}
	if i == 0 {
		return fmt.Sprintf("%.0f B", n)
	}
	return fmt.Sprintf("%.1f %s", n, units[i])
}

// spanText writes a time in the two units that matter.
func spanText(d time.Duration) string {
	switch {
	case d < 0:
		return "-" + spanText(-d)
	case d == 0:
		return "0 s"
	case d < time.Millisecond:
		return fmt.Sprintf("%.0f µs", float64(d)/1e3)
	case d < time.Second:
		return fmt.Sprintf("%.3g ms", float64(d)/1e6)
	case d < time.Minute:
		return fmt.Sprintf("%.3g s", d.Seconds())
	case d < time.Hour:
		return fmt.Sprintf("%d min %d s", d/time.Minute, d%time.Minute/time.Second)
	case d < 48*time.Hour:
		return fmt.Sprintf("%d h %d min", d/time.Hour, d%time.Hour/time.Minute)
	}
	return fmt.Sprintf("%d days %d h", d/(24*time.Hour), d%(24*time.Hour)/time.Hour)
}

// Found adds a finding, and makes the verdict as bad as it is.
func (v *Verdict) Found(m Mood, next, format string, args ...any) {
	f := Finding{Mood: m, Text: fmt.Sprintf(format, args...), Next: next}
	if m == Bad && v.Mood != Bad || m == Warn && v.Mood != Bad && v.Mood != Warn {
		v.Mood, v.Text = m, f.Text
		v.Findings = append([]Finding{f}, v.Findings...)
		return
	}
	v.Findings = append(v.Findings, f)
}

// Otherwise says what is right when nothing was found.
func (v *Verdict) Otherwise(format string, args ...any) {
	if len(v.Findings) == 0 {
		v.Mood, v.Text = Good, fmt.Sprintf(format, args...)
	}
}
