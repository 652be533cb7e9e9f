package main

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"

	"borg/borgmaster/client"
	"borg/fauxmaster/fleet"
	"borg/identity"
	"borg/proto/borgpb"
	"borg/proto/borgrpc"
	"borg/proto/door"
)

const (
	// hostileEnv makes a process of this test program an attacker: what it holds is a
	// hostileOrder.
	hostileEnv = "BORG_TEST_HOSTILE"
	// Each attack lasts so long, unless BORG_BENCH_MINUTES says something else.
	hostileTime = 20 * time.Second
	// All attackers together have so many cores.
	hostileCores = 0.5
	// Calls that the flood wants to make in a second.
	hostilePerS = 20_000
	// Half-open connections are kept by so many clients, each with so many.
	hostileClients, hostileEach = 10, 400
	// Memory that one user may make a replica hold by what docs/limits.md states: requests
	// that no handler has taken, answers that are not read, changes that wait, half-open
	// connections of its address.
	hostileBudgetMiB = 32 + 64 + 8 + 48
	// Users who work meanwhile.
	hostileVictims = 4
	// Tasks of theirs that run all the while.
	hostileTasks = 50
)

type hostileOrder struct {
	Kind      string
	Cell      string
	Authority string
	Masters   []string
}

// hostileAttacks are what is tried: a program that asks for nothing and takes all the processor time of the group, which is what
// one machine for all does to others by itself; one user with a certificate, one task with a certificate and
// as a stranger, and a thousand connections that are slow or silent.
var hostileAttacks = []string{"burn", "user", "task", "conns"}

func hostileDuration(b *testing.B) time.Duration {
	text := os.Getenv("BORG_BENCH_MINUTES")
	if text == "" {
		return hostileTime
	}
	minutes, err := strconv.ParseFloat(text, 64)
	if err != nil || minutes <= 0 {
		b.Fatalf("BORG_BENCH_MINUTES is %q: want minutes, such as 10 or 0.5", text)
	}
	return time.Duration(minutes * float64(time.Minute))
}

// BenchmarkHostile is a cell of three masters that is attacked by processes in a control group of
// half a core: how much memory the replicas take, and how long changes of others take, each
// beside what it is in quiet. Whatever others have is there afterwards. BORG_BENCH_HOSTILE names
// those attacks that are made, with commas.
func BenchmarkHostile(b *testing.B) {
	took := hostileDuration(b)
	for range b.N {
		m := &masterBench{B: b, cell: fakeCell(b, 3, 50, fleet.Life{}), wait: 5 * time.Minute}
		m.profiles()
		m.must(m.cell.Start)
		group := newQuota(b)
		group.limit(b, hostileCores)
		for i := range hostileVictims {
			m.mustMutate(fmt.Sprint("victim-", i), &borgpb.SubmitJob{User: fmt.Sprint("victim-", i), Name: "runs", Spec: encodeSpec(b, sleepers(hostileTasks))})
		}
		m.every("the tasks of the victims run", m.allRun)
		begun := m.status().Begun
		quiet, rest := m.watched(took, nil)
		m.figure(quiet, "hostile", "quiet_p99_ms")
		m.figure(rest, "hostile", "rest_rss_mib")
		for _, kind := range hostileAttacks {
			if only := os.Getenv("BORG_BENCH_HOSTILE"); only != "" && !strings.Contains(","+only+",", ","+kind+",") {
				continue
			}
			term := m.state().Term
			p99, rss := m.watched(took, func() (stop func()) { return m.attack(group, kind) })
			m.figure(p99, "hostile", kind+".others_p99_ms")
			m.figure(p99/quiet, "hostile", kind+".others_p99_ratio")
			m.figure(rss, "hostile", kind+".rss_mib")
			m.figure(max(rss-hostileBudgetMiB, 0)/rest, "hostile", kind+".rss_over_budget_ratio")
			m.figure(float64(m.state().Term-term), "hostile", kind+".elections")
			m.every("the tasks of the victims run", m.allRun)
			m.figure(float64(m.status().Begun-begun), "hostile", kind+".restarted_tasks")
		}
		_, after := m.watched(min(took, time.Minute), nil)
		m.figure(after, "hostile", "after_rss_mib")
	}
}

