package borgmaster

import (
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/connectivity"

	"borg/pages"
)

// TestSeenCertificates: a replica knows until when the certificate of a machine counts from
// the connection to it, and no more once it calls that machine no more.
func TestSeenCertificates(t *testing.T) {
	c := newConnsCell(t)
	c.who.Saw = c.saw
	l := listen(t, "127.0.0.1:0")
	c.serve(l)
	conn, err := c.to(c.m1, l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	c.until("it is connected", func() bool {
		c.connect(conn)
		return conn.GetState() == connectivity.Ready
	})
	want := c.borglet.Current()
	if got := c.certificates(); len(got) != 1 || got[0] != (seenCertificate{"m1", want.IssuedAt(), want.Expires()}) {
		t.Errorf("of the certificates it knows %v, want that of m1 until %v", got, want.Expires())
	}
	c.mu.Lock()
	c.sweep(c.nowNs() + connIdleNs + connSweepNs)
	c.mu.Unlock()
	if got := c.certificates(); len(got) != 0 {
		t.Errorf("of machines that it does not call it knows %v", got)
	}
}

// TestCertificatesAreToldAhead: what the verdict of a page says, and borgcfg doctor with it,
// before anything runs out and after.
func TestCertificatesAreToldAhead(t *testing.T) {
	now := time.Now()
	hour := time.Hour
	for _, test := range []struct {
		name string
		// What is left.
		authority time.Duration
		machines  []time.Duration
		mood      pages.Mood
		want      []string
	}{
		{"all are good", 365 * 24 * hour, []time.Duration{72 * hour, 100 * hour}, "", nil},
		{"the authority ends in months", 80 * 24 * hour, nil, pages.Warn, []string{"authority ends in", "borgmaster authority replace"}},
		{"sooner than it is replaced by the defaults", 10 * 24 * hour, nil, pages.Bad, []string{"authority ends in", "borgmaster authority replace"}},
		{"it ended", -hour, nil, pages.Bad, []string{"ended", "borgmaster authority renew --dir"}},
		{"a machine does not renew", 365 * 24 * hour, []time.Duration{40 * hour, 80 * hour}, pages.Warn, []string{"run out and were not renewed: a (in", "borgcfg machine list -o wide"}},
		{"a machine's ran out", 365 * 24 * hour, []time.Duration{-hour}, pages.Warn, []string{"ran out: a.", "borgcfg machine invite"}},
		{"many", 365 * 24 * hour, []time.Duration{-hour, -hour, -hour, -hour, -hour, -hour, -hour}, pages.Warn, []string{"a, b, c, d, e, 2 more"}},
	} {
		var v pages.Verdict
		judgeAuthority(&v, test.authority)
		var seen []seenCertificate
		for i, left := range test.machines {
			seen = append(seen, seenCertificate{string(rune('a' + i)), now.Add(left - 7*24*hour), now.Add(left)})
		}
		judgeMachineCertificates(&v, seen, now)
		if len(test.want) == 0 {
			if len(v.Findings) != 0 {
				t.Errorf("%s: %v", test.name, v.Findings)
			}
			continue
		}
		if len(v.Findings) != 1 {
			t.Errorf("%s: %d findings: %v", test.name, len(v.Findings), v.Findings)
			continue
		}
		f := v.Findings[0]
		for _, want := range test.want {
			if !strings.Contains(f.Text+f.Next, want) || f.Mood != test.mood {
				t.Errorf("%s: it says %q, %q, %v; want %q, %v", test.name, f.Text, f.Next, f.Mood, want, test.mood)
			}
		}
	}
}
