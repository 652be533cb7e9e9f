package cell

import (
	"fmt"
	"iter"
	"slices"
	"strings"

	"borg/mutant"
	"borg/proto/borgpb"
)

// FormatQuotas is the format in which quotas and bounds of tasks began.
const FormatQuotas = 7

// Bands are all bands, from low to high.
var Bands = []borgpb.Band{
	borgpb.Band_BAND_FREE, borgpb.Band_BAND_BATCH, borgpb.Band_BAND_MID, borgpb.Band_BAND_PRODUCTION, borgpb.Band_BAND_MONITORING,
}

// BandOf is the band of a priority (paper §2.5).
func BandOf(priority int32) borgpb.Band {
	switch {
	case priority >= monitoringPriority:
		return borgpb.Band_BAND_MONITORING
	case priority >= productionPriority:
		return borgpb.Band_BAND_PRODUCTION
	case priority >= midPriority:
		return borgpb.Band_BAND_MID
	case priority >= batchPriority:
		return borgpb.Band_BAND_BATCH
	}
	return borgpb.Band_BAND_FREE
}

// BandName is how people write a band.
func BandName(b borgpb.Band) string {
	return strings.ToLower(strings.TrimPrefix(b.String(), "BAND_"))
}

// soldAs is the band whose oversell a band counts to: monitoring is sold with
// production, as both are placed by limits.
func soldAs(b borgpb.Band) borgpb.Band {
	if b == borgpb.Band_BAND_MONITORING {
		return borgpb.Band_BAND_PRODUCTION
	}
	return b
}

// Quota is what a user's jobs and alloc sets of one band may ask for at one time.
type Quota struct {
	mark
	user  string
	band  borgpb.Band
	limit Resources
	// Zero: never.
	expiresWallNs int64
	by, reason    string
	setWallNs     int64
	gone          bool
}

// User has it.
func (q *Quota) User() string { return q.user }

// Band is of which jobs.
func (q *Quota) Band() borgpb.Band { return q.band }

// Limit is what they may ask for at one time.
func (q *Quota) Limit() Resources { return q.limit }

// ExpiresWallNs is from when on it admits nothing; zero: never.
func (q *Quota) ExpiresWallNs() int64 { return q.expiresWallNs }

// By is who granted it.
func (q *Quota) By() string { return q.by }

// Reason is why, in his words.
func (q *Quota) Reason() string { return q.reason }

// SetWallNs is when it was granted.
func (q *Quota) SetWallNs() int64 { return q.setWallNs }

// Expired tells whether it admits nothing any more.
func (c *Cell) Expired(q *Quota) bool {
	return q.expiresWallNs != 0 && !mutant.Planted(mutant.QuotaNeverExpires) && c.clock.wallNs >= q.expiresWallNs
}

// key orders quotas; no part of it holds a zero byte.
func (q *Quota) key() string { return quotaKey(q.user, q.band) }

func quotaKey(user string, band borgpb.Band) string { return user + "\x00" + BandName(band) }

// quotaPolicy is how the cell deals with quotas.
type quotaPolicy struct {
	mark
	enforce bool
	// By band, from BAND_FREE, in thousandths of the cell; zero: as if it had never been
	// said.
	oversell [numBands]uint32
}

const numBands = int(borgpb.Band_BAND_MONITORING)

type quotas struct {
	byKey map[string]*Quota
	// Sorted by key.
	list   []*Quota
	policy quotaPolicy
	// What jobs and alloc sets that are not dead ask for, by user; nil while quotas are
	// not enforced, when nobody keeps it. Derived.
	used map[string]charge
	// What all machines have, in no band. Derived.
	capacity charge
}

// Quotas yields all quotas, by user and then the name of the band.
func (c *Cell) Quotas() iter.Seq[*Quota] { return slices.Values(c.quotas.list) }

// QuotaOf is what a user was granted of a band; nil: nothing.
func (c *Cell) QuotaOf(user string, band borgpb.Band) *Quota {
	return c.quotas.byKey[quotaKey(user, band)]
}

// QuotasEnforced tells whether work that passes its user's quota is refused.
func (c *Cell) QuotasEnforced() bool { return c.quotas.policy.enforce }

