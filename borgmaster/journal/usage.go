package journal

import (
	"cmp"
	"maps"
	"math"
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
	// How many were ever opened.
	opened uint64
	// Those of which something is in no draft, who waits longest first; some may have ended.
	undrafted []*sums
	// Machines that others have polled since, and how many were opened before that.
	left map[string]uint64
	// The window as of which open was last looked through.
	looked int64
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
	key copyKey
	// Which of all that were opened it is.
	number uint64
	// It waits for the next drafts; it was in some.
	queued, drafted  bool
	ended            bool
	fromNs, toNs     int64
	n                uint32
	cpu, mem         int64
	cpuPeak, memPeak int64
}

// NewWindows adds up for a replica.
func NewWindows(replica uint64, windowNs int64) *Windows {
	return &Windows{replica: replica, windowNs: windowNs, open: map[copyKey]*sums{}, left: map[string]uint64{}, looked: math.MinInt64}
}

// Left hears that others poll a machine now. What it tells here later is another part of
// the window: between the two others have theirs.
func (w *Windows) Left(machine string) { w.left[machine] = w.opened }

// Add takes in what a poll of a machine told.
func (w *Windows) Add(nowNs int64, machine string, told []*borgrpc.Usage, allocs []*borgrpc.AllocUsage) {
	left := w.left[machine]
	for _, u := range told {
		id := u.GetCopy()
		w.add(nowNs, left, copyKey{machine: machine, uid: id.GetJobUid(), index: id.GetIndex(), attempt: id.GetAttempt()}, u)
	}
	for _, u := range allocs {
		w.add(nowNs, left, copyKey{machine: machine, alloc: u.GetAlloc()}, u.GetUsage())
	}
}

func (w *Windows) add(nowNs int64, left uint64, key copyKey, u *borgrpc.Usage) {
	s := w.open[key]
	if s != nil && (s.number <= left || s.fromNs/w.windowNs != nowNs/w.windowNs) {
		w.end(s)
		s = nil
	}
	if s == nil {
		if len(w.done)+len(w.open) >= maxWindowRows {
			w.lost++
			return
		}
		w.opened++
		s = &sums{key: key, number: w.opened, fromNs: nowNs}
		w.open[key] = s
	}
	s.toNs = max(nowNs, s.fromNs)
	s.n++
	s.cpu, s.mem = s.cpu+u.GetCpuMilliMean(), s.mem+u.GetMemBytesMean()
	s.cpuPeak = max(s.cpuPeak, u.GetCpuMilliPeak(), u.GetCpuMilliMean())
	s.memPeak = max(s.memPeak, u.GetMemBytesPeak(), u.GetMemBytesMean())
	if !s.queued {
		s.queued = true
		w.undrafted = append(w.undrafted, s)
	}
}

// Take returns what began in windows before the one of nowNs, or with all of it
// everything, by time and copy; whatever is still open began at beforeNs or later.
func (w *Windows) Take(nowNs int64, all bool) (rows []*borgpb.UsageRow, beforeNs int64) {
	if now := nowNs / w.windowNs; all || now != w.looked {
		w.looked = now
		first := w.opened + 1
		for _, s := range w.open {
			if all || s.fromNs/w.windowNs != now {
				w.end(s)
			} else {
				first = min(first, s.number)
			}
		}
		w.undrafted = slices.DeleteFunc(w.undrafted, func(s *sums) bool { return s.ended })
		maps.DeleteFunc(w.left, func(_ string, opened uint64) bool { return opened < first })
	}
	rows, w.done = w.done, nil
	slices.SortFunc(rows, CompareUsage)
	if all {
		return rows, math.MaxInt64
	}
	return rows, w.looked * w.windowNs
}

func (w *Windows) end(s *sums) {
	delete(w.open, s.key)
	s.ended = true
	if row := w.row(s); row != nil {
		w.done = append(w.done, row)
		return
	}
	w.lost++
}

// row is what there is of a window; nil: it is of an alloc that nobody could have named so.
func (w *Windows) row(s *sums) *borgpb.UsageRow {
	key := &s.key
	row := &borgpb.UsageRow{
		FromNs: s.fromNs, ToNs: s.toNs, JobUid: key.uid, Index: key.index, Attempt: key.attempt, Machine: key.machine, Replica: w.replica,
		Samples: s.n, CpuMilliMean: s.cpu / int64(s.n), CpuMilliPeak: s.cpuPeak, MemBytesMean: s.mem / int64(s.n), MemBytesPeak: s.memPeak,
	}
	if key.alloc != "" {
		at := strings.LastIndexByte(key.alloc, '/')
		index, err := strconv.ParseUint(key.alloc[at+1:], 10, 32)
		if at < 0 || err != nil {
			return nil
		}
		row.OfAlloc, row.Job, row.Index = true, key.alloc[:at], uint32(index)
	}
	return row
}

