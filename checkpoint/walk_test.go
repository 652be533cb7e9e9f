package checkpoint

import (
	"bytes"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"go.etcd.io/raft/v3/raftpb"
	"google.golang.org/protobuf/proto"

	"borg/proto/borgpb"
)

// model is what a store should hold.
type model struct {
	start, startTerm uint64
	entries          []*raftpb.Entry
	hard             *raftpb.HardState
	header           *borgpb.CheckpointHeader
	records          map[string]string
}

func newModel() *model {
	return &model{start: 1, startTerm: 1, hard: hardState(1, 0, 1), header: startHeader(), records: map[string]string{}}
}

func (m *model) last() uint64 { return m.start + uint64(len(m.entries)) }

func (m *model) clone() *model {
	c := *m
	c.entries = slices.Clone(m.entries)
	c.records = maps.Clone(m.records)
	return &c
}

// check compares a store with the model through every door that raft has.
func (m *model) check(t *testing.T, s *Store) {
	t.Helper()
	if diff := m.diff(s); diff != "" {
		t.Fatal(diff)
	}
}

func (m *model) diff(s *Store) string {
	first, _ := s.FirstIndex()
	last, _ := s.LastIndex()
	// A store may keep more of the log than it must.
	if first > m.start+1 || last != m.last() {
		return fmt.Sprintf("log has %d to %d, want %d to %d", first, last, m.start+1, m.last())
	}
	hard, conf, err := s.InitialState()
	if err != nil || hard.GetTerm() != m.hard.GetTerm() || hard.GetVote() != m.hard.GetVote() {
		return fmt.Sprintf("hard state %v (%v), want %v", hard, err, m.hard)
	}
	if !slices.Equal(conf.GetVoters(), m.header.GetVoters()) {
		return fmt.Sprintf("voters %v, want %v", conf.GetVoters(), m.header.GetVoters())
	}
	if !proto.Equal(s.Header(), m.header) {
		return fmt.Sprintf("header %v, want %v", s.Header(), m.header)
	}
	for i, e := range m.entries {
		if term, err := s.Term(e.GetIndex()); err != nil || term != e.GetTerm() {
			return fmt.Sprintf("term of %d is %d (%v), want %d", e.GetIndex(), term, err, e.GetTerm())
		}
		got, err := s.Entries(e.GetIndex(), m.last()+1, 100)
		if err != nil || len(got) == 0 {
			return fmt.Sprintf("entries from %d: %v, %v", e.GetIndex(), got, err)
		}
		for j, g := range got {
			if !proto.Equal(g, m.entries[i+j]) {
				return fmt.Sprintf("entry %d is %v, want %v", e.GetIndex(), g, m.entries[i+j])
			}
		}
	}
	if term, err := s.Term(m.start); err != nil || term != m.startTerm {
		return fmt.Sprintf("term before the log is %d (%v), want %d", term, err, m.startTerm)
	}
	return m.diffRecords(s)
}

func (m *model) diffRecords(s *Store) string {
	p, err := s.Picture()
	if err != nil {
		return err.Error()
	}
	defer p.Close()
	got := map[string]string{}
	for k, v := range p.Records() {
		got[string(k)] = string(v)
	}
	if err := p.Err(); err != nil {
		return err.Error()
	}
	if !maps.Equal(got, m.records) {
		return fmt.Sprintf("%d records, want %d", len(got), len(m.records))
	}
	return ""
}

// TestStoreWalk takes a seeded walk of everything that a store does, crashes
// and reopenings included, and compares with a model after each step.
func TestStoreWalk(t *testing.T) {
	for seed := range uint64(20) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			w := &walk{t: t, rnd: rand.New(rand.NewPCG(seed, 0)), fs: vfs.NewCrashableMem(), want: newModel()}
			w.s = newStore(t, w.fs)
			w.sync()
			for range 300 {
				w.step()
			}
			if err := w.s.Close(); err != nil {
				t.Error(err)
			}
		})
	}
}

type walk struct {
	t   *testing.T
	rnd *rand.Rand
	fs  *vfs.MemFS
	s   *Store
	// want is what the store holds.
	want *model
	// since is what it held at the last sync and after each write since: a
	// crash must leave one of these.
	since []*model
	term  uint64
}

