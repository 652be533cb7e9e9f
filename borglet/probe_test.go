package borglet

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"borg/proto/borgpb"
	"borg/proto/borgrpc"
)

// TestProbe: what passes a check by network, and what is told of what does not.
func TestProbe(t *testing.T) {
	var elsewhere atomic.Int64
	other := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { elsewhere.Add(1) }))
	defer other.Close()
	hung := make(chan struct{})
	var read atomic.Int64
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/good":
		case "/away":
			http.Redirect(w, r, other.URL, http.StatusFound)
		case "/hangs":
			<-hung
		case "/floods":
			w.WriteHeader(http.StatusInternalServerError)
			for range 1 << 20 {
				n, err := w.Write([]byte(strings.Repeat("flood ", 1000)))
				if read.Add(int64(n)); err != nil {
					return
				}
			}
		default:
			http.Error(w, "the database\nis away", http.StatusServiceUnavailable)
		}
	}))
	defer server.Close()
	defer close(hung)
	port := func(url string) uint32 {
		_, text, _ := net.SplitHostPort(strings.TrimPrefix(url, "http://"))
		n, err := strconv.ParseUint(text, 10, 16)
		if err != nil {
			t.Fatal(err)
		}
		return uint32(n)
	}
	closed := httptest.NewServer(nil)
	free := port(closed.URL)
	closed.Close()
	p := newProber(NewFake(), func() {})
	for _, c := range []struct {
		check   *borgpb.HealthCheck
		failure string
	}{
		{&borgpb.HealthCheck{HttpPath: "/good"}, ""},
		{&borgpb.HealthCheck{HttpPath: "/away"}, ""},
		{&borgpb.HealthCheck{HttpPath: "/bad"}, "GET /bad of port http: 503 Service Unavailable: the database"},
		{&borgpb.HealthCheck{HttpPath: "/hangs", TimeoutNs: int64(50 * time.Millisecond)}, "no answer within 50ms"},
		{&borgpb.HealthCheck{HttpPath: "/floods"}, "GET /floods of port http: 500 Internal Server Error: flood flood"},
		{&borgpb.HealthCheck{HttpPath: "/good", Port: "admin"}, "GET /good of port admin: connection refused"},
		{&borgpb.HealthCheck{}, ""},
		{&borgpb.HealthCheck{Port: "http"}, ""},
		{&borgpb.HealthCheck{Port: "admin"}, "port admin: connection refused"},
	} {
		r := Record{Desired: &borgrpc.Desired{
			Spec: &borgpb.TaskSpec{Ports: []string{"http", "admin"}, Health: c.check}, Ports: []uint32{port(server.URL), free},
		}}
		got := ""
		if err := p.check(t.Context(), Check{Record: r}, ""); err != nil {
			got = err.Error()
		}
		if got != c.failure && (c.failure == "" || !strings.HasPrefix(got, c.failure)) || len(got) > maxTextBytes {
			t.Errorf("check(%v) = %q, want %q", c.check, got, c.failure)
		}
	}
	if n := elsewhere.Load(); n != 0 {
		t.Errorf("a redirect was followed %d times", n)
	}
	// What is not read is at most what the kernel holds on its way.
	if n := read.Load(); n > 64<<20 {
		t.Errorf("%d bytes of an answer were taken", n)
	}
	// That the borglet ends says nothing of the task, nor that there is nothing to ask.
	ended, end := context.WithCancel(t.Context())
	end()
	lost := Record{Desired: &borgrpc.Desired{Spec: &borgpb.TaskSpec{Ports: []string{"http"}, Health: &borgpb.HealthCheck{}}}}
	gone := Record{Desired: &borgrpc.Desired{Spec: &borgpb.TaskSpec{Health: &borgpb.HealthCheck{Command: []string{"true"}}}}}
	for i, err := range []error{p.check(ended, Check{Record: lost}, ""), p.check(t.Context(), Check{Record: lost}, ""), p.check(t.Context(), Check{Record: gone}, "")} {
		if !errors.Is(err, errUndecided) {
			t.Errorf("case %d: %v, want that it is not decided", i, err)
		}
	}
}

// TestChecksGoOn: an agent makes the checks, ends who fails, and says so.
func TestChecksGoOn(t *testing.T) {
	var bad atomic.Bool
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if bad.Load() {
			w.WriteHeader(http.StatusTeapot)
		}
	}))
	defer server.Close()
	var port uint32
	if _, err := fmt.Sscanf(server.URL[strings.LastIndexByte(server.URL, ':')+1:], "%d", &port); err != nil {
		t.Fatal(err)
	}
	a := startAgent(t, t.TempDir())
	d := wanted(ID{"1-5-0", 0, 1})
	d.Spec.Ports, d.Ports = []string{"http"}, []uint32{port}
	d.Spec.Health = &borgpb.HealthCheck{HttpPath: "/", PeriodNs: 1, Failures: 1, StartGraceNs: 1}
	req := &borgrpc.PollRequest{Fence: fence(1, 1, 1), Desired: []*borgrpc.Desired{d}}
	a.until(req, func(r *borgrpc.PollResponse) bool {
		return len(r.GetTasks()) == 1 && r.GetTasks()[0].GetText() == "" && r.GetTasks()[0].GetPid() != 0
	})
	bad.Store(true)
	a.until(req, func(r *borgrpc.PollResponse) bool {
		return strings.Contains(r.GetTasks()[0].GetText(), "unhealthy: GET / of port http: 418") || r.GetTasks()[0].GetRestarts() > 0
	})
	bad.Store(false)
	a.until(req, func(r *borgrpc.PollResponse) bool {
		return r.GetTasks()[0].GetText() == "" && r.GetTasks()[0].GetRestarts() > 0 && r.GetTasks()[0].GetExit().GetSignal() == 15
	})
}

// TestChecksOfOneUserKeepNobodyWaiting has one user fill all places that he may have with
// checks that hang: his next one waits, and that of another user is made.
func TestChecksOfOneUserKeepNobodyWaiting(t *testing.T) {
	s := newSlots(4, 2)
	var leave []func()
	for range 2 {
		l, ok := s.enter(t.Context(), "mallory")
		if !ok {
			t.Fatal("there is no place")
		}
		leave = append(leave, l)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	// A place that is free may be taken although the wait has ended.
	for range 100 {
		if _, ok := s.enter(ended, "mallory"); ok {
			t.Fatal("a third place is given to one user")
		}
	}
	l, ok := s.enter(t.Context(), "alice")
	if !ok {
		t.Fatal("another user has no place")
	}
	for _, f := range append(leave, l) {
		f()
	}
	if len(s.users) != 0 || len(s.all) != 0 {
		t.Errorf("when all have ended, %d users and %d places are counted", len(s.users), len(s.all))
	}
}
