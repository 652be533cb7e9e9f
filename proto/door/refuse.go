package door

import (
	"bytes"
	"errors"
	"net"
	"os"
	"slices"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"borg/proto/door/entrance"
)

// pickyListener keeps connections back that would not get the next turn for a handshake, before
// anything is allocated or started for them: in a flood, the goroutine, the buffers and the reads
// of a connection cost more than accepting it does.
//
// Once it has met such a connection it takes others straight from the kernel, those of acceptRest at
// a time, until none comes within that time. The newest goes on when its address may have a turn
// again, and the oldest is closed when there are too many. One that is closed costs five system
// calls, and wakes nobody. Accept must be called by one goroutine.
type pickyListener struct {
	net.Listener
	passes *passes
	// Reports whether a new guest of an address that shows no pass would not get the next turn.
	full func(host string) bool
	// Connections that are kept back, the newest one last.
	back []backed
	// A connection was kept back lately.
	flood bool
}

// backed is a connection that is kept back, and its address.
type backed struct {
	socket int
	// See entrance.HostOf.
	host string
}

const (
	// acceptRest is how long connections of a flood wait in the kernel's queue at most.
	acceptRest = 2 * time.Millisecond
	// maxBack bounds the connections that a listener keeps back.
	maxBack = 64
)

// verdict is what becomes of a connection that has come.
type verdict int

const (
	// It may get a turn, or has sent nothing yet.
	letIn verdict = iota
	// Its address is crowded.
	keepBack
	// The other end has hung up.
	gone
)

// Accept returns the next connection that may get a turn, or that has sent nothing yet.
func (l *pickyListener) Accept() (net.Conn, error) {
	for {
		if l.flood {
			if conn, err := l.fromKernel(); conn != nil || err != nil {
				return conn, err
			}
			l.flood = false
		}
		conn, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		tcp, ok := conn.(*net.TCPConn)
		if !ok {
			return conn, nil
		}
		is := l.judge(tcp)
		if is == letIn {
			return conn, nil
		}
		_, l.flood = l.Listener.(syscall.Conn)
		if is == gone || !l.flood || !l.keep(tcp) {
			entrance.Refuse(conn)
		}
	}
}

// keep keeps back a connection that the listener has accepted, and reports false if it could not.
func (l *pickyListener) keep(conn *net.TCPConn) bool {
	raw, err := conn.SyscallConn()
	if err != nil {
		return false
	}
	var socket int
	closed := raw.Control(func(fd uintptr) { socket, err = unix.FcntlInt(fd, unix.F_DUPFD_CLOEXEC, 0) })
	if closed != nil || err != nil {
		return false
	}
	l.back = append(l.back, backed{socket, entrance.HostOf(conn.RemoteAddr())})
	conn.Close()
	return true
}

// fromKernel returns the next connection, as Accept, or nil if none has come for acceptRest and none
// is kept back.
func (l *pickyListener) fromKernel() (net.Conn, error) {
	raw, err := l.Listener.(syscall.Conn).SyscallConn()
	if err != nil {
		return nil, err
	}
	for quiet := false; ; {
		var socket int
		var from unix.Sockaddr
		if closed := raw.Control(func(fd uintptr) {
			socket, from, err = unix.Accept4(int(fd), unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC)
		}); closed != nil {
			l.drop(len(l.back))
			return nil, closed
		}
		switch {
		case err == nil:
			quiet = false
			if socket, ok := l.sort(backed{socket, hostOf(from)}); ok {
				if conn := connOf(socket); conn != nil {
					return conn, nil
				}
			}
		case errors.Is(err, unix.EINTR), errors.Is(err, unix.ECONNABORTED):
		case !errors.Is(err, unix.EAGAIN):
			return nil, &net.OpError{Op: "accept", Net: "tcp", Addr: l.Addr(), Err: os.NewSyscallError("accept4", err)}
		default:
			if socket, ok := l.newest(); ok {
				if conn := connOf(socket); conn != nil {
					return conn, nil
				}
				continue
			}
			if quiet && len(l.back) == 0 {
				return nil, nil
			}
			quiet = true
			time.Sleep(acceptRest)
		}
	}
}

