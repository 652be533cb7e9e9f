package weight

import (
	"slices"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// What memory holds of a message beside its texts, at most, in bytes.
const (
	// MessageBytes is what a message takes, and FieldBytes each field of its type.
	MessageBytes = 48
	FieldBytes   = 16
	// ElementBytes is what an element of a list takes, with the room that the list has for
	// more.
	ElementBytes = 24
	// BytesElementBytes is the same where the elements are of type bytes.
	BytesElementBytes = 36
	// TextBytes is what a text takes that is not empty, beside its bytes: what its
	// allocation is rounded up to.
	TextBytes = 16
	// MapBytes is what a map takes, and EntryBytes each of its entries, with the room that
	// the map has for more.
	MapBytes   = 320
	EntryBytes = 96
)

// Weight is what an encoded message is once it is decoded.
type Weight struct {
	// Texts, numbers, messages, elements of lists and entries of maps.
	Elements int
	// Memory of all of it.
	Bytes int64
}

func (w *Weight) add(o Weight) {
	w.Elements += o.Elements
	w.Bytes += o.Bytes
}

// Shape is what there is to know of a type of message in order to weigh it.
type Shape struct {
	// What a message with nothing in it takes.
	Bytes int64

	// Ascending.
	fields []field
	// By a field's number less one, its place in fields plus one; 0: the type has no such field.
	places []uint16
}

// field returns the field of a number, and its place; nil if the type has none.
func (s *Shape) field(n protowire.Number) (*field, int) {
	if int(n) > len(s.places) || n < 1 || s.places[n-1] == 0 {
		return nil, 0
	}
	at := int(s.places[n-1]) - 1
	return &s.fields[at], at
}

type field struct {
	number protowire.Number
	// What the message or the entry of a map consists of; nil: the field is a text or a number.
	of *Shape
	// What each occurrence costs beside what is in it.
	bytes int64
	isMap bool
	// How the field is encoded; a value of another kind is kept as it came.
	wire protowire.Type
	// A list: of numbers, many may be packed into one value.
	list bool
	// The message is kept as it was encoded, too.
	encoded bool
	// Each number of a list is an element, also where many are packed into one value. Bytes
	// of a number on the wire; 0: it ends with a byte below 0x80.
	numbers bool
	size    int
}

// Carried are fields of bytes that hold an encoded message, which somebody is going to
// decode: by the field, the message's type.
type Carried map[protoreflect.FullName]protoreflect.MessageDescriptor

// Of returns the shape of a type of message, which may hold itself. What is carried weighs
// as bytes and as decoded.
func Of(md protoreflect.MessageDescriptor, carried Carried) *Shape {
	b := builder{carried: carried, known: make(map[protoreflect.FullName]*Shape)}
	return b.shape(md)
}

type builder struct {
	carried Carried
	known   map[protoreflect.FullName]*Shape
}

func (b *builder) shape(md protoreflect.MessageDescriptor) *Shape {
	if s := b.known[md.FullName()]; s != nil {
		return s
	}
	s := new(Shape)
	b.known[md.FullName()] = s
	if !md.IsMapEntry() {
		s.Bytes = MessageBytes + FieldBytes*int64(slots(md))
	}
	for i := range md.Fields().Len() {
		fd := md.Fields().Get(i)
		f := field{number: fd.Number(), isMap: fd.IsMap(), list: fd.IsList(), wire: wireOf(fd.Kind())}
		switch {
		case fd.Message() != nil:
			f.of = b.shape(fd.Message())
		case b.carried[fd.FullName()] != nil:
			f.of, f.encoded = b.shape(b.carried[fd.FullName()]), true
		case fd.Kind() != protoreflect.StringKind && fd.Kind() != protoreflect.BytesKind:
			f.numbers, f.size = true, numberBytes(fd.Kind())
		}
		switch {
		case fd.IsMap():
			f.bytes = EntryBytes
		case fd.IsList() && fd.Kind() == protoreflect.BytesKind:
			f.bytes = BytesElementBytes
		case fd.IsList():
			f.bytes = ElementBytes
		case fd.ContainingOneof() != nil:
			// What is chosen stands in an object of its own.
			f.bytes = FieldBytes
		}
		s.fields = append(s.fields, f)
	}
	slices.SortFunc(s.fields, func(a, b field) int { return int(a.number - b.number) })
	if n := len(s.fields); n > 0 {
		s.places = make([]uint16, s.fields[n-1].number)
	}
	for at, f := range s.fields {
		s.places[f.number-1] = uint16(at + 1)
	}
	return s
}

// slots counts the fields that a message has room for: those of a choice share one.
func slots(md protoreflect.MessageDescriptor) (n int) {
	for i := range md.Fields().Len() {
		if choice := md.Fields().Get(i).ContainingOneof(); choice == nil || choice.IsSynthetic() {
			n++
		}
	}
	for i := range md.Oneofs().Len() {
		if !md.Oneofs().Get(i).IsSynthetic() {
			n++
		}
	}
	return n
}

// wireOf returns how a field of a kind is encoded, unless it is packed.
func wireOf(k protoreflect.Kind) protowire.Type {
	switch k {
	case protoreflect.MessageKind, protoreflect.StringKind, protoreflect.BytesKind:
		return protowire.BytesType
	case protoreflect.GroupKind:
		return protowire.StartGroupType
	}
	switch numberBytes(k) {
	case 4:
		return protowire.Fixed32Type
	case 8:
		return protowire.Fixed64Type
	}
	return protowire.VarintType
}

func numberBytes(k protoreflect.Kind) int {
	switch k {
	case protoreflect.Fixed32Kind, protoreflect.Sfixed32Kind, protoreflect.FloatKind:
		return 4
	case protoreflect.Fixed64Kind, protoreflect.Sfixed64Kind, protoreflect.DoubleKind:
		return 8
	}
	return 0
}

// Weigh adds up what the encoded message takes, and stops beyond so many elements. What
// is not encoded well counts as far as it can be read: nobody decodes it.
func (s *Shape) Weigh(data []byte, maxElements int) (w Weight) {
	w = s.weigh(data, maxElements)
	w.Bytes += s.Bytes
	return w
}

// weigh is Weigh without the message itself.
func (s *Shape) weigh(data []byte, maxElements int) (w Weight) {
	var maps uint64
	for len(data) > 0 && w.Elements <= maxElements {
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
		f, at := s.field(number)
		if f == nil || kind != f.wire && !(f.numbers && f.list && kind == protowire.BytesType) {
			// It is kept as it came.
			w.add(Weight{1, int64(n) + TextBytes})
			continue
		}
		if f.isMap && maps&(1<<(at%64)) == 0 {
			maps |= 1 << (at % 64)
			w.Bytes += MapBytes
		}
		w.add(f.weigh(kind, value, maxElements-w.Elements))
	}
	return w
}

// weigh is what one occurrence of the field takes.
func (f *field) weigh(kind protowire.Type, value []byte, maxElements int) Weight {
	switch {
	case kind != protowire.BytesType:
		return Weight{1, f.bytes}
	case f.of != nil:
		w := f.of.weigh(value, maxElements)
		w.add(Weight{1, f.bytes + f.of.Bytes})
		if f.encoded {
			w.Bytes += Text(len(value))
		}
		return w
	case f.numbers:
		// To read a value with nothing in it takes time, too.
		n := max(f.packed(value), 1)
		return Weight{n, int64(n) * ElementBytes}
	}
	return Weight{1, f.bytes + Text(len(value))}
}

// packed counts the numbers in a value.
func (f *field) packed(value []byte) (n int) {
	if f.size > 0 {
		return len(value) / f.size
	}
	for _, b := range value {
		if b < 0x80 {
			n++
		}
	}
	return n
}

// Text is what a text of so many bytes takes beside the field that refers to it.
func Text(n int) int64 {
	if n == 0 {
		return 0
	}
	return int64(n) + TextBytes
}

// Map is what labels, annotations or the like take.
func Map(m map[string]string) (n int64) {
	if len(m) == 0 {
		return 0
	}
	n = MapBytes + EntryBytes*int64(len(m))
	for k, v := range m {
		n += Text(len(k)) + Text(len(v))
	}
	return n
}
