package main

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"borg/proto/borgpb"
	"borg/proto/borgrpc"
)

// holdArgument makes the test binary hold a port, as the program of a task.
const holdArgument = "hold-for-a-test"

// holdForTest holds a port of 127.0.0.1 in one of these ways: it listens, has a socket of
// UDP, or only binds.
func holdForTest(way, port string) {
	n, err := strconv.Atoi(port)
	switch way {
	case "listen":
		_, err = net.Listen("tcp4", "127.0.0.1:"+port)
	case "udp":
		_, err = net.ListenPacket("udp4", "127.0.0.1:"+port)
	case "bind":
		var fd int
		if fd, err = unix.Socket(unix.AF_INET, unix.SOCK_STREAM, 0); err == nil {
			err = unix.Bind(fd, &unix.SockaddrInet4{Port: n, Addr: [4]byte{127, 0, 0, 1}})
		}
	}
	if err != nil {
		fmt.Println("cannot hold:", err)
		os.Exit(1)
	}
	fmt.Println("holds")
	select {}
}

// holder is a task that holds a port that it was not granted.
func (m *machine) holder(way string, granted, port uint32) *borgrpc.CopyID {
	m.t.Helper()
	self, err := filepath.Abs(os.Args[0])
	if err != nil {
		m.t.Fatal(err)
	}
	id := m.want(service, &borgpb.TaskSpec{
		Args:   []string{"/opt/holder", holdArgument, way, fmt.Sprint(port)},
		Ports:  []string{"http"},
		Mounts: []*borgpb.Mount{{Source: self, Path: "/opt/holder"}},
	})
	m.desired[len(m.desired)-1].Ports = []uint32{granted}
	m.until(id, "holding", func(*borgpb.TaskReport) bool {
		text, _ := os.ReadFile(m.file(id, "stdout"))
		return strings.HasPrefix(string(text), "holds\n")
	})
	return id
}

// TestTakenPort: a task that holds a port which another task is granted is ended for it, and
// the other task starts there. A task that holds its own port is left alone.
func TestTakenPort(t *testing.T) {
	m := newMachine(t, "container")
	const granted, taken = 20300, 20310
	innocent := m.holder("listen", granted+5, granted+5)
	for i, way := range []string{"listen", "udp", "bind"} {
		port := uint32(taken + i)
		id := m.holder(way, uint32(granted+i), port)
		owner := m.want(service, &borgpb.TaskSpec{Args: []string{"/bin/sleep", "1000"}, Ports: []string{"http"}})
		m.desired[len(m.desired)-1].Ports = []uint32{port}
		m.until(owner, "running at once", func(r *borgpb.TaskReport) bool {
			if borgpb.AttemptState(r.State) == borgpb.AttemptState_ATTEMPT_STATE_LOST {
				t.Fatalf("%s: the granted port is held: %s", way, r.Text)
			}
			return borgpb.AttemptState(r.State) == running
		})
		r := m.until(id, "ended", func(r *borgpb.TaskReport) bool { return r.Exit != nil })
		want := fmt.Sprintf("it bound port %d, which was granted to ", port)
		if r.Exit.ReasonCode != borgpb.ExitReason_EXIT_REASON_PORT_OF_OTHER || !strings.Contains(r.Exit.Reason, want) || r.Exit.Oom {
			t.Errorf("%s: the exit is %v, want reason %q", way, r.Exit, want)
		}
	}
	if r := m.untilState(innocent, running); r.Restarts != 0 {
		t.Errorf("a task that holds its own port was ended: %v", r)
	}
}
