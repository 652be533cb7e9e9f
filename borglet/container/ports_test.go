package container

import (
	"fmt"
	"maps"
	"net"
	"net/netip"
	"os"
	"slices"
	"testing"

	"borg/borglet"
)

// TestParseSockets: what listens for others is found with its address, and nothing
// else. The lines are the kernel's, on a machine whose words are little-endian.
func TestParseSockets(t *testing.T) {
	const head = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"
	tcp := head +
		"   0: 0100007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 11 1 0 100 0 0 10 0\n" +
		"   1: 00000000:1F91 00000000:0000 0A 00000000:00000000 00:00000000 00000000 1879048192        0 12 1 0 100 0 0 10 0\n" +
		"   2: 0500000A:1F92 0600000A:C001 01 00000000:00000000 00:00000000 00000000     0        0 13 1 0 100 0 0 10 0\n" +
		"   3: 0500000A:1F93 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 14 1 0 100 0 0 10 0\n" +
		"   4: nonsense\n   5: 0500000A 0 0A 0 0 0 0 0 0 15\n   6: 05:1F93 0 0A 0 0 0 0 0 0 16\n"
	tcp6 := head +
		"   0: 00000000000000000000000001000000:1F94 00000000000000000000000000000000:0000 0A 0:0 00:0 0 0 0 21 1\n" +
		"   1: 00000000000000000000000000000000:1F95 00000000000000000000000000000000:0000 0A 0:0 00:0 0 0 0 22 1\n" +
		"   2: 0000000000000000FFFF00000100007F:1F96 00000000000000000000000000000000:0000 0A 0:0 00:0 0 0 0 23 1\n"
	udp := head +
		"   0: 00000000:0035 00000000:0000 07 0:0 00:0 0 0 0 31 2\n" +
		"   1: 00000000:9C40 00000000:0000 07 0:0 00:0 0 0 0 32 2\n" +
		"   2: 00000000:0036 0100000A:0035 01 0:0 00:0 0 0 0 33 2\n"
	at := func(proto, addr string) borglet.Listener {
		return borglet.Listener{Proto: proto, Addr: netip.MustParseAddrPort(addr)}
	}
	for _, c := range []struct {
		text, proto string
		want        map[socket]borglet.Listener
	}{
		{tcp, "tcp", map[socket]borglet.Listener{"12": at("tcp", "0.0.0.0:8081"), "14": at("tcp", "10.0.0.5:8083")}},
		{tcp6, "tcp", map[socket]borglet.Listener{"22": at("tcp", "[::]:8085")}},
		{udp, "udp", map[socket]borglet.Listener{"31": at("udp", "0.0.0.0:53")}},
		{"", "tcp", map[socket]borglet.Listener{}},
	} {
		if got := parseSockets(c.text, c.proto, 32768, 60999); !maps.Equal(got, c.want) {
			t.Errorf("parseSockets(%s) = %v, want %v", c.proto, got, c.want)
		}
	}
}

// family says whose this very process is.
type family struct {
	backend
	id borglet.ID
	// looks is how often was asked.
	looks int
}

func (f *family) members(map[borglet.ID]proc) (map[borglet.ID][]int, error) {
	f.looks++
	return map[borglet.ID][]int{f.id: {os.Getpid()}}, nil
}

func (f *family) cgroups(map[borglet.ID]proc) map[borglet.ID]paths { return nil }

// TestListening: the listeners of a run's processes are found and those of others are
// not taken for its own; processes are looked at only when there is a new socket.
func TestListening(t *testing.T) {
	outside, err := net.Listen("tcp4", "0.0.0.0:0")
	if err != nil {
		t.Fatal(err)
	}
	defer outside.Close()
	inside, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer inside.Close()
	f := &family{id: borglet.ID{JobUID: "1-1-0", Attempt: 1}}
	r := &Runtime{backend: f, runs: map[borglet.ID]*run{f.id: {id: f.id, task: proc{Pid: os.Getpid()}}}}
	want := borglet.Listener{Proto: "tcp", Addr: outside.Addr().(*net.TCPAddr).AddrPort()}
	look := func() []borglet.Listener {
		t.Helper()
		found, err := r.Listening([]borglet.ID{f.id})
		if err != nil {
			t.Fatal(err)
		}
		return found[f.id]
	}
	if got := look(); !slices.Equal(got, []borglet.Listener{want}) {
		t.Errorf("it listens on %v, want %v", got, want)
	}
	// Sockets of others of this machine may come at any moment: what is known stays so.
	r.listeners.mu.Lock()
	owner := fmt.Sprint(r.listeners.owners)
	r.listeners.mu.Unlock()
	before := f.looks
	if got := look(); !slices.Equal(got, []borglet.Listener{want}) {
		t.Errorf("then it listens on %v, want %v", got, want)
	}
	r.listeners.mu.Lock()
	same := fmt.Sprint(r.listeners.owners) == owner
	r.listeners.mu.Unlock()
	if same && f.looks != before {
		t.Error("processes were looked at though there is no new socket")
	}
	outside.Close()
	if got := look(); len(got) > 0 {
		t.Errorf("after it was closed it listens on %v", got)
	}
	if found, err := r.Listening(nil); err != nil || len(found) > 0 {
		t.Errorf("without runs: %v, %v", found, err)
	}
}