// Open is of how many copies and allocs a window is being added up.
func (w *Windows) Open() int { return len(w.open) }

// Drafts returns what there is so far of windows that have not ended: of those that were
// told of since they were in drafts, who waits longest first, most of them. Nil: of none.
func (w *Windows) Drafts(most int) *borgrpc.UsageDrafts {
	d := new(borgrpc.UsageDrafts)
	n := 0
	for ; n < len(w.undrafted) && DraftsIn(d) < most; n++ {
		s := w.undrafted[n]
		s.queued = false
		switch {
		case s.ended:
		case s.drafted:
			if d.Numbers == nil {
				roomFor(d, min(len(w.undrafted), most))
			}
			d.Numbers, d.LastedNs, d.Samples = append(d.Numbers, s.number), append(d.LastedNs, s.toNs-s.fromNs), append(d.Samples, s.n)
			d.CpuMilliMean, d.CpuMilliPeak = append(d.CpuMilliMean, s.cpu/int64(s.n)), append(d.CpuMilliPeak, s.cpuPeak)
			d.MemBytesMean, d.MemBytesPeak = append(d.MemBytesMean, s.mem/int64(s.n)), append(d.MemBytesPeak, s.memPeak)
		default:
			if row := w.row(s); row != nil {
				d.Rows, d.RowNumbers = append(d.Rows, row), append(d.RowNumbers, s.number)
				s.drafted = true
			}
		}
	}
	if w.undrafted = w.undrafted[n:]; len(w.undrafted) == 0 {
		w.undrafted = nil
	}
	if DraftsIn(d) == 0 {
		return nil
	}
	return d
}

func roomFor(d *borgrpc.UsageDrafts, n int) {
	d.Numbers, d.LastedNs, d.Samples = make([]uint64, 0, n), make([]int64, 0, n), make([]uint32, 0, n)
	d.CpuMilliMean, d.CpuMilliPeak = make([]int64, 0, n), make([]int64, 0, n)
	d.MemBytesMean, d.MemBytesPeak = make([]int64, 0, n), make([]int64, 0, n)
}

// Redraft has all that is open go into drafts as if it never was in any: whoever held
// them holds them no longer.
func (w *Windows) Redraft() {
	w.undrafted = make([]*sums, 0, len(w.open))
	for _, s := range w.open {
		s.queued, s.drafted = true, false
		w.undrafted = append(w.undrafted, s)
	}
	slices.SortFunc(w.undrafted, func(a, b *sums) int { return cmp.Compare(a.number, b.number) })
}

// usageID tells rows apart: those that have the same one are of the same part of a window,
// as far as each of them goes.
type usageID struct {
	fromNs  int64
	replica uint64
	machine string
	ofAlloc bool
	job     string
	index   uint32
	attempt uint64
}

// idOf leaves out what a replica says of a row when it writes it, which another one may
// say otherwise: the name of a copy's job, and which alloc of this name it was.
func idOf(r *borgpb.UsageRow) usageID {
	id := usageID{fromNs: r.FromNs, replica: r.Replica, machine: r.Machine, ofAlloc: r.OfAlloc, job: r.JobUid, index: r.Index, attempt: r.Attempt}
	if r.OfAlloc {
		id.job, id.attempt = r.Job, 0
	}
	return id
}

// CompareUsage orders rows. Those that are equal by it are of the same part of a window.
func CompareUsage(a, b *borgpb.UsageRow) int {
	if c := cmp.Compare(a.FromNs, b.FromNs); c != 0 {
		return c
	}
	x, y := idOf(a), idOf(b)
	switch {
	case x.ofAlloc && !y.ofAlloc:
		return -1
	case y.ofAlloc && !x.ofAlloc:
		return 1
	}
	return cmp.Or(cmp.Compare(x.job, y.job), cmp.Compare(x.index, y.index), cmp.Compare(x.attempt, y.attempt), cmp.Compare(x.machine, y.machine), cmp.Compare(x.replica, y.replica))
}

// Furthest orders rows and leaves of those of one part of a window the one that goes
// furthest: the others say of less of it.
func Furthest(rows []*borgpb.UsageRow) []*borgpb.UsageRow {
	slices.SortFunc(rows, func(a, b *borgpb.UsageRow) int {
		return cmp.Or(CompareUsage(a, b), cmp.Compare(b.Samples, a.Samples), cmp.Compare(b.Job, a.Job))
	})
	return slices.CompactFunc(rows, func(a, b *borgpb.UsageRow) bool { return CompareUsage(a, b) == 0 })
}
