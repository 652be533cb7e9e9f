package fleet

import (
	"fmt"
	"net"
	"syscall"

	"golang.org/x/sys/unix"
)

// A machine that is away does not take connections either. The kernel drops what asks for
// one, as of a host that is not there: were it to answer for us, each try of a master would
// cost both ends the beginning of a handshake that no dead host is sent.

// ipDestination is where an IPv4 header has its destination.
const ipDestination = 16

// netHeader is added to an offset that counts from the network's header (SKF_NET_OFF).
const netHeader = -0x100000

// dropAway is a filter of packets that takes all but those to machines k with
// k % of < part.
func dropAway(part, of int) []unix.SockFilter {
	b := base.As4()
	first := uint32(b[0])<<24 | uint32(b[1])<<16 | uint32(b[2])<<8 | uint32(b[3])
	destination := int32(netHeader + ipDestination)
	return []unix.SockFilter{
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: uint32(destination)},
		{Code: unix.BPF_ALU | unix.BPF_SUB | unix.BPF_K, K: first},
		{Code: unix.BPF_ALU | unix.BPF_MOD | unix.BPF_K, K: uint32(of)},
		{Code: unix.BPF_JMP | unix.BPF_JGE | unix.BPF_K, K: uint32(part), Jt: 1},
		{Code: unix.BPF_RET | unix.BPF_K, K: 0},
		{Code: unix.BPF_RET | unix.BPF_K, K: ^uint32(0)},
	}
}

// filter has a listener drop what is for the machines that are away; of 0: nothing.
// Connections that were made under a filter keep it: they are of machines that it takes.
func filter(raw syscall.RawConn, part, of int) error {
	var err error
	ctlErr := raw.Control(func(fd uintptr) {
		if of == 0 {
			if err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_DETACH_FILTER, 0); err == unix.ENOENT {
				err = nil
			}
			return
		}
		program := dropAway(part, of)
		err = unix.SetsockoptSockFprog(int(fd), unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &unix.SockFprog{Len: uint16(len(program)), Filter: &program[0]})
	})
	if ctlErr != nil {
		return ctlErr
	}
	if err != nil {
		return fmt.Errorf("have the kernel drop connections to machines that are away: %w", err)
	}
	return nil
}

// rawOf is the socket of a listener, if it has one.
func rawOf(l net.Listener) (syscall.RawConn, bool) {
	if own, ok := l.(*ownListener); ok {
		l = own.Listener
	}
	c, ok := l.(syscall.Conn)
	if !ok {
		return nil, false
	}
	raw, err := c.SyscallConn()
	return raw, err == nil
}
