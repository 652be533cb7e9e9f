package cell

import (
	"maps"
	"strings"

	"borg/mutant"
	"borg/proto/borgpb"
	"borg/proto/weight"
)

// FormatLabels is the format in which labels began to be ruled, and to be changed
// alone.
const FormatLabels = 7

// labelled is an object whose labels can be changed: a job, an alloc set or a
// machine. Its maps are shown to readers as they are, so a change makes them anew.
type labelled struct {
	kind borgpb.Labelled
	// As people name it.
	object              string
	uid                 UID
	version             uint64
	labels, annotations *map[string]string
	record              record
	event               Event
}

// change sets labels and annotations; a job and an alloc set remember what they were given.
func (l *labelled) change(labels, annotations map[string]string, format uint32) {
	has := given{labels, annotations}
	switch o := l.record.(type) {
	case *Job:
		if format >= FormatGiven {
			o.given = o.lastGiven().unless(has)
		}
	case *AllocSet:
		if format >= FormatSetUpdates {
			o.given = o.lastGiven().unless(has)
		}
	}
	*l.labels, *l.annotations = labels, annotations
}

// labelsChanged has the borglets of a job's tasks hear of other labels: they tell the tasks.
func (c *Cell) labelsChanged(j *Job) {
	for _, t := range j.rows {
		if t.cur != nil {
			t.cur.machine.changes++
		}
	}
}

// textBytes is what the labels and annotations of a job or alloc set are charged; those
// of a machine are charged to nobody.
func (l *labelled) textBytes() int64 {
	n := weight.Map(*l.labels) + weight.Map(*l.annotations)
	switch o := l.record.(type) {
	case *Job:
		return n + o.given.textBytes()
	case *AllocSet:
		return n + o.given.textBytes()
	}
	return 0
}

// checkLabelBytes is checkState for other labels and annotations. What the object was
// given is kept beside them, at most what it has now.
func (c *Cell) checkLabelBytes(l *labelled, user string, has *given) *borgpb.Refusal {
	was := given{*l.labels, *l.annotations}
	var priority int32
	more := has.textBytes() - was.textBytes()
	switch o := l.record.(type) {
	case *Job:
		priority = o.Priority()
		if o.given == nil && !was.is(*has) {
			more += was.textBytes()
		}
	case *AllocSet:
		priority = o.spec.Priority
		if o.given == nil && !was.is(*has) {
			more += was.textBytes()
		}
	default:
		return nil
	}
	return c.checkState(user, priority, &StateUse{measureBytes: more})
}

// Annotations must not be changed.
func (j *Job) Annotations() map[string]string { return j.annotations }

// checkLabelled finds the object of a change. What is dead is over.
func (c *Cell) checkLabelled(o *borgpb.SetLabels) (*labelled, *borgpb.Refusal) {
	const kind = borgpb.EventKind_EVENT_KIND_LABEL
	if o.Kind == borgpb.Labelled_LABELLED_MACHINE {
		m := c.machines[o.Name]
		if m == nil || o.User != "" {
			return nil, notFound(clip(o.Name, 64), "there is no such machine")
		}
		return &labelled{o.Kind, m.name, m.uid, m.version, &m.labels, &m.annotations, m, machineEvent(m, kind)}, nil
	}
	key := JobKey{o.User, o.Name}
	if r := checkKey(key); r != nil {
		return nil, r
	}
	switch o.Kind {
	case borgpb.Labelled_LABELLED_JOB:
		j, r := c.checkLive(key, 0)
		if r != nil {
			return nil, r
		}
		return &labelled{o.Kind, key.String(), j.uid, j.version, &j.labels, &j.annotations, j, jobEvent(j, kind, stateNone, stateNone)}, nil
	case borgpb.Labelled_LABELLED_ALLOC_SET:
		s := c.sets[key]
		if s == nil {
			return nil, notFound(key.String(), "there is no such alloc set")
		}
		if s.deathSeq != 0 {
			return nil, badState(key.String(), "the alloc set is dead")
		}
		return &labelled{o.Kind, key.String(), s.uid, s.version, &s.labels, &s.annotations, s, setEvent(s, kind, stateNone, stateNone)}, nil
	}
	return nil, about(key.String(), invalid("kind", "want a job, an alloc set or a machine"))
}

