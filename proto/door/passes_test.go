package door

import (
	"crypto/rand"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/credentials"

	"borg/identity"
)

// TestPassesAreShownOnce: who was at a door shows a pass the next time, which is its own and counts once, and the
// door knows who pays. A pass that nobody was given is none, and keeps nobody out.
func TestPassesAreShownOnce(t *testing.T) {
	ca, err := identity.NewAuthority("test", time.Now(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	named := func(role identity.Role, id string) *identity.Source {
		s, err := ca.Source(identity.Name{Cell: "test", Role: role, ID: id}, time.Now(), identity.Life)
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	master := named(identity.Master, "1")
	crowd := newCrowd()
	server := &serverCredentials{TransportCredentials: credentials.NewTLS(crowd.passes.inTurn(master.ServerTLS())), own: master, log: &refusals{}, crowd: crowd, config: &Config{}}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	shake := func(client *clientCredentials) {
		t.Helper()
		raw, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer raw.Close()
		ended := make(chan error, 1)
		go func() {
			conn, err := l.Accept()
			if err == nil {
				defer conn.Close()
				_, _, err = server.ServerHandshake(conn)
			}
			ended <- err
		}()
		if _, _, err := client.ClientHandshake(t.Context(), "master", raw); err != nil {
			t.Fatal(err)
		}
		if err := <-ended; err != nil {
			t.Fatal(err)
		}
	}
	kept := func() (by []string) {
		for e := crowd.passes.order.Front(); e != nil; e = e.Next() {
			by = append(by, e.Value.(heldPass).by)
		}
		return by
	}
	want := AnyMaster(master)
	var clients []*clientCredentials
	for _, who := range []*identity.Source{named(identity.User, "alice"), named(identity.Task, "bob/web/0"), named(identity.Scheduler, "1")} {
		clients = append(clients, &clientCredentials{credentials.NewTLS(who.ClientTLS(want)), who, want})
	}
	for range 3 {
		for _, c := range clients {
			shake(c)
		}
		// One each: what was shown is gone, and there is a new one.
		if got := fmt.Sprintf("%q", kept()); got != `["alice" "bob" ""]` {
			t.Fatalf("the door keeps passes of %s", got)
		}
	}
	for _, c := range clients {
		key := c.own.Name().String() + " " + l.Addr().String()
		pass, ok := shown.take(key)
		if _, known := crowd.passes.of[pass]; !ok || !known {
			t.Errorf("%s holds a pass: %t, which the door knows: %t", key, ok, known)
		}
		shown.put(key, "0123")
		shake(c)
	}
	if n := len(kept()); n != 6 {
		t.Errorf("the door keeps %d passes, want the 3 that were not shown and 3 more", n)
	}
}

// TestAPassStandsAtTheBeginning: where the door looks for its mark before it does anything for a guest.
func TestAPassStandsAtTheBeginning(t *testing.T) {
	ca, err := identity.NewAuthority("test", time.Now(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	who, err := ca.Source(identity.Name{Cell: "test", Role: identity.Task, ID: "alice/a-long-name-of-a-job/17"}, time.Now(), identity.Life)
	if err != nil {
		t.Fatal(err)
	}
	here, there := net.Pipe()
	defer here.Close()
	c := &clientCredentials{credentials.NewTLS(who.ClientTLS(AnyMaster(who))), who, AnyMaster(who)}
	shown.put(c.passAt(here), strings.Repeat("0f", passBytes))
	go func() {
		_, _, _ = c.ClientHandshake(t.Context(), "a-long-name-of-a-master.in-a-long-domain.example.org:7070", here)
	}()
	first := make([]byte, 512)
	n, err := io.ReadFull(there, first)
	there.Close()
	if err != nil || !strings.Contains(string(first[:n]), passPrefix+strings.Repeat("0f", passBytes)) {
		t.Errorf("the first %d bytes show no pass (%v): %q", n, err, first[:n])
	}
}

// TestPassesAreBounded: the oldest is forgotten.
func TestPassesAreBounded(t *testing.T) {
	p := newPasses()
	for i := range maxPasses + 2 {
		p.put(fmt.Sprint(i), "alice")
		p.put(fmt.Sprint(i), "bob")
	}
	if len(p.of) != maxPasses || p.order.Len() != maxPasses {
		t.Errorf("%d and %d passes are kept, want %d", len(p.of), p.order.Len(), maxPasses)
	}
	for i, want := range map[int]bool{0: false, 1: false, 2: true, maxPasses + 1: true} {
		if by, ok := p.take(fmt.Sprint(i)); ok != want || ok && by != "bob" {
			t.Errorf("pass %d is of %q: %t, want %t", i, by, ok, want)
		}
	}
}
