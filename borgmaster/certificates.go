package borgmaster

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"borg/identity"
	"borg/pages"
)

const (
	// An authority that ends so soon should be replaced, and one that ends within what a
	// replacement takes must be.
	authorityLate    = 90 * 24 * time.Hour
	authorityTooLate = 14 * 24 * time.Hour
	// A borglet renews its certificate when half of its life is left; one that has not when
	// this part is left cannot.
	borgletLatePart = 4
	// maxOldShown bounds the machines that are named.
	maxOldShown = 5
)

// judgeCertificates tells ahead whose certificates run out and are not renewed.
func (l *look) judgeCertificates(v *pages.Verdict) {
	now := time.Now()
	if left := l.expires.Sub(now); left <= 0 {
		v.Found(pages.Bad, "its log says why it does not renew it from its own authority; where it is: borgcfg master list", "The certificate of this replica ran out %s ago: nobody believes it.", pages.Span(-left).Text)
	} else if left < l.lifetime/4 {
		v.Found(pages.Bad, "its log says why it does not renew it from its own authority; where it is: borgcfg master list", "The certificate of this replica runs out in %s and was not renewed.", pages.Span(left).Text)
	}
	if l.m.cfg.Authority != nil {
		judgeAuthority(v, l.m.cfg.Authority.Ends().Sub(now))
	}
	judgeMachineCertificates(v, l.m.conns.certificates(), now)
}

func judgeAuthority(v *pages.Verdict, left time.Duration) {
	switch {
	case left <= 0:
		v.Found(pages.Bad, "stop the replicas; on one of them: borgmaster authority renew --dir DIRECTORY", "The cell's authority ended %s ago: nobody of the cell believes anybody.", pages.Span(-left).Text)
	case left < authorityTooLate:
		v.Found(pages.Bad, "borgmaster authority replace", "The cell's authority ends in %s; to replace it takes about as long.", pages.Span(left).Text)
	case left < authorityLate:
		v.Found(pages.Warn, "borgmaster authority replace", "The cell's authority ends in %s.", pages.Span(left).Text)
	}
}

// judgeMachineCertificates names machines whose certificates run out, the first ones first.
func judgeMachineCertificates(v *pages.Verdict, seen []seenCertificate, now time.Time) {
	seen = slices.DeleteFunc(seen, func(s seenCertificate) bool { return !s.late(now) })
	slices.SortFunc(seen, seenCertificate.compare)
	var late, gone []string
	for _, s := range seen {
		if left := s.expires.Sub(now); left > 0 {
			late = append(late, fmt.Sprintf("%s (in %s)", s.machine, pages.Span(left).Text))
		} else {
			gone = append(gone, s.machine)
		}
	}
	if len(gone) > 0 {
		v.Found(pages.Warn, "borgcfg machine invite MACHINE; on the machine: borglet serve --join TOKEN", "Certificates of machines ran out: %s.", some(gone))
	}
	if len(late) > 0 {
		v.Found(pages.Warn, "see their logs; borgcfg machine list -o wide", "Certificates of machines run out and were not renewed: %s.", some(late))
	}
}

// some names the first few of many.
func some(names []string) string {
	if more := len(names) - maxOldShown; more > 0 {
		return fmt.Sprintf("%s, %d more", strings.Join(names[:maxOldShown], ", "), more)
	}
	return strings.Join(names, ", ")
}

// seenCertificate is from when until when the certificate of a machine counts that it
// showed last.
type seenCertificate struct {
	machine         string
	issued, expires time.Time
}

// late reports whether it should have been renewed long ago.
func (s seenCertificate) late(now time.Time) bool {
	return s.expires.Sub(now) < s.expires.Sub(s.issued)/borgletLatePart
}

// compare orders certificates: the first to run out is the first.
func (s seenCertificate) compare(o seenCertificate) int {
	return cmp.Or(s.expires.Compare(o.expires), strings.Compare(s.machine, o.machine))
}

// saw notes until when the certificate of a machine counts.
func (c *conns) saw(who identity.Name, issued, expires time.Time) {
	if who.Role != identity.Borglet {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.byPeer != nil && (len(c.seen) < maxConns || c.seen[who.ID].machine != "") {
		c.seen[who.ID] = seenCertificate{who.ID, issued, expires}
	}
}

// forget drops what was seen of machines that this replica does not call any more: they
// show another one their next certificates. The caller holds mu.
func (c *conns) forget() {
	called := make(map[string]bool, len(c.byPeer))
	for to := range c.byPeer {
		called[to.want.ID] = called[to.want.ID] || to.want.Role == identity.Borglet
	}
	for machine := range c.seen {
		if !called[machine] {
			delete(c.seen, machine)
		}
	}
}

// certificates are those of the machines that this replica calls.
func (c *conns) certificates() []seenCertificate {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Collect(maps.Values(c.seen))
}

// readCertificates tells how long each kind of certificate is good for.
func (m *Master) readCertificates(r *pages.Reading) {
	left := func(of string, end time.Time) {
		r.Set("certificate_left_seconds", time.Until(end).Seconds(), of)
	}
	left("master", m.cfg.Identity.Current().Expires())
	if m.cfg.Authority != nil {
		left("authority", m.cfg.Authority.Ends())
	}
	if seen := m.conns.certificates(); len(seen) > 0 {
		left("borglet", slices.MinFunc(seen, seenCertificate.compare).expires)
	}
}
