package replica

import (
	"slices"
	"testing"

	"google.golang.org/protobuf/proto"

	"borg/proto/borgpb"
)

func opsOf(t *testing.T, data []byte) (ops []string) {
	t.Helper()
	entry := new(borgpb.Entry)
	if err := proto.Unmarshal(data, entry); err != nil {
		t.Fatal(err)
	}
	for _, op := range entry.Ops {
		ops = append(ops, string(op))
	}
	return ops
}

// TestBatches follows ops into entries and the entries' results back to those
// who wait.
func TestBatches(t *testing.T) {
	ready := Moment{State: CoreState{Term: 4, Leading: true, Settled: true}, BaseTerm: 4, BaseCellNs: 100, SinceElectedNs: 7, WallNs: 9}
	nobodyGone := func(string) bool { return false }
	var b Batches[string]
	for _, op := range []string{"a", "b", "c"} {
		if !b.Put(LaneUsers, []byte(op), "asks "+op) {
			t.Fatalf("no room for %s", op)
		}
	}
	for name, change := range map[string]func(*Moment){
		"not settled":               func(m *Moment) { m.State.Settled = false },
		"nothing of the term is in": func(m *Moment) { m.BaseTerm = 3 },
		"an append is under way":    func(m *Moment) { m.Appending = 1 },
		"an entry is not committed": func(m *Moment) { m.Uncommitted = true },
	} {
		m := ready
		change(&m)
		if data := b.Next(m, nobodyGone); data != nil {
			t.Errorf("%s: an entry of %d bytes, want none", name, len(data))
		}
	}

	data := b.Next(ready, func(who string) bool { return who == "asks b" })
	if got, want := opsOf(t, data), []string{"a", "c"}; !slices.Equal(got, want) {
		t.Errorf("ops %v, want %v", got, want)
	}
	entry := new(borgpb.Entry)
	if err := proto.Unmarshal(data, entry); err != nil || entry.CellTimeNs != 107 || entry.WallTimeNs != 9 {
		t.Errorf("stamps %d and %d (%v), want 107 and 9", entry.CellTimeNs, entry.WallTimeNs, err)
	}

	// Raft did not take it: it comes again, before what came meanwhile.
	b.Put(LaneUsers, []byte("d"), "asks d")
	b.Back()
	data = b.Next(ready, nobodyGone)
	if got, want := opsOf(t, data), []string{"a", "c", "d"}; !slices.Equal(got, want) {
		t.Errorf("ops after Back %v, want %v", got, want)
	}

	for name, e := range map[string]struct {
		term uint64
		data []byte
	}{"raft's own entry": {4, nil}, "an entry of another leader": {3, data}} {
		if who, ok := b.Mine(e.term, e.data); ok {
			t.Errorf("%s is taken for ours: %v", name, who)
		}
	}
	if who, ok := b.Mine(4, data); !ok || !slices.Equal(who, []string{"asks a", "asks c", "asks d"}) {
		t.Errorf("Mine = %v, %v", who, ok)
	}

	b.Put(LaneUsers, []byte("e"), "asks e")
	for _, lane := range []Lane{LaneOwn, LaneReports, LaneScheduler} {
		// None waits until others have the entry before, and whoever waits goes along.
		other := b
		other.Put(lane, []byte("own"), "own")
		m := ready
		m.Uncommitted = true
		if got := opsOf(t, other.Next(m, nobodyGone)); len(got) != 2 {
			t.Errorf("lane %d beside one of users, an entry not committed: %v", lane, got)
		}
	}
	b.Next(ready, nobodyGone)
	b.Put(LaneUsers, []byte("f"), "asks f")
	if pending, queued := b.TakePending(), b.TakeQueued(); !slices.Equal(pending, []string{"asks e"}) || !slices.Equal(queued, []string{"asks f"}) {
		t.Errorf("pending %v, queued %v", pending, queued)
	}
}

