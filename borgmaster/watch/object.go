package watch

import (
	"bytes"
	"iter"
	"maps"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"

	"borg/borgmaster/cell"
	"borg/borgmaster/selector"
	"borg/proto/borgpb"
	"borg/proto/borgrpc"
	"borg/proto/weight"
)

// head is what an object is found by. It is shared by all that have the same.
type head struct {
	// Of a machine without a user.
	name cell.JobKey
	uid  cell.UID
	// Its own.
	labels, annotations map[string]string
	// What selectors see, and the same in order.
	seen  map[string]string
	pairs []selector.Pair
	// What labels and annotations take.
	bytes int64
}

// object is an object at some index. It is shared and never changed. What is said of
// it is not put into words before it is sent: the log waits while objects are made.
type object struct {
	head *head
	task cell.TaskView
	// Of what is no task; nil for one.
	more *more
}

// objectOf is an object that is no task.
func objectOf(h *head, m more) *object {
	// Of a piece: there are many jobs of a task or two.
	o := &struct {
		object
		m more
	}{object{head: h}, m}
	o.more = &o.m
	return &o.object
}

// more of an object; all but what its kind needs is zero.
type more struct {
	version uint64
	alloc   *cell.AllocView
	// Of a job or alloc set, where the cell keeps it as it is shown, and what it takes there.
	spec      proto.Message
	specBytes int64
	// The rest of those, and all of a machine, marshaled.
	status []byte
}

// Roughly what an object takes beside its texts, and a change beside its objects.
const (
	objectBytes = 208
	moreBytes   = 112
	changeBytes = 24
	// What a part says of a change beside the change.
	changeHeadBytes = 4
	// What a run takes beside its changes in the queue of each watch, with its place there.
	runBytes = 96
)

func (o *object) bytes() int {
	if o == nil {
		return 0
	}
	m := o.more
	if m == nil {
		return objectBytes + o.task.TextBytes()
	}
	n := objectBytes + moreBytes + len(m.status)
	if m.alloc != nil {
		n += m.alloc.TextBytes()
	}
	return n
}

func same(kind borgpb.ObjectKind, a, b *object) bool {
	if a == b || a == nil || b == nil || a.head != b.head {
		return a == b
	}
	if kind == borgpb.ObjectKind_OBJECT_KIND_TASK {
		return a.task.Equal(&b.task)
	}
	x, y := a.more, b.more
	if kind == borgpb.ObjectKind_OBJECT_KIND_ALLOC && *x.alloc != *y.alloc {
		return false
	}
	return x.version == y.version && bytes.Equal(x.status, y.status) && (x.spec == y.spec || proto.Equal(x.spec, y.spec))
}

// marshal is total for what a cell shows. Equal messages give equal bytes.
func marshal(m proto.Message) []byte {
	b, err := proto.MarshalOptions{Deterministic: true}.Marshal(m)
	if err != nil {
		panic("watch: " + err.Error())
	}
	return b
}

// headOf keeps the head that was, if it says the same.
func headOf(was *head, is head) *head {
	if was != nil && was.uid == is.uid && maps.Equal(was.seen, is.seen) && maps.Equal(was.labels, is.labels) && maps.Equal(was.annotations, is.annotations) {
		return was
	}
	h := is
	h.bytes = weight.Map(is.labels) + weight.Map(is.annotations)
	for k, v := range is.seen {
		h.pairs = append(h.pairs, selector.Pair{Key: k, Value: v})
	}
	slices.SortFunc(h.pairs, func(a, b selector.Pair) int { return strings.Compare(a.Key, b.Key) })
	return &h
}

// metaOf is the meta of an object with its version.
func (h *head) metaOf(version uint64) *borgpb.Meta {
	return &borgpb.Meta{User: h.name.User, Name: h.name.Name, Uid: h.uid.String(), Version: version, Labels: h.labels, Annotations: h.annotations}
}

