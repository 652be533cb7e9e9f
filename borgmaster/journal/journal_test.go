package journal

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"borg/borgmaster/audit"
	"borg/borgmaster/cell"
	"borg/proto/borgpb"
	"borg/proto/borgrpc"
)

// noCell is a cell in which there is nothing.
type noCell struct{ c *cell.Cell }

func (n noCell) View(f func(c *cell.Cell)) { f(n.c) }

func nothing() noCell {
	return noCell{cell.New("test", 1)}
}

func journalAt(t testing.TB, dir string, now *time.Time) *Journal {
	t.Helper()
	j, err := Open(Config{Dir: dir, Replica: 1, Now: func() time.Time { return *now }})
	if err != nil {
		t.Fatal(err)
	}
	return j
}

// anEntry is one in which ann asks for a job, and what came of it.
func anEntry(t testing.TB, index uint64) ([]byte, []*borgpb.Result, []cell.Event) {
	t.Helper()
	op, err := proto.Marshal(&borgpb.Op{RequestId: "r", Principal: &borgpb.Principal{User: "ann", Role: borgpb.Role_ROLE_USER}, Reason: "it is time",
		Op: &borgpb.Op_SubmitJob{SubmitJob: &borgpb.SubmitJob{User: "ann", Name: "web"}}})
	if err != nil {
		t.Fatal(err)
	}
	data, err := proto.Marshal(&borgpb.Entry{WallTimeNs: 7, Ops: [][]byte{op}})
	if err != nil {
		t.Fatal(err)
	}
	return data, []*borgpb.Result{{}}, []cell.Event{{Index: index, WallNs: 7, Kind: borgpb.EventKind_EVENT_KIND_SUBMIT, ObjectKind: borgpb.ObjectKind_OBJECT_KIND_JOB, Key: cell.JobKey{User: "ann", Name: "web"}}}
}

func apply(t testing.TB, j *Journal, index uint64) {
	t.Helper()
	data, results, events := anEntry(t, index)
	j.Applied(index, data, audit.Records(index, data, results), events)
}

