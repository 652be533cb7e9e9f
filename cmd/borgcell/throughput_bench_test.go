package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime/debug"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"borg/fauxmaster/fleet"
	"borg/identity"
	"borg/proto/borgpb"
	"borg/proto/borgrpc"
	"borg/proto/door"
)

const (
	throughputMachines = 1_000
	// A batch of assignments, and how many of them wait for an answer: as a scheduler
	// process sends them in a rush.
	throughputBatch, throughputInFlight = 1_000, 4
	// Tasks of one job, and of all, that are assigned.
	throughputJobTasks, throughputTasks = 50_000, 200_000
	// Clients submit for so long before it counts, and then for so long.
	throughputWarm, throughputMeasure = 5 * time.Second, 10 * time.Second
)

// BenchmarkThroughput is what a cell of five masters does in a second, with TLS and with
// all logs synced on this machine's one disk: submits of many clients, each a user of
// his own with a connection of his own, or 64 of them a program of one user with one
// connection, and assignments of a scheduler, in batches.
func BenchmarkThroughput(b *testing.B) {
	machines := benchMachines(throughputMachines)
	for _, x := range []struct {
		name           string
		clients, users int
	}{
		{"submits", 64, 64}, {"submits_512", 512, 512}, {"submits_512_shared", 512, 8},
	} {
		b.Run(x.name, func(b *testing.B) {
			for range b.N {
				m := &masterBench{B: b, cell: fakeCell(b, 5, machines, fleet.Life{})}
				m.profiles()
				m.must(m.cell.Start)
				// Until the masters have all their connections to machines.
				time.Sleep(benchRest)
				m.submits(x.name, x.clients, x.users)
			}
		})
	}
	b.Run("assignments", func(b *testing.B) {
		for range b.N {
			// Tasks are slow to start, as in the paper: no report comes in between.
			m := &masterBench{B: b, cell: fakeCell(b, 5, machines, fleet.Life{StartDelay: time.Minute})}
			m.profiles()
			m.withoutScheduler()
			m.must(m.cell.StartMasters)
			s := &benchScheduler{masterBench: m}
			m.every("a master is followed", func(context.Context) error { return s.follow(0) })
			m.must(m.cell.StartFake)
			m.must(m.cell.addFake)
			s.assign()
		}
	})
}

// withoutScheduler has the masters start none: the benchmark is one.
func (m *masterBench) withoutScheduler() {
	before := m.cell.alter
	m.cell.alter = func(spec *processSpec) {
		if before != nil {
			before(spec)
		}
		if strings.HasPrefix(spec.Name, "master-") {
			spec.Args = append(spec.Args, "--no-scheduler")
		}
	}
}

// benchScheduler follows the elected master as a scheduler process does, and leaves the
// choice of places to the benchmark.
type benchScheduler struct {
	*masterBench
	mu sync.Mutex
	// Of the master that is elected. Guarded by mu.
	client borgrpc.SchedulingServiceClient
	// How often a master was followed. Guarded by mu.
	followed int
}

// follow begins to follow who is elected now, unless that was done since the failed
// time.
func (s *benchScheduler) follow(failed int) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.followed != failed {
		return nil
	}
	elected, err := s.cell.Elected(s.Context())
	if err != nil {
		return err
	}
	name := identity.Name{Cell: s.cell.Name, Role: identity.Scheduler, ID: strconv.Itoa(elected)}
	who, err := s.cell.authority.Source(name, time.Now(), identity.Life)
	if err != nil {
		return err
	}
	conn, err := door.Dial(s.cell.masterAddr(elected), who, door.AnyMaster(who))
	if err != nil {
		return err
	}
	client := borgrpc.NewSchedulingServiceClient(conn)
	ctx, cancel := context.WithCancel(context.Background())
	stream, err := client.Follow(ctx, &borgrpc.FollowRequest{Scheduler: "benchmark"})
	if err != nil {
		cancel()
		return errors.Join(err, conn.Close())
	}
	var following sync.WaitGroup
	following.Go(func() {
		// Who is no longer elected ends it; the next batch finds that out.
		for err := error(nil); err == nil; {
			_, err = stream.Recv()
		}
	})
	s.Cleanup(func() {
		cancel()
		following.Wait()
		conn.Close()
	})
	s.client = client
	s.followed++
	return nil
}

