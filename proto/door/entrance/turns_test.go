package entrance

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// turnCost is how long each turn computes in these tests.
const turnCost = 500 * time.Microsecond

// visitors are the guests of a test, for some time.
type visitors struct {
	hall  *Hall
	turns *Turns
	until time.Time
	// How long a crowded guest computes in its first turn. A server may make that shorter.
	crowdHello time.Duration
	at         sync.WaitGroup
}

func newVisitors(turns int, took time.Duration) *visitors {
	return &visitors{hall: NewHall(Limits{Host: 2048, All: 8192}), turns: NewTurns(turns), until: time.Now().Add(took), crowdHello: turnCost}
}

// visit makes a guest that computes so many turns, and returns how long it waited for the first one.
func (v *visitors) visit(addr string, turns int, before func(*Guest)) (waited time.Duration, g *Guest, ok bool) {
	g = v.hall.Enter(from(addr), v.turns)
	if before != nil {
		before(g)
	}
	began := time.Now()
	if g.Begin() != nil {
		// The next connection takes some time.
		time.Sleep(turnCost / 10)
		return 0, g, false
	}
	waited = time.Since(began)
	if g.Crowded() {
		time.Sleep(v.crowdHello)
	} else {
		time.Sleep(turnCost)
	}
	for range turns - 1 {
		g.away()
		if !v.turns.take(g, true) {
			return 0, g, false
		}
		g.hold()
		time.Sleep(turnCost)
	}
	return waited, g, true
}

// flood has so many clients open one connection after the other that come to nothing, from so many addresses. It
// returns what they have had of turns.
func (v *visitors) flood(r *rand.Rand, clients, addrs int) (had *atomic.Int64) {
	had = new(atomic.Int64)
	for range clients {
		first, turns, pause := r.IntN(addrs), 1+r.IntN(2), time.Duration(r.IntN(3))*time.Millisecond
		v.at.Go(func() {
			for n := first; time.Now().Before(v.until); n++ {
				if _, g, ok := v.visit(flooder(n%addrs), turns, nil); ok {
					had.Add(int64(time.Duration(turns) * turnCost))
					g.Leave()
				} else {
					g.Leave()
				}
				time.Sleep(pause)
			}
		})
	}
	return had
}

func flooder(n int) string { return fmt.Sprintf("10.%d.%d.%d", 1+n>>16, n>>8&255, n&255) }

// TestWhatComesToNothingHasItsShare: whatever the order in which guests come, from one address or from thousands, where somebody
// is known or not, turns that come to nothing take an eighth of all turns' time, beside what the addresses may spend. Who is known
// waits for no more than those before it and one turn of the crowd, and never more than the crowd's share
// is lost to those who are known, who want all.
func TestWhatComesToNothingHasItsShare(t *testing.T) {
	for seed := range uint64(40) {
		synctest.Test(t, func(t *testing.T) {
			const took = 4 * time.Second
			r := rand.New(rand.NewPCG(seed, 31))
			n := 1 + r.IntN(3)
			v := newVisitors(n, took)
			addrs := []int{1, 3, 100, 3000}[r.IntN(4)]
			knownAddrs := min(addrs, []int{0, 1, 3}[r.IntN(3)])
			for i := range knownAddrs {
				v.turns.hosts.keep(flooder(i))
			}
			had := v.flood(r, 50+r.IntN(200), addrs)
			var longest atomic.Int64
			honest := r.IntN(4)
			for i := range honest {
				v.turns.hosts.keep(fmt.Sprint("172.16.0.", i))
				v.at.Go(func() {
					for time.Now().Before(v.until) {
						waited, g, ok := v.visit(fmt.Sprint("172.16.0.", i), 2, nil)
						if !ok {
							t.Errorf("seed %d: an honest guest is dropped", seed)
							return
						}
						longest.Store(max(longest.Load(), int64(waited)))
						g.Leave()
						g.Welcome("")
					}
				})
			}
			v.at.Wait()
			share := took * time.Duration(n) / (1 + restFactor)
			spare := strangersGrant.spent + took/time.Duration(strangersGrant.part) +
				time.Duration(knownAddrs)*(knownGrant.spent+took/time.Duration(knownGrant.part)) + time.Duration(2*n+2)*turnCost
			if got := time.Duration(had.Load()); got > share+spare {
				t.Errorf("seed %d: what comes to nothing has had %v of %d turns in %v, want %v and %v at most", seed, got, n, took, share, spare)
			} else if honest > 0 && got < share/2 {
				t.Errorf("seed %d: the crowd has had %v of %d turns in %v beside %d who want all, want half of %v at least", seed, got, n, took, honest, share)
			}
			if got, most := time.Duration(longest.Load()), time.Duration(honest+2)*2*turnCost; got > most {
				t.Errorf("seed %d: who is known waits for %v, want %v at most", seed, got, most)
			}
		})
	}
}

