package watch

import (
	"bytes"
	"maps"
	"slices"

	"google.golang.org/protobuf/proto"

	"borg/borgmaster/cell"
	"borg/borgmaster/selector"
	"borg/proto/borgpb"
	"borg/proto/borgrpc"
)

// head is what an object is found by. It is shared by all that have the same.
type head struct {
	// Without the version.
	meta *borgpb.Meta
	// What selectors see, and the same in order.
	labels map[string]string
	pairs  []selector.Pair
}

// object is an object at some index. It is shared and never changed.
type object struct {
	head    *head
	version uint64
	// The spec, where the cell keeps it as it is shown.
	spec proto.Message
	// Of a task that was never placed: what all such tasks of its job are of.
	rows *cell.Spec
	// The rest, marshaled: the status, of a machine all of it.
	status []byte
}

// Roughly what an object takes beside its status, and a change beside its objects.
const (
	objectBytes = 80
	changeBytes = 96
)

func (o *object) bytes() int {
	if o == nil {
		return 0
	}
	return objectBytes + len(o.status)
}

func same(a, b *object) bool {
	if a == b || a == nil || b == nil {
		return a == b
	}
	// Equal specs may be of different versions.
	return a.head == b.head && a.version == b.version && a.rows == b.rows && bytes.Equal(a.status, b.status) &&
		(a.spec == b.spec || proto.Equal(a.spec, b.spec))
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
func headOf(was *head, meta *borgpb.Meta, labels map[string]string) *head {
	if was != nil && was.meta.Uid == meta.Uid && maps.Equal(was.labels, labels) && maps.Equal(was.meta.Labels, meta.Labels) && maps.Equal(was.meta.Annotations, meta.Annotations) {
		return was
	}
	h := &head{meta: meta, labels: labels}
	for _, k := range slices.Sorted(maps.Keys(labels)) {
		h.pairs = append(h.pairs, selector.Pair{Key: k, Value: labels[k]})
	}
	return h
}

// metaOf is the meta of an object with its version.
func (o *object) metaOf() *borgpb.Meta {
	m := o.head.meta
	return &borgpb.Meta{User: m.User, Name: m.Name, Uid: m.Uid, Version: o.version, Labels: m.Labels, Annotations: m.Annotations}
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
	switch kind {
	case borgpb.ObjectKind_OBJECT_KIND_JOB:
		return &borgrpc.WatchObject{Object: &borgrpc.WatchObject_Job{Job: &borgpb.Job{
			Meta: o.metaOf(), Spec: o.spec.(*borgpb.JobSpec), Status: decode(o.status, new(borgpb.JobStatus)),
		}}}
	case borgpb.ObjectKind_OBJECT_KIND_TASK:
		t := &borgpb.Task{Meta: o.metaOf(), Index: index, Status: decode(o.status, new(borgpb.TaskStatus))}
		if o.rows != nil {
			t.Spec = o.rows.Need(index).Task
		} else {
			t.Spec = o.spec.(*borgpb.TaskSpec)
		}
		return &borgrpc.WatchObject{Object: &borgrpc.WatchObject_Task{Task: t}}
	case borgpb.ObjectKind_OBJECT_KIND_ALLOC_SET:
		return &borgrpc.WatchObject{Object: &borgrpc.WatchObject_AllocSet{AllocSet: &borgpb.AllocSet{
			Meta: o.metaOf(), Spec: o.spec.(*borgpb.AllocSetSpec), Status: decode(o.status, new(borgpb.AllocSetStatus)),
		}}}
	case borgpb.ObjectKind_OBJECT_KIND_ALLOC:
		return &borgrpc.WatchObject{Object: &borgrpc.WatchObject_Alloc{Alloc: &borgpb.Alloc{
			Meta: o.metaOf(), Index: index, Status: decode(o.status, new(borgpb.AllocStatus)),
		}}}
	default:
		return &borgrpc.WatchObject{Object: &borgrpc.WatchObject_Machine{Machine: decode(o.status, new(borgpb.Machine))}}
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
}

func (q *Query) matches(o *object) bool {
	return o != nil && (q.User == "" || q.User == o.head.meta.User) && (q.Name == "" || q.Name == o.head.meta.Name) && q.Selector.Matches(o.head.labels)
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
	kind          borgpb.ObjectKind
	key           key
	before, after *object
}

func (c *change) bytes() int { return changeBytes + c.before.bytes() + c.after.bytes() }

// batch is all that changed at an index.
type batch struct {
	index   uint64
	cellNs  int64
	changes []change
	bytes   int
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
	changes []*change
}

// Changes is how many there are; none: a bookmark, or a state that is empty.
func (m *Message) Changes() int { return len(m.changes) }

// Proto is the message as it is sent. It may be called without the lock.
func (m *Message) Proto() *borgrpc.WatchResponse {
	resp := &borgrpc.WatchResponse{Index: m.Index, Epoch: m.Epoch, State: m.State, More: m.More}
	for _, c := range m.changes {
		one := &borgrpc.WatchChange{Object: c.after.proto(m.kind, c.key.index), Uid: c.key.uid.String()}
		if !m.State {
			one.Previous = c.before.proto(m.kind, c.key.index)
			one.IsCreate, one.Gone = c.before == nil, !m.query.matches(c.after)
		}
		resp.Changes = append(resp.Changes, one)
	}
	return resp
}
