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
	readsPage, listPage = 50, 1000
	// How long changes are made alone, in turn with lists.
	listAlone = 3 * time.Second
	// A replica serves reads if it answers at least so many percent of them.
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
		made, answered := 0, m.counting("borg_borgmaster_rpc_seconds", labels{"method": {"GetJob", "ListTasks"}, "code": {"OK"}})
		beside := m.writesBeside(func(ctx context.Context) { made = m.reads(ctx, tasks) })
		m.servedBy(made, answered())
		m.figure(p99Ms(alone), "reads", "writes_alone_p99_ms")
		m.figure(p99Ms(beside), "reads", "writes_p99_ms")
		m.lists(fmt.Sprintf("list_%dk", tasks/1000), tasks)
	}
}

func inMs(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

func p50Ms(all []time.Duration) float64 { return inMs(slices.Sorted(slices.Values(all))[len(all)/2]) }

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
	c := m.writer()
	ctx, cancel := context.WithTimeout(m.Context(), readsMeasure)
	defer cancel()
	var others sync.WaitGroup
	if other != nil {
		others.Go(func() { other(ctx) })
	}
	took := m.writes(ctx, c)
	others.Wait()
	return took
}

// writesDuring has changes made until something is done.
func (m *masterBench) writesDuring(c *client.Client, do func()) []time.Duration {
	m.Helper()
	ctx, cancel := context.WithCancel(m.Context())
	var doing sync.WaitGroup
	defer doing.Wait()
	doing.Go(func() {
		defer cancel()
		do()
	})
	return m.writes(ctx, c)
}

// writer is who makes changes, and has made the first ones.
func (m *masterBench) writer() *client.Client {
	m.Helper()
	var waited atomic.Int64
	c := m.cell.clientOf(m.B, "writer", &waited)
	m.Cleanup(func() {
		if n := waited.Load(); n > 0 {
			m.Errorf("changes were made to wait %d times", n)
		}
	})
	m.must(func(ctx context.Context) error {
		ctx, cancel := context.WithTimeout(ctx, time.Second)
		defer cancel()
		m.writes(ctx, c)
		return nil
	})
	return c
}

// writes makes changes until ctx ends, and says how long each took.
func (m *masterBench) writes(ctx context.Context, c *client.Client) []time.Duration {
	m.Helper()
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
	if err != nil {
		m.Fatal(err)
	}
	m.Logf("%d changes: half within %v ms, 99 of 100 within %v ms, all within %v", len(took), p50Ms(took), p99Ms(took), slices.Max(took))
	return took
}

// servedBy tells how many replicas answered their part of so many reads. One that passes a
// read on counts it, as does the one that then answers.
func (m *masterBench) servedBy(made int, answered []float64) {
	m.Helper()
	m.Logf("%d reads; replicas answered %v", made, answered)
	by := 0
	for _, n := range answered {
		if n*100 >= float64(made*readsShare) {
			by++
		}
	}
	m.figure(float64(by), "reads", "served_by")
	m.figure(together(answered)-float64(made), "reads", "passed_on")
}

// reads asks all replicas in turn for jobs, tasks and pages of tasks, and says how often.
func (m *masterBench) reads(ctx context.Context, tasks int) (made int) {
	// Readers are users of their own, with a connection each.
	var readers []borgrpc.MasterServiceClient
	for i := range readsReaders {
		who := m.cell.member(m.B, fmt.Sprint("reader-", i))
		conn, err := door.Dial(m.cell.masterAddrs()[i%m.cell.Masters], who, door.AnyMaster(who))
		if err != nil {
			m.Error(err)
			return 0
		}
		defer conn.Close()
		readers = append(readers, borgrpc.NewMasterServiceClient(conn))
	}
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
		return err
	})
	if err != nil {
		m.Error(err)
		return 0
	}
	m.figure(p99Ms(took), "reads", "p99_ms")
	m.figure(float64(len(took))/time.Since(began).Seconds(), "reads", "per_s")
	return len(took)
}

// listTurns are what changes are made beside in each turn of lists.
var listTurns = []string{"alone", "beside", "burnt"}

// drawn are so many of them, each as likely.
func drawn(r *rand.Rand, all []time.Duration, n int) []time.Duration {
	r.Shuffle(len(all), func(i, k int) { all[i], all[k] = all[k], all[i] })
	return all[:n]
}

// lists has all tasks listed by somebody at another machine, once at each replica, and
// tells what that does to changes meanwhile: against none of it, and against a program that
// takes the processors as the list does and asks for nothing. They take turns, as the
// machine and its disk are not the same from one minute to the next; of each turn as many
// changes of each count, drawn from those that are more, as of more the largest is larger.
func (m *masterBench) lists(part string, tasks int) {
	m.Helper()
	c := m.writer()
	found := map[string][]time.Duration{}
	var took []time.Duration
	var stand standIn
	draw := rand.New(rand.NewPCG(1, 15))
	for i := 1; i <= m.cell.Masters; i++ {
		turn := map[string][]time.Duration{}
		turn["alone"] = m.writesDuring(c, func() { time.Sleep(listAlone) })
		far := m.listFromAfar(i)
		far.counts()
		name := m.cell.masterName(i)
		served, read, began := m.usage()[name].cpuSeconds, far.cpuSeconds(), time.Now()
		turn["beside"] = m.writesDuring(c, func() {
			if listed := far.counts().Made; int(listed) != tasks {
				m.Errorf("%d of %d tasks are listed", listed, tasks)
			}
		})
		took = append(took, time.Since(began))
		stand.Pages = (tasks + listPage - 1) / listPage
		stand.ServeNs = int64((m.usage()[name].cpuSeconds - served) * 1e9 / float64(stand.Pages))
		stand.ReadNs = int64((far.cpuSeconds() - read) * 1e9 / float64(stand.Pages))
		far.stop()
		stands := m.fromAfar(afarOrder{Stand: &stand})
		turn["burnt"] = m.writesDuring(c, func() { stands.counts() })
		stands.stop()
		fewest := min(len(turn["alone"]), len(turn["beside"]), len(turn["burnt"]))
		for _, what := range listTurns {
			found[what] = append(found[what], drawn(draw, turn[what], fewest)...)
		}
	}
	m.Logf("%d changes of each", len(found["alone"]))
	m.figure(slices.Sorted(slices.Values(took))[len(took)/2].Seconds(), part, "seconds")
	m.figure(float64(stand.Pages)*float64(stand.ServeNs)/1e9, part, "replica_cpu_seconds")
	m.figure(float64(stand.Pages)*float64(stand.ReadNs)/1e9, part, "client_cpu_seconds")
	for _, what := range listTurns {
		all := found[what]
		m.figure(p50Ms(all), part, "commit_"+what+"_p50_ms")
		m.figure(p99Ms(all), part, "commit_"+what+"_p99_ms")
		m.figure(inMs(slices.Max(all)), part, "commit_"+what+"_most_ms")
	}
	m.figure(inMs(slices.Max(found["beside"])-slices.Max(found["alone"])), part, "commit_delay_ms")
	m.figure(inMs(slices.Max(found["burnt"])-slices.Max(found["alone"])), part, "commit_delay_burnt_ms")
}
