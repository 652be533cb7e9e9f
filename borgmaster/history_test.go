package borgmaster_test

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"borg/borgmaster"
	"borg/borgmaster/journal"
	"borg/identity"
	"borg/proto/borgpb"
	"borg/proto/borgrpc"
)

// rememberingCell is a cell whose replicas keep their events in dirs/1, dirs/2, ...
func rememberingCell(t *testing.T, n int, dirs string) *testCell {
	t.Helper()
	return rememberingCellWith(t, n, dirs, func(int, *journal.Journal) {})
}

// rememberingCellWith does something to each journal before its master begins.
func rememberingCellWith(t *testing.T, n int, dirs string, change func(replica int, j *journal.Journal)) *testCell {
	t.Helper()
	return newCell(t, n, func(replica int, c *borgmaster.Config) {
		j, err := journal.Open(journal.Config{Dir: filepath.Join(dirs, fmt.Sprint(replica)), Replica: uint64(replica), Window: 300 * time.Millisecond})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { j.Close() })
		change(replica, j)
		c.Journal = j
	})
}

// history asks a replica, in the name of a user.
func (tc *testCell) history(replica int, user string, req *borgrpc.HistoryRequest) *borgrpc.HistoryResponse {
	tc.t.Helper()
	all := new(borgrpc.HistoryResponse)
	stream, err := borgrpc.NewHistoryServiceClient(tc.conn(replica, identity.User, user)).History(tc.t.Context(), req)
	for err == nil {
		var resp *borgrpc.HistoryResponse
		if resp, err = stream.Recv(); err == nil {
			all.Entries, all.Usage, all.Gaps = append(all.Entries, resp.Entries...), append(all.Usage, resp.Usage...), append(all.Gaps, resp.Gaps...)
			all.Silent, all.Picture = append(all.Silent, resp.Silent...), append(all.Picture, resp.Picture...)
		}
	}
	if !errors.Is(err, io.EOF) {
		tc.t.Fatal(err)
	}
	return all
}

func kindsOf(h *borgrpc.HistoryResponse) string {
	var words []string
	for _, e := range h.Entries {
		for _, ev := range e.Events {
			words = append(words, strings.TrimPrefix(ev.Kind.String(), "EVENT_KIND_")+" "+ev.Object)
		}
	}
	return strings.Join(words, "\n")
}

// TestHistoryTellsEventsAndWhy asks all replicas for what happened to a job.
func TestHistoryTellsEventsAndWhy(t *testing.T) {
	tc := rememberingCell(t, 3, t.TempDir())
	b := startBorglet(t, "m1")
	tc.addMachine(b)
	op := submit(t, "alice", "web", 1)
	op.Command, op.Reason = "borgcfg up web.borg", "it is time"
	tc.must(tc.client(2, "alice"), op)
	tc.must(tc.client(2, "bob"), submit(t, "bob", "other", 1))
	tc.place("alice", "web", "m1")
	tc.must(tc.client(1, "alice"), kill("alice", "web"))
	for replica := 1; replica <= 3; replica++ {
		until(t, "the history is told", func() bool {
			return strings.Contains(kindsOf(tc.history(replica, "alice", &borgrpc.HistoryRequest{Job: "alice/web"})), "STOPPED alice/web/0")
		})
		h := tc.history(replica, "alice", &borgrpc.HistoryRequest{Job: "alice/web"})
		got := kindsOf(h)
		for _, want := range []string{"SUBMIT alice/web", "SCHEDULE alice/web/0"} {
			if !strings.Contains(got, want) {
				t.Errorf("replica %d tells\n%s\nwant %s", replica, got, want)
			}
		}
		if strings.Contains(got, "bob") || len(h.Gaps)+len(h.Silent) > 0 {
			t.Errorf("replica %d tells\n%s\nwith gaps %v and silent %v", replica, got, h.Gaps, h.Silent)
		}
		first := h.Entries[0]
		if len(first.Asked) != 1 || first.Asked[0].Who != "alice" || first.Asked[0].Command != op.Command || first.Asked[0].Reason != op.Reason || len(first.Asked[0].Op) > 0 {
			t.Errorf("replica %d tells that %v asked", replica, first.Asked)
		}
		// How she asked is for her and for admins.
		if h := tc.history(replica, "bob", &borgrpc.HistoryRequest{Job: "alice/web"}); kindsOf(h) != got || len(h.Entries[0].Asked) > 0 {
			t.Errorf("bob hears\n%s\nand that %v asked", kindsOf(h), h.Entries[0].Asked)
		}
		if h := tc.history(replica, "alice", &borgrpc.HistoryRequest{Machine: "m1", Kinds: []borgpb.EventKind{borgpb.EventKind_EVENT_KIND_SCHEDULE}}); kindsOf(h) != "SCHEDULE alice/web/0" {
			t.Errorf("of what was scheduled on m1 replica %d tells %q", replica, kindsOf(h))
		}
	}
}

