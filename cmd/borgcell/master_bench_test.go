package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"borg/fauxmaster/fleet"
	"borg/proto/borgpb"
	"borg/proto/borgrpc"
)

const (
	benchTasksEach = 15
	benchJobTasks  = 1000
	// How often the pretended machines, and the cell, are looked at meanwhile.
	benchLook = 100 * time.Millisecond
	// How often it is told how far the cell is.
	benchTell = 5 * time.Second
	// Bound on each part, unless the cell is to be slow: the machine may be at something else.
	benchWait = 4 * time.Minute
	// The cell rests for so long before it is measured at rest, for so long.
	benchRest, benchSteady = 10 * time.Second, 20 * time.Second
	// Intervals between polls that are longer count as too long, in tenths of a second.
	benchLongTenths = 40
)

// BenchmarkMaster is a whole cell of five masters and ten thousand pretended
// machines on this one (BORG_BENCH_MACHINES: as many), through its life: filled,
// at rest, without a follower, without its elected master.
func BenchmarkMaster(b *testing.B) {
	for range b.N {
		m := newMasterBench(b)
		m.start()
		m.fillAll()
		// For a while after so many changes masters make the connections that stand by.
		time.Sleep(coverageRest)
		m.steady()
		m.loseFollower()
		time.Sleep(coverageRest)
		m.loseElected()
	}
}

// masterBench is a cell that is measured. Figures are called <prefix><part><size>.*.
type masterBench struct {
	*testing.B
	cell *Cell
	size string
	// Of the names of figures.
	prefix string
	// Of each figure the largest value so far: what is done several times is as slow as
	// the slowest of them.
	most map[string]float64
	// Bound on each part.
	wait time.Duration
}

// benchMachines is how many machines a benchmark has: BORG_BENCH_MACHINES, or as many.
func benchMachines(machines int) int { return benchSize("BORG_BENCH_MACHINES", machines) }

func benchSize(variable string, otherwise int) int {
	if n, err := strconv.Atoi(os.Getenv(variable)); err == nil && n > 0 {
		return n
	}
	return otherwise
}

func newMasterBench(b *testing.B) *masterBench {
	machines := benchMachines(10_000)
	m := &masterBench{B: b, cell: fakeCell(b, 5, machines, fleet.Life{}), size: strconv.Itoa(machines), wait: benchWait, prefix: "master."}
	if machines%1000 == 0 {
		m.size = fmt.Sprintf("%dk", machines/1000)
	}
	m.profiles()
	return m
}

func (m *masterBench) figure(value float64, part, what string) {
	m.named(value, m.prefix+part+m.size+"."+what)
}

func (m *masterBench) named(value float64, name string) {
	m.Logf("%s %.4g", name, value)
	if m.most == nil {
		m.most = map[string]float64{}
	}
	if most, ok := m.most[name]; !ok || value > most {
		m.most[name] = value
		m.ReportMetric(value, name)
	}
}

// must bounds a part, and ends the benchmark when it fails.
func (m *masterBench) must(part func(ctx context.Context) error) {
	m.Helper()
	ctx, cancel := context.WithTimeout(m.Context(), m.wait)
	defer cancel()
	if err := part(ctx); err != nil {
		m.Fatal(err)
	}
}

// every calls f now and then until it returns nil.
func (m *masterBench) every(what string, f func(ctx context.Context) error) {
	m.Helper()
	m.must(func(ctx context.Context) error {
		ticker := time.NewTicker(benchLook)
		defer ticker.Stop()
		for {
			err := f(ctx)
			if err == nil {
				return nil
			}
			select {
			case <-ctx.Done():
				return fmt.Errorf("waited until %s: %w", what, err)
			case <-ticker.C:
			}
		}
	})
}

// profiles has the masters serve profiles on BORG_BENCH_PPROF and the ports after it.
func (m *masterBench) profiles() {
	first, err := strconv.Atoi(os.Getenv("BORG_BENCH_PPROF"))
	if err != nil {
		return
	}
	m.cell.alter = func(spec *processSpec) {
		if n, ok := strings.CutPrefix(spec.Name, "master-"); ok {
			i, _ := strconv.Atoi(n)
			spec.Args = append(spec.Args, "--pprof", fmt.Sprintf("127.0.0.1:%d", first+i))
		}
	}
}

