package container

import (
	"errors"
	"maps"
	"math/rand/v2"
	"slices"

	"golang.org/x/sys/unix"
)

const (
	// portSamples is how many ports are tried to find out how many are in use.
	portSamples = 128
	// connectSamples is how many ports of a task's connections are tried, and connectsMany is
	// the number of connections from which that is worth it.
	connectSamples = 32
	connectsMany   = 16
	// localPortRange is IP_LOCAL_PORT_RANGE of ip(7), of Linux 6.3 and later.
	localPortRange = 51
)

// busyPorts tries portSamples random TCP ports and returns those in use. The kernel's tables
// do not have them all.
func busyPorts(first, last uint16) (busy []uint16) {
	for range portSamples {
		port := randomPort(first, last)
		if !bindable(port, false) {
			busy = append(busy, port)
		}
	}
	return busy
}

func randomPort(first, last uint16) uint16 {
	return first + uint16(rand.IntN(int(last)-int(first)+1))
}

// explicitlyBound estimates how many of a task's connections have a port that a program bound
// before it connected. The kernel gives such a port to no other connection, while it gives
// one that it chose itself to connections with other destinations. It returns zero if the
// kernel gives out not even a free port: then nothing follows from the others.
func explicitlyBound(connected map[uint16]bool, first, last uint16) int {
	if len(connected) < connectsMany {
		return 0
	}
	tried, taken := 0, 0
	ports := slices.Collect(maps.Keys(connected))
	rand.Shuffle(len(ports), func(i, j int) { ports[i], ports[j] = ports[j], ports[i] })
	for _, port := range ports[:min(len(ports), connectSamples)] {
		tried++
		if !connectable(port) {
			taken++
		}
	}
	if taken > 0 && !freeIsConnectable(first, last) {
		return 0
	}
	return len(connected) * taken / tried
}

// freeIsConnectable reports whether the kernel gives a connection one of some random free ports.
func freeIsConnectable(first, last uint16) bool {
	for range connectSamples {
		port := randomPort(first, last)
		if bindable(port, false) && connectable(port) {
			return true
		}
	}
	return false
}

// connectable reports whether the kernel can give a TCP port to a connection. A port that
// cannot be tried counts as connectable.
func connectable(port uint16) bool {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return true
	}
	defer unix.Close(fd)
	if unix.SetsockoptInt(fd, unix.IPPROTO_IP, localPortRange, int(port)<<16|int(port)) != nil {
		return true
	}
	// Nobody listens there: the connection is refused and leaves nothing behind.
	err = unix.Connect(fd, &unix.SockaddrInet4{Addr: [4]byte{127, 255, 255, 254}, Port: 1})
	return !errors.Is(err, unix.EADDRNOTAVAIL)
}
