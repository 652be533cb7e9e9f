package journal

import (
	"cmp"
	"math"
	"path/filepath"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"

	"borg/borgmaster/audit"
	"borg/proto/borgpb"
)

const (
	// maxSharesOfFile is how many users a file knows the bytes of; what others have in it
	// is small, and stays until the file goes.
	maxSharesOfFile = 1_024
	// maxDropsKept is how many users it is remembered of that something of theirs was
	// dropped, those of whom it was last.
	maxDropsKept = 1_000
	droppedName  = "dropped"
)

// shares are the bytes of each user. What is the cell's own, of machines, and pictures are
// of the user without a name.
type shares map[string]int64

// userOf reads the user off the name of an object.
func userOf(object string) string {
	user, _, _ := strings.Cut(object, "/")
	return user
}

// eventUser is whose event it is; empty: the cell's.
func eventUser(e *borgpb.Event) string {
	switch e.ObjectKind {
	case borgpb.ObjectKind_OBJECT_KIND_MACHINE, borgpb.ObjectKind_OBJECT_KIND_CELL, borgpb.ObjectKind_OBJECT_KIND_PACKAGE:
		return ""
	case borgpb.ObjectKind_OBJECT_KIND_UNSPECIFIED:
		return e.User
	}
	return userOf(e.Object)
}

// askedUser is who asked; empty: no user.
func askedUser(r *borgpb.AuditRecord) string {
	if r.Role == borgpb.Role_ROLE_USER || r.Role == borgpb.Role_ROLE_TASK {
		return userOf(r.Who)
	}
	return ""
}

// factsUser is whose object it is; empty: a machine.
func factsUser(f *borgpb.ObjectFacts) string {
	if f.Kind == borgpb.ObjectKind_OBJECT_KIND_MACHINE {
		return ""
	}
	return userOf(f.Name)
}

// sieve takes out of blocks what is asked for, the oldest first.
type sieve struct {
	// What each user is still to lose.
	over shares
	// What was taken out.
	drops map[string]*borgpb.AuditRecord
}

// takes reports whether something of a user's is taken out, and counts it.
func (s *sieve) takes(user string, m proto.Message, records uint64, wallNs int64) bool {
	if s.over[user] <= 0 {
		return false
	}
	s.over[user] -= int64(proto.Size(m))
	if records > 0 {
		noteDrop(s.drops, user, records, wallNs, wallNs)
	}
	return true
}

// block takes out of a block what goes.
func (s *sieve) block(b *borgpb.JournalBlock) {
	b.Entries = slices.DeleteFunc(b.Entries, func(e *borgpb.JournalEntry) bool {
		some := len(e.Events)+len(e.Asked) > 0
		e.Events = slices.DeleteFunc(e.Events, func(ev *borgpb.Event) bool { return s.takes(eventUser(ev), ev, 1, e.WallNs) })
		e.Asked = slices.DeleteFunc(e.Asked, func(r *borgpb.AuditRecord) bool { return s.takes(askedUser(r), r, 1, e.WallNs) })
		e.Facts = slices.DeleteFunc(e.Facts, func(f *borgpb.ObjectFacts) bool { return s.takes(factsUser(f), f, 0, e.WallNs) })
		return some && len(e.Events)+len(e.Asked)+len(e.Facts) == 0
	})
	b.Usage = slices.DeleteFunc(b.Usage, func(u *borgpb.UsageRow) bool { return s.takes(userOf(u.Job), u, 1, u.FromNs) })
	b.Picture = slices.DeleteFunc(b.Picture, func(f *borgpb.ObjectFacts) bool { return s.takes("", f, 0, 0) })
}

// add adds what is in a block.
func (s shares) add(b *borgpb.JournalBlock) {
	for _, e := range b.Entries {
		for _, ev := range e.Events {
			s[eventUser(ev)] += int64(proto.Size(ev))
		}
		for _, r := range e.Asked {
			s[askedUser(r)] += int64(proto.Size(r))
		}
		for _, f := range e.Facts {
			s[factsUser(f)] += int64(proto.Size(f))
		}
	}
	for _, u := range b.Usage {
		s[userOf(u.Job)] += int64(proto.Size(u))
	}
	for _, f := range b.Picture {
		s[""] += int64(proto.Size(f))
	}
}

// bound keeps the largest of them.
func (s shares) bound() {
	if len(s) <= maxSharesOfFile {
		return
	}
	users := make([]string, 0, len(s))
	for u := range s {
		users = append(users, u)
	}
	slices.SortFunc(users, func(a, b string) int { return cmp.Or(-cmp.Compare(s[a], s[b]), cmp.Compare(a, b)) })
	for _, u := range users[maxSharesOfFile:] {
		delete(s, u)
	}
}

// over is what each must lose so that all together have at most that many bytes.
func (s shares) over(most int64) shares {
	held := make([]int64, 0, len(s))
	for _, n := range s {
		held = append(held, n)
	}
	level, over := audit.Level(held, most), shares{}
	for u, n := range s {
		if n > level {
			over[u] = n - level
		}
	}
	return over
}

// noteDrop counts what was dropped of a user.
func noteDrop(drops map[string]*borgpb.AuditRecord, user string, records uint64, firstNs, lastNs int64) {
	d := drops[user]
	if d == nil {
		d = &borgpb.AuditRecord{Role: borgpb.Role_ROLE_USER, Who: user, WallNs: firstNs, Drop: new(borgpb.AuditDrop)}
		if user == "" {
			d.Role = borgpb.Role_ROLE_MASTER
		}
		drops[user] = d
	}
	d.WallNs, d.LastWallNs = min(d.WallNs, firstNs), max(d.LastWallNs, lastNs)
	d.Drop.Records += records
	d.Drop.Times += records
}

// keepDropped adds to what was dropped, and writes it down. The caller holds mu.
func (s *store) keepDropped(drops map[string]*borgpb.AuditRecord) error {
	for user, d := range drops {
		noteDrop(s.dropped, user, d.Drop.Records, d.WallNs, d.LastWallNs)
		s.drops += d.Drop.Records
	}
	return audit.WriteDrops(filepath.Join(s.dir, droppedName), s.droppedNow())
}

// droppedNow is what was dropped and would not be too old anyhow, by the time of the
// last. The caller holds mu.
func (s *store) droppedNow() (all []*borgpb.AuditRecord) {
	old := s.now().Add(-s.keep).UnixNano()
	for user, d := range s.dropped {
		if d.LastWallNs < old {
			delete(s.dropped, user)
		} else {
			all = append(all, d)
		}
	}
	slices.SortFunc(all, func(a, b *borgpb.AuditRecord) int {
		return cmp.Or(cmp.Compare(a.LastWallNs, b.LastWallNs), cmp.Compare(a.Who, b.Who))
	})
	for len(all) > maxDropsKept {
		delete(s.dropped, all[0].Who)
		all = all[1:]
	}
	return all
}

// everything is a sieve that lets nothing through.
func everything(held shares) *sieve {
	s := &sieve{over: shares{}, drops: map[string]*borgpb.AuditRecord{}}
	for user := range held {
		s.over[user] = math.MaxInt64
	}
	return s
}

// told returns copies of what was dropped.
func (s *store) told() []*borgpb.AuditRecord {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := s.droppedNow()
	for i, d := range all {
		all[i] = proto.CloneOf(d)
	}
	return all
}
