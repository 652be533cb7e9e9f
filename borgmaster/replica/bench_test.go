package replica

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"borg/proto/borgpb"
)

// Shape of the benchmark's load: proposers that each have one batch of
// assignments under way, as several schedulers would.
const (
	benchProposers = 8
	benchBatch     = 250
	benchMachines  = 2000
	benchJobTasks  = 100_000
)

// BenchmarkReplicatedAssignments has five replicas in one process, gRPC over
// loopback between them, real pebble with fsync, and the real cell, assign
// tasks to machines.
func BenchmarkReplicatedAssignments(b *testing.B) {
	wc := newWireCell(b, 5)
	leader := wc.elected()
	jobs := benchCell(b, leader, (b.N+benchJobTasks-1)/benchJobTasks)
	var next atomic.Int64
	var wg sync.WaitGroup
	b.ResetTimer()
	start := time.Now()
	for range benchProposers {
		wg.Go(func() {
			for {
				from := int(next.Add(benchBatch)) - benchBatch
				if from >= b.N {
					return
				}
				assign(b, leader, jobs, from, min(from+benchBatch, b.N))
			}
		})
	}
	wg.Wait()
	b.StopTimer()
	b.ReportMetric(float64(b.N)/time.Since(start).Seconds(), "cell.replicated_assignments_per_s")
}

// benchCell makes machines and jobs, and returns the jobs' uids.
func benchCell(b *testing.B, r *wireReplica, jobs int) []string {
	b.Helper()
	var wg sync.WaitGroup
	propose := func(user string, op *borgpb.Op) *borgpb.Result {
		op.RequestWallNs = time.Now().UnixNano()
		op.Principal = &borgpb.Principal{User: user, Role: borgpb.Role_ROLE_USER}
		res, err := r.Propose(context.Background(), op)
		if err != nil || res.GetRefusal() != nil {
			b.Errorf("propose: %v, %v", res.GetRefusal(), err)
			return &borgpb.Result{}
		}
		return res
	}
	for w := range 20 {
		wg.Go(func() {
			for i := w; i < benchMachines; i += 20 {
				propose("bench", &borgpb.Op{RequestId: fmt.Sprintf("m-%d", i), Op: &borgpb.Op_AddMachine{AddMachine: &borgpb.AddMachine{
					Name: fmt.Sprintf("m-%d", i),
					Spec: &borgpb.MachineSpec{Addr: "127.0.0.1:1", Capacity: &borgpb.Resources{CpuMilli: 1_000_000, MemBytes: 1 << 40}},
				}}})
			}
		})
	}
	wg.Wait()
	spec, err := proto.Marshal(&borgpb.JobSpec{
		Kind: borgpb.JobKind_JOB_KIND_SERVICE, Tasks: benchJobTasks, Priority: 200,
		Task: &borgpb.TaskSpec{Args: []string{"/bin/true"}, Resources: &borgpb.Resources{CpuMilli: 100, MemBytes: 1 << 20}},
	})
	if err != nil {
		b.Fatal(err)
	}
	var uids []string
	for i := range jobs {
		// A user may hold the tasks of two such jobs.
		user := fmt.Sprintf("bench-%d", i)
		res := propose(user, &borgpb.Op{RequestId: fmt.Sprintf("j-%d", i), Op: &borgpb.Op_SubmitJob{SubmitJob: &borgpb.SubmitJob{
			User: user, Name: fmt.Sprintf("j-%d", i), Spec: spec,
		}}})
		uids = append(uids, res.GetUid())
	}
	if b.Failed() {
		b.FailNow()
	}
	return uids
}

func assign(b *testing.B, r *wireReplica, jobs []string, from, to int) {
	op := &borgpb.Assign{}
	for i := from; i < to; i++ {
		op.Assignments = append(op.Assignments, &borgpb.Assignment{
			Uid: jobs[i/benchJobTasks], Index: uint32(i % benchJobTasks), Machine: fmt.Sprintf("m-%d", i%benchMachines), Version: 1,
		})
	}
	res, err := r.Propose(context.Background(), &borgpb.Op{Op: &borgpb.Op_Assign{Assign: op}})
	if err != nil || res.GetRefusal() != nil || len(res.GetItems()) > 0 {
		b.Errorf("assign %d to %d: %v, %v, %v", from, to, res.GetRefusal(), res.GetItems(), err)
	}
}

// BenchmarkWrites has 64 users make one mutation after another at the elected of
// five replicas. Area tls of bench runs it with and without TLS between them.
func BenchmarkWrites(b *testing.B) {
	wc := newWireCell(b, 5)
	leader := wc.elected()
	var next atomic.Int64
	write := func() bool {
		op := machineOp(fmt.Sprintf("w-%d", next.Add(1)))
		_, err := leader.Propose(context.Background(), op)
		return err == nil
	}
	b.SetParallelism(32)
	b.ResetTimer()
	b.RunParallel(func(p *testing.PB) {
		for p.Next() {
			if !write() {
				b.Error("a write fails")
				return
			}
		}
	})
	b.StopTimer()
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), benchMode+"writes_per_s")
}
