package checkpoint

import (
	"bytes"
	"fmt"
	"io"
	"testing"

	"go.etcd.io/raft/v3/raftpb"
)

// benchRecords are as many and as large as those of a cell of some size.
func benchRecords() []record { return manyRecords(100_000, 300) }

func BenchmarkWrite(b *testing.B) {
	records := benchRecords()
	for b.Loop() {
		w, err := NewWriter(io.Discard, testHeader())
		if err != nil {
			b.Fatal(err)
		}
		for _, r := range records {
			if err := w.Add([]byte(r.key), []byte(r.value)); err != nil {
				b.Fatal(err)
			}
		}
		if err := w.Close(); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(len(records)*b.N)/b.Elapsed().Seconds(), "checkpoint.write.records_per_s")
}

func BenchmarkRead(b *testing.B) {
	records := benchRecords()
	file := encode(b, testHeader(), records)
	for b.Loop() {
		if err := Verify(bytes.NewReader(file)); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(len(records)*b.N)/b.Elapsed().Seconds(), "checkpoint.read.records_per_s")
}

// diskStore is a new store on the real disk.
func diskStore(b *testing.B) *Store {
	dir := b.TempDir()
	if err := Create(Config{Dir: dir}, testIdentity(), startHeader()); err != nil {
		b.Fatal(err)
	}
	s, err := Open(Config{Dir: dir}, testIdentity())
	if err != nil {
		b.Fatal(err)
	}
	return s
}

// BenchmarkAppend appends small entries to the log, one sync each, on the real
// disk.
func BenchmarkAppend(b *testing.B) {
	s := diskStore(b)
	index := s.Header().GetIndex()
	data := fmt.Sprintf("%0200d", 0)
	for b.Loop() {
		index++
		if err := s.Append([][]*raftpb.Entry{{entry(index, 1, data)}}, nil, true); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "checkpoint.append.synced_per_s")
	if err := s.Close(); err != nil {
		b.Fatal(err)
	}
}

// BenchmarkFlush writes as many changed records as gather between two flushes while
// jobs are submitted in a rush, on the real disk.
func BenchmarkFlush(b *testing.B) {
	s := diskStore(b)
	records := manyRecords(1_500, 300)
	b.ReportAllocs()
	for b.Loop() {
		f := s.NewFlush()
		for _, r := range records {
			f.Put([]byte(r.key), []byte(r.value))
		}
		if err := f.Commit(s.Header()); err != nil {
			b.Fatal(err)
		}
	}
	if err := s.Close(); err != nil {
		b.Fatal(err)
	}
}
