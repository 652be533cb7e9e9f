package main

import (
	"encoding/binary"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"borg/proto/borgpb"
)

// hoardSocketsArgument makes the test binary take what the sockets of a machine share, as the
// program of a task.
const hoardSocketsArgument = "hoard-sockets-for-a-test"

// hoardSockets takes netlink messages, ports, or connections until it is ended, or has as many
// as must do.
func hoardSockets(what string) {
	// An eighth of what there is, at the most, and more; connections are as many as ports
	// usually may be.
	most := map[string]int{"netlink": 2000, "under way": 2000, "bind": 9000, "udp": 9000, "connect": 4000}[what]
	server, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		fmt.Println("cannot listen:", err)
		os.Exit(1)
	}
	request := make([]byte, 20)
	binary.NativeEndian.PutUint32(request[0:], uint32(len(request)))
	binary.NativeEndian.PutUint16(request[4:], unix.RTM_GETLINK)
	binary.NativeEndian.PutUint16(request[6:], unix.NLM_F_REQUEST)
	loopback := unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}
	for range most {
		switch what {
		case "netlink", "under way":
			fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW, unix.NETLINK_ROUTE)
			if err != nil {
				fmt.Println("no socket:", err)
				break
			}
			for range 400 {
				_ = unix.Sendto(fd, request, unix.MSG_DONTWAIT, &unix.SockaddrNetlink{Family: unix.AF_NETLINK})
			}
			if what == "under way" {
				sendAway(fd)
			}
		case "bind":
			if fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM, 0); err == nil {
				_ = unix.Bind(fd, &loopback)
			}
		case "udp":
			if fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM, 0); err == nil {
				_ = unix.Bind(fd, &loopback)
			}
		case "connect":
			if _, err := net.Dial("tcp4", server.Addr().String()); err == nil {
				_, _ = server.Accept()
			}
		}
	}
	fmt.Println("holds")
	select {}
}

// keptIn is a pair of sockets of which nobody reads the second.
var keptIn = sync.OnceValue(func() [2]int {
	ends, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET, 0)
	if err == nil {
		err = unix.Sendmsg(ends[0], []byte{1}, unix.UnixRights(0), nil, 0) // nothing much comes first
	}
	if err != nil {
		fmt.Println("no sockets to keep others in:", err)
		os.Exit(1)
	}
	return ends
})

// sendAway keeps a socket in a message and closes it; one for which there is no room stays open.
func sendAway(fd int) {
	if unix.Sendmsg(keptIn()[0], []byte{1}, unix.UnixRights(fd), nil, unix.MSG_DONTWAIT) == nil {
		unix.Close(fd)
	}
}

// TestHoardedSockets: a task ends that does not read its netlink messages, or that binds the
// ports that the kernel gives out. One with as many connections goes on.
func TestHoardedSockets(t *testing.T) {
	for _, name := range []string{"container", "process"} {
		t.Run(name, func(t *testing.T) {
			m := newMachine(t, name)
			self, err := filepath.Abs(os.Args[0])
			if err != nil {
				t.Fatal(err)
			}
			hoarder := func(what string) *borgpb.TaskSpec {
				spec := &borgpb.TaskSpec{
					Args: []string{self, hoardSocketsArgument, what}, Resources: &borgpb.Resources{CpuMilli: 500, MemBytes: 256 << 20},
				}
				if name == "container" {
					spec.Args[0], spec.Mounts = "/opt/hoarder", []*borgpb.Mount{{Source: self, Path: "/opt/hoarder"}}
				}
				return spec
			}
			innocent := m.want(service, hoarder("connect"))
			m.until(innocent, "connected", func(*borgpb.TaskReport) bool {
				text, _ := os.ReadFile(m.file(innocent, "stdout"))
				return strings.HasPrefix(string(text), "holds\n")
			})
			for what, words := range map[string]string{"netlink": "of netlink messages that it did not read", "under way": "of netlink messages that it did not read", "bind": "TCP ports of those that", "udp": "UDP ports of those that"} {
				if what == "under way" && name == "process" {
					continue // processes cannot be frozen, and later messages are not seen
				}
				id := m.want(service, hoarder(what))
				r := m.until(id, "ended", func(r *borgpb.TaskReport) bool { return r.Exit != nil })
				if r.Exit.ReasonCode != borgpb.ExitReason_EXIT_REASON_SOCKETS || !strings.Contains(r.Exit.Reason, words) || r.Exit.Oom {
					t.Errorf("%s: the exit is %v, want reason %q", what, r.Exit, words)
				}
				t.Log(what, r.Exit.Reason)
				m.desired = m.desired[:1]
			}
			if r := m.untilState(innocent, running); r.Restarts != 0 {
				t.Errorf("a task with connections was ended: %v", r)
			}
		})
	}
}