// TestLosingADiskLosesNoUsage stops all replicas in order, removes each one's directory in
// turn, and compares what the others tell.
func TestLosingADiskLosesNoUsage(t *testing.T) {
	dirs := t.TempDir()
	tc := rememberingCell(t, 3, dirs)
	for _, name := range []string{"m1", "m2", "m3"} {
		b := startBorglet(t, name)
		b.change(func() {
			b.uses = &borgrpc.Usage{CpuMilliMean: 10, CpuMilliPeak: 30, MemBytesMean: 100, MemBytesPeak: 200}
		})
		tc.addMachine(b)
	}
	for i, name := range []string{"a", "b", "c"} {
		tc.must(tc.client(1, "alice"), submit(t, "alice", name, 1))
		tc.place("alice", name, fmt.Sprintf("m%d", i+1))
	}
	all := func(tc *testCell, replica int) map[string]bool {
		h := tc.history(replica, "alice", &borgrpc.HistoryRequest{UsageOnly: true})
		rows := map[string]bool{}
		for _, u := range h.Usage {
			key := fmt.Sprint(u.FromNs, u.Job, u.Machine, u.Replica)
			if rows[key] {
				t.Errorf("row %s is told twice", key)
			}
			rows[key] = true
			if u.CpuMilliMean != 10 || u.CpuMilliPeak != 30 || u.MemBytesMean != 100 || u.MemBytesPeak != 200 || u.Samples == 0 || u.ToNs < u.FromNs {
				t.Errorf("what was used is told as %v", u)
			}
		}
		return rows
	}
	until(t, "each job has rows of several windows", func() bool {
		n := map[string]int{}
		for row := range all(tc, 1) {
			for _, job := range []string{"alice/a", "alice/b", "alice/c"} {
				if strings.Contains(row, job) {
					n[job]++
				}
			}
		}
		return n["alice/a"] > 2 && n["alice/b"] > 2 && n["alice/c"] > 2
	})
	before := all(tc, 2)
	for _, stop := range tc.stop {
		stop()
	}
	for lost := 1; lost <= 3; lost++ {
		again := t.TempDir()
		if err := os.CopyFS(again, os.DirFS(dirs)); err != nil {
			t.Fatal(err)
		}
		if err := os.RemoveAll(filepath.Join(again, fmt.Sprint(lost))); err != nil {
			t.Fatal(err)
		}
		for replica := 1; replica <= 3; replica++ {
			now := all(rememberingCell(t, 3, again), replica)
			for row := range before {
				if !now[row] {
					t.Errorf("without the disk of replica %d, replica %d does not tell %s", lost, replica, row)
				}
			}
		}
	}
}

type allMembers = borgmaster.Members

// alone is the allMembers as a replica sees it that reaches nobody any more.
type alone struct {
	allMembers
	replica uint64
	cut     atomic.Bool
}

func (a *alone) Members() []*borgpb.Member {
	all := a.allMembers.Members()
	if a.cut.Load() {
		all = slices.DeleteFunc(slices.Clone(all), func(m *borgpb.Member) bool { return m.Id != a.replica })
	}
	return all
}

