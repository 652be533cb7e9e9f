package container

import (
	"errors"
	"slices"

	"golang.org/x/sys/unix"

	"borg/borglet"
)

// The kernel's tables do not show a TCP socket that is bound and neither listens nor is
// connected, though it keeps others from its port. Binding the port shows whether it has such
// a socket; asking the sockets of all tasks tells whose it is.

// bindable reports whether a TCP port can be bound on all addresses, with or without
// SO_REUSEADDR. A port that cannot be tried counts as bindable.
func bindable(port uint16, reuse bool) bool {
	fd, err := unix.Socket(unix.AF_INET6, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	var addr unix.Sockaddr = &unix.SockaddrInet6{Port: int(port)}
	if err == nil {
		err = unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_V6ONLY, 0)
	} else { // a kernel without IPv6
		addr = &unix.SockaddrInet4{Port: int(port)}
		if fd, err = unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0); err != nil {
			return true
		}
	}
	defer unix.Close(fd)
	if reuse {
		err = errors.Join(err, unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1))
	}
	return err != nil || !errors.Is(unix.Bind(fd, addr), unix.EADDRINUSE)
}

// boundBy returns the copies that have a TCP socket bound to a wanted port of the machine's
// network. A connection counts only if it keeps servers that set SO_REUSEADDR from the port.
// Ports that the kernel gives out do not count.
func boundBy(members map[borglet.ID][]int, wanted []uint32) map[borglet.ID][]uint16 {
	found := make(map[borglet.ID][]uint16)
	first, last := ephemeralPorts()
	connectionsCount := make(map[uint16]bool)
	for _, n := range wanted {
		if port := uint16(n); (port < first || port > last) && !bindable(port, false) {
			connectionsCount[port] = !bindable(port, true)
		}
	}
	network, err := networkCookie()
	if len(connectionsCount) == 0 || err != nil {
		return found
	}
	for id, pids := range members {
		for _, pid := range pids {
			visitBound(pid, network, func(port uint16, connected bool) {
				if count, taken := connectionsCount[port]; taken && (count || !connected) && !slices.Contains(found[id], port) {
					found[id] = append(found[id], port)
				}
			})
		}
	}
	return found
}

// networkCookie identifies the network of this process.
func networkCookie() (uint64, error) {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0, err
	}
	defer unix.Close(fd)
	return unix.GetsockoptUint64(fd, unix.SOL_SOCKET, unix.SO_NETNS_COOKIE)
}

// visitBound calls see for each TCP socket of a process that is bound in a network.
func visitBound(pid int, network uint64, see func(port uint16, connected bool)) {
	visitSockets(pid, func(tid, number int, _ socket) {
		if port, connected := boundAt(tid, number, network); port != 0 {
			see(port, connected)
		}
	})
}

// boundAt returns the port to which a descriptor of a thread is bound in a network; zero if it
// is no bound TCP socket of that network.
func boundAt(tid, number int, network uint64) (port uint16, connected bool) {
	fd, err := descriptorOf(tid, number)
	if err != nil {
		return 0, false
	}
	defer unix.Close(fd)
	_, err = unix.Getpeername(fd)
	return boundPort(fd, network), err == nil
}

// descriptorOf returns a copy of a descriptor of a thread. A thread that is not the first of
// its process needs Linux 6.9.
func descriptorOf(tid, number int) (int, error) {
	thread, err := unix.PidfdOpen(tid, 0)
	if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOENT) {
		thread, err = unix.PidfdOpen(tid, unix.PIDFD_THREAD)
	}
	if err != nil {
		return -1, err
	}
	defer unix.Close(thread)
	return unix.PidfdGetfd(thread, number, 0)
}

// boundPort returns the port of a TCP socket in a network; zero if it has none.
func boundPort(fd int, network uint64) uint16 {
	if kind, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_TYPE); err != nil || kind != unix.SOCK_STREAM {
		return 0
	}
	if at, err := unix.GetsockoptUint64(fd, unix.SOL_SOCKET, unix.SO_NETNS_COOKIE); err != nil || at != network {
		return 0
	}
	switch addr, _ := unix.Getsockname(fd); addr := addr.(type) {
	case *unix.SockaddrInet4:
		return uint16(addr.Port)
	case *unix.SockaddrInet6:
		return uint16(addr.Port)
	}
	return 0
}
