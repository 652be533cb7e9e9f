package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"borg/borgmaster/client"
	"borg/fauxmaster/fleet"
	"borg/proto/borgpb"
	"borg/proto/borgrpc"
	"borg/proto/door"
)

const (
	readsMachines = 1000
	readsTasks    = 150_000
	readsJobTasks = 500
	readsPerS     = 1000
	readsWritesS  = 50
	readsMeasure  = 15 * time.Second
	// Those who read, each at one replica in turn.
	readsReaders = 100
	// Tasks in a page that a reader asks for; who lists all asks for the largest.
	readsPage = 50
	// A replica served reads if it answered at least so many percent of them.
	readsShare = 10
)

// BenchmarkReads is a cell of five masters with 150,000 tasks on a thousand pretended
// machines (BORG_BENCH_TASKS: as many): reads of jobs, tasks and pages at all replicas
// beside writes, and what a list of all tasks does to those writes.
func BenchmarkReads(b *testing.B) {
	tasks := benchSize("BORG_BENCH_TASKS", readsTasks)
	for range b.N {
		m := &masterBench{B: b, cell: fakeCell(b, 5, readsMachines, fleet.Life{})}
		m.profiles()
		m.must(m.cell.Start)
		m.fill(tasks, readsJobTasks, func(spec *borgpb.JobSpec, _ *rand.Rand) {
			spec.Task.Resources = &borgpb.Resources{CpuMilli: 10, MemBytes: 16 << 20}
		})
		time.Sleep(benchRest)
		alone := m.writesBeside(nil)
		beside := m.writesBeside(func(ctx context.Context) { m.reads(ctx, tasks) })
		m.figure(p99Ms(alone), "reads", "writes_alone_p99_ms")
		m.figure(p99Ms(beside), "reads", "writes_p99_ms")
		part := fmt.Sprintf("list_%dk", tasks/1000)
		listed := m.writesBeside(func(ctx context.Context) { m.list(ctx, part, tasks) })
		m.figure(p99Ms(listed)-p99Ms(alone), part, "commit_delay_p99_ms")
		m.figure(inMs(slices.Max(listed)-slices.Max(alone)), part, "commit_delay_ms")
	}
}

func inMs(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

func p99Ms(all []time.Duration) float64 {
	return inMs(slices.Sorted(slices.Values(all))[len(all)*99/100])
}

// paced calls f at a rate, in turn with numbers from 0, each when it is due although
// others are not done, until ctx ends. It waits for all, and says how long after its due
// time each was done.
func paced(ctx context.Context, perS int, f func(n int) error) (took []time.Duration, err error) {
	var mu sync.Mutex
	var calls sync.WaitGroup
	began, each := time.Now(), time.Second/time.Duration(perS)
	for n := 0; ; n++ {
		due := began.Add(time.Duration(n) * each)
		select {
		case <-ctx.Done():
			calls.Wait()
			return took, err
		case <-time.After(time.Until(due)):
		}
		calls.Go(func() {
			failed := f(n)
			mu.Lock()
			defer mu.Unlock()
			took = append(took, time.Since(due))
			err = errors.Join(err, failed)
		})
	}
}

// writesBeside has changes made for a while, beside something if it is not nil, and
// says how long each took.
func (m *masterBench) writesBeside(other func(ctx context.Context)) []time.Duration {
	m.Helper()
	ctx, cancel := context.WithTimeout(m.Context(), readsMeasure)
	defer cancel()
	var others sync.WaitGroup
	if other != nil {
		others.Go(func() { other(ctx) })
	}
	var waited atomic.Int64
	c := m.cell.clientOf(m.B, "writer", &waited)
	took, err := paced(ctx, readsWritesS, func(n int) error {
		// Nothing that a scheduler or a machine is busy with.
		op := &borgpb.Op{Op: &borgpb.Op_KillJob{KillJob: &borgpb.KillJob{User: "writer", Name: fmt.Sprint("job-", n-1)}}}
		if n%2 == 0 {
			op = &borgpb.Op{Op: &borgpb.Op_SubmitJob{SubmitJob: &borgpb.SubmitJob{User: "writer", Name: fmt.Sprint("job-", n), Spec: encodeSpec(m.B, unplaceable())}}}
		}
		_, err := c.Mutate(m.Context(), op)
		if refused := new(client.RefusedError); errors.As(err, &refused) {
			return nil
		}
		return err
	})
	others.Wait()
	if err != nil || waited.Load() > 0 {
		m.Fatalf("changes were made to wait %d times: %v", waited.Load(), err)
	}
	m.Logf("%d changes: half within %v, 99 of 100 within %v ms, all within %v", len(took), slices.Sorted(slices.Values(took))[len(took)/2], p99Ms(took), slices.Max(took))
	return took
}

// reads asks all replicas in turn for jobs, tasks and pages of tasks.
func (m *masterBench) reads(ctx context.Context, tasks int) {
	// Readers are users of their own, with a connection each.
	var readers []borgrpc.MasterServiceClient
	for i := range readsReaders {
		who := m.cell.member(m.B, fmt.Sprint("reader-", i))
		conn, err := door.Dial(m.cell.masterAddrs()[i%m.cell.Masters], who, door.AnyMaster(who))
		if err != nil {
			m.Error(err)
			return
		}
		defer conn.Close()
		readers = append(readers, borgrpc.NewMasterServiceClient(conn))
	}
	served := make([]atomic.Int64, m.cell.Masters)
	began := time.Now()
	took, err := paced(ctx, readsPerS, func(n int) error {
		r, user := readers[n%len(readers)], m.cell.user
		job := fmt.Sprint("job-", tasks-n%max(tasks/readsJobTasks, 1)*readsJobTasks)
		var err error
		switch n / len(readers) % 3 {
		case 0:
			_, err = r.GetJob(m.Context(), &borgrpc.GetJobRequest{User: user, Name: job})
		case 1:
			_, err = r.ListTasks(m.Context(), &borgrpc.ListTasksRequest{User: user, Name: job, HasIndex: true, Index: uint32(n % readsJobTasks)})
		case 2:
			_, err = r.ListTasks(m.Context(), &borgrpc.ListTasksRequest{User: user, Name: job, Limit: readsPage})
		}
		if err == nil {
			served[n%len(served)].Add(1)
		}
		return err
	})
	if err != nil {
		m.Error(err)
		return
	}
	by := 0
	for i := range served {
		if served[i].Load()*100 >= int64(len(took)*readsShare) {
			by++
		}
	}
	m.figure(p99Ms(took), "reads", "p99_ms")
	m.figure(float64(len(took))/time.Since(began).Seconds(), "reads", "per_s")
	m.figure(float64(by), "reads", "served_by")
}

// list lists all tasks, page by page, again and again until ctx ends.
func (m *masterBench) list(ctx context.Context, part string, tasks int) {
	var waited atomic.Int64
	c := m.cell.clientOf(m.B, "lister", &waited)
	var all []time.Duration
	for ctx.Err() == nil {
		began := time.Now()
		resp, err := c.ListAllTasks(m.Context(), &borgrpc.ListTasksRequest{User: m.cell.user}, 0)
		if err != nil || len(resp.Tasks) != tasks {
			m.Errorf("%d of %d tasks are listed: %v", len(resp.GetTasks()), tasks, err)
			return
		}
		all = append(all, time.Since(began))
	}
	m.figure(slices.Sorted(slices.Values(all))[len(all)/2].Seconds(), part, "seconds")
	m.Logf("%d lists of %d tasks", len(all), tasks)
}
