package door

import (
	"net"
	"strings"
	"testing"
	"time"
)

// TestWhatAFullAddressIsRefused: while an address is full its connections are closed as soon as they
// have sent something, unless that shows a pass that the door gave. Other addresses are let in, as is
// a connection that has sent nothing yet. One that has hung up is never let in.
func TestWhatAFullAddressIsRefused(t *testing.T) {
	inner, err := Listen("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	pass := strings.Repeat("0f", passBytes)
	l := &pickyListener{inner, newPasses(), func(host string) bool { return host == "127.0.0.1" }}
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
