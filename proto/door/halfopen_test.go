package door_test

import (
	"context"
	"crypto/tls"
	"io"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"

	"borg/identity"
	"borg/proto/borgrpc"
	"borg/proto/door"
	"borg/proto/door/entrance"
)

// recorded is a connection that keeps what is written, and from which nothing comes.
type recorded struct {
	net.Conn
	wrote []byte
}

func (r *recorded) Write(b []byte) (int, error) { r.wrote = append(r.wrote, b...); return len(b), nil }
func (r *recorded) Read([]byte) (int, error)    { return 0, io.EOF }

// helloBytes is the first flight of a client without a certificate.
func helloBytes() []byte {
	r := new(recorded)
	_ = tls.Client(r, &tls.Config{InsecureSkipVerify: true, MinVersion: tls.VersionTLS13, NextProtos: []string{"h2"}}).Handshake()
	return r.wrote
}

// halfOpen floods an address, as a task without any certificate can: its clients open one
// connection after the other, say what they are told to, and keep all open as long as
// they may. At first they fill the door; then each opens one now and then.
type halfOpen struct {
	addr    string
	clients int
	say     func(net.Conn)
	opened  atomic.Int64
	ends    sync.WaitGroup
}

const (
	// What one client keeps open.
	halfOpenEach = 300
	// Between two connections of one client, when the door is full.
	halfOpenPace = 100 * time.Millisecond
)

func (f *halfOpen) run(ctx context.Context) {
	for range f.clients {
		f.ends.Go(func() {
			var held []net.Conn
			defer func() {
				for _, c := range held {
					c.Close()
				}
			}()
			for ctx.Err() == nil {
				c, err := (&net.Dialer{Timeout: time.Second}).DialContext(ctx, "tcp", f.addr)
				if err != nil {
					continue
				}
				f.say(c)
				f.opened.Add(1)
				if held = append(held, c); len(held) > halfOpenEach {
					held[0].Close()
					held = held[1:]
					time.Sleep(halfOpenPace)
				}
			}
		})
	}
}

// freshly makes a call on a connection of its own, and reports whether the first try was
// served. If it was not the call waits until another one is.
func freshly(t *testing.T, addr string, who *identity.Source) (first bool) {
	t.Helper()
	conn := dial(t, addr, who, name(identity.Master, ""))
	defer conn.Close()
	c := borgrpc.NewMasterServiceClient(conn)
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	if _, err := c.GetCell(ctx, &borgrpc.GetCellRequest{}); err == nil {
		return true
	}
	if _, err := c.GetCell(ctx, &borgrpc.GetCellRequest{}, grpc.WaitForReady(true)); err != nil {
		t.Errorf("an honest connection to %s is not served: %v", addr, err)
	}
	return false
}

// TestHalfOpenFlood: ten clients without a certificate have more connections half open
// than one address may. Each honest connection is served meanwhile, from the same
// address. It logs how long they took.
func TestHalfOpenFlood(t *testing.T) {
	addr := serve(t, "127.0.0.1:0", door.Config{Identity: source(t, identity.Master, "1")})
	hello := helloBytes()
	good := source(t, identity.User, "alice")
	const honest = 20
	for _, attack := range []struct {
		name string
		say  func(net.Conn)
	}{
		{"nothing", func(net.Conn) {}},
		{"half a hello", func(c net.Conn) { _, _ = c.Write(hello[:len(hello)/2]) }},
		{"a hello", func(c net.Conn) { _, _ = c.Write(hello) }},
		{"a hello and half an answer", func(c net.Conn) {
			_, _ = c.Write(append(slices.Clone(hello), 23, 3, 3, 0, 32, 1, 2, 3))
		}},
	} {
		t.Run(attack.name, func(t *testing.T) {
			f := &halfOpen{addr: addr, clients: 10, say: attack.say}
			before := entrance.Dropped()
			ctx, stop := context.WithCancel(t.Context())
			defer f.ends.Wait()
			defer stop()
			f.run(ctx)
			for deadline := time.Now().Add(5 * time.Minute); entrance.Dropped() == before; time.Sleep(time.Millisecond) {
				if time.Now().After(deadline) {
					t.Fatal("the flood does not fill the door")
				}
			}
			var took []time.Duration
			served := 0
			for range honest {
				began := time.Now()
				if freshly(t, addr, good) {
					served++
				}
				took = append(took, time.Since(began))
			}
			slices.Sort(took)
			t.Logf("%d of %d honest connections served at the first try beside %d of the flood, of which %d were dropped: half within %v, all within %v",
				served, honest, f.opened.Load(), entrance.Dropped()-before, took[honest/2], took[honest-1])
			if served < honest/2 {
				t.Errorf("%d of %d honest connections were served at the first try", served, honest)
			}
		})
	}
}

// TestACrowdedGuestSaysHelloAgain: beside half-open connections from the same address a client has
// to say hello again, with another key, before anything is computed for it; and it is let in.
func TestACrowdedGuestSaysHelloAgain(t *testing.T) {
	addr := serve(t, "127.0.0.1:0", door.Config{Identity: source(t, identity.Master, "1")})
	alice := source(t, identity.User, "alice")
	config := alice.ClientTLS(door.AnyMaster(alice))
	config.ServerName, config.NextProtos = "master", []string{"h2"}
	hello := helloBytes()
	for flood := range 10_000 {
		if flood%100 == 99 {
			conn, err := tls.Dial("tcp", addr, config)
			if err != nil {
				// The newest of a crowd goes first, so it may be dropped.
				t.Logf("beside %d half-open connections: %v", flood, err)
			} else {
				again := conn.ConnectionState().HelloRetryRequest
				conn.Close()
				if again {
					return
				}
			}
		}
		conn, err := net.Dial("tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := conn.Write(hello); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { conn.Close() })
	}
	t.Error("no client was asked to say hello again")
}
