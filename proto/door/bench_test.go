package door

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"io"
	"net"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	"borg/identity"
	"borg/proto/borgrpc"
)

// mode is what the figures of this build begin with.
func mode() string {
	if plaintext {
		return "plain."
	}
	return "tls."
}

type benchMaster struct {
	borgrpc.UnimplementedMasterServiceServer
}

func (benchMaster) GetCell(context.Context, *borgrpc.GetCellRequest) (*borgrpc.GetCellResponse, error) {
	return &borgrpc.GetCellResponse{CellName: "bench", Digest: string(make([]byte, 1024))}, nil
}

// benchDoor is a server and somebody who may call it.
func benchDoor(b *testing.B) (addr string, who *identity.Source) {
	b.Helper()
	ca, err := identity.NewAuthority("bench", time.Now(), rand.Reader)
	if err != nil {
		b.Fatal(err)
	}
	named := func(role identity.Role, id string) *identity.Source {
		s, err := ca.Source(identity.Name{Cell: "bench", Role: role, ID: id}, time.Now(), identity.Life)
		if err != nil {
			b.Fatal(err)
		}
		return s
	}
	l, err := Listen("127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	s := NewServer(Config{Identity: named(identity.Master, "1")})
	borgrpc.RegisterMasterServiceServer(s, benchMaster{})
	var serving sync.WaitGroup
	serving.Go(func() { _ = s.Serve(l) })
	b.Cleanup(func() { s.Stop(); serving.Wait() })
	return l.Addr().String(), named(identity.User, "alice")
}

// BenchmarkHandshakes makes handshakes in memory, both ends on one core.
func BenchmarkHandshakes(b *testing.B) {
	if plaintext {
		b.Skip("there is none in this build")
	}
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	ca, err := identity.NewAuthority("bench", time.Now(), rand.Reader)
	if err != nil {
		b.Fatal(err)
	}
	master, err := ca.Source(identity.Name{Cell: "bench", Role: identity.Master, ID: "1"}, time.Now(), identity.Life)
	if err != nil {
		b.Fatal(err)
	}
	serverTLS, clientTLS := master.ServerTLS(), master.ClientTLS(AnyMaster(master))
	for b.Loop() {
		near, far := net.Pipe()
		var other sync.WaitGroup
		other.Go(func() {
			s := tls.Server(far, serverTLS)
			if s.Handshake() == nil {
				_, _ = s.Write([]byte{1})
			}
		})
		c := tls.Client(near, clientTLS)
		if _, err := io.ReadFull(c, make([]byte, 1)); err != nil {
			b.Fatal(err)
		}
		other.Wait()
		near.Close()
		far.Close()
	}
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "tls.handshakes_per_core_per_s")
}

// BenchmarkConnections makes connections with one call each, on all cores.
func BenchmarkConnections(b *testing.B) {
	addr, who := benchDoor(b)
	b.RunParallel(func(p *testing.PB) {
		for p.Next() {
			conn, err := Dial(addr, who, AnyMaster(who))
			if err == nil {
				_, err = borgrpc.NewMasterServiceClient(conn).GetCell(context.Background(), &borgrpc.GetCellRequest{})
				conn.Close()
			}
			if err != nil {
				b.Error(err)
				return
			}
		}
	})
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), mode()+"connections_per_s")
}

// BenchmarkCalls makes calls with an answer of 1 KiB on connections that are there.
func BenchmarkCalls(b *testing.B) {
	addr, who := benchDoor(b)
	b.SetParallelism(16)
	b.RunParallel(func(p *testing.PB) {
		conn, err := Dial(addr, who, AnyMaster(who))
		if err != nil {
			b.Error(err)
			return
		}
		defer conn.Close()
		c := borgrpc.NewMasterServiceClient(conn)
		for p.Next() {
			if _, err := c.GetCell(context.Background(), &borgrpc.GetCellRequest{}); err != nil {
				b.Error(err)
				return
			}
		}
	})
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), mode()+"calls_per_s")
}

// BenchmarkBesideSlowConnections makes calls one after the other, alone and beside
// a thousand connections that say nothing, half a hello, or nothing after the
// handshake, in turns; those that the server has hung up on are made anew.
func BenchmarkBesideSlowConnections(b *testing.B) {
	if plaintext {
		b.Skip("measured with TLS")
	}
	addr, who := benchDoor(b)
	conn, err := Dial(addr, who, AnyMaster(who))
	if err != nil {
		b.Fatal(err)
	}
	defer conn.Close()
	c := borgrpc.NewMasterServiceClient(conn)
	calls := func() (took []time.Duration) {
		for range 2000 {
			began := time.Now()
			if _, err := c.GetCell(context.Background(), &borgrpc.GetCellRequest{}); err != nil {
				b.Fatal(err)
			}
			took = append(took, time.Since(began))
		}
		return took
	}
	calls()
	var alone, beside []time.Duration
	for b.Loop() {
		alone = append(alone, calls()...)
		var slow []net.Conn
		for n := range 1000 {
			raw, err := net.Dial("tcp", addr)
			if err != nil {
				b.Fatal(err)
			}
			slow = append(slow, raw)
			switch n % 3 {
			case 1:
				_, err = raw.Write([]byte{22, 3, 1, 2, 0, 1, 0, 1})
			case 2:
				err = tls.Client(raw, who.ClientTLS(AnyMaster(who))).Handshake()
			}
			if err != nil {
				b.Fatal(err)
			}
		}
		beside = append(beside, calls()...)
		for _, s := range slow {
			s.Close()
		}
		// The server has noticed before the next turn is measured alone.
		calls()
	}
	p99 := func(took []time.Duration) float64 {
		slices.Sort(took)
		return float64(took[len(took)*99/100])
	}
	b.ReportMetric(p99(alone)/1e3, "tls.call_alone_p99_us")
	b.ReportMetric(p99(beside)/1e3, "tls.call_beside_1000_slow_p99_us")
	b.ReportMetric(p99(beside)/p99(alone), "tls.beside_1000_slow_p99_ratio")
}
