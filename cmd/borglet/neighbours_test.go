package main

import (
	"fmt"
	"net"
	"os"
	"strings"
	"testing"

	"borg/proto/borgpb"
)

// TestTwoBorglets: two borglets of one machine, of different cells, leave each other's
// tasks the ports that these were granted, and close only what their own were not.
func TestTwoBorglets(t *testing.T) {
	if testing.Short() {
		t.Skip("starts two borglets and their tasks: make e2e")
	}
	peer, inside := inOwnNetwork(t, "nft")
	if !inside {
		return
	}
	a, b := newMachine(t, "container"), newMachine(t, "container")
	if !strings.Contains(a.log.String(), `"ports":"blocked"`) {
		t.Skip("ports cannot be blocked here: the borglet's log says why")
	}
	a.listener("20123", "8081")
	b.listener("20124", "8082")
	// The last table to be written is b's; then a writes its own again.
	answers(t, peer, "tcp", machineAddr+":20123")
	answers(t, peer, "tcp", machineAddr+":20124")
	a.listener("20125")
	for _, port := range []string{":20123", ":20124", ":20125"} {
		answers(t, peer, "tcp", machineAddr+port)
	}
	silent(t, peer, "tcp", machineAddr+":8081", "x")
	silent(t, peer, "tcp", machineAddr+":8082", "x")
}

// TestPortOfAnother: a task is not started on a port that another program of the machine
// holds, on a loopback address too, and the report names the port and the program. With
// the port free again it starts.
func TestPortOfAnother(t *testing.T) {
	m := newMachine(t, "container")
	for _, addr := range []string{"127.0.0.1:0", "0.0.0.0:0"} {
		other, err := net.Listen("tcp4", addr)
		if err != nil {
			t.Fatal(err)
		}
		port := uint32(other.Addr().(*net.TCPAddr).Port)
		id := m.want(service, &borgpb.TaskSpec{Args: []string{"/bin/sleep", "1000"}, Ports: []string{"http"}})
		m.desired[len(m.desired)-1].Ports = []uint32{port}
		r := m.untilState(id, borgpb.AttemptState_ATTEMPT_STATE_LOST)
		if len(r.HeldPorts) == 0 || r.HeldPorts[0].Port != port || !strings.HasSuffix(r.HeldPorts[0].By, fmt.Sprintf("(process %d)", os.Getpid())) {
			t.Errorf("the report names %v, want port %d of process %d", r.HeldPorts, port, os.Getpid())
		}
		if want := fmt.Sprintf("port %d of %s is held by ", port, m.name); !strings.Contains(r.Text, want) || r.Exit != nil {
			t.Errorf("it says %q with exit %v, want %q and none", r.Text, r.Exit, want)
		}
		other.Close()
		id = m.want(service, &borgpb.TaskSpec{Args: []string{"/bin/sleep", "1000"}, Ports: []string{"http"}})
		m.desired[len(m.desired)-1].Ports = []uint32{port}
		m.untilState(id, running)
	}
}