// TestAFloodOfAUserWhoIsKnown: who comes again and again with a good certificate pays for it, and then its
// address does, beside which others go on. A pass helps it no more.
func TestAFloodOfAUserWhoIsKnown(t *testing.T) {
	for _, pass := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			const took = 10 * time.Second
			v := newVisitors(1, took)
			var had int64
			for range 30 {
				v.at.Go(func() {
					for time.Now().Before(v.until) {
						vouch := func(g *Guest) {
							if pass {
								g.Vouch("mallory")
							}
						}
						if _, g, ok := v.visit("10.0.0.1", 2, vouch); ok {
							had += int64(2 * turnCost)
							g.Leave()
							g.Welcome("mallory")
						}
					}
				})
			}
			v.turns.hosts.keep("10.0.0.2")
			v.at.Go(func() {
				for time.Now().Before(v.until) {
					waited, g, _ := v.visit("10.0.0.2", 2, nil)
					if waited > 4*turnCost {
						t.Errorf("pass %t: another user waits for %v", pass, waited)
					}
					g.Leave()
					g.Welcome("alice")
					// A hundred times a second is what one may.
					time.Sleep(20 * time.Millisecond)
				}
			})
			v.at.Wait()
			spare := userGrant.spent + took/time.Duration(userGrant.part) + knownGrant.spent + took/time.Duration(knownGrant.part) +
				strangersGrant.spent + took/time.Duration(strangersGrant.part)
			if got, most := time.Duration(had), took/(1+restFactor)+spare; got > most {
				t.Errorf("pass %t: mallory has had %v in %v, want %v at most", pass, got, took, most)
			}
		})
	}
}

// TestWhoWasHereGoesFirst: one who shows a pass waits for no more than one turn, though its own address floods.
func TestWhoWasHereGoesFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v := newVisitors(1, 5*time.Second)
		v.turns.hosts.keep(flooder(0))
		v.flood(rand.New(rand.NewPCG(1, 1)), 300, 1)
		for _, user := range []string{"", "alice"} {
			v.at.Go(func() {
				for time.Now().Before(v.until) {
					time.Sleep(50 * time.Millisecond)
					waited, g, ok := v.visit(flooder(0), 2, func(g *Guest) { g.Vouch(user) })
					if !ok || waited > 3*turnCost {
						t.Errorf("one who was here waits for %v beside a flood of its address, dropped: %t", waited, !ok)
					}
					g.Leave()
					g.Welcome(user)
				}
			})
		}
		v.at.Wait()
	})
}

// TestANewcomerBesideAFlood: an address from which nobody has come has its turns beside a flood from another one, and
// beside one from thousands.
func TestANewcomerBesideAFlood(t *testing.T) {
	for _, addrs := range []int{1, 3000} {
		synctest.Test(t, func(t *testing.T) {
			v := newVisitors(1, 5*time.Second)
			// What reading a hello takes beside a handshake's key exchange and signature.
			v.crowdHello = turnCost / 10
			v.flood(rand.New(rand.NewPCG(1, 2)), 1000, addrs)
			var longest time.Duration
			came, served := 0, 0
			for ; time.Now().Before(v.until); came++ {
				time.Sleep(20 * time.Millisecond)
				waited, g, ok := v.visit(fmt.Sprintf("192.0.%d.%d", came>>8, came&255), 2, nil)
				if longest = max(longest, waited); ok {
					served++
				}
				g.Leave()
			}
			v.at.Wait()
			// Each of the thousand clients that flood has an address of its own before it, at most: 2 s of the crowd's turns.
			if most := map[int]time.Duration{1: 40 * turnCost, 3000: 5 * time.Second}[addrs]; served != came || longest > most {
				t.Errorf("beside %d addresses that flood %d of %d newcomers have a turn, the last one after %v", addrs, served, came, longest)
			}
		})
	}
}

// TestLedgersForget: those of whom something was heard last are kept.
func TestLedgersForget(t *testing.T) {
	l := newLedger(3)
	for _, name := range []string{"a", "b", "c", "a", "d", "e"} {
		l.keep(name).spent++
	}
	for name, want := range map[string]time.Duration{"a": 2, "b": 0, "c": 0, "d": 1, "e": 1} {
		if of := l.find(name); (of == nil) != (want == 0) || of != nil && of.spent != want {
			t.Errorf("of %s is kept %+v, want %d", name, of, want)
		}
	}
	if len(l.of) != 3 || l.order.Len() != 3 {
		t.Errorf("%d and %d are kept, want 3", len(l.of), l.order.Len())
	}
}

// saying is a connection whose other end says something at once.
type saying struct {
	*fakeConn
	text string
}

func (c *saying) Read(b []byte) (int, error) { return copy(b, c.text), nil }

