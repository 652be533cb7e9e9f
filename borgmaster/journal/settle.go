package journal

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"slices"

	"golang.org/x/sys/unix"

	"borg/proto/borgpb"
	"borg/tell/hostpath"
)

const throughBytes = 12

// throughOf is an index with its sum, to know it from half of one.
func throughOf(index uint64) []byte {
	b := binary.BigEndian.AppendUint64(nil, index)
	return binary.BigEndian.AppendUint32(b, crc32.Checksum(b, castagnoli))
}

// gap notes one, together with the one before it if they meet. The caller holds mu.
func (j *Journal) gap(from, to uint64, why string) {
	if n := len(j.gaps); n > 0 && j.gaps[n-1].To+1 == from && j.gaps[n-1].Why == why {
		j.gaps[n-1].To = to
		return
	}
	j.gaps = append(j.gaps, &borgpb.AuditHole{From: from, To: to, Why: why})
}

// settle makes what was written outlive the machine, and then writes down up to where
// that is. A mark that is behind costs a gap that others fill; one that were ahead
// would hide one. If a sync fails, the disk may lack what was written since the last one
// also after the next one: all of that is told as a gap.
func (j *Journal) settle() error {
	through := j.toldThrough()
	if err := j.store.sync(); err != nil {
		j.writing.Lock()
		defer j.writing.Unlock()
		j.retell(nil, j.marked+1, j.through, err)
		return err
	}
	if through <= j.marked {
		return nil
	}
	_, err := j.mark.WriteAt(throughOf(through), 0)
	if err = errors.Join(err, unix.Fdatasync(int(j.mark.Fd()))); err != nil {
		return fmt.Errorf("write down up to where events are kept: %w", err)
	}
	j.marked = through
	return nil
}

// toldThrough is up to where all entries and gaps are written.
func (j *Journal) toldThrough() uint64 {
	j.writing.Lock()
	defer j.writing.Unlock()
	j.mu.Lock()
	defer j.mu.Unlock()
	if len(j.gaps) > 0 {
		return min(j.through, j.gaps[0].From-1)
	}
	return j.through
}

// lose makes a gap of what could not be written; of the gaps that could not be written
// either, those before it stay. The caller holds writing.
func (j *Journal) lose(gaps []*borgpb.AuditHole, through uint64, err error) {
	j.failed.Add(1)
	j.retell(gaps, j.through+1, through, err)
	j.through = through
	j.complain(err)
}

// retell makes one gap from a log index to another, unless that is before it, and has gaps that
// lie elsewhere written again. The caller holds writing.
func (j *Journal) retell(gaps []*borgpb.AuditHole, from, to uint64, err error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	all := slices.DeleteFunc(slices.Concat(gaps, j.gaps), func(g *borgpb.AuditHole) bool { return g.From >= from && g.To <= to })
	if from <= to {
		all = append(all, &borgpb.AuditHole{From: from, To: to, Why: "it could not be written: " + hostpath.Text(err)})
	}
	slices.SortFunc(all, func(a, b *borgpb.AuditHole) int { return cmp.Compare(a.From, b.From) })
	j.gaps = nil
	for _, g := range all {
		j.gap(g.From, g.To, g.Why)
	}
}
