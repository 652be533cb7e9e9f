package journal

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"borg/proto/borgpb"
)

// TestFloodDropsItsOwn has one user write far more than the store holds, with restarts,
// while others, machines and usage are written in the same blocks. Nothing of theirs is
// lost, what is left of the flood is its newest, and what is gone is counted.
func TestFloodDropsItsOwn(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("to repeat: set seed to %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	dir := t.TempDir()
	now := time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)
	const most = 16 << 20
	open := func() *store {
		s, err := openStore(dir, DefaultKeep, most, func() time.Time { return now }, func(*borgpb.JournalBlock) {})
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	s := open()
	event := func(object string, kind borgpb.ObjectKind, pad int) *borgpb.Event {
		return &borgpb.Event{Kind: borgpb.EventKind_EVENT_KIND_SUBMIT, ObjectKind: kind, Object: object, Reason: strings.Repeat("x", pad)}
	}
	want := map[string][]string{}
	index := uint64(1)
	for block := range 1200 {
		now = now.Add(time.Second)
		b := &borgpb.JournalBlock{}
		for range 20 {
			index++
			e := &borgpb.JournalEntry{Index: index, WallNs: now.UnixNano()}
			for range 4 {
				e.Events = append(e.Events, event(fmt.Sprintf("mallory/j%d", len(want["mallory"])), borgpb.ObjectKind_OBJECT_KIND_JOB, 400+r.IntN(50)))
				want["mallory"] = append(want["mallory"], e.Events[len(e.Events)-1].Object)
			}
			b.Entries = append(b.Entries, e)
		}
		index++
		name := fmt.Sprintf("bob/j%d", block)
		want["bob"] = append(want["bob"], name)
		b.Entries = append(b.Entries, &borgpb.JournalEntry{Index: index, WallNs: now.UnixNano(), Events: []*borgpb.Event{
			event(name, borgpb.ObjectKind_OBJECT_KIND_JOB, 10), event("m1", borgpb.ObjectKind_OBJECT_KIND_MACHINE, 10),
		}, Asked: []*borgpb.AuditRecord{{Role: borgpb.Role_ROLE_USER, Who: "bob", Object: name, Index: index}}})
		want[""] = append(want[""], "m1")
		b.Usage = []*borgpb.UsageRow{{FromNs: now.UnixNano(), ToNs: now.UnixNano() + 1, Job: name}}
		if _, err := s.append(b); err != nil {
			t.Fatal(err)
		}
		if block%10 == 0 {
			if err := s.thin(); err != nil {
				t.Fatal(err)
			}
			if bytes, files, _ := s.size(); bytes > most || files > 40 {
				t.Fatalf("after block %d there are %d bytes in %d files", block, bytes, files)
			}
		}
		if r.IntN(300) == 0 {
			if err := s.close(); err != nil {
				t.Fatal(err)
			}
			s = open()
		}
	}
	got, usage, asked := map[string][]string{}, 0, 0
	last := uint64(0)
	if err := s.read(0, 0, Pick{}, atOnce, func(b *borgpb.JournalBlock) error {
		if len(b.Gaps) > 0 {
			t.Errorf("a gap is told: %v", b.Gaps)
		}
		usage += len(b.Usage)
		for _, e := range b.Entries {
			if e.Index <= last {
				t.Fatalf("entry %d comes after %d", e.Index, last)
			}
			last = e.Index
			asked += len(e.Asked)
			for _, ev := range e.Events {
				got[eventUser(ev)] = append(got[eventUser(ev)], ev.Object)
			}
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(got["bob"], want["bob"]) || len(got[""]) != len(want[""]) || usage != len(want["bob"]) || asked != usage {
		t.Errorf("left are %d events of bob, %d of machines, %d rows and %d requests; want %d of each", len(got["bob"]), len(got[""]), usage, asked, len(want["bob"]))
	}
	kept, all := got["mallory"], want["mallory"]
	if len(kept) == 0 || len(kept) == len(all) || !slices.Equal(kept, all[len(all)-len(kept):]) {
		t.Errorf("%d events of mallory are left of %d, and they are not the newest", len(kept), len(all))
	}
	told := s.told()
	if len(told) != 1 || told[0].Who != "mallory" || int(told[0].Drop.Records) != len(all)-len(kept) || told[0].WallNs >= told[0].LastWallNs {
		t.Errorf("%d events of mallory are gone, and this is told: %v", len(all)-len(kept), told)
	}
	// A stretch of time is found by the indexes that were written anew.
	n := 0
	if err := s.read(now.Add(-time.Minute).UnixNano(), 0, Pick{}, atOnce, func(b *borgpb.JournalBlock) error { n += len(b.Entries); return nil }); err != nil || n == 0 {
		t.Errorf("of the last minute %d entries are told (%v)", n, err)
	}
}

// TestOldestFileIsCounted: where there was no time to make room, the oldest file goes as a
// whole, and that is told of everybody in it.
func TestOldestFileIsCounted(t *testing.T) {
	now := time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)
	const most = 4 << 20
	s, err := openStore(t.TempDir(), DefaultKeep, most, func() time.Time { return now }, func(*borgpb.JournalBlock) {})
	if err != nil {
		t.Fatal(err)
	}
	for i := range 6_000 {
		now = now.Add(time.Second)
		user := []string{"ann", "bob"}[i%2]
		if _, err := s.append(&borgpb.JournalBlock{Entries: []*borgpb.JournalEntry{{Index: uint64(i + 1), WallNs: now.UnixNano(), Events: []*borgpb.Event{
			{ObjectKind: borgpb.ObjectKind_OBJECT_KIND_JOB, Object: user + "/web", Reason: strings.Repeat("x", 1_000)},
		}}}}); err != nil {
			t.Fatal(err)
		}
	}
	left := uint64(0)
	if err := s.read(0, 0, Pick{}, atOnce, func(b *borgpb.JournalBlock) error { left += uint64(len(b.Entries)); return nil }); err != nil {
		t.Fatal(err)
	}
	told := s.told()
	if len(told) != 2 || told[0].Drop.Records+told[1].Drop.Records+left != 6_000 {
		t.Errorf("%d entries of 6000 are left, and this is told: %v", left, told)
	}
}
