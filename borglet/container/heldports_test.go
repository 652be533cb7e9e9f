package container

import (
	"fmt"
	"net"
	"os"
	"slices"
	"strings"
	"testing"

	"borg/borglet"
)

// TestHeldPorts: a listener of another program is found with its name, on loopback
// addresses and of UDP too, once somebody wants one of the ports.
func TestHeldPorts(t *testing.T) {
	tcp, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer tcp.Close()
	udp, err := net.ListenPacket("udp4", "0.0.0.0:0")
	if err != nil {
		t.Fatal(err)
	}
	defer udp.Close()
	tcpPort := uint16(tcp.Addr().(*net.TCPAddr).Port)
	udpPort := uint16(udp.LocalAddr().(*net.UDPAddr).Port)
	r := &Runtime{backend: &family{}}
	none := borglet.PortRange{First: 1, Last: 1}
	find := func(held []borglet.HeldPort, port uint16) string {
		for _, h := range held {
			if h.Port == port {
				return h.By
			}
		}
		return "nobody"
	}
	self := fmt.Sprintf("(process %d)", os.Getpid())
	for _, port := range []uint16{tcpPort, udpPort} {
		held, err := r.HeldPorts([]uint32{uint32(port)}, none)
		if by := find(held.Others, port); err != nil || !strings.HasSuffix(by, self) {
			t.Errorf("port %d is held by %s (%v), want %s", port, by, err, self)
		}
		others, err := PortsOfOthers(borglet.PortRange{First: port, Last: port})
		if by := find(others, port); err != nil || !strings.HasSuffix(by, self) {
			t.Errorf("PortsOfOthers says %s (%v), want %s", by, err, self)
		}
	}
	held, err := r.HeldPorts([]uint32{uint32(tcpPort)}, borglet.PortRange{First: min(tcpPort, udpPort), Last: max(tcpPort, udpPort)})
	if err != nil || find(held.Others, udpPort) == "nobody" {
		t.Errorf("with port %d the others of the range are told: %v (%v), want %d too", tcpPort, held, err, udpPort)
	}
	tcp.Close()
	if held, err = r.HeldPorts([]uint32{uint32(tcpPort)}, none); err != nil || slices.ContainsFunc(held.Others, func(h borglet.HeldPort) bool { return h.Port == tcpPort }) {
		t.Errorf("a closed port is held: %v (%v)", held, err)
	}
}

// TestHolderWords: the name of a process is its own choice, and is bounded and plain here.
func TestHolderWords(t *testing.T) {
	if got := holderWords("evil\x1b[31m\nname", 7); got != "evil[31mname (process 7)" {
		t.Errorf("holderWords = %q", got)
	}
	if got := holderWords(strings.Repeat("x", 100), 7); len(got) > maxHolderBytes {
		t.Errorf("%d bytes", len(got))
	}
}