// TestPatientLanes: reports and schedulers, who had an entry a moment ago, have the next
// one when the rest is over, or others have one made; nobody else waits for them, and
// what is much waits for nothing.
func TestPatientLanes(t *testing.T) {
	const termNs = 1e12
	few, much := []byte("few"), make([]byte, fewPatientBytes)
	at := func(ns int64) Moment {
		return Moment{State: CoreState{Term: 4, Leading: true, Settled: true}, BaseTerm: 4, SinceElectedNs: termNs + ns}
	}
	uncommitted := func(ns int64) Moment {
		m := at(ns)
		m.Uncommitted = true
		return m
	}
	anew := at(-termNs)
	anew.State.Term, anew.BaseTerm = 5, 5
	for _, patient := range []Lane{LaneReports, LaneScheduler} {
		for name, x := range map[string]struct {
			put  map[Lane][]byte
			m    Moment
			want int
		}{
			"a moment later":                                   {nil, at(entryRestNs - 1), 0},
			"when the rest is over":                            {nil, at(entryRestNs), 1},
			"the same, and an entry is not committed":          {nil, uncommitted(entryRestNs), 1},
			"with one of users":                                {map[Lane][]byte{LaneUsers: few}, at(1), 2},
			"with one of users, and an entry is not committed": {map[Lane][]byte{LaneUsers: few}, uncommitted(1), 0},
			"with one of the masters":                          {map[Lane][]byte{LaneOwn: few}, uncommitted(1), 2},
			"with much":                                        {map[Lane][]byte{patient: much}, at(1), 2},
			"after another election":                           {nil, anew, 1},
		} {
			var b Batches[string]
			b.Put(patient, few, "first")
			if got := len(opsOf(t, b.Next(at(0), func(string) bool { return false }))); got != 1 {
				t.Fatalf("lane %d: the first entry has %d ops, want 1", patient, got)
			}
			b.Put(patient, few, "next")
			for lane, op := range x.put {
				b.Put(lane, op, "beside it")
			}
			if got := len(opsOf(t, b.Next(x.m, func(string) bool { return false }))); got != x.want {
				t.Errorf("lane %d, %s: %d ops, want %d", patient, name, got, x.want)
			}
		}
	}
}

// TestBatchesAreBounded fills the queue and splits what is large.
func TestBatchesAreBounded(t *testing.T) {
	ready := Moment{State: CoreState{Term: 1, Leading: true, Settled: true}, BaseTerm: 1}
	var b Batches[int]
	op := make([]byte, 400<<10)
	n := 0
	for b.Put(LaneUsers, op, n) {
		n++
	}
	if want := maxQueuedBytes / len(op); n != want {
		t.Errorf("%d ops were taken, want %d", n, want)
	}
	if got := len(opsOf(t, b.Next(ready, func(int) bool { return false }))); got != 2 {
		t.Errorf("%d ops of 400 KiB in an entry, want 2", got)
	}
	if !b.Put(LaneUsers, op, n) {
		t.Error("no room for an op after an entry was made")
	}
}

// TestLanes: what masters do by themselves goes before all else, and schedulers and
// users take turns, however large what each asks for.
func TestLanes(t *testing.T) {
	ready := Moment{State: CoreState{Term: 1, Leading: true, Settled: true}, BaseTerm: 1}
	var b Batches[string]
	large := func(name string) []byte { return append([]byte(name), make([]byte, 900<<10)...) }
	for range 2 {
		b.Put(LaneUsers, large("user"), "user")
		b.Put(LaneScheduler, large("scheduler"), "scheduler")
	}
	b.Put(LaneReports, []byte("report"), "report")
	b.Put(LaneOwn, []byte("own"), "own")
	var got []string
	for data := b.Next(ready, func(string) bool { return false }); data != nil; data = b.Next(ready, func(string) bool { return false }) {
		who, _ := b.Mine(1, data)
		got = append(got, who...)
		if len(got) == 3 {
			b.Put(LaneOwn, []byte("own"), "own")
		}
	}
	if want := []string{"own", "report", "scheduler", "own", "user", "scheduler", "user"}; !slices.Equal(got, want) {
		t.Errorf("entries hold %v, want %v", got, want)
	}
	for role, want := range map[borgpb.Role]Lane{borgpb.Role_ROLE_MASTER: LaneOwn, borgpb.Role_ROLE_SCHEDULER: LaneScheduler, borgpb.Role_ROLE_USER: LaneUsers, borgpb.Role_ROLE_TASK: LaneUsers} {
		if got := LaneOf(&borgpb.Op{Principal: &borgpb.Principal{Role: role}}); got != want {
			t.Errorf("an op of role %v goes in lane %d, want %d", role, got, want)
		}
	}
	reports := &borgpb.Op{Principal: &borgpb.Principal{Role: borgpb.Role_ROLE_MASTER}, Op: &borgpb.Op_Reports{Reports: &borgpb.Reports{}}}
	if got := LaneOf(reports); got != LaneReports {
		t.Errorf("reports go in lane %d, want %d", got, LaneReports)
	}
}
