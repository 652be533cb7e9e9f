package sockets

import (
	"strings"
	"testing"
)

// TestOver: tasks over their own part end, then the lowest priority and the one that holds
// most, until all together keep to their part.
func TestOver(t *testing.T) {
	const mib = 1 << 20
	machine := Use{NetlinkBytes: 800 * mib, TCPPorts: 8000, Processes: 8000}
	for _, test := range []struct {
		name  string
		tasks []Holder[string]
		want  []string
	}{
		{"nobody holds anything", []Holder[string]{{ID: "a"}}, nil},
		{"all of one's part", []Holder[string]{{ID: "a", Held: Use{NetlinkBytes: 100 * mib, TCPPorts: 1000}}}, nil},
		{"more than that", []Holder[string]{
			{ID: "a", Priority: 200, Held: Use{NetlinkBytes: 100*mib + 1}}, {ID: "b", Held: Use{TCPPorts: 1001}}, {ID: "c", Held: Use{TCPPorts: 1000}},
		}, []string{"a", "b"}},
		{"over two parts ends once", []Holder[string]{{ID: "a", Held: Use{NetlinkBytes: 200 * mib, TCPPorts: 2000}}}, []string{"a"}},
		{"all together", []Holder[string]{
			{ID: "a", Priority: 200, Held: Use{TCPPorts: 1000}}, {ID: "b", Held: Use{TCPPorts: 900}}, {ID: "c", Held: Use{TCPPorts: 990}},
			{ID: "d", Priority: 100, Held: Use{TCPPorts: 1000}}, {ID: "e", Priority: 100, Held: Use{TCPPorts: 1000}}, {ID: "f", Held: Use{NetlinkBytes: mib}},
		}, []string{"c"}},
		{"small ones stay", []Holder[string]{
			{ID: "a", Held: Use{TCPPorts: 1}}, {ID: "b", Priority: 10, Held: Use{TCPPorts: 1000}}, {ID: "c", Priority: 20, Held: Use{TCPPorts: 1000}},
			{ID: "d", Priority: 20, Held: Use{TCPPorts: 999}}, {ID: "e", Priority: 30, Held: Use{TCPPorts: 1000}}, {ID: "f", Priority: 30, Held: Use{TCPPorts: 1000}},
		}, []string{"b"}},
		{"processes of production", []Holder[string]{
			{ID: "a", Priority: 200, IsProduction: true, Held: Use{Processes: 1000}}, {ID: "b", Priority: 200, IsProduction: true, Held: Use{Processes: 1000}},
			{ID: "c", Priority: 200, IsProduction: true, Held: Use{Processes: 1000}}, {ID: "d", Priority: 200, IsProduction: true, Held: Use{Processes: 1000}},
			{ID: "e", Held: Use{Processes: 1000}},
		}, nil},
		{"processes of others", []Holder[string]{
			{ID: "a", Priority: 200, IsProduction: true, Held: Use{Processes: 1000}}, {ID: "b", Held: Use{Processes: 900}}, {ID: "c", Held: Use{Processes: 900}},
			{ID: "d", Held: Use{Processes: 900}}, {ID: "e", Held: Use{Processes: 901}}, {ID: "f", Priority: 100, Held: Use{Processes: 900}},
		}, []string{"e"}},
		{"a pool that is not known", []Holder[string]{{ID: "a", Held: Use{UDPBytes: 1 << 40, UDPPorts: 1 << 16}}}, nil},
	} {
		var got []string
		for _, f := range Over(machine, test.tasks) {
			got = append(got, f.ID)
			if !strings.HasPrefix(f.Why, "ended: it held ") {
				t.Errorf("%s: %s", test.name, f.Why)
			}
		}
		if strings.Join(got, " ") != strings.Join(test.want, " ") {
			t.Errorf("%s: %v end, want %v", test.name, got, test.want)
		}
	}
}

// TestWhy: what a task did stands in words.
func TestWhy(t *testing.T) {
	f := Over(Use{NetlinkBytes: 800 << 20}, []Holder[string]{{ID: "a", Held: Use{NetlinkBytes: 123 << 20}}})
	if want := "ended: it held 123 MiB of netlink messages that it did not read; a task may hold 100 MiB"; len(f) != 1 || f[0].Why != want {
		t.Errorf("%v, want %q", f, want)
	}
}

// TestTables reads what a kernel wrote.
func TestTables(t *testing.T) {
	unread := map[string]int64{}
	Netlink(`sk               Eth Pid        Groups   Rmem     Wmem     Dump  Locks    Drops    Inode
0000000000000000 0   0          00000000 0        0        0     2        0        0
0000000000000000 0   1187       00000000 332800   0        0     2        17       40123
0000000000000000 0   broken
`, unread)
	if len(unread) != 1 || unread["40123"] != 332800 {
		t.Errorf("netlink: %v", unread)
	}
	var table Table
	table.Add(`  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 0100007F:9C40 00000000:0000 0A 00000000:00000005 00:00000000 00000000     0        0 111 1 0000000000000000 100 0 0 10 0
   1: 0100007F:9C41 0100007F:9C40 01 00000010:00000A00 00:00000000 00000000     0        0 222 1 0000000000000000 100 0 0 10 0
   2: 0100007F:9C42 0100007F:9C40 06 00000000:00000000 03:00000F00 00000000     0        0 0 3 0000000000000000
   3: short
`)
	if len(table.Sockets) != 2 || table.Sockets["111"] != (Row{40000, true, 5}) || table.Sockets["222"] != (Row{40001, false, 2560}) {
		t.Errorf("TCP: %v", table.Sockets)
	}
	if len(table.Ports) != 3 || !table.Ports[40002] {
		t.Errorf("ports: %v", table.Ports)
	}
	if n := UDPPages("sockets: used 9\nTCP: inuse 9 orphan 0 tw 14 alloc 10 mem 0\nUDP: inuse 1 mem 257\nUDPLITE: inuse 0\n"); n != 257 {
		t.Errorf("UDP: %d pages, want 257", n)
	}
}
