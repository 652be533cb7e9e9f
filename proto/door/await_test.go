package door

import (
	"errors"
	"net"
	"syscall"
	"testing"
)

// TestAwait: an address that somebody else has is listened on as soon as it is free, and the
// wait is told when it begins and when it ends.
func TestAwait(t *testing.T) {
	other, err := Listen("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr, told := other.Addr().String(), make(chan error, 10)
	l, err := Await(addr, func(err error) { told <- err })
	if err != nil {
		t.Fatal(err)
	}
	if l.Addr().String() != addr {
		t.Errorf("it says it is at %s, want %s", l.Addr(), addr)
	}
	if err := <-told; !errors.Is(err, syscall.EADDRINUSE) {
		t.Errorf("the wait is told as %v", err)
	}
	accepted := make(chan error, 1)
	go func() {
		conn, err := l.Accept()
		if err == nil {
			conn.Close()
		}
		accepted <- err
	}()
	other.Close()
	if err := <-told; err != nil {
		t.Errorf("the end of the wait is told as %v", err)
	}
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	conn.Close()
	if err := <-accepted; err != nil {
		t.Errorf("Accept: %v", err)
	}
	if err := l.Close(); err != nil {
		t.Errorf("Close: %v", err)
	}
}

// TestAwaitCloses: a listener that waits for its address can be closed.
func TestAwaitCloses(t *testing.T) {
	other, err := Listen("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	l, err := Await(other.Addr().String(), func(error) {})
	if err != nil {
		t.Fatal(err)
	}
	accepted := make(chan error, 1)
	go func() {
		_, err := l.Accept()
		accepted <- err
	}()
	l.Close()
	if err := <-accepted; !errors.Is(err, net.ErrClosed) {
		t.Errorf("Accept of a closed listener returns %v", err)
	}
}