// Oversell is how much of a band may be granted in all, in thousandths of the cell.
func (c *Cell) Oversell(band borgpb.Band) uint32 {
	band = soldAs(band)
	switch n := c.quotas.policy.oversell[band-1]; {
	case n != 0:
		return n
	case band == borgpb.Band_BAND_PRODUCTION:
		return defaultOversellProduction
	}
	return defaultOversell
}

// QuotaCapacity is what the cell's machines have in all.
func (c *Cell) QuotaCapacity() Resources { return c.quotas.capacity.in(borgpb.Band_BAND_UNSPECIFIED) }

// SoldOf is what is granted of a band in all, by quotas that have not expired:
// monitoring and production together.
func (c *Cell) SoldOf(band borgpb.Band) Resources {
	return c.sold(band, nil).in(borgpb.Band_BAND_UNSPECIFIED)
}

func (c *Cell) sold(band borgpb.Band, but *Quota) (sum charge) {
	for _, q := range c.quotas.list {
		if q != but && soldAs(q.band) == soldAs(band) && !c.Expired(q) {
			sum = sum.plus(chargeOf(borgpb.Band_BAND_UNSPECIFIED, &q.limit, 1))
		}
	}
	return sum
}

// countMachine keeps what the cell's machines have in all.
func (c *Cell) countMachine(capacity *Resources, joins bool) {
	one := chargeOf(borgpb.Band_BAND_UNSPECIFIED, capacity, 1)
	if joins {
		c.quotas.capacity = c.quotas.capacity.plus(one)
	} else {
		c.quotas.capacity = c.quotas.capacity.minus(one)
	}
}

func checkBand(b borgpb.Band) *borgpb.Refusal {
	if b == borgpb.Band_BAND_UNSPECIFIED || int(b) < 0 || int(b) > numBands {
		return invalid("band", "want free, batch, mid, production or monitoring")
	}
	return nil
}

// checkQuotaLimit range-checks a grant, which may be more than one machine has.
func checkQuotaLimit(r *borgpb.Resources) *borgpb.Refusal {
	for _, q := range []struct {
		name string
		n    int64
	}{
		{"cpu_milli", r.GetCpuMilli()}, {"mem_bytes", r.GetMemBytes()},
		{"disk_bytes", r.GetDiskBytes()}, {"disk_bytes_per_s", r.GetDiskBytesPerS()},
	} {
		if q.n < 0 || q.n > maxQuotaAmount {
			return invalid("limit."+q.name, "%d is not in 0 to %d", q.n, int64(maxQuotaAmount))
		}
	}
	switch {
	case r.GetPorts() != 0:
		return invalid("limit.ports", "ports are not sold; leave them out")
	case len(r.GetDeviceMilli()) > 0:
		return invalid("limit.device_milli", "grants are of whole devices; shares of them are for who asks")
	case len(r.GetDevices()) > maxDevices:
		return limit("limit.devices", "%d kinds of devices; at most %d", len(r.GetDevices()), maxDevices)
	}
	for _, name := range sortedKeys(r.GetDevices()) {
		if n := r.Devices[name]; !validName(name) || n < 0 || n > maxQuotaDevices {
			return invalid("limit.devices", "%q: %d: want a-z, 0-9 and -, and 0 to %d of it", clip(name, 64), n, int64(maxQuotaDevices))
		}
	}
	return nil
}

func (c *Cell) checkSetQuota(o *borgpb.SetQuota) (commit, *borgpb.Refusal) {
	if r := checkUserName(o.User); r != nil {
		return nil, r
	}
	r := checkBand(o.Band)
	if r == nil {
		r = checkQuotaLimit(o.Limit)
	}
	if r != nil {
		return nil, about(o.User, r)
	}
	q := c.QuotaOf(o.User, o.Band)
	grant, expiresWallNs, r := c.mergedQuota(q, o)
	if r != nil {
		return nil, about(o.User, r)
	}
	switch {
	case expiresWallNs != 0 && (expiresWallNs <= c.clock.wallNs || expiresWallNs > maxTimeNs):
		return nil, about(o.User, invalid("expires_wall_ns", "%d is not a time to come", expiresWallNs))
	case q == nil && len(c.quotas.list) >= maxQuotas:
		return nil, about(o.User, limit("", "the cell has %d quotas; take some back", maxQuotas))
	}
	if r := c.checkSale(o.Band, q, &grant); r != nil {
		return nil, about(o.User, r)
	}
	return func(*borgpb.Result) {
		if q == nil {
			q = &Quota{user: o.User, band: o.Band}
			c.quotas.add(q)
		}
		q.limit, q.expiresWallNs = grant, expiresWallNs
		q.by, q.reason, q.setWallNs = c.now.user, clip(c.now.reason, maxReasonBytes), c.clock.wallNs
		c.dirty(q)
		c.mayBeSeated(o.User)
		c.emit(quotaEvent(q, borgpb.EventKind_EVENT_KIND_QUOTA_SET))
	}, nil
}

