package entrance

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// fakeConn is a connection from an address whose other end answers when it is told to.
type fakeConn struct {
	net.Conn
	from   net.Addr
	say    chan error
	closed chan struct{}
}

func from(addr string) *fakeConn {
	return &fakeConn{from: &net.TCPAddr{IP: net.ParseIP(addr), Port: 1}, say: make(chan error), closed: make(chan struct{})}
}

func (c *fakeConn) RemoteAddr() net.Addr { return c.from }
func (c *fakeConn) Close() error         { close(c.closed); return nil }

func (c *fakeConn) isClosed() bool {
	select {
	case <-c.closed:
		return true
	default:
		return false
	}
}

func (c *fakeConn) Read(b []byte) (int, error) {
	select {
	case err := <-c.say:
		return len(b), err
	case <-c.closed:
		return 0, net.ErrClosed
	}
}

func (c *fakeConn) Write(b []byte) (int, error) { return c.Read(b) }

// TestTheOldestOfAnAddressIsDropped: never the newcomer, and nobody of another address.
func TestTheOldestOfAnAddressIsDropped(t *testing.T) {
	h, turns := NewHall(Limits{Host: 3, All: 100}), NewTurns(1)
	other := from("10.0.0.2")
	h.Enter(other, turns)
	var conns []*fakeConn
	var guests []*Guest
	for range 10 {
		c := from("10.0.0.1")
		conns, guests = append(conns, c), append(guests, h.Enter(c, turns))
	}
	for i, c := range conns {
		if want := i < 7; c.isClosed() != want {
			t.Errorf("connection %d is closed: %t, want %t", i, !want, want)
		}
		if err := guests[i].Begin(); errors.Is(err, ErrDropped) != (i < 7) {
			t.Errorf("guest %d begins with %v", i, err)
		}
		if left := guests[i].Leave(); left != (i >= 7) {
			t.Errorf("guest %d leaves: %t", i, left)
		}
	}
	if other.isClosed() {
		t.Error("another address lost its connection")
	}
	if h.all != 1 || len(h.hosts) != 1 || turns.Free() != 1 {
		t.Errorf("%d guests of %d addresses are left and %d turns are free, want 1, 1, 1", h.all, len(h.hosts), turns.Free())
	}
}

// TestAFullHallDropsOfTheLargestAddress holds for random arrivals and leaves: the hall stays
// within both limits, and who is dropped is the oldest of the address that has most, or
// of the newcomer's if that is full.
func TestAFullHallDropsOfTheLargestAddress(t *testing.T) {
	for seed := range uint64(200) {
		r := rand.New(rand.NewPCG(seed, 7))
		limits := Limits{Host: 1 + r.IntN(6), All: 1 + r.IntN(20)}
		h, turns := NewHall(limits), NewTurns(1)
		model := map[string][]*Guest{}
		for step := range 300 {
			key := fmt.Sprint("10.0.0.", r.IntN(8))
			if own := model[key]; r.IntN(3) == 0 && len(own) > 0 {
				i := r.IntN(len(own))
				if !own[i].Leave() {
					t.Fatalf("seed %d step %d: a guest was dropped that had to stay", seed, step)
				}
				model[key] = append(own[:i:i], own[i+1:]...)
				continue
			}
			before, most := 0, 0
			for _, own := range model {
				before, most = before+len(own), max(most, len(own))
			}
			g := h.Enter(from(key), turns)
			var lost string
			for k, own := range model {
				for i, was := range own {
					if was.dropped && (lost != "" || i > 0) {
						t.Fatalf("seed %d step %d: guest %d of %s is dropped, after one of %q", seed, step, i, k, lost)
					} else if was.dropped {
						lost = k
					}
				}
			}
			switch {
			case len(model[key]) == limits.Host:
				if lost != key {
					t.Fatalf("seed %d step %d: %s is full and %q loses one", seed, step, key, lost)
				}
			case before == limits.All:
				if len(model[lost]) != most {
					t.Fatalf("seed %d step %d: %q loses one of %d, while another has %d", seed, step, lost, len(model[lost]), most)
				}
			case lost != "":
				t.Fatalf("seed %d step %d: %s loses one with %d of %d there", seed, step, lost, before, limits.All)
			}
			if lost != "" {
				model[lost] = model[lost][1:]
			}
			model[key] = append(model[key], g)
		}
		for _, own := range model {
			for _, g := range own {
				g.Leave()
			}
		}
		if h.all != 0 || len(h.hosts) != 0 || h.largest != 0 {
			t.Fatalf("seed %d: at the end %d guests of %d addresses are left, the largest with %d", seed, h.all, len(h.hosts), h.largest)
		}
	}
}