// TestAKilledMasterLosesNoUsage ends a replica that polls in the middle of a window, which
// can tell nobody and whose directory is removed. TestKilledMasterLosesNoUsage of
// cmd/borgcell does it to a process.
func TestAKilledMasterLosesNoUsage(t *testing.T) {
	dirs, journals, members := t.TempDir(), map[int]*journal.Journal{}, map[int]*alone{}
	tc := newCell(t, 3, func(replica int, c *borgmaster.Config) {
		j, err := journal.Open(journal.Config{Dir: filepath.Join(dirs, fmt.Sprint(replica)), Replica: uint64(replica), Window: 24 * time.Hour, Silent: 3 * time.Second})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { j.Close() })
		members[replica] = &alone{allMembers: c.Members, replica: uint64(replica)}
		journals[replica], c.Journal, c.Members = j, j, members[replica]
	})
	const machines = 6
	for i := range machines {
		b := startBorglet(t, fmt.Sprint("m", i))
		b.change(func() {
			b.uses = &borgrpc.Usage{CpuMilliMean: 10, CpuMilliPeak: 30, MemBytesMean: 100, MemBytesPeak: 200}
		})
		tc.addMachine(b)
		name := fmt.Sprint("job-", i)
		tc.must(tc.client(1, "alice"), submit(t, "alice", name, 1))
		tc.place("alice", name, fmt.Sprint("m", i))
	}
	killed := 0
	until(t, "others hold what all were told, and a follower was told something", func() bool {
		held := 0
		for replica, j := range journals {
			held += int(j.Stats().Drafts)
			if replica > 1 && j.Open() > 0 {
				killed = replica
			}
		}
		return held == machines && killed > 0
	})
	want := journals[killed].Open()
	members[killed].cut.Store(true)
	tc.stop[killed-1]()
	if err := os.RemoveAll(filepath.Join(dirs, fmt.Sprint(killed))); err != nil {
		t.Fatal(err)
	}
	for replica := 1; replica <= 3; replica++ {
		if replica == killed {
			continue
		}
		until(t, "the others tell what it was told", func() bool {
			rows := tc.history(replica, "alice", &borgrpc.HistoryRequest{UsageOnly: true}).Usage
			if len(rows) > want {
				t.Fatalf("replica %d tells %v, and replica %d was told of %d copies", replica, rows, killed, want)
			}
			for _, u := range rows {
				if u.Replica != uint64(killed) || u.Samples == 0 || u.CpuMilliMean != 10 || u.MemBytesPeak != 200 || !strings.HasPrefix(u.Job, "alice/job-") {
					t.Fatalf("replica %d tells %v", replica, u)
				}
			}
			return len(rows) == want
		})
	}
}

// TestOthersFillGaps has a replica that was given a checkpoint instead of the log tell
// what it never saw, as long as another one answers that did.
func TestOthersFillGaps(t *testing.T) {
	tc := rememberingCellWith(t, 3, t.TempDir(), func(replica int, j *journal.Journal) {
		switch replica {
		case 1:
			j.Restored(1000)
		case 2:
			j.Restored(3)
		}
	})
	for _, name := range []string{"a", "b", "c", "d"} {
		tc.must(tc.client(1, "alice"), submit(t, "alice", name, 1))
	}
	all := "SUBMIT alice/a\nSUBMIT alice/b\nSUBMIT alice/c\nSUBMIT alice/d"
	whole := func(h *borgrpc.HistoryResponse) {
		t.Helper()
		if kindsOf(h) != all || len(h.Gaps)+len(h.Silent) > 0 {
			t.Errorf("what is told is\n%s\nwith gaps %v and silent %v, want\n%s", kindsOf(h), h.Gaps, h.Silent, all)
		}
	}
	asked := &borgrpc.HistoryRequest{Kinds: []borgpb.EventKind{borgpb.EventKind_EVENT_KIND_SUBMIT}}
	until(t, "all have applied it", func() bool {
		return kindsOf(tc.history(3, "alice", asked)) == all && kindsOf(tc.history(2, "alice", asked)) == all
	})
	for replica := 1; replica <= 3; replica++ {
		whole(tc.history(replica, "alice", asked))
	}
	if h := tc.history(1, "alice", &borgrpc.HistoryRequest{Kinds: asked.Kinds, Last: 2}); kindsOf(h) != "SUBMIT alice/c\nSUBMIT alice/d" {
		t.Errorf("the last two are\n%s", kindsOf(h))
	}
	// Now nobody who saw the first ones answers.
	tc.stop[2]()
	h := tc.history(1, "alice", asked)
	if len(h.Silent) != 1 || h.Silent[0].Replica != 3 || len(h.Gaps) != 1 || h.Gaps[0].From != 2 || h.Gaps[0].To != 3 {
		t.Errorf("without replica 3 the gaps are %v and the silent %v", h.Gaps, h.Silent)
	}
	if got := kindsOf(h); got == all || !strings.HasSuffix(all, got) || got == "" {
		t.Errorf("without replica 3 what is told is\n%s", got)
	}
}
