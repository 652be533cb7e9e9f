package trace

import (
	"encoding/binary"
	"fmt"
	"math"
	"time"

	"borg/proto/borgpb"
)

// HistoryKey is the extension of a job's spec that tells what became of its tasks
// where they were recorded: how long each ran is in no spec, and a simulation has to
// know.
const HistoryKey = "trace.history"

// End is how a run of a task ended.
type End uint8

const (
	// Ongoing: it went on when the recording ended.
	Ongoing End = iota
	// Finished by itself, and well.
	Finished
	// Failed by itself.
	Failed
	// Killed by who owns it.
	Killed
	// Evicted by the cell, or lost with its machine. How long the task would have
	// gone on is not known.
	Evicted
	numEnds
)

var endNames = [numEnds]string{"ongoing", "finished", "failed", "killed", "evicted"}

func (e End) String() string { return endNames[e] }

// NeverRan is the RunNs of a task that waited to the end.
const NeverRan = -1

// Run is one attempt of a task.
type Run struct {
	// WaitNs is how long it waited for a machine: since the task was there, or since
	// the run before.
	WaitNs int64
	// RunNs is how long it had one; NeverRan: it got none.
	RunNs int64
	End   End
}

// History is what became of one task, from when it was there.
type History struct {
	Runs []Run
	// What it used of what it asked for, in thousandths; zero: nobody says.
	CPUPermille, MemPermille uint32
}

// Own is the run after n others that the task ended by itself; false: it goes on for
// ever, as far as is known. A run that was cut off says little of the task: one that
// was evicted begins anew, and what it did then tells how long it takes. A kill
// that ended the task is an op of its own, and is no run; one after which
// it began anew is.
func (h *History) Own(n int) (r Run, last, ok bool) {
	for i := range h.Runs {
		r := h.Runs[i]
		last := i == len(h.Runs)-1
		if r.RunNs == NeverRan || r.End == Ongoing || r.End == Evicted || r.End == Killed && last {
			continue
		}
		if n == 0 {
			return r, last, true
		}
		n--
	}
	return Run{}, false, false
}

// Placed tells whether the task ever had a machine.
func (h *History) Placed() bool {
	for i := range h.Runs {
		if h.Runs[i].RunNs != NeverRan {
			return true
		}
	}
	return false
}

// final is how the last run ended.
func (h *History) final() End {
	if len(h.Runs) == 0 {
		return Ongoing
	}
	return h.Runs[len(h.Runs)-1].End
}

// Times are kept in milliseconds, as those of traces.
const historyGrainNs = int64(time.Millisecond)

// append adds a history to the bytes of those before it.
func (h *History) append(to []byte) []byte {
	to = binary.AppendUvarint(to, uint64(len(h.Runs)))
	for _, r := range h.Runs {
		to = binary.AppendUvarint(to, uint64(r.WaitNs/historyGrainNs))
		ran := uint64(0)
		if r.RunNs != NeverRan {
			ran = uint64(r.RunNs/historyGrainNs) + 1
		}
		to = binary.AppendUvarint(to, ran*uint64(numEnds)+uint64(r.End))
	}
	to = binary.AppendUvarint(to, uint64(h.CPUPermille))
	return binary.AppendUvarint(to, uint64(h.MemPermille))
}

// Histories reads what became of the tasks of a job, by index; nil when its spec
// does not say.
func Histories(spec *borgpb.JobSpec) ([]History, error) {
	data := spec.GetExtensions()[HistoryKey]
	if len(data) == 0 {
		return nil, nil
	}
	all := make([]History, 0, min(spec.Tasks, maxIndex2011+1))
	d := historyReader{data: data}
	for len(d.data) > 0 && !d.bad && len(all) <= maxIndex2011 {
		all = append(all, d.history())
	}
	if d.bad || len(all) != int(spec.Tasks) {
		return nil, fmt.Errorf("extension %s of a job of %d tasks: damaged after %d", HistoryKey, spec.Tasks, len(all))
	}
	return all, nil
}

// historyReader reads numbers; bad stays.
type historyReader struct {
	data []byte
	bad  bool
}

func (d *historyReader) number(most uint64) uint64 {
	v, n := binary.Uvarint(d.data)
	if n <= 0 || v > most {
		d.bad, d.data = true, nil
		return 0
	}
	d.data = d.data[n:]
	return v
}

func (d *historyReader) history() (h History) {
	const mostMs = math.MaxInt64 / uint64(historyGrainNs) / uint64(numEnds+1)
	n := d.number(uint64(len(d.data)))
	for range n {
		r := Run{WaitNs: int64(d.number(mostMs)) * historyGrainNs}
		v := d.number(mostMs * uint64(numEnds))
		if r.End = End(v % uint64(numEnds)); v < uint64(numEnds) {
			r.RunNs = NeverRan
		} else {
			r.RunNs = int64(v/uint64(numEnds)-1) * historyGrainNs
		}
		if d.bad {
			break
		}
		h.Runs = append(h.Runs, r)
	}
	h.CPUPermille, h.MemPermille = uint32(d.number(math.MaxUint32)), uint32(d.number(math.MaxUint32))
	return h
}

// SetHistories writes what became of the tasks of a job into its spec.
func SetHistories(spec *borgpb.JobSpec, all []History) {
	var data []byte
	for i := range all {
		data = all[i].append(data)
	}
	if spec.Extensions == nil {
		spec.Extensions = make(map[string][]byte)
	}
	spec.Extensions[HistoryKey] = data
}

// Arrival is an op that came from outside while the recording went on.
type Arrival struct {
	// AtNs is since the moment of the cell.
	AtNs int64
	Op   *borgpb.Op
	// What became of the tasks of a job that it submits; nil: the spec says, if
	// anybody does.
	Histories []History
}