// sale is an amount that is granted beyond what may be.
type sale struct {
	item
	// What may be granted in all, and what others have of it.
	most, others amount
}

// oversold returns of what a grant, in the place of the one before, makes more granted in all
// than may be. A grant that is smaller than the one before is always right.
func (c *Cell) oversold(band borgpb.Band, before *Quota, grant *Resources) (sales []sale) {
	const none = borgpb.Band_BAND_UNSPECIFIED
	var was charge
	if before != nil && !c.Expired(before) {
		was = chargeOf(none, &before.limit, 1)
	}
	others, milli := c.sold(band, before), c.Oversell(band)
	wants := chargeOf(none, grant, 1)
	if mutant.Planted(mutant.QuotaOversold) {
		others = nil
	}
	for i := range wants {
		w := &wants[i]
		most := c.quotas.capacity.of(w).milli(uint64(milli))
		if w.n.compare(was.of(w)) > 0 && others.of(w).plus(w.n).compare(most) > 0 {
			sales = append(sales, sale{*w, most, others.of(w)})
		}
	}
	return sales
}

// soldName names what is sold together with a band.
func soldName(band borgpb.Band) string {
	if soldAs(band) == borgpb.Band_BAND_PRODUCTION {
		return "production and monitoring"
	}
	return BandName(band)
}

// checkSale refuses a grant that makes more of a band granted in all than may be.
func (c *Cell) checkSale(band borgpb.Band, before *Quota, grant *Resources) *borgpb.Refusal {
	sales := c.oversold(band, before, grant)
	if len(sales) == 0 {
		return nil
	}
	w := &sales[0]
	return refuse(borgpb.RefusalKind_REFUSAL_KIND_QUOTA, "", "limit",
		"%s of %s cannot be sold beyond %s‰ of the cell, which has %s: %s may be granted, others have %s, so at most %s can be granted here; grant less, take some back with borgcfg quota delete, or borgcfg quota policy --oversell %s=PERMILLE",
		w.what(), soldName(band), fmt.Sprint(c.Oversell(band)), w.words(c.quotas.capacity.of(&w.item)), w.words(w.most), w.words(w.others), w.words(w.most.minus(w.others)), BandName(soldAs(band)))
}

func (c *Cell) checkDeleteQuota(o *borgpb.DeleteQuota) (commit, *borgpb.Refusal) {
	if r := checkUserName(o.User); r != nil {
		return nil, r
	}
	if r := checkBand(o.Band); r != nil {
		return nil, about(o.User, r)
	}
	q := c.QuotaOf(o.User, o.Band)
	if q == nil {
		return nil, notFound(o.User, "it has no quota of %s", BandName(o.Band))
	}
	return func(*borgpb.Result) {
		c.quotas.remove(q)
		c.dirty(q)
		c.emit(quotaEvent(q, borgpb.EventKind_EVENT_KIND_QUOTA_DELETE))
	}, nil
}

func (c *Cell) checkSetQuotaPolicy(o *borgpb.SetQuotaPolicy) (commit, *borgpb.Refusal) {
	if o.Enforce == nil && len(o.Oversell) == 0 {
		return nil, invalid("", "nothing is said: want enforce, oversell or both")
	}
	var said bandSet
	for _, s := range o.Oversell {
		if r := checkBand(s.Band); r != nil {
			return nil, r
		}
		// So the list is no longer than there are bands.
		if said.has(s.Band) {
			return nil, invalid("oversell", "%s is named twice", BandName(s.Band))
		}
		said |= 1 << s.Band
		if s.Band != soldAs(s.Band) {
			return nil, invalid("oversell", "%s is sold with %s; say how far that may be", BandName(s.Band), BandName(soldAs(s.Band)))
		}
		if s.Milli > maxOversell {
			return nil, invalid("oversell", "%d is not in 0 to %d", s.Milli, maxOversell)
		}
	}
	return func(*borgpb.Result) {
		p := &c.quotas.policy
		var words []string
		if o.Enforce != nil {
			p.enforce = *o.Enforce
			words = append(words, map[bool]string{true: "enforced", false: "not enforced"}[p.enforce])
			c.countUse()
			for _, j := range c.unseated {
				c.mayBeSeated(j.key.User)
			}
		}
		for _, s := range o.Oversell {
			p.oversell[s.Band-1] = s.Milli
			words = append(words, fmt.Sprintf("%s up to %d‰ of the cell", BandName(s.Band), c.Oversell(s.Band)))
		}
		c.dirty(p)
		text := "quotas: " + strings.Join(words, ", ")
		if c.now.reason != "" {
			text += ": " + c.now.reason
		}
		c.emit(Event{Kind: borgpb.EventKind_EVENT_KIND_QUOTA_POLICY, ObjectKind: borgpb.ObjectKind_OBJECT_KIND_CELL, Reason: clip(text, maxReasonBytes)})
	}, nil
}

