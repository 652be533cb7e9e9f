package packages

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"runtime"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"borg/borglet"
	"borg/borgmaster/cell"
	"borg/borgmaster/linkshard"
	"borg/proto/borgpb"
)

// swarm is a cell of machines with a task each that needs one package, and the polls that
// tell them where it is: what is decided is the masters' own.
type swarm struct {
	t        testing.TB
	machines []*machine
	origin   counting
	image    *testImage

	mu sync.Mutex
	// Guarded by mu.
	cell *cell.Cell
	// Machines that masters do not reach.
	silent map[int]bool
}

func (s *swarm) do(op *borgpb.Op) *borgpb.Result {
	s.t.Helper()
	data, err := proto.Marshal(op)
	if err != nil {
		s.t.Fatal(err)
	}
	entry, err := proto.Marshal(&borgpb.Entry{CellTimeNs: 1, WallTimeNs: 1e18, Ops: [][]byte{data}})
	if err != nil {
		s.t.Fatal(err)
	}
	results, _ := s.cell.Apply(s.cell.Index()+1, 1, entry)
	if results[0].Refusal != nil {
		s.t.Fatalf("%v: %v", op, results[0].Refusal)
	}
	return results[0]
}

func machineNo(n int) string { return fmt.Sprintf("m%02d", n) }

