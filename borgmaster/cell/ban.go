package cell

import (
	"fmt"
	"iter"
	"slices"
	"strings"

	"borg/mutant"
	"borg/proto/borgpb"
)

// FormatBans is the format in which bans of packages began.
const FormatBans = 4

// Ban keeps tasks that have a package from being placed, everywhere or on one
// machine.
type Ban struct {
	mark
	name, digest, machine string
	by, reason            string
	sinceWallNs           int64
	expiresWallNs         int64
	gone                  bool
}

// Name of the package.
func (b *Ban) Name() string { return b.name }

// Digest of the package; empty: any.
func (b *Ban) Digest() string { return b.digest }

// Machine is where; empty: everywhere.
func (b *Ban) Machine() string { return b.machine }

// By is who banned it.
func (b *Ban) By() string { return b.by }

// Reason is why, in his words.
func (b *Ban) Reason() string { return b.reason }

// SinceWallNs is when it was banned.
func (b *Ban) SinceWallNs() int64 { return b.sinceWallNs }

// ExpiresWallNs is when it ends by itself; zero: never.
func (b *Ban) ExpiresWallNs() int64 { return b.expiresWallNs }

// Package names it as people do: "tool", "tool@sha256:...".
func (b *Ban) Package() string { return packageWords(b.name, b.digest) }

func packageWords(name, digest string) string {
	if digest == "" {
		return name
	}
	return name + "@" + digest
}

// Words says what is banned, where, by whom and why.
func (b *Ban) Words() string {
	text := "package " + b.Package() + " is banned"
	if b.machine != "" {
		text += " on " + b.machine
	}
	if b.by != "" {
		text += " by " + b.by
	}
	if b.reason != "" {
		text += ": " + b.reason
	}
	return text
}

// key orders bans; none of its parts holds a zero byte.
func (b *Ban) key() string { return banKey(b.name, b.digest, b.machine) }

func banKey(name, digest, machine string) string {
	return name + "\x00" + digest + "\x00" + machine
}

func (b *Ban) matches(p *borgpb.Package, machine string) bool {
	return b.name == p.GetName() && (b.digest == "" || b.digest == p.GetDigest()) && (b.machine == "" || b.machine == machine)
}

type bans struct {
	// Sorted by key.
	list []*Ban
	// No ban ends before; derived.
	dueWallNs int64
}

// Bans yields all bans by name, digest and machine.
func (c *Cell) Bans() iter.Seq[*Ban] { return slices.Values(c.bans.list) }

// Banned returns a ban that keeps who has these packages from a machine; nil when
// there is none.
func (c *Cell) Banned(packages []*borgpb.Package, m *Machine) *Ban {
	if len(c.bans.list) == 0 {
		return nil
	}
	for _, p := range packages {
		for _, b := range c.bans.of(p.GetName()) {
			if b.matches(p, m.name) {
				return b
			}
		}
	}
	return nil
}

// BansOf appends the bans that concern who has these packages, wherever they are.
func (c *Cell) BansOf(packages []*borgpb.Package, to []*Ban) []*Ban {
	if len(c.bans.list) == 0 {
		return to
	}
	for _, p := range packages {
		for _, b := range c.bans.of(p.GetName()) {
			if b.matches(p, b.machine) {
				to = append(to, b)
			}
		}
	}
	return to
}

// of are the bans of a name.
func (s *bans) of(name string) []*Ban {
	if mutant.Planted(mutant.BanNotAsked) {
		return nil
	}
	first, _ := slices.BinarySearchFunc(s.list, name, func(b *Ban, name string) int { return strings.Compare(b.name, name) })
	last := first
	for last < len(s.list) && s.list[last].name == name {
		last++
	}
	return s.list[first:last]
}

func (s *bans) find(key string) (at int, ok bool) {
	return slices.BinarySearchFunc(s.list, key, compareBan)
}

func compareBan(b *Ban, key string) int { return strings.Compare(b.key(), key) }

// add takes in a ban; there is none of its key.
func (s *bans) add(b *Ban) {
	at, _ := s.find(b.key())
	s.list = slices.Insert(s.list, at, b)
	s.reckon()
}

func (s *bans) remove(b *Ban) {
	at, _ := s.find(b.key())
	s.list = slices.Delete(s.list, at, at+1)
	b.gone = true
	s.reckon()
}

// reckon derives when the first one ends.
func (s *bans) reckon() {
	s.dueWallNs = maxTimeNs
	for _, b := range s.list {
		if b.expiresWallNs != 0 {
			s.dueWallNs = min(s.dueWallNs, b.expiresWallNs)
		}
	}
}

func (s *bans) check() error {
	due := int64(maxTimeNs)
	for i, b := range s.list {
		if b.gone || i > 0 && s.list[i-1].key() >= b.key() {
			return fmt.Errorf("the ban of package %s on %q is out of order", b.Package(), b.machine)
		}
		if b.expiresWallNs != 0 {
			due = min(due, b.expiresWallNs)
		}
	}
	if len(s.list) > maxBans || len(s.list) > 0 && due != s.dueWallNs {
		return fmt.Errorf("%d bans of packages, of which the first ends at %d, and not at %d", len(s.list), due, s.dueWallNs)
	}
	return nil
}