// TestHostOf: all addresses that one subscriber has are one.
func TestHostOf(t *testing.T) {
	for addr, want := range map[string]string{
		"10.0.0.1:7": "10.0.0.1", "[2001:db8::1]:7": "2001:db8::/64", "[2001:db8::2]:8": "2001:db8::/64", "[2001:db8:0:1::2]:8": "2001:db8:0:1::/64",
		"[::ffff:10.0.0.1]:7": "10.0.0.1", "[fe80::1%eth0]:7": "fe80::/64", "pipe": "pipe",
	} {
		if got := HostOf(named(addr)); got != want {
			t.Errorf("%s is %s, want %s", addr, got, want)
		}
	}
}

type named string

func (named) Network() string  { return "tcp" }
func (n named) String() string { return string(n) }

// TestTurnsGoToAddressesAndTheNewest: an address with many waits no longer than one with few,
// and of one address whoever answers goes first, then who came last.
func TestTurnsGoToAddressesAndTheNewest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, turns := NewHall(Limits{Host: 100, All: 1000}), NewTurns(1)
		holder := h.Enter(from("10.0.0.9"), turns)
		if !turns.take(holder, false) {
			t.Fatal("no turn is free")
		}
		for i := range 4 {
			turns.hosts.keep(fmt.Sprint("10.0.0.", i))
		}
		order := make(chan string, 100)
		var guests []*Guest
		wait := func(name, addr string, answered bool) {
			g := h.Enter(from(addr), turns)
			guests = append(guests, g)
			go func() {
				if turns.take(g, answered) {
					order <- name
				}
			}()
			synctest.Wait()
		}
		for i := range 4 {
			wait(fmt.Sprint("a", i), "10.0.0.1", i == 1)
		}
		wait("b0", "10.0.0.2", false)
		wait("b1", "10.0.0.2", false)
		wait("c0", "10.0.0.3", false)
		// One that is dropped gets none.
		guests[2].drop()
		want := []string{"a1", "b1", "c0", "a3", "b0", "a0"}
		for i, name := range want {
			turns.give(holder, 0)
			if got := <-order; got != name {
				t.Errorf("turn %d goes to %s, want %s", i, got, name)
			}
		}
		turns.give(holder, 0)
		if turns.Free() != 1 || len(turns.waiting) != 0 {
			t.Errorf("%d turns are free and %d addresses wait", turns.Free(), len(turns.waiting))
		}
	})
}

