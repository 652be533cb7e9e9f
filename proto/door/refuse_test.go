package door

import (
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// TestWhatAFullAddressIsRefused: while an address is full its connections are not let in once they have
// sent something, unless that shows a pass that the door gave. Other addresses are let in, as is
// a connection that has sent nothing yet. One that has hung up is never let in.
func TestWhatAFullAddressIsRefused(t *testing.T) {
	inner, err := Listen("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	pass := strings.Repeat("0f", passBytes)
	l := &pickyListener{Listener: inner, passes: newPasses(), full: func(host string) bool { return host == "127.0.0.1" }}
	defer l.Close()
	l.passes.put(pass, "alice")
	for _, c := range []struct {
		what, from, say string
		hangUp, in      bool
	}{
		{what: "a hello without a pass", from: "127.0.0.1", say: "hello"},
		{what: "a pass that nobody was given", from: "127.0.0.1", say: "hello" + passPrefix + strings.Repeat("0e", passBytes)},
		{what: "half a pass", from: "127.0.0.1", say: "hello" + passPrefix + pass[:passBytes]},
		{what: "a pass beyond the first bytes", from: "127.0.0.1", say: strings.Repeat("x", peekedBytes) + passPrefix + pass},
		{what: "a hang-up", from: "127.0.0.2", hangUp: true},
		{what: "a pass", from: "127.0.0.1", say: "hello" + passPrefix + pass, in: true},
		{what: "the same pass, which nobody has taken yet", from: "127.0.0.1", say: passPrefix + pass + "hello", in: true},
		{what: "nothing", from: "127.0.0.1", in: true},
		{what: "a hello from another address", from: "127.0.0.2", say: "hello", in: true},
	} {
		out := dialFrom(t, c.from, inner.Addr().String())
		if _, err := out.Write([]byte(c.say)); err != nil {
			t.Fatal(err)
		}
		if c.hangUp {
			out.Close()
		}
		// Accept takes connections in the order in which they came, so it returns the second one
		// only if it refused the first one.
		next := dialFrom(t, "127.0.0.2", inner.Addr().String())
		got, err := l.Accept()
		if err != nil {
			t.Fatal(err)
		}
		if in := got.RemoteAddr().String() == out.LocalAddr().String(); in != c.in {
			t.Errorf("%s is let in: %t, want %t", c.what, in, c.in)
		} else if in {
			got.Close()
			if got, err = l.Accept(); err != nil {
				t.Fatal(err)
			}
		}
		got.Close()
		next.Close()
		out.Close()
	}
}

// TestWhatIsKeptBack: of the connections of a full address the newest maxBack are kept back, and go on,
// the newest one first, when the address is full no more. Those that have hung up do not.
func TestWhatIsKeptBack(t *testing.T) {
	inner, err := Listen("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var full atomic.Bool
	full.Store(true)
	l := &pickyListener{Listener: inner, passes: newPasses(), full: func(host string) bool { return host == "127.0.0.1" && full.Load() }}
	defer l.Close()
	var flood []net.Conn
	for range maxBack + 3 {
		c := dialFrom(t, "127.0.0.1", inner.Addr().String())
		defer c.Close()
		if _, err := c.Write([]byte("hello")); err != nil {
			t.Fatal(err)
		}
		flood = append(flood, c)
	}
	accept := func() net.Conn {
		t.Helper()
		c, err := l.Accept()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		return c
	}
	other := dialFrom(t, "127.0.0.2", inner.Addr().String())
	defer other.Close()
	if got := accept(); got.RemoteAddr().String() != other.LocalAddr().String() {
		t.Fatalf("%s is let in, want the other address", got.RemoteAddr())
	}
	last := flood[len(flood)-1].(*net.TCPConn)
	if err := last.SetLinger(0); err != nil {
		t.Fatal(err)
	}
	last.Close()
	full.Store(false)
	// Not the last one, which has hung up, and not the first three, which are too many.
	for i := len(flood) - 2; i >= 3; i-- {
		if got, want := accept().RemoteAddr().String(), flood[i].LocalAddr().String(); got != want {
			t.Fatalf("%s is let in, want %s", got, want)
		}
	}
	if len(l.back) != 0 {
		t.Errorf("%d connections are still kept back", len(l.back))
	}
	// One alone is not refused either.
	full.Store(true)
	alone := dialFrom(t, "127.0.0.1", inner.Addr().String())
	defer alone.Close()
	if _, err := alone.Write([]byte("hello")); err != nil {
		t.Fatal(err)
	}
	other = dialFrom(t, "127.0.0.2", inner.Addr().String())
	defer other.Close()
	accept()
	full.Store(false)
	if got, want := accept().RemoteAddr().String(), alone.LocalAddr().String(); got != want {
		t.Errorf("%s is let in, want %s", got, want)
	}
}

// dialFrom connects from an address of this machine.
func dialFrom(t *testing.T, from, to string) net.Conn {
	t.Helper()
	d := net.Dialer{Timeout: time.Minute, LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}}
	c, err := d.DialContext(t.Context(), "tcp", to)
	if err != nil {
		t.Fatal(err)
	}
	return c
}