func (m *masterBench) start() {
	began := time.Now()
	m.must(m.cell.Start)
	m.figure(time.Since(began).Seconds(), "start", "seconds")
}

// fillAll gives each machine as many tasks as a real cell's have, in jobs of all bands.
func (m *masterBench) fillAll() (took time.Duration) {
	m.Helper()
	return m.fill(m.cell.Machines*benchTasksEach, benchJobTasks, func(spec *borgpb.JobSpec, r *rand.Rand) {
		cpuMilli := []int64{500, 1000, 1500, 2000, 3000}[r.IntN(5)]
		spec.Task.Resources = &borgpb.Resources{CpuMilli: cpuMilli, MemBytes: cpuMilli << 20 * 3}
		spec.Priority = []int32{25, 110, 200}[r.IntN(3)]
	})
}

// fill submits jobs, drawn one by one, and waits until all their tasks run, as the cell
// knows.
func (m *masterBench) fill(tasks, jobTasks int, draw func(*borgpb.JobSpec, *rand.Rand)) (took time.Duration) {
	r := rand.New(rand.NewPCG(1, 15))
	before, began := m.usage(), time.Now()
	for left := tasks; left > 0; left -= jobTasks {
		spec := sleepers(min(left, jobTasks))
		draw(spec, r)
		m.must(func(ctx context.Context) error {
			_, err := m.cell.submit(ctx, fmt.Sprintf("job-%d", left), spec)
			return err
		})
	}
	submitted := time.Since(began)
	told := began
	m.every("all tasks run", func(ctx context.Context) error {
		resp, err := m.cell.client.ListJobs(ctx, &borgrpc.ListJobsRequest{})
		n, placed := 0, 0
		for _, j := range resp.GetJobs() {
			n, placed = n+int(j.Status.GetStarted()), placed+int(j.Status.GetRunning())
		}
		if err == nil && n < tasks {
			err = fmt.Errorf("%d of %d tasks run, %d are placed", n, tasks, placed)
			if now := time.Now(); now.Sub(told) > benchTell {
				told = now
				m.Logf("after %.1f s: %v", now.Sub(began).Seconds(), err)
			}
		}
		return err
	})
	took = time.Since(began)
	m.Logf("submitted after %.1f s, all run after %.1f s", submitted.Seconds(), took.Seconds())
	m.figure(took.Seconds(), "fill", "seconds")
	m.tell("fill", before, m.usage(), took)
	return took
}

// steady measures the cell at rest.
func (m *masterBench) steady() {
	time.Sleep(benchRest)
	polls, state, elected := m.status(), m.state(), m.elected()
	fromMasters, fromBorglets := m.counting(receivedBytes, labels{"from": {"master"}}), m.counting(receivedBytes, labels{"from": {"borglet"}})
	before, began := m.usage(), time.Now()
	time.Sleep(benchSteady)
	took := time.Since(began)
	m.tell("steady", before, m.usage(), took)
	now := m.status()
	inbound, polled := fromMasters()[elected-1]/time.Since(began).Seconds(), fromBorglets()[elected-1]/time.Since(began).Seconds()
	all, long := int64(0), int64(0)
	for i, n := range now.Intervals {
		n -= polls.Intervals[i]
		all += n
		if i >= benchLongTenths {
			long += n
		}
	}
	if all == 0 {
		m.Fatalf("no machine was polled within %v", took)
	}
	m.figure(float64(all)/took.Seconds(), "steady", "polls_per_s")
	m.figure(100*float64(all-long)/float64(all), "steady", "intervals_below_4s_percent")
	ended := m.state()
	m.figure(float64(ended.AppliedIndex-state.AppliedIndex), "steady", "log_entries")
	m.shares(now)
	// What all machines would say if each answer held the whole state and what copies use, as
	// without link shards the elected master would hear it.
	each := float64(all) / took.Seconds() / float64(now.Machines)
	states, full := each*float64(now.StateBytes), each*float64(now.StateBytes+now.UsageBytes)
	m.Logf("a whole report has %.0f bytes of state and %.0f of what copies use", float64(now.StateBytes)/float64(now.Machines), float64(now.UsageBytes)/float64(now.Machines))
	if ended.Term != state.Term {
		m.Logf("another master was elected meanwhile: what the elected one read is not known")
		return
	}
	m.figure(full, "steady", "full_reports_bytes_per_s")
	m.figure(inbound, "steady", "leader_inbound_bytes_per_s")
	m.figure(100*inbound/full, "steady", "leader_inbound_percent_of_full")
	m.figure(100*inbound/states, "steady", "leader_inbound_percent_of_states")
	// Of its own share, as one shard of several.
	m.figure(polled, "steady", "leader_polls_bytes_per_s")
	m.figure(100*polled/full, "steady", "leader_polls_percent_of_full")
}

