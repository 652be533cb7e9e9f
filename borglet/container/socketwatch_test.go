package container

import (
	"encoding/binary"
	"net"
	"os"
	"runtime"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"borg/borglet"
	"borg/borglet/sockets"
)

// inOwnNetwork puts the test into a network of its own, in which no other program has a socket.
// Only the goroutine that calls it is there.
func inOwnNetwork(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	runtime.LockOSThread() // for good: the thread ends with the goroutine
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		t.Fatal(err)
	}
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	lo, err := unix.NewIfreq("lo")
	if err != nil {
		t.Fatal(err)
	}
	lo.SetUint16(unix.IFF_UP)
	if err := unix.IoctlIfreq(fd, unix.SIOCSIFFLAGS, lo); err != nil {
		t.Fatal(err)
	}
}

// watched is a Runtime of which this process is the only task, on a machine whose sockets
// share little. look looks twice, as what is under way counts from the second look on.
func watched(t *testing.T, first, last uint16) (look func() sockets.Use) {
	t.Helper()
	inOwnNetwork(t)
	f := &family{id: borglet.ID{JobUID: "1-1-0", Attempt: 1}}
	r := &Runtime{backend: f, runs: map[borglet.ID]*run{f.id: {id: f.id, task: proc{Pid: os.Getpid()}}}}
	ports := int64(last-first) + 1
	r.sockets = socketWatch{first: first, last: last, machine: sockets.Use{8 << 20, 1 << 40, ports, ports, 0}}
	return func() sockets.Use {
		var held borglet.SocketsHeld
		for range 2 {
			r.sockets.inetDue, r.sockets.walkDue = time.Time{}, time.Time{}
			held, _ = r.SocketsHeld()
		}
		return held.Copies[f.id]
	}
}

// openSockets opens sockets and calls each for each of them.
func openSockets(t *testing.T, n, family, kind, protocol int, each func(fd, i int) error) (fds []int) {
	t.Helper()
	t.Cleanup(func() {
		for _, fd := range fds {
			unix.Close(fd)
		}
	})
	for i := range n {
		fd, err := unix.Socket(family, kind|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, protocol)
		if err != nil {
			t.Fatal(err)
		}
		fds = append(fds, fd)
		if err := each(fd, i); err != nil && err != unix.EINPROGRESS {
			t.Fatal(err)
		}
	}
	return fds
}

// underWay closes sockets after they were sent to sockets that nobody reads.
func underWay(t *testing.T, fds []int) {
	t.Helper()
	for some := range slices.Chunk(fds, 100) {
		ends, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { unix.Close(ends[0]); unix.Close(ends[1]) })
		send(t, ends[0], some)
	}
}

// send sends descriptors over a socket and closes them.
func send(t *testing.T, to int, fds []int) {
	t.Helper()
	if err := unix.Sendmsg(to, []byte{1}, unix.UnixRights(fds...), nil, unix.MSG_DONTWAIT); err != nil {
		t.Fatal(err)
	}
	for i, fd := range fds {
		unix.Close(fd)
		fds[i] = -1
	}
}

// unreadNetlink opens netlink sockets, asks each many times for something, and reads nothing.
func unreadNetlink(t *testing.T, n int) []int {
	request := make([]byte, 20)
	binary.NativeEndian.PutUint32(request[0:], uint32(len(request)))
	binary.NativeEndian.PutUint16(request[4:], unix.RTM_GETLINK)
	binary.NativeEndian.PutUint16(request[6:], unix.NLM_F_REQUEST|unix.NLM_F_ACK)
	return openSockets(t, n, unix.AF_NETLINK, unix.SOCK_RAW, unix.NETLINK_ROUTE, func(fd, _ int) error {
		if err := unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
			return err
		}
		for range 400 {
			_ = unix.Sendto(fd, request, unix.MSG_DONTWAIT, &unix.SockaddrNetlink{Family: unix.AF_NETLINK})
		}
		return nil
	})
}

// TestUnreadNetlink: messages that a task does not read are charged to it, also while its
// sockets are under way between its processes. A few are not looked at.
func TestUnreadNetlink(t *testing.T) {
	look := watched(t, 41000, 41999)
	unreadNetlink(t, 2)
	if held := look(); held[sockets.NetlinkBytes] > 1<<20 {
		t.Errorf("two sockets are %d bytes", held[sockets.NetlinkBytes])
	}
	fds := unreadNetlink(t, 20)
	before := look()[sockets.NetlinkBytes]
	if before < 2<<20 || before > 64<<20 {
		t.Errorf("twenty sockets are %d bytes, want some MiB", before)
	}
	underWay(t, fds)
	if after := look()[sockets.NetlinkBytes]; after < before/2 {
		t.Errorf("under way they are %d bytes, before they were %d", after, before)
	}
}

// TestGivenPorts: the ports that a task binds of those that the kernel gives out are counted,
// listening or not, connected, or under way. Those of its connections that the kernel chose
// are not.
func TestGivenPorts(t *testing.T) {
	const first, last, n = 41000, 41999, 400
	bind := func(fd, i int) error {
		return unix.Bind(fd, &unix.SockaddrInet4{Port: first + i, Addr: [4]byte{127, 0, 0, 1}})
	}
	to := &unix.SockaddrInet4{Port: 40999, Addr: [4]byte{127, 0, 0, 1}}
	for _, test := range []struct {
		name string
		pool sockets.Pool
		kind int
		each func(fd, i int) error
		send bool
		want int64
	}{
		{"bound", sockets.TCPPorts, unix.SOCK_STREAM, bind, false, n},
		{"listening", sockets.TCPPorts, unix.SOCK_STREAM, func(fd, i int) error {
			_ = bind(fd, i)
			return unix.Listen(fd, 1)
		}, false, n},
		{"under way", sockets.TCPPorts, unix.SOCK_STREAM, bind, true, n},
		{"bound and connected", sockets.TCPPorts, unix.SOCK_STREAM, func(fd, i int) error {
			_ = bind(fd, i)
			return unix.Connect(fd, to)
		}, false, n},
		{"connected", sockets.TCPPorts, unix.SOCK_STREAM, func(fd, _ int) error {
			if err := unix.SetsockoptInt(fd, unix.IPPROTO_IP, localPortRange, last<<16|first); err != nil {
				t.Skip(err)
			}
			return unix.Connect(fd, to)
		}, false, 0},
		{"UDP", sockets.UDPPorts, unix.SOCK_DGRAM, bind, false, n},
	} {
		t.Run(test.name, func(t *testing.T) {
			look := watched(t, first, last)
			server, err := net.Listen("tcp4", "127.0.0.1:40999")
			if err != nil {
				t.Fatal(err)
			}
			defer server.Close()
			fds := openSockets(t, n, unix.AF_INET, test.kind, 0, test.each)
			if test.send {
				underWay(t, fds)
			}
			if held := look()[test.pool]; held < test.want/2 || held > test.want*3/2 {
				tables, _ := os.ReadFile("/proc/thread-self/net/tcp")
				t.Errorf("it holds %d ports, want %d; the kernel's table:\n%s", held, test.want, tables)
			}
		})
	}
}
