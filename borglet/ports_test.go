package borglet

import (
	"net/netip"
	"strings"
	"testing"
)

// TestUngranted: granted ports and those of loopback are a task's own affair; all others
// are told, once each, and not without bound.
func TestUngranted(t *testing.T) {
	at := func(addr string) Listener { return Listener{"tcp", netip.MustParseAddrPort(addr)} }
	for _, c := range []struct {
		listens []Listener
		granted []uint32
		want    string
	}{
		{nil, nil, ""},
		{[]Listener{at("0.0.0.0:20001"), at("127.0.0.1:9"), at("[::1]:9"), at("[::ffff:127.0.0.1]:9")}, []uint32{20001}, ""},
		{[]Listener{at("0.0.0.0:20001")}, []uint32{20002}, "listens on tcp 0.0.0.0:20001, which it was not granted"},
		{[]Listener{at("[::]:8080"), at("10.0.0.5:80"), at("[::]:8080")}, []uint32{1}, "listens on tcp 10.0.0.5:80, tcp [::]:8080, which it was not granted"},
		{[]Listener{at("0.0.0.0:1"), at("0.0.0.0:2"), at("0.0.0.0:3"), at("0.0.0.0:4"), at("0.0.0.0:5"), at("0.0.0.0:6")}, nil, "tcp 0.0.0.0:5 and 1 more, which"},
	} {
		got := strayText(ungranted(c.listens, c.granted), false)
		if got != c.want && (c.want == "" || !strings.Contains(got, c.want)) {
			t.Errorf("strayText(ungranted(%v, %v)) = %q, want %q", c.listens, c.granted, got, c.want)
		}
	}
}
