package entrance

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"math/big"
	"net"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
)

// helloServer is a configuration of a server whose guests wait as at a door, and say when they have their first turn.
func helloServer(t *testing.T, begun func(name string)) *tls.Config {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	about := &x509.Certificate{SerialNumber: big.NewInt(1)}
	cert, err := x509.CreateCertificate(rand.Reader, about, about, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	return &tls.Config{
		Certificates: []tls.Certificate{{Certificate: [][]byte{cert}, PrivateKey: key}}, NextProtos: []string{"h2"},
		GetConfigForClient: func(hello *tls.ClientHelloInfo) (*tls.Config, error) {
			guest := hello.Conn.(*Guest)
			if slices.Contains(hello.SupportedProtos, PassMark+"1") {
				guest.Vouch("alice")
			}
			err := guest.Begin()
			begun(hello.ServerName)
			return nil, err
		},
	}
}

// TestAPassGoesFirstInARealHandshake: the first message of Go's own client is read in two pieces. With a pass its sender
// waits among those that are vouched for, and goes before a stranger that is newer.
func TestAPassGoesFirstInARealHandshake(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, turns := NewHall(Limits{Host: 10, All: 10}), NewTurns(1)
		holder := h.Enter(from("10.0.0.9"), turns)
		if err := holder.Begin(); err != nil {
			t.Fatal(err)
		}
		order := make(chan string, 10)
		config := helloServer(t, func(name string) { order <- name })
		visit := func(name string, protos ...string) *Guest {
			here, there := net.Pipe()
			guest := h.Enter(here, turns)
			client := tls.Client(there, &tls.Config{InsecureSkipVerify: true, ServerName: name, NextProtos: append(protos, "h2")})
			go func() {
				if err := client.Handshake(); err != nil {
					t.Errorf("%s: %v", name, err)
				}
			}()
			go func() {
				if err := tls.Server(guest, config).Handshake(); err != nil || !guest.Leave() {
					t.Errorf("%s at the server: %v", name, err)
				}
			}()
			synctest.Wait()
			return guest
		}
		member := visit("member.test", PassMark+"1")
		visit("stranger.test")
		if want := (place{"alice", vouched}); member.at != want {
			t.Errorf("with a pass it waits as %+v, want %+v", member.at, want)
		}
		holder.Leave()
		if got := []string{<-order, <-order}; strings.Join(got, " ") != "member.test stranger.test" {
			t.Errorf("the turns go to %q", got)
		}
		synctest.Wait()
		if turns.Free() != 1 {
			t.Error("a turn is lost")
		}
	})
}

// pieces is a connection from which each read takes the next piece.
type pieces struct {
	*fakeConn
	left []string
}

func (c *pieces) Read(b []byte) (int, error) {
	n := copy(b, c.left[0])
	c.left = c.left[1:]
	return n, nil
}

// TestAMarkCountsForTheFirstRecord: after it, and without the mark in what was read first, nothing is read without a turn.
func TestAMarkCountsForTheFirstRecord(t *testing.T) {
	const head = "\x16\x03\x01\x00\x20"
	record := head + PassMark + strings.Repeat("x", 0x20-len(PassMark))
	for _, at := range []struct {
		say  []string
		free int // The number of reads without a turn.
	}{
		{[]string{record, record}, 1},
		{[]string{record[:3], record[3:20], record}, 0},
		{[]string{record[:20], record[20:25], record[25:], record}, 3},
		{[]string{head + strings.Repeat("x", 20), PassMark}, 0},
	} {
		turns := NewTurns(1)
		g := NewHall(Limits{Host: 1, All: 1}).Enter(&pieces{from("10.0.0.1"), at.say}, turns)
		free := -1
		for n := range at.say {
			if _, err := g.Read(make([]byte, 100)); err != nil {
				t.Fatal(err)
			}
			if turns.Free() == 0 {
				free = n
				break
			}
		}
		if free != at.free {
			t.Errorf("of %q it reads %d without a turn, want %d", at.say, free, at.free)
		}
		g.Leave()
	}
}
