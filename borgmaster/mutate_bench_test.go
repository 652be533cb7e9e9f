package borgmaster_test

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"syscall"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"borg/borgmaster"
	"borg/borgmaster/audit"
	"borg/borgmaster/cell"
	"borg/borgmaster/client"
	"borg/identity"
	"borg/proto/borgpb"
	"borg/proto/door"
)

// quickLog is the log of an elected replica that answers at once and applies nothing, so
// that what is left of a call is the way there and back.
type quickLog struct {
	borgmaster.Log
	cell *cell.Cell
}

func (l *quickLog) View(f func(c *cell.Cell))     { f(l.cell) }
func (l *quickLog) Subscribe(borgmaster.Listener) {}
func (l *quickLog) State() borgmaster.LogState {
	return borgmaster.LogState{Replica: 1, Elected: 1, Term: 1, Ready: true}
}

func (l *quickLog) Propose(_ context.Context, op *borgpb.Op) (*borgpb.Result, error) {
	if _, err := proto.Marshal(op); err != nil {
		return nil, err
	}
	return &borgpb.Result{Index: 7, Uid: "12345678"}, nil
}

// oneMember is a cell of one replica.
type oneMember struct {
	noMembers
	addr string
}

func (o oneMember) Members() []*borgpb.Member { return []*borgpb.Member{{Id: 1, Addr: o.addr}} }
func (o oneMember) Learners() []uint64        { return nil }

// BenchmarkMutate is what a submit costs its client and the elected master beside the log:
// each client is a user of his own with a connection of his own, as in
// `make bench BENCH=throughput`. cpu-us/op is the processor time of both ends.
func BenchmarkMutate(b *testing.B) {
	l, err := door.Listen("127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	addr := l.Addr().String()
	trail, err := audit.Open(audit.Config{Dir: b.TempDir(), Replica: 1})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { trail.Close() })
	m, err := borgmaster.New(borgmaster.Config{
		CellName: "test", Replica: 1, Log: &quickLog{cell: cell.New(testCellID, 1)}, Members: oneMember{addr: addr}, FirstAdmin: "root", Audit: trail,
		Identity: source(b, identity.Master, "1"), Authority: ca, Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		b.Fatal(err)
	}
	s := door.NewServer(m.Door())
	m.RegisterServices(s)
	var serving sync.WaitGroup
	serving.Go(func() { _ = s.Serve(l) })
	b.Cleanup(func() { s.Stop(); serving.Wait() })

	const clients = 64
	op := submit(b, "", "job", 1)
	spec := op.GetSubmitJob().Spec
	var users []*client.Client
	for i := range clients {
		user := fmt.Sprint("user-", i)
		c, err := client.New(client.Config{Masters: []string{addr}, CellID: testCellID, Identity: source(b, identity.User, user)})
		if err != nil {
			b.Fatal(err)
		}
		b.Cleanup(func() { c.Close() })
		if _, err := c.Mutate(context.Background(), submit(b, user, "job", 1)); err != nil {
			b.Fatal(err)
		}
		users = append(users, c)
	}
	b.ReportAllocs()
	b.ResetTimer()
	before := cpuTime(b)
	var asking sync.WaitGroup
	for i, c := range users {
		asking.Go(func() {
			user := fmt.Sprint("user-", i)
			for n := i; n < b.N; n += clients {
				op := &borgpb.Op{Op: &borgpb.Op_SubmitJob{SubmitJob: &borgpb.SubmitJob{User: user, Name: fmt.Sprint("job-", n), Spec: spec}}}
				if _, err := c.Mutate(context.Background(), op); err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	asking.Wait()
	b.StopTimer()
	b.ReportMetric(float64((cpuTime(b)-before).Microseconds())/float64(b.N), "cpu-us/op")
}

// cpuTime is the processor time of this process so far.
func cpuTime(t testing.TB) time.Duration {
	var used syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &used); err != nil {
		t.Fatal(err)
	}
	return time.Duration(used.Utime.Nano() + used.Stime.Nano())
}
