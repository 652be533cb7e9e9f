package journal

import (
	"cmp"
	"slices"
	"strconv"
	"strings"

	"borg/proto/borgpb"
	"borg/proto/borgrpc"
)

// maxWindowRows bounds the copies and allocs of which a window is being added up; of more
// nothing is kept.
const maxWindowRows = 500_000

// Windows adds up what polls tell of usage. It reads no clock, and is not safe for
// concurrent use.
type Windows struct {
	replica  uint64
	windowNs int64
	open     map[copyKey]*sums
	// Of windows that have ended.
	done []*borgpb.UsageRow
	// Told for copies beyond the bound.
	lost int64
}

// copyKey is a copy, or by its name an alloc.
type copyKey struct {
	machine, uid string
	index        uint32
	attempt      uint64
	alloc        string
}

type sums struct {
	fromNs, toNs     int64
	n                uint32
	cpu, mem         int64
	cpuPeak, memPeak int64
}

// NewWindows adds up for a replica.
func NewWindows(replica uint64, windowNs int64) *Windows {
	return &Windows{replica: replica, windowNs: windowNs, open: map[copyKey]*sums{}}
}

// Add takes in what a poll of a machine told.
func (w *Windows) Add(nowNs int64, machine string, told []*borgrpc.Usage, allocs []*borgrpc.AllocUsage) {
	for _, u := range told {
		id := u.GetCopy()
		w.add(nowNs, copyKey{machine: machine, uid: id.GetJobUid(), index: id.GetIndex(), attempt: id.GetAttempt()}, u)
	}
	for _, u := range allocs {
		w.add(nowNs, copyKey{machine: machine, alloc: u.GetAlloc()}, u.GetUsage())
	}
}

func (w *Windows) add(nowNs int64, key copyKey, u *borgrpc.Usage) {
	s := w.open[key]
	if s != nil && s.fromNs/w.windowNs != nowNs/w.windowNs {
		w.end(key, s)
		s = nil
	}
	if s == nil {
		if len(w.done)+len(w.open) >= maxWindowRows {
			w.lost++
			return
		}
		s = &sums{fromNs: nowNs}
		w.open[key] = s
	}
	s.toNs = max(nowNs, s.fromNs)
	s.n++
	s.cpu, s.mem = s.cpu+u.GetCpuMilliMean(), s.mem+u.GetMemBytesMean()
	s.cpuPeak = max(s.cpuPeak, u.GetCpuMilliPeak(), u.GetCpuMilliMean())
	s.memPeak = max(s.memPeak, u.GetMemBytesPeak(), u.GetMemBytesMean())
}

// Take returns what began in windows before the one of nowNs, or with all of it
// everything, by time and copy.
func (w *Windows) Take(nowNs int64, all bool) []*borgpb.UsageRow {
	for key, s := range w.open {
		if all || s.fromNs/w.windowNs != nowNs/w.windowNs {
			w.end(key, s)
		}
	}
	rows := w.done
	w.done = nil
	slices.SortFunc(rows, CompareUsage)
	return rows
}

func (w *Windows) end(key copyKey, s *sums) {
	delete(w.open, key)
	row := &borgpb.UsageRow{
		FromNs: s.fromNs, ToNs: s.toNs, JobUid: key.uid, Index: key.index, Attempt: key.attempt, Machine: key.machine, Replica: w.replica,
		Samples: s.n, CpuMilliMean: s.cpu / int64(s.n), CpuMilliPeak: s.cpuPeak, MemBytesMean: s.mem / int64(s.n), MemBytesPeak: s.memPeak,
	}
	if key.alloc != "" {
		at := strings.LastIndexByte(key.alloc, '/')
		index, err := strconv.ParseUint(key.alloc[at+1:], 10, 32)
		if at < 0 || err != nil {
			w.lost++
			return
		}
		row.OfAlloc, row.Job, row.Index = true, key.alloc[:at], uint32(index)
	}
	w.done = append(w.done, row)
}

// CompareUsage orders rows. Those that are equal by it are copies of one row.
func CompareUsage(a, b *borgpb.UsageRow) int {
	return cmp.Or(cmp.Compare(a.FromNs, b.FromNs), cmp.Compare(a.JobUid, b.JobUid), cmp.Compare(a.Index, b.Index), cmp.Compare(a.Attempt, b.Attempt),
		cmp.Compare(a.Machine, b.Machine), cmp.Compare(a.Replica, b.Replica), cmp.Compare(a.Job, b.Job))
}
