package scheduler

import (
	"encoding/binary"
	"slices"

	"borg/borgmaster/cell"
	"borg/proto/borgpb"
)

// Production is placed by limits, everything below by reservations (§5.5).
const prodPriority = 120

// want is what one line asks for at one run of indices: everything that the
// search needs to know of a task or alloc besides its index.
type want struct {
	line *line
	need *cell.Need
	// last is the highest index that asks for the same.
	last  uint32
	class *class
	prod  bool
	batch bool
	soft  []*borgpb.Constraint
	// ports is how many ports each is granted.
	ports int
	// set is where the tasks run; nil: on machines.
	set *cell.AllocSet
	// inSet: the job names an alloc set, which may not exist (any more).
	inSet bool
	// limited: the job limits its tasks per failure domain.
	limited bool
}

// class is an equivalence class: everything that passes and fails the same
// tests everywhere. What found no place stands for all of its class.
type class struct {
	// blocked: nothing of the class found a place when the changes had come to
	// seen. Only what changed since need be looked at again.
	blocked bool
	seen    uint64
	// whole: a change on one machine can open others too, so after any change
	// the search looks at all of them.
	whole bool
}

// classes knows the classes of what waits.
type classes struct {
	byContent map[string]*class
	byNeed    map[*cell.Need]*class
	// key is scratch.
	key []byte
}

// maxClasses bounds what is remembered of things that do not wait any more.
const maxClasses = 1 << 16

func newClasses() *classes {
	return &classes{byContent: make(map[string]*class), byNeed: make(map[*cell.Need]*class)}
}

// trim forgets everything when too much is remembered. It costs one search a
// class.
func (cs *classes) trim() {
	if len(cs.byNeed) > maxClasses || len(cs.byContent) > maxClasses {
		clear(cs.byContent)
		clear(cs.byNeed)
	}
}

// of returns the class of w.
func (cs *classes) of(w *want) *class {
	if c := cs.byNeed[w.need]; c != nil {
		return c
	}
	cs.key = w.appendKey(cs.key[:0])
	c := cs.byContent[string(cs.key)]
	if c == nil {
		c = &class{whole: w.limited || w.inSet}
		cs.byContent[string(cs.key)] = c
	}
	cs.byNeed[w.need] = c
	return c
}

// appendKey encodes everything that feasibility depends on.
func (w *want) appendKey(b []byte) []byte {
	text := func(s string) {
		b = binary.AppendUvarint(b, uint64(len(s)))
		b = append(b, s...)
	}
	flag := func(v bool) {
		if v {
			b = append(b, 1)
		} else {
			b = append(b, 0)
		}
	}
	r := &w.need.Resources
	for _, v := range []int64{r.CPUMilli, r.MemBytes, r.DiskBytes, r.DiskBytesPerS, r.Ports, int64(w.ports)} {
		b = binary.AppendVarint(b, v)
	}
	for _, d := range r.Devices {
		text(d.Name)
		b = binary.AppendVarint(b, d.Count)
	}
	b = append(b, 0xff)
	for _, c := range w.constraints() {
		if !c.GetSoft() {
			text(c.GetKey())
			b = append(b, byte(c.GetRelation()))
			text(c.GetValue())
		}
	}
	b = append(b, 0xff)
	for _, t := range w.tolerations() {
		text(t.GetKey())
		text(t.GetValue())
	}
	flag(w.prod)
	flag(w.inSet)
	if w.limited || w.inSet {
		// What the tasks of the same job occupy, or where the set's allocs are,
		// makes it a class of its own.
		b = binary.AppendUvarint(b, w.line.uid.Epoch)
		b = binary.AppendUvarint(b, w.line.uid.Index)
		b = binary.AppendUvarint(b, uint64(w.line.uid.N))
	}
	return b
}

func (w *want) constraints() []*borgpb.Constraint {
	if w.line.set != nil {
		return w.line.set.Spec().GetConstraints()
	}
	return w.need.Task.GetConstraints()
}

func (w *want) tolerations() []*borgpb.Toleration {
	if w.line.set != nil {
		return w.line.set.Spec().GetTolerations()
	}
	return w.need.Task.GetTolerations()
}

// wants returns what index of l asks for.
func (cs *classes) wants(c *cell.Cell, l *line, index uint32) *want {
	w := &want{line: l, prod: l.priority >= prodPriority}
	if l.set != nil {
		spec := l.set.Spec()
		w.need = l.set.Need()
		w.last = l.set.NumAllocs() - 1
		w.limited = spec.GetMaxPerMachine()|spec.GetMaxPerRack()|spec.GetMaxPerPower() != 0
	} else {
		spec := l.job.Spec()
		w.need = l.job.Need(index)
		w.last = w.need.Last
		w.ports = len(w.need.Task.GetPorts())
		w.batch = l.job.Kind() == borgpb.JobKind_JOB_KIND_BATCH
		w.limited = spec.GetMaxPerMachine()|spec.GetMaxPerRack()|spec.GetMaxPerPower() != 0
		if key, ok := l.job.AllocSet(); ok {
			w.inSet = true
			w.set = c.AllocSet(key)
		}
	}
	for _, k := range w.constraints() {
		if k.GetSoft() {
			w.soft = append(w.soft, k)
		}
	}
	w.class = cs.of(w)
	return w
}

// changes is the order in which places changed so that something could fit
// that did not: a log that classes remember their place in.
type changes struct {
	// base is the number of changes before those in log.
	base uint64
	log  []*site
}

// now is the number of changes so far.
func (ch *changes) now() uint64 { return ch.base + uint64(len(ch.log)) }

// add notes a change on t. Past limit entries, what was noted counts as "all of
// them may have changed".
func (ch *changes) add(t *site, limit int) {
	if len(ch.log) >= limit {
		ch.all()
		return
	}
	ch.log = append(ch.log, t)
}

// all notes that anything may have changed.
func (ch *changes) all() {
	ch.base = ch.now() + 1
	clear(ch.log)
	ch.log = ch.log[:0]
}

// since returns the sites that changed after seen, each once and in the order
// of a walk that starts at start; ok is false when it could be any.
func (ch *changes) since(seen uint64, start int) (changed []*site, ok bool) {
	if seen < ch.base {
		return nil, false
	}
	changed = slices.Clone(ch.log[seen-ch.base:])
	slices.SortFunc(changed, func(a, b *site) int {
		if (a.at < start) != (b.at < start) {
			if a.at < start {
				return 1
			}
			return -1
		}
		return a.at - b.at
	})
	return slices.Compact(changed), true
}
