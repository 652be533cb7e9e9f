package cell

import (
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"borg/proto/borgpb"
	"borg/proto/weight"
)

// Shapes of what an op carries in encoded form.
var (
	jobShape = weight.Of((*borgpb.JobSpec)(nil).ProtoReflect().Descriptor(), nil)
	setShape = weight.Of((*borgpb.AllocSetSpec)(nil).ProtoReflect().Descriptor(), nil)
)

// weighSpec is what a spec takes that is kept as it was encoded and decoded. It refuses
// one with too many elements, before anybody spends time on it.
func weighSpec(s *weight.Shape, data []byte) (int64, *borgpb.Refusal) {
	if len(data) > MaxSpecBytes {
		return 0, limit("spec", "%d bytes; at most %d", len(data), MaxSpecBytes)
	}
	w := s.Weigh(data, maxSpecElements)
	if w.Elements > maxSpecElements {
		return 0, limit("spec", "it has more than %d texts, entries and messages; give large lists of arguments or variables to the tasks in a file", maxSpecElements)
	}
	return w.Bytes + int64(len(data)), nil
}

// weighSet is weighSpec of an alloc set's spec that was read.
func weighSet(data []byte) int64 {
	return setShape.Weigh(data, maxSpecElements).Bytes + int64(len(data))
}

// What an op costs beside its bytes to read, to keep and to pass on: each element above so
// many, in bytes that cost as much.
const (
	freeElements = 100
	elementCost  = 64
)

// Cost is what an op costs those who pass it on and apply it, in bytes of an op that
// consists of few long texts.
func Cost(op *borgpb.Op) int {
	return proto.Size(op) + max(Elements(op)-freeElements, 0)*elementCost
}

// Elements is how many texts, numbers, messages, elements of lists and entries of maps an op has,
// those of its spec included: what it costs to read it, beside its bytes.
func Elements(op *borgpb.Op) int {
	n := elementsOf(op.ProtoReflect())
	if spec, shape := encodedSpec(op); shape != nil {
		n += shape.Weigh(spec, MaxOpElements).Elements
	}
	return n
}

// encodedSpec returns the spec that an op of a user carries in encoded form, and the shape of
// its type; nil if the op carries none.
func encodedSpec(op *borgpb.Op) ([]byte, *weight.Shape) {
	switch o := op.GetOp().(type) {
	case *borgpb.Op_SubmitJob:
		return o.SubmitJob.GetSpec(), jobShape
	case *borgpb.Op_UpdateJob:
		return o.UpdateJob.GetSpec(), jobShape
	case *borgpb.Op_SubmitAllocSet:
		return o.SubmitAllocSet.GetSpec(), setShape
	case *borgpb.Op_UpdateAllocSet:
		return o.UpdateAllocSet.GetSpec(), setShape
	}
	return nil, nil
}

// elementsOf counts those of a decoded message.
func elementsOf(m protoreflect.Message) (n int) {
	m.Range(func(fd protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		switch {
		case fd.IsMap():
			n += v.Map().Len()
		case fd.IsList():
			list := v.List()
			n += list.Len()
			for i := 0; fd.Message() != nil && i < list.Len(); i++ {
				n += elementsOf(list.Get(i).Message())
			}
		case fd.Message() != nil:
			n += 1 + elementsOf(v.Message())
		default:
			n++
		}
		return true
	})
	return n
}

// MemoryBytes is what the spec takes in memory.
func (s *Spec) MemoryBytes() int64 { return s.bytesOf() }

// SpecMemoryBytes is what the spec of the set takes in memory.
func (s *AllocSet) SpecMemoryBytes() int64 { return s.weight + runBytes }
