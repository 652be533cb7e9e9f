package door_test

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"

	"borg/identity"
	"borg/proto/borgrpc"
	"borg/proto/door"
)

// sameBytes is a codec that sends the same bytes with each call, without copying
// them: what is allocated meanwhile is the other end's.
type sameBytes []byte

func (b sameBytes) Marshal(any) (mem.BufferSlice, error) {
	return mem.BufferSlice{mem.SliceBuffer(b)}, nil
}
func (sameBytes) Unmarshal(mem.BufferSlice, any) error { return nil }
func (sameBytes) Name() string                         { return "proto" }

// TestWhatIsRefusedCostsNoMemory sends messages that are too large, and large
// messages to calls that are not for the caller: they are refused by their heads.
func TestWhatIsRefusedCostsNoMemory(t *testing.T) {
	addr := serve(t, "127.0.0.1:0", door.Config{Identity: source(t, identity.Master, "1")})
	for _, tt := range []struct {
		what   string
		role   identity.Role
		method string
		bytes  int
		want   codes.Code
	}{
		{"too large", identity.Master, "/borgrpc.BorgletService/Describe", 64 << 20, codes.ResourceExhausted},
		{"not for users", identity.User, "/borgrpc.BorgletService/Poll", 7 << 20, codes.PermissionDenied},
		{"no such call", identity.User, "/borgrpc.MasterService/Nothing", 7 << 20, codes.PermissionDenied},
		{"too large for nobody's call", identity.Borglet, "/borgrpc.MasterService/Mutate", 64 << 20, codes.PermissionDenied},
	} {
		conn := show(t, addr, source(t, tt.role, "2").Current())
		codec := grpc.ForceCodecV2(sameBytes(make([]byte, tt.bytes)))
		call := func() error {
			return conn.Invoke(t.Context(), tt.method, &borgrpc.DescribeRequest{}, &borgrpc.DescribeResponse{}, codec)
		}
		_ = call() // The connection and its buffers are there from here on.
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		const calls = 64
		for range calls {
			if err := call(); status.Code(err) != tt.want {
				t.Fatalf("%s: %v, want %v", tt.what, err, tt.want)
			}
		}
		runtime.ReadMemStats(&after)
		sent, cost := calls*tt.bytes>>20, (after.TotalAlloc-before.TotalAlloc)>>20
		if cost > uint64(sent/10) {
			t.Errorf("%s: %d calls with %d MiB cost %d MiB of memory, want less than a tenth", tt.what, calls, sent, cost)
		}
		t.Logf("%s: %d calls with %d MiB cost %d MiB of memory", tt.what, calls, sent, cost)
	}
}

// TestNothingIsUnpacked: a few bytes that unpack to many are refused, as no way of
// packing is known here.
func TestNothingIsUnpacked(t *testing.T) {
	for _, name := range []string{"gzip", "zstd", "snappy", "deflate"} {
		if encoding.GetCompressor(name) != nil {
			t.Errorf("calls packed with %s are taken", name)
		}
	}
}