func newSwarm(t testing.TB, machines int, bytes int, patience time.Duration) *swarm {
	s := &swarm{t: t, cell: cell.New("c1", 1), silent: map[int]bool{}}
	s.image = imageOf(t, runtime.GOARCH, gzipped(t, tarOf(t, file("data", noise(1, bytes)))))
	url := serveRegistry(t, s.image, s.origin.around)
	s.do(&borgpb.Op{Op: &borgpb.Op_RaiseFormat{RaiseFormat: &borgpb.RaiseFormat{Format: cell.BuildFormat}}})
	for n := range machines {
		s.machines = append(s.machines, newMachine(t, t.TempDir(), url, patience))
		s.do(&borgpb.Op{Op: &borgpb.Op_AddMachine{AddMachine: &borgpb.AddMachine{Name: machineNo(n), Spec: &borgpb.MachineSpec{
			Addr: "127.0.0.1:7101", Capacity: &borgpb.Resources{CpuMilli: 1000, MemBytes: 1 << 30},
		}}}})
	}
	spec, err := proto.Marshal(&borgpb.JobSpec{
		Kind: borgpb.JobKind_JOB_KIND_SERVICE, Tasks: uint32(machines), Priority: 200,
		Task: &borgpb.TaskSpec{
			Args: []string{"true"}, Resources: &borgpb.Resources{CpuMilli: 100, MemBytes: 1 << 20},
			Packages: []*borgpb.Package{{Name: "tool", Digest: string(s.image.digest), Path: "/opt/tool"}},
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	uid := s.do(&borgpb.Op{Op: &borgpb.Op_SubmitJob{SubmitJob: &borgpb.SubmitJob{User: "u", Name: "web", Spec: spec}}}).Uid
	for n := range machines {
		s.do(&borgpb.Op{Op: &borgpb.Op_Assign{Assign: &borgpb.Assign{Assignments: []*borgpb.Assignment{
			{Uid: uid, Index: uint32(n), Machine: machineNo((n * 7) % machines), Version: 1},
		}}}})
	}
	return s
}

// poll is one poll of a machine, and what becomes of its answer.
func (s *swarm) poll(n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	m := s.cell.Machine(machineNo(n))
	if s.silent[n] || m == nil {
		return
	}
	advice := map[string]borglet.PackageAdvice{}
	for _, w := range linkshard.Build(s.cell, m, "test", 1, &linkshard.Known{}).Packages {
		advice[w.Digest] = borglet.PackageAdvice{Peers: w.Peers, Origin: w.Origin}
	}
	s.machines[n].Advise(advice)
	_, port, err := net.SplitHostPort(s.machines[n].addr)
	if err != nil {
		s.t.Fatal(err)
	}
	at, err := strconv.Atoi(port)
	if err != nil {
		s.t.Fatal(err)
	}
	word := &borgpb.MachineSpec{Packages: &borgpb.MachinePackages{Port: uint32(at), Digests: s.machines[n].Whole(128)}}
	if set := linkshard.Change(s.cell.Format(), m.Name(), &borgpb.MachineSpec{Packages: m.PackagesProto()}, nil, word); set != nil {
		s.do(&borgpb.Op{Op: &borgpb.Op_SetMachine{SetMachine: set}})
	}
}

// run has all machines bring the package while they are polled; each in between does
// something between two rounds.
func (s *swarm) run(between func()) {
	s.t.Helper()
	for n := range s.machines {
		s.poll(n)
	}
	var left atomic.Int64
	left.Store(int64(len(s.machines)))
	var wait sync.WaitGroup
	for n, m := range s.machines {
		wait.Go(func() {
			defer left.Add(-1)
			if _, err := m.Hold(context.Background(), borglet.Turn{}, "copy", texts([]Digest{s.image.digest}), nil); err != nil {
				s.t.Errorf("%s: %v", machineNo(n), err)
			}
		})
	}
	ticker := time.NewTicker(5 * time.Millisecond)
	defer ticker.Stop()
	for left.Load() > 0 {
		for n := range s.machines {
			s.poll(n)
		}
		between()
		<-ticker.C
	}
	wait.Wait()
}

// copies is how often all of the package came from where it comes from.
func (s *swarm) copies() float64 {
	return float64(s.origin.bytes.Load()) / float64(len(s.image.blobs[s.image.layers[0]]))
}

// BenchmarkSwarm is TestSwarm with a package of 200 MB, or of BORG_BENCH_BYTES; it needs forty
// times that on disk.
func BenchmarkSwarm(b *testing.B) {
	bytes := 200 << 20
	if text := os.Getenv("BORG_BENCH_BYTES"); text != "" {
		var err error
		if bytes, err = strconv.Atoi(text); err != nil {
			b.Fatal(err)
		}
	}
	for b.Loop() {
		b.StopTimer()
		s := newSwarm(b, 20, bytes, time.Hour)
		b.StartTimer()
		s.run(func() {})
		b.ReportMetric(s.copies(), "origin-copies")
	}
}

// TestSwarm: of a package that 20 machines need at once, few copies come from where it
// comes from; the others come from machines.
func TestSwarm(t *testing.T) {
	s := newSwarm(t, 20, 20<<20, time.Hour)
	s.run(func() {})
	size := int64(len(s.image.blobs[s.image.layers[0]]))
	t.Logf("%.2f copies of %d bytes came from where they come from", s.copies(), size)
	if copies := s.copies(); copies > 5 {
		t.Errorf("%.2f copies came from where they come from, want at most 5", copies)
	}
	var served int64
	for _, m := range s.machines {
		served += m.State().ServedBytes
	}
	if served < 15*size {
		t.Errorf("machines sent %d bytes, want 15 copies of %d", served, size)
	}
}

// TestSwarmWithDeaths: machines that serve die while others fetch from them, unseen by
// masters, and where it comes from is there; all get it.
func TestSwarmWithDeaths(t *testing.T) {
	s := newSwarm(t, 20, 4<<20, 100*time.Millisecond)
	dead := 0
	s.run(func() {
		for n, m := range s.machines {
			if dead == 6 || len(m.Whole(128)) == 0 || m.around.Load() != nil {
				continue
			}
			dead++
			// It breaks off what it sends, and answers nobody.
			f := http.HandlerFunc(func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) })
			m.around.Store(&f)
			m.server.CloseClientConnections()
			s.mu.Lock()
			s.silent[n] = true
			s.mu.Unlock()
		}
	})
	if dead != 6 {
		t.Errorf("%d machines died, want 6", dead)
	}
}
