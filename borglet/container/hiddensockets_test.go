package container

import (
	"os"
	"os/exec"
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"borg/borglet"
	"borg/borglet/sockets"
)

// neighbors is a backend with this process as one copy, and another process as a second.
type neighbors struct {
	backend
	pids map[borglet.ID][]int
	// before, if set, is called before the processes are listed, when the tables have been
	// read and no descriptors yet.
	before func()
}

func (n *neighbors) members(map[borglet.ID]proc) (map[borglet.ID][]int, error) {
	if n.before != nil {
		n.before()
	}
	return n.pids, nil
}

func (n *neighbors) cgroups(map[borglet.ID]proc) map[borglet.ID]paths { return nil }

var (
	innocent = borglet.ID{JobUID: "1-1-0", Attempt: 1}
	offender = borglet.ID{JobUID: "2-2-0", Attempt: 1}
)

// neighborhood returns a Runtime of these copies, on a machine whose sockets share little. The
// first has a descriptor in flight.
func neighborhood(t *testing.T, n *neighbors) (look func() borglet.SocketsHeld) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	null, err := unix.Open("/dev/null", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	underWay(t, []int{null})
	n.pids = map[borglet.ID][]int{innocent: {os.Getpid()}}
	r := &Runtime{backend: n, runs: map[borglet.ID]*run{innocent: {id: innocent, task: proc{Pid: os.Getpid()}}}}
	r.sockets = socketWatch{first: 41000, last: 41999, machine: sockets.Use{8 << 20, 1 << 40, 1000, 1000, 0}}
	return func() borglet.SocketsHeld {
		r.sockets.inetDue, r.sockets.walkDue = time.Time{}, time.Time{}
		held, _ := r.SocketsHeld()
		return held
	}
}

// TestClosedMeanwhile: sockets that somebody closes after the tables were read, again and again,
// are not charged to a copy that has something in flight.
func TestClosedMeanwhile(t *testing.T) {
	const first, count = 41000, 400
	for name, open := range map[string]func() []int{
		"netlink": func() []int { return unreadNetlink(t, 20) },
		"ports": func() []int {
			return openSockets(t, count, unix.AF_INET, unix.SOCK_STREAM, 0, func(fd, i int) error {
				return unix.Bind(fd, &unix.SockaddrInet4{Port: first + i, Addr: [4]byte{127, 0, 0, 1}})
			})
		},
	} {
		t.Run(name, func(t *testing.T) {
			inOwnNetwork(t)
			n := &neighbors{}
			look := neighborhood(t, n)
			for i := range 4 {
				fds := open()
				n.before = func() {
					for i, fd := range fds {
						unix.Close(fd)
						fds[i] = -1
					}
				}
				held := look().Copies[innocent]
				if held[sockets.NetlinkBytes] > 0 || held[sockets.TCPPorts] > 0 {
					t.Errorf("look %d: it is charged with %v", i, held)
				}
			}
		})
	}
}

// TestHiddenByNeighbor: sockets in flight count for the copy in whose sockets they are, however
// deep, and not for another that has something in flight. One look charges nobody.
func TestHiddenByNeighbor(t *testing.T) {
	for _, test := range []struct {
		name  string
		depth int
	}{{"in flight", 0}, {"in a socket in flight", 1}} {
		t.Run(test.name, func(t *testing.T) {
			n := &neighbors{}
			look := neighborhood(t, n)
			fds := unreadNetlink(t, 20)
			for range test.depth {
				ends, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
				if err != nil {
					t.Fatal(err)
				}
				send(t, ends[0], fds)
				fds = ends[:]
			}
			n.pids[offender] = []int{holdInFlight(t, fds)}
			if held := look(); held.Copies[innocent][sockets.NetlinkBytes]+held.Copies[offender][sockets.NetlinkBytes] > 0 {
				t.Errorf("one look charges %v", held.Copies)
			}
			held := look()
			if got := held.Copies[innocent][sockets.NetlinkBytes]; got > 0 {
				t.Errorf("a copy is charged with %d bytes of its neighbor's", got)
			}
			if got := held.Copies[offender][sockets.NetlinkBytes]; got < 2<<20 {
				t.Errorf("the copy that holds the sockets is charged with %d bytes", got)
			}
		})
	}
}

// holdInFlight starts a process in one of whose sockets descriptors are in flight.
func holdInFlight(t *testing.T, fds []int) (pid int) {
	t.Helper()
	ends, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	child := exec.Command("sleep", "600")
	files := []*os.File{os.NewFile(uintptr(ends[0]), "end"), os.NewFile(uintptr(ends[1]), "end")}
	child.ExtraFiles = files
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = child.Process.Kill()
		_ = child.Wait()
	})
	send(t, ends[0], fds)
	for _, f := range files {
		f.Close()
	}
	return child.Process.Pid
}

// TestTableOfThread: sockets in a thread's own table of descriptors count for its copy.
func TestTableOfThread(t *testing.T) {
	look := watched(t, 41000, 41999)
	network, err := unix.Open("/proc/thread-self/ns/net", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(network)
	opened, done := make(chan []int), make(chan bool)
	go func() {
		runtime.LockOSThread() // the thread ends with this goroutine
		if unix.Unshare(unix.CLONE_FILES) != nil || unix.Setns(network, unix.CLONE_NEWNET) != nil {
			opened <- nil
			return
		}
		fds := make([]int, 0, 400)
		for i := range cap(fds) {
			fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
			if err == nil {
				err = unix.Bind(fd, &unix.SockaddrInet4{Port: 41000 + i, Addr: [4]byte{127, 0, 0, 1}})
			}
			if err == nil {
				fds = append(fds, fd)
			}
		}
		opened <- fds
		<-done
	}()
	defer close(done)
	n := int64(len(<-opened))
	if n == 0 {
		t.Skip("no thread can have a table of its own")
	}
	if held := look()[sockets.TCPPorts]; held < n/2 || held > n*3/2 {
		t.Errorf("it holds %d ports, want %d", held, n)
	}
}
