package cell

import (
	"fmt"
	"sort"
	"strings"

	"borg/proto/borgpb"
)

// grantAdvice says what an admin can do so that a user may ask for so much of a band at one
// time. It goes on with what, if the cell would accept the grant alone. Otherwise a sentence
// says that the cell is sold out, and names commands that the cell accepts in that order.
func (c *Cell) grantAdvice(what, user string, sum charge, band borgpb.Band) string {
	q := c.QuotaOf(user, band)
	if q != nil && !c.Expired(q) {
		sum = sum.most(chargeOf(band, &q.limit, 1))
	}
	grant := sum.in(band)
	for i := range grant.Devices {
		// Grants are of whole devices.
		d := &grant.Devices[i]
		d.Milli = (d.Milli + wholeDevice - 1) / wholeDevice * wholeDevice
	}
	command := fmt.Sprintf("borgcfg quota set %s %s %s", user, BandName(band), c.grantFlags(q, sum, band))
	if checkQuotaLimit(grant.Proto()) != nil {
		return "; no admin can grant that much"
	}
	sales := c.oversold(band, q, &grant)
	if len(sales) == 0 {
		return what + ": " + command
	}
	s := &sales[0]
	if has := c.quotas.capacity.of(&s.item); s.n.compare(has) > 0 {
		return fmt.Sprintf(". The whole cell is smaller: it has %s of %s, of which %s may be granted for %s; ask for less or add machines",
			s.words(has), s.what(), s.words(s.most), soldName(band))
	}
	text := fmt.Sprintf(". The cell is sold out: of the %s of %s that may be granted for %s, others have %s. What they have is listed by borgcfg quota list; an operator can take some of it back or add machines",
		s.words(s.most), s.what(), soldName(band), s.words(s.others))
	if milli := c.oversellFor(sales); milli <= maxOversell {
		text += fmt.Sprintf(", or sell more than now: borgcfg quota policy --oversell %s=%d", BandName(soldAs(band)), milli)
	}
	return text + "; then " + command
}

// oversellFor is how far a band must be sold, in thousandths of the cell, so that none of the
// sales is refused; above maxOversell if it cannot be sold so far.
func (c *Cell) oversellFor(sales []sale) int {
	return sort.Search(maxOversell+1, func(milli int) bool {
		for i := range sales {
			s := &sales[i]
			if s.others.plus(s.n).compare(c.quotas.capacity.of(&s.item).milli(uint64(milli))) > 0 {
				return false
			}
		}
		return true
	})
}

// grantFlags are the flags with which a grant of so much is typed, in the place of q; nil: there
// is no quota yet.
func (c *Cell) grantFlags(q *Quota, sum charge, band borgpb.Band) string {
	var flags []string
	for i := range sum {
		if sum[i].band == band {
			flags = append(flags, sum[i].flag(sum[i].n))
		}
	}
	if q != nil && q.expiresWallNs > c.clock.wallNs {
		const hour = 3600 * second
		flags = append(flags, fmt.Sprintf("--for %dh", (q.expiresWallNs-c.clock.wallNs+hour-1)/hour))
	}
	return strings.Join(flags, " ")
}