// TestOneCallerKeepsNobodyOut: the calls and connections of one are bounded, and
// others do not notice.
func TestOneCallerKeepsNobodyOut(t *testing.T) {
	addr := serve(t, "127.0.0.1:0", door.Config{Identity: source(t, identity.Master, "1")})
	bob := borgrpc.NewMasterServiceClient(dial(t, addr, source(t, identity.User, "bob"), name(identity.Master, "")))
	alice := source(t, identity.User, "alice")
	conn := dial(t, addr, alice, name(identity.Master, ""))
	ctx, cancel := context.WithCancel(t.Context())
	streams := 0
	var err error
	for err == nil && streams < 10_000 {
		var stream borgrpc.MasterService_EventsClient
		if stream, err = borgrpc.NewMasterServiceClient(conn).Events(ctx, &borgrpc.EventsRequest{}); err == nil {
			_, err = stream.Recv()
		}
		streams++
	}
	if status.Code(err) != codes.ResourceExhausted || !strings.Contains(err.Error(), "calls under way") || streams != 1025 {
		t.Errorf("call %d of alice on one connection: %v, want that number 1025 is refused", streams, err)
	}
	if _, err := bob.GetCell(t.Context(), &borgrpc.GetCellRequest{}); err != nil {
		t.Errorf("bob beside it: %v", err)
	}
	cancel()
	for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(time.Millisecond) {
		_, err := borgrpc.NewMasterServiceClient(conn).GetCell(t.Context(), &borgrpc.GetCellRequest{})
		if err == nil {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("after her calls have ended: %v", err)
		}
	}
	// One is there already.
	more := make([]*tls.Conn, 0, 1100)
	defer func() {
		for _, c := range more {
			c.Close()
		}
	}()
	open := func() error {
		c, err := tls.Dial("tcp", addr, alice.ClientTLS(name(identity.Master, "")))
		if err != nil {
			return err
		}
		more = append(more, c)
		// A server says hello; one that refuses hangs up.
		_, err = io.ReadFull(c, make([]byte, 1))
		return err
	}
	for n := range 1100 {
		if err = open(); err != nil {
			if n != 1023 {
				t.Errorf("connection %d of alice: %v, want that number 1025 is refused", n+2, err)
			}
			break
		}
	}
	if err == nil {
		t.Error("alice has 1,100 connections")
	}
	if _, err := borgrpc.NewMasterServiceClient(dial(t, addr, source(t, identity.User, "carol"), name(identity.Master, ""))).GetCell(t.Context(), &borgrpc.GetCellRequest{}); err != nil {
		t.Errorf("carol beside it: %v", err)
	}
	for _, c := range more {
		c.Close()
	}
	more = more[:0]
	for deadline := time.Now().Add(30 * time.Second); open() != nil; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("after her connections were closed alice gets none")
		}
	}
}

// TestSlowConnections: a thousand who say nothing, half a hello, or nothing after
// the handshake. A good client beside them makes its calls, on a connection that
// is there and on new ones; how quickly, `make bench BENCH=tls` measures.
func TestSlowConnections(t *testing.T) {
	addr := serve(t, "127.0.0.1:0", door.Config{Identity: source(t, identity.Master, "1")})
	good := source(t, identity.User, "alice")
	client := borgrpc.NewMasterServiceClient(dial(t, addr, good, name(identity.Master, "")))
	calls := func() (p99 time.Duration) {
		t.Helper()
		var took []time.Duration
		for n := range 300 {
			c := client
			var conn *grpc.ClientConn
			if n%10 == 0 {
				conn = dial(t, addr, good, name(identity.Master, ""))
				c = borgrpc.NewMasterServiceClient(conn)
			}
			began := time.Now()
			if _, err := c.GetCell(t.Context(), &borgrpc.GetCellRequest{}); err != nil {
				t.Fatalf("call %d: %v", n, err)
			}
			took = append(took, time.Since(began))
			if conn != nil {
				conn.Close()
			}
		}
		slices.Sort(took)
		return took[len(took)*99/100]
	}
	alone := calls()
	slow := make([]net.Conn, 1000)
	defer func() {
		for _, c := range slow {
			c.Close()
		}
	}()
	idle := source(t, identity.Master, "2")
	for n := range slow {
		raw, err := net.Dial("tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		slow[n] = raw
		switch n % 4 {
		case 1:
			// The head of a record of 512 bytes, and 3 of them.
			_, err = raw.Write([]byte{22, 3, 1, 2, 0, 1, 0, 1})
		case 2:
			_, err = raw.Write([]byte("GET / HTTP/1.0\r\n"))
		case 3:
			c := tls.Client(raw, idle.ClientTLS(name(identity.Master, "")))
			slow[n] = c
			err = c.Handshake()
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("99 %% of calls took at most %v alone, %v beside 1,000 slow connections", alone, calls())
	// They are not kept for ever.
	var closed sync.WaitGroup
	for _, c := range slow {
		closed.Go(func() {
			_ = c.SetReadDeadline(time.Now().Add(time.Minute))
			for {
				if _, err := c.Read(make([]byte, 512)); errors.Is(err, net.ErrClosed) || isTimeout(err) {
					t.Errorf("a slow connection is still open after a minute: %v", err)
					return
				} else if err != nil {
					return
				}
			}
		})
	}
	closed.Wait()
}

func isTimeout(err error) bool {
	var timeout net.Error
	return errors.As(err, &timeout) && timeout.Timeout()
}
