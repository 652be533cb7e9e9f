package main

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"borg/proto/borgpb"
	"borg/proto/borgrpc"
)

const (
	// peerVariable makes a test go on in a machine's network of its own; it names the
	// network of somebody else, who reaches the machine at machineAddr.
	peerVariable = "BORGLET_TEST_PEER"
	machineAddr  = "10.99.0.1"
	peerAddr     = "10.99.0.2"
	// listenArgument makes the test binary listen, as the program of a task.
	listenArgument = "listen-for-a-test"
)

// inOwnNetwork runs the test that calls it once more, in a network that is made for it,
// and returns false; there it returns true and the network of a peer. What is not
// there skips.
func inOwnNetwork(t *testing.T, tools ...string) (peer string, inside bool) {
	t.Helper()
	if peer := os.Getenv(peerVariable); peer != "" {
		return peer, true
	}
	if os.Getuid() != 0 {
		t.Skip("networks need root")
	}
	for _, tool := range append(tools, "ip", "nsenter") {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skipf("needs the tool %s (Debian: iproute2, util-linux, nftables)", tool)
		}
	}
	name := fmt.Sprintf("bt%d", os.Getpid())
	own, other := name+"a", name+"b"
	ip := func(args ...string) {
		t.Helper()
		if out, err := exec.Command("ip", args...).CombinedOutput(); err != nil {
			t.Fatalf("ip %s: %v: %s", strings.Join(args, " "), err, out)
		}
	}
	for _, n := range []string{own, other} {
		ip("netns", "add", n)
		t.Cleanup(func() {
			if out, err := exec.Command("ip", "netns", "delete", n).CombinedOutput(); err != nil {
				t.Errorf("ip netns delete %s: %v: %s", n, err, out)
			}
		})
		ip("-n", n, "link", "set", "lo", "up")
	}
	ip("-n", own, "link", "add", "up0", "type", "veth", "peer", "name", "up0", "netns", other)
	ip("-n", own, "addr", "add", machineAddr+"/24", "dev", "up0")
	ip("-n", other, "addr", "add", peerAddr+"/24", "dev", "up0")
	ip("-n", own, "link", "set", "up0", "up")
	ip("-n", other, "link", "set", "up0", "up")
	again := exec.Command("nsenter", "--net=/run/netns/"+own, os.Args[0], "-test.run", "^"+t.Name()+"$", "-test.v")
	again.Env = append(os.Environ(), peerVariable+"=/run/netns/"+other)
	out, err := again.CombinedOutput()
	t.Logf("in a network of its own:\n%s", out)
	switch {
	case err != nil:
		t.Errorf("in a network of its own: %v", err)
	case strings.Contains(string(out), "--- SKIP"):
		t.Skip("skipped in a network of its own, as said above")
	}
	return "", false
}

// from dials out of another network; empty: this one.
func from(t *testing.T, network, proto, addr string, bound time.Duration) (net.Conn, error) {
	t.Helper()
	if network == "" {
		return net.DialTimeout(proto, addr, bound)
	}
	type dialed struct {
		conn net.Conn
		err  error
	}
	done := make(chan dialed, 1)
	go func() {
		// The thread is given up: it stays in the other network.
		runtime.LockOSThread()
		f, err := os.Open(network)
		if err == nil {
			err = unix.Setns(int(f.Fd()), unix.CLONE_NEWNET)
			f.Close()
		}
		if err != nil {
			done <- dialed{err: err}
			return
		}
		conn, err := net.DialTimeout(proto, addr, bound)
		done <- dialed{conn, err}
	}()
	d := <-done
	return d.conn, d.err
}

// listenForTest listens on ports for a test, says so, and says what it is sent; it
// answers each who connects, and each datagram.
func listenForTest(ports []string) {
	for _, port := range ports {
		l, err := net.Listen("tcp4", ":"+port)
		if err != nil {
			fmt.Println("cannot listen:", err)
			os.Exit(1)
		}
		go func() {
			for {
				conn, err := l.Accept()
				if err != nil {
					return
				}
				fmt.Fprintln(conn, "hello")
				conn.Close()
			}
		}()
		p, err := net.ListenPacket("udp4", ":"+port)
		if err != nil {
			fmt.Println("cannot listen:", err)
			os.Exit(1)
		}
		go func() {
			buf := make([]byte, 100)
			for {
				n, who, err := p.ReadFrom(buf)
				if err != nil {
					return
				}
				fmt.Printf("got %s\n", buf[:n])
				_, _ = p.WriteTo([]byte("hello"), who)
			}
		}()
	}
	fmt.Println("listens")
	select {}
}

