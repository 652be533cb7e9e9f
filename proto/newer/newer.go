// Package newer makes of a message what a later build may say: each enum that is set gets a
// value, and each message a field, that nobody here has heard of. Tests put it between masters
// and programs that must not break because of that. It knows no service and sends nothing.
package newer

import (
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"borg/proto/borgpb"
)

// UnheardOf is a value that no enum of this build has.
const UnheardOf = 7777

// Make returns a copy of m as a later build may have said it.
func Make(m proto.Message) proto.Message {
	m = proto.Clone(m)
	change(m.ProtoReflect())
	return m
}

func change(m protoreflect.Message) {
	field := protowire.AppendTag(nil, 500_000, protowire.BytesType)
	m.SetUnknown(protowire.AppendString(field, "of a later build"))
	m.Range(func(fd protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		switch {
		case fd.IsMap():
			if fd.MapValue().Message() != nil {
				v.Map().Range(func(_ protoreflect.MapKey, v protoreflect.Value) bool {
					change(v.Message())
					return true
				})
			}
		case fd.IsList() && fd.Message() != nil:
			for i := range v.List().Len() {
				change(v.List().Get(i).Message())
			}
		case fd.IsList() && fd.Enum() != nil:
			for i := range v.List().Len() {
				v.List().Set(i, protoreflect.ValueOfEnum(UnheardOf))
			}
		case fd.Message() != nil:
			change(v.Message())
		case fd.Enum() != nil && fd.Enum() != borgpb.Role(0).Descriptor():
			m.Set(fd, protoreflect.ValueOfEnum(UnheardOf))
		}
		return true
	})
}
