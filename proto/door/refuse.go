package door

import (
	"bytes"
	"errors"
	"net"

	"golang.org/x/sys/unix"

	"borg/proto/door/entrance"
)

// pickyListener closes connections that would get no turn for their handshake, before anything is
// allocated or started for them. Under a flood from an address most of what a connection costs is
// the goroutine, the buffers and the reads of one that comes to nothing.
type pickyListener struct {
	net.Listener
	passes *passes
}

// Accept returns the next connection that may get a turn, or that has not said enough to tell.
func (l *pickyListener) Accept() (net.Conn, error) {
	for {
		conn, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		tcp, ok := conn.(*net.TCPConn)
		if !ok || !l.refuses(tcp) {
			return conn, nil
		}
		entrance.Refuse(conn)
	}
}

// peekedBytes is how much of the first message is looked at: what a pass may be in.
const peekedBytes = 512

// refuses reports whether the other end has hung up already, or has said something without a known
// pass from an address whose guests get no turn now.
func (l *pickyListener) refuses(conn *net.TCPConn) bool {
	raw, err := conn.SyscallConn()
	if err != nil {
		return false
	}
	var peeked [peekedBytes]byte
	n := 0
	control := raw.Control(func(fd uintptr) { n, _, err = unix.Recvfrom(int(fd), peeked[:], unix.MSG_PEEK|unix.MSG_DONTWAIT) })
	if control != nil || errors.Is(err, unix.EAGAIN) {
		return false
	}
	if err != nil || n == 0 {
		return true
	}
	_, pass, shown := bytes.Cut(peeked[:n], []byte(passPrefix))
	if shown && len(pass) >= 2*passBytes && l.passes.has(string(pass[:2*passBytes])) {
		return false
	}
	return shaking.atDoors.Full(entrance.HostOf(conn.RemoteAddr()))
}
