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

const (
	// slowRounds is odd, and enough that a disturbance of the machine is in few of
	// them.
	slowRounds = 31
	// slowCalls are made alone and again beside the others in each round: their p99
	// is that of the 40 slowest.
	slowCalls = 4000
	slowConns = 1000
)

// slowCrowd are connections that say nothing, half a hello byte by byte, or
// nothing after the handshake, a third each.
type slowCrowd struct {
	conns []net.Conn
	end   func()
}

func newSlowCrowd(b *testing.B, addr string, who *identity.Source) *slowCrowd {
	b.Helper()
	s := &slowCrowd{}
	var drip []net.Conn
	for n := range slowConns {
		raw, err := net.Dial("tcp", addr)
		if err != nil {
			b.Fatal(err)
		}
		s.conns = append(s.conns, raw)
		switch n % 3 {
		case 1:
			_, err = raw.Write([]byte{22, 3, 1, 2, 0, 1, 0, 1})
			drip = append(drip, raw)
		case 2:
			err = tls.Client(raw, who.ClientTLS(AnyMaster(who))).Handshake()
		}
		if err != nil {
			b.Fatal(err)
		}
	}
	ctx, cancel := context.WithCancel(context.Background())
	var dripping sync.WaitGroup
	dripping.Go(func() {
		tick := time.NewTicker(3 * time.Millisecond)
		defer tick.Stop()
		for n := 0; ; n++ {
			select {
			case <-tick.C:
				// The server may have hung up.
				_, _ = drip[n%len(drip)].Write([]byte{0})
			case <-ctx.Done():
				return
			}
		}
	})
	s.end = func() {
		cancel()
		dripping.Wait()
		for _, c := range s.conns {
			c.Close()
		}
	}
	return s
}

// BenchmarkBesideSlowConnections makes calls one after the other, alone and beside
// a thousand slow connections, in rounds. The machine is not the same from one
// second to the next, so the two are measured next to each other, in turns which
// comes first, and the figure is the median of what each round says: of p99
// beside to p99 alone. One run is all rounds, about a minute.
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
	calls := func(n int) time.Duration {
		took := make([]time.Duration, n)
		// What was allocated to get here is not to be paid for by these calls.
		runtime.GC()
		for i := range took {
			began := time.Now()
			if _, err := c.GetCell(context.Background(), &borgrpc.GetCellRequest{}); err != nil {
				b.Fatal(err)
			}
			took[i] = time.Since(began)
		}
		slices.Sort(took)
		return took[n*99/100]
	}
	beside := func() time.Duration {
		crowd := newSlowCrowd(b, addr, who)
		p99 := calls(slowCalls)
		crowd.end()
		// The server has noticed before anything else is measured.
		calls(slowCalls / 4)
		return p99
	}
	var alone, crowded, ratios []float64
	for b.Loop() {
		calls(slowCalls)
		for round := range slowRounds {
			var a, z time.Duration
			if round%2 == 0 {
				a, z = calls(slowCalls), beside()
			} else {
				z = beside()
				a = calls(slowCalls)
			}
			alone, crowded, ratios = append(alone, float64(a)), append(crowded, float64(z)), append(ratios, float64(z)/float64(a))
		}
	}
	quantile := func(of []float64, num, den int) float64 {
		slices.Sort(of)
		return of[(len(of)-1)*num/den]
	}
	b.ReportMetric(quantile(alone, 1, 2)/1e3, "tls.call_alone_p99_us")
	b.ReportMetric(quantile(crowded, 1, 2)/1e3, "tls.call_beside_1000_slow_p99_us")
	b.ReportMetric(quantile(ratios, 1, 2), "tls.beside_1000_slow_p99_ratio")
	b.ReportMetric(quantile(ratios, 1, 4), "tls.beside_1000_slow_p99.lower_quartile_ratio")
	b.ReportMetric(quantile(ratios, 3, 4), "tls.beside_1000_slow_p99.upper_quartile_ratio")
}
