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
	// hostileEnv is the variable that makes a process of this test program an attacker. It
	// holds a hostileOrder.
	hostileEnv = "BORG_TEST_HOSTILE"
	// Duration of an attack, unless BORG_BENCH_MINUTES is set.
	hostileTime = 20 * time.Second
	// Cores of the attackers' control group.
	hostileCores = 0.5
	// Calls a second that the flood tries to make.
	hostilePerS = 20_000
	// Clients that keep half-open connections, and connections of each.
	hostileClients, hostileEach = 10, 400
	// Memory that docs/limits.md lets one user take of a replica, in MiB: requests that no
	// handler has taken, unread answers, queued changes and half-open connections of its
	// address.
	hostileBudgetMiB = 32 + 64 + 8 + 48
	// Users who make changes during the attack.
	hostileVictims = 4
	// Tasks of each victim, which should run on.
	hostileTasks = 50
	// Bytes of each master's disk.
	hostileDisk = 1 << 30
)

type hostileOrder struct {
	Kind      string
	Cell      string
	Authority string
	Masters   []string
}

// hostileAttacks are the kinds of attack: a program that only computes, which shows what a shared
// machine does to others by itself; a user with a certificate; a task with a certificate
// and without one; and a thousand connections that are slow or silent.
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

// BenchmarkHostile attacks a cell of three masters from processes in a control group of half a
// core. It measures the memory of the replicas and how long other users' changes take, both
// relative to the quiet cell, elections, and tasks of others that restarted. Each master has a file
// system of its own, as it has on a machine of its own: on one, each waits for the commits of the
// others' journals. BORG_BENCH_HOSTILE
// lists the attacks to make, separated by commas; all if empty.
func BenchmarkHostile(b *testing.B) {
	took := hostileDuration(b)
	for range b.N {
		own := newDisks(b)
		m := &masterBench{B: b, cell: fakeCell(b, 3, 50, fleet.Life{}), wait: 5 * time.Minute}
		for i := range 3 {
			own.alone(b, m.cell.masterDir(i+1), hostileDisk)
		}
		m.profiles()
		m.must(m.cell.Start)
		group := newCPUGroup(b)
		group.limit(b, hostileCores)
		for i := range hostileVictims {
			m.mustSubmit(fmt.Sprint("victim-", i), &borgpb.SubmitJob{User: fmt.Sprint("victim-", i), Name: "runs", Spec: encodeSpec(b, sleepers(hostileTasks))})
		}
		m.every("the tasks of the victims run", m.allRun)
		quiet, rest := m.watched(took, nil)
		m.figure(quiet, "hostile", "quiet_p99_ms")
		m.figure(rest, "hostile", "rest_rss_mib")
		for _, kind := range hostileAttacks {
			if only := os.Getenv("BORG_BENCH_HOSTILE"); only != "" && !strings.Contains(","+only+",", ","+kind+",") {
				continue
			}
			term, begun := m.state().Term, m.status().Begun
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

// mustSubmit submits a job as a user.
func (m *masterBench) mustSubmit(user string, job *borgpb.SubmitJob) {
	m.Helper()
	var waited atomic.Int64
	c := m.cell.clientOf(m.B, user, &waited)
	m.must(func(ctx context.Context) error {
		_, err := c.Mutate(ctx, &borgpb.Op{Op: &borgpb.Op_SubmitJob{SubmitJob: job}})
		return err
	})
}

// allRun returns an error unless every task of the victims runs.
func (m *masterBench) allRun(ctx context.Context) error {
	s, err := m.cell.FakeStatus(ctx)
	if err != nil {
		return err
	}
	if want := hostileVictims * hostileTasks; s.Running < want {
		return fmt.Errorf("%d of %d tasks of the victims run", s.Running, want)
	}
	return nil
}

// watched makes the victims submit and kill jobs for a while, under an attack unless that is
// nil. It returns the time within which 99 of 100 of these changes were done, and the memory of
// the largest replica.
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

// victim submits a production job and kills it, again and again. The master refuses a change
// that the one before does not allow, so a lost acknowledged change shows as an error.
func (m *masterBench) victim(ctx context.Context, user string, mu *sync.Mutex, all *[]time.Duration) {
	var waited atomic.Int64
	c := m.cell.clientOf(m.B, user, &waited)
	tick := time.NewTicker(floodEvery)
	defer tick.Stop()
	for n := 0; ; n++ {
		select {
		case <-ctx.Done():
			// Leave no job behind: the next attack submits one of the same name.
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
func (m *masterBench) attack(group *cpuGroup, kind string) (stop func()) {
	m.Helper()
	order, err := json.Marshal(hostileOrder{Kind: kind, Cell: m.cell.Name, Authority: m.cell.authorityFile(), Masters: m.cell.masterAddrs()})
	if err != nil {
		m.Fatal(err)
	}
	a := m.helper(hostileEnv, string(order))
	if err := os.WriteFile(filepath.Join(group.dir, "cgroup.procs"), []byte(strconv.Itoa(a.cmd.Process.Pid)), 0); err != nil {
		m.Fatal(err)
	}
	// The attacker starts at the first question.
	a.counts()
	return func() {
		m.Logf("the attacker %s: %+v, %.1f s of processor", kind, a.counts(), a.cpuSeconds())
		a.stop()
	}
}

// hostileMain is the main function of an attacker's process, which ends when its parent asks
// no more.
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
	// Number of connections opened.
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

// unread starts as many watches and event streams as it is allowed and reads none of them.
func (h *hostile) unread(ctx context.Context) {
	for _, addr := range h.addrs {
		h.at.Go(func() {
			conn, err := door.Dial(addr, h.who, door.AnyMaster(h.who), grpc.WithInitialWindowSize(64<<10), grpc.WithInitialConnWindowSize(64<<10))
			if err != nil {
				return
			}
			defer conn.Close()
			c := borgrpc.NewMasterServiceClient(conn)
			for n := 0; ctx.Err() == nil; n++ {
				if n%2 == 0 {
					_, _ = borgrpc.NewWatchServiceClient(conn).Watch(ctx, &borgrpc.WatchRequest{Kind: borgpb.ObjectKind_OBJECT_KIND_JOB})
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

// flight is a connection that keeps what is written to it and has nothing to read.
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
