package door_test

import (
	"io"
	"net"
	"sync"
	"syscall"
	"testing"
	"time"

	"borg/identity"
	"borg/proto/door"
)

// BenchmarkStrangers opens connections without a certificate from eight clients, each of which says
// hello and closes after a moment. It reports the processor time of both ends.
func BenchmarkStrangers(b *testing.B) {
	ca := source(b, identity.Master, "1")
	l, err := door.Listen("127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	s := door.NewServer(door.Config{Identity: ca})
	go func() { _ = s.Serve(l) }()
	b.Cleanup(s.Stop)
	hello := helloBytes()
	for _, say := range []string{"hello", "nothing", "close"} {
		b.Run(say, func(b *testing.B) {
			var begin, end syscall.Rusage
			_ = syscall.Getrusage(syscall.RUSAGE_SELF, &begin)
			var all sync.WaitGroup
			for i := range 8 {
				all.Go(func() {
					var held []net.Conn
					for n := i; n < b.N; n += 8 {
						c, err := net.DialTimeout("tcp", l.Addr().String(), time.Second)
						if err != nil {
							continue
						}
						if say == "hello" {
							_, _ = c.Write(hello)
						}
						if say == "close" {
							c.Close()
							continue
						}
						if held = append(held, c); len(held) > 300 {
							held[0].Close()
							held = held[1:]
						}
					}
					for _, c := range held {
						c.Close()
					}
				})
			}
			all.Wait()
			_ = syscall.Getrusage(syscall.RUSAGE_SELF, &end)
			took := end.Utime.Nano() + end.Stime.Nano() - begin.Utime.Nano() - begin.Stime.Nano()
			b.ReportMetric(float64(took)/float64(b.N)/1e3, "cpu-us/conn")
		})
	}
	_ = io.EOF
}