// listener is a task that listens on ports of the machine, of which it was granted the
// first.
func (m *machine) listener(granted string, others ...string) *borgrpc.CopyID {
	m.t.Helper()
	self, err := filepath.Abs(os.Args[0])
	if err != nil {
		m.t.Fatal(err)
	}
	id := m.want(service, &borgpb.TaskSpec{
		Args:   append([]string{"/opt/listener", listenArgument, granted}, others...),
		Ports:  []string{"http"},
		Mounts: []*borgpb.Mount{{Source: self, Path: "/opt/listener"}},
	})
	var port uint32
	if _, err := fmt.Sscan(granted, &port); err != nil {
		m.t.Fatal(err)
	}
	m.desired[len(m.desired)-1].Ports = []uint32{port}
	m.until(id, "listening", func(*borgpb.TaskReport) bool {
		text, _ := os.ReadFile(m.file(id, "stdout"))
		return strings.HasPrefix(string(text), "listens\n")
	})
	return id
}

// answers waits until somebody answers at a port of the machine.
func answers(t *testing.T, network, proto, addr string) {
	t.Helper()
	var err error
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
		if err = answer(t, network, proto, addr, "x", time.Second); err == nil {
			return
		}
	}
	t.Fatalf("%s %s does not answer: %v", proto, addr, err)
}

// answer is one try; what is sent tells the tries apart.
func answer(t *testing.T, network, proto, addr, send string, bound time.Duration) error {
	t.Helper()
	conn, err := from(t, network, proto, addr, bound)
	if err != nil {
		return err
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(bound)); err != nil {
		return err
	}
	if _, err := conn.Write([]byte(send)); err != nil {
		return err
	}
	_, err = conn.Read(make([]byte, 100))
	return err
}

// silent tries a port, from which nothing must come, not even that nobody is there.
func silent(t *testing.T, network, proto, addr, send string) {
	t.Helper()
	err := answer(t, network, proto, addr, send, 500*time.Millisecond)
	var late net.Error
	if !errors.As(err, &late) || !late.Timeout() {
		t.Errorf("%s %s: got %v, want no answer", proto, addr, err)
	}
}

// TestUngrantedPorts: a task that listens on ports of the machine that it was not
// granted is told of, and nobody reaches it there from outside: not after kill -9 of the
// borglet either. Its own port, loopback and what others of the machine do is left alone.
func TestUngrantedPorts(t *testing.T) {
	peer, inside := inOwnNetwork(t, "nft")
	if !inside {
		return
	}
	t.Cleanup(func() {
		// After all has been swept.
		if out, err := exec.Command("nft", "list", "tables").CombinedOutput(); err != nil || strings.Contains(string(out), "borg") {
			t.Errorf("tables that are left: %s, %v", out, err)
		}
	})
	m := newMachine(t, "container")
	if !strings.Contains(m.log.String(), `"ports":"blocked"`) {
		t.Skip("ports cannot be blocked here: the borglet's log says why")
	}
	other, err := net.Listen("tcp4", ":8083")
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	id := m.listener("20123", "8081", "40081")
	answers(t, peer, "tcp", machineAddr+":20123")
	answers(t, peer, "udp", machineAddr+":20123")
	closed := func() {
		t.Helper()
		silent(t, peer, "tcp", machineAddr+":8081", "x")
		silent(t, peer, "tcp", machineAddr+":40081", "x")
		silent(t, peer, "udp", machineAddr+":8081", "x")
	}
	closed()
	// The borglet says so once the ports are closed; a port that is only slow to answer is
	// not taken for a closed one.
	const found = "a task listens on ports that it was not granted"
	m.until(id, "found", func(*borgpb.TaskReport) bool {
		return strings.Contains(m.log.String(), found)
	})
	log := m.log.String()
	for _, want := range []string{"tcp 0.0.0.0:8081", "udp 0.0.0.0:8081", "tcp 0.0.0.0:40081", `"blocked":true`} {
		if !strings.Contains(log, want) {
			t.Errorf("the borglet's log does not say %q", want)
		}
	}
	silent(t, peer, "udp", machineAddr+":8081", "nobody hears this")
	answers(t, "", "tcp", "127.0.0.1:8081")
	answers(t, "", "udp", "127.0.0.1:8081")
	if conn, err := from(t, peer, "tcp", machineAddr+":8083", patience); err != nil {
		t.Errorf("somebody else of the machine: %v", err)
	} else {
		conn.Close()
	}
	m.kill()
	closed()
	m.start()
	m.untilState(id, running)
	closed()
	answers(t, peer, "tcp", machineAddr+":20123")
	if text := m.read(id, "stdout"); strings.Contains(text, "nobody hears this") {
		t.Errorf("the task was sent what came to a port that it was not granted:\n%s", text)
	}
	// It was the table and nothing else.
	m.kill()
	if out, err := exec.Command("nft", "delete", "table", "inet", "borg-"+m.name).CombinedOutput(); err != nil {
		t.Fatalf("nft: %v: %s", err, out)
	}
	answers(t, peer, "tcp", machineAddr+":8081")
	answers(t, peer, "udp", machineAddr+":8081")
	// The next one writes it again.
	before := strings.Count(m.log.String(), found)
	m.start()
	m.until(id, "closed", func(*borgpb.TaskReport) bool {
		return strings.Count(m.log.String(), found) > before
	})
	closed()
}
