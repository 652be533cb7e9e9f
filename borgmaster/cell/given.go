package cell

import (
	"fmt"
	"maps"

	"borg/proto/borgpb"
)

// FormatGiven is the format in which a cell began to know what a job was last given as a
// whole, beside what was changed of it alone since.
const FormatGiven = 9

// given is what a job or alloc set was last given of what can be changed alone. The
// number of tasks or allocs is the one in its spec, which a resize leaves as it was.
type given struct {
	labels, annotations map[string]string
}

// is tells that both are the same.
func (g given) is(o given) bool {
	return maps.Equal(g.labels, o.labels) && maps.Equal(g.annotations, o.annotations)
}

// unless is what is kept of what something was given: nil where it has just that.
func (g given) unless(has given) *given {
	if g.is(has) {
		return nil
	}
	return &g
}

// Given is what a job was last given by who submits or updates the whole of it. What it
// has now differs where it was resized, labelled or annotated since.
func (j *Job) Given() (tasks uint32, labels, annotations map[string]string) {
	if j.given != nil {
		return j.Spec().Tasks, j.given.labels, j.given.annotations
	}
	return j.Spec().Tasks, j.labels, j.annotations
}

// lastGiven is Given without the number.
func (j *Job) lastGiven() given {
	_, labels, annotations := j.Given()
	return given{labels, annotations}
}

// MergeTasks is how many tasks a job gets that was given base, has now and is given next:
// who repeats what he gave before changes nothing about it, and whoever resized it since
// keeps what he did.
func MergeTasks(base, now, next uint32) uint32 {
	if next == base {
		return now
	}
	return next
}

// MergeMap does so for each key of labels or annotations.
func MergeMap(base, now, next map[string]string) map[string]string {
	merged := without(now, len(next), func(k string) bool {
		_, was := base[k]
		_, said := next[k]
		return was && !said
	})
	for k, v := range next {
		if was, said := base[k]; !said || was != v {
			merged[k] = v
		}
	}
	return merged
}

// keep remembers what a job was given, while its labels or annotations are others.
func (j *Job) keep(g given) {
	j.given = g.unless(given{j.labels, j.annotations})
}

// merged is what a job or alloc set gets from an update that says what it is to have, and
// what it was given with that: the same, unless something of what it has stays. was is
// what it was given before.
func (c *Cell) merged(kind borgpb.Labelled, was, has, says given, merge bool) (gets, said given, r *borgpb.Refusal) {
	gets = says
	if merge {
		said = given{c.labelPolicy.fill(kind, says.labels), says.annotations}
		gets = given{MergeMap(was.labels, has.labels, said.labels), MergeMap(was.annotations, has.annotations, said.annotations)}
		if r = checkLabels(gets.labels, gets.annotations); r != nil {
			return gets, said, r
		}
	}
	gets.labels, r = c.given(kind, gets.labels)
	if !merge {
		said = gets
	}
	return gets, said, r
}

func (e *encoder) given(tag byte, g *given) {
	if g != nil {
		e.byte(tag)
		e.strs(g.labels)
		e.strs(g.annotations)
	}
}

func (l *loader) given(d *decoder, j *Job) error {
	if !d.tagged(tagGiven) {
		return nil
	}
	j.keep(given{d.strs(), d.strs()})
	if !d.bad && (j.given == nil || l.c.format < FormatGiven) {
		return errOdd
	}
	return nil
}

// checkGiven: what a job was given is kept only while it is something else.
func (c *Cell) checkGiven(j *Job) error {
	switch g := j.given; {
	case g == nil:
		return nil
	case c.format < FormatGiven:
		return fmt.Errorf("it knows what it was given, in format %d", c.format)
	case g.is(given{j.labels, j.annotations}):
		return fmt.Errorf("it keeps what it was given, which is what it has")
	}
	return nil
}
