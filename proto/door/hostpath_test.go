package door_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"strings"
	"syscall"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"borg/identity"
	"borg/proto/borgrpc"
	"borg/proto/door"
	"borg/tell/hostpath"
)

// failing answers every call with an error of its own.
type failing struct {
	borgrpc.UnimplementedBorgletServiceServer
	err func() error
}

func (f failing) Describe(context.Context, *borgrpc.DescribeRequest) (*borgrpc.DescribeResponse, error) {
	return nil, f.err()
}

func (f failing) ReadLog(*borgrpc.ReadLogRequest, borgrpc.BorgletService_ReadLogServer) error {
	return f.err()
}

// TestNoCallerIsToldPaths: whatever error a service returns, the door takes the paths of
// the machine out of it, and the log of the server has them.
func TestNoCallerIsToldPaths(t *testing.T) {
	var told lockedBuffer
	var err error
	config := door.Config{
		Identity: source(t, identity.Borglet, "m1"), Logger: slog.New(slog.NewTextHandler(&told, nil)), HostPaths: hostpath.New("/var/lib/borg/m1"),
	}
	listener, lerr := door.Listen("127.0.0.1:0")
	if lerr != nil {
		t.Fatal(lerr)
	}
	server := door.NewServer(config)
	borgrpc.RegisterBorgletServiceServer(server, failing{err: func() error { return err }})
	go server.Serve(listener)
	t.Cleanup(server.Stop)
	client := borgrpc.NewBorgletServiceClient(dial(t, listener.Addr().String(), source(t, identity.Master, "1"), name(identity.Borglet, "m1")))
	missing := &fs.PathError{Op: "open", Path: "/etc/secret/of/machine", Err: syscall.ENOENT}
	for _, tt := range []struct {
		err  error
		code codes.Code
		want string
	}{
		{status.Error(codes.Internal, "open /var/lib/borg/m1/tasks/x: gone"), codes.Internal, "open [host]/x: gone"},
		{status.Error(codes.NotFound, "no mount at /data in the task"), codes.NotFound, "no mount at /data in the task"},
		{fmt.Errorf("read: %w", missing), codes.Unknown, "read: open [host]/machine: no such file or directory"},
		{errors.New("rename /var/lib/borg/m1/a /var/lib/borg/m1/b"), codes.Unknown, "rename [host]/a [host]/b"},
		{errors.New("write /sys/fs/cgroup/borg/x/memory.max: invalid"), codes.Unknown, "write [host]: invalid"},
	} {
		err = tt.err
		_, got := client.Describe(t.Context(), &borgrpc.DescribeRequest{})
		stream, gotToo := client.ReadLog(t.Context(), &borgrpc.ReadLogRequest{})
		if gotToo == nil {
			_, gotToo = stream.Recv()
		}
		for _, got := range []error{got, gotToo} {
			if s := status.Convert(got); s.Code() != tt.code || s.Message() != tt.want {
				t.Errorf("%v is told as %v, want %s", tt.err, got, tt.want)
			}
		}
	}
	if log := told.String(); !strings.Contains(log, "/etc/secret/of/machine") || !strings.Contains(log, "/var/lib/borg/m1/tasks/x") {
		t.Errorf("the log lacks the paths:\n%s", log)
	}
	lines := strings.Count(told.String(), "\n")
	for range 100 {
		if _, err := client.Describe(t.Context(), &borgrpc.DescribeRequest{}); err == nil {
			t.Fatal("a call that fails has an answer")
		}
	}
	if n := strings.Count(told.String(), "\n"); n != lines {
		t.Errorf("a hundred calls that fail as before add %d lines to the log", n-lines)
	}
}