// sort keeps a connection back or closes it, or returns it to be let in.
func (l *pickyListener) sort(c backed) (socket int, in bool) {
	switch l.judgeSocket(c.socket, c.host) {
	case letIn:
		return c.socket, true
	case gone:
		entrance.RefuseSocket(c.socket)
	case keepBack:
		if l.back = append(l.back, c); len(l.back) > maxBack {
			l.drop(1)
		}
	}
	return 0, false
}

// newest returns the newest connection that is kept back and may get a turn now.
func (l *pickyListener) newest() (socket int, ok bool) {
	full := ""
	for i := len(l.back) - 1; i >= 0; i-- {
		c := l.back[i]
		if c.host == full {
			continue
		}
		if l.full(c.host) {
			full = c.host
			continue
		}
		switch l.judgeSocket(c.socket, c.host) {
		case letIn:
			l.back = slices.Delete(l.back, i, i+1)
			return c.socket, true
		case gone:
			entrance.RefuseSocket(c.socket)
			l.back = slices.Delete(l.back, i, i+1)
		}
	}
	return 0, false
}

// drop closes the oldest connections that are kept back.
func (l *pickyListener) drop(n int) {
	for _, c := range l.back[:n] {
		entrance.RefuseSocket(c.socket)
	}
	l.back = slices.Delete(l.back, 0, n)
}

// hostOf is entrance.HostOf for an address of the kernel.
func hostOf(from unix.Sockaddr) string {
	switch from := from.(type) {
	case *unix.SockaddrInet4:
		return entrance.HostOf(&net.TCPAddr{IP: from.Addr[:]})
	case *unix.SockaddrInet6:
		return entrance.HostOf(&net.TCPAddr{IP: from.Addr[:]})
	}
	return ""
}

// connOf returns a connection that was taken from the kernel as a listener of Listen returns it, or
// nil if the other end has reset it. It takes the socket over.
func connOf(socket int) net.Conn {
	f := os.NewFile(uintptr(socket), "tcp")
	defer f.Close()
	conn, err := net.FileConn(f)
	if err != nil {
		return nil
	}
	tcp, ok := conn.(*net.TCPConn)
	if !ok || tcp.RemoteAddr() == nil || tcp.SetKeepAlive(false) != nil {
		conn.Close()
		return nil
	}
	return tcp
}

// peekedBytes is how much of the first message is searched for a pass (see entrance.PassMark).
const peekedBytes = 512

// judge decides about a connection of Listener.
func (l *pickyListener) judge(conn *net.TCPConn) verdict {
	raw, err := conn.SyscallConn()
	if err != nil {
		return letIn
	}
	is := letIn
	// If it fails the connection is closed, which the next read shows.
	_ = raw.Control(func(fd uintptr) { is = l.judgeSocket(int(fd), entrance.HostOf(conn.RemoteAddr())) })
	return is
}

// judgeSocket decides by what has come from the other end: without a known pass it is kept back if
// its address is full.
func (l *pickyListener) judgeSocket(socket int, host string) verdict {
	var peeked [peekedBytes]byte
	n, _, err := unix.Recvfrom(socket, peeked[:], unix.MSG_PEEK|unix.MSG_DONTWAIT)
	if errors.Is(err, unix.EAGAIN) {
		return letIn
	}
	if err != nil || n == 0 {
		return gone
	}
	_, pass, shown := bytes.Cut(peeked[:n], []byte(passPrefix))
	if shown && len(pass) >= 2*passBytes && l.passes.has(string(pass[:2*passBytes])) {
		return letIn
	}
	if l.full(host) {
		return keepBack
	}
	return letIn
}