// TestNothingIsDoneBeforeATurn: what says hello has a turn before anybody reads it, unless it shows a pass or makes no
// handshake at all.
func TestNothingIsDoneBeforeATurn(t *testing.T) {
	const head = "\x16\x03\x01\x00\x20"
	for text, want := range map[string]bool{head + "hello": true, head + "hello " + PassMark + "1": false, "plain": false} {
		turns := NewTurns(1)
		g := NewHall(Limits{Host: 1, All: 1}).Enter(&saying{from("10.0.0.1"), text}, turns)
		if text == "plain" {
			g.Plain()
		}
		b := make([]byte, 100)
		if n, err := g.Read(b); err != nil || string(b[:n]) != text {
			t.Errorf("%q is read as %q (%v)", text, b[:n], err)
		}
		if has := turns.Free() == 0; has != want {
			t.Errorf("after %q it has a turn: %t, want %t", text, has, want)
		}
		if g.Leave(); turns.Free() != 1 {
			t.Errorf("after %q a turn is lost", text)
		}
	}
}

// TestGuestsSendLittle: a guest may send what a handshake needs: no first record above
// maxHelloBytes, no more than maxGuestBytes in all, and crampedGuestBytes while all guests
// together have sent more than maxHallBytes. What those sent who are gone does not count.
func TestGuestsSendLittle(t *testing.T) {
	head := func(n int) string { return string([]byte{0x16, 3, 1, byte(n >> 8), byte(n)}) }
	read := func(g *Guest, most int) (sent int, err error) {
		b := make([]byte, 1000)
		for err == nil && sent < most {
			var n int
			n, err = g.read(b)
			sent += n
		}
		return sent, err
	}
	enter := func(h *Hall, text string) *Guest {
		return h.Enter(&saying{from("10.0.0.1"), text}, NewTurns(1))
	}
	h := NewHall(Limits{Host: 5000, All: 5000})
	if _, err := read(enter(h, head(maxHelloBytes+1)), 100); !errors.Is(err, ErrTooLarge) {
		t.Errorf("a first record of %d bytes: %v", maxHelloBytes+1, err)
	}
	text := head(maxHelloBytes) + strings.Repeat("x", 500)
	if sent, err := read(enter(h, text), 1<<20); !errors.Is(err, ErrTooLarge) || sent < maxGuestBytes || sent > maxGuestBytes+1000 {
		t.Errorf("a guest sends %d bytes: %v", sent, err)
	}
	var full []*Guest
	for h.bytes <= maxHallBytes-maxGuestBytes {
		g := enter(h, text)
		if sent, err := read(g, maxGuestBytes-1000); err != nil {
			t.Fatalf("a guest may send no %d bytes: %v", sent, err)
		}
		full = append(full, g)
	}
	for h.bytes <= maxHallBytes {
		if _, err := read(enter(h, text), crampedGuestBytes-1000); err != nil {
			t.Fatal(err)
		}
	}
	if sent, err := read(enter(h, text), 1<<20); !errors.Is(err, ErrTooLarge) || sent > crampedGuestBytes+1000 {
		t.Errorf("beside %d bytes of others a guest sends %d: %v", h.bytes, sent, err)
	}
	for _, g := range full {
		g.Leave()
	}
	if _, err := read(enter(h, text), maxGuestBytes-1000); err != nil {
		t.Errorf("when others are gone: %v", err)
	}
}

// TestACrowdedPlaceIsFull: maxFresh guests of a crowded address wait for its next turn, and each
// further one takes the place of the oldest until one had it. Guests of a calm address, of another
// one and with a pass wait.
func TestACrowdedPlaceIsFull(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, turns := NewHall(Limits{Host: 100, All: 100}), NewTurns(1)
		var guests []*Guest
		enter := func(addr string, passOf string) (g *Guest, begun chan error) {
			g, begun = h.Enter(from(addr), turns), make(chan error, 1)
			guests = append(guests, g)
			if passOf != "" {
				g.Vouch(passOf)
			}
			go func() { begun <- g.Begin() }()
			synctest.Wait()
			return g, begun
		}
		full := func(when string, want bool) {
			t.Helper()
			if got := turns.Full("10.0.0.1"); got != want {
				t.Errorf("%s the address is full: %t, want %t", when, got, want)
			}
			if turns.Full("10.0.0.2") {
				t.Errorf("%s another address is full", when)
			}
		}
		holder, _ := enter("10.0.0.9", "")
		_, oldest := enter("10.0.0.1", "")
		_, second := enter("10.0.0.1", "")
		for range maxFresh - 2 {
			enter("10.0.0.1", "")
		}
		full("with calm guests", false)
		turns.strangers.charge(time.Now(), strangersGrant, 2*strangersGrant.spent)
		full("with crowded guests", true)
		newest, next := enter("10.0.0.1", "")
		if err := <-oldest; !errors.Is(err, ErrDropped) {
			t.Errorf("the oldest of one guest too many begins with %v", err)
		}
		if len(second) > 0 {
			t.Errorf("the second oldest begins with %v", <-second)
		}
		_, passed := enter("10.0.0.1", "alice")
		full("with a guest that has shown a pass", true)
		holder.Leave()
		if err := <-next; err != nil {
			t.Errorf("the newest guest of the crowded address begins with %v", err)
		}
		full("after its turn", false)
		time.Sleep(turnCost)
		newest.Leave()
		if err := <-passed; err != nil {
			t.Errorf("a guest with a pass begins with %v", err)
		}
		for _, g := range guests {
			g.drop()
			g.Leave()
		}
	})
}
