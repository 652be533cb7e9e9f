package audit

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"borg/proto/borgpb"
)

// asks is an entry in which one user asks for a job; pad makes it larger.
func asks(t *testing.T, user, job string, wallNs int64, pad int) []byte {
	t.Helper()
	op, err := proto.Marshal(&borgpb.Op{RequestId: user + job, Principal: &borgpb.Principal{User: user, Role: borgpb.Role_ROLE_USER},
		Op: &borgpb.Op_SubmitJob{SubmitJob: &borgpb.SubmitJob{User: user, Name: job, Spec: make([]byte, pad)}}})
	if err != nil {
		t.Fatal(err)
	}
	data, err := proto.Marshal(&borgpb.Entry{WallTimeNs: wallNs, Ops: [][]byte{op}})
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// TestFloodDropsItsOwn has one user flood the journal, at random with restarts, while
// others and admins do a little. Nothing of theirs is lost, what the flood drops is its
// oldest, and every record is either kept or counted as dropped.
func TestFloodDropsItsOwn(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	for range 3 {
		seed++
		t.Run(fmt.Sprint(seed), func(t *testing.T) { floods(t, seed) })
	}
}

func floods(t *testing.T, seed uint64) {
	t.Logf("to repeat: set seed to %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	dir, now := t.TempDir(), aDay()
	const most = 256 << 10
	begin := now.UnixNano()
	open := func() *Trail {
		trail, err := Open(Config{Dir: dir, Replica: 3, LogBytes: most, Now: func() time.Time { return *now }})
		if err != nil {
			t.Fatal(err)
		}
		trail.KnowAdmins(func(user string) bool { return user == "root" })
		return trail
	}
	trail := open()
	defer func() { trail.Close() }()
	want := map[string][]string{}
	for index := uint64(2); index < 4_000; index++ {
		*now = now.Add(time.Duration(r.IntN(1000)) * time.Millisecond)
		user, pad := "mallory", r.IntN(2_000)
		switch r.IntN(40) {
		case 0:
			user, pad = "bob", 10
		case 1:
			user, pad = "root", 10
		}
		job := fmt.Sprintf("j%d", index)
		result := &borgpb.Result{Version: 1}
		if r.IntN(3) == 0 {
			result = &borgpb.Result{Refusal: &borgpb.Refusal{Kind: borgpb.RefusalKind_REFUSAL_KIND_LIMIT, Message: "too much"}}
		}
		trail.Log.Applied(index, asks(t, user, job, now.UnixNano(), pad), []*borgpb.Result{result})
		want[user] = append(want[user], user+"/"+job)
		if r.IntN(500) == 0 {
			if r.IntN(2) == 0 {
				trail.Close()
			}
			trail = open()
		}
		if r.IntN(100) == 0 && trail.Log.journal.isOver() {
			if err := trail.Log.journal.drop(); err != nil {
				t.Fatal(err)
			}
		}
		if index%50 == 0 {
			if bytes, files := bytesOf(t, dir, "log"); bytes > most || files > 40 {
				t.Fatalf("at %d the journal has %d bytes in %d files", index, bytes, files)
			}
		}
	}
	got := map[string][]string{}
	last := uint64(0)
	if err := trail.Log.Each(Pick{}, func(r *borgpb.AuditRecord) error {
		if r.Hole != nil || r.Index < last {
			t.Errorf("after %d: %v", last, r)
		}
		if r.Refusal != nil && (len(r.Op) > 0 || len(r.OpHash) != 32) {
			t.Errorf("a refusal keeps its op: %v", r)
		}
		last = r.Index
		got[r.Who] = append(got[r.Who], r.Object)
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	for _, user := range []string{"bob", "root"} {
		if !slices.Equal(got[user], want[user]) {
			t.Errorf("of %s %d records are left of %d", user, len(got[user]), len(want[user]))
		}
	}
	kept, all := got["mallory"], want["mallory"]
	if len(kept) == 0 || !slices.Equal(kept, all[len(all)-len(kept):]) {
		t.Fatalf("%d records of mallory are left of %d, and they are not the newest", len(kept), len(all))
	}
	dropped := trail.Log.Dropped()
	if len(dropped) != 1 {
		t.Fatalf("dropped: %v", dropped)
	}
	if d := dropped[0]; d.Who != "mallory" || d.Role != borgpb.Role_ROLE_USER || int(d.Drop.Records) != len(all)-len(kept) || d.WallNs < begin || d.LastWallNs <= d.WallNs || d.LastWallNs > now.UnixNano() {
		t.Errorf("%d records of mallory are gone, and this is told: %v", len(all)-len(kept), d)
	}
}

// TestDropBesideDamage: what a user has over is dropped also where the file after it is damaged, so
// that the two cannot be joined.
func TestDropBesideDamage(t *testing.T) {
	dir, now := t.TempDir(), aDay()
	trail, err := Open(Config{Dir: dir, Replica: 3, LogBytes: 1 << 20, Now: func() time.Time { return *now }})
	if err != nil {
		t.Fatal(err)
	}
	defer trail.Close()
	j := trail.Log.journal
	j.limits.fileBytes = 4_000
	for index := uint64(2); len(j.files) < 3; index++ {
		trail.Log.Applied(index, asks(t, "mallory", fmt.Sprint("j", index), now.UnixNano(), 900), []*borgpb.Result{{Version: 1}})
	}
	first, second := j.files[0], j.files[1]
	if err := errors.Join(j.weigh(first), j.weigh(second)); err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(j.path(second))
	if err != nil {
		t.Fatal(err)
	}
	data[len(data)-1]++
	if err := os.WriteFile(j.path(second), data, 0o600); err != nil {
		t.Fatal(err)
	}
	g := &group{files: []*journalFile{first, second}, out: maps.Clone(first.held)}
	if err := j.replace(g); err != nil {
		t.Fatal(err)
	}
	if left := j.files[0].bytes; left > int64(headBytes+frameBytes) {
		t.Errorf("the first file has %d bytes, want all of it dropped", left)
	}
	if !j.files[1].damaged {
		t.Error("the second file is not known to be damaged")
	}
}

// TestLevel: those above one level come down to it, and the others drop nothing.
func TestLevel(t *testing.T) {
	a, b, c, root := share{who: "a"}, share{who: "b"}, share{who: "c"}, share{who: "root", admin: true}
	for _, tt := range []struct {
		held tally
		most int64
		want tally
	}{
		{tally{a: 10, b: 20}, 30, nil},
		{tally{a: 10, b: 20, root: 100}, 29, tally{b: 1}},
		{tally{a: 10, b: 100, c: 90}, 110, tally{b: 50, c: 40}},
		{tally{a: 50, b: 50}, 60, tally{a: 20, b: 20}},
		{tally{a: 5}, -1, tally{a: 5}},
	} {
		got := tt.held.excess(false, tt.most)
		if len(got) != len(tt.want) {
			t.Errorf("%v over %d: %v, want %v", tt.held, tt.most, got, tt.want)
		}
		for s, n := range tt.want {
			if got[s] != n {
				t.Errorf("%v over %d: %v, want %v", tt.held, tt.most, got, tt.want)
			}
		}
	}
}

// TestLargeBatches: what is larger than a file is written too, and room is made after it.
func TestLargeBatches(t *testing.T) {
	now := aDay()
	dir := t.TempDir()
	trail, err := Open(Config{Dir: dir, Replica: 3, LogBytes: 8_000, Now: func() time.Time { return *now }})
	if err != nil {
		t.Fatal(err)
	}
	defer trail.Close()
	for index := uint64(2); index < 40; index++ {
		trail.Log.Applied(index, asks(t, "ann", fmt.Sprint("j", index), now.UnixNano(), 950), []*borgpb.Result{{Version: 1}})
		if bytes, _ := bytesOf(t, dir, "log"); bytes > 8_000 {
			t.Fatalf("at %d the journal has %d bytes", index, bytes)
		}
	}
	last := uint64(0)
	if err := trail.Log.Each(Pick{}, func(r *borgpb.AuditRecord) error {
		if r.Hole != nil {
			t.Errorf("a hole: %v", r)
		}
		last = r.Index
		return nil
	}); err != nil || last != 39 {
		t.Errorf("the last record is of %d (%v), want 39", last, err)
	}
}
