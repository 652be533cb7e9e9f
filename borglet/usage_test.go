package borglet

import (
	"testing"
	"time"
)

func TestUsage(t *testing.T) {
	u := newUsage()
	id := ID{"1-5-0", 0, 1}
	start := time.Unix(100, 0)
	at := func(seconds int, cpu time.Duration, mem int64) map[ID]Stats {
		return map[ID]Stats{id: {At: start.Add(time.Duration(seconds) * time.Second), CPUNs: int64(cpu), MemBytes: mem}}
	}
	if got := u.take(); len(got) != 0 {
		t.Errorf("before any sample: %v", got)
	}
	u.record(at(0, 10*time.Second, 100), nil)
	u.record(at(1, 10*time.Second+500*time.Millisecond, 300), map[ID]int64{id: 42})
	u.record(at(2, 12*time.Second, 200), nil)
	got := u.take()
	if len(got) != 1 {
		t.Fatalf("take = %v", got)
	}
	g := got[0]
	if g.GetCpuMilliMean() != 1000 || g.GetCpuMilliPeak() != 1500 || g.GetMemBytesMean() != 200 || g.GetMemBytesPeak() != 300 || g.GetDiskBytes() != 42 {
		t.Errorf("take = %v, want means 1000 and 200, peaks 1500 and 300", g)
	}
	// Nothing was measured since; the next window begins where this one ended.
	if got := u.take(); len(got) != 0 {
		t.Errorf("without new samples: %v", got)
	}
	u.record(at(4, 12*time.Second+500*time.Millisecond, 50), nil)
	if g := u.take()[0]; g.GetCpuMilliMean() != 250 || g.GetMemBytesPeak() != 50 || g.GetDiskBytes() != 42 {
		t.Errorf("next window = %v, want 250 milli-cores", g)
	}
	// A new run counts from zero; a copy that has gone is forgotten.
	u.record(at(5, time.Second, 60), nil)
	if g := u.take()[0]; g.GetCpuMilliMean() != 0 || g.GetCpuMilliPeak() != 0 {
		t.Errorf("first sample of a new run = %v, want no use", g)
	}
	// What was counted from its start is told by what it grew.
	grown := Stats{
		At: start.Add(6 * time.Second), CPUNs: int64(2 * time.Second), MemBytes: 3 << 20, ThrottledNs: 7,
		RSSBytes: 1, CacheBytes: 2, MemPeakBytes: 3, ReadBytes: 4, WriteBytes: 5,
	}
	u.record(map[ID]Stats{id: grown}, nil)
	if g := u.take()[0]; g.GetThrottledNs() != 7 || g.GetRssBytes() != 1 || g.GetCacheBytes() != 2 || g.GetMemMaxBytes() != 3 || g.GetReadBytes() != 4 || g.GetWriteBytes() != 5 {
		t.Errorf("grown = %v", g)
	}
	grown.At, grown.ReadBytes, grown.ThrottledNs = grown.At.Add(time.Second), 10, 9
	u.record(map[ID]Stats{id: grown}, nil)
	if g := u.take()[0]; g.GetThrottledNs() != 2 || g.GetReadBytes() != 6 || g.GetWriteBytes() != 0 || g.GetMemMaxBytes() != 3 {
		t.Errorf("grown more = %v", g)
	}
	u.record(nil, nil)
	if len(u.windows) != 0 {
		t.Errorf("windows left: %v", u.windows)
	}
}

// TestUsageOfAllocs is told by the names that masters know, once, and goes with what is in
// the alloc.
func TestUsageOfAllocs(t *testing.T) {
	u := newUsage()
	start := time.Unix(600, 0)
	at := func(seconds int, cpu time.Duration) map[string]Stats {
		return map[string]Stats{"alice.pool.0": {At: start.Add(time.Duration(seconds) * time.Second), CPUNs: int64(cpu), MemBytes: 5}}
	}
	names := map[string]string{"alice.pool.0": "alice/pool/0", "alice.pool.1": "alice/pool/1"}
	u.recordAllocs(at(0, 0), map[string]int64{"alice.pool.0": 42})
	u.recordAllocs(at(300, 150*time.Second), nil)
	if got := u.takeAllocs(map[string]string{}); len(got) != 0 {
		t.Errorf("of an alloc that nobody knows: %v", got)
	}
	got := u.takeAllocs(names)
	if len(got) != 1 || got[0].Alloc != "alice/pool/0" {
		t.Fatalf("takeAllocs = %v, want one", got)
	}
	if g := got[0].Usage; g.Copy != nil || g.CpuMilliMean != 500 || g.MemBytesPeak != 5 || g.DiskBytes != 42 || g.Histogram.GetFromWallNs() != start.UnixNano() {
		t.Errorf("takeAllocs = %v", g)
	}
	if got := u.takeAllocs(names); len(got) != 0 {
		t.Errorf("without new samples: %v", got)
	}
	u.recordAllocs(nil, nil)
	if len(u.allocs) != 0 {
		t.Errorf("windows left: %v", u.allocs)
	}
}

// TestHistogram: each sample is counted once, in the five minutes that it was taken
// in, and these are told once, when they are over.
func TestHistogram(t *testing.T) {
	u := newUsage()
	id := ID{"1-5-0", 0, 1}
	begin := time.Unix(600, 0)
	cpu := int64(0)
	for second := range 301 {
		cpu += int64(time.Second) / 2
		u.record(map[ID]Stats{id: {At: begin.Add(time.Duration(second) * time.Second), CPUNs: cpu, MemBytes: int64(second%2) * 40 << 20}}, nil)
		if second == 100 || second == 299 {
			if got := u.take()[0].GetHistogram(); got != nil {
				t.Errorf("after %d s: %v, want none yet", second, got)
			}
		}
	}
	got := u.take()[0].GetHistogram()
	if got.GetFromWallNs() != begin.UnixNano() {
		t.Fatalf("histogram %v, want the one from %d", got, begin.UnixNano())
	}
	if len(got.CpuMilli) != rangeOf(500)+1 || got.CpuMilli[rangeOf(500)] != 299 {
		t.Errorf("processor %v, want 299 samples of 500", got.CpuMilli)
	}
	if len(got.MemMib) != rangeOf(40)+1 || got.MemMib[0] != 150 || got.MemMib[rangeOf(40)] != 150 {
		t.Errorf("memory %v, want 150 samples of 0 and of 40", got.MemMib)
	}
	u.record(map[ID]Stats{id: {At: begin.Add(302 * time.Second), CPUNs: cpu}}, nil)
	if got := u.take()[0].GetHistogram(); got != nil {
		t.Errorf("told again: %v", got)
	}
	for v, want := range map[int64]int{-1: 0, 0: 0, 1: 1, 3: 3, 4: 4, 5: 5, 7: 7, 8: 8, 9: 8, 10: 9, 16: 12, 19: 12, 20: 13, 31: 15, 32: 16} {
		if got := rangeOf(v); got != want {
			t.Errorf("rangeOf(%d) = %d, want %d", v, got, want)
		}
	}
}