// receivedBytes is what masters count of what they read, by who has sent it.
const receivedBytes = "borg_borgmaster_received_bytes_total"

// shares tells how far the largest and the smallest share is from an equal one.
func (m *masterBench) shares(s fleet.Status) {
	var sizes []int
	for i := 1; i <= m.cell.Masters; i++ {
		sizes = append(sizes, s.ByReplica[uint64(i)])
	}
	percent := func(n int) float64 { return 100 * float64(n) / float64(s.Machines) }
	m.figure(percent(slices.Min(sizes)), "steady", "least_share_percent")
	m.figure(percent(slices.Max(sizes)), "steady", "most_share_percent")
}

// loseFollower kills a follower, and sees how long its machines are polled by nobody.
func (m *masterBench) loseFollower() {
	elected := m.elected()
	dead := elected%m.cell.Masters + 1
	m.covered(dead, m.kill(dead), "coverage", "seconds")
	m.bring(dead)
}

// covered waits until the machines of a replica are polled by others, and tells how
// long that took.
func (m *masterBench) covered(replica int, since time.Time, part, what string) (took time.Duration) {
	m.Helper()
	left := -1
	m.every("others poll the machines of that replica", func(ctx context.Context) error {
		s, err := m.cell.FakeStatus(ctx)
		n := s.ByReplica[uint64(replica)]
		if err == nil && n > 0 {
			err = fmt.Errorf("%d machines were polled last by replica %d", n, replica)
		}
		if n != left {
			left = n
			m.Logf("%.2f s: %d machines were polled last by the replica that is gone", time.Since(since).Seconds(), n)
		}
		return err
	})
	took = time.Since(since)
	m.figure(took.Seconds(), part, what)
	return took
}

// loseElected kills the elected master, and sees how long nothing is written, its own
// machines are polled by nobody, and not all machines were polled by who follows its
// successor.
func (m *masterBench) loseElected() {
	term := m.state().Term
	elected := m.elected()
	killed := m.kill(elected)
	written := make(chan time.Duration, 1)
	go func() {
		ctx, cancel := context.WithTimeout(m.Context(), benchWait)
		defer cancel()
		if _, err := m.cell.submit(ctx, fmt.Sprint("after-term-", term), unplaceable()); err != nil {
			m.Errorf("submit after the kill: %v", err)
		}
		written <- time.Since(killed)
	}()
	m.covered(elected, killed, "elect", "coverage_seconds")
	m.every("all machines were polled in a later term", func(ctx context.Context) error {
		s, err := m.cell.FakeStatus(ctx)
		polled := 0
		for t, n := range s.ByTerm {
			if t > term {
				polled += n
			}
		}
		m.Logf("%.2f s: %d machines were polled in a later term", time.Since(killed).Seconds(), polled)
		if err == nil && polled < s.Machines {
			err = fmt.Errorf("%d of %d machines", polled, s.Machines)
		}
		return err
	})
	m.figure(time.Since(killed).Seconds(), "elect", "round_seconds")
	m.figure((<-written).Seconds(), "elect", "ready_seconds")
	m.bring(elected)
}

func (m *masterBench) kill(i int) (killed time.Time) {
	m.Helper()
	killed = time.Now()
	if err := m.cell.Kill(m.cell.masterName(i)); err != nil {
		m.Fatal(err)
	}
	return killed
}

// bring starts a master again and waits until it polls its share.
func (m *masterBench) bring(i int) {
	m.Helper()
	m.must(func(ctx context.Context) error { return m.cell.StartMaster(ctx, i) })
	m.every("it polls its share", func(ctx context.Context) error { return m.polls(ctx, i) })
}