// changed is what a map becomes: keys are taken away before others are set.
func changed(m map[string]string, remove []string, set map[string]string) map[string]string {
	removed := make(map[string]bool, len(remove))
	for _, k := range remove {
		removed[k] = true
	}
	next := without(m, len(set), func(k string) bool { return removed[k] })
	maps.Copy(next, set)
	return next
}

// without is a copy of a map without some keys, with room for so many more. It has no
// more room than that: a clone has the room of the map, which has that of all keys that
// were ever in it.
func without(m map[string]string, more int, gone func(k string) bool) map[string]string {
	n := 0
	for k := range m {
		if !gone(k) {
			n++
		}
	}
	next := make(map[string]string, n+more)
	for k, v := range m {
		if !gone(k) {
			next[k] = v
		}
	}
	return next
}

// checkSetLabels changes labels and annotations of an object. Nothing of what the
// cell decides about it depends on them: no task is updated, and the version stays.
func (c *Cell) checkSetLabels(o *borgpb.SetLabels) (commit, *borgpb.Refusal) {
	l, r := c.checkLabelled(o)
	if r != nil {
		return nil, r
	}
	if r := conflict(l.object, o.ExpectVersion, l.version); r != nil {
		return nil, r
	}
	if len(o.SetLabels)+len(o.RemoveLabels)+len(o.SetAnnotations)+len(o.RemoveAnnotations) == 0 {
		return nil, about(l.object, invalid("", "it changes nothing; name a label or an annotation"))
	}
	if n := len(o.RemoveLabels) + len(o.RemoveAnnotations); n > maxLabelsRemoved {
		return nil, about(l.object, limit("", "it removes %d keys; at most %d at once", n, maxLabelsRemoved))
	}
	for _, k := range sortedKeys(o.SetAnnotations) {
		if r := checkLabelKey("annotations", k); r != nil {
			return nil, about(l.object, r)
		}
	}
	labels := changed(*l.labels, o.RemoveLabels, o.SetLabels)
	if r := c.labelPolicy.judgeChange(l.kind, labels, o); r != nil {
		return nil, about(l.object, r)
	}
	annotations := changed(*l.annotations, o.RemoveAnnotations, o.SetAnnotations)
	if r := checkLabels(labels, annotations); r != nil {
		return nil, about(l.object, r)
	}
	if r := c.checkLabelBytes(l, o.User, &given{labels, annotations}); r != nil {
		return nil, about(l.object, r)
	}
	return func(res *borgpb.Result) {
		words := changeWords("", *l.labels, labels) + changeWords("annotation ", *l.annotations, annotations)
		if words != "" {
			if !mutant.Planted(mutant.LabelLost) {
				was := l.textBytes()
				l.change(labels, annotations, c.format)
				c.countBytesOf(o.User, false, l.textBytes()-was)
			}
			c.dirty(l.record)
			if j, ok := l.record.(*Job); ok {
				c.labelsChanged(j)
			}
			l.event.Reason = clip(strings.TrimSuffix(words, ", "), maxReasonBytes)
			c.emit(l.event)
		}
		res.Uid, res.Version = l.uid.String(), l.version
	}, nil
}

// changeWords says what became of a map, each change followed by ", ".
func changeWords(what string, was, is map[string]string) string {
	var b strings.Builder
	say := func(text string) {
		if b.Len() < maxReasonBytes {
			b.WriteString(what + clip(text, 128) + ", ")
		}
	}
	for _, k := range sortedKeys(is) {
		if v, had := was[k]; !had || v != is[k] {
			say(k + "=" + is[k])
		}
	}
	for _, k := range sortedKeys(was) {
		if _, has := is[k]; !has {
			say(k + "-")
		}
	}
	return b.String()
}

// given are the labels that a new object gets, of those that were asked for.
func (c *Cell) given(kind borgpb.Labelled, labels map[string]string) (map[string]string, *borgpb.Refusal) {
	labels = c.labelPolicy.fill(kind, labels)
	if r := c.labelPolicy.judge(kind, labels); r != nil {
		return nil, r
	}
	if len(labels) > maxLabels {
		return nil, limit("labels", "%d labels, with those that the policy gives; at most %d", len(labels), maxLabels)
	}
	return labels, nil
}
