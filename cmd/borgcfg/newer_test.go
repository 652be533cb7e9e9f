package main

import (
	"context"
	"sync/atomic"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	"borg/proto/newer"
)

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
				resp = newer.Make(msg)
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
		m = newer.Make(msg)
	}
	return s.ServerStream.SendMsg(m)
}
