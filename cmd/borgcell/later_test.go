package main

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"path/filepath"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/protoadapt"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	"borg/borgmaster/client"
	"borg/proto/borgrpc"
	"borg/proto/door"
	"borg/proto/newer"
)

// laterMaster stands before the masters of a cell and passes on what their user asks for.
// What they answer, refusals and streams too, it says as masters of a later build may.
type laterMaster struct{ to *grpc.ClientConn }

// seenLater starts such a master and returns a cell file by which nobody else is found.
func (c *Cell) seenLater(t *testing.T) (cellFile string) {
	t.Helper()
	who, err := c.asMaster(1)
	if err != nil {
		t.Fatal(err)
	}
	conn, err := door.Dial(c.masterAddr(1), c.source, door.AnyMaster(c.source))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	listener, err := door.Listen("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := door.NewServer(door.Config{Identity: who, Logger: slog.New(slog.DiscardHandler)})
	for _, desc := range []grpc.ServiceDesc{
		borgrpc.MasterService_ServiceDesc, borgrpc.AuditService_ServiceDesc, borgrpc.HistoryService_ServiceDesc,
		borgrpc.NameService_ServiceDesc, borgrpc.WatchService_ServiceDesc, borgrpc.IdentityService_ServiceDesc,
	} {
		(&laterMaster{conn}).register(server, desc)
	}
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	t.Cleanup(func() { server.Stop(); <-served })
	cellFile = filepath.Join(t.TempDir(), "cell.yaml")
	if err := client.WriteCellFile(cellFile, &client.CellFile{
		Cell: c.Name, CellID: c.CellID, Masters: []string{listener.Addr().String()}, Identity: c.identityFile(),
	}); err != nil {
		t.Fatal(err)
	}
	return cellFile
}

func (l *laterMaster) register(s *door.Server, desc grpc.ServiceDesc) {
	passed := grpc.ServiceDesc{ServiceName: desc.ServiceName, Metadata: desc.Metadata}
	for _, m := range desc.Methods {
		name := "/" + desc.ServiceName + "/" + m.MethodName
		passed.Methods = append(passed.Methods, grpc.MethodDesc{MethodName: m.MethodName, Handler: func(srv any, ctx context.Context, dec func(any) error, guard grpc.UnaryServerInterceptor) (any, error) {
			ask, answer := messagesOf(desc.ServiceName, m.MethodName)
			if err := dec(ask); err != nil {
				return nil, err
			}
			return guard(ctx, ask, &grpc.UnaryServerInfo{Server: srv, FullMethod: name}, func(ctx context.Context, _ any) (any, error) {
				if err := l.to.Invoke(ctx, name, ask, answer); err != nil {
					return nil, laterRefusal(err)
				}
				return newer.Make(answer), nil
			})
		}})
	}
	for _, m := range desc.Streams {
		if m.ClientStreams {
			continue
		}
		passed.Streams = append(passed.Streams, grpc.StreamDesc{StreamName: m.StreamName, ServerStreams: true, Handler: func(_ any, out grpc.ServerStream) error {
			return l.stream(out, desc.ServiceName, m.StreamName)
		}})
	}
	s.RegisterService(&passed, nil)
}

func (l *laterMaster) stream(out grpc.ServerStream, service, method string) error {
	ask, answer := messagesOf(service, method)
	if err := out.RecvMsg(ask); err != nil {
		return err
	}
	in, err := l.to.NewStream(out.Context(), &grpc.StreamDesc{ServerStreams: true}, "/"+service+"/"+method)
	if err == nil {
		err = in.SendMsg(ask)
	}
	if err == nil {
		err = in.CloseSend()
	}
	for err == nil {
		if err = in.RecvMsg(answer); err == nil {
			err = out.SendMsg(newer.Make(answer))
		}
	}
	if errors.Is(err, io.EOF) {
		return nil
	}
	return laterRefusal(err)
}

// messagesOf are empty ones of what a method is asked and answers.
func messagesOf(service, method string) (ask, answer proto.Message) {
	d, err := protoregistry.GlobalFiles.FindDescriptorByName(protoreflect.FullName(service))
	if err != nil {
		panic(err)
	}
	m := d.(protoreflect.ServiceDescriptor).Methods().ByName(protoreflect.Name(method))
	empty := func(d protoreflect.MessageDescriptor) proto.Message {
		kind, err := protoregistry.GlobalTypes.FindMessageByName(d.FullName())
		if err != nil {
			panic(err)
		}
		return kind.New().Interface()
	}
	return empty(m.Input()), empty(m.Output())
}

// laterRefusal says why not for a reason that nobody here has heard of.
func laterRefusal(err error) error {
	s := status.Convert(err)
	later := status.New(s.Code(), s.Message())
	for _, detail := range s.Details() {
		if m, ok := detail.(proto.Message); ok {
			detail = newer.Make(m)
		}
		with, err := later.WithDetails(detail.(protoadapt.MessageV1))
		if err != nil {
			return err
		}
		later = with
	}
	return later.Err()
}