// mustMutate submits a job in a user's name.
func (m *masterBench) mustMutate(user string, job *borgpb.SubmitJob) {
	m.Helper()
	var waited atomic.Int64
	c := m.cell.clientOf(m.B, user, &waited)
	m.must(func(ctx context.Context) error {
		_, err := c.Mutate(ctx, &borgpb.Op{Op: &borgpb.Op_SubmitJob{SubmitJob: job}})
		return err
	})
}

// allRun reports an error until each task of the victims runs.
func (m *masterBench) allRun(ctx context.Context) error {
	state, err := m.cell.client.GetCell(ctx)
	if err != nil {
		return err
	}
	if s, err := m.cell.FakeStatus(ctx); err != nil || int(s.Begun) < hostileVictims*hostileTasks {
		return fmt.Errorf("%d tasks have begun in term %d: %v", s.Begun, state.Term, err)
	}
	return nil
}

// watched has victims change something all the while, and returns within which time 99 of
// 100 changes were done, and the most memory that a replica had.
func (m *masterBench) watched(took time.Duration, attack func() (stop func())) (p99, rssMiB float64) {
	m.Helper()
	if attack != nil {
		defer attack()()
	}
	ctx, cancel := context.WithTimeout(m.Context(), took)
	defer cancel()
	var mu sync.Mutex
	var all []time.Duration
	var at sync.WaitGroup
	for i := range hostileVictims {
		at.Go(func() { m.victim(ctx, fmt.Sprint("victim-", i), &mu, &all) })
	}
	for tick := time.NewTicker(time.Second); ctx.Err() == nil; <-tick.C {
		for name, s := range m.usage() {
			if strings.HasPrefix(name, "master-") {
				rssMiB = max(rssMiB, s.residentBytes/(1<<20))
			}
		}
	}
	at.Wait()
	if len(all) == 0 {
		m.Fatal("no change of a victim was done")
	}
	m.Logf("%d changes of victims: half within %.1f ms, 99 of 100 within %.1f", len(all), p50Ms(all), p99Ms(all))
	return p99Ms(all), rssMiB
}

// victim submits a production job and ends it, again and again. An acknowledged change that is
// not there when the next one is made is an error.
func (m *masterBench) victim(ctx context.Context, user string, mu *sync.Mutex, all *[]time.Duration) {
	var waited atomic.Int64
	c := m.cell.clientOf(m.B, user, &waited)
	tick := time.NewTicker(floodEvery)
	defer tick.Stop()
	for n := 0; ; n++ {
		select {
		case <-ctx.Done():
			// The next attack finds nothing of this one.
			_, _ = c.Mutate(m.Context(), &borgpb.Op{Op: &borgpb.Op_KillJob{KillJob: &borgpb.KillJob{User: user, Name: "job"}}})
			return
		case <-tick.C:
		}
		op := &borgpb.Op{Op: &borgpb.Op_SubmitJob{SubmitJob: &borgpb.SubmitJob{User: user, Name: "job", Spec: encodeSpec(m.B, unplaceable())}}}
		if n%2 == 1 {
			op = &borgpb.Op{Op: &borgpb.Op_KillJob{KillJob: &borgpb.KillJob{User: user, Name: "job"}}}
		}
		began := time.Now()
		if _, err := c.Mutate(m.Context(), op); err != nil {
			m.Errorf("change %d of %s: %v", n, user, err)
			if refused := new(client.RefusedError); !errors.As(err, &refused) {
				return
			}
		}
		mu.Lock()
		*all = append(*all, time.Since(began))
		mu.Unlock()
	}
}

// attack starts an attacker in the control group.
func (m *masterBench) attack(group *quota, kind string) (stop func()) {
	m.Helper()
	order, err := json.Marshal(hostileOrder{Kind: kind, Cell: m.cell.Name, Authority: m.cell.authorityFile(), Masters: m.cell.masterAddrs()})
	if err != nil {
		m.Fatal(err)
	}
	a := m.helper(hostileEnv, string(order))
	if err := os.WriteFile(filepath.Join(group.dir, "cgroup.procs"), []byte(strconv.Itoa(a.cmd.Process.Pid)), 0); err != nil {
		m.Fatal(err)
	}
	// It begins when it is asked for the first time.
	a.counts()
	return func() {
		m.Logf("the attacker %s: %+v, %.1f s of processor", kind, a.counts(), a.cpuSeconds())
		a.stop()
	}
}

