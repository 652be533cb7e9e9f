package door_test

import (
	"crypto/tls"
	"errors"
	"net"
	"runtime"
	"slices"
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
			_ = c.SetReadDeadline(time.Now().Add(5 * time.Minute))
			for {
				if _, err := c.Read(make([]byte, 512)); errors.Is(err, net.ErrClosed) || isTimeout(err) {
					t.Errorf("a slow connection is still open after five minutes: %v", err)
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