func checkPackage(name, digest string) *borgpb.Refusal {
	for _, q := range []struct{ field, text string }{{"name", name}, {"digest", digest}} {
		if len(q.text) > maxPackageBytes || strings.ContainsRune(q.text, 0) {
			return invalid(q.field, "%q: want at most %d bytes, none of them zero", clip(q.text, 64), maxPackageBytes)
		}
	}
	if name == "" {
		return invalid("name", "want the name of a package")
	}
	return nil
}

func (c *Cell) checkBanPackage(o *borgpb.BanPackage) (commit, *borgpb.Refusal) {
	if r := checkPackage(o.Name, o.Digest); r != nil {
		return nil, r
	}
	object := packageWords(o.Name, o.Digest)
	at, there := c.bans.find(banKey(o.Name, o.Digest, o.Machine))
	switch {
	case o.Machine != "" && c.machines[o.Machine] == nil && !there:
		return nil, notFound(object, "there is no machine %q", clip(o.Machine, 64))
	case o.ExpiresWallNs != 0 && (o.ExpiresWallNs <= c.clock.wallNs || o.ExpiresWallNs > maxTimeNs):
		return nil, about(object, invalid("expires_wall_ns", "it would have ended already, or ends later than clocks go"))
	case !there && len(c.bans.list) >= maxBans:
		return nil, about(object, limit("", "%d packages are banned; lift some of the bans", maxBans))
	}
	return func(*borgpb.Result) {
		if !there {
			c.bans.add(&Ban{name: o.Name, digest: o.Digest, machine: o.Machine})
		}
		b := c.bans.list[at]
		b.by, b.reason = c.now.user, clip(c.now.reason, maxReasonBytes)
		b.sinceWallNs, b.expiresWallNs = c.clock.wallNs, o.ExpiresWallNs
		c.bans.reckon()
		c.dirty(b)
		c.emit(banEvent(b, borgpb.EventKind_EVENT_KIND_PACKAGE_BAN, b.reason))
	}, nil
}

func (c *Cell) checkUnbanPackage(o *borgpb.UnbanPackage) (commit, *borgpb.Refusal) {
	at, ok := c.bans.find(banKey(o.Name, o.Digest, o.Machine))
	if !ok {
		where := ""
		if o.Machine != "" {
			where = " on " + clip(o.Machine, 64)
		}
		return nil, notFound(clip(packageWords(o.Name, o.Digest), 2*maxPackageBytes), "it is not banned%s", where)
	}
	return func(*borgpb.Result) {
		c.liftBan(c.bans.list[at], c.now.reason)
	}, nil
}

// expireBans lifts those whose time is over.
func (c *Cell) expireBans() {
	if len(c.bans.list) == 0 || c.clock.wallNs < c.bans.dueWallNs {
		return
	}
	for _, b := range slices.Clone(c.bans.list) {
		if b.expiresWallNs != 0 && b.expiresWallNs <= c.clock.wallNs {
			c.liftBan(b, "its time is over")
		}
	}
}

func (c *Cell) liftBan(b *Ban, reason string) {
	c.bans.remove(b)
	c.dirty(b)
	c.emit(banEvent(b, borgpb.EventKind_EVENT_KIND_PACKAGE_UNBAN, reason))
}

func banEvent(b *Ban, kind borgpb.EventKind, reason string) Event {
	return Event{Kind: kind, ObjectKind: borgpb.ObjectKind_OBJECT_KIND_PACKAGE, Name: b.Package(), Machine: b.machine, Reason: reason}
}

func (b *Ban) appendKey(to []byte) []byte { return append(append(to, kindBan), b.key()...) }
func (b *Ban) exists() bool               { return !b.gone }

func (b *Ban) appendValue(to []byte) []byte {
	e := encoder{append(to, recordLayout)}
	e.str(b.by)
	e.str(b.reason)
	e.int(b.sinceWallNs)
	e.int(b.expiresWallNs)
	return e.b
}

func (l *loader) ban(key string, d *decoder) error {
	parts := strings.Split(key, "\x00")
	if len(parts) != 3 {
		return errOdd
	}
	b := &Ban{name: parts[0], digest: parts[1], machine: parts[2], by: d.str(), reason: d.str(), sinceWallNs: d.int(), expiresWallNs: d.int()}
	if err := d.done(); err != nil {
		return err
	}
	if l.c.format < FormatBans || checkPackage(b.name, b.digest) != nil || b.machine != "" && !validName(b.machine) ||
		b.sinceWallNs < 0 || b.expiresWallNs < 0 || b.expiresWallNs > maxTimeNs {
		return errOdd
	}
	l.c.bans.add(b)
	return nil
}