// hostileMain is an attacker, until nobody asks it any more.
func hostileMain(order string) error {
	var o hostileOrder
	if err := json.Unmarshal([]byte(order), &o); err != nil {
		return err
	}
	pem, err := identity.ReadSecret(o.Authority)
	if err != nil {
		return err
	}
	authority, err := identity.DecodeAuthority(o.Cell, pem, rand.Reader)
	if err != nil {
		return err
	}
	role, id := identity.User, "mallory"
	if o.Kind == "task" {
		role, id = identity.Task, "mallory/web/0"
	}
	who, err := authority.Source(identity.Name{Cell: o.Cell, Role: role, ID: id}, time.Now(), identity.Life)
	if err != nil {
		return err
	}
	h := &hostile{openFlood: openFlood{who: who}, addrs: o.Masters}
	ctx, stop := context.WithCancel(context.Background())
	defer h.at.Wait()
	defer stop()
	var once sync.Once
	return answers(func() (afarCounts, error) {
		once.Do(func() { h.start(ctx, o.Kind) })
		return afarCounts{h.offered(), h.made.Load(), h.done.Load(), h.refused.Load(), h.untold.Load(), h.failed.Load(), h.late.Load(), h.opened.Load()}, nil
	})
}

// hostile is one attacker.
type hostile struct {
	openFlood
	addrs []string
	// Connections that were opened.
	opened atomic.Int64
	at     sync.WaitGroup
}

func (h *hostile) start(ctx context.Context, kind string) {
	switch kind {
	case "user":
		h.begin(ctx, h.addrs, 32, hostilePerS, &h.at)
		h.unread(ctx)
	case "task":
		h.begin(ctx, h.addrs, 8, hostilePerS/4, &h.at)
		h.unread(ctx)
		h.halfOpen(ctx)
	case "burn":
		for range hostileClients {
			h.at.Go(func() {
				for ctx.Err() == nil {
				}
			})
		}
	case "conns":
		slow(ctx, h.addrs, h.who, &h.at)
	}
}

// unread begins as many watches as it may and reads nothing of them, nor of the pages of a list.
func (h *hostile) unread(ctx context.Context) {
	for _, addr := range h.addrs {
		h.at.Go(func() {
			// Connections are closed with ctx.
			conn, err := door.Dial(addr, h.who, door.AnyMaster(h.who), grpc.WithInitialWindowSize(64<<10), grpc.WithInitialConnWindowSize(64<<10))
			if err != nil {
				return
			}
			defer conn.Close()
			c := borgrpc.NewMasterServiceClient(conn)
			for n := 0; ctx.Err() == nil; n++ {
				// What is refused is tried again, as what is served.
				if n%2 == 0 {
					_, _ = borgrpc.NewWatchServiceClient(conn).Watch(ctx, &borgrpc.WatchRequest{})
				} else {
					_, _ = c.Events(ctx, &borgrpc.EventsRequest{Follow: true})
				}
				select {
				case <-ctx.Done():
				case <-time.After(20 * time.Millisecond):
				}
			}
		})
	}
}

// flight keeps what is written to it.
type flight struct {
	net.Conn
	wrote []byte
}

func (f *flight) Write(b []byte) (int, error) { f.wrote = append(f.wrote, b...); return len(b), nil }
func (f *flight) Read([]byte) (int, error)    { return 0, io.EOF }

// halfOpen opens connections without a certificate as fast as it can, says hello on each and
// keeps the last ones open.
func (h *hostile) halfOpen(ctx context.Context) {
	hello := new(flight)
	_ = tls.Client(hello, &tls.Config{InsecureSkipVerify: true, MinVersion: tls.VersionTLS13, NextProtos: []string{"h2"}}).Handshake()
	for i := range hostileClients {
		h.at.Go(func() {
			var held []net.Conn
			for n := i; ctx.Err() == nil; n++ {
				c, err := (&net.Dialer{Timeout: time.Second}).DialContext(ctx, "tcp", h.addrs[n%len(h.addrs)])
				if err != nil {
					continue
				}
				_, _ = c.Write(hello.wrote)
				h.opened.Add(1)
				if held = append(held, c); len(held) > hostileEach {
					held[0].Close()
					held = held[1:]
				}
			}
			for _, c := range held {
				c.Close()
			}
		})
	}
}
