package main

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"borg/borgmaster/client"
	"borg/fauxmaster/fleet"
	"borg/identity"
	"borg/proto/borgpb"
	"borg/proto/borgrpc"
	"borg/proto/door"
)

// member is somebody of the cell with a certificate of his own.
func (c *Cell) member(t testing.TB, name string) *identity.Source {
	t.Helper()
	s, err := c.authority.Source(identity.Name{Cell: c.Name, Role: identity.User, ID: name}, time.Now(), identity.Life)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// encodeSpec is a spec as an op carries it.
func encodeSpec(t testing.TB, spec proto.Message) []byte {
	raw, err := proto.Marshal(spec)
	if err != nil {
		t.Error(err)
	}
	return raw
}

// clientOf is the client library as a user of the cell has it. waited counts how often
// he was asked to come back later.
func (c *Cell) clientOf(t testing.TB, name string, waited *atomic.Int64) *client.Client {
	t.Helper()
	cl, err := client.New(client.Config{
		Masters: c.masterAddrs(), CellID: c.CellID, Identity: c.member(t, name),
		Waits: func(string, string, time.Duration) { waited.Add(1) },
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cl.Close() })
	return cl
}

// flooder asks all masters for changes, and heeds nothing that it is told.
type flooder struct {
	conns   []*grpc.ClientConn
	masters []borgrpc.MasterServiceClient
	user    string
	made    atomic.Int64
	// What came of it; untold are refusals that do not say when to come back.
	done, refused, untold, failed atomic.Int64
}

func newFlooder(t testing.TB, c *Cell, user string) *flooder {
	t.Helper()
	f, who := &flooder{user: user}, c.member(t, user)
	t.Cleanup(func() {
		for _, conn := range f.conns {
			conn.Close()
		}
	})
	for _, addr := range c.masterAddrs() {
		conn, err := door.Dial(addr, who, door.AnyMaster(who))
		if err != nil {
			t.Fatal(err)
		}
		f.conns = append(f.conns, conn)
		f.masters = append(f.masters, borgrpc.NewMasterServiceClient(conn))
	}
	return f
}

// ask kills a job that is not there, which is a change like any other.
func (f *flooder) ask(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	id, wallNs := client.NewRequestID(time.Now())
	_, err := f.masters[int(f.made.Add(1))%len(f.masters)].Mutate(ctx, &borgrpc.MutateRequest{Op: &borgpb.Op{
		RequestId: id, RequestWallNs: wallNs, Op: &borgpb.Op_KillJob{KillJob: &borgpb.KillJob{User: f.user, Name: "none"}},
	}})
	switch {
	case err == nil:
		f.done.Add(1)
	case status.Code(err) != codes.ResourceExhausted:
		f.failed.Add(1)
	case door.RetryAfter(err) <= 0:
		f.untold.Add(1)
	default:
		f.refused.Add(1)
	}
}

// TestFloodBesideQuiet: of two users one asks for far more than he may. He is refused
// with the time to come back, the other never, and nobody is elected anew.
func TestFloodBesideQuiet(t *testing.T) {
	alongside(t)
	c := fakeCell(t, 3, 10, fleet.Life{})
	c.alter = func(spec *processSpec) {
		if strings.HasPrefix(spec.Name, "master-") {
			spec.Args = append(spec.Args, "--user-writes", "100")
		}
	}
	if err := c.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	before, err := c.client.GetCell(shortly(t))
	if err != nil {
		t.Fatal(err)
	}
	f := newFlooder(t, c, "flood")
	ctx, stop := context.WithCancel(t.Context())
	var flooding sync.WaitGroup
	for range 64 {
		flooding.Go(func() {
			for ctx.Err() == nil {
				f.ask(ctx)
			}
		})
	}
	defer flooding.Wait()
	defer stop()
	var waited atomic.Int64
	quiet := c.clientOf(t, "quiet", &waited)
	// He asks for half of what he may: his rate is bounded like the other's.
	pace := time.NewTicker(20 * time.Millisecond)
	defer pace.Stop()
	for n := 0; n < 50 || f.refused.Load() == 0; n++ {
		<-pace.C
		op := &borgpb.Op{Op: &borgpb.Op_SubmitJob{SubmitJob: &borgpb.SubmitJob{User: "quiet", Name: fmt.Sprint("job-", n), Spec: encodeSpec(t, unplaceable())}}}
		if _, err := quiet.Mutate(shortly(t), op); err != nil {
			t.Fatal(err)
		}
	}
	after, err := c.client.GetCell(shortly(t))
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("flood: %d done, %d refused", f.done.Load(), f.refused.Load())
	if n := waited.Load(); n > 0 {
		t.Errorf("the quiet user was asked to come back %d times", n)
	}
	if n := f.untold.Load(); n > 0 {
		t.Errorf("%d refusals do not say when to come back", n)
	}
	if after.Term != before.Term {
		t.Errorf("term %d became %d", before.Term, after.Term)
	}
}

const (
	floodOthers  = 8
	floodEvery   = 50 * time.Millisecond
	floodMeasure = 12 * time.Second
	// What others change before does not count: they connect, to one master and then to
	// the elected one, all at the same moment.
	floodWarm = time.Second
	// Users who list tasks, each so many pages at once, and the tasks.
	readFloodUsers, readFloodEach, readFloodTasks = 16, 16, 20_000
	// So often something is written beside them and synced, to know what the disk does.
	floodSync  = 20 * time.Millisecond
	floodTasks = 1000
	floodSlow  = 1000
	// Connections of the flood to each master, which lets one caller have 1,024
	// (BORG_BENCH_FLOOD_CONNS: as many).
	floodConns = 256
)

func benchFloodConns() int { return benchSize("BORG_BENCH_FLOOD_CONNS", floodConns) }

// BenchmarkFlood is a cell of five masters: how long a change takes for others when
// all is quiet, and beside a user who asks for ten times what the cell does, a thousand
// tasks that crash again and again, and a thousand slow clients. BORG_BENCH_FLOOD names
// those that are there, of flood, crash and slow: which of them it is that others notice.
func BenchmarkFlood(b *testing.B) {
	parts := cmp.Or(os.Getenv("BORG_BENCH_FLOOD"), "flood,crash,slow")
	there := func(part string) bool { return slices.Contains(strings.Split(parts, ","), part) }
	for range b.N {
		m := &masterBench{B: b, cell: fakeCell(b, 5, 200, fleet.Life{RunTime: 2 * time.Second, FailPermille: 1000}), size: ""}
		m.profiles()
		m.must(m.cell.Start)
		time.Sleep(benchRest)
		_, idle, disk := m.others()
		m.figure(idle, "flood", "idle_p99_ms")
		m.figure(disk, "flood", "idle_disk_p99_ms")
		capacity := m.capacity()
		m.figure(capacity, "flood", "capacity_per_s")
		if there("crash") {
			m.storm()
		}
		perS := 0.0
		if there("flood") {
			perS = 10 * capacity
		}
		far := m.floodFromAfar(perS, there("slow"))
		time.Sleep(5 * time.Second)
		if perS > 0 {
			m.every("the flood has its connections", func(context.Context) error {
				if n := far.counts().Conns; n < int64(m.cell.Masters*benchFloodConns()) {
					return fmt.Errorf("it has %d", n)
				}
				return nil
			})
		}
		before, spent, used := far.counts(), far.cpuSeconds(), m.usage()
		state, polls := m.state(), m.status()
		missed := m.counting("borg_borgmaster_polls_total", labels{"result": {"missed"}})
		began := time.Now()
		waited, p99, disk := m.others()
		took := time.Since(began).Seconds()
		unreached := together(missed())
		after, now, ended := far.counts(), m.status(), m.state()
		spent = (far.cpuSeconds() - spent) / took
		m.tell("flood", used, m.usage(), time.Since(began))
		m.figure(spent, "flood", "flooders_cores")
		late := int64(0)
		for i, n := range now.Intervals {
			if i >= benchLongTenths {
				late += n - polls.Intervals[i]
			}
		}
		m.figure(p99, "flood", "others_p99_ms")
		m.figure(disk, "flood", "disk_p99_ms")
		m.figure(p99/idle, "flood", "others_p99_ratio")
		m.figure(float64(waited), "flood", "others_refused")
		// Calls that the flood wanted to make; those of them for which the masters read enough; and
		// what came of them in time. The rest had no answer.
		offered, told := float64(after.Made-before.Made), float64(after.Done+after.Refused-before.Done-before.Refused)
		m.figure(offered/took, "flood", "offered_per_s")
		m.figure(offered/took/capacity, "flood", "offered_ratio")
		m.figure(float64(after.Sent-before.Sent)/took, "flood", "sent_per_s")
		m.figure(float64(after.Done-before.Done)/took, "flood", "done_per_s")
		m.figure(float64(after.Refused-before.Refused)/took, "flood", "refused_per_s")
		m.figure((offered-told)/took, "flood", "unanswered_per_s")
		m.figure(float64(after.Late-before.Late)/took, "flood", "answered_late_per_s")
		m.figure(float64(after.Failed-before.Failed)/took, "flood", "failed_per_s")
		m.figure(float64(after.Untold), "flood", "refused_without_a_time")
		// As masters count, and what was late as the machines see it.
		m.figure(unreached, "flood", "polls_missed")
		m.figure(float64(late), "flood", "polls_late")
		m.figure(float64(ended.AppliedIndex-state.AppliedIndex)/took, "flood", "entries_per_s")
		m.figure(float64(ended.Term-state.Term), "flood", "elections")
		far.stop()
		if !there("flood") && !there("slow") {
			// Nothing was spent.
			continue
		}
		time.Sleep(5 * time.Second)
		burning := m.burnFromAfar(spent)
		_, burnt, _ := m.others()
		burning.stop()
		m.figure(burnt, "flood", "burnt_p99_ms")
		m.figure(p99/burnt, "flood", "others_p99_burnt_ratio")
	}
}

// BenchmarkReadFlood is a cell whose tasks many users list, each many times at once and
// again as soon as he has a page, and what others notice who change something.
func BenchmarkReadFlood(b *testing.B) {
	for range b.N {
		m := &masterBench{B: b, cell: fakeCell(b, 5, 200, fleet.Life{})}
		m.profiles()
		m.must(m.cell.Start)
		for i := range readFloodTasks / listPage {
			spec := unplaceable()
			spec.Tasks = listPage
			m.must(func(ctx context.Context) error {
				_, err := m.cell.submit(ctx, fmt.Sprint("waits-", i), spec)
				return err
			})
		}
		time.Sleep(benchRest)
		_, idle, _ := m.others()
		m.figure(idle, "readflood", "idle_p99_ms")
		far := m.listsFromAfar(readFloodUsers, readFloodEach)
		time.Sleep(5 * time.Second)
		before, used, state, began := far.counts(), m.usage(), m.state(), time.Now()
		waited, p99, _ := m.others()
		took := time.Since(began).Seconds()
		after, ended := far.counts(), m.state()
		m.tell("readflood", used, m.usage(), time.Since(began))
		m.figure(p99, "readflood", "others_p99_ms")
		m.figure(p99/idle, "readflood", "others_p99_ratio")
		m.figure(float64(waited), "readflood", "others_refused")
		m.figure(float64(after.Done-before.Done)/took, "readflood", "pages_per_s")
		m.figure(float64(after.Refused-before.Refused)/took, "readflood", "refused_per_s")
		m.figure(float64(ended.Term-state.Term), "readflood", "elections")
		far.stop()
	}
}

// others has a few users change something now and then, and says how often they were
// asked to come back, and the time within which 99 of 100 changes were done. diskMs is
// the same of syncs of a file beside the masters' logs: one that is late makes them all
// late, whoever asks.
func (m *masterBench) others() (waited int64, changesMs, diskMs float64) {
	m.Helper()
	var mu sync.Mutex
	var all, syncs []time.Duration
	var asking sync.WaitGroup
	var back atomic.Int64
	ctx, cancel := context.WithTimeout(m.Context(), floodWarm+floodMeasure)
	defer cancel()
	counts := time.Now().Add(floodWarm)
	asking.Go(func() { syncs = m.syncs(ctx) })
	for i := range floodOthers {
		name := fmt.Sprint("other-", i)
		c := m.cell.clientOf(m.B, name, &back)
		asking.Go(func() {
			tick := time.NewTicker(floodEvery)
			defer tick.Stop()
			for n := 0; ; n++ {
				select {
				case <-ctx.Done():
					return
				case <-tick.C:
				}
				op := &borgpb.Op{Op: &borgpb.Op_SubmitJob{SubmitJob: &borgpb.SubmitJob{User: name, Name: "job", Spec: encodeSpec(m.B, unplaceable())}}}
				if n%2 == 1 {
					op = &borgpb.Op{Op: &borgpb.Op_KillJob{KillJob: &borgpb.KillJob{User: name, Name: "job"}}}
				}
				began := time.Now()
				// That a job is there already from before is an answer too.
				_, err := c.Mutate(m.Context(), op)
				if refused := new(client.RefusedError); err != nil && !errors.As(err, &refused) {
					m.Errorf("%s: %v", name, err)
					return
				}
				if began.Before(counts) {
					continue
				}
				mu.Lock()
				all = append(all, time.Since(began))
				mu.Unlock()
			}
		})
	}
	asking.Wait()
	if len(all) == 0 || len(syncs) == 0 {
		m.Fatal("nothing was measured")
	}
	m.Logf("%d changes of others: half within %.1f ms, 99 of 100 within %.1f, all within %.1f; the longest sync took %.1f", len(all), p50Ms(all), p99Ms(all), inMs(slices.Max(all)), inMs(slices.Max(syncs)))
	return back.Load(), p99Ms(all), p99Ms(syncs)
}

// syncs writes and syncs a file of the masters' disk now and then, until ctx ends, and
// says how long that took.
func (m *masterBench) syncs(ctx context.Context) (took []time.Duration) {
	f, err := os.Create(filepath.Join(m.cell.dir, "synced"))
	if err != nil {
		m.Error(err)
		return nil
	}
	defer f.Close()
	for tick := time.NewTicker(floodSync); ; {
		began := time.Now()
		if _, err := f.WriteAt(make([]byte, 512), int64(512*len(took))); err != nil {
			m.Error(err)
		}
		if err := f.Sync(); err != nil {
			m.Error(err)
		}
		took = append(took, time.Since(began))
		select {
		case <-ctx.Done():
			tick.Stop()
			return took
		case <-tick.C:
		}
	}
}

// capacity is how many changes a second one user gets done who asks with 128 at once.
func (m *masterBench) capacity() float64 {
	f := newFlooder(m.B, m.cell, "capacity")
	ctx, cancel := context.WithTimeout(m.Context(), 5*time.Second)
	defer cancel()
	began := time.Now()
	var asking sync.WaitGroup
	for range 128 {
		asking.Go(func() {
			for ctx.Err() == nil {
				f.ask(ctx)
			}
		})
	}
	asking.Wait()
	return float64(f.done.Load()) / time.Since(began).Seconds()
}

// storm has a job of which each task crashes, again and again.
func (m *masterBench) storm() {
	spec := sleepers(floodTasks)
	spec.Kind, spec.MaxFailures = borgpb.JobKind_JOB_KIND_BATCH, 1_000_000
	spec.Task.Resources = &borgpb.Resources{CpuMilli: 10, MemBytes: 16 << 20}
	m.must(func(ctx context.Context) error {
		_, err := m.cell.submit(ctx, "storm", spec)
		return err
	})
}

// slow are clients that say nothing, a hello byte by byte, or nothing after it. Who is
// hung up on comes again.
func slow(ctx context.Context, addrs []string, who *identity.Source, running *sync.WaitGroup) {
	for n := range floodSlow {
		running.Go(func() {
			for ctx.Err() == nil {
				slowOnce(ctx, n, addrs[n%len(addrs)], who)
				select {
				case <-ctx.Done():
				case <-time.After(time.Second):
				}
			}
		})
	}
}

func slowOnce(ctx context.Context, n int, addr string, who *identity.Source) {
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", addr)
	if err != nil {
		return
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { conn.Close() })()
	switch n % 3 {
	case 0:
		_, _ = conn.Read(make([]byte, 1))
	case 1:
		for _, hello := 0, []byte{22}; err == nil; hello = []byte{0} {
			if _, err = conn.Write(hello); err == nil {
				select {
				case <-ctx.Done():
					return
				case <-time.After(time.Second):
				}
			}
		}
	case 2:
		end := tls.Client(conn, who.ClientTLS(door.AnyMaster(who)))
		if end.HandshakeContext(ctx) == nil {
			// It keeps the connection by the preface, and reads nothing.
			_, _ = end.Write([]byte("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00"))
			<-ctx.Done()
		}
	}
}