func (w *walk) must(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

func (w *walk) step() {
	switch n := w.rnd.IntN(100); {
	case n < 50:
		w.append()
	case n < 75:
		w.flush()
	case n < 85:
		hold := uint64(w.rnd.IntN(int(w.want.last()) + 100))
		w.must(w.s.Compact(hold, hold))
	case n < 90:
		w.install()
	case n < 95:
		w.must(w.s.Close())
		w.s = openStore(w.t, w.fs)
		w.sync()
	default:
		w.crash()
		return
	}
	// The log may have been compacted: the model follows.
	w.follow(w.want)
	w.want.check(w.t, w.s)
}

// follow compacts a model as far as the store was.
func (w *walk) follow(m *model) {
	first, _ := w.s.FirstIndex()
	for m.start+1 < first {
		m.start, m.startTerm = m.start+1, m.entries[0].GetTerm()
		m.entries = m.entries[1:]
	}
	if m.start > m.header.GetIndex() {
		w.t.Fatalf("the log begins after %d and the records stand for %d", m.start, m.header.GetIndex())
	}
}

func (w *walk) append() {
	w.term = max(w.term, w.want.hard.GetTerm()) + uint64(w.rnd.IntN(2))
	// From somewhere after what was flushed: an overwritten tail.
	from := w.want.last() + 1
	if lo := max(w.want.header.GetIndex(), w.want.start) + 1; w.rnd.IntN(4) == 0 && lo < from {
		from = lo + uint64(w.rnd.IntN(int(from-lo)))
	}
	var groups [][]*raftpb.Entry
	for range 1 + w.rnd.IntN(3) {
		var entries []*raftpb.Entry
		for range w.rnd.IntN(5) {
			entries = append(entries, entry(from, w.term, strings.Repeat("x", w.rnd.IntN(60))))
			from++
		}
		groups = append(groups, entries)
		if len(entries) > 0 {
			w.want.entries = append(w.want.entries[:entries[0].GetIndex()-w.want.start-1:entries[0].GetIndex()-w.want.start-1], entries...)
		}
	}
	hard := hardState(w.term, uint64(w.rnd.IntN(3)), w.want.header.GetIndex())
	w.must(w.s.Append(groups, hard, true))
	w.want.hard = hard
	w.sync()
}

func (w *walk) flush() {
	h := proto.CloneOf(w.want.header)
	lo := h.GetIndex()
	h.Index = proto.CloneOf(h).Index + uint64(w.rnd.IntN(int(w.want.last()-lo)+1))
	if h.GetIndex() > w.want.start {
		h.Term = w.want.entries[h.GetIndex()-w.want.start-1].GetTerm()
	}
	h.Voters = []uint64{1, h.GetIndex() + 1}
	f := w.s.NewFlush()
	for range w.rnd.IntN(20) {
		k := fmt.Sprint(w.rnd.IntN(100))
		if w.rnd.IntN(4) == 0 {
			f.Put([]byte(k), nil)
			delete(w.want.records, k)
		} else {
			v := fmt.Sprint(w.rnd.Uint64())
			f.Put([]byte(k), []byte(v))
			w.want.records[k] = v
		}
	}
	w.must(f.Commit(h))
	w.want.header = h
	w.since = append(w.since, w.want.clone())
}

func (w *walk) install() {
	h := proto.CloneOf(w.want.header)
	h.Index, h.Term = w.want.last()+uint64(w.rnd.IntN(50)), w.term+1
	h.FileFormat = FileFormat
	records := []record{{"a", fmt.Sprint(w.rnd.Uint64())}, {"b", "2"}}
	in, err := w.s.Receive(bytes.NewReader(encode(w.t, h, records)))
	w.must(err)
	if w.rnd.IntN(3) == 0 {
		w.must(w.s.Discard(in))
		return
	}
	hard := hardState(w.term+1, 0, h.GetIndex())
	w.must(w.s.Install(in, hard))
	w.want = &model{start: h.GetIndex(), startTerm: h.GetTerm(), hard: hard, header: h, records: map[string]string{"a": records[0].value, "b": "2"}}
	w.sync()
}

// crash goes on from what a power failure leaves: all that was synced, and
// records as they were at that sync or at a later flush.
func (w *walk) crash() {
	clone := w.fs.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: w.rnd.IntN(2) * 50, RNG: w.rnd})
	w.must(w.s.Close())
	w.fs = clone
	w.s = openStore(w.t, clone)
	for _, m := range w.since {
		w.follow(m)
		if m.diff(w.s) == "" {
			w.want = m
			w.sync()
			return
		}
	}
	last, _ := w.s.LastIndex()
	w.t.Fatalf("after a crash the log ends at %d and the records stand for %d: that is none of the %d states since the last sync, whose log ended at %d",
		last, w.s.Header().GetIndex(), len(w.since), w.since[0].last())
}

// sync notes that what is there now must survive a crash.
func (w *walk) sync() { w.since = []*model{w.want.clone()} }
