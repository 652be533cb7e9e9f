package watch

import (
	"fmt"
	"iter"
	"maps"

	"google.golang.org/protobuf/proto"

	"borg/borgmaster/cell"
	"borg/proto/borgpb"
	"borg/proto/borgrpc"
)

// Shown yields all objects of a kind as a state shows them, straight from a cell, by
// the name that NameOf gives a change. It is for who holds a Hub against the cell.
func Shown(c *cell.Cell, kind borgpb.ObjectKind) iter.Seq2[string, *borgrpc.WatchObject] {
	return func(yield func(string, *borgrpc.WatchObject) bool) {
		switch kind {
		case borgpb.ObjectKind_OBJECT_KIND_JOB, borgpb.ObjectKind_OBJECT_KIND_TASK:
			for j := range c.Jobs() {
				if kind == borgpb.ObjectKind_OBJECT_KIND_JOB {
					p := j.Alone()
					p.Spec = proto.CloneOf(p.Spec)
					p.Spec.Tasks = j.Size()
					if !yield(name(j.UID(), 0), &borgrpc.WatchObject{Object: &borgrpc.WatchObject_Job{Job: p}}) {
						return
					}
					continue
				}
				for index := range j.Tasks() {
					if !yield(name(j.UID(), index), &borgrpc.WatchObject{Object: &borgrpc.WatchObject_Task{Task: c.TaskProto(j, index, false)}}) {
						return
					}
				}
			}
		case borgpb.ObjectKind_OBJECT_KIND_ALLOC_SET, borgpb.ObjectKind_OBJECT_KIND_ALLOC:
			for s := range c.AllocSets() {
				if kind == borgpb.ObjectKind_OBJECT_KIND_ALLOC_SET {
					if !yield(name(s.UID(), 0), &borgrpc.WatchObject{Object: &borgrpc.WatchObject_AllocSet{AllocSet: c.AllocSetProto(s)}}) {
						return
					}
					continue
				}
				for a := range s.Allocs() {
					if !yield(name(s.UID(), a.Index()), &borgrpc.WatchObject{Object: &borgrpc.WatchObject_Alloc{Alloc: a.Alone()}}) {
						return
					}
				}
			}
		default:
			for m := range c.Machines() {
				if !yield(name(m.UID(), 0), &borgrpc.WatchObject{Object: &borgrpc.WatchObject_Machine{Machine: m.Alone()}}) {
					return
				}
			}
		}
	}
}

func name(uid cell.UID, index uint32) string { return fmt.Sprintf("%v/%d", uid, index) }

// NameOf names the object of a change among those of its kind, for good.
func NameOf(c *borgrpc.WatchChange) string {
	o := c.Object
	if o == nil {
		o = c.Previous
	}
	return fmt.Sprintf("%s/%d", c.Uid, max(o.GetTask().GetIndex(), o.GetAlloc().GetIndex()))
}

// Labels are what a selector picks a shown object by: its labels, and of a machine
// its attributes, where it has no label of that name.
func Labels(o *borgrpc.WatchObject) (meta *borgpb.Meta, labels map[string]string) {
	switch x := o.GetObject().(type) {
	case *borgrpc.WatchObject_Job:
		meta = x.Job.GetMeta()
	case *borgrpc.WatchObject_Task:
		meta = x.Task.GetMeta()
	case *borgrpc.WatchObject_AllocSet:
		meta = x.AllocSet.GetMeta()
	case *borgrpc.WatchObject_Alloc:
		meta = x.Alloc.GetMeta()
	case *borgrpc.WatchObject_Machine:
		meta = x.Machine.GetMeta()
	}
	labels = map[string]string{}
	maps.Copy(labels, o.GetMachine().GetSpec().GetAttributes())
	maps.Copy(labels, meta.GetLabels())
	return meta, labels
}

// Kinds are those that can be watched.
var Kinds = []borgpb.ObjectKind{
	borgpb.ObjectKind_OBJECT_KIND_JOB, borgpb.ObjectKind_OBJECT_KIND_TASK, borgpb.ObjectKind_OBJECT_KIND_ALLOC_SET,
	borgpb.ObjectKind_OBJECT_KIND_ALLOC, borgpb.ObjectKind_OBJECT_KIND_MACHINE,
}