// words is what a journal says, one word for each entry and gap, by place in the file.
func words(t *testing.T, j *Journal) string {
	t.Helper()
	var all []string
	err := j.Read(0, 0, Pick{}, atOnce, func(b *borgpb.JournalBlock) error {
		for _, g := range b.Gaps {
			all = append(all, fmt.Sprintf("gap:%d-%d", g.From, g.To))
		}
		for _, e := range b.Entries {
			if len(e.Asked) != 1 || e.Asked[0].Who != "ann" || e.Asked[0].Reason != "it is time" || len(e.Asked[0].Op) > 0 {
				t.Errorf("entry %d was asked for as %v", e.Index, e.Asked)
			}
			all = append(all, fmt.Sprint(e.Index))
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return strings.Join(all, " ")
}

func TestEntriesAreKeptOnce(t *testing.T) {
	dir, now, log := t.TempDir(), aDay(), nothing()
	j := journalAt(t, dir, now)
	apply(t, j, 2)
	j.Applied(3, nil, nil, nil)
	j.Flush(log)
	apply(t, j, 4)
	// Killed: 4 was in the queue. The log has it again, and 3 too.
	j = journalAt(t, dir, now)
	j.Applied(3, nil, nil, nil)
	apply(t, j, 4)
	apply(t, j, 5)
	j.Flush(log)
	// What it had not written, and is not applied again, is told.
	apply(t, j, 6)
	j = journalAt(t, dir, now)
	apply(t, j, 7)
	j.Restored(100)
	apply(t, j, 101)
	j.Flush(log)
	if got, want := words(t, j), "2 4 5 gap:6-6 gap:8-100 7 101"; got != want {
		t.Errorf("the journal says %q, want %q", got, want)
	}
	// The mark alone is lost: the entries say the same.
	j.Close()
	if err := os.Remove(filepath.Join(dir, throughName)); err != nil {
		t.Fatal(err)
	}
	j = journalAt(t, dir, now)
	apply(t, j, 101)
	apply(t, j, 102)
	j.Flush(log)
	if got, want := words(t, j), "2 4 5 gap:6-6 gap:8-100 7 101 102"; got != want {
		t.Errorf("without its mark the journal says %q, want %q", got, want)
	}
	j.Close()
}

// TestTooMuchIsAGap: what does not fit into the queue is told, and nothing more.
func TestTooMuchIsAGap(t *testing.T) {
	j := journalAt(t, t.TempDir(), aDay())
	defer j.Close()
	const more = 10
	for index := range uint64(maxQueued + more) {
		apply(t, j, index+2)
	}
	j.Flush(nothing())
	apply(t, j, maxQueued+more+2)
	j.Flush(nothing())
	got := words(t, j)
	if want := fmt.Sprintf("gap:%d-%d", maxQueued+2, maxQueued+more+1); strings.Count(got, "gap") != 1 || !strings.Contains(got, want) {
		t.Errorf("the journal of a flood lacks %s", want)
	}
	if n := len(strings.Fields(got)); n != maxQueued+2 || j.Stats().Dropped != more {
		t.Errorf("%d words and %d dropped, want %d and %d", n, j.Stats().Dropped, maxQueued+2, more)
	}
}

// TestRoomOfTheBlockBefore: nothing of what one block says is in what is made in its room,
// and no message is made in the room of another one of its block.
func TestRoomOfTheBlockBefore(t *testing.T) {
	c := cell.New("test", 1)
	entry := &borgpb.Entry{CellTimeNs: 1, WallTimeNs: 7}
	ask := func(op *borgpb.Op) {
		op.Principal = &borgpb.Principal{User: "ann", Role: borgpb.Role_ROLE_USER}
		data, err := proto.Marshal(op)
		if err != nil {
			t.Fatal(err)
		}
		entry.Ops = append(entry.Ops, data)
	}
	for i := range 3 * maxSlab / 2 {
		spec, err := proto.Marshal(&borgpb.JobSpec{Kind: borgpb.JobKind_JOB_KIND_SERVICE, Tasks: uint32(1 + i%3), Priority: 200, MaxPerMachine: uint32(i % 2),
			Task: &borgpb.TaskSpec{Args: []string{"x"}, Resources: &borgpb.Resources{CpuMilli: int64(i + 1), MemBytes: 1}}})
		if err != nil {
			t.Fatal(err)
		}
		ask(&borgpb.Op{Op: &borgpb.Op_SubmitJob{SubmitJob: &borgpb.SubmitJob{User: "ann", Name: fmt.Sprint("job-", i), Spec: spec}}})
		ask(&borgpb.Op{Op: &borgpb.Op_AddMachine{AddMachine: &borgpb.AddMachine{Name: fmt.Sprint("m", i), Spec: &borgpb.MachineSpec{
			Addr: fmt.Sprint("m", i, ":1"), Capacity: &borgpb.Resources{CpuMilli: 1000 + int64(i)}, Attributes: map[string]string{"rack": fmt.Sprint("r", i)}}}}})
	}
	data, err := proto.Marshal(entry)
	if err != nil {
		t.Fatal(err)
	}
	_, events := c.Apply(2, 1, data)
	jobs, machines := events[:0:0], events[:0:0]
	for _, e := range events {
		if e.ObjectKind == borgpb.ObjectKind_OBJECT_KIND_JOB {
			jobs = append(jobs, e)
		} else {
			machines = append(machines, e)
		}
	}
	if len(jobs) < maxSlab || len(machines) < maxSlab {
		t.Fatalf("%d events of jobs and %d of machines", len(jobs), len(machines))
	}
	m := new(maker)
	for _, events := range [][]cell.Event{machines, jobs, machines} {
		m.again()
		batch := []applied{{index: 2, events: events}}
		got, want := m.entriesOf(batch, noCell{c}), new(maker).entriesOf(batch, noCell{c})
		if len(got) != 1 || len(got[0].Facts) != len(events) || !proto.Equal(got[0], want[0]) {
			t.Errorf("an entry with %d events is made otherwise in room that was used: it has %d facts", len(events), len(got[0].Facts))
		}
		for i, e := range got[0].Events {
			if f := got[0].Facts[i]; e.Object != f.Name {
				t.Fatalf("event %d is of %s, and its facts of %s", i, e.Object, f.Name)
			}
		}
	}
}

// TestAFullDiskIsAGap: what cannot be written is told as soon as something can.
func TestAFullDiskIsAGap(t *testing.T) {
	dir, now := filepath.Join(t.TempDir(), "events"), aDay()
	j := journalAt(t, dir, now)
	defer func() { j.Close() }()
	apply(t, j, 2)
	j.Flush(nothing())
	// The directory is gone, and the file that is open is full.
	j.store.fileBytes = 1
	if err := os.Rename(dir, dir+".away"); err != nil {
		t.Fatal(err)
	}
	apply(t, j, 3)
	j.Flush(nothing())
	apply(t, j, 4)
	j.Flush(nothing())
	if err := os.Rename(dir+".away", dir); err != nil {
		t.Fatal(err)
	}
	// The cell is idle now.
	j.Flush(nothing())
	if got, want := words(t, j), "2 gap:3-3 gap:4-4"; got != want {
		t.Errorf("the journal says %q, want %q", got, want)
	}
	apply(t, j, 5)
	j.Flush(nothing())
	if got, want := words(t, j), "2 gap:3-3 gap:4-4 5"; got != want {
		t.Errorf("the journal says %q, want %q", got, want)
	}
}

func TestWindows(t *testing.T) {
	const second, window = int64(1e9), int64(300e9)
	w := NewWindows(3, window)
	use := func(cpu, peak, mem int64) []*borgrpc.Usage {
		return []*borgrpc.Usage{{Copy: &borgrpc.CopyID{JobUid: "u", Index: 1, Attempt: 2}, CpuMilliMean: cpu, CpuMilliPeak: peak, MemBytesMean: mem, MemBytesPeak: mem + 1}}
	}
	w.Add(10*second, "m1", use(100, 500, 10), nil)
	w.Add(20*second, "m1", use(300, 400, 20), nil)
	if rows := taken(w, 299*second, false); len(rows) > 0 {
		t.Errorf("before the window has ended there are rows: %v", rows)
	}
	// The next window, before anybody asked.
	w.Add(310*second, "m1", use(1, 1, 1), nil)
	rows := taken(w, 310*second, false)
	want := &borgpb.UsageRow{FromNs: 10 * second, ToNs: 20 * second, JobUid: "u", Index: 1, Attempt: 2, Machine: "m1", Replica: 3, Samples: 2,
		CpuMilliMean: 200, CpuMilliPeak: 500, MemBytesMean: 15, MemBytesPeak: 21}
	if len(rows) != 1 || !proto.Equal(rows[0], want) {
		t.Errorf("the rows are %v, want %v", rows, want)
	}
	// A clock that goes back ends a window too.
	w.Add(5*second, "m1", use(1, 1, 1), nil)
	if rows := taken(w, 5*second, true); len(rows) != 2 || rows[0].FromNs != 5*second || rows[1].FromNs != 310*second {
		t.Errorf("at the end there are %v", rows)
	}
	if rows := taken(w, 5*second, true); len(rows) > 0 {
		t.Errorf("then there are %v", rows)
	}
	// An alloc is known by its name, and has a row beside those of what runs in it.
	alloc := []*borgrpc.AllocUsage{{Alloc: "alice/pool/7", Usage: use(700, 800, 30)[0]}, {Alloc: "nonsense", Usage: use(1, 1, 1)[0]}}
	w.Add(5*second, "m1", use(600, 600, 20), alloc)
	want = &borgpb.UsageRow{FromNs: 5 * second, ToNs: 5 * second, OfAlloc: true, Job: "alice/pool", Index: 7, Machine: "m1", Replica: 3, Samples: 1,
		CpuMilliMean: 700, CpuMilliPeak: 800, MemBytesMean: 30, MemBytesPeak: 31}
	if rows := taken(w, 5*second, true); len(rows) != 2 || !proto.Equal(rows[0], want) || rows[1].JobUid != "u" || rows[1].OfAlloc {
		t.Errorf("with an alloc there are %v, want first %v", rows, want)
	}
}

// BenchmarkApplied is what the path of the log pays for an entry with an event.
func BenchmarkApplied(b *testing.B) {
	j := journalAt(b, b.TempDir(), aDay())
	defer j.Close()
	data, results, events := anEntry(b, 2)
	index := uint64(1)
	for b.Loop() {
		index++
		j.Applied(index, data, audit.Records(index, data, results), events)
		if len(j.queue) == maxQueued {
			b.StopTimer()
			j.queue, j.queuedBytes = j.queue[:0], 0
			b.StartTimer()
		}
	}
}

func taken(w *Windows, nowNs int64, all bool) []*borgpb.UsageRow {
	rows, _ := w.Take(nowNs, all)
	return rows
}

// atOnce is the step of a read that waits for nothing.
func atOnce() error { return nil }