// assign gives all tasks of some jobs a machine, and waits until all replicas have
// applied that. It counts what the cell then says.
func (s *benchScheduler) assign() {
	s.Helper()
	var uids []string
	for i := range throughputTasks / throughputJobTasks {
		spec := sleepers(throughputJobTasks)
		spec.Task.Resources = &borgpb.Resources{CpuMilli: 1, MemBytes: 1 << 20}
		s.must(func(ctx context.Context) error {
			res, err := s.cell.submit(ctx, fmt.Sprint("many-", i), spec)
			uids = append(uids, res.GetUid())
			return err
		})
	}
	term := s.state().Term
	before, began := s.usage(), time.Now()
	s.must(func(ctx context.Context) error {
		batches, ctx := errgroup.WithContext(ctx)
		batches.SetLimit(throughputInFlight)
		for from := 0; from < throughputTasks && ctx.Err() == nil; from += throughputBatch {
			batches.Go(func() error { return s.assignBatch(ctx, uids, from) })
		}
		return batches.Wait()
	})
	took := time.Since(began)
	s.tell("assign", before, s.usage(), took)
	now := s.state()
	s.every("all replicas have applied them", func(ctx context.Context) error {
		for i := 1; i <= s.cell.Masters; i++ {
			if state, err := s.cell.Ask(ctx, i); err != nil || state.AppliedIndex < now.AppliedIndex {
				return errors.Join(err, fmt.Errorf("replica %d has applied %d of %d entries", i, state.GetAppliedIndex(), now.AppliedIndex))
			}
		}
		return nil
	})
	s.Logf("all replicas had applied them after %.2f s, the elected one after %.2f s", time.Since(began).Seconds(), took.Seconds())
	placed := 0
	s.must(func(ctx context.Context) error {
		resp, err := s.cell.client.ListJobs(ctx, &borgrpc.ListJobsRequest{User: s.cell.user})
		for _, j := range resp.GetJobs() {
			placed += int(j.Status.GetRunning())
		}
		return err
	})
	s.named(float64(placed)/took.Seconds(), "master.assignments_per_s")
	s.figure(float64(throughputTasks-placed), "assign", "without_a_machine")
	s.figure(float64(now.Term-term), "assign", "elections")
}

// assignBatch asks until somebody has answered. What he refuses is placed already, or
// its machine was called down because the load kept it from being polled.
func (s *benchScheduler) assignBatch(ctx context.Context, uids []string, from int) error {
	assign := &borgpb.Assign{}
	for i := from; i < from+throughputBatch; i++ {
		assign.Assignments = append(assign.Assignments, &borgpb.Assignment{
			Uid: uids[i/throughputJobTasks], Index: uint32(i % throughputJobTasks), Machine: s.cell.machineName(1 + i%s.cell.Machines), Version: 1,
		})
	}
	return until(ctx, fmt.Sprintf("tasks %d to %d are assigned", from, from+throughputBatch), func(ctx context.Context) error {
		s.mu.Lock()
		client, followed := s.client, s.followed
		s.mu.Unlock()
		resp, err := client.Assign(ctx, &borgrpc.AssignRequest{Assign: assign})
		if err != nil {
			return errors.Join(err, s.follow(followed))
		}
		if r := resp.GetResult().GetRefusal(); r != nil {
			return &finalError{fmt.Errorf("%v", r)}
		}
		return nil
	})
}

// submits has so many clients submit jobs of a task that no machine can hold, each one
// job after another, and counts those that were acknowledged. Clients of one user are
// goroutines of one program: they share what it has of a client.
func (m *masterBench) submits(part string, clients, users int) {
	m.Helper()
	// Each client stands for a process of his own, whose heap has some MiB before it is
	// collected for the first time, and at a few submits a second that is seldom. All in
	// one with as little room would be collected much more often, on the masters' processors.
	defer debug.SetGCPercent(debug.SetGCPercent(1000))
	var done, waited atomic.Int64
	ctx, stop := context.WithCancel(m.Context())
	var asking sync.WaitGroup
	spec := encodeSpec(m.B, unplaceable())
	for i := range users {
		name := fmt.Sprintf("user-%d-%d", users, i)
		c := m.cell.clientOf(m.B, name, &waited)
		for k := range clients / users {
			asking.Go(func() {
				for n := 0; ctx.Err() == nil; n++ {
					op := &borgpb.Op{Op: &borgpb.Op_SubmitJob{SubmitJob: &borgpb.SubmitJob{User: name, Name: fmt.Sprintf("job-%d-%d", k, n), Spec: spec}}}
					switch _, err := c.Mutate(ctx, op); {
					case err == nil:
						done.Add(1)
					case ctx.Err() == nil:
						m.Errorf("%s: %v", name, err)
						return
					}
				}
			})
		}
	}
	time.Sleep(throughputWarm)
	used, own, entries, count, began := m.usage(), m.ownSeconds(), m.state().AppliedIndex, done.Load(), time.Now()
	time.Sleep(throughputMeasure)
	count, took := done.Load()-count, time.Since(began)
	entries = m.state().AppliedIndex - entries
	m.tell(part, used, m.usage(), took)
	m.figure((m.ownSeconds()-own)/took.Seconds(), part, "clients_cores")
	m.figure(float64(count)/float64(entries), part, "per_entry")
	m.Logf("%d clients of %d users were asked to come back %d times", clients, users, waited.Load())
	m.named(float64(count)/took.Seconds(), "master."+part+"_per_s")
	stop()
	asking.Wait()
}

// ownSeconds is the processor time that the benchmark itself, which is all clients, has
// used so far.
func (m *masterBench) ownSeconds() float64 {
	m.Helper()
	own, err := spentBy(os.Getpid())
	if err != nil {
		m.Fatal(err)
	}
	return own.cpuSeconds
}
