package door_test

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"borg/identity"
	"borg/proto/borgrpc"
	"borg/proto/door"
)

// ca is the authority of the cell "test".
var ca = newAuthority("test")

func newAuthority(cell string) *identity.Authority {
	a, err := identity.NewAuthority(cell, time.Now(), rand.Reader)
	if err != nil {
		panic(err)
	}
	return a
}

func name(role identity.Role, id string) identity.Name {
	return identity.Name{Cell: "test", Role: role, ID: id}
}

// source is who somebody of the cell is.
func source(t testing.TB, role identity.Role, id string) *identity.Source {
	t.Helper()
	s, err := ca.Source(name(role, id), time.Now(), identity.LifeOf(role))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// caller answers with who called: the name is the ID, the build the role.
type caller struct {
	borgrpc.UnimplementedBorgletServiceServer
	borgrpc.UnimplementedMasterServiceServer
}

func (caller) Describe(ctx context.Context, _ *borgrpc.DescribeRequest) (*borgrpc.DescribeResponse, error) {
	who := door.Caller(ctx)
	return &borgrpc.DescribeResponse{Name: who.ID, Build: string(who.Role)}, nil
}

func (caller) ReadLog(_ *borgrpc.ReadLogRequest, stream borgrpc.BorgletService_ReadLogServer) error {
	return stream.Send(&borgrpc.ReadLogResponse{Data: []byte(door.Caller(stream.Context()).ID)})
}

func (caller) GetCell(ctx context.Context, _ *borgrpc.GetCellRequest) (*borgrpc.GetCellResponse, error) {
	who := door.Caller(ctx)
	return &borgrpc.GetCellResponse{CellName: who.ID, Build: string(who.Role)}, nil
}

func (caller) Mutations(stream borgrpc.MasterService_MutationsServer) error {
	for {
		_, err := stream.Recv()
		if err == nil {
			err = stream.Send(&borgrpc.MutateResponse{})
		}
		if err != nil {
			return err
		}
	}
}

func (caller) Events(_ *borgrpc.EventsRequest, stream borgrpc.MasterService_EventsServer) error {
	for stream.Context().Err() == nil {
		if err := stream.Send(&borgrpc.EventsResponse{}); err != nil {
			return err
		}
		time.Sleep(time.Millisecond)
	}
	return nil
}

// serve returns the address of a server that tells who calls.
func serve(t *testing.T, addr string, config door.Config) string {
	t.Helper()
	l, err := door.Listen(addr)
	if err != nil {
		t.Fatal(err)
	}
	if config.Identity == nil {
		config.Identity = source(t, identity.Borglet, "m1")
	}
	s := door.NewServer(config)
	borgrpc.RegisterBorgletServiceServer(s, caller{})
	borgrpc.RegisterMasterServiceServer(s, caller{})
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

func dial(t *testing.T, addr string, who *identity.Source, want identity.Name) *grpc.ClientConn {
	t.Helper()
	conn, err := door.Dial(addr, who, want)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return conn
}

func borgletAt(t *testing.T, addr string) borgrpc.BorgletServiceClient {
	t.Helper()
	return borgrpc.NewBorgletServiceClient(dial(t, addr, source(t, identity.Master, "3"), name(identity.Borglet, "m1")))
}

func TestCallersAreProven(t *testing.T) {
	c := borgletAt(t, serve(t, "127.0.0.1:0", door.Config{}))
	resp, err := c.Describe(t.Context(), &borgrpc.DescribeRequest{})
	if err != nil || resp.Name != "3" || resp.Build != "master" {
		t.Errorf("caller is %v, %v, want master 3", resp, err)
	}
	stream, err := c.ReadLog(t.Context(), &borgrpc.ReadLogRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if chunk, err := stream.Recv(); err != nil || string(chunk.Data) != "3" {
		t.Errorf("caller of the stream is %q, %v, want master 3", chunk.GetData(), err)
	}
}

// TestSocketsAreForOneUser: whoever runs as the same user is the master of the
// process that listens.
func TestSocketsAreForOneUser(t *testing.T) {
	path := "unix:" + filepath.Join(t.TempDir(), "s")
	serve(t, path, door.Config{Identity: source(t, identity.Scheduler, "2")})
	c := borgrpc.NewBorgletServiceClient(dial(t, path, source(t, identity.User, "whoever"), name(identity.Scheduler, "")))
	resp, err := c.Describe(t.Context(), &borgrpc.DescribeRequest{})
	if err != nil || resp.Name != "2" || resp.Build != "master" {
		t.Errorf("caller is %v, %v, want master 2", resp, err)
	}
}

func TestMastersPassCallsOn(t *testing.T) {
	addr := serve(t, "127.0.0.1:0", door.Config{Identity: source(t, identity.Master, "1")})
	ask := func(role identity.Role, id string, behalf identity.Name) (*borgrpc.GetCellResponse, error) {
		c := borgrpc.NewMasterServiceClient(dial(t, addr, source(t, role, id), name(identity.Master, "1")))
		return c.GetCell(door.Behalf(t.Context(), behalf, time.Now()), &borgrpc.GetCellRequest{})
	}
	resp, err := ask(identity.Master, "2", name(identity.User, "bob"))
	if err != nil || resp.CellName != "bob" || resp.Build != "user" {
		t.Errorf("a call that master 2 passes on is %v, %v, want user bob's", resp, err)
	}
	// The table holds for who is spoken for.
	if _, err = ask(identity.Master, "2", name(identity.Borglet, "m1")); status.Code(err) != codes.PermissionDenied {
		t.Errorf("master 2 passes on a borglet's call: %v, want PermissionDenied", err)
	}
	for _, tt := range []struct {
		role identity.Role
		id   string
	}{{identity.User, "alice"}, {identity.Borglet, "m1"}, {identity.Scheduler, "1"}} {
		if _, err = ask(tt.role, tt.id, name(identity.User, "root")); status.Code(err) != codes.PermissionDenied || !strings.Contains(err.Error(), "only masters pass calls on") {
			t.Errorf("%s speaks for root: %v, want PermissionDenied", tt.role, err)
		}
	}
	if _, err = ask(identity.Master, "2", identity.Name{Cell: "prod", Role: identity.User, ID: "root"}); status.Code(err) != codes.PermissionDenied {
		t.Errorf("master 2 passes on a call of another cell: %v, want PermissionDenied", err)
	}
}

func TestOthersAreNotTalkedTo(t *testing.T) {
	addr := serve(t, "127.0.0.1:0", door.Config{})
	c := borgrpc.NewBorgletServiceClient(dial(t, addr, source(t, identity.Master, "1"), name(identity.Borglet, "m2")))
	_, err := c.Describe(t.Context(), &borgrpc.DescribeRequest{})
	if got, want := door.Reason(err), "borglet m1 answers there, and borglet m2 was expected"; got != want || !door.Distrusted(err) {
		t.Errorf("another machine answers: %q, want %q (%v)", got, want, err)
	}
	stranger, err2 := newAuthority("test").Source(name(identity.Master, "1"), time.Now(), identity.Life)
	if err2 != nil {
		t.Fatal(err2)
	}
	c = borgrpc.NewBorgletServiceClient(dial(t, addr, stranger, name(identity.Borglet, "m1")))
	if _, err = c.Describe(t.Context(), &borgrpc.DescribeRequest{}); !strings.Contains(door.Reason(err), "was not issued by the authority of cell test") || !door.Distrusted(err) {
		t.Errorf("a cell of the same name: %v", err)
	}
}

// TestRefusalsAreReadable looks at what both ends hear when one does not believe
// the other.
func TestRefusalsAreReadable(t *testing.T) {
	var said lockedBuffer
	addr := serve(t, "127.0.0.1:0", door.Config{Logger: slog.New(slog.NewTextHandler(&said, nil))})
	// The server alone stops believing: the client trusts both authorities.
	other, err := ca.Replaced(time.Now(), 0, time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	credential, err := other.Certify(name(identity.Master, "1"), time.Now(), identity.Life)
	if err != nil {
		t.Fatal(err)
	}
	c := borgrpc.NewBorgletServiceClient(dial(t, addr, identity.NewSource(credential, nil, nil), name(identity.Borglet, "m1")))
	_, err = c.Describe(t.Context(), &borgrpc.DescribeRequest{})
	for _, want := range []string{"borglet m1 refused our certificate, of spiffe://test/master/1", "are the clocks right"} {
		if !strings.Contains(door.Reason(err), want) || !door.Distrusted(err) {
			t.Errorf("the client hears %q, want %q in it", door.Reason(err), want)
		}
	}
	// The client may hear of it before the server has said it.
	for deadline := time.Now().Add(5 * time.Minute); said.String() == "" && time.Now().Before(deadline); {
		time.Sleep(time.Millisecond)
	}
	for _, want := range []string{"connection refused", "spiffe://test/master/1", "was not issued by the authority of cell test"} {
		if !strings.Contains(said.String(), want) {
			t.Errorf("the server says %q, want %q in it", said.String(), want)
		}
	}
	expired, err := ca.Certify(name(identity.Master, "1"), time.Now().Add(-2*time.Hour), identity.Life)
	if err != nil {
		t.Fatal(err)
	}
	c = borgrpc.NewBorgletServiceClient(dial(t, addr, identity.NewSource(expired, nil, nil), name(identity.Borglet, "m1")))
	if _, err = c.Describe(t.Context(), &borgrpc.DescribeRequest{}); !strings.HasPrefix(door.Reason(err), "our own certificate, of spiffe://test/master/1, expired at ") {
		t.Errorf("with a certificate of one's own that expired: %q", door.Reason(err))
	}
}

// lockedBuffer is what a server logs from its own goroutines.
type lockedBuffer struct {
	mu   sync.Mutex
	text strings.Builder
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.String()
}

func TestPlaintextAndOldTLSAreRefused(t *testing.T) {
	addr := serve(t, "127.0.0.1:0", door.Config{})
	conn, err := grpc.NewClient("passthrough:///"+addr, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if resp, err := borgrpc.NewBorgletServiceClient(conn).Describe(t.Context(), &borgrpc.DescribeRequest{}); err == nil {
		t.Errorf("a call without TLS is answered: %v", resp)
	}
	config := source(t, identity.Master, "1").ClientTLS(name(identity.Borglet, "m1"))
	config.MinVersion, config.MaxVersion = tls.VersionTLS12, tls.VersionTLS12
	if c, err := tls.Dial("tcp", addr, config); err == nil {
		c.Close()
		t.Error("TLS 1.2 is taken")
	}
}

// TestRevocationIsHeardAtOnce: calls on a connection that is there are refused,
// and a stream that is under way ends.
func TestRevocationIsHeardAtOnce(t *testing.T) {
	var mu sync.Mutex
	revoked := false
	addr := serve(t, "127.0.0.1:0", door.Config{Identity: source(t, identity.Master, "1"), Revoked: func(n identity.Name, _ time.Time) bool {
		mu.Lock()
		defer mu.Unlock()
		return revoked && n == name(identity.User, "alice")
	}})
	alice := borgrpc.NewMasterServiceClient(dial(t, addr, source(t, identity.User, "alice"), name(identity.Master, "")))
	bob := borgrpc.NewMasterServiceClient(dial(t, addr, source(t, identity.User, "bob"), name(identity.Master, "")))
	if _, err := alice.GetCell(t.Context(), &borgrpc.GetCellRequest{}); err != nil {
		t.Fatal(err)
	}
	stream, err := alice.Events(t.Context(), &borgrpc.EventsRequest{})
	if err == nil {
		_, err = stream.Recv()
	}
	if err != nil {
		t.Fatal(err)
	}
	mu.Lock()
	revoked = true
	mu.Unlock()
	if _, err := alice.GetCell(t.Context(), &borgrpc.GetCellRequest{}); status.Code(err) != codes.Unauthenticated || !strings.Contains(err.Error(), "was revoked") {
		t.Errorf("a call of somebody who was revoked: %v, want Unauthenticated", err)
	}
	for err = nil; err == nil; {
		_, err = stream.Recv()
	}
	if status.Code(err) != codes.Unauthenticated {
		t.Errorf("a stream of somebody who was revoked ends with %v, want Unauthenticated", err)
	}
	if _, err := bob.GetCell(t.Context(), &borgrpc.GetCellRequest{}); err != nil {
		t.Errorf("a call of somebody else: %v", err)
	}
}

// TestRevokedConnectionsAreClosed although nothing is asked on them any more.
func TestRevokedConnectionsAreClosed(t *testing.T) {
	var revoked atomic.Bool
	addr := serve(t, "127.0.0.1:0", door.Config{Identity: source(t, identity.Master, "1"), Revoked: func(n identity.Name, _ time.Time) bool {
		return revoked.Load() && n == name(identity.User, "alice")
	}})
	// closed says when the server has hung up.
	closed := func(id string) <-chan error {
		conn, err := tls.Dial("tcp", addr, source(t, identity.User, id).ClientTLS(name(identity.Master, "")))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { conn.Close() })
		// The preface of HTTP/2 and empty settings: without them it hangs up anyhow.
		if _, err := conn.Write([]byte("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00")); err != nil {
			t.Fatal(err)
		}
		ended := make(chan error, 1)
		go func() {
			_, err := io.Copy(io.Discard, conn)
			ended <- err
		}()
		return ended
	}
	alice, bob := closed("alice"), closed("bob")
	revoked.Store(true)
	select {
	case <-alice:
	case <-time.After(5 * time.Minute):
		t.Error("a connection of somebody who was revoked stays open")
	}
	select {
	case err := <-bob:
		t.Errorf("a connection of somebody else is closed: %v", err)
	default:
	}
}

// TestNoSessionIsResumed: whoever connects again shows his certificate again, so
// that one that was revoked or has run out is not believed from memory.
func TestNoSessionIsResumed(t *testing.T) {
	addr := serve(t, "127.0.0.1:0", door.Config{Identity: source(t, identity.Master, "1")})
	config := source(t, identity.User, "alice").ClientTLS(name(identity.Master, ""))
	cache := &countingCache{ClientSessionCache: tls.NewLRUClientSessionCache(8)}
	config.ClientSessionCache, config.ServerName = cache, "master"
	for range 3 {
		conn, err := tls.Dial("tcp", addr, config)
		if err != nil {
			t.Fatal(err)
		}
		// A ticket would come with what is read first.
		_ = conn.SetReadDeadline(time.Now().Add(time.Minute))
		if _, err := conn.Read(make([]byte, 1)); err != nil {
			t.Fatal(err)
		}
		if conn.ConnectionState().DidResume {
			t.Error("a session is resumed")
		}
		conn.Close()
	}
	if n := cache.tickets.Load(); n != 0 {
		t.Errorf("the server handed out %d tickets", n)
	}
}

// countingCache counts the tickets that a client is given.
type countingCache struct {
	tls.ClientSessionCache
	tickets atomic.Int64
}

func (c *countingCache) Put(key string, s *tls.ClientSessionState) {
	if s != nil {
		c.tickets.Add(1)
	}
	c.ClientSessionCache.Put(key, s)
}

// TestAMasterThatIsBehindPassesNothingOn of somebody who was revoked: the one that
// it passes it on to looks for itself.
func TestAMasterThatIsBehindPassesNothingOn(t *testing.T) {
	at := time.Now()
	addr := serve(t, "127.0.0.1:0", door.Config{Identity: source(t, identity.Master, "1"), Revoked: func(n identity.Name, issued time.Time) bool {
		return n == name(identity.User, "mallory") && !issued.After(at)
	}})
	c := borgrpc.NewMasterServiceClient(dial(t, addr, source(t, identity.Master, "2"), name(identity.Master, "1")))
	ask := func(issued time.Time) error {
		_, err := c.GetCell(door.Behalf(t.Context(), name(identity.User, "mallory"), issued), &borgrpc.GetCellRequest{})
		return err
	}
	if err := ask(at.Add(-time.Second)); status.Code(err) != codes.Unauthenticated || !strings.Contains(err.Error(), "was revoked") {
		t.Errorf("master 2 passes on a call of somebody who was revoked: %v, want Unauthenticated", err)
	}
	if err := ask(at.Add(time.Second)); err != nil {
		t.Errorf("master 2 passes on a call with a later certificate: %v", err)
	}
	if err := ask(time.Time{}); status.Code(err) != codes.PermissionDenied {
		t.Errorf("master 2 does not say since when the caller has his certificate: %v, want PermissionDenied", err)
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
	_, err = borgletAt(t, l.Addr().String()).Describe(t.Context(), &borgrpc.DescribeRequest{})
	if got, want := door.Reason(err), "dial tcp "+l.Addr().String()+": connect: connection refused"; got != want || door.Distrusted(err) {
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
	c := borgletAt(t, serve(t, "127.0.0.1:0", door.Config{}))
	_, err := c.Poll(t.Context(), &borgrpc.PollRequest{KnownHash: make([]byte, 9<<20)})
	if status.Code(err) != codes.ResourceExhausted {
		t.Errorf("a message of 9 MiB: %v, want ResourceExhausted", err)
	}
}