// decode is the reverse of marshal; what it reads was written here.
func decode[M proto.Message](b []byte, m M) M {
	if err := proto.Unmarshal(b, m); err != nil {
		panic("watch: " + err.Error())
	}
	return m
}

// proto shows an object as lists do. index is that of a task or alloc.
func (o *object) proto(kind borgpb.ObjectKind, index uint32) *borgrpc.WatchObject {
	if o == nil {
		return nil
	}
	if kind == borgpb.ObjectKind_OBJECT_KIND_TASK {
		t := o.task.Proto(o.head.metaOf(o.task.Version()), index)
		return &borgrpc.WatchObject{Object: &borgrpc.WatchObject_Task{Task: t}}
	}
	m := o.more
	switch kind {
	case borgpb.ObjectKind_OBJECT_KIND_JOB:
		return &borgrpc.WatchObject{Object: &borgrpc.WatchObject_Job{Job: &borgpb.Job{
			Meta: o.head.metaOf(m.version), Spec: m.spec.(*borgpb.JobSpec), Status: decode(m.status, new(borgpb.JobStatus)),
		}}}
	case borgpb.ObjectKind_OBJECT_KIND_ALLOC_SET:
		return &borgrpc.WatchObject{Object: &borgrpc.WatchObject_AllocSet{AllocSet: &borgpb.AllocSet{
			Meta: o.head.metaOf(m.version), Spec: m.spec.(*borgpb.AllocSetSpec), Status: decode(m.status, new(borgpb.AllocSetStatus)),
		}}}
	case borgpb.ObjectKind_OBJECT_KIND_ALLOC:
		return &borgrpc.WatchObject{Object: &borgrpc.WatchObject_Alloc{Alloc: m.alloc.Proto(o.head.metaOf(m.version), index)}}
	default:
		return &borgrpc.WatchObject{Object: &borgrpc.WatchObject_Machine{Machine: decode(m.status, new(borgpb.Machine))}}
	}
}

// Query says which objects; all that is given must hold.
type Query struct {
	// Job, task, alloc set, alloc or machine.
	Kind borgpb.ObjectKind
	// Owner; empty: any.
	User string
	// Name of the job, alloc set or machine; empty: any.
	Name string
	// Over labels, of tasks those of their job; of machines over attributes too.
	Selector selector.Selector
	// Sight returns what who watches may read; nil: everything. When that changes, the
	// watch ends. Look must be called before a watch begins.
	Sight func(c *cell.Cell) cell.Sight
	// As it was when the watch began.
	sight cell.Sight
}

// Look takes down what who watches may read.
func (q *Query) Look(c *cell.Cell) { q.sight = q.now(c) }

// sees reports whether who watches may read an object.
func (q *Query) sees(o *object) bool {
	return q.Kind == borgpb.ObjectKind_OBJECT_KIND_MACHINE || q.sight.Sees(o.head.name.User, o.head.labels)
}

// now returns what who watches may read at present.
func (q *Query) now(c *cell.Cell) cell.Sight {
	if q.Sight == nil {
		return cell.SightOfAll()
	}
	return q.Sight(c)
}

func (q *Query) matches(o *object) bool {
	return o != nil && q.sees(o) && (q.User == "" || q.User == o.head.name.User) && (q.Name == "" || q.Name == o.head.name.Name) && q.Selector.Matches(o.head.seen)
}

// key names an object among those of its kind, for good.
type key struct {
	uid cell.UID
	// Of a task or alloc.
	index uint32
}

// change is what became of an object at an index. Before is nil for one that was
// made, after for one that is gone.
type change struct {
	// Of a task or alloc.
	index         uint32
	before, after *object
}

func (c *change) bytes() int { return changeBytes + c.before.bytes() + c.after.bytes() }

