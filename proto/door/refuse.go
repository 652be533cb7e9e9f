package door

import (
	"bytes"
	"errors"
	"net"

	"golang.org/x/sys/unix"

	"borg/proto/door/entrance"
)

// pickyListener closes connections that would get no turn for their handshake before anything is
// allocated or started for them. In a flood, the goroutine, the buffers and the reads of a
// connection cost more than accepting it does.
type pickyListener struct {
	net.Listener
	passes *passes
	// Reports whether a guest of an address that shows no pass would get no turn.
	full func(host string) bool
}

// Accept returns the next connection that may get a turn, or that has sent nothing yet.
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

// peekedBytes is how much of the first message is searched for a pass (see entrance.PassMark).
const peekedBytes = 512

// refuses reports whether the other end has hung up already, or has sent something without a known
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
	return l.full(entrance.HostOf(conn.RemoteAddr()))
}