func quotaEvent(q *Quota, kind borgpb.EventKind) Event {
	text := BandName(q.band)
	if kind == borgpb.EventKind_EVENT_KIND_QUOTA_SET {
		text += ": " + q.words()
	}
	return userEvent(kind, q.user, text, q.reason)
}

// words says what was granted: "cpu 12, memory 6TiB".
func (q *Quota) words() string { return chargeOf(q.band, &q.limit, 1).words() }

func (c charge) words() string {
	if len(c) == 0 {
		return "nothing"
	}
	var all []string
	for i := range c {
		all = append(all, c[i].what()+" "+c[i].text(c[i].n))
	}
	return strings.Join(all, ", ")
}

func (s *quotas) add(q *Quota) {
	s.byKey[q.key()] = q
	at, _ := slices.BinarySearchFunc(s.list, q.key(), compareQuota)
	s.list = slices.Insert(s.list, at, q)
}

func (s *quotas) remove(q *Quota) {
	delete(s.byKey, q.key())
	at, _ := slices.BinarySearchFunc(s.list, q.key(), compareQuota)
	s.list = slices.Delete(s.list, at, at+1)
	q.gone = true
}

func compareQuota(q *Quota, key string) int { return strings.Compare(q.key(), key) }

func (q *Quota) appendKey(to []byte) []byte { return append(append(to, kindQuota), q.key()...) }
func (q *Quota) exists() bool               { return !q.gone }

func (q *Quota) appendValue(to []byte) []byte {
	e := encoder{append(to, recordLayout)}
	e.resources(&q.limit)
	e.int(q.expiresWallNs)
	e.str(q.by)
	e.str(q.reason)
	e.int(q.setWallNs)
	return e.b
}

func (l *loader) quota(key string, d *decoder) error {
	user, name, _ := strings.Cut(key, "\x00")
	at := slices.IndexFunc(Bands, func(b borgpb.Band) bool { return BandName(b) == name })
	if l.c.format < FormatQuotas || at < 0 || !validName(user) {
		return errOdd
	}
	q := &Quota{user: user, band: Bands[at], limit: d.resources(), expiresWallNs: d.int(), by: d.str(), reason: d.str(), setWallNs: d.int()}
	if err := d.done(); err != nil {
		return err
	}
	if checkQuotaLimit(q.limit.Proto()) != nil || q.expiresWallNs < 0 || q.expiresWallNs > maxTimeNs {
		return errOdd
	}
	l.c.quotas.add(q)
	return nil
}

func (p *quotaPolicy) appendKey(to []byte) []byte { return append(to, kindQuotaPolicy) }

func (p *quotaPolicy) exists() bool { return p.enforce || p.oversell != [numBands]uint32{} }

func (p *quotaPolicy) appendValue(to []byte) []byte {
	e := encoder{append(to, recordLayout)}
	e.bool(p.enforce)
	for _, n := range p.oversell {
		e.uint(uint64(n))
	}
	return e.b
}

func (l *loader) quotaPolicy(d *decoder) error {
	p := &l.c.quotas.policy
	p.enforce = d.bool()
	for i := range p.oversell {
		p.oversell[i] = uint32(d.upTo(maxOversell))
	}
	if err := d.done(); err != nil {
		return err
	}
	if l.c.format < FormatQuotas || !p.exists() || p.oversell[numBands-1] != 0 {
		return errOdd
	}
	return nil
}
