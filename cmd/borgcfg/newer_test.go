package main

import (
	"context"
	"sync/atomic"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"borg/proto/borgpb"
)

// unheardOf is a value that no enum of this build has.
const unheardOf = 7777

// newerMasters answers, once it is switched on, as masters of a later build may: each
// enum that is set has a value that nobody here has heard of, and each message a field.
type newerMasters struct {
	grpc.ServiceRegistrar
	on *atomic.Bool
}

// RegisterService implements grpc.ServiceRegistrar.
func (n newerMasters) RegisterService(desc *grpc.ServiceDesc, impl any) {
	d := *desc
	d.Methods = nil
	for _, m := range desc.Methods {
		handler := m.Handler
		m.Handler = func(srv any, ctx context.Context, dec func(any) error, interceptor grpc.UnaryServerInterceptor) (any, error) {
			resp, err := handler(srv, ctx, dec, interceptor)
			if msg, ok := resp.(proto.Message); ok && err == nil && n.on.Load() {
				// Its parts are the cell's.
				msg = proto.Clone(msg)
				makeNewer(msg.ProtoReflect())
				resp = msg
			}
			return resp, err
		}
		d.Methods = append(d.Methods, m)
	}
	d.Streams = nil
	for _, s := range desc.Streams {
		handler := s.Handler
		s.Handler = func(srv any, stream grpc.ServerStream) error { return handler(srv, newerStream{stream, n.on}) }
		d.Streams = append(d.Streams, s)
	}
	n.ServiceRegistrar.RegisterService(&d, impl)
}

type newerStream struct {
	grpc.ServerStream
	on *atomic.Bool
}

func (s newerStream) SendMsg(m any) error {
	if msg, ok := m.(proto.Message); ok && s.on.Load() {
		msg = proto.Clone(msg)
		makeNewer(msg.ProtoReflect())
		m = msg
	}
	return s.ServerStream.SendMsg(m)
}

func makeNewer(m protoreflect.Message) {
	field := protowire.AppendTag(nil, 500_000, protowire.BytesType)
	m.SetUnknown(protowire.AppendString(field, "of a later build"))
	m.Range(func(fd protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		switch {
		case fd.IsMap():
			if fd.MapValue().Message() != nil {
				v.Map().Range(func(_ protoreflect.MapKey, v protoreflect.Value) bool {
					makeNewer(v.Message())
					return true
				})
			}
		case fd.IsList() && fd.Message() != nil:
			for i := range v.List().Len() {
				makeNewer(v.List().Get(i).Message())
			}
		case fd.IsList() && fd.Enum() != nil:
			for i := range v.List().Len() {
				v.List().Set(i, protoreflect.ValueOfEnum(unheardOf))
			}
		case fd.Message() != nil:
			makeNewer(v.Message())
		case fd.Enum() != nil && fd.Enum() != borgpb.Role(0).Descriptor():
			m.Set(fd, protoreflect.ValueOfEnum(unheardOf))
		}
		return true
	})
}
