package door

import (
	"bufio"
	"crypto/rand"
	"crypto/tls"
	"io"
	"net"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"borg/identity"
	"borg/proto/door/entrance"
)

// pipes is a listener whose connections are made by the test.
type pipes chan net.Conn

func (p pipes) Accept() (net.Conn, error) {
	conn, ok := <-p
	if !ok {
		return nil, net.ErrClosed
	}
	return conn, nil
}
func (pipes) Close() error   { return nil }
func (pipes) Addr() net.Addr { return &net.TCPAddr{} }

// cameFrom is a connection from an address.
type cameFrom struct {
	net.Conn
	addr net.Addr
}

func (c cameFrom) RemoteAddr() net.Addr { return c.addr }

func pipeFrom(last byte) (here cameFrom, there net.Conn) {
	end, there := net.Pipe()
	return cameFrom{end, &net.TCPAddr{IP: net.IPv4(10, 0, 0, last), Port: 1}}, there
}

// TestAGoodCallerOfPagesIsKnown: after a handshake of a member of the cell at a listener for pages its address is known,
// and goes before strangers of whom one is older and one is newer.
func TestAGoodCallerOfPagesIsKnown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		defer func(was *entrance.Turns) { shaking.atDoors = was }(shaking.atDoors)
		shaking.atDoors = entrance.NewTurns(1)
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
		own, alice := named(identity.Borglet, "m1"), named(identity.User, "alice")
		server := &http.Server{TLSConfig: own.ServerTLS(), Handler: http.NotFoundHandler()}
		server.TLSConfig.NextProtos = []string{"http/1.1"}
		accepted := make(pipes)
		l := newLobby(accepted)
		ended := make(chan error)
		go func() { ended <- l.serve(server, own) }()
		here, there := pipeFrom(1)
		accepted <- here
		client := tls.Client(there, &tls.Config{InsecureSkipVerify: true, Certificates: []tls.Certificate{*alice.Current().TLS()}})
		if _, err := io.WriteString(client, "GET / HTTP/1.1\r\nHost: m1\r\n\r\n"); err != nil {
			t.Fatal(err)
		}
		if _, err := http.ReadResponse(bufio.NewReader(client), nil); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()

		guest := func(last byte) *entrance.Guest {
			conn, _ := pipeFrom(last)
			return l.waiting.Enter(conn, shaking.atDoors)
		}
		holder := guest(9)
		if err := holder.Begin(); err != nil {
			t.Fatal(err)
		}
		order := make(chan byte, 3)
		for _, last := range []byte{2, 1, 3} {
			g := guest(last)
			go func() {
				if g.Begin() == nil {
					order <- last
				}
				g.Leave()
			}()
			synctest.Wait()
		}
		holder.Leave()
		if first := <-order; first != 1 {
			t.Errorf("the first turn goes to the stranger 10.0.0.%d and not to the address that is known", first)
		}
		close(accepted)
		<-ended
		server.Close()
	})
}

// TestADroppedConnectionTakesNoPlace: a connection that was dropped for newer ones, and whose request was read before
// that, drops nobody whose answer is under way.
func TestADroppedConnectionTakesNoPlace(t *testing.T) {
	one := entrance.Limits{Host: 1, All: 1}
	accepted := make(pipes, 1)
	l := &lobby{Listener: accepted, waiting: entrance.NewHall(one), answered: entrance.NewHall(one), plain: true}
	accept := func() (server, client net.Conn) {
		here, there := pipeFrom(1)
		accepted <- here
		conn, err := l.Accept()
		if err != nil {
			t.Fatal(err)
		}
		return conn, there
	}
	served, reader := accept()
	l.moved(served, http.StateActive)
	dropped, _ := accept()
	accept()
	l.moved(dropped, http.StateActive)
	go func() { _, _ = io.WriteString(served, "x") }()
	if _, err := io.ReadFull(reader, make([]byte, 1)); err != nil {
		t.Errorf("the connection that is served: %v", err)
	}
	// What is over is over.
	l.moved(dropped, http.StateClosed)
	l.moved(served, http.StateIdle)
	l.moved(served, http.StateClosed)
}
