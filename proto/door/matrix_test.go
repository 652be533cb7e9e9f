package door_test

import (
	"context"
	"crypto/tls"
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	"borg/identity"
	"borg/proto/borgrpc"
	"borg/proto/door"
)

var rewrite = flag.Bool("rewrite", false, "write testdata/matrix.txt anew; read the diff")

// calls are all of all services, by name.
func calls() []protoreflect.MethodDescriptor {
	var all []protoreflect.MethodDescriptor
	protoregistry.GlobalFiles.RangeFilesByPackage("borgrpc", func(f protoreflect.FileDescriptor) bool {
		for i := range f.Services().Len() {
			methods := f.Services().Get(i).Methods()
			for j := range methods.Len() {
				all = append(all, methods.Get(j))
			}
		}
		return true
	})
	slices.SortFunc(all, func(a, b protoreflect.MethodDescriptor) int { return strings.Compare(path(a), path(b)) })
	return all
}

func path(m protoreflect.MethodDescriptor) string {
	return fmt.Sprintf("/%s/%s", m.Parent().FullName(), m.Name())
}

// TestEachCallIsInTheTable: a new call needs a word on who may make it.
func TestEachCallIsInTheTable(t *testing.T) {
	table := door.Access()
	for _, m := range calls() {
		if len(table[path(m)]) == 0 {
			t.Errorf("%s is not in the table of who may call what: add it to proto/door/access.go", path(m))
		}
		delete(table, path(m))
	}
	for method := range table {
		t.Errorf("%s is in the table of who may call what, and no service has it", method)
	}
}

// show is a client that shows a certificate, whatever it is worth, and believes
// whoever answers.
func show(t *testing.T, addr string, c *identity.Credential) *grpc.ClientConn {
	t.Helper()
	config := source(t, identity.User, "nobody").ClientTLS(name(identity.Master, ""))
	config.VerifyConnection = nil
	config.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
		if c == nil {
			return &tls.Certificate{}, nil
		}
		return c.TLS(), nil
	}
	conn, err := grpc.NewClient("passthrough:///"+addr, grpc.WithTransportCredentials(credentials.NewTLS(config)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return conn
}

// TestMatrix makes every call of every service with every kind of certificate
// over real connections, and compares what comes of it with testdata/matrix.txt.
// No service is behind the door: a call that is let in ends as Unimplemented.
func TestMatrix(t *testing.T) {
	revoked := name(identity.User, "revoked")
	s := door.NewServer(door.Config{Identity: source(t, identity.Master, "1"), Revoked: func(n identity.Name, _ time.Time) bool { return n == revoked }})
	borgrpc.RegisterMasterServiceServer(s, borgrpc.UnimplementedMasterServiceServer{})
	borgrpc.RegisterMemberServiceServer(s, borgrpc.UnimplementedMemberServiceServer{})
	borgrpc.RegisterCheckpointServiceServer(s, borgrpc.UnimplementedCheckpointServiceServer{})
	borgrpc.RegisterSchedulingServiceServer(s, borgrpc.UnimplementedSchedulingServiceServer{})
	borgrpc.RegisterSchedulerServiceServer(s, borgrpc.UnimplementedSchedulerServiceServer{})
	borgrpc.RegisterReplicaServiceServer(s, borgrpc.UnimplementedReplicaServiceServer{})
	borgrpc.RegisterRaftServiceServer(s, borgrpc.UnimplementedRaftServiceServer{})
	borgrpc.RegisterIdentityServiceServer(s, borgrpc.UnimplementedIdentityServiceServer{})
	borgrpc.RegisterSecretServiceServer(s, borgrpc.UnimplementedSecretServiceServer{})
	borgrpc.RegisterBorgletServiceServer(s, borgrpc.UnimplementedBorgletServiceServer{})
	l, err := door.Listen("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() { defer close(done); s.Serve(l) }()
	defer func() { s.Stop(); <-done }()

	now := time.Now()
	certify := func(a *identity.Authority, role identity.Role, id string, at time.Time) *identity.Credential {
		n := name(role, id)
		n.Cell = a.Cell()
		c, err := a.Certify(n, at, identity.Life)
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	columns := []struct {
		word string
		c    *identity.Credential
	}{
		{"none", nil},
		{"expired", certify(ca, identity.Master, "2", now.Add(-2*time.Hour))},
		{"early", certify(ca, identity.Master, "2", now.Add(time.Hour))},
		{"otherCA", certify(newAuthority("test"), identity.Master, "2", now)},
		{"otherCell", certify(newAuthority("prod"), identity.Master, "2", now)},
		{"revoked", certify(ca, identity.User, "revoked", now)},
		{"user", certify(ca, identity.User, "alice", now)},
		{"master", certify(ca, identity.Master, "2", now)},
		{"scheduler", certify(ca, identity.Scheduler, "2", now)},
		{"borglet", certify(ca, identity.Borglet, "m1", now)},
		{"task", certify(ca, identity.Task, "alice/web/0", now)},
		{"join", certify(ca, identity.Join, "borglet/m1", now)},
	}
	var got strings.Builder
	fmt.Fprintf(&got, "# What comes of every call, by the certificate that is shown. \"-\" is refused in the\n# handshake, \"no\" by the table or as revoked, \"yes\" let in. Made by TestMatrix -rewrite.\n")
	fmt.Fprintf(&got, "%-36s", "call")
	var conns []*grpc.ClientConn
	for _, col := range columns {
		fmt.Fprintf(&got, " %-9s", col.word)
		conns = append(conns, show(t, l.Addr().String(), col.c))
	}
	got.WriteString("\n")
	for _, m := range calls() {
		fmt.Fprintf(&got, "%-36s", strings.TrimPrefix(path(m), "/borgrpc."))
		for _, conn := range conns {
			fmt.Fprintf(&got, " %-9s", outcome(t, conn, m))
		}
		got.WriteString("\n")
	}
	text := strings.ReplaceAll(got.String(), " \n", "\n")
	for strings.Contains(text, " \n") {
		text = strings.ReplaceAll(text, " \n", "\n")
	}
	const file = "testdata/matrix.txt"
	if *rewrite {
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if text != string(want) {
		t.Errorf("the matrix differs from %s; if that is meant: go test ./proto/door -run Matrix -rewrite, and read the diff\n%s", file, text)
	}
}

// outcome makes a call with an empty message.
func outcome(t *testing.T, conn *grpc.ClientConn, m protoreflect.MethodDescriptor) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	desc := &grpc.StreamDesc{StreamName: string(m.Name()), ServerStreams: m.IsStreamingServer(), ClientStreams: m.IsStreamingClient()}
	stream, err := conn.NewStream(ctx, desc, path(m))
	if err == nil {
		_ = stream.SendMsg(&borgrpc.DescribeRequest{})
		_ = stream.CloseSend()
		err = stream.RecvMsg(&borgrpc.DescribeResponse{})
	}
	switch status.Code(err) {
	case codes.Unimplemented:
		return "yes"
	case codes.PermissionDenied, codes.Unauthenticated:
		return "no"
	case codes.Unavailable:
		if text := err.Error(); strings.Contains(text, "tls: ") || strings.Contains(text, "broken pipe") || strings.Contains(text, "reset by peer") {
			return "-"
		}
	}
	return "?" + err.Error()
}
