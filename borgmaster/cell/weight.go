package cell

import (
	"slices"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"borg/proto/borgpb"
)

// What memory holds of a message beside its encoded bytes, at most. These are constants
// and not sizes of Go's types, because the budgets of the state count them: every build
// must count the same. TestWeights compares them with what a process allocates.
const (
	// A message, and each of its fields.
	messageBytes = 48
	fieldBytes   = 16
	// An element of a list, with the room that the list has for more.
	elementBytes = 24
	// A text that is not empty, beside its bytes: what its allocation is rounded up to.
	textBytes = 16
	// A map, and each of its entries, with the room that the map has for more.
	mapBytes   = 320
	entryBytes = 96
)

// Weight is what an encoded message is in memory.
type Weight struct {
	// Texts, messages, elements of lists and entries of maps.
	Elements int
	// Bytes of all of it once it is decoded.
	Bytes int64
}

func (w *Weight) add(o Weight) {
	w.Elements += o.Elements
	w.Bytes += o.Bytes
}

// shape is what weighing needs to know of a type of message.
type shape struct {
	bytes int64
	// Of what a length is told on the wire, ascending.
	fields []shapeField
}

type shapeField struct {
	number protowire.Number
	// What the message or the entry of a map consists of; nil: the field is a text or a number.
	of *shape
	// What each occurrence costs beside what is in it.
	bytes int64
	isMap bool
	// The field holds numbers, each of which is an element.
	packed bool
}

// Shapes of what an op carries in encoded form.
var (
	jobShape = shapeOf((*borgpb.JobSpec)(nil).ProtoReflect().Descriptor())
	setShape = shapeOf((*borgpb.AllocSetSpec)(nil).ProtoReflect().Descriptor())
)

// shapeOf returns the shape of a type of message. The type must not hold itself.
func shapeOf(md protoreflect.MessageDescriptor) *shape {
	s := &shape{bytes: messageBytes + fieldBytes*int64(md.Fields().Len())}
	if md.IsMapEntry() {
		s.bytes = 0
	}
	for i := range md.Fields().Len() {
		fd := md.Fields().Get(i)
		f := shapeField{number: fd.Number(), isMap: fd.IsMap()}
		switch {
		case fd.IsMap():
			f.of, f.bytes = shapeOf(fd.Message()), entryBytes
		case fd.Message() != nil:
			f.of = shapeOf(fd.Message())
			f.bytes = f.of.bytes
		case fd.Kind() != protoreflect.StringKind && fd.Kind() != protoreflect.BytesKind:
			f.packed = true
		}
		if fd.IsList() {
			f.bytes += elementBytes
		}
		s.fields = append(s.fields, f)
	}
	slices.SortFunc(s.fields, func(a, b shapeField) int { return int(a.number - b.number) })
	return s
}

// weigh adds up what the encoded message takes, and stops beyond so many elements. What
// is not encoded well counts as far as it could be read: nobody decodes it.
func (s *shape) weigh(data []byte, most int) (w Weight) {
	w.Bytes = s.bytes
	var maps uint64
	for len(data) > 0 && w.Elements <= most {
		number, kind, n := protowire.ConsumeTag(data)
		if n < 0 {
			return w
		}
		data = data[n:]
		var value []byte
		if kind == protowire.BytesType {
			value, n = protowire.ConsumeBytes(data)
		} else {
			n = protowire.ConsumeFieldValue(number, kind, data)
		}
		if n < 0 {
			return w
		}
		data = data[n:]
		at, known := slices.BinarySearchFunc(s.fields, number, func(f shapeField, n protowire.Number) int { return int(f.number - n) })
		if !known {
			w.Elements++
			continue
		}
		f := &s.fields[at]
		if f.isMap && maps&(1<<(at%64)) == 0 {
			maps |= 1 << (at % 64)
			w.Bytes += mapBytes
		}
		w.add(f.weigh(kind, value, most-w.Elements))
	}
	return w
}

// weigh is what one occurrence of the field takes.
func (f *shapeField) weigh(kind protowire.Type, value []byte, most int) (w Weight) {
	switch {
	case kind != protowire.BytesType:
		// A number; its room in a message is counted with that.
		w.Elements, w.Bytes = 1, f.bytes
	case f.of != nil:
		w = f.of.weigh(value, most)
		w.Elements++
		w.Bytes += f.bytes - f.of.bytes
	case f.packed:
		w.Elements, w.Bytes = len(value), int64(len(value))*elementBytes
	default:
		w.Elements, w.Bytes = 1, f.bytes+textWeight(len(value))
	}
	return w
}

func textWeight(n int) int64 {
	if n == 0 {
		return 0
	}
	return int64(n) + textBytes
}

// WeighMap is what labels, annotations or the like take in memory.
func WeighMap(m map[string]string) (n int64) {
	if len(m) == 0 {
		return 0
	}
	n = mapBytes + entryBytes*int64(len(m))
	for k, v := range m {
		n += textWeight(len(k)) + textWeight(len(v))
	}
	return n
}

// weighSpec is what a spec takes that is kept as it was encoded and decoded. It refuses
// one with too many elements, before anybody spends time on it.
func (s *shape) weighSpec(data []byte) (int64, *borgpb.Refusal) {
	if len(data) > MaxSpecBytes {
		return 0, limit("spec", "%d bytes; at most %d", len(data), MaxSpecBytes)
	}
	w := s.weigh(data, maxSpecElements)
	if w.Elements > maxSpecElements {
		return 0, limit("spec", "it has more than %d texts, entries and messages; give large lists of arguments or variables to the tasks in a file", maxSpecElements)
	}
	return w.Bytes + int64(len(data)), nil
}

// weighSet is weighSpec of an alloc set's spec that was read.
func weighSet(data []byte) int64 {
	return setShape.weigh(data, maxSpecElements).Bytes + int64(len(data))
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

// Elements is how many texts, messages, elements of lists and entries of maps an op has,
// those of its spec included: what it costs to read it, beside its bytes.
func Elements(op *borgpb.Op) int {
	n := elementsOf(op.ProtoReflect())
	switch o := op.GetOp().(type) {
	case *borgpb.Op_SubmitJob:
		n += jobShape.weigh(o.SubmitJob.GetSpec(), MaxOpElements).Elements
	case *borgpb.Op_UpdateJob:
		n += jobShape.weigh(o.UpdateJob.GetSpec(), MaxOpElements).Elements
	case *borgpb.Op_SubmitAllocSet:
		n += setShape.weigh(o.SubmitAllocSet.GetSpec(), MaxOpElements).Elements
	case *borgpb.Op_UpdateAllocSet:
		n += setShape.weigh(o.UpdateAllocSet.GetSpec(), MaxOpElements).Elements
	}
	return n
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