// keeps is what a change keeps of an object that is no more as it was, beside the object:
// its spec, and the labels and annotations that its members have too. While these stay
// as they are, the cell has them anyhow.
func (c *change) keeps() (n int64) {
	if c.before == nil {
		return 0
	}
	if c.after == nil || c.after.head != c.before.head {
		n += c.before.head.bytes
	}
	if m := c.before.more; m != nil && m.spec != nil && (c.after == nil || c.after.more.spec != m.spec) {
		n += m.specBytes
	}
	return n
}

// run is changes side by side, at one index, of objects of one kind and uid that are
// found by the same before and after: who is told of one is told of all, so that one
// is looked at.
type run struct {
	kind    borgpb.ObjectKind
	uid     cell.UID
	changes []change
	bytes   int
}

// takes tells whether a change belongs to the run.
func (r *run) takes(kind borgpb.ObjectKind, uid cell.UID, before, after *object) bool {
	c := &r.changes[0]
	return r.kind == kind && r.uid == uid && c.before.foundBy() == before.foundBy() && c.after.foundBy() == after.foundBy()
}

func (o *object) foundBy() *head {
	if o == nil {
		return nil
	}
	return o.head
}

// batch is all that changed at an index.
type batch struct {
	index          uint64
	cellNs         int64
	runs           []run
	changes, bytes int
}

// newBatch takes over the runs.
func newBatch(index uint64, cellNs int64, runs []run) *batch {
	b := &batch{index: index, cellNs: cellNs, runs: runs}
	for i := range runs {
		b.changes += len(runs[i].changes)
		b.bytes += runs[i].bytes
	}
	return b
}

// Message is a part of what a Watch yields.
type Message struct {
	// Log index that it is of, and the epoch of the cell.
	Index, Epoch uint64
	// Objects as they were at Index; More: others follow.
	State bool
	// More of the same index follows.
	More    bool
	kind    borgpb.ObjectKind
	query   *Query
	changes []told
}

// told is a change in a Message.
type told struct {
	uid cell.UID
	change
}

// Changes is how many there are; none: a bookmark, or a state that is empty.
func (m *Message) Changes() int { return len(m.changes) }

// shown is an object as it is sent; nil for one that who watches may not read.
func (m *Message) shown(o *object, index uint32) *borgrpc.WatchObject {
	if o == nil || !m.query.sees(o) {
		return nil
	}
	return o.proto(m.kind, index)
}

// Parts are the message as it is sent, in one or more parts: how large an object is when it
// is encoded shows when it is made. A part ends before it has more than messageBytes, but a
// change is never divided. It may be called without the lock.
func (m *Message) Parts() iter.Seq[*borgrpc.WatchResponse] {
	return func(yield func(*borgrpc.WatchResponse) bool) {
		part := &borgrpc.WatchResponse{Index: m.Index, Epoch: m.Epoch, State: m.State, More: true}
		bytes := 0
		for i := range m.changes {
			one := m.change(i)
			n := proto.Size(one)
			if bytes > 0 && bytes+n > messageBytes {
				if !yield(part) {
					return
				}
				part, bytes = &borgrpc.WatchResponse{Index: m.Index, Epoch: m.Epoch, State: m.State, More: true}, 0
			}
			part.Changes = append(part.Changes, one)
			bytes += n + changeHeadBytes
		}
		part.More = m.More
		yield(part)
	}
}

// change is a change as it is sent.
func (m *Message) change(i int) *borgrpc.WatchChange {
	c := &m.changes[i]
	one := &borgrpc.WatchChange{Object: m.shown(c.after, c.index), Uid: c.uid.String()}
	if !m.State {
		one.Previous = m.shown(c.before, c.index)
		one.IsCreate, one.Gone = c.before == nil, !m.query.matches(c.after)
	}
	return one
}

// Proto is the message in one part, whatever its size.
func (m *Message) Proto() *borgrpc.WatchResponse {
	resp := &borgrpc.WatchResponse{Index: m.Index, Epoch: m.Epoch, State: m.State, More: m.More}
	for i := range m.changes {
		resp.Changes = append(resp.Changes, m.change(i))
	}
	return resp
}
