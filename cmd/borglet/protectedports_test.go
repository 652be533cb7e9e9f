package main

import (
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"borg/borgmaster/client"
	"borg/proto/borgpb"
	"borg/proto/borgrpc"
)

// squatArgument makes the test binary bind a port, as the program of a task, as soon as nobody
// else has it.
const squatArgument = "squat-for-a-test"

// squatForTest binds an address in one of these ways: it listens, or only binds.
func squatForTest(way, addr string) {
	at, err := net.ResolveTCPAddr("tcp4", addr)
	if err != nil {
		fmt.Println("cannot squat:", err)
		os.Exit(1)
	}
	fmt.Println("tries")
	for ; ; time.Sleep(100 * time.Microsecond) {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM, 0)
		if err == nil && way == "listen" {
			err = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1)
		}
		if err == nil {
			err = unix.Bind(fd, &unix.SockaddrInet4{Port: at.Port, Addr: [4]byte(at.IP.To4())})
		}
		if err == nil && way == "listen" {
			err = unix.Listen(fd, 1)
		}
		if err == nil {
			fmt.Println("has it")
			select {}
		}
		unix.Close(fd)
	}
}

// squatter is a task that binds an address.
func (m *machine) squatter(way, addr string) *borgrpc.CopyID {
	m.t.Helper()
	self, err := filepath.Abs(os.Args[0])
	if err != nil {
		m.t.Fatal(err)
	}
	id := m.want(service, &borgpb.TaskSpec{
		Args:   []string{"/opt/squatter", squatArgument, way, addr},
		Mounts: []*borgpb.Mount{{Source: self, Path: "/opt/squatter"}},
	})
	m.untilState(id, running)
	return id
}

// untilSays waits until a file has some text.
func untilSays(t *testing.T, what, text string, read func() string) {
	t.Helper()
	for deadline := time.Now().Add(patience); !strings.Contains(read(), text); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%s does not say %q: %s", what, text, read())
		}
	}
}

// endedFor checks that a run of a copy was ended for a protected port, which somebody needs.
func (m *machine) endedFor(id *borgrpc.CopyID, port int, who string) {
	m.t.Helper()
	r := m.until(id, "ended", func(r *borgpb.TaskReport) bool { return r.Exit != nil })
	want := fmt.Sprintf("it bound port %d, which %s needs", port, who)
	if r.Exit.ReasonCode != borgpb.ExitReason_EXIT_REASON_PORT_OF_OTHER || !strings.Contains(r.Exit.Reason, want) {
		m.t.Errorf("the exit is %v, want reason %q", r.Exit, want)
	}
}

// TestSquattedPort: a task takes the borglet's port while the borglet restarts. The borglet comes
// up all the same, ends the task, says why, and serves. No other task is ended.
func TestSquattedPort(t *testing.T) {
	const free = 19739
	for _, way := range []string{"listen", "bind"} {
		t.Run(way, func(t *testing.T) {
			// The kernel keeps a port that was used for a minute from who only binds.
			port := 18000 + rand.IntN(1500)
			m := newMachine(t, "container", "--listen", fmt.Sprintf("127.0.0.1:%d", port))
			innocent := m.squatter("listen", fmt.Sprintf("0.0.0.0:%d", free))
			id := m.squatter(way, fmt.Sprintf("0.0.0.0:%d", port))
			m.conn.Close() // a side that closes first keeps the port for a minute
			m.kill()
			untilSays(t, "the task", "has it", func() string { return m.read(id, "stdout") })
			m.start()
			untilSays(t, "the borglet", "cannot listen for masters", m.log.String)
			untilSays(t, "the borglet", "is free, and is listened on", m.log.String)
			m.endedFor(id, port, "this machine's borglet")
			if r := m.untilState(innocent, running); r.Restarts != 0 || r.Exit != nil {
				t.Errorf("a task on another port was ended: %v", r)
			}
		})
	}
}

// TestProtectedPorts: a task that binds a port of a master on this machine, one of the operator's,
// or the borglet's own on another address while the borglet listens, is ended. So is nobody else,
// and no task is granted such a port.
func TestProtectedPorts(t *testing.T) {
	const own, master, operators = 19741, 19742, 19743
	m := newMachine(t, "container", "--listen", fmt.Sprintf("127.0.0.1:%d", own), "--protected-ports", fmt.Sprint(operators))
	m.kill()
	cell := &client.CellFile{Cell: "test", Masters: []string{fmt.Sprintf("localhost:%d", master)}}
	if err := client.WriteCellFile(filepath.Join(m.dir, "cell.yaml"), cell); err != nil {
		t.Fatal(err)
	}
	m.start()
	innocent := m.squatter("listen", "0.0.0.0:19749")
	for _, c := range []struct {
		way, addr string
		port      int
		who       string
	}{
		{"listen", "127.0.0.2", own, "this machine's borglet"},
		{"listen", "0.0.0.0", master, "a master of the cell"},
		{"listen", "0.0.0.0", operators, "a program outside of tasks"},
		{"bind", "127.0.0.1", operators, "a program outside of tasks"},
	} {
		m.endedFor(m.squatter(c.way, fmt.Sprintf("%s:%d", c.addr, c.port)), c.port, c.who)
	}
	granted := m.want(service, &borgpb.TaskSpec{Args: []string{"/bin/sleep", "1000"}, Ports: []string{"http"}})
	m.desired[len(m.desired)-1].Ports = []uint32{operators}
	if r := m.untilState(granted, borgpb.AttemptState_ATTEMPT_STATE_LOST); len(r.HeldPorts) == 0 || r.HeldPorts[0].Port != operators {
		t.Errorf("a task that was granted a protected port reports %v", r)
	}
	if r := m.untilState(innocent, running); r.Restarts != 0 || r.Exit != nil {
		t.Errorf("a task on another port was ended: %v", r)
	}
}
