package container

import (
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"testing"

	"borg/borglet"
)

// testWall has two copies with ports, one without, and one with ids from before they
// were moved.
func testWall() *wall {
	w := &wall{table: tableName("m1"), ids: [][2]uint32{DefaultTaskIDs}, granted: map[borglet.ID]grant{}}
	id := func(n uint64) borglet.ID { return borglet.ID{Attempt: n} }
	w.remember(id(1), 1879048192, []uint32{20000, 20001})
	w.remember(id(2), 1879113728, nil)
	w.remember(id(3), 1879179264, []uint32{20002})
	w.remember(id(4), 100000, []uint32{20003})
	at := func(proto, addr string) borglet.Listener {
		return borglet.Listener{Proto: proto, Addr: netip.MustParseAddrPort(addr)}
	}
	w.found = map[borglet.ID][]borglet.Listener{
		id(1): {at("udp", "0.0.0.0:53"), at("tcp", "[::]:8080"), at("tcp", "0.0.0.0:20002")},
		id(2): {at("tcp", "10.0.0.5:80"), at("udp", "[2001:db8::1]:443"), at("udp", "0.0.0.0:53")},
	}
	return w
}

// TestWallText: who is told apart by which user ids, what each may use, and what is
// closed by number, but for what somebody was granted since.
func TestWallText(t *testing.T) {
	text := testWall().text()
	for _, want := range []string{
		"add table inet borg-m1\ndelete table inet borg-m1\n",
		"chain copy-1879048192 {\n\t\tth sport { 20000, 20001 } accept\n",
		"chain copy-1879179264 {\n\t\tth sport { 20002 } accept\n",
		"elements = { 100000-165535 : jump copy-100000, 1879048192-1879113727 : jump copy-1879048192, 1879179264-1879244799 : jump copy-1879179264 }",
		"meta skuid { 1879048192-2147418111, 100000-165535 } jump tasks",
		"\t\ttcp flags & (syn | ack) == syn | ack counter drop\n",
		"\t\tip6 daddr ::1 accept\n\t\tip daddr 10.0.0.5 tcp dport 80 counter drop\n\t\ttcp dport 8080 counter drop\n" +
			"\t\tmeta nfproto ipv4 udp dport 53 counter drop\n\t\tip6 daddr 2001:db8::1 udp dport 443 counter drop\n\t}\n",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("the table does not say %q:\n%s", want, text)
		}
	}
	if strings.Contains(text, "copy-1879113728") {
		t.Errorf("a copy without ports has a chain:\n%s", text)
	}
}

// TestWallIsTaken: nft takes what is written for it.
func TestWallIsTaken(t *testing.T) {
	if _, err := exec.LookPath("nft"); err != nil || os.Geteuid() != 0 {
		t.Skip("needs root and the tool nft (Debian: nftables)")
	}
	for _, w := range []*wall{testWall(), {table: "borg-m2", ids: [][2]uint32{DefaultTaskIDs}}, {table: "borg-m3"}} {
		if err := nft(w.text(), "--check"); err != nil {
			t.Errorf("%v:\n%s", err, w.text())
		}
	}
	if err := nft("table inet borg-m1 { chain x { tcp sport nonsense drop } }", "--check"); err == nil {
		t.Error("nft takes nonsense")
	}
}
