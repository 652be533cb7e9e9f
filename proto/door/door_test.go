package door_test

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"borg/proto/borgpb"
	"borg/proto/borgrpc"
	"borg/proto/door"
)

// caller answers with who called: the name is the user, the build the role.
type caller struct {
	borgrpc.UnimplementedBorgletServiceServer
}

func (caller) Describe(ctx context.Context, _ *borgrpc.DescribeRequest) (*borgrpc.DescribeResponse, error) {
	who := door.Caller(ctx)
	return &borgrpc.DescribeResponse{Name: who.User, Build: who.Role.String()}, nil
}

func (caller) ReadLog(_ *borgrpc.ReadLogRequest, stream borgrpc.BorgletService_ReadLogServer) error {
	return stream.Send(&borgrpc.ReadLogResponse{Data: []byte(door.Caller(stream.Context()).User)})
}

// serve returns the address of a server that tells who calls.
func serve(t *testing.T, addr string) string {
	t.Helper()
	l, err := door.Listen(addr)
	if err != nil {
		t.Fatal(err)
	}
	s := door.NewServer()
	borgrpc.RegisterBorgletServiceServer(s, caller{})
	done := make(chan struct{})
	go func() {
		defer close(done)
		s.Serve(l)
	}()
	t.Cleanup(func() { s.Stop(); <-done })
	if _, ok := l.Addr().(*net.TCPAddr); ok {
		return l.Addr().String()
	}
	return addr
}

func dial(t *testing.T, addr string, who *borgpb.Principal) borgrpc.BorgletServiceClient {
	t.Helper()
	conn, err := door.Dial(addr, who)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return borgrpc.NewBorgletServiceClient(conn)
}

func TestCallersAreNamed(t *testing.T) {
	alice := &borgpb.Principal{User: "alice", Role: borgpb.Role_ROLE_USER}
	for _, addr := range []string{"127.0.0.1:0", "unix:" + filepath.Join(t.TempDir(), "s")} {
		c := dial(t, serve(t, addr), alice)
		resp, err := c.Describe(t.Context(), &borgrpc.DescribeRequest{})
		if err != nil || resp.Name != "alice" || resp.Build != "ROLE_USER" {
			t.Errorf("%s: caller is %v, %v, want alice with ROLE_USER", addr, resp, err)
		}
		stream, err := c.ReadLog(t.Context(), &borgrpc.ReadLogRequest{})
		if err != nil {
			t.Fatal(err)
		}
		if chunk, err := stream.Recv(); err != nil || string(chunk.Data) != "alice" {
			t.Errorf("%s: caller of the stream is %q, %v, want alice", addr, chunk.GetData(), err)
		}
	}
}

func TestForwardedCallsKeepTheirCaller(t *testing.T) {
	master := &borgpb.Principal{User: "borgmaster", Role: borgpb.Role_ROLE_MASTER}
	c := dial(t, serve(t, "127.0.0.1:0"), master)
	ctx := door.As(t.Context(), &borgpb.Principal{User: "bob", Role: borgpb.Role_ROLE_USER})
	resp, err := c.Describe(ctx, &borgrpc.DescribeRequest{})
	if err != nil || resp.Name != "bob" || resp.Build != "ROLE_USER" {
		t.Errorf("caller is %v, %v, want bob with ROLE_USER", resp, err)
	}
}

func TestListenOnAnOldSocket(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	l, err := door.Listen("unix:" + path)
	if err != nil {
		t.Fatalf("a socket file that was left behind is in the way: %v", err)
	}
	l.Close()
	if _, err := door.Listen("unix:/" + strings.Repeat("x", 120)); err == nil || !strings.Contains(err.Error(), "107") {
		t.Errorf("Listen with a path of 121 bytes: %v, want an error that says how long it may be", err)
	}
}

func TestReason(t *testing.T) {
	l, err := door.Listen("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l.Close()
	_, err = dial(t, l.Addr().String(), &borgpb.Principal{}).Describe(t.Context(), &borgrpc.DescribeRequest{})
	if got, want := door.Reason(err), "dial tcp "+l.Addr().String()+": connect: connection refused"; got != want {
		t.Errorf("Reason(%v) = %q, want %q", err, got, want)
	}
	hangs := status.Error(codes.Unavailable, `connection error: desc = "error reading server preface: read tcp 127.0.0.1:1->127.0.0.1:2: use of closed network connection"`)
	if got := door.Reason(hangs); got != "no answer in time" {
		t.Errorf("Reason of a peer that hangs = %q", got)
	}
	broken := status.Error(codes.Unavailable, `connection error: desc = "error reading server preface: EOF"`)
	if got := door.Reason(broken); got != "error reading server preface: EOF" {
		t.Errorf("Reason of a peer that speaks something else = %q", got)
	}
	if got := door.Reason(status.Error(codes.NotFound, "no such job")); got != "no such job" {
		t.Errorf("Reason of an answer = %q, want its message", got)
	}
}

func TestMessagesAreBounded(t *testing.T) {
	c := dial(t, serve(t, "127.0.0.1:0"), &borgpb.Principal{User: "a", Role: borgpb.Role_ROLE_USER})
	_, err := c.Poll(t.Context(), &borgrpc.PollRequest{KnownHash: make([]byte, 9<<20)})
	if status.Code(err) != codes.ResourceExhausted {
		t.Errorf("a message of 9 MiB: %v, want ResourceExhausted", err)
	}
}
