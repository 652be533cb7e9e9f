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
	u.record(nil, nil)
	if len(u.windows) != 0 {
		t.Errorf("windows left: %v", u.windows)
	}
}