// polls says so if a replica does not poll its share.
func (m *masterBench) polls(ctx context.Context, i int) error {
	s, err := m.cell.FakeStatus(ctx)
	if n := s.ByReplica[uint64(i)]; err == nil && n < s.Machines/m.cell.Masters*9/10 {
		err = fmt.Errorf("replica %d polls %d machines", i, n)
	}
	return err
}

func (m *masterBench) elected() (elected int) {
	m.Helper()
	m.must(func(ctx context.Context) (err error) {
		elected, err = m.cell.Elected(ctx)
		return err
	})
	return elected
}

func (m *masterBench) state() (state *borgrpc.GetCellResponse) {
	m.Helper()
	m.must(func(ctx context.Context) (err error) {
		state, err = m.cell.client.GetCell(ctx)
		return err
	})
	return state
}

func (m *masterBench) status() (s fleet.Status) {
	m.Helper()
	m.must(func(ctx context.Context) (err error) {
		s, err = m.cell.FakeStatus(ctx)
		return err
	})
	return s
}

// spent is what a process has used so far.
type spent struct{ cpuSeconds, residentBytes float64 }

// usage is what each process of the cell has used so far, schedulers among them.
func (m *masterBench) usage() map[string]spent {
	m.Helper()
	found, err := m.cell.marks().find()
	if err != nil {
		m.Fatal(err)
	}
	all := map[string]spent{}
	for _, p := range found {
		s, err := spentBy(p.PID)
		if err != nil {
			continue
		}
		name := "scheduler"
		for _, known := range m.cell.Processes() {
			if m.cell.PID(known) == p.PID {
				name = known
			}
		}
		sum := all[name]
		all[name] = spent{sum.cpuSeconds + s.cpuSeconds, sum.residentBytes + s.residentBytes}
	}
	return all
}

// ticksPerSecond is the unit of times in /proc, the same on every Linux.
const ticksPerSecond = 100

func spentBy(pid int) (s spent, err error) {
	dir := filepath.Join("/proc", strconv.Itoa(pid))
	stat, err := os.ReadFile(filepath.Join(dir, "stat"))
	if err != nil {
		return s, err
	}
	// The second field may hold spaces; of what follows, user and system time are
	// the 12th and 13th, the pages in memory the 22nd.
	_, rest, ok := strings.Cut(string(stat), ") ")
	fields := strings.Fields(rest)
	if !ok || len(fields) < 22 {
		return s, fmt.Errorf("read %s/stat: %q", dir, stat)
	}
	var n [3]float64
	for i, at := range []int{11, 12, 21} {
		if n[i], err = strconv.ParseFloat(fields[at], 64); err != nil {
			return s, err
		}
	}
	return spent{(n[0] + n[1]) / ticksPerSecond, n[2] * float64(os.Getpagesize())}, nil
}

// tell tells what the processes used meanwhile: the elected master, the follower
// that used most, and the others.
func (m *masterBench) tell(part string, before, now map[string]spent, took time.Duration) {
	leader := m.cell.masterName(m.elected())
	var followers, followersMem, machines, machinesMem float64
	for _, name := range m.cell.Processes() {
		cores := (now[name].cpuSeconds - before[name].cpuSeconds) / took.Seconds()
		m.Logf("%s: %s uses %.3f cores and has %.0f MiB", part, name, cores, now[name].residentBytes/(1<<20))
		switch {
		case name == leader:
			m.figure(cores, part, "leader_cores")
			m.figure(now[name].residentBytes/(1<<20), part, "leader_rss_mib")
		case strings.HasPrefix(name, "master-"):
			followers, followersMem = max(followers, cores), max(followersMem, now[name].residentBytes)
		default:
			machines, machinesMem = machines+cores, machinesMem+now[name].residentBytes
		}
	}
	m.figure(machines, part, "machines_cores")
	m.figure(machinesMem/(1<<20), part, "machines_rss_mib")
	m.figure(followers, part, "follower_cores")
	m.figure(followersMem/(1<<20), part, "follower_rss_mib")
	const scheduler = "scheduler"
	m.figure((now[scheduler].cpuSeconds-before[scheduler].cpuSeconds)/took.Seconds(), part, "scheduler_cores")
	m.figure(now[scheduler].residentBytes/(1<<20), part, "scheduler_rss_mib")
}
