package main

import (
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"testing"
	"time"
)

// echoWire is a wire in front of a server that sends back what it gets, and a
// way to dial it.
func echoWire(t *testing.T) (w *wire, dial func() net.Conn) {
	t.Helper()
	server, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var serving sync.WaitGroup
	t.Cleanup(serving.Wait)
	serving.Go(func() {
		for {
			conn, err := server.Accept()
			if err != nil {
				return
			}
			serving.Go(func() {
				defer conn.Close()
				_, _ = io.Copy(conn, conn)
			})
		}
	})
	w = newWire()
	w.nameOf = func(_, _ *net.TCPAddr) string { return "a" }
	w.door(t, "b", "127.0.0.1:0", server.Addr().String())
	t.Cleanup(w.close)
	t.Cleanup(func() { server.Close() })
	return w, func() net.Conn {
		conn, err := net.Dial("tcp", w.listeners[0].Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { conn.Close() })
		return conn
	}
}

// What a word that was sent comes to.
const (
	whole  = "whole"
	gone   = "gone"
	silent = "silent"
)

// comes sends a word, unless there is none to send, and checks what comes back
// of so many bytes.
func comes(t *testing.T, conn net.Conn, when, word string, send bool, want string) {
	t.Helper()
	if send {
		if _, err := conn.Write([]byte(word)); err != nil {
			if want != gone {
				t.Errorf("%s: %v, want %s", when, err, want)
			}
			return
		}
	}
	// That nothing comes can only be told by a time; anything else is waited for.
	limit := patience
	if want == silent {
		limit = 200 * time.Millisecond
	}
	if err := conn.SetReadDeadline(time.Now().Add(limit)); err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, len(word))
	n, err := io.ReadFull(conn, buf)
	is := gone
	if string(buf[:n]) == word {
		is = whole
	} else if errors.Is(err, os.ErrDeadlineExceeded) {
		is = silent
	}
	if is != want {
		t.Errorf("%s: %s (%q, %v), want %s", when, is, buf[:n], err, want)
	}
}

// Each fault does to a connection what its field says, each way alone, and a
// healed wire carries again.
func TestWireFaults(t *testing.T) {
	out, back := link{"a", "b"}, link{"b", "a"}
	for _, c := range []struct {
		name string
		on   link
		f    fault
		// What comes of a word under the fault, and of one after it.
		then, after string
		// What a connection made under the fault gets.
		fresh string
	}{
		{"nothing", out, fault{}, whole, whole, whole},
		{"hold out", out, fault{hold: true}, silent, whole, silent},
		{"hold back", back, fault{hold: true}, silent, whole, silent},
		{"lose out", out, fault{lose: true}, silent, gone, silent},
		{"lose back", back, fault{lose: true}, silent, gone, silent},
		{"shut back", back, fault{shut: true}, gone, gone, silent},
		{"reset", out, fault{reset: 1}, gone, gone, gone},
		{"delay", out, fault{delay: 20 * time.Millisecond, jitter: 20 * time.Millisecond}, whole, whole, whole},
		{"drip", back, fault{bytesPerS: 200}, whole, whole, whole},
	} {
		t.Run(c.name, func(t *testing.T) {
			w, dial := echoWire(t)
			conn := dial()
			comes(t, conn, "before the fault", "first", true, whole)
			w.set(c.on, c.f)
			comes(t, conn, "under the fault", "second", true, c.then)
			fresh := dial()
			comes(t, fresh, "a new connection", "third", true, c.fresh)
			w.heal()
			if c.then == silent && c.after == whole {
				comes(t, conn, "what was held", "second", false, whole)
			}
			comes(t, conn, "healed", "fourth", true, c.after)
			if c.fresh == silent {
				comes(t, fresh, "a new connection, healed", "third", false, whole)
			}
		})
	}
}

// A wire tells who dials by the sockets of processes.
func TestWireKnowsDiallers(t *testing.T) {
	l := testLayout(t)
	c := &Cell{layout: l, sup: newSupervisor(nil, l.recordPath())}
	_, dial := echoWire(t)
	conn := dial()
	local, remote := conn.LocalAddr().(*net.TCPAddr), conn.RemoteAddr().(*net.TCPAddr)
	inode := inodes()[[2]string{kernelAddr(local), kernelAddr(remote)}]
	for _, x := range []struct {
		pid  int
		want string
	}{{os.Getpid(), "it"}, {os.Getppid(), "it"}, {1 << 30, ""}} {
		if got := owners(map[int]string{x.pid: "it"})[inode]; got != x.want {
			t.Errorf("with process %d known, the socket %q is of %q, want %q", x.pid, inode, got, x.want)
		}
	}
	if parentOf(os.Getpid()) != os.Getppid() {
		t.Errorf("parentOf = %d, want %d", parentOf(os.Getpid()), os.Getppid())
	}
	if got := (&census{c: c}).whoDialled(local, remote); got != outside {
		t.Errorf("whoDialled = %q, want %q", got, outside)
	}
}
