package workload

import (
	"fmt"
	"os"

	"google.golang.org/protobuf/proto"

	"borg/borgmaster/cell"
	"borg/checkpoint"
	"borg/fauxmaster/trace"
	"borg/proto/borgpb"
)

// Write writes a cell and what arrives at it into a new directory, as the archive of a
// cell: its checkpoint, and a change log of what came from outside up to untilNs. Nobody
// places anything in it. The cell is at its end then. What it refuses of what
// arrives is counted by its words.
func Write(dir, name string, c *cell.Cell, arrivals []trace.Arrival, untilNs int64) (refused map[string]int, err error) {
	if err := os.Mkdir(dir, 0o755); err != nil {
		return nil, fmt.Errorf("make an archive: %w", err)
	}
	if err := writeCheckpoint(dir, name, c); err != nil {
		return nil, fmt.Errorf("write the checkpoint of an archive: %w", err)
	}
	out, err := checkpoint.OpenArchiveWriter(nil, dir, &borgpb.ReplicaIdentity{CellName: name, CellId: c.ID()}, c.Epoch())
	if err != nil {
		return nil, err
	}
	w := &archiveWriter{out: out, cell: c, beganNs: c.TimeNs(), wallNs: c.WallNs(), refused: make(map[string]int)}
	for i := range arrivals {
		if arrivals[i].AtNs > untilNs {
			break
		}
		if err := w.add(&arrivals[i]); err != nil {
			return nil, err
		}
	}
	if err := w.end(untilNs); err != nil {
		return nil, err
	}
	return w.refused, out.Close()
}

func writeCheckpoint(dir, name string, c *cell.Cell) error {
	f, err := os.Create(dir + "/" + checkpoint.CheckpointName(c.Epoch(), c.Index()))
	if err != nil {
		return err
	}
	if err := Stream(f, name, c); err != nil {
		f.Close()
		return err
	}
	return f.Close()
}

// archiveWriter makes entries of arrivals.
type archiveWriter struct {
	out             *checkpoint.ArchiveWriter
	cell            *cell.Cell
	beganNs, wallNs int64
	// The entry being made.
	atNs  int64
	ops   []*borgpb.Op
	bytes int
	// Entries that are made and not written.
	made      []checkpoint.PastEntry
	madeBytes int
	refused   map[string]int
}

// add takes an op into the entry of its moment.
func (w *archiveWriter) add(a *trace.Arrival) error {
	size := proto.Size(a.Op)
	if len(w.ops) > 0 && (a.AtNs != w.atNs || w.bytes+size > maxEntryBytes || len(w.ops) == maxOps) {
		if err := w.entry(); err != nil {
			return err
		}
	}
	w.atNs, w.ops, w.bytes = a.AtNs, append(w.ops, a.Op), w.bytes+size
	return nil
}

// entry applies the entry and keeps it for the log.
func (w *archiveWriter) entry() error {
	e := &borgpb.Entry{CellTimeNs: w.beganNs + w.atNs, WallTimeNs: w.wallNs + w.atNs}
	for _, op := range w.ops {
		e.Ops = append(e.Ops, marshal(op))
	}
	term := max(w.cell.Term(), 1)
	data := marshal(e)
	results, _ := w.cell.Apply(w.cell.Index()+1, term, data)
	for _, r := range results {
		if why := r.GetRefusal(); why != nil {
			w.refused[why.GetMessage()]++
		}
	}
	w.cell.Flush(nil)
	w.ops, w.bytes = nil, 0
	if index, d, ok := w.cell.LastDigest(); ok && index == w.cell.Index() {
		// As an elected master does, so that a replay has something to compare with.
		w.ops = append(w.ops, &borgpb.Op{Op: &borgpb.Op_Digest{Digest: &borgpb.LogDigest{Index: index, Digest: d[:]}}})
	}
	w.made = append(w.made, checkpoint.PastEntry{Index: w.cell.Index(), Term: term, Data: data})
	if w.madeBytes += len(data); w.madeBytes > maxEntryBytes {
		return w.flush()
	}
	return nil
}

func (w *archiveWriter) flush() error {
	err := w.out.Append(w.made, w.cell.WallNs())
	w.made, w.madeBytes = nil, 0
	return err
}

// end writes what is left, and when the recording ended.
func (w *archiveWriter) end(untilNs int64) error {
	if len(w.ops) > 0 {
		if err := w.entry(); err != nil {
			return err
		}
	}
	w.atNs = untilNs
	w.ops = []*borgpb.Op{{Op: &borgpb.Op_Time{Time: &borgpb.SetTime{}}}}
	if err := w.entry(); err != nil {
		return err
	}
	return w.flush()
}
