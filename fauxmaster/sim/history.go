package sim

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"time"

	"borg/borgmaster/cell"
	"borg/history"
	"borg/proto/borgpb"
)

// historyLimit is real time per job for finding an order. No verdict in that
// time is counted and is no violation, so that a slow machine changes no run.
const historyLimit = time.Minute

// story is what clients asked about jobs and what they were told. Its times are
// those of the trace.
type story struct {
	records []history.Record
	// Request ids of the mutations that were refused, by place in records.
	refused map[int]string
	// Mutations whose client was turned away, with their request ids.
	turned []turned
	// What they asked about files, and the request ids of those that were refused or
	// turned away, by place in files.
	files     []history.FileRecord
	openFiles map[int]string
	rand      *rand.Rand
}

// turned is a mutation of which its client does not know what became.
type turned struct {
	id     string
	record history.Record
}

// readPatienceNs is how long a client listens for the answer to a read. Without
// a bound, a replica that was stopped for long answers dozens at once that all
// overlap, and an order of them takes minutes to find.
const readPatienceNs = 500 * millisecond

// looks chooses a job that a client reads, and returns what is to be called with
// the replica that answers. The answer counts as given when the replica gives
// it, not when it arrives: that is the narrower of the two.
func (w *World) looks(c *client) func(r *replicaNode) {
	key := cell.JobKey{User: fmt.Sprintf("u%d", w.story.rand.IntN(3)), Name: fmt.Sprintf("j%d", w.story.rand.IntN(w.swarm.jobs))}
	askedNs := w.now - second
	return func(r *replicaNode) {
		if w.now-second-askedNs > readPatienceNs {
			return
		}
		var shown *borgpb.Job
		if j := r.cell.Job(key); j != nil {
			shown = r.cell.JobProto(j)
		}
		w.story.records = append(w.story.records, history.Showed(c.i, key.String(), askedNs, w.now-second, shown))
	}
}

// heard takes in the answer to a client's mutation.
func (w *World) heard(c *client, res *borgpb.Result) {
	s := &w.story
	if c.asked.Kind == 0 {
		return
	}
	r := c.asked
	r.Answered(w.now-second, res)
	if res.GetRefusal() != nil {
		if s.refused == nil {
			s.refused = map[int]string{}
		}
		s.refused[len(s.records)] = c.op.RequestId
	}
	s.records = append(s.records, r)
}

// judge: S5, what clients were told can have come from a cell that does one
// thing at a time. The log is asked for one thing only: whether what was refused,
// or turned away, was done by another try, which clients cannot know. A revoked
// client goes on asking, and an order of all that may have been done takes hours
// to find.
//
// What is shown after all disks were lost begins with jobs that nobody is known to
// have asked for, and is not judged.
func (w *World) judge() {
	if w.restore.lost != nil {
		return
	}
	s := &w.story
	for i, id := range s.refused {
		s.records[i].Late = w.truth.done[id].times > 0
	}
	for _, t := range s.turned {
		if w.truth.done[t.id].times > 0 {
			s.records = append(s.records, t.record)
		}
	}
	w.result.History = history.Check(s.records, historyLimit)
	if w.result.History.Illegal > 0 {
		w.fail("S5: %s", strings.TrimSuffix(w.result.History.Detail, "\n"))
	}
	files := w.judgeFiles()
	w.result.History.Keys += files.Keys
	w.result.History.Ops += files.Ops
	w.result.History.Unknown += files.Unknown
	if files.Illegal > 0 {
		w.fail("S5: %s", strings.TrimSuffix(files.Detail, "\n"))
	}
}