// TestEachGuestHasItsTurns: random guests of calm and crowded addresses, some of which are
// dropped, all come to their end, and all turns are free then.
func TestEachGuestHasItsTurns(t *testing.T) {
	for seed := range uint64(50) {
		synctest.Test(t, func(t *testing.T) {
			r := rand.New(rand.NewPCG(seed, 3))
			free := 1 + r.IntN(3)
			h, turns := NewHall(Limits{Host: 100, All: 300}), NewTurns(free)
			var ends sync.WaitGroup
			for range 400 {
				g := h.Enter(from(fmt.Sprint("10.0.0.", min(r.IntN(12), 6))), turns)
				if r.IntN(3) == 0 {
					g.Vouch([]string{"", "alice", "bob"}[r.IntN(3)])
				}
				reads, pace := 1+r.IntN(3), time.Duration(r.IntN(5))*time.Millisecond
				ends.Go(func() {
					defer g.Leave()
					if g.Begin() != nil {
						return
					}
					for range reads {
						time.Sleep(pace)
						g.away()
						time.Sleep(pace)
						if !g.turns.take(g, reads == 2) {
							return
						}
						g.hold()
					}
					if reads == 3 {
						g.Welcome([]string{"", "alice", "bob"}[len(g.host)%3])
					}
				})
				if r.IntN(10) == 0 {
					time.Sleep(time.Millisecond)
				}
			}
			ends.Wait()
			time.Sleep(time.Minute)
			turns.mu.Lock()
			defer turns.mu.Unlock()
			if in := turns.calm.Len() + turns.crowd.Len() + turns.strange.Len(); turns.free != free || in != 0 || len(turns.waiting) != 0 || h.all != 0 {
				t.Errorf("seed %d: at the end %d of %d turns are free, %d queues and %d places wait, %d guests are left", seed, turns.free, free, in, len(turns.waiting), h.all)
			}
		})
	}
}

// TestWhoWaitsForTheOtherEndHasNoTurn: guests that say nothing keep nobody waiting, and
// whoever is answered waits for a turn. Dropped ones end at once, wherever they wait.
func TestWhoWaitsForTheOtherEndHasNoTurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, turns := NewHall(Limits{Host: 100, All: 100}), NewTurns(2)
		type result struct {
			n   int
			err error
		}
		done := make(chan result, 100)
		begin := func(write bool) (*Guest, *fakeConn) {
			c := from("10.0.0.1")
			g := h.Enter(c, turns)
			go func() {
				if err := g.Begin(); err != nil {
					done <- result{0, err}
					return
				}
				if write {
					_, _ = g.Write(make([]byte, 3))
				}
				n, err := g.Read(make([]byte, 7))
				done <- result{n, err}
			}()
			synctest.Wait()
			return g, c
		}
		var guests []*Guest
		var conns []*fakeConn
		for i := range 20 {
			g, c := begin(i%2 == 0)
			guests, conns = append(guests, g), append(conns, c)
			if i%2 == 0 {
				c.say <- nil
				synctest.Wait()
			}
		}
		if turns.Free() != 2 {
			t.Fatalf("%d turns are free while all wait for their other ends, want 2", turns.Free())
		}
		busy := []*Guest{h.Enter(from("10.0.0.9"), turns), h.Enter(from("10.0.0.9"), turns)}
		for _, g := range busy {
			if err := g.Begin(); err != nil {
				t.Fatal(err)
			}
		}
		for _, c := range conns[:10] {
			c.say <- nil
		}
		synctest.Wait()
		if len(done) != 0 {
			t.Error("one goes on while as many as may be compute")
		}
		// One waits for a turn, another one for its other end.
		guests[0].drop()
		guests[10].drop()
		synctest.Wait()
		for range 2 {
			if r := <-done; r.err == nil {
				t.Error("a dropped guest goes on")
			}
		}
		for _, g := range busy {
			g.Leave()
			g.Leave() // Over once is over.
		}
		for range 9 {
			r := <-done
			if r.n != 7 || r.err != nil {
				t.Errorf("%d bytes come with %v, want 7", r.n, r.err)
			}
			// All that have read have a turn until they leave.
			for _, g := range guests[:10] {
				g.mu.Lock()
				has := g.turn
				g.mu.Unlock()
				if has {
					g.Leave()
					break
				}
			}
			synctest.Wait()
		}
		// Whoever leaves while it waits leaves nothing when the other end answers after all.
		for i, g := range guests[11:] {
			g.Leave()
			conns[11+i].say <- nil
			<-done
		}
		if turns.Free() != 2 {
			t.Errorf("%d turns are free when all are over, want 2", turns.Free())
		}
	})
}
