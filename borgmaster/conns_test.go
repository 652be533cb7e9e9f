package borgmaster

import (
	"crypto/rand"
	"errors"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc/connectivity"

	"borg/identity"
	"borg/proto/borgrpc"
	"borg/proto/door"
)

// connsCell is a replica's connections, and a borglet to connect to.
type connsCell struct {
	*conns
	t       *testing.T
	borglet *identity.Source
	m1      identity.Name
}

func newConnsCell(t *testing.T) *connsCell {
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
	began := time.Now()
	c := &connsCell{conns: newConns(named(identity.Master, "1"), func() int64 { return int64(time.Since(began)) }), t: t, borglet: named(identity.Borglet, "m1")}
	c.m1 = c.named(identity.Borglet, "m1")
	t.Cleanup(c.close)
	return c
}

// serve is the borglet at an address until the test ends.
func (c *connsCell) serve(l net.Listener) {
	s := door.NewServer(door.Config{Identity: c.borglet})
	borgrpc.RegisterBorgletServiceServer(s, borgrpc.UnimplementedBorgletServiceServer{})
	var serving sync.WaitGroup
	serving.Go(func() { _ = s.Serve(l) })
	c.t.Cleanup(func() { s.Stop(); serving.Wait() })
}

func (c *connsCell) until(what string, ok func() bool) {
	c.t.Helper()
	for began := time.Now(); !ok(); time.Sleep(10 * time.Millisecond) {
		if time.Since(began) > 5*time.Minute {
			c.t.Fatal("waited in vain until " + what)
		}
	}
}

func listen(t *testing.T, addr string) net.Listener {
	t.Helper()
	l, err := net.Listen("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// TestConnectionsToBorglets: a connection that fails is tried again when a machine is
// polled, at once, and hardly ever by itself.
func TestConnectionsToBorglets(t *testing.T) {
	c := newConnsCell(t)
	l := listen(t, "127.0.0.1:0")
	at := l.Addr().String()
	// Whoever connects is hung up on.
	var tries atomic.Int64
	refusing := make(chan struct{})
	go func() {
		defer close(refusing)
		for {
			conn, err := l.Accept()
			if errors.Is(err, net.ErrClosed) {
				return
			}
			if err == nil {
				tries.Add(1)
				conn.Close()
			}
		}
	}()
	conn, err := c.to(c.m1, at)
	if err != nil {
		t.Fatal(err)
	}
	for n := range int64(5) {
		c.connect(conn)
		c.until("it was tried once more", func() bool { return tries.Load() > n })
	}
	before := tries.Load()
	time.Sleep(3 * time.Second)
	if more := tries.Load() - before; more > 3 {
		t.Errorf("it was tried %d times within 3 s, though nobody polled", more)
	}
	l.Close()
	<-refusing
	c.serve(listen(t, at))
	c.until("it is connected", func() bool {
		c.connect(conn)
		return conn.GetState() == connectivity.Ready
	})
}

// TestOutOfTurn: a machine that is tried out of doubt does not wait behind those whose
// connections are being made, also when it failed before.
func TestOutOfTurn(t *testing.T) {
	c := newConnsCell(t)
	for range maxDialing {
		c.dialing <- struct{}{}
	}
	l := listen(t, "127.0.0.1:0")
	addr := l.Addr().String()
	l.Close()
	conn, err := c.outOfTurn(c.m1, addr)
	if err != nil {
		t.Fatal(err)
	}
	c.until("it has failed", func() bool { return conn.GetState() == connectivity.TransientFailure })
	c.serve(listen(t, addr))
	if _, err := c.outOfTurn(c.m1, addr); err != nil {
		t.Fatal(err)
	}
	c.until("it is made", func() bool { return conn.GetState() == connectivity.Ready })
}

// TestStandBy: a connection that may be needed is made while nobody waits for another.
func TestStandBy(t *testing.T) {
	c := newConnsCell(t)
	l := listen(t, "127.0.0.1:0")
	c.serve(l)
	addr := l.Addr().String()
	c.dialing <- struct{}{}
	if c.standBy(c.m1, addr) {
		t.Error("it is begun while another one is waited for")
	}
	<-c.dialing
	if !c.standBy(c.m1, addr) {
		t.Error("it is not begun")
	}
	conn, err := c.to(c.m1, addr)
	if err != nil {
		t.Fatal(err)
	}
	c.until("it is made", func() bool { return conn.GetState() == connectivity.Ready })
	if c.standBy(c.m1, addr) {
		t.Error("it is there, and begun again")
	}
}
